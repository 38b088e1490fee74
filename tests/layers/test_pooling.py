"""The CPU variant of `layers/pooling`: maxima are PyTorch's, bit for bit, means are compared with float64."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kernels_hub import Mode, kernelize, report
from kernels_hub.calibration import database
from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.layers.checked_operators import opcheck
from tests.tolerances import assert_close

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

PACKAGE: ModuleType = import_kernel(source_variant(bundled_folder() / "pooling", "cpu"))
KERNELS: ModuleType = sys.modules[PACKAGE.__name__ + ".kernels"]
CHANNELS_LAST = torch.channels_last

MODULES: dict[str, Callable[[], nn.Module]] = {
    "ResNet": lambda: nn.MaxPool2d(3, 2, 1),
    "VGG": lambda: nn.MaxPool2d(2, 2),
    "VGG, list": lambda: nn.MaxPool2d([2, 2], [2]),
    "GoogLeNet": lambda: nn.MaxPool2d(3, 2, ceil_mode=True),
    "Inception": lambda: nn.MaxPool2d(3, 1, 1),
    "YOLO": lambda: nn.MaxPool2d(5, 1, 2),
    "subsampling": lambda: nn.MaxPool2d(1, 2),
    "dilated": lambda: nn.MaxPool2d((2, 3), (1, 2), (1, 0), (3, 2)),
    "dilated, dense": lambda: nn.MaxPool2d(3, 1, 1, 2),
    "one": lambda: nn.MaxPool2d(2, 1 << 30),
    "wide": lambda: nn.MaxPool2d((1, 6), (4, 3)),
    "mean": lambda: nn.AvgPool2d(2),
    "mean of all that is there": lambda: nn.AvgPool2d(3, 1, 1, count_include_pad=False),
    "mean with padding": lambda: nn.AvgPool2d(3, 2, 1),
    "mean, both ends": lambda: nn.AvgPool2d((5, 2), (2, 3), (2, 1), ceil_mode=True),
    "sum": lambda: nn.AvgPool2d(3, 2, divisor_override=1),
    "negated": lambda: nn.AvgPool2d(2, 1, divisor_override=-4),
}
SHAPES = ((1, 3, 9, 16), (2, 5, 8, 40), (4, 17, 33), (1, 1, 7, 7), (3, 2, 5, 129))


def run(module: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = getattr(PACKAGE.layers, type(module).__name__).forward(module, x)
    return result


def takes(module: nn.Module, x: Tensor) -> bool:
    """Whether the C++ runs."""
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    if isinstance(module, nn.AvgPool2d):
        names = ("kernel_size", "stride", "padding", "", "ceil_mode", "count_include_pad", "divisor_override")
    arguments = (getattr(module, name) if name else 1 for name in names)
    return KERNELS._library() is not None and KERNELS._plan_for(x, *arguments) is not None


def check(module: nn.Module, x: Tensor) -> None:
    """Against PyTorch: maxima as they are, means of float64; either in PyTorch's layout."""
    expected, found = module(x), run(module, x)
    assert found.stride() == expected.stride() and found.dtype is expected.dtype
    if isinstance(module, nn.MaxPool2d):
        assert found.shape == expected.shape
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.nan_to_num(7.0, 8.0, 9.0), expected.nan_to_num(7.0, 8.0, 9.0))
    else:
        assert_close(found, module(x.double()))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_layers(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module, x = MODULES[name](), torch.randn(shape)
    assert takes(module, x)
    check(module, x)


def test_the_comparison_sees_a_wrong_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = nn.MaxPool2d(2), torch.randn(1, 2, 8, 8)
    monkeypatch.setattr(
        PACKAGE.layers.MaxPool2d, "forward", lambda module, x: torch.nextafter(module(x), x.new_ones(()))
    )
    with pytest.raises(AssertionError):
        check(module, x)


@st.composite
def calls(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """A module whose window may be larger than the image, and an input."""

    def pair(least: int, most: int) -> tuple[int, int]:
        return draw(st.integers(least, most)), draw(st.integers(least, most))

    kernel, stride = pair(1, 6), pair(1, 4)
    padding = draw(st.integers(0, kernel[0] // 2)), draw(st.integers(0, kernel[1] // 2))
    ceil_mode = draw(st.booleans())
    if draw(st.booleans()):
        dilation = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2), (3, 3)]))
        module: nn.Module = nn.MaxPool2d(kernel, stride, padding, dilation, ceil_mode=ceil_mode)
    else:
        divisor = draw(st.sampled_from([None, None, 1, 7, -3]))
        module = nn.AvgPool2d(kernel, stride, padding, ceil_mode, draw(st.booleans()), divisor)
    shape = [draw(st.integers(1, most)) for most in (3, 3, 20, 50)][draw(st.integers(0, 1)) :]
    torch.manual_seed(draw(st.integers(0, 1000)))
    x = torch.randn(shape)
    for special in draw(st.lists(st.sampled_from([torch.nan, torch.inf, -torch.inf]), max_size=3)):
        x.view(-1)[draw(st.integers(0, x.numel() - 1))] = special
    return module, x


@settings(max_examples=300, deadline=None)
@given(calls())
def test_any_window_on_any_image(call: tuple[nn.Module, Tensor]) -> None:
    module, x = call
    try:
        module(x)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=re.escape(str(error))):
            run(module, x)
    else:
        check(module, x)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", MODULES)
def test_numbers_that_are_not_finite(name: str, value: float) -> None:
    """At every place of a small image, among others and alone."""
    module = MODULES[name]()
    for place in range(0, 9 * 19, 2):
        x = torch.randn(1, 2, 9, 19)
        x[0, 1].view(-1)[place] = value
        check(module, x)
    check(module, torch.full((1, 2, 9, 19), value))


@pytest.mark.parametrize("name", MODULES)
def test_threads_share_the_planes(name: str) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        check(MODULES[name](), torch.randn(2, 150, 33, 31))
    finally:
        torch.set_num_threads(threads)


# -- memory ----------------------------------------------------------------------------------------------

PAGE = mmap.PAGESIZE


def beside_forbidden_memory(count: int, where: str) -> Tensor:
    """Numbers that lie just before a page which nobody may touch, or just behind one."""
    size = -(-4 * count // PAGE) * PAGE
    region = mmap.mmap(-1, size + PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(region))
    forbidden, start = (size, size - 4 * count) if where == "before" else (0, PAGE)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    assert protect(ctypes.c_void_p(address + forbidden), ctypes.c_size_t(PAGE), 0) == 0, ctypes.get_errno()
    return torch.frombuffer(region, dtype=torch.float32, count=count, offset=start)


@pytest.mark.parametrize("where", ["before", "behind"])
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_nothing_is_touched_beside_the_tensors(
    name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = MODULES[name]()
    for shape in ((1, 2, 7, 7), (1, 3, 9, 15), (2, 9, 16), (1, 2, 11, 35), (1, 2, 7, 100)):
        x = beside_forbidden_memory(torch.Size(shape).numel(), where).view(shape).copy_(torch.randn(shape))
        expected = module(x)
        y = beside_forbidden_memory(expected.numel(), where).view(expected.shape)
        monkeypatch.setattr(KERNELS, "_pooled", partial(_into, y))
        assert run(module, x) is y
        assert_close(y, expected)


def _into(y: Tensor, function: Callable[..., None], x: Tensor, plan: Any) -> Tensor:
    assert plan.shape == y.shape
    function(plan.geometry, x.data_ptr(), y.data_ptr())
    return y


# -- what PyTorch runs -----------------------------------------------------------------------------------


@pytest.fixture
def no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def pooled(*arguments: object) -> Tensor:
        raise AssertionError("the kernel was called")

    monkeypatch.setattr(KERNELS, "_pooled", pooled)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels last": lambda x: x.contiguous(memory_format=CHANNELS_LAST),
    "cropped": lambda x: x[..., 1:, 2:],
    "transposed": lambda x: x.transpose(-1, -2),
    "every other channel": lambda x: x[:, ::2],
    "expanded": lambda x: x[:, :1].expand(-1, 3, -1, -1),
    "negated": lambda x: torch._neg_view(x).flip(-1)[..., 1:],
    "one channel, channels last": lambda x: x[:, :1].contiguous(memory_format=CHANNELS_LAST),
    "bfloat16": lambda x: x.bfloat16(),
    "float64": lambda x: x.double(),
}


@pytest.mark.usefixtures("no_kernel")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODULES)
def test_other_layouts_and_dtypes(name: str, layout: str) -> None:
    module, x = MODULES[name](), LAYOUTS[layout](torch.randn(2, 4, 11, 12))
    expected, found = module(x), run(module, x)
    assert found.stride() == expected.stride() and found.dtype is expected.dtype
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.usefixtures("no_kernel")
def test_images_of_one_pixel() -> None:
    for memory in (torch.contiguous_format, CHANNELS_LAST):
        x = torch.randn(2, 3, 1, 1).contiguous(memory_format=memory)
        for module in (nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(2, 2, 1, ceil_mode=True), nn.AvgPool2d(1)):
            check(module, x)


def test_lines_of_one_pixel() -> None:
    for shape in ((2, 3, 1, 9), (2, 3, 9, 1), (1, 1, 1, 2)):
        x = torch.randn(shape)
        for module in (nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1), nn.AvgPool2d(1, 2)):
            assert takes(module, x)
            check(module, x)


@pytest.mark.usefixtures("no_kernel")
def test_indices() -> None:
    x = torch.randn(1, 2, 8, 8)
    module = nn.MaxPool2d(2, return_indices=True)
    for ours, theirs in zip(run(module, x), module(x), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.usefixtures("no_kernel")
def test_gradients() -> None:
    for make in MODULES.values():
        module = make()
        x = torch.randn(2, 3, 11, 12, requires_grad=True)
        probe = torch.randn_like(module(x))
        ours, theirs = (
            torch.autograd.grad((call(x) * probe).sum(), x)[0] for call in (partial(run, module), module)
        )
        assert torch.equal(ours, theirs)


@pytest.mark.usefixtures("no_kernel")
def test_autocast() -> None:
    x = torch.randn(1, 2, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        for module in (nn.MaxPool2d(2), nn.AvgPool2d(2)):
            assert run(module, x).dtype is module(x).dtype


class Tagged(Tensor):
    """A tensor subclass with a right to see every function that is applied to it."""

    seen: list[str] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        cls.seen.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.usefixtures("no_kernel")
def test_subclasses() -> None:
    x = torch.randn(1, 2, 8, 8).as_subclass(Tagged)
    for module, name in ((nn.MaxPool2d(2), "max_pool2d"), (nn.AvgPool2d(2), "avg_pool2d")):
        Tagged.seen.clear()
        assert type(run(module, x)) is Tagged
        assert any(name in one for one in Tagged.seen)


WRONG: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "window larger than the image": (nn.MaxPool2d(9), (1, 2, 8, 8)),
    "dilated window": (nn.MaxPool2d(3, dilation=4), (1, 2, 8, 8)),
    "padding": (nn.MaxPool2d(2, 1, 2), (1, 2, 8, 8)),
    "padding below 0": (nn.MaxPool2d(2, 1, -1), (1, 2, 8, 8)),
    "no stride": (nn.MaxPool2d(2, 0), (1, 2, 8, 8)),
    "no dilation": (nn.MaxPool2d(2, dilation=0), (1, 2, 8, 8)),
    "two dimensions": (nn.MaxPool2d(2), (8, 8)),
    "five dimensions": (nn.AvgPool2d(2), (1, 1, 2, 8, 8)),
    "no channels": (nn.AvgPool2d(2), (1, 0, 8, 8)),
    "divisor of 0": (nn.AvgPool2d(2, divisor_override=0), (1, 2, 8, 8)),
    "three numbers": (nn.AvgPool2d((2, 2, 2)), (1, 2, 8, 8)),
    "no window": (nn.AvgPool2d(0, 1), (1, 2, 8, 8)),
    "half a pixel": (nn.AvgPool2d(2.5), (1, 2, 8, 8)),
    "half a pixel of two": (nn.MaxPool2d((2, 2.5)), (1, 2, 8, 8)),
    "text": (nn.MaxPool2d("2"), (1, 2, 8, 8)),
    "huge": (nn.MaxPool2d(2, 1 << 80), (1, 2, 8, 8)),
}


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_what_pytorch_refuses(name: str, watched: bool) -> None:
    module, shape = WRONG[name]
    x = torch.randn(shape)
    with pytest.raises(Exception) as theirs:
        module(x)
    with torch.profiler.profile() if watched else torch.no_grad(), pytest.raises(type(theirs.value)) as ours:
        run(module, x)
    assert str(ours.value) == str(theirs.value)


def test_inputs_that_are_no_tensors() -> None:
    for module in (nn.MaxPool2d(2), nn.AvgPool2d(2)):
        for wrong in (None, [1.0], 3):
            with pytest.raises(TypeError) as theirs:
                module(wrong)
            with pytest.raises(TypeError) as ours:
                run(module, wrong)  # type: ignore[arg-type]
            assert str(ours.value) == str(theirs.value)


def test_no_images() -> None:
    for module in (nn.MaxPool2d(2), nn.AvgPool2d(2)):
        assert run(module, torch.empty(0, 3, 8, 8)).shape == (0, 3, 4, 4)


# -- operators and models --------------------------------------------------------------------------------


def test_operators() -> None:
    operators = sys.modules[PACKAGE.__name__ + ".operators"]
    for x in (torch.randn(2, 3, 9, 10), torch.randn(2, 3, 9, 10).contiguous(memory_format=CHANNELS_LAST)):
        opcheck(operators.max_pool2d, (x, [3, 3], [2, 2], [1, 1], [1, 1], True))
        opcheck(operators.avg_pool2d, (x, [3, 2], [2, 2], [1, 1], False, False, None))


def test_functions_have_pytorchs_defaults() -> None:
    x = torch.randn(2, 3, 9, 10)
    assert torch.equal(PACKAGE.max_pool2d(x, 3), F.max_pool2d(x, 3))
    assert_close(PACKAGE.avg_pool2d(x, (3, 2)), F.avg_pool2d(x, (3, 2)))
    assert torch.equal(PACKAGE.max_pool2d(x, 3, padding=1, stride=1), F.max_pool2d(x, 3, padding=1, stride=1))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["ResNet", "mean of all that is there"])
def test_compiled(name: str, dynamic: bool) -> None:
    torch.compiler.reset()  # of each function, so many graphs are made at most
    module = MODULES[name]()
    compiled = torch.compile(lambda x: run(module, x), backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for batch in (2, 3):
        x = torch.randn(batch, 3, 11, 12)
        with torch.no_grad():
            assert_close(compiled(x), module(x))
    x.requires_grad_()
    compiled(x).square().sum().backward()
    assert_close(x.grad, torch.autograd.grad(module(x).square().sum(), x)[0])


def test_kernelize(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_HUB_CALIBRATION", database.IGNORE)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.MaxPool2d(2, return_indices=True)
    ).eval()
    x = torch.randn(1, 3, 40, 40)
    with torch.inference_mode():
        expected = model(x)[0]
        kernelize(model, mode=Mode.INFERENCE, wait=True)
        assert_close(model(x)[0], expected)
    rows = {row.path: row for row in report(model).rows}
    assert rows["1"].swapped and rows["2"].swapped and not rows["3"].swapped
    assert "return_indices" in str(rows["3"].reason)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.inference_mode():
        assert_close(compiled(x)[0], expected)
    assert not report(kernelize(nn.MaxPool2d(2), mode=Mode.TRAINING)).swapped


def test_layers_keep_the_contract() -> None:
    for name in ("MaxPool2d", "AvgPool2d"):
        layer = getattr(PACKAGE.layers, name)
        members = {one for one in vars(layer) if not one.startswith("__")}
        assert members == {"forward", "has_backward", "can_torch_compile"}


WITHOUT_A_COMPILER = """
import sys
import torch
from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
package = import_kernel(source_variant(bundled_folder() / "pooling", "cpu"))
assert sys.modules[package.__name__ + ".kernels"]._library() is None
x = torch.randn(2, 3, 9, 10)
assert torch.equal(package.max_pool2d(x, 3, 2, 1), torch.max_pool2d(x, 3, 2, 1))
assert torch.equal(package.avg_pool2d(x, 3, 2, 1), torch.nn.functional.avg_pool2d(x, 3, 2, 1))
"""


def test_without_a_compiler() -> None:
    environment = {**os.environ, "KERNELS_HUB_CXX": "none"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_COMPILER],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "native CPU code of" in done.stderr  # said, not silent
