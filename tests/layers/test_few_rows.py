"""Linear layers and gated blocks of a few rows, in C++ on weights as they are: `layers/few_rows`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.layers.linear_cases import FORMULAS, random
from tests.tolerances import assert_close

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

LINEAR: ModuleType = import_kernel(source_variant(bundled_folder() / "linear", "cpu"))
MLP: ModuleType = import_kernel(source_variant(bundled_folder() / "mlp", "cpu"))
ATTENTION: ModuleType = import_kernel(source_variant(bundled_folder() / "attention", "cpu"))
FEW = sys.modules[LINEAR.__name__ + ".few_rows"]
FEW_OF_MLP = sys.modules[MLP.__name__ + ".few_rows"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# rows, width, columns: one and several tiles of rows and blocks of columns, whole and with rests.
SHAPES = [(1, 64, 48), (1, 37, 1), (2, 1, 50), (3, 130, 97), (4, 512, 300), (5, 33, 6), (9, 257, 193)]


def weights_of(
    width: int, *columns: int, dtype: torch.dtype, bias: bool
) -> tuple[list[Tensor], list[Tensor | None]]:
    weights = [random(one, width, dtype=dtype, seed=seed) / width**0.5 for seed, one in enumerate(columns, 1)]
    biases = [random(one, dtype=dtype, seed=9 + seed) if bias else None for seed, one in enumerate(columns)]
    return weights, biases


def exact(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x.double(), weight.double(), None if bias is None else bias.double())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", FORMULAS)
def test_linears(dtype: torch.dtype, shape: tuple[int, int, int], activation: str):
    rows, width, columns = shape
    for count in (1, 2, 3):
        sizes = [columns, columns + 5, max(1, columns // 3)][:count]
        x = random(rows, width, dtype=dtype)
        weights, biases = weights_of(width, *sizes, dtype=dtype, bias=count != 2)
        if count == 3:
            biases[1] = None
        assert FEW.takes(x, weights, biases)
        result = FEW.linears(x, weights, biases, activation)
        assert result.dtype is dtype and result.shape == (rows, sum(sizes))
        parts = [FORMULAS[activation](exact(x, *pair)) for pair in zip(weights, biases, strict=True)]
        assert_close(result, torch.cat(parts, dim=-1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", [name for name in FORMULAS if name != "none"])
def test_gated_mlp(dtype: torch.dtype, shape: tuple[int, int, int], activation: str):
    rows, width, inner = shape
    x = random(1, rows, width, dtype=dtype)
    for bias in (False, True):
        (gate, up), (gate_bias, up_bias) = weights_of(width, inner, inner, dtype=dtype, bias=bias)
        (down,), (down_bias,) = weights_of(inner, width + 3, dtype=dtype, bias=bias)
        result = FEW.gated_mlp(x, (gate, up, down), (gate_bias, up_bias, down_bias), activation)
        hidden = FORMULAS[activation](exact(x, gate, gate_bias)) * exact(x, up, up_bias)
        assert_close(result, exact(hidden, down, down_bias), factor=2)


STRIDED: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "every other": lambda x: torch.stack([x, -x], -1).flatten(-2)[..., ::2],
    "expanded": lambda x: x[:1].expand_as(x),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", STRIDED)
def test_rows_of_any_strides(dtype: torch.dtype, how: str):
    x = STRIDED[how](random(5, 70, dtype=dtype))
    (gate, up), (gate_bias, up_bias) = weights_of(70, 33, 33, dtype=dtype, bias=True)
    (down,), (down_bias,) = weights_of(33, 20, dtype=dtype, bias=True)
    assert FEW.takes(x, [gate], [gate_bias])
    found = FEW.linears(x, [gate], [gate_bias])
    assert found.is_contiguous()
    assert torch.equal(found, FEW.linears(x.contiguous(), [gate], [gate_bias]))
    assert_close(found, exact(x, gate, gate_bias))
    block = (gate, up, down), (gate_bias, up_bias, down_bias), "silu"
    assert torch.equal(FEW.gated_mlp(x, *block), FEW.gated_mlp(x.contiguous(), *block))


@pytest.mark.parametrize("activation", FORMULAS)
def test_special_values(activation: str):
    values = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 1e30, -1e30, 1e-40])
    x = torch.stack([values, torch.ones(7)])
    weight = torch.eye(7)
    for row in (x[:1], x):
        result = FEW.linears(row.clone(), [weight], [None], activation)
        expected = FORMULAS[activation](F.linear(row, weight))
        assert torch.equal(result.isnan(), expected.isnan())
        assert_close(result.nan_to_num(), expected.nan_to_num())


def test_which_operands_it_takes():
    x, weight, bias = torch.randn(2, 16), torch.randn(8, 16), torch.randn(8)
    assert FEW.takes(x, [weight], [bias])
    refused = [
        (x.double(), weight.double(), None),
        (x, weight.half(), None),
        (x, weight.T, None),
        (x, torch.randn(8, 15), None),
        (x, weight[0], None),
        (x, torch.randn(16, 8).T, None),
        (x[:0], weight, None),
        (x, weight, bias[:7]),
        (x, weight, bias.half()),
        (x, weight, torch.randn(16)[::2]),
        (x, weight.to(torch.int64), None),
    ]
    for one, other, third in refused:
        assert not FEW.takes(one, [other], [third])
    assert not FEW.takes(x, [weight] * 4, [None] * 4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_when_it_pays(dtype: torch.dtype):
    large, small = torch.empty(1024, 1024, dtype=dtype), torch.empty(64, 64, dtype=dtype)
    assert FEW.pays(torch.empty(2, 1024, dtype=dtype), large)
    has_half = FEW.has_half()
    assert FEW.pays(torch.empty(1, 1, 1024, dtype=dtype), large) is not (dtype is torch.float16 and has_half)
    assert FEW.pays(torch.empty(8, 1024, dtype=dtype), large)
    assert FEW.pays(torch.empty(8, 4096, dtype=dtype), torch.empty(4096, 4096, dtype=dtype)) is (
        dtype is not torch.float32
    )
    assert FEW.pays(torch.empty(64, 1024, dtype=dtype), large) is (dtype is torch.float16 and not has_half)
    assert not FEW.pays(torch.empty(2, 64, dtype=dtype), small)
    assert not FEW.pays(torch.empty(2, 1024, dtype=torch.float64), large)
    assert not FEW.pays(torch.empty((), dtype=dtype), large)


@pytest.mark.parametrize("machine", ["aarch64", "arm64"])
def test_vectors_of_arm_are_known(machine: str, monkeypatch: pytest.MonkeyPatch):
    processor = sys.modules[LINEAR.__name__ + ".processor"]
    monkeypatch.setattr(processor.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: False)
    assert processor.has_vectors.__wrapped__() and processor.has_half.__wrapped__()
    monkeypatch.setattr(processor.platform, "machine", lambda: "riscv64")
    assert not processor.has_vectors.__wrapped__() and not processor.has_half.__wrapped__()


# -- in the layers ------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What ran in C++."""
    seen: list[str] = []
    for package in (LINEAR, MLP, ATTENTION):
        few = sys.modules[package.__name__ + ".few_rows"]
        for name in ("linears", "gated_mlp"):
            run = getattr(few, name)
            monkeypatch.setattr(
                few, name, lambda *rest, name=name, run=run: (seen.append(name), run(*rest))[1]
            )
    return seen


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(384, 640, bias=False), nn.Linear(384, 640, bias=False)
        self.down_proj, self.act_fn = nn.Linear(640, 384, bias=False), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


BLOCKS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor], str]] = {
    "Linear": (lambda: nn.Linear(384, 640), LINEAR.layers.Linear.forward, "linears"),
    "GatedMLP": (Gated, MLP.layers.GatedMLP.forward, "gated_mlp"),
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("shape", [(384,), (1, 1, 384), (2, 2, 384)])
def test_layers_use_it(name: str, shape: tuple[int, ...], calls: list[str]):
    make, forward, function = BLOCKS[name]
    block, x = make(), torch.randn(shape)
    with torch.no_grad():
        assert_close(forward(block, x), block.double()(x.double()), factor=2)
    assert calls == [function]


@pytest.mark.parametrize("name", BLOCKS)
def test_layers_use_it_for_a_transposed_input(name: str, calls: list[str]):
    """As the output of a state space is, whose time is its last dim."""
    make, forward, function = BLOCKS[name]
    block, x = make(), torch.randn(1, 384, 3).transpose(1, 2)
    assert not x.is_contiguous()
    with torch.no_grad():
        assert_close(forward(block, x), block.double()(x.double()), factor=2)
    assert calls == [function]


@pytest.mark.parametrize("name", BLOCKS)
def test_many_rows_run_on_packed_weights(name: str, calls: list[str]):
    make, forward, _ = BLOCKS[name]
    block = make()
    with torch.no_grad():
        forward(block, torch.randn(64, 384))
    assert calls == []


@pytest.mark.parametrize("name", BLOCKS)
def test_weights_are_read_as_they_are(name: str, calls: list[str]):
    """Edits of any kind, single elements through `.data` too: nothing is copied that could be out of date."""
    make, forward, function = BLOCKS[name]
    block, x = make(), torch.randn(1, 384)
    weight = next(block.parameters())
    with torch.no_grad():
        before = forward(block, x)
        weight.data[7, 3] += 100.0
        after = forward(block, x)
        assert not torch.equal(before, after)
        assert_close(after, block.double()(x.double()), factor=2)
    assert calls == [function, function]


@pytest.mark.parametrize("name", BLOCKS)
def test_gradients_and_freed_weights_run_elsewhere(name: str, calls: list[str]):
    make, forward, _ = BLOCKS[name]
    package = LINEAR if name == "Linear" else MLP
    block, x = make(), torch.randn(1, 384)
    forward(block, x).sum().backward()
    assert next(block.parameters()).grad is not None
    with torch.no_grad():
        expected = block(x)
        package.weights.prepare(block)
        package.weights.free_originals(block)
        assert_close(forward(block, x), expected, factor=2)
        package.weights.restore_originals(block)
    assert calls == []


@pytest.mark.parametrize("name", ["gate_proj", "up_proj", "down_proj"])
def test_weights_that_do_not_fit_get_pytorchs_error(name: str, calls: list[str]):
    block = Gated()
    setattr(block, name, nn.Linear(384, 500, bias=False))
    with torch.no_grad(), pytest.raises(RuntimeError, match="size|shape"):
        MLP.layers.GatedMLP.forward(block, torch.randn(1, 384))
    assert "gated_mlp" not in calls


def test_projections_of_attention_are_one_call(calls: list[str]):
    project = sys.modules[ATTENTION.__name__ + ".projections"].project
    weights = [nn.Parameter(torch.randn(columns, 512)) for columns in (512, 128, 128)]
    biases = [nn.Parameter(torch.randn(512)), None, nn.Parameter(torch.randn(128))]
    x = torch.randn(1, 1, 512)
    with torch.no_grad():
        parts = project(x, weights, biases)
    assert calls == ["linears"]
    for part, weight, bias in zip(parts, weights, biases, strict=True):
        assert_close(part, exact(x, weight, bias))


@pytest.mark.parametrize("name", BLOCKS)
def test_compile(name: str, calls: list[str]):
    make, forward, function = BLOCKS[name]
    block, x = make().eval(), torch.randn(2, 384)
    with torch.no_grad():
        compiled = torch.compile(lambda x: forward(block, x), fullgraph=True, backend="aot_eager")
        assert_close(compiled(x), block(x), factor=2)
    assert calls == [function]


def test_threads():
    block, inputs = Gated(), [torch.randn(1, 384) for _ in range(40)]
    with torch.no_grad():
        expected = [MLP.layers.GatedMLP.forward(block, x) for x in inputs]

        def run(x: Tensor) -> Tensor:
            with torch.no_grad():
                return MLP.layers.GatedMLP.forward(block, x)

        with ThreadPoolExecutor(4) as pool:
            for result, one in zip(pool.map(run, inputs), expected, strict=True):
                assert torch.equal(result, one)


@pytest.mark.parametrize("name", BLOCKS)
def test_without_a_compiler(name: str, calls: list[str], monkeypatch: pytest.MonkeyPatch):
    make, forward, _ = BLOCKS[name]
    for few in (FEW, FEW_OF_MLP):
        monkeypatch.setattr(few, "_library", lambda: None)
    block, x = make(), torch.randn(1, 384)
    with torch.no_grad():
        assert_close(forward(block, x), block.double()(x.double()), factor=2)
    assert calls == []
