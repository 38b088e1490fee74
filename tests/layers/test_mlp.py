"""The CPU variant of `layers/mlp`, against transformers' feed-forward blocks in float64."""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import CLIPVisionConfig, GPTNeoXConfig, LlamaConfig, Phi3Config, SamVisionConfig
from transformers.activations import SiLUActivation
from transformers.models.clip.modeling_clip import CLIPMLP
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXMLP
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.phi3.modeling_phi3 import Phi3MLP
from transformers.models.sam.modeling_sam import SamMLPBlock

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.layers.checked_operators import opcheck
from tests.layers.linear_cases import ACTIVATIONS, FORMULAS, Doubled, random
from tests.tolerances import assert_close

PACKAGE: ModuleType = import_kernel(source_variant(bundled_folder() / "mlp", "cpu"))
WEIGHTS, CACHE = PACKAGE.weights, PACKAGE.weights.cache
GATED, PLAIN = PACKAGE.layers.GatedMLP.forward, PACKAGE.layers.MLP.forward

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.fixture(autouse=True)
def pack_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack for smaller products than pays, so that shapes here are small; the smallest stay on F.linear."""
    monkeypatch.setattr(
        sys.modules[PACKAGE.__name__ + ".packing"].products,
        "pays",
        lambda x, weight: weight.dim() == 2 and x.numel() * weight.shape[0] >= 16_384,
    )


def llama(hidden: int = 256, intermediate: int = 512, bias: bool = False) -> nn.Module:
    return LlamaMLP(
        LlamaConfig(hidden_size=hidden, intermediate_size=intermediate, mlp_bias=bias, num_attention_heads=1)
    )


class UpDown(nn.Module):
    """As NemotronMLP and DINOv3ViTMLP: no gate."""

    def __init__(self) -> None:
        super().__init__()
        self.up_proj, self.down_proj, self.act_fn = (
            nn.Linear(256, 512),
            nn.Linear(512, 256),
            nn.GELU(approximate="tanh"),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.up_proj(x)))


class WithFunction(nn.Module):
    """As blocks that keep their activation as a plain function."""

    def __init__(self) -> None:
        super().__init__()
        self.linear_fc1, self.linear_fc2, self.act = nn.Linear(256, 512), nn.Linear(512, 256), F.silu

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.linear_fc2(self.act(self.linear_fc1(hidden_states)))


BLOCKS: dict[str, tuple[Callable[[], nn.Module], Callable[..., torch.Tensor]]] = {
    "LlamaMLP": (llama, GATED),
    "LlamaMLP with bias": (lambda: llama(bias=True), GATED),
    "LlamaMLP odd": (lambda: llama(250, 523), GATED),
    "LlamaMLP small": (lambda: llama(8, 12), GATED),
    "CLIPMLP": (
        lambda: CLIPMLP(CLIPVisionConfig(hidden_size=256, intermediate_size=512, num_attention_heads=8)),
        PLAIN,
    ),
    "GPTNeoXMLP": (lambda: GPTNeoXMLP(GPTNeoXConfig(hidden_size=256, intermediate_size=512)), PLAIN),
    "SamMLPBlock": (lambda: SamMLPBlock(SamVisionConfig(hidden_size=256, mlp_dim=512)), PLAIN),
    "up and down": (UpDown, PLAIN),
    "function": (WithFunction, PLAIN),
}


def build(
    name: str, dtype: torch.dtype = torch.float32
) -> tuple[nn.Module, Callable[..., torch.Tensor], torch.Tensor]:
    """(block, the layer's forward, an input)."""
    torch.manual_seed(0)
    make, forward = BLOCKS[name]
    block = make().to(dtype).eval()
    width = next(block.parameters()).shape[1]
    return block, forward, random(2, 33, width, dtype=dtype)


# Two products and an activation, each rounded: the original has as many roundings.
ROUNDINGS = 2.0


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_forward(name: str, dtype: torch.dtype) -> None:
    block, forward, x = build(name, dtype)
    reference = copy.deepcopy(block).double()(x.double())
    before = CACHE.number_of_packs()
    with torch.no_grad():
        for tensor in (x, x[:, ::2], x.transpose(0, 1)):
            result = forward(block, tensor)
            assert result.dtype is dtype
        assert_close(forward(block, x), reference, factor=ROUNDINGS)
    weights = sum(isinstance(child, nn.Linear) for child in block.children())
    packs = dtype in CACHE.dtypes() and not (name == "LlamaMLP small")
    assert CACHE.number_of_packs() - before == (weights if packs else 0)


@pytest.mark.parametrize("name", ["LlamaMLP", "LlamaMLP small", "CLIPMLP"])
def test_layouts_and_empty(name: str) -> None:
    block, forward, x = build(name)
    wide = random(4, 33, 2 * x.shape[-1])
    exact = copy.deepcopy(block).double()
    with torch.no_grad():
        for tensor in (
            wide[..., ::2],
            wide[..., : x.shape[-1]].transpose(0, 1),
            x[:0],
            x[0, 0],
            x[:1].expand(3, -1, -1),
        ):
            assert_close(forward(block, tensor), exact(tensor.double()), factor=ROUNDINGS)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("block_name, attribute", [("LlamaMLP", "act_fn"), ("CLIPMLP", "activation_fn")])
def test_activations(name: str, block_name: str, attribute: str) -> None:
    block, forward, x = build(block_name)
    delattr(block, attribute)
    setattr(block, attribute, ACTIVATIONS[name][0]())
    reference = copy.deepcopy(block).double()(x.double())
    before = CACHE.number_of_packs()
    with torch.no_grad():
        assert_close(forward(block, x), reference, factor=ROUNDINGS)
    assert (CACHE.number_of_packs() > before) == (ACTIVATIONS[name][1] is not None)


@pytest.mark.parametrize("activation", FORMULAS)
def test_functions(activation: str) -> None:
    x, gate, up, down = (
        random(50, 256),
        random(512, 256, seed=1),
        random(512, 256, seed=2),
        random(256, 512, seed=3),
    )
    weights = [
        nn.Parameter(weight / weight.shape[1] ** 0.5, requires_grad=False) for weight in (gate, up, down)
    ]
    biases = [random(512, seed=4), None, random(256, seed=5)]
    exact = [None if t is None else t.double() for t in (*weights, *biases)]
    hidden = FORMULAS[activation](F.linear(x.double(), exact[0], exact[3])) * F.linear(x.double(), exact[1])
    assert_close(
        PACKAGE.gated_mlp(x, *weights, *biases, activation),
        F.linear(hidden, exact[2], exact[5]),
        factor=ROUNDINGS,
    )
    hidden = FORMULAS[activation](F.linear(x.double(), exact[0], exact[3]))
    ours = PACKAGE.mlp(x, weights[0], weights[2], biases[0], biases[2], activation)
    assert_close(ours, F.linear(hidden, exact[2], exact[5]), factor=ROUNDINGS)


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="gated_mlp: unknown activation 'selu'"):
        PACKAGE.gated_mlp(random(2, 3), random(4, 3), random(4, 3), random(3, 4), activation="selu")


def test_a_block_without_known_names_is_refused() -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
    with pytest.raises(AttributeError, match="Sequential has no two Linears and activation"):
        PLAIN(block, random(2, 4))


@pytest.mark.parametrize("name", ["LlamaMLP with bias", "LlamaMLP small", "CLIPMLP", "function"])
@pytest.mark.parametrize("frozen", [False, True])
def test_backward(name: str, frozen: bool) -> None:
    """Frozen: LoRA training, where only the input needs a gradient."""
    block, forward, x = build(name)
    block.requires_grad_(not frozen)
    exact, y = copy.deepcopy(block).double(), x.double().requires_grad_()
    x.requires_grad_()
    forward(block, x).square().mean().backward()
    exact(y).square().mean().backward()
    assert_close(x.grad, y.grad, factor=ROUNDINGS)
    for ours, theirs in zip(block.parameters(), exact.parameters(), strict=True):
        assert (ours.grad is None) == frozen
        if not frozen:
            assert_close(ours.grad, theirs.grad, factor=ROUNDINGS)


def test_gradcheck() -> None:
    x, gate, up, down = (
        random(*shape, seed=i).double().requires_grad_()
        for i, shape in enumerate(((2, 3), (4, 3), (4, 3), (3, 4)))
    )
    assert torch.autograd.gradcheck(PACKAGE.gated_mlp, (x, gate, up, down))


def test_autocast() -> None:
    block, forward, x = build("LlamaMLP")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        result, expected = forward(block, x), block(x)
    assert result.dtype is torch.bfloat16 and torch.equal(result, expected)


# -- children that are not what they were --------------------------------------------------------------


def _hook(block: nn.Module, child: str) -> None:
    getattr(block, child).register_forward_hook(lambda module, args, output: output + 1)


def _pre_hook(block: nn.Module, child: str) -> None:
    getattr(block, child).register_forward_pre_hook(lambda module, args: (args[0] * 2,))


def _another_class(block: nn.Module, child: str) -> None:
    linear = getattr(block, child)
    twin = Doubled(linear.in_features, linear.out_features, bias=linear.bias is not None)
    twin.load_state_dict(linear.state_dict())
    setattr(block, child, twin)


def _with_dropout(block: nn.Module, child: str) -> None:
    setattr(block, child, nn.Sequential(getattr(block, child), nn.Dropout(0.5)))


def _own_forward(block: nn.Module, child: str) -> None:
    original = getattr(block, child).forward
    getattr(block, child).forward = lambda x: original(x) - 1


@pytest.mark.parametrize(
    "change", [_hook, _pre_hook, _another_class, _with_dropout, _own_forward], ids=lambda c: c.__name__
)
@pytest.mark.parametrize(
    "name, child",
    [
        ("LlamaMLP", "gate_proj"),
        ("LlamaMLP", "up_proj"),
        ("LlamaMLP", "down_proj"),
        ("CLIPMLP", "fc1"),
        ("CLIPMLP", "fc2"),
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_changed_children_are_called(
    change: Callable[[nn.Module, str], None], name: str, child: str, training: bool
) -> None:
    block, forward, x = build(name)
    block.train(training)
    change(block, child)
    with torch.no_grad():
        torch.manual_seed(3)
        expected = block(x)
        torch.manual_seed(3)
        torch.testing.assert_close(forward(block, x), expected)


@pytest.mark.parametrize("kind", [nn.Linear, nn.SiLU, SiLUActivation], ids=lambda kind: kind.__name__)
def test_forwards_of_classes_that_are_replaced_are_called(
    kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As programs do that add their adapters to each Linear of a process."""
    block, forward, x = build("LlamaMLP")
    block.act_fn = nn.SiLU() if kind is nn.SiLU else SiLUActivation()
    original = kind.forward
    with torch.no_grad():
        expected = block(x)
        torch.testing.assert_close(forward(block, x), expected)
        monkeypatch.setattr(kind, "forward", lambda self, x: 2 * original(self, x))
        torch.testing.assert_close(forward(block, x), block(x))
        assert float((block(x) - expected).abs().max()) > 0.1 * float(expected.abs().max())
        monkeypatch.undo()
        torch.testing.assert_close(forward(block, x), expected)


def test_a_hooked_activation_is_called() -> None:
    for name, attribute in (("LlamaMLP", "act_fn"), ("CLIPMLP", "activation_fn")):
        block, forward, x = build(name)
        getattr(block, attribute).register_forward_hook(lambda module, args, output: output * 3)
        with torch.no_grad():
            torch.testing.assert_close(forward(block, x), block(x))


def test_hooks_that_come_and_go() -> None:
    block, forward, x = build("LlamaMLP")
    with torch.no_grad():
        before = forward(block, x)
        handle = block.up_proj.register_forward_hook(lambda module, args, output: output * 2)
        torch.testing.assert_close(forward(block, x), block(x))
        handle.remove()
        assert torch.equal(forward(block, x), before)


# -- weights, torch.compile, operators -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["LlamaMLP with bias", "CLIPMLP"])
def test_freed_weights(name: str) -> None:
    block, forward, x = build(name)
    reference = copy.deepcopy(block).double()(x.double())
    state = {key: value.clone() for key, value in block.state_dict().items()}
    WEIGHTS.prepare(block)
    held = sum(child.weight.nbytes for child in block.children() if isinstance(child, nn.Linear))
    assert WEIGHTS.packed_nbytes(block) >= held
    WEIGHTS.free_originals(block)
    assert WEIGHTS.packed_nbytes(block) == 0
    with torch.no_grad():
        assert_close(forward(block, x), reference, factor=ROUNDINGS)
        assert_close(copy.deepcopy(block)(x), reference, factor=ROUNDINGS)
    WEIGHTS.restore_originals(block)
    for key, value in block.state_dict().items():
        assert torch.equal(value, state[key])


def test_one_freed_weight_among_dense_ones() -> None:
    block, forward, x = build("LlamaMLP")
    reference = copy.deepcopy(block).double()(x.double())
    for child in (block.gate_proj, block.up_proj, block.down_proj):
        WEIGHTS.free_originals(child)
        with torch.no_grad():
            assert_close(forward(block, x), reference, factor=ROUNDINGS)
        WEIGHTS.restore_originals(child)


@pytest.mark.parametrize("name", ["LlamaMLP", "CLIPMLP", "function"])
@pytest.mark.parametrize("grad", [False, True])
def test_compile(name: str, grad: bool) -> None:
    block, forward, x = build(name)
    reference = copy.deepcopy(block).double()
    block.forward = types.MethodType(forward, block)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    before = CACHE.number_of_packs()
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            result = compiled(x)
        assert_close(result, reference(x.double()), factor=ROUNDINGS)
    weights = sum(isinstance(child, nn.Linear) for child in block.children())
    assert CACHE.number_of_packs() - before == (0 if grad else weights)
    if grad:
        result.square().mean().backward()
        reference(x.double()).square().mean().backward()
        for ours, theirs in zip(block.parameters(), reference.parameters(), strict=True):
            assert_close(ours.grad, theirs.grad, factor=ROUNDINGS)


@pytest.mark.parametrize("name", ["LlamaMLP", "CLIPMLP"])
def test_compile_of_freed_weights(name: str) -> None:
    block, forward, x = build(name)
    reference = copy.deepcopy(block).double()(x.double())
    WEIGHTS.free_originals(block)
    block.forward = types.MethodType(forward, block)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert_close(compiled(x), reference, factor=ROUNDINGS)


def test_opcheck() -> None:
    operators = getattr(torch.ops, PACKAGE.__name__)
    gate, up = (nn.Parameter(random(512, 256, seed=i), requires_grad=False) for i in range(2))
    opcheck(operators.gated_linear.default, (random(64, 256), gate, up, random(512), None, "silu"))
    opcheck(operators.gated_linear.default, (random(2, 3), random(4, 3), random(4, 3), None, None, "relu"))
    down = nn.Parameter(random(128, 512, seed=3), requires_grad=False)
    for rows in (1, 64):
        opcheck(
            operators.gated_mlp.default,
            (random(rows, 256), gate, up, down, None, random(512), random(128), "silu"),
        )


def test_functional_transforms() -> None:
    block, forward, x = build("LlamaMLP small")
    names = ("gate_proj", "up_proj", "down_proj")

    def loss(weights: tuple[torch.Tensor, ...]) -> torch.Tensor:
        linears = {name: copy.copy(getattr(block, name)) for name in names}
        for linear, weight in zip(linears.values(), weights, strict=True):
            linear.__dict__["_parameters"] = {"weight": weight, "bias": None}
        return forward(SimpleNamespace(act_fn=block.act_fn, **linears), x).square().sum()

    weights = tuple(getattr(block, name).weight.detach() for name in names)
    block(x).square().sum().backward()
    for ours, name in zip(torch.func.grad(loss)(weights), names, strict=True):
        torch.testing.assert_close(ours, getattr(block, name).weight.grad)


# -- a gate and an up in one weight ------------------------------------------------------------------


def joined(dtype: torch.dtype = torch.float32, bias: bool = False) -> nn.Module:
    torch.manual_seed(0)
    block = Phi3MLP(Phi3Config(hidden_size=256, intermediate_size=384, num_attention_heads=1, pad_token_id=0))
    if bias:
        block.gate_up_proj, block.down_proj = nn.Linear(256, 768), nn.Linear(384, 256)
    return block.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 100])
def test_joined(dtype: torch.dtype, bias: bool, rows: int) -> None:
    block, x = joined(dtype, bias), random(2, rows, 256, dtype=dtype)
    with torch.no_grad():
        result = PACKAGE.layers.JoinedGatedMLP.forward(block, x)
        assert result.dtype is dtype
        assert_close(result, copy.deepcopy(block).double()(x.double()), factor=2)


def test_joined_in_training_and_with_a_changed_child() -> None:
    block, x = joined(), random(2, 50, 256)
    other = copy.deepcopy(block)
    PACKAGE.layers.JoinedGatedMLP.forward(block, x).square().sum().backward()
    other(x).square().sum().backward()
    assert_close(block.gate_up_proj.weight.grad, other.gate_up_proj.weight.grad.double())
    block.gate_up_proj.register_forward_hook(lambda module, args, output: 2 * output)
    with torch.no_grad():
        torch.testing.assert_close(PACKAGE.layers.JoinedGatedMLP.forward(block, x), block(x))


def test_joined_compiles_whole() -> None:
    block, x = joined(), random(2, 50, 256)
    reference = copy.deepcopy(block).double()
    block.forward = types.MethodType(PACKAGE.layers.JoinedGatedMLP.forward, block)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for given in (x, x[:, :1]):
            assert_close(compiled(given), reference(given.double()), factor=2)
