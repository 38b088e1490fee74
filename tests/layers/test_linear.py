"""The CPU variant of `layers/linear`, against torch.nn.Linear and transformers' blocks in float64."""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertIntermediate

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.layers.checked_operators import opcheck
from tests.layers.linear_cases import ACTIVATIONS, FORMULAS, Doubled, random
from tests.tolerances import assert_close
from tests.warm_process import run_script

PACKAGE: ModuleType = import_kernel(source_variant(bundled_folder() / "linear", "cpu"))
CACHE = PACKAGE.weights.cache
FEW_ROWS = sys.modules[PACKAGE.__name__ + ".few_rows"]
linear = PACKAGE.linear
LINEAR, LINEAR_ACTIVATION = PACKAGE.layers.Linear.forward, PACKAGE.layers.LinearActivation.forward

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

# (shape of the input, out_features): small ones run on F.linear, the others on packed weights.
SHAPES = [
    ((3, 37), 130),
    ((64, 256), 512),
    ((2, 33, 193), 321),
    ((1, 1024), 1024),
    ((7, 512), 1000),
    ((192,), 8192),
]


@pytest.fixture(autouse=True)
def pack_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack for smaller products than pays, so that shapes here are small; the smallest stay on F.linear."""
    monkeypatch.setattr(
        sys.modules[PACKAGE.__name__ + ".packing"].products,
        "pays",
        lambda x, weight: weight.dim() == 2 and x.numel() * weight.shape[0] >= 16_384,
    )


def packs(weight: torch.Tensor) -> bool:
    return weight.dtype in CACHE.dtypes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, out_features", SHAPES)
@pytest.mark.parametrize("bias", [True, False])
def test_forward(dtype: torch.dtype, shape: tuple[int, ...], out_features: int, bias: bool) -> None:
    torch.manual_seed(0)
    module = nn.Linear(shape[-1], out_features, bias=bias, dtype=dtype)
    x = random(*shape, dtype=dtype)
    reference = copy.deepcopy(module).double()(x.double())
    with torch.no_grad():
        result = LINEAR(module, x)
    assert result.dtype is dtype and result.is_contiguous()
    assert_close(result, reference)
    few = FEW_ROWS.pays(x, module.weight)
    assert (CACHE.entry_of(module.weight) is not None) == (
        packs(module.weight) and shape != (3, 37) and not few
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", FORMULAS)
@pytest.mark.parametrize("shape, out_features", [((3, 37), 130), ((64, 256), 512)])
def test_activation(dtype: torch.dtype, activation: str, shape: tuple[int, ...], out_features: int) -> None:
    weight = nn.Parameter(random(out_features, shape[-1], dtype=dtype) / shape[-1] ** 0.5)
    bias, x = random(out_features, dtype=dtype, seed=1), random(*shape, dtype=dtype, seed=2) * 3
    with torch.no_grad():
        result = linear(x, weight, bias, activation)
    assert_close(result, FORMULAS[activation](F.linear(x.double(), weight.double(), bias.double())))


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown activation 'selu'; known: none, relu"):
        linear(random(2, 3), random(4, 3), None, "selu")


@pytest.mark.parametrize("activation", FORMULAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_special_values(activation: str, dtype: torch.dtype) -> None:
    """The same NaN, infinities and limits as PyTorch; oneDNN's own ReLU makes NaN 0."""
    weight = nn.Parameter(torch.ones(64, 1, dtype=dtype))
    values = [float("nan"), float("inf"), -float("inf"), 1e38, -1e38, -20.0, -90.0, 0.0]
    x = torch.tensor(values, dtype=dtype).repeat(8192)[:, None]
    with torch.no_grad():
        result, expected = linear(x, weight, None, activation)[:8, 0], FORMULAS[activation](x[:8, 0])
    assert (CACHE.entry_of(weight) is not None) == (dtype in CACHE.dtypes())
    torch.testing.assert_close(result, expected, equal_nan=True)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu", "quick_gelu"])
def test_fused_activations_are_as_accurate_as_pytorchs(activation: str) -> None:
    weight = nn.Parameter(torch.eye(64))
    x = torch.linspace(-12, 12, 64 * 4096).view(-1, 64)
    exact = FORMULAS[activation](x.double())
    with torch.no_grad():
        ours = (linear(x, weight, None, activation).double() - exact).abs().max()
    assert ours <= 1.5 * (FORMULAS[activation](x).double() - exact).abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layouts_of_the_input(dtype: torch.dtype) -> None:
    weight = nn.Parameter(random(512, 256, dtype=dtype) / 16)
    wide = random(64, 4, 512, dtype=dtype)
    layouts = {
        "every other column": wide[..., ::2],
        "part of a row": wide[..., 100:356],
        "transposed": wide[..., :256].transpose(0, 1),
        "expanded": wide[:1, :, :256].expand(64, 4, 256),
        "columns first": random(256, 64, dtype=dtype).t(),
    }
    with torch.no_grad():
        for name, x in layouts.items():
            for bias in (None, random(1024, dtype=dtype)[::2]):  # oneDNN would misread a strided bias
                result = linear(x, weight, bias, "gelu")
                assert result.is_contiguous(), name
                assert_close(
                    result,
                    F.gelu(F.linear(x.double(), weight.double(), None if bias is None else bias.double())),
                )


@pytest.mark.parametrize("shape", [(0, 64), (2, 0, 64), (64,), (0,)])
def test_empty_and_one_dimensional(shape: tuple[int, ...]) -> None:
    weight = nn.Parameter(random(96, shape[-1]))
    with torch.no_grad():
        result = linear(random(*shape), weight, random(96), "relu")
    assert_close(result, F.relu(F.linear(random(*shape).double(), weight.double(), random(96).double())))


def test_wrong_operands_get_pytorchs_errors() -> None:
    weight = nn.Parameter(random(512, 256))
    for bad in (random(64, 255), random(64, 256).double(), random(64, 256).bfloat16(), torch.tensor(1.0)):
        with torch.no_grad(), pytest.raises(RuntimeError) as theirs:
            F.linear(bad, weight)
        with torch.no_grad(), pytest.raises(RuntimeError) as ours:
            linear(bad, weight)
        assert str(ours.value) == str(theirs.value)


def test_a_vector_as_weight() -> None:
    with torch.no_grad():
        assert_close(
            linear(random(64, 1024), nn.Parameter(random(1024))),
            random(64, 1024).double() @ random(1024).double(),
        )


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("activation", FORMULAS)
def test_backward(activation: str, frozen: bool) -> None:
    """Frozen: LoRA training, where only the input needs a gradient."""

    def gradients(dtype: torch.dtype, function: Callable[..., torch.Tensor]) -> list[torch.Tensor | None]:
        tensors = [random(64, 256), random(512, 256, seed=1) / 16, random(512, seed=2)]
        x, weight, bias = (
            nn.Parameter(t.to(dtype), requires_grad=not frozen or i == 0) for i, t in enumerate(tensors)
        )
        function(x, weight, bias).square().mean().backward()
        return [x.grad, weight.grad, bias.grad]

    ours = gradients(torch.float32, lambda x, w, b: linear(x, w, b, activation))
    exact = gradients(torch.float64, lambda x, w, b: FORMULAS[activation](F.linear(x, w, b)))
    for found, expected in zip(ours, exact, strict=True):
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert_close(found, expected)


def test_gradcheck() -> None:
    tensors = [
        random(3, 5).double().requires_grad_(),
        random(4, 5).double().requires_grad_(),
        random(4).double().requires_grad_(),
    ]
    for activation in FORMULAS:
        assert torch.autograd.gradcheck(lambda *t: linear(*t, activation), tensors)  # noqa: B023


def test_training_after_inference_and_back() -> None:
    module, x = nn.Linear(256, 512), random(64, 256)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    for _ in range(3):
        with torch.no_grad():
            assert_close(LINEAR(module, x), copy.deepcopy(module).double()(x.double()))
        LINEAR(module, x).square().mean().backward()
        optimizer.step()


def test_autocast() -> None:
    module, x = nn.Linear(256, 512), random(64, 256)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        result, expected = LINEAR(module, x), module(x)
    assert result.dtype is torch.bfloat16
    assert torch.equal(result, expected)


def test_functional_transforms() -> None:
    module, x = nn.Linear(256, 512), random(4, 64, 256)
    jacobian = torch.func.grad(
        lambda weight: LINEAR(types.SimpleNamespace(weight=weight, bias=None), x).sum()
    )
    assert_close(jacobian(module.weight.detach()), x.double().sum((0, 1)).expand(512, 256))


# -- layers ----------------------------------------------------------------------------------------


def intermediate(activation: object = None) -> BertIntermediate:
    torch.manual_seed(0)
    block = BertIntermediate(BertConfig(hidden_size=256, intermediate_size=512)).eval()
    if activation is not None:
        del block.intermediate_act_fn  # a child, in whose place no plain function may be put
        block.intermediate_act_fn = activation
    return block


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_linear_activation(name: str) -> None:
    build, known = ACTIVATIONS[name]
    block, x = intermediate(build()), random(2, 50, 256)
    reference = copy.deepcopy(block).double()(x.double())
    before = CACHE.number_of_packs()
    with torch.no_grad():
        assert_close(LINEAR_ACTIVATION(block, x), reference)
    assert (CACHE.number_of_packs() > before) == (known is not None)


def _hook_on_linear(block: nn.Module) -> None:
    block.dense.register_forward_hook(lambda module, args, output: output + 1)


def _pre_hook_on_activation(block: nn.Module) -> None:
    block.intermediate_act_fn.register_forward_pre_hook(lambda module, args: (args[0] * 2,))


def _another_class(block: nn.Module) -> None:
    twin = Doubled(256, 512)
    twin.load_state_dict(block.dense.state_dict())
    block.dense = twin


def _own_forward(block: nn.Module) -> None:
    block.dense.forward = lambda x: x[..., :1].expand(*x.shape[:-1], 512)


def _parametrized(block: nn.Module) -> None:
    torch.nn.utils.parametrizations.weight_norm(block.dense)


def _subclass_weight(block: nn.Module) -> None:
    class Scaled(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types_, args=(), kwargs=None):
            result = super().__torch_function__(function, types_, args, kwargs or {})
            return 3 * result if function is F.linear else result

    block.dense.weight = nn.Parameter(block.dense.weight.detach().as_subclass(Scaled))


CHANGES = (
    _hook_on_linear,
    _pre_hook_on_activation,
    _another_class,
    _own_forward,
    _parametrized,
    _subclass_weight,
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_changed_children_are_called(change: Callable[[nn.Module], None]) -> None:
    block, x = intermediate(), random(2, 50, 256)
    change(block)
    with torch.no_grad():
        torch.testing.assert_close(LINEAR_ACTIVATION(block, x), block(x))


def test_global_hooks_see_the_children() -> None:
    seen: list[str] = []
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, output: seen.append(type(module).__name__)
    )
    try:
        with torch.no_grad():
            LINEAR_ACTIVATION(intermediate(), random(2, 50, 256))
    finally:
        handle.remove()
    assert seen == ["Linear", "GELUActivation"]


# -- torch.compile, operators ----------------------------------------------------------------------


@pytest.mark.parametrize("grad", [False, True])
def test_compile(grad: bool) -> None:
    block, x = intermediate(), random(2, 50, 256)
    reference = copy.deepcopy(block).double()
    block.forward = types.MethodType(LINEAR_ACTIVATION, block)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    before = CACHE.number_of_packs()
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            result = compiled(x)
        assert_close(result, reference(x.double()))
    assert CACHE.number_of_packs() == before + (not grad)
    if grad:
        result.square().mean().backward()
        reference(x.double()).square().mean().backward()
        assert_close(block.dense.weight.grad, reference.dense.weight.grad)


def test_compile_with_dynamic_shapes() -> None:
    module = nn.Linear(256, 512)
    compiled = torch.compile(lambda x: LINEAR(module, x), backend="aot_eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for rows in (64, 50, 3):
            x = random(rows, 256)
            assert_close(compiled(x), F.linear(x.double(), module.weight.double(), module.bias.double()))


def test_opcheck() -> None:
    operator = getattr(torch.ops, PACKAGE.__name__).linear.default
    weight = nn.Parameter(random(512, 256), requires_grad=False)
    opcheck(operator, (random(64, 256), weight, random(512), "gelu"))
    opcheck(operator, (random(2, 3), random(4, 3), None, "relu"))


WITHOUT_ONEDNN = """
import torch
torch.backends.mkldnn.is_available = lambda: False
from torch import nn
from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
package = import_kernel(source_variant(bundled_folder() / "linear", "cpu"))
module, x = nn.Linear(256, 512), torch.randn(64, 256)
package.weights.prepare(module)
package.weights.free_originals(module)
with torch.no_grad():
    result, expected = package.linear(x, module.weight, module.bias, "gelu"), nn.functional.gelu(module(x))
print(package.weights.cache.number_of_packs(), type(module.weight).__name__, torch.allclose(result, expected, atol=1e-6))
"""


def test_without_onednn() -> None:
    done = run_script(WITHOUT_ONEDNN)
    assert done.stdout.split() == ["0", "Parameter", "True"]


def test_a_weight_that_is_part_of_a_larger_buffer_is_not_freed() -> None:
    """Else what is written to the buffer is lost, and no memory is gained."""
    dtype = torch.float32 if torch.float32 in CACHE.dtypes() else torch.bfloat16
    flat = torch.randn(2 * 320 * 192, dtype=dtype)
    module = nn.Linear(192, 320, bias=False)
    module.weight = nn.Parameter(flat[: 320 * 192].view(320, 192))
    PACKAGE.weights.free_originals(module)
    assert type(module.weight) is nn.Parameter
    x = torch.randn(64, 192, dtype=dtype)
    with torch.no_grad():
        for _ in range(2):
            assert_close(LINEAR(module, x), F.linear(x.double(), module.weight.double()))
            flat.mul_(2)
