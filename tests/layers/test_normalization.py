"""The CPU variant of `layers/normalization`, against the modules that it replaces, in float64."""

from __future__ import annotations

import os
import sys
from types import ModuleType

import pytest
import torch
from torch import nn
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.layers.checked_operators import opcheck
from tests.layers.normalization_cases import CASES, DTYPES, Float64, call, check, make, random
from tests.tolerances import assert_close
from tests.warm_process import run_script

# The last is shared among threads; the widths end within vectors.
SHAPES = ((10,), (3, 38), (2, 3, 130), (0, 4), (65, 1030))


@pytest.fixture(scope="module")
def package() -> ModuleType:
    return import_kernel(source_variant(bundled_folder() / "normalization", "cpu"))


def submodule(package: ModuleType, name: str) -> ModuleType:
    return sys.modules[f"{package.__name__}.{name}"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_forward_and_backward(package, case, shape, dtype):
    check(package, case, *make(case, shape, dtype, "cpu"))


LAYOUTS = {
    "transposed heads": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "columns outermost": lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    "first columns": lambda x: torch.cat([x, x], dim=-1)[..., : x.shape[-1]],
    "every other column": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
    "every other row": lambda x: x.repeat_interleave(2, dim=1)[:, ::2],
    "rows that do not collapse": lambda x: torch.cat([x, x], dim=1)[:, : x.shape[1]],
    "one of each row": lambda x: x[:, :1].expand(x.shape),
    "the same row": lambda x: x[:1, :1].expand(x.shape),
}


# Mamba's views its input's last dim in groups, which must be dense.
NOT_IN_THE_ORIGINAL = {(case, "columns outermost") for case in CASES if case.startswith("Mamba")}


@pytest.mark.parametrize(
    "case, layout", sorted({(case, layout) for case in CASES for layout in LAYOUTS} - NOT_IN_THE_ORIGINAL)
)
def test_layouts(package, case, layout):
    module, inputs = make(case, (4, 6, 40), torch.float32, "cpu")
    check(package, case, module, [LAYOUTS[layout](input) for input in inputs])


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("case", CASES)
def test_rounds_where_the_original_rounds(package, case, dtype):
    """One rounding more or less would change a third of the elements."""
    module, inputs = make(case, (30, 512), dtype, "cpu")
    with torch.no_grad():
        expected = module(*inputs)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for ours, theirs in zip(call(package, case, module, inputs), expected, strict=True):
            assert (ours == theirs).double().mean() > 0.99


@pytest.mark.filterwarnings(
    "ignore:Mismatch dtype between input and weight"
)  # torch.nn.RMSNorm on its own speed
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("case", [case for case in CASES if case != "TorchRMSNorm-no-weight"])
def test_float32_weights(package, case, dtype):
    """Promoted as in the original, gradients in each tensor's own dtype."""
    module, _ = make(case, (5, 70), torch.float32, "cpu")
    _, inputs = make(case, (5, 70), dtype, "cpu")
    check(package, case, module, inputs)


@pytest.mark.parametrize("affine", (False, True))
def test_several_dims(package, affine):
    for layer, norm in (("LayerNorm", nn.LayerNorm), ("TorchRMSNorm", nn.RMSNorm)):
        module = norm((4, 6, 5), elementwise_affine=affine)
        for seed, parameter in enumerate(module.parameters()):
            nn.init.normal_(parameter, generator=torch.Generator().manual_seed(seed))
        x = random((3, 4, 6, 5), torch.float32, "cpu", 0)
        for input in (x, x.transpose(1, 3).contiguous().transpose(1, 3), x[0]):
            assert_close(
                getattr(package.layers, layer).forward(module, input), module.double()(input.double())
            )
            module.float()
        with pytest.raises(RuntimeError, match=r"last dims are \(4, 6, 5\), got shape \(6, 5\)"):
            getattr(package.layers, layer).forward(module, x[0, 0])


@pytest.mark.parametrize("dtype", (*DTYPES, torch.float64), ids=str)
def test_eps_of_torch_rms_norm_is_that_of_the_arithmetic(package, dtype):
    module = nn.RMSNorm(32)
    x = (1e-4 * random((4, 32), torch.float32, "cpu", 0)).to(dtype)
    torch.testing.assert_close(package.layers.TorchRMSNorm.forward(module.to(dtype), x), module(x))


def test_residuals_that_differ_are_added_by_pytorch(package):
    x, weight = random((2, 3, 8), torch.float32, "cpu", 0), random((8,), torch.float32, "cpu", 1)
    for residual in (random((3, 8), torch.float32, "cpu", 2), random((2, 3, 8), torch.bfloat16, "cpu", 2)):
        for found in (
            package.add_rms_norm(x, residual, weight),
            package.add_layer_norm(x, residual, weight, None, 1e-6),
        ):
            assert torch.equal(found[1], x + residual)
        torch.testing.assert_close(
            package.add_rms_norm(x, residual, weight)[0], package.rms_norm(x + residual, weight)
        )


def test_only_the_sum_is_used(package):
    x, residual = (random((3, 8), torch.float32, "cpu", seed).requires_grad_() for seed in range(2))
    for _, total in (
        package.add_rms_norm(x, residual, None),
        package.add_layer_norm(x, residual, None, None),
    ):
        x.grad = residual.grad = None
        (2 * total).sum().backward()
        assert torch.equal(x.grad, torch.full_like(x, 2))
        assert torch.equal(residual.grad, x.grad)


def test_sigmoid_in_ulp(package):
    """A row of ones is its own norm: what comes out is the gate's activation."""
    gate = torch.linspace(-87, 100, 1_000_000).reshape(-1, 1000)
    for activation in ("sigmoid", "silu"):
        y = package.rms_norm_gated(
            torch.ones_like(gate), gate, None, 0.0, activation=activation, round_first=False
        )
        wide = gate.double()
        expected = torch.sigmoid(wide) * (wide if activation == "silu" else 1)
        ulp = torch.exp2(torch.floor(torch.log2(expected.abs().clamp(min=1e-37))) - 23)
        assert ((y.double() - expected).abs() / ulp).max() < 4


@pytest.mark.parametrize("case", ("RMSNorm", "LayerNorm", "RMSNormGated"))
def test_special_values(package, case):
    module, inputs = make(case, (5, 8), torch.float32, "cpu")
    inputs[0][0, 1], inputs[0][1, 2], inputs[0][2] = float("nan"), float("inf"), 0.0
    inputs[0][3] = 3e38  # squares overflow
    if len(inputs) > 1:
        inputs[1][4, 0], inputs[1][4, 1], inputs[1][4, 2] = float("nan"), float("inf"), -200.0
    with torch.no_grad():
        torch.testing.assert_close(call(package, case, module, inputs)[0], module(*inputs), equal_nan=True)


@pytest.mark.parametrize("case", CASES)
def test_gradients_in_float64(package, case):
    """PyTorch's formulas, which serve float64; of second order, they serve every dtype."""
    module, inputs = make(case, (3, 6), torch.float64, "cpu")
    layered = Layered(package, case, module)
    names = [name for name, _ in layered.named_parameters()]

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parameters = dict(zip(names, tensors[len(inputs) :], strict=True))
        return torch.func.functional_call(layered, parameters, tensors[: len(inputs)])

    tensors = [tensor.detach().clone().requires_grad_() for tensor in (*inputs, *layered.parameters())]
    assert torch.autograd.gradcheck(run, tensors)
    assert torch.autograd.gradgradcheck(run, tensors)


@pytest.mark.parametrize("case", ("RMSNorm", "LayerNorm", "AddRMSNorm", "RMSNormGated"))
def test_second_derivative_of_the_native_operators(package, case):
    module, inputs = make(case, (3, 38), torch.float32, "cpu")
    actual = second_derivative(Layered(package, case, module), inputs)
    with Float64():
        reference = second_derivative(module.double(), [input.double() for input in inputs])
    assert_close(actual, reference, factor=4)  # three chains of rounded steps


def test_second_derivative_where_one_tensor_is_given_twice(package):
    weight = random((8,), torch.float32, "cpu", 1).requires_grad_()
    x = random((3, 8), torch.float32, "cpu", 0)
    found = []
    for norm in (package.layer_norm, lambda x, w, b, eps: nn.functional.layer_norm(x, (8,), w, b, eps)):
        (first,) = torch.autograd.grad(norm(x, weight, weight, 1e-5).sin().sum(), weight, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), weight)[0])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("mapped", (False, True))
@pytest.mark.parametrize("case", ("RMSNorm", "LayerNorm", "AddRMSNorm", "AddLayerNorm", "RMSNormGated"))
def test_forward_mode(package, case, mapped):
    """Tangents are not dropped."""
    module, inputs = make(case, (3, 8), torch.float32, "cpu")
    tangents = [random((3, 8), torch.float32, "cpu", 30 + i) for i in range(len(inputs))]
    results = []
    for each in (Layered(package, case, module), module):

        def run(inputs, tangents, each=each):
            return torch.func.jvp(lambda *inputs: _first(each(*inputs)), tuple(inputs), tuple(tangents))

        results.append((torch.vmap(run) if mapped else run)(inputs, tangents))
    torch.testing.assert_close(*results)


def second_derivative(module: nn.Module, inputs: list[torch.Tensor]) -> torch.Tensor:
    x, *others = inputs
    x = x.detach().requires_grad_()
    (first,) = torch.autograd.grad(_first(module(x, *others)).sin().sum(), x, create_graph=True)
    return torch.autograd.grad(first.square().sum(), x)[0]


class Layered(nn.Module):
    """A module that runs as the layer."""

    def __init__(self, package: ModuleType, case: str, original: nn.Module) -> None:
        super().__init__()
        self.original = original
        self.layer = getattr(package.layers, CASES[case][0])

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        return self.layer.forward(self.original, *inputs)


def _first(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return outputs[0] if isinstance(outputs, tuple) else outputs


@pytest.mark.parametrize("case", ("RMSNorm", "LayerNorm", "RMSNormGated", "AddRMSNorm"))
def test_compiled(package, case):
    torch._dynamo.reset()
    module, inputs = make(case, (3, 38), torch.float32, "cpu")
    model = torch.compile(Layered(package, case, module), fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (3, 5):
        inputs = [
            random((rows, 38), torch.float32, "cpu", seed).requires_grad_() for seed in range(len(inputs))
        ]
        wide = [input.detach().double().requires_grad_() for input in inputs]
        actual = _first(model(*inputs))
        actual.sum().backward()
        with Float64():
            reference = _first(module.double()(*wide))
        reference.sum().backward()
        module.float()
        assert_close(actual, reference)
        for ours, theirs in zip(inputs, wide, strict=True):
            assert_close(ours.grad, theirs.grad, factor=2)
        with torch.no_grad():
            assert_close(_first(model(*inputs)), reference)


@pytest.mark.parametrize("permuted", (False, True))
def test_operators(package, permuted):
    """Schemas, fake implementations, aliasing and autograd registrations hold what they say."""
    operators = submodule(package, "operators")
    x, residual = (random((4, 3, 8), torch.float32, "cpu", seed) for seed in range(2))
    if permuted:
        x, residual = x.transpose(0, 1), residual.transpose(0, 1)
    weight, bias = random((8,), torch.float32, "cpu", 2), random((8,), torch.float32, "cpu", 3)
    rms, gated = (1e-6, 0.5, True), (1e-6, "silu", False, True, 2)
    statistic = torch.rand(12)
    cases = {
        "rms_norm": (x, weight, *rms),
        "add_rms_norm": (x, residual, weight, *rms),
        "layer_norm": (x, weight, bias, 1e-5),
        "add_layer_norm": (x, residual, weight, None, 1e-5),
        "rms_norm_gated": (x, residual, weight, *gated),
    }
    for name, arguments in cases.items():
        opcheck(getattr(operators, f"{name}_inference"), arguments)
        arguments = [
            argument.detach().clone().requires_grad_() if isinstance(argument, torch.Tensor) else argument
            for argument in arguments
        ]
        opcheck(getattr(operators, name), tuple(arguments))
    opcheck(
        operators.norm_backward, (x, residual, x, weight, bias, statistic, statistic + 1, 1e-5, 0.0, True)
    )
    opcheck(operators.rms_norm_gated_backward, (x, x, residual, weight, *gated))


def test_bad_arguments_are_refused(package):
    x = torch.ones(3, 8)
    with pytest.raises(ValueError, match="activation 'relu', expected silu, swish, sigmoid"):
        package.rms_norm_gated(x, x, None, activation="relu")
    with pytest.raises(RuntimeError, match="size of tensor"):
        package.rms_norm(x, torch.ones(7))
    with pytest.raises(RuntimeError, match="size of tensor"):
        package.rms_norm_gated(x, x, torch.ones(9))
    module = nn.Identity()
    module.weight = nn.Parameter(torch.ones(8))
    with pytest.raises(AttributeError, match="Identity has none of variance_epsilon, eps, epsilon"):
        package.layers.RMSNorm.forward(module, x)


def test_autocast_leaves_the_llama_form_alone(package):
    module, inputs = make("RMSNorm", (3, 8), torch.bfloat16, "cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert call(package, "RMSNorm", module, inputs)[0].dtype == torch.bfloat16
        norm = nn.LayerNorm(8).bfloat16()
        assert package.layers.LayerNorm.forward(norm, *inputs).dtype == norm(*inputs).dtype


def test_layers_keep_the_contract(package):
    for name in {layer for layer, _, _ in CASES.values()}:
        layer = getattr(package.layers, name)
        members = {member for member in vars(layer) if not member.startswith("__")}
        assert members == {"forward", "has_backward", "can_torch_compile"}
        assert "__init__" not in vars(layer)


REFERENCE_SESSION = """
import sys, torch
from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
package = import_kernel(source_variant(bundled_folder() / "normalization", "cpu"))
assert sys.modules[package.__name__ + ".kernels"]._library() is None
x, weight = torch.load("x.pt")
x.requires_grad_(), weight.requires_grad_()
results = []
for y in (
    package.rms_norm(x, weight),
    package.layer_norm(x, weight, weight),
    package.add_rms_norm(x, 2 * x, weight)[0],
    package.rms_norm_gated(x, 2 * x, weight, groups=2),
):
    results += [y.detach(), *torch.autograd.grad(y.square().sum(), (x, weight))]
torch.save(results, "results.pt")
"""


def test_without_a_compiler_the_numbers_are_the_same(package, tmp_path):
    x, weight = random((33, 70), torch.float32, "cpu", 0), random((70,), torch.float32, "cpu", 1)
    torch.save((x, weight), tmp_path / "x.pt")
    done = run_script(
        REFERENCE_SESSION, env={**os.environ, "KERNELS_HUB_CXX": "none"}, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "native CPU code of" in done.stderr  # said, not silent
    results = iter(torch.load(tmp_path / "results.pt"))
    x.requires_grad_(), weight.requires_grad_()
    for y in (
        package.rms_norm(x, weight),
        package.layer_norm(x, weight, weight),
        package.add_rms_norm(x, 2 * x, weight)[0],
        package.rms_norm_gated(x, 2 * x, weight, groups=2),
    ):
        assert_close(next(results), y.double())
        for gradient in torch.autograd.grad(y.square().sum(), (x, weight)):
            assert_close(next(results), gradient.double(), factor=4)  # squares, then sums of what cancels


def test_a_model_with_other_threads_gives_the_same_rows(package):
    x, module = random((500, 300), torch.float32, "cpu", 0), LlamaRMSNorm(300)
    before, threads = package.layers.RMSNorm.forward(module, x), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(package.layers.RMSNorm.forward(module, x), before)
    finally:
        torch.set_num_threads(threads)


def test_what_only_pytorch_normalizes() -> None:
    """Complex numbers; and sizes that are a list, which PyTorch's classes keep as they are given."""
    module = import_kernel(source_variant(bundled_folder() / "normalization", "cpu")).layers.TorchRMSNorm
    norm = nn.RMSNorm((3, 8), eps=1e-6)
    z = torch.complex(torch.randn(5, 3, 8), torch.randn(5, 3, 8))
    torch.testing.assert_close(module.forward(norm, z), norm(z))
    norm.normalized_shape = [3, 8]
    torch.testing.assert_close(module.forward(norm, z.real), norm(z.real))


def test_a_scale_that_is_switched_off() -> None:
    """A setting of Gemma 3n's norms, which its class reads at every call."""
    layer = import_kernel(source_variant(bundled_folder() / "normalization", "cpu")).layers.RMSNormRoundedOnce
    norm, x = Gemma3nRMSNorm(64), torch.randn(5, 64)
    with torch.no_grad():
        norm.weight.mul_(3)
        for norm.with_scale in (True, False):
            torch.testing.assert_close(layer.forward(norm, x), norm(x))
