"""Convolutions of contiguous images in `layers/convolution` on the CPU, against torch.nn in float64."""

from __future__ import annotations

import ctypes
import mmap
import threading

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.layers.convolution_cases import Case
from tests.tolerances import assert_close

PACKAGE = import_kernel(source_variant(bundled_folder() / "convolution", "cpu"))
KERNELS, PLANES = PACKAGE.kernels, PACKAGE.kernels.planes
forward = PACKAGE.layers.Conv2d.forward

CASES = {
    "1x1": Case((2, 40, 9, 7), 33, (1, 1)),
    "1x1, deep": Case((1, 1100, 5, 7), 70, (1, 1)),
    "1x1, padded": Case((1, 20, 6, 5), 9, (1, 1), (1, 1), (2, 1)),
    "1x1/2": Case((1, 32, 8, 9), 48, (1, 1), (2, 2)),
    "3x3/2": Case((1, 48, 11, 10), 24, (3, 3), (2, 2), (1, 1)),
    "stem 7x7/2": Case((2, 3, 31, 33), 20, (7, 7), (2, 2), (3, 3)),
    "few channels": Case((1, 12, 50, 47), 16, (3, 3), (1, 1), (1, 1)),
    "patches": Case((1, 3, 32, 36), 40, (4, 4), (4, 4)),
    "a line": Case((2, 16, 1, 40), 24, (1, 7), (1, 1), (0, 3)),
    "a column": Case((2, 16, 40, 1), 24, (7, 1), (1, 1), (3, 0)),
    "depthwise, large": Case((1, 20, 70, 61), 20, (3, 3), (1, 1), (1, 1), (1, 1), 20),
    "depthwise, large, 5x5/2": Case((1, 3, 70, 61), 3, (5, 5), (2, 2), (2, 2), (1, 1), 3),
    "depthwise, narrow": Case((1, 3, 70, 9), 3, (7, 7), (1, 1), (3, 3), (1, 1), 3),
    "depthwise, small": Case((2, 37, 7, 7), 37, (5, 5), (1, 1), (2, 2), (1, 1), 37),
    "depthwise, small, 3x3/2": Case((1, 16, 14, 14), 16, (3, 3), (2, 2), (1, 1), (1, 1), 16),
    "depthwise, dilated": Case((1, 20, 40, 41), 20, (3, 3), (1, 1), (4, 4), (4, 4), 20),
    "two filters a channel": Case((1, 6, 18, 18), 12, (5, 3), (1, 2), (2, 1), (1, 1), 6),
    "groups": Case((2, 64, 17, 18), 48, (3, 3), (1, 1), (1, 1), (1, 1), 4),
    "groups, 3x3/2": Case((1, 48, 29, 28), 48, (3, 3), (2, 2), (1, 1), (1, 1), 3),
    "groups, 1x1": Case((1, 48, 8, 8), 64, (1, 1), groups=4),
    "padded by more than it sees": Case((1, 17, 6, 6), 17, (3, 3), (1, 1), (4, 5), (1, 1), 17),
}


def wide(case: Case, *tensors: Tensor | None) -> Tensor:
    x, weight, bias = (None if tensor is None else tensor.double() for tensor in tensors)
    return F.conv2d(x, weight, bias, *case.geometry)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_planes(name: str, bias: bool) -> None:
    case = CASES[name]
    x, weight, more = case.tensors(torch.float32, bias=bias)
    plan = PLANES.plan(x, weight, more, *case.geometry)
    assert plan is not None
    result = PLANES.convolve(plan, x, weight, more)
    assert result.is_contiguous()
    assert_close(result, wide(case, x, weight, more))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.groups == case.filters])
def test_depthwise_convolutions_of_pixels(name: str) -> None:
    case = CASES[name]
    x, weight, bias = case.tensors(torch.float32)
    x = x.contiguous(memory_format=torch.channels_last)
    for more in (bias, None):
        plan = PLANES.plan(x, weight, more, *case.geometry)
        is_taken = x.shape[2] * x.shape[3] <= 2048 or weight.shape[2] * weight.shape[3] >= 25
        assert (plan is not None) == is_taken
        result = KERNELS.conv2d(x, weight, more, *case.geometry)
        assert result.is_contiguous(memory_format=torch.channels_last)
        assert_close(result, wide(case, x, weight, more))


sizes = st.integers(1, 40)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    groups = draw(st.integers(1, 40))
    is_depthwise = groups > 20
    channels, filters = (1 if is_depthwise else draw(st.integers(1, 20)) for _ in range(2))
    kernel, dilation = [(draw(st.integers(1, 7)), draw(st.integers(1, 7))), (draw(st.integers(1, 2)), 1)]
    stride = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    padding = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    height, width = (
        max(1, draw(sizes), (size - 1) * apart + 1 - 2 * pad)
        for size, apart, pad in zip(kernel, dilation, padding, strict=True)
    )
    input = (draw(st.integers(1, 2)), channels * groups, height, width)
    return Case(input, filters * groups, kernel, stride, padding, dilation, groups)


@settings(max_examples=150, deadline=None)
@given(cases(), st.booleans())
def test_any_sizes(case: Case, of_pixels: bool) -> None:
    x, weight, bias = case.tensors(torch.float32)
    if of_pixels:
        x = x.contiguous(memory_format=torch.channels_last)
    result = KERNELS.conv2d(x, weight, bias, *case.geometry)
    assert_close(result, wide(case, x, weight, bias))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_nothing_behind_the_image_is_read(name: str, layout: torch.memory_format) -> None:
    """The image ends where a page ends, and the next page may not be read."""
    case = CASES[name]
    x, weight, bias = case.tensors(torch.float32)
    pages = -(-x.nbytes // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    protect = libc.mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert protect(address + pages * mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0
    try:
        offset = pages * mmap.PAGESIZE - x.nbytes
        image = torch.frombuffer(memory, dtype=torch.float32, count=x.numel(), offset=offset)
        strides = x.contiguous(memory_format=layout).stride()
        image = image.as_strided(x.shape, strides, image.storage_offset()).copy_(x)
        result = KERNELS.conv2d(image, weight, bias, *case.geometry)
    finally:
        protect(address + pages * mmap.PAGESIZE, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)
    assert_close(result, wide(case, x, weight, bias))


@pytest.mark.parametrize("name", ["1x1", "depthwise, large", "depthwise, small", "groups"])
def test_what_is_not_finite_stays_where_it_is_seen(name: str) -> None:
    case = CASES[name]
    x, weight, _ = case.tensors(torch.float32)
    x[0, 1, 2, 3], x[-1, 5, 4, 0] = torch.nan, -torch.inf
    result, reference = KERNELS.conv2d(x, weight, None, *case.geometry), wide(case, x, weight, None)
    assert torch.equal(result.isfinite(), reference.isfinite())
    assert torch.equal(result.isnan(), reference.isnan())
    finite = reference.isfinite()
    assert_close(result[finite], reference[finite])


def test_the_same_bits_on_any_number_of_threads() -> None:
    before = torch.get_num_threads()
    try:
        for case in CASES.values():
            tensors = case.tensors(torch.float32)
            results = []
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                results.append(KERNELS.conv2d(*tensors, *case.geometry))
            assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    finally:
        torch.set_num_threads(before)


def test_threads_that_convolve_at_once() -> None:
    case = CASES["groups"]
    tensors = case.tensors(torch.float32)
    expected, wrong = wide(case, *tensors), []

    def work() -> None:
        for _ in range(50):
            result = KERNELS.conv2d(*tensors, *case.geometry)
            if not torch.allclose(result.double(), expected, atol=1e-4):
                wrong.append(result)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def module_and_image() -> tuple[nn.Conv2d, Tensor]:
    torch.manual_seed(0)
    return nn.Conv2d(40, 48, 1).requires_grad_(False), torch.randn(1, 40, 9, 9)


def test_the_layer_calls_the_kernel_and_keeps_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = module_and_image()
    calls = []
    original = PLANES.convolve
    monkeypatch.setattr(PLANES, "convolve", lambda *arguments: calls.append(1) or original(*arguments))
    assert_close(forward(module, x), wide(Case((1, 40, 9, 9), 48, (1, 1)), x, module.weight, module.bias))
    assert calls and KERNELS.packed_nbytes(module.weight, folded=False) == 0
    module.weight.mul_(2)  # no copy that could be stale
    assert_close(forward(module, x), wide(Case((1, 40, 9, 9), 48, (1, 1)), x, module.weight, module.bias))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        forward(module, x)
    assert any(event.key.endswith("::conv2d") and "aten" not in event.key for event in profile.key_averages())
    assert len(calls) == 3


def test_where_pytorchs_own_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = module_and_image()
    monkeypatch.setattr(PLANES, "convolve", lambda *_: pytest.fail("the kernel was called"))
    forward(module, x[..., :1, :1].contiguous())  # one pixel
    forward(module, x.contiguous(memory_format=torch.channels_last))
    forward(module, x.transpose(2, 3))
    assert forward(module, x.clone().requires_grad_()).requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        assert forward(module, x).dtype is torch.bfloat16
    assert forward(module.double(), x.double()).dtype is torch.float64
    module.float()
    monkeypatch.setattr(PLANES, "_library", lambda: None)
    assert_close(forward(module, x), module(x))


# -- one dimension ---------------------------------------------------------------------------------------

LINES: dict[str, tuple[tuple[int, int, int], dict[str, object]]] = {
    "plain": ((2, 40, 50), {"out_channels": 33, "kernel_size": 3}),
    "1": ((1, 40, 50), {"out_channels": 33, "kernel_size": 1}),
    "front end": ((1, 1, 4000), {"out_channels": 64, "kernel_size": 10, "stride": 5, "bias": False}),
    "strided": ((1, 64, 301), {"out_channels": 48, "kernel_size": 3, "stride": 2, "padding": 1}),
    "dilated": ((1, 16, 300), {"out_channels": 16, "kernel_size": 3, "dilation": 81, "padding": 81}),
    "depthwise": ((1, 33, 100), {"out_channels": 33, "kernel_size": 31, "padding": 15, "groups": 33}),
    "causal depthwise": ((2, 48, 20), {"out_channels": 48, "kernel_size": 4, "padding": 3, "groups": 48}),
    "groups": ((1, 64, 99), {"out_channels": 64, "kernel_size": 16, "padding": 8, "groups": 4}),
    "long": ((1, 12, 20_000), {"out_channels": 8, "kernel_size": 7, "padding": 3}),
    "same": ((1, 24, 30), {"out_channels": 24, "kernel_size": 4, "padding": "same"}),
    "reflect": ((1, 24, 30), {"out_channels": 24, "kernel_size": 3, "padding": 1, "padding_mode": "reflect"}),
}
forward_line = PACKAGE.layers.Conv1d.forward


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", LINES)
def test_lines(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    shape, arguments = LINES[name]
    module = nn.Conv1d(shape[1], **arguments).requires_grad_(False).to(dtype)  # type: ignore[arg-type]
    for x in (torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)[0]):
        eager, result = module(x), forward_line(module, x)
        assert (result.stride(), result.dtype) == (eager.stride(), eager.dtype)
        assert_close(result, module.double()(x.double()))
        module.to(dtype)


def test_a_line_is_one_call_and_profilers_see_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Conv1d(40, 48, 3).requires_grad_(False)
    x = torch.randn(1, 40, 90)
    calls = []
    original = PLANES.convolve
    monkeypatch.setattr(PLANES, "convolve", lambda *arguments: calls.append(1) or original(*arguments))
    expected = module.double()(x.double())
    module.float()
    assert_close(forward_line(module, x), expected)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert_close(forward_line(module, x), expected)
    assert any(event.key.endswith("::conv2d") and "aten" not in event.key for event in profile.key_averages())
    assert len(calls) == 2
    y = x.clone().requires_grad_()
    forward_line(module, y).sum().backward()
    assert y.grad is not None and len(calls) == 2
    assert_close(forward_line(module, x.transpose(0, 1).contiguous().transpose(0, 1)), expected)
    for wrong in (torch.randn(1, 3, 90), torch.randn(1, 40, 2), torch.randn(40)):
        with pytest.raises(RuntimeError) as theirs:
            module(wrong)
        with pytest.raises(RuntimeError) as ours:
            forward_line(module, wrong)
        assert str(ours.value) == str(theirs.value)
