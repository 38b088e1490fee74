"""The operators and `Conv2d` of `layers/convolution` on the CPU, against torch.nn in float64."""

from __future__ import annotations

import copy
import gc
import re
import threading
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.layers.checked_operators import opcheck
from tests.layers.convolution_cases import CASES as SHARED_CASES
from tests.layers.convolution_cases import LAYOUTS, Case
from tests.tolerances import assert_close

PACKAGE: ModuleType = import_kernel(source_variant(bundled_folder() / "convolution", "cpu"))
KERNELS = PACKAGE.kernels
conv2d, conv_norm = PACKAGE.conv2d, PACKAGE.conv_norm
forward = PACKAGE.layers.Conv2d.forward

# Large enough for minimal filtering.
MINIMAL = {
    "minimal": Case((1, 48, 19, 22), 40, (3, 3), (1, 1), (1, 1)),
    "minimal, unpadded": Case((2, 32, 20, 11), 64, (3, 3)),
    "minimal, padded more": Case((3, 64, 9, 9), 33, (3, 3), (1, 1), (2, 0)),
}
CASES = SHARED_CASES | MINIMAL

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
CHANNELS_LAST = torch.channels_last


def double(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if tensor is None else tensor.double() for tensor in tensors]


def is_packed(weight: Tensor, *, folded: bool = False) -> bool:
    return KERNELS.packed_nbytes(weight, folded=folded) > 0


def packable(channels: int = 32, filters: int = 128, **arguments: object) -> tuple[nn.Conv2d, Tensor]:
    """A module and an input that run on packed weights."""
    torch.manual_seed(0)
    module = nn.Conv2d(channels, filters, 3, padding=1, **arguments).requires_grad_(False)  # type: ignore[arg-type]
    return module, torch.randn(2, channels, 9, 10).contiguous(memory_format=CHANNELS_LAST)


def expected(module: nn.Conv2d, x: Tensor) -> Tensor:
    return copy.deepcopy(module).double()(x.double())


# -- the operators ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_conv2d(name: str, layout: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    x, weight, bias = case.tensors(dtype, bias=name != "1x1")
    x = LAYOUTS[layout](x)
    for w in (weight, weight.contiguous(memory_format=CHANNELS_LAST)):
        result = conv2d(x, w, bias, *case.geometry)
        assert result.dtype is dtype
        assert result.stride() == F.conv2d(x, w, bias, *case.geometry).stride()
        assert_close(result, F.conv2d(*double(x, w, bias), *case.geometry))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "cropped channels last"])
@pytest.mark.parametrize("adds, relu", [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("name", CASES)
def test_conv_norm(name: str, adds: bool, relu: bool, layout: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    x, weight, bias = case.tensors(dtype, bias=adds == relu)
    x, norm = LAYOUTS[layout](x), case.norm(dtype)
    reference = F.conv2d(*double(x, weight, bias), *case.geometry)
    residual = LAYOUTS[layout](torch.randn(reference.shape).to(dtype)) if adds else None
    reference = F.batch_norm(reference, *double(norm[2], norm[3], norm[0], norm[1]), False, 0.0, 1e-5)
    reference = reference + residual.double() if residual is not None else reference
    before = None if residual is None else residual.clone()
    result = conv_norm(x, weight, bias, *norm, residual, 1e-5, *case.geometry, relu)
    assert result.dtype is dtype and result.is_contiguous(memory_format=CHANNELS_LAST)
    assert_close(result, reference.relu() if relu else reference)
    assert residual is None or torch.equal(residual, before)  # never written to
    if KERNELS._computed_in(dtype) in KERNELS._DTYPES:
        assert is_packed(weight, folded=True)


@pytest.mark.parametrize("channels_last", [False, True])
def test_half_weights_that_are_not_finite(channels_last: bool) -> None:
    """As PyTorch on this processor: of Intel's with float16, oneDNN leaves out products with padding, 0 * inf."""
    x, weight, bias = CASES["minimal"].tensors(torch.float16)
    weight[3, 1, 0, 2] = torch.inf
    if channels_last:
        x = x.contiguous(memory_format=CHANNELS_LAST)
    geometry = CASES["minimal"].geometry
    expected = F.conv2d(*double(x, weight, bias), *geometry)
    result = conv2d(x, weight, bias, *geometry)
    assert torch.equal(result.isfinite(), F.conv2d(x, weight, bias, *geometry).isfinite())
    inner = (..., slice(1, None), slice(None, -1))  # what the weight meets padding in is not in it
    assert torch.equal(result[inner].isfinite(), expected[inner].isfinite())
    assert_close(result[expected.isfinite()], expected[expected.isfinite()])
    left_out = result.isfinite() & ~expected.isfinite()
    weight[3, 1, 0, 2] = 0
    assert_close(result[left_out], F.conv2d(*double(x, weight, bias), *geometry)[left_out])


@pytest.mark.parametrize("name", MINIMAL)
def test_minimal_filtering_is_used(name: str) -> None:
    case = CASES[name]
    x, weight, bias = case.tensors(torch.float32)
    x = x.contiguous(memory_format=CHANNELS_LAST)
    conv2d(x, weight, bias, *case.geometry)
    norm = case.norm(torch.float32)
    conv_norm(x, weight, bias, *norm, None, 1e-5, *case.geometry, True)
    columns = -(-case.filters // 16) * 16
    nbytes = 4 * (16 * case.input[1] * columns + case.filters)
    for folded in (False, True):
        assert KERNELS.packed_nbytes(weight, folded=folded) == nbytes


def test_minimal_filtering_keeps_what_is_not_finite_in_its_tiles() -> None:
    case = CASES["minimal"]
    x, weight, _ = case.tensors(torch.float32)
    x[0, 3, 6, 7], x[0, 5, 15, 3] = torch.nan, -torch.inf
    result = conv_norm(x, weight, None, *case.norm(torch.float32), None, 1e-5, *case.geometry, True)
    seen = F.conv2d(x, weight, None, *case.geometry).isfinite().logical_not().any(1)
    tiles = F.max_pool2d(F.pad(seen.float(), (0, 0, 0, 1)), 2).bool()
    tiles = tiles.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, :19]
    assert result.isnan().any(1)[0, 6, 7] and not result.isnan().any(1)[~tiles].any()


def test_without_a_compiler_onednn_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["minimal"]
    x, weight, bias = case.tensors(torch.float32)
    x = x.contiguous(memory_format=CHANNELS_LAST)
    monkeypatch.setattr(KERNELS.minimal, "_library", lambda: None)
    assert_close(conv2d(x, weight, bias, *case.geometry), F.conv2d(*double(x, weight, bias), *case.geometry))
    assert KERNELS.packed_nbytes(weight, folded=False) < 16 * 4 * weight.numel() // 9


@pytest.mark.parametrize("absent", [(), (0,), (1,), (0, 1)])
def test_conv_norm_without_affine(absent: tuple[int, ...]) -> None:
    case = CASES["3x3"]
    x, weight, _ = case.tensors(torch.float32)
    scale, shift, mean, variance = case.norm(torch.float32)
    given = [None if i in absent else t for i, t in enumerate((scale, shift))]
    result = conv_norm(x, weight, None, *given, mean, variance, None, 1e-3, *case.geometry, False)
    reference = F.conv2d(*double(x, weight, None), *case.geometry)
    assert_close(result, F.batch_norm(reference, *double(mean, variance, *given), False, 0.0, 1e-3))


def test_not_a_number_passes_relu() -> None:
    case = CASES["3x3"]
    x, weight, _ = case.tensors(torch.float32)
    x[0, 3, 2, 2], x[1, 0, 0, 0] = torch.nan, torch.inf
    norm = case.norm(torch.float32)
    residual = torch.zeros(2, 64, 7, 7)
    for extra in (None, residual):
        result = conv_norm(x, weight, None, *norm, extra, 1e-5, *case.geometry, True)
        reference = F.batch_norm(
            F.conv2d(x, weight, None, *case.geometry), norm[2], norm[3], norm[0], norm[1]
        )
        assert result.isnan().any() and torch.equal(result.isnan(), reference.relu().isnan())


def test_a_fold_that_overflows_is_not_used() -> None:
    case = CASES["1x1"]
    x, weight, _ = case.tensors(torch.float32)
    scale, shift, mean, variance = case.norm(torch.float32)
    weight, scale = weight * 1e30, scale * 1e20
    x = x * 1e-30
    result = conv_norm(x, weight, None, scale, shift, mean, variance, None, 1e-5, *case.geometry, False)
    assert result.isfinite().all() and not is_packed(weight, folded=True)
    reference = F.conv2d(*double(x, weight, None), *case.geometry)
    assert_close(result, F.batch_norm(reference, *double(mean, variance, scale, shift), False, 0.0, 1e-5))


@pytest.mark.parametrize(
    "x, weight, geometry",
    [
        ((1, 5, 4, 4), (3, 4, 3, 3), ((1, 1), (0, 0), (1, 1), 1)),  # channels
        ((1, 4, 2, 2), (3, 4, 3, 3), ((1, 1), (0, 0), (1, 1), 1)),  # a kernel larger than the input
        ((1, 4, 4, 4), (3, 2, 3, 3), ((1, 1), (0, 0), (1, 1), 2)),  # filters that groups do not divide
        ((1, 4, 4, 4), (2, 4, 3, 3), ((0, 1), (0, 0), (1, 1), 1)),
        ((1, 4, 4, 4), (2, 4, 3, 3), ((1, 1), (-1, 0), (1, 1), 1)),
        ((1, 4, 4, 4), (2, 4, 3, 3), ((1, 1), (0, 0), (0, 1), 1)),
    ],
)
def test_wrong_arguments_raise_as_in_pytorch(
    x: tuple[int, ...], weight: tuple[int, ...], geometry: tuple
) -> None:
    input, w = torch.randn(x).contiguous(memory_format=CHANNELS_LAST), torch.randn(weight)
    with pytest.raises(RuntimeError) as theirs:
        F.conv2d(input, w, None, *geometry)
    with pytest.raises(RuntimeError) as ours:
        conv2d(input, w, None, *geometry)
    assert str(ours.value) == str(theirs.value)


def test_mixed_dtypes_raise_as_in_pytorch() -> None:
    module, x = packable()
    arguments = (x.bfloat16(), module.weight, None, (1, 1), (1, 1), (1, 1), 1)
    with pytest.raises(RuntimeError) as theirs:  # what it says depends on what oneDNN has for the processor
        torch.conv2d(*arguments)
    with pytest.raises(RuntimeError, match=re.escape(str(theirs.value).partition("\n")[0])):
        conv2d(*arguments)


def test_strided_parameters() -> None:
    case = CASES["3x3"]
    x, weight, bias = case.tensors(torch.float32)
    x = x.contiguous(memory_format=CHANNELS_LAST)
    strided = torch.stack([bias, bias + 1], dim=1)[:, 0]
    assert_close(
        conv2d(x, weight, strided, *case.geometry), F.conv2d(*double(x, weight, bias), *case.geometry)
    )
    part = torch.cat([weight, weight], dim=1)[:, ::2]
    assert_close(conv2d(x, part, bias, *case.geometry), F.conv2d(*double(x, part, bias), *case.geometry))


def test_no_images() -> None:
    module, x = packable()
    for input in (x[:0], x[:0].contiguous()):
        assert forward(module, input).shape == (0, 128, 9, 10)


def test_opcheck() -> None:
    for name, layout in (("patches", "contiguous"), ("groups", "channels last")):
        case = CASES[name]
        x, weight, bias = case.tensors(torch.float32)
        x = LAYOUTS[layout](x)
        opcheck(conv2d, (x, weight, bias, *case.geometry))
        opcheck(conv2d, (x.clone().requires_grad_(), weight.requires_grad_(), None, *case.geometry))
        weight = weight.detach()
        residual = torch.randn_like(F.conv2d(x, weight, bias, *case.geometry))
        arguments = (x, weight, bias, *case.norm(torch.float32), residual, 1e-5, *case.geometry, True)
        opcheck(conv_norm, arguments)


def test_gradients_of_the_operator() -> None:
    case = Case((1, 4, 4, 3), 2, (3, 2), (2, 1), (1, 1), (1, 2), 2)
    tensors = [tensor.requires_grad_() for tensor in case.tensors(torch.float64)]
    torch.autograd.gradcheck(lambda *t: conv2d(*t, *case.geometry), tensors)
    torch.autograd.gradgradcheck(lambda *t: conv2d(*t, *case.geometry), tensors)


# -- the layer -------------------------------------------------------------------------------------------

MODULES = {
    "plain": {},
    "no bias": {"bias": False},
    "valid": {"padding": "valid"},
    "same": {"padding": "same"},
    "same, even kernel": {"padding": "same", "kernel_size": (4, 2), "dilation": (1, 3)},
    "stride": {"stride": (2, 3), "padding": (0, 2)},
    "groups": {"groups": 4},
    "depthwise": {"groups": 32, "out_channels": 64},
    "reflect": {"padding": 1, "padding_mode": "reflect"},
    "circular": {"padding": "same", "padding_mode": "circular", "kernel_size": 4},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
def test_layer(name: str, layout: str, batched: bool, trains: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    arguments = {"in_channels": 32, "out_channels": 144, "kernel_size": 3} | MODULES[name]
    module = nn.Conv2d(**arguments, dtype=dtype)
    x = LAYOUTS[layout](torch.randn(2, 32, 10, 11).to(dtype))
    x = (x if batched else x[0]).requires_grad_(trains)
    wide, y = copy.deepcopy(module).double(), x.detach().double().requires_grad_(trains)
    with torch.set_grad_enabled(trains):
        result, reference, eager = forward(module, x), wide(y), module(x)
    assert result.stride() == eager.stride()
    assert_close(result, reference)
    if trains:
        gradient = torch.randn(result.shape).to(dtype)
        result.backward(gradient)
        reference.backward(gradient.double())
        assert_close(x.grad, y.grad)
        for ours, theirs in zip(module.parameters(), wide.parameters(), strict=True):
            assert_close(ours.grad, theirs.grad)
    elif (
        layout == "channels last" and batched and "padding_mode" not in arguments and dtype in KERNELS._DTYPES
    ):
        assert is_packed(module.weight) == (module.groups == 1)


@pytest.mark.parametrize(
    "channels, filters, kernel, groups, size, channels_last, packs",
    [
        (32, 128, 3, 1, 9, True, True),
        (32, 128, 3, 1, 9, False, True),
        # No minimal filtering; two conversions of the data would cost more than one of the weight.
        (24, 128, 3, 1, 9, False, False),
        (16, 32, 3, 1, 9, True, False),
        (32, 32, 3, 1, 30, True, True),
        (256, 256, 1, 1, 7, True, False),
        (256, 256, 1, 1, 9, True, False),
        (512, 512, 1, 1, 7, True, True),
        (128, 128, 3, 1, 6, False, True),
        (128, 128, 3, 1, 4, False, True),
        (128, 64, 3, 1, 4, False, False),
        (512, 512, 1, 1, 7, False, False),
        (64, 64, 3, 64, 56, True, False),
    ],
)
def test_packed_only_where_it_pays(channels, filters, kernel, groups, size, channels_last, packs) -> None:
    torch.manual_seed(0)
    module = nn.Conv2d(channels, filters, kernel, groups=groups, padding=kernel // 2).requires_grad_(False)
    x = torch.randn(1, channels, size, size)
    x = x.contiguous(memory_format=CHANNELS_LAST) if channels_last else x
    result = forward(module, x)
    assert is_packed(module.weight) == packs
    assert result.stride() == module(x).stride()
    assert_close(result, expected(module, x))


def test_autocast_is_left_to_pytorch() -> None:
    module, x = packable()
    with torch.autocast("cpu", torch.bfloat16):
        result = forward(module, x)
    assert result.dtype is torch.bfloat16 and not is_packed(module.weight)


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN:UserWarning")
def test_a_switched_off_onednn_stays_off() -> None:
    module, x = packable()
    with torch.backends.mkldnn.flags(enabled=False):
        assert_close(forward(module, x), expected(module, x))
    assert not is_packed(module.weight)


class Tagged(Tensor):
    """A tensor subclass with a right to see every function that is applied to it."""

    seen: list[str] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_subclasses_are_left_to_pytorch() -> None:
    module, x = packable()
    reference = expected(module, x)
    Tagged.seen.clear()
    module.weight = nn.Parameter(module.weight.as_subclass(Tagged), requires_grad=False)
    assert_close(forward(module, x).as_subclass(Tensor), reference)
    assert "conv2d" in Tagged.seen
    Tagged.seen.clear()
    module, x = packable()
    forward(module, x.as_subclass(Tagged))
    assert "conv2d" in Tagged.seen


def test_compiled() -> None:
    module, x = packable()
    module.requires_grad_()
    compiled = torch.compile(lambda x: forward(module, x), backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            assert_close(compiled(x), expected(module, x))
    assert is_packed(module.weight)
    x.requires_grad_()
    compiled(x).sum().backward()
    assert_close(x.grad, torch.autograd.grad(expected(module, x).sum(), x)[0])


# -- packed copies ---------------------------------------------------------------------------------------

EDITS = {
    "in place": lambda module: module.weight.mul_(2),
    "one element": lambda module: module.weight[3, 2, 1, 1].fill_(5.0),
    "through data": lambda module: module.weight.data.mul_(2),
    "other data": lambda module: setattr(module.weight, "data", torch.randn_like(module.weight)),
    "other parameter": lambda module: setattr(
        module, "weight", nn.Parameter(torch.randn_like(module.weight))
    ),
    "loaded": lambda module: module.load_state_dict(nn.Conv2d(32, 128, 3).state_dict()),
    "bias": lambda module: module.bias.add_(1),
    "not a number": lambda module: module.weight.fill_(torch.nan),
    "other format": lambda module: module.to(memory_format=CHANNELS_LAST),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("edit", EDITS)
def test_edits_are_seen(edit: str, inference: bool) -> None:
    module, x = packable()
    with torch.inference_mode(inference), torch.no_grad():
        for _ in range(2):
            assert_close(forward(module, x), expected(module, x))
        EDITS[edit](module)
        for _ in range(2):
            assert_close(forward(module, x), expected(module, x))


@pytest.mark.parametrize(
    "part", ["weight", "bias", "norm_weight", "norm_bias", "running_mean", "running_var"]
)
def test_edits_of_every_folded_tensor_are_seen(part: str) -> None:
    case = CASES["3x3"]
    x, weight, bias = case.tensors(torch.float32)
    norm_weight, norm_bias, mean, variance = case.norm(torch.float32)
    tensors = {
        "weight": weight,
        "bias": bias,
        "norm_weight": norm_weight,
        "norm_bias": norm_bias,
        "running_mean": mean,
        "running_var": variance,
    }
    for _ in range(2):
        result = conv_norm(x, *tensors.values(), None, 1e-5, *case.geometry, False)
        wide = dict(zip(tensors, double(*tensors.values()), strict=True))
        reference = F.conv2d(x.double(), wide["weight"], wide["bias"], *case.geometry)
        norm = [wide[name] for name in ("running_mean", "running_var", "norm_weight", "norm_bias")]
        assert_close(result, F.batch_norm(reference, *norm, False, 0.0, 1e-5))
        tensors[part].data.add_(0.5)


def test_packed_once() -> None:
    module, x = packable()
    forward(module, x)
    nbytes = KERNELS.packed_nbytes(module.weight, folded=False)
    assert nbytes >= module.weight.nbytes
    for _ in range(3):
        forward(module, x)
    assert KERNELS.packed_nbytes(module.weight, folded=False) == nbytes


def test_packed_copies_die_with_their_weight() -> None:
    module, x = packable()
    forward(module, x)
    case = CASES["3x3"]
    input, weight, _ = case.tensors(torch.float32)
    norm = case.norm(torch.float32)
    conv_norm(input, weight, None, *norm, None, 1e-5, *case.geometry, True)
    keys = {id(module.weight), id(weight)}

    def known() -> set[int]:
        caches = (KERNELS._PACKED, KERNELS._FOLDED, KERNELS._FILTERS, KERNELS._FOLDED_FILTERS)
        return {identity for cache in caches for index in cache._entries for identity in index[1:]}

    assert known() >= keys
    del module, weight
    gc.collect()
    assert not known() & keys


def test_copies_are_forgotten_on_request() -> None:
    module, x = packable()
    forward(module, x)
    assert PACKAGE.weights.packed_nbytes(module) > 0
    PACKAGE.weights.release(module)
    assert PACKAGE.weights.packed_nbytes(module) == 0
    assert_close(forward(module, x), expected(module, x))


def test_one_weight_in_two_geometries() -> None:
    module, x = packable()
    other = nn.Conv2d(32, 128, 3, stride=2, dilation=2).requires_grad_(False)
    other.weight = module.weight
    for _ in range(2):
        assert_close(forward(module, x), expected(module, x))
        assert_close(forward(other, x), expected(other, x))


def test_many_input_sizes() -> None:
    """More than are remembered, for plain and for folded weights."""
    torch.manual_seed(0)
    module = nn.Conv2d(64, 64, 3, padding=1).requires_grad_(False)
    norm = nn.BatchNorm2d(64).eval().requires_grad_(False)
    for size in (*range(1, 37), 3, 36):
        x = torch.randn(1, 64, size, 40 - size).contiguous(memory_format=CHANNELS_LAST)
        reference = expected(module, x)
        assert_close(forward(module, x), reference)
        folded = conv_norm(
            x, module.weight, module.bias, norm.weight, norm.bias, norm.running_mean, norm.running_var, None,
            norm.eps, (1, 1), (1, 1), (1, 1), 1, True,
        )  # fmt: skip
        assert_close(folded, copy.deepcopy(norm).double()(reference).relu())
    # Sizes share layouts: far fewer copies than sizes.
    assert KERNELS.packed_nbytes(module.weight, folded=False) <= 4 * module.weight.nbytes


def test_used_by_several_threads() -> None:
    module, x = packable()
    reference, failures = expected(module, x), []

    def run() -> None:
        try:
            for _ in range(20):
                with torch.no_grad():
                    assert_close(forward(module, x), reference)
        except AssertionError as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        KERNELS.forget(module.weight)
    for thread in threads:
        thread.join()
    assert not failures


def test_geometry_in_lists_is_taken() -> None:
    module = nn.Conv2d(8, 8, 1).eval()
    module.stride, module.dilation = [1, 1], [1, 1]  # type: ignore[assignment]
    x = torch.randn(1, 8, 6, 6).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        for _ in range(2):
            assert_close(PACKAGE.layers.Conv2d.forward(module, x), module(x))
