"""The CPU variant of `layers/activation`, against the modules that it replaces, in float64."""

from __future__ import annotations

import os
from types import ModuleType

import pytest
import torch
from torch import nn
from transformers import activations

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.combinations import every_value
from tests.layers.checked_operators import opcheck
from tests.tolerances import assert_close
from tests.warm_process import run_script

functional = nn.functional
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
KINDS = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}


class Gated(nn.Module):
    """act(first half) * second half, as models write it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        gate, up = input.chunk(2, dim=-1)
        return KINDS[self.kind](gate) * up


ORIGINALS = {
    "SiLU-torch": ("SiLU", nn.SiLU()),
    "SiLU-transformers": ("SiLU", activations.SiLUActivation()),
    "GELU-torch": ("GELU", nn.GELU()),
    "GELU-torch-tanh": ("GELU", nn.GELU(approximate="tanh")),
    "GELU-transformers": ("GELU", activations.GELUActivation()),
    "GELU-transformers-python": ("GELU", activations.GELUActivation(use_gelu_python=True)),
    "GeluTanh": ("GeluTanh", activations.GELUTanh()),
    "GeluTanh-python": ("GeluTanh", activations.GELUTanh(use_gelu_tanh_python=True)),
    "FastGELU": ("FastGELU", activations.FastGELUActivation()),
    "NewGELU": ("NewGELU", activations.NewGELUActivation()),
    "QuickGELU": ("QuickGELU", activations.QuickGELUActivation()),
    "SiluAndMul": ("SiluAndMul", Gated("silu")),
    "GeluAndMul": ("GeluAndMul", Gated("gelu")),
    "GeluTanhAndMul": ("GeluTanhAndMul", Gated("gelu_tanh")),
}
# The last is shared among threads and ends in the middle of a block.
SHAPES = ((), (1,), (7,), (3, 38), (2, 3, 130), (0, 4), (5, 0), (65, 1030))


@pytest.fixture(scope="module")
def package() -> ModuleType:
    return import_kernel(source_variant(bundled_folder() / "activation", "cpu"))


@pytest.fixture(autouse=True)
def no_size_is_small(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small inputs would go to PyTorch's own operators, and the tests with them."""
    monkeypatch.setattr(package.functional.kernels, "SMALL", ((0, 0),) * 4)
    monkeypatch.setattr(package.functional.kernels, "SMALL_GATED", (0, 0))
    monkeypatch.setattr(package.functional.kernels, "SMALL_STRIDED_GELU", (0, 0))


def run(package: ModuleType, layer: str, original: nn.Module, input: torch.Tensor) -> torch.Tensor:
    return getattr(package.layers, layer).forward(original, input)


def random(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return (3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def check(package: ModuleType, layer: str, original: nn.Module, input: torch.Tensor) -> None:
    """Forward and backward of the layer against the original in float64, layouts against it as it is."""
    input = input.detach().requires_grad_()
    wide = input.detach().double().requires_grad_()
    actual, reference = run(package, layer, original, input), original(wide)
    assert actual.dtype == input.dtype
    assert actual.stride() == original(input).stride()
    assert_close(actual, reference)
    grad = random(tuple(reference.shape), input.dtype, seed=1)
    actual.backward(grad)
    reference.backward(grad.double())
    assert_close(input.grad, wide.grad)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("case", ORIGINALS)
def test_forward_and_backward(package, case, shape, dtype):
    layer, original = ORIGINALS[case]
    if layer.endswith("AndMul") and (shape == () or shape[-1] % 2):
        with pytest.raises(ValueError, match="last dimension must be even"):
            run(package, layer, original, random(shape, dtype))
    else:
        check(package, layer, original, random(shape, dtype))


LAYOUTS = {
    "transposed": lambda: random((40, 6)).t(),
    "permuted": lambda: random((3, 40, 6)).permute(2, 0, 1),
    "channels last": lambda: random((2, 6, 5, 4)).contiguous(memory_format=torch.channels_last),
    "first columns": lambda: random((3, 7, 100))[..., :40],
    "last columns": lambda: random((3, 7, 100))[..., 60:],
    "every other column": lambda: random((3, 80))[:, ::2],
    "every other row": lambda: random((9, 40))[::2],
    "rows that do not collapse": lambda: random((4, 5, 100))[:, :3, :40],
    "expanded rows": lambda: random((1, 40)).expand(5, 40),
    "expanded columns": lambda: random((5, 1)).expand(5, 40),
    "one column of many": lambda: random((5, 40))[:, :1].expand(5, 2),
    "transposed first columns": lambda: random((40, 12))[:, :6].t(),
    "negated view": lambda: torch.complex(random((4, 6)), random((4, 6))).conj().imag,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", ("SiLU-torch", "GELU-torch", "NewGELU"))
def test_layouts(package, case, layout):
    check(package, *ORIGINALS[case], LAYOUTS[layout]())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_a_packed_input(package, layout):
    """The result is contiguous, whatever the input is."""
    input = LAYOUTS[layout]().detach().requires_grad_()
    wide = input.detach().double().requires_grad_()
    actual, reference = package.silu_and_mul(input), Gated("silu")(wide)
    assert actual.is_contiguous()
    assert_close(actual, reference)
    grad = random(tuple(reference.shape), seed=1)
    actual.backward(grad)
    reference.backward(grad.double())
    assert_close(input.grad, wide.grad)


@pytest.mark.parametrize("up_layout", ("like gate", "contiguous", "transposed"))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_gate_and_up(package, layout, up_layout):
    gate = LAYOUTS[layout]().detach()
    up = random(tuple(gate.shape), seed=2)
    if up_layout == "like gate":
        up = torch.empty_like(gate).copy_(up)
    elif up_layout == "transposed":
        up = up.transpose(0, -1).contiguous().transpose(0, -1)
    tensors = [gate.requires_grad_(), up.requires_grad_()]
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    actual, reference = package.activation_mul(*tensors, "gelu"), functional.gelu(wide[0]) * wide[1]
    assert actual.stride() == torch.empty_like(gate).stride()
    assert_close(actual, reference)
    for loss, leaves in ((actual, tensors), (reference, wide)):  # an expanded gradient, stride 0
        for leaf, grad in zip(leaves, torch.autograd.grad(loss.sum(), leaves), strict=True):
            leaf.grad = grad
    for tensor, expected in zip(tensors, wide, strict=True):
        assert_close(tensor.grad, expected.grad)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_gate_and_up(package, kind, dtype):
    tensors = [random((5, 70), dtype, seed).requires_grad_() for seed in (1, 2)]
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    actual, reference = package.activation_mul(*tensors, kind), KINDS[kind](wide[0]) * wide[1]
    assert_close(actual, reference)
    grad = random((5, 70), dtype, seed=3)
    actual.backward(grad)
    reference.backward(grad.double())
    for tensor, expected in zip(tensors, wide, strict=True):
        assert_close(tensor.grad, expected.grad)


def test_gate_and_up_of_other_shapes_and_dtypes(package):
    gate, up = random((4, 6)), random((6,), torch.bfloat16, seed=1)
    actual = package.activation_mul(gate, up, "silu")
    assert actual.dtype == torch.float32
    assert_close(actual, functional.silu(gate.double()) * up.double())
    assert package.activation_mul(gate.bfloat16(), random((4, 6)), "silu").dtype == torch.float32


# kind: the argument of its sigmoid, and the ulp of error per unit of it that its rounding makes
ARGUMENTS = {
    "silu": (lambda x: x, 0.05),
    "quick_gelu": (lambda x: 1.702 * x, 1.5),
    "gelu_tanh": (lambda x: 1.5957691216057308 * (x + 0.044715 * x**3), 2.5),
}


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_ulps(package, kind):
    """|error| <= 4 ulp, in the negative tail more by the rounding of the sigmoid's argument."""
    argument, slack = ARGUMENTS[kind]
    x = torch.linspace(-80, 90, 1_000_003)
    inner = argument(x.double())
    x, inner = x[inner > -85], inner[inner > -85]
    reference = x.double() * torch.sigmoid(inner)
    ulp = torch.finfo(torch.float32).eps * torch.exp2(
        torch.floor(torch.log2(reference.abs().clamp(min=1e-37)))
    )
    error = (package.activation(x, kind).double() - reference).abs() / ulp
    assert (error <= 4 + slack * (-inner).clamp(min=0)).all()


def test_error_of_gelu(package):
    x = torch.linspace(-100, 100, 2_000_003)
    actual, wide = package.gelu(x).double(), x.double()
    reference = wide * 0.5 * torch.erfc(-wide / 2**0.5)
    assert ((actual - reference).abs() <= 2**-22 * wide.abs()).all()
    assert torch.equal(actual[x < -5.3], torch.zeros_like(actual[x < -5.3]))
    assert torch.equal(actual[x > 5.3], wide[x > 5.3])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_special_values(package, kind, dtype):
    inf, nan, limits = float("inf"), float("nan"), torch.finfo(dtype)
    x = [inf, -inf, nan, 0.0, -0.0, limits.max, limits.min, 1e4, -1e4, 100, -100]
    y = [inf, nan, nan, 0.0, -0.0, limits.max, -0.0, 1e4, -0.0, 100, -0.0]  # the limits; -inf * 0 is a NaN
    slopes = [nan, nan, nan, 0.5, 0.5, 1, 0, 1, 0, 1, 0]
    input = torch.tensor(x * 5, dtype=dtype, requires_grad=True)
    output = package.activation(input, kind)
    (grad,) = torch.autograd.grad(output.sum(), input)
    for actual, expected in ((output, y), (grad, slopes)):
        torch.testing.assert_close(
            actual, torch.tensor(expected * 5, dtype=dtype), equal_nan=True, rtol=0, atol=1e-30
        )


@pytest.mark.parametrize("inplace", (False, True))
def test_silu_in_place(package, inplace):
    input = random((3, 5))
    expected, before = functional.silu(input), input.clone()
    output = run(package, "SiLU", nn.SiLU(inplace=inplace), input)
    torch.testing.assert_close(output, expected)
    assert torch.equal(input, output if inplace else before)
    assert (output is input) is inplace


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
@pytest.mark.parametrize("lies", ("contiguous", "channels last", "every second", "expanded"))
def test_silu_in_place_of_what_is_large(package, lies, dtype):
    """Where a part of the memory is no element, or is several, only elements change, as in PyTorch."""
    memory = random((2, 8, 30, 20)).to(dtype)
    if lies == "channels last":
        memory = memory.contiguous(memory_format=torch.channels_last)
    views = {
        "every second": lambda tensor: tensor[:, :, ::2],
        "expanded": lambda tensor: tensor[:1].expand(2, -1, -1, -1),
    }
    view = views.get(lies, lambda tensor: tensor)
    theirs = memory.clone()
    try:
        functional.silu(view(theirs), inplace=True)
    except RuntimeError:  # several elements of one place
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            run(package, "SiLU", nn.SiLU(inplace=True), view(memory))
        return
    input = view(memory)
    before = input._version
    assert run(package, "SiLU", nn.SiLU(inplace=True), input) is input
    assert memory._version > before
    torch.testing.assert_close(memory, theirs)


def test_silu_in_place_of_what_a_gradient_needs(package):
    kept = random((64, 128)).requires_grad_()
    middle = kept * 1.0
    product = middle * middle  # needs `middle` as it was
    with torch.no_grad():
        run(package, "SiLU", nn.SiLU(inplace=True), middle)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    middle = kept * 1.0
    run(package, "SiLU", nn.SiLU(inplace=True), middle).sum().backward()
    assert kept.grad is not None and kept.grad.abs().sum() > 0


@pytest.mark.parametrize("case", ("SiLU-torch", "GELU-torch", "GELU-torch-tanh", "QuickGELU", "SiluAndMul"))
def test_small_inputs_run_on_pytorch(package, case, monkeypatch):
    monkeypatch.setattr(package.functional.kernels, "SMALL", ((0, 10**9),) * 4)
    monkeypatch.setattr(package.functional.kernels, "SMALL_GATED", (0, 10**9))
    monkeypatch.setattr(package.functional.kernels, "SMALL_STRIDED_GELU", (0, 10**9))
    monkeypatch.setattr(package.functional, "operators", None)
    check(package, *ORIGINALS[case], random((3, 38)))
    leaf = random((3, 38)).requires_grad_()
    assert_close(package.activation_mul(leaf, leaf, "gelu"), functional.gelu(leaf.double()) * leaf.double())
    with torch.no_grad(), pytest.raises(AttributeError, match="NoneType"):
        run(package, *ORIGINALS[case], random((3, 38)))


def test_small_strided_inputs_of_gelu_run_on_pytorch(package, monkeypatch):
    """PyTorch gives oneDNN what is contiguous alone, and the rest starts sooner."""
    monkeypatch.setattr(package.functional.kernels, "SMALL_STRIDED_GELU", (10**9, 10**9))
    monkeypatch.setattr(package.functional, "operators", None)
    half = random((3, 76)).chunk(2, dim=-1)[0]
    torch.testing.assert_close(package.functional.gelu(half), functional.gelu(half))
    with pytest.raises(AttributeError, match="NoneType"):
        package.functional.gelu(half.contiguous())


def test_names(package):
    for name, kind in package.NUMBERS.items():
        x = random((40,), torch.float64)
        expected = (
            activations.ACT2FN[name](x) if name in activations.ACT2FN else list(KINDS.values())[kind](x)
        )
        torch.testing.assert_close(package.activation(x, name), expected)
        torch.testing.assert_close(package.activation(x, kind), expected)


@pytest.mark.parametrize("call", ("activation", "activation_and_mul"))
@pytest.mark.parametrize("kind", ("relu", 4, -1))
def test_unknown_kinds_are_refused(package, call, kind):
    with pytest.raises(ValueError, match="unknown activation"):
        getattr(package, call)(torch.ones(4), kind)
    with pytest.raises(ValueError, match="approximate must be 'none' or 'tanh', got 'erf'"):
        package.gelu(torch.ones(4), "erf")


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_in_float64(package, kind):
    x, up = (
        random((4, 6), torch.float64).requires_grad_(),
        random((4, 6), torch.float64, seed=1).requires_grad_(),
    )
    for function, inputs in (
        (lambda x: package.activation(x, kind), (x,)),
        (lambda x: package.activation_and_mul(x, kind), (x,)),
        (lambda gate, up: package.activation_mul(gate, up, kind), (x, up)),
    ):
        torch.autograd.gradcheck(function, inputs)
        torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivative_of_the_native_operators(package, kind):
    x = random((3, 38)).requires_grad_()
    wide = x.detach().double().requires_grad_()
    for function, leaf in ((package.activation, x), (lambda x, kind: KINDS[kind](x), wide)):
        (first,) = torch.autograd.grad(function(leaf, kind).sum(), leaf, create_graph=True)
        (leaf.grad,) = torch.autograd.grad(first.square().sum(), leaf)
    assert_close(x.grad, wide.grad)


@pytest.mark.parametrize("kind", KINDS)
def test_forward_mode(package, kind):
    x, tangent = random((3, 38)), random((3, 38), seed=1)
    for function, original in (
        (lambda x: package.activation(x, kind), KINDS[kind]),
        (lambda x: package.activation_mul(x, x + 1, kind), lambda x: KINDS[kind](x) * (x + 1)),
        (lambda x: package.activation_and_mul(x, kind), lambda x: KINDS[kind](x[:, :19]) * x[:, 19:]),
    ):
        actual = torch.func.jvp(function, (x,), (tangent,))[1]
        assert_close(actual, torch.func.jvp(original, (x.double(),), (tangent.double(),))[1])


@pytest.mark.parametrize("case", ("GELU-torch-tanh", "SiLU-transformers", "SiluAndMul"))
def test_compiled(package, case):
    layer, original = ORIGINALS[case]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = original

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * run(package, layer, self.act, input)

    model = torch.compile(Model(), fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (3, 5):
        input = random((rows, 38)).requires_grad_()
        wide = input.detach().double().requires_grad_()
        actual, reference = model(input), 2 * original(wide)
        assert_close(actual, reference)
        actual.sum().backward()
        reference.sum().backward()
        assert_close(input.grad, wide.grad)
    with torch.no_grad():
        assert_close(model(input), 2 * original(wide))


@every_value(name=("activation", "activation_mul", "activation_and_mul"), shape=((3, 38), (0, 2), (40, 6)))
def test_operators(package, name, shape):
    """Schemas, fake implementations, aliasing and autograd registrations hold what they say."""
    namespace = getattr(torch.ops, package.functional.operators._FORWARD.namespace)
    x = random(shape)
    inputs = [x, random(shape, seed=1)] if name == "activation_mul" else [x]
    if shape == (40, 6):
        inputs = [tensor.t() for tensor in inputs]
    grad = torch.ones_like(getattr(package, name)(*inputs, "gelu"))
    for suffix, arguments in (("", inputs), ("_backward", [grad, *inputs])):
        opcheck(getattr(namespace, f"{name}{suffix}").default, (*arguments, 1))
        differentiable = [argument.detach().clone().requires_grad_() for argument in arguments]
        opcheck(getattr(namespace, f"{name}{suffix}_with_grad").default, (*differentiable, 1))


def test_layers_keep_the_contract(package):
    for name in {layer for layer, _ in ORIGINALS.values()}:
        layer = getattr(package.layers, name)
        members = {m for m in vars(layer) if not m.startswith("__")}
        assert members == {"forward", "has_backward", "can_torch_compile"}
        assert "__init__" not in vars(layer)


REFERENCE_SESSION = """
import torch
from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
package = import_kernel(source_variant(bundled_folder() / "activation", "cpu"))
assert package.functional.kernels._library() is None
x = torch.load("x.pt").requires_grad_()
results = []
for kind in range(4):
    outputs = package.activation(x, kind), package.activation_and_mul(x, kind), package.activation_mul(x, x + 1, kind)
    for output in outputs:
        results += [output.detach(), torch.autograd.grad(output.square().sum(), x)[0]]
torch.save(results, "results.pt")
"""


def test_without_a_compiler_the_numbers_are_the_same(package, tmp_path):
    x = random((33, 70))
    torch.save(x, tmp_path / "x.pt")
    environment = {**os.environ, "KERNELS_HUB_CXX": "none"}
    done = run_script(REFERENCE_SESSION, env=environment, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "native CPU code of" in done.stderr  # said, not silent
    results = iter(torch.load(tmp_path / "results.pt"))
    x.requires_grad_()
    for kind in range(4):
        for output in (
            package.activation(x, kind),
            package.activation_and_mul(x, kind),
            package.activation_mul(x, x + 1, kind),
        ):
            assert_close(next(results), output.double())
            assert_close(next(results), torch.autograd.grad(output.square().sum(), x)[0].double())
