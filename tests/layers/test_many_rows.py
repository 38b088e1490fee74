"""float32 linear layers of many rows without copies of their weights: `layers/many_rows`."""

from __future__ import annotations

import copy
import shutil
import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.layers.linear_cases import FORMULAS, random
from tests.layers.of_amd import be_of_amd, many_rows_of
from tests.tolerances import assert_close

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

LINEAR: ModuleType = import_kernel(source_variant(bundled_folder() / "linear", "cpu"))
MLP: ModuleType = import_kernel(source_variant(bundled_folder() / "mlp", "cpu"))
ATTENTION: ModuleType = import_kernel(source_variant(bundled_folder() / "attention", "cpu"))
MANY, MANY_OF_MLP, MANY_OF_ATTENTION = map(many_rows_of, ("linear", "mlp", "attention"))

# rows, width, columns: whole blocks and rests of each, several passes over the width, tasks of several parts.
SHAPES = [
    (1, 1, 1),
    (17, 64, 64),
    (14, 37, 1),
    (31, 1, 50),
    (40, 130, 97),
    (65, 800, 30),
    (130, 1600, 129),
    (300, 33, 6),
]


@pytest.fixture(autouse=True)
def _of_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    be_of_amd(monkeypatch, True)
    for many in (MANY, MANY_OF_MLP, MANY_OF_ATTENTION):
        many._library()


def exact(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x.double(), weight.double(), None if bias is None else bias.double())


def weights_of(width: int, *columns: int) -> list[Tensor]:
    return [random(one, width, seed=seed) / width**0.5 for seed, one in enumerate(columns, 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", FORMULAS)
def test_linears(shape: tuple[int, int, int], activation: str):
    rows, width, columns = shape
    x = random(rows, width)
    for count in (1, 2, 3):
        weights = weights_of(width, *[columns, columns + 5, max(1, columns // 3)][:count])
        biases = [
            random(weight.shape[0], seed=9) if index != 1 else None for index, weight in enumerate(weights)
        ]
        assert MANY.takes(x, weights, biases)
        parts = [FORMULAS[activation](exact(x, *pair)) for pair in zip(weights, biases, strict=True)]
        assert_close(MANY.linears(x, weights, biases, activation), torch.cat(parts, dim=-1))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 90), st.integers(0, 2**16))
def test_any_sizes(rows: int, width: int, columns: int, seed: int):
    x, weight, bias = random(rows, width, seed=seed), random(columns, width, seed=seed + 1), random(columns)
    assert_close(MANY.linears(x, (weight,), (bias,)), exact(x, weight, bias), factor=2)
    turned = weight.t().contiguous()
    assert MANY.transposed_takes(x, turned, bias)
    assert_close(MANY.transposed_linear(x, turned, bias), exact(x, weight, bias), factor=2)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", [name for name in FORMULAS if name != "none"])
def test_gated(shape: tuple[int, int, int], activation: str):
    rows, width, columns = shape
    x, (gate, up) = random(2, rows, width), weights_of(width, columns, columns)
    for gate_bias, up_bias in ((None, None), (random(columns, seed=7), random(columns, seed=8))):
        found = MANY_OF_MLP.gated(x, gate, up, gate_bias, up_bias, activation)
        assert_close(found, FORMULAS[activation](exact(x, gate, gate_bias)) * exact(x, up, up_bias))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_rows_and_columns_and_give_the_same(threads: int):
    x, (weight,) = random(700, 900), weights_of(900, 70)
    expected = MANY.linears(x, (weight,), (None,))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(MANY.linears(x, (weight,), (None,)), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("activation", FORMULAS)
def test_special_values(activation: str):
    values = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 1e30, -1e30, 1e-40])
    x, weight = values.expand(20, 7).contiguous(), torch.eye(7)
    result, expected = (
        MANY.linears(x, [weight], [None], activation),
        FORMULAS[activation](F.linear(x, weight)),
    )
    assert torch.equal(result.isnan(), expected.isnan())
    assert_close(result.nan_to_num(), expected.nan_to_num())


def test_more_rows_than_are_copied_at_once():
    x, (weight,) = random(1500, 1501), weights_of(1501, 40)
    assert_close(MANY.linears(x, (weight,), (None,)), exact(x, weight, None))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is multiplied on weights as they are."""
    names: list[str] = []
    for many in (MANY, MANY_OF_MLP, MANY_OF_ATTENTION):
        for name in ("linears", "gated", "transposed_linear"):

            def noted(*args: object, name: str = name, run: object = getattr(many, name)) -> object:
                names.append(name)
                return run(*args)  # type: ignore[operator]

            monkeypatch.setattr(many, name, noted)
    return names


def test_a_layer_runs_on_it_while_no_copies_are_kept(ran: list[str]):
    layer, x = nn.Linear(512, 512), torch.randn(64, 512)
    weights = LINEAR.weights
    with torch.no_grad():
        expected = layer(x)
        weights.prepare(layer)
        assert weights.packed_nbytes(layer) > 0 and weights.works_without_copies(layer)
        weights.keep_copies(layer, False)
        assert weights.packed_nbytes(layer) == 0
        assert_close(LINEAR.layers.Linear.forward(layer, x), expected, factor=2)
        assert ran == ["linears"] and weights.packed_nbytes(layer) == 0
        layer.weight.data[3, 5] += 100.0  # an edit that PyTorch does not count
        assert_close(LINEAR.layers.Linear.forward(layer, x), layer(x), factor=2)
        weights.keep_copies(layer, True)
        LINEAR.layers.Linear.forward(layer, x)
        assert ran == ["linears"] * 2 and weights.packed_nbytes(layer) > 0
        weights.release(layer)


def test_gradients_other_dtypes_and_other_processors_run_elsewhere(
    ran: list[str], monkeypatch: pytest.MonkeyPatch
):
    layer, x = nn.Linear(512, 512), torch.randn(64, 512)
    LINEAR.weights.keep_copies(layer, False)
    LINEAR.layers.Linear.forward(layer, x).sum().backward()
    assert layer.weight.grad is not None
    half = copy.deepcopy(layer).bfloat16()
    LINEAR.weights.keep_copies(half, False)
    be_of_amd(monkeypatch, False)
    with torch.no_grad():
        assert_close(LINEAR.layers.Linear.forward(half, x.bfloat16()), half(x.bfloat16()), factor=4)
        assert_close(LINEAR.layers.Linear.forward(layer, x), layer(x), factor=2)
    assert not LINEAR.weights.works_without_copies(layer) and ran == []


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(256, 512, bias=False), nn.Linear(256, 512, bias=False)
        self.down_proj, self.act_fn = nn.Linear(512, 256, bias=False), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


def test_a_gated_block_is_two_calls(ran: list[str]):
    block, x = Gated(), torch.randn(3, 40, 256)
    MLP.weights.keep_copies(block, False)
    with torch.no_grad():
        assert_close(MLP.layers.GatedMLP.forward(block, x), block(x), factor=2)
    assert ran == ["gated", "linears"] and MLP.weights.packed_nbytes(block) == 0


def test_projections_of_attention_are_one_call(ran: list[str]):
    project = sys.modules[ATTENTION.__name__ + ".projections"].project
    weights = [nn.Parameter(torch.randn(columns, 512)) for columns in (512, 128, 128)]
    x = torch.randn(1, 40, 512)
    cache = sys.modules[ATTENTION.__name__ + ".joined_weights"].cache
    for weight in weights:
        cache.refuse(weight)
    with torch.no_grad():
        parts = project(x, weights, [None] * 3)
    assert ran == ["linears"]
    for part, weight in zip(parts, weights, strict=True):
        assert_close(part, exact(x, weight, None))


def test_what_is_compiled_does_not_depend_on_whose_copies_are_refused() -> None:
    cache = sys.modules[LINEAR.__name__ + ".few_or_many"].many_rows.cache
    compiled: list[object] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        compiled.append(graph)
        return graph

    torch.compiler.reset()
    module, other = nn.Linear(8, 8), nn.Linear(8, 8)
    x = torch.ones(2, 8)

    def asked(x: Tensor) -> Tensor:
        return x - 1 if cache.is_refused(module.weight) or cache.refuses() else x + 1

    call = torch.compile(asked, backend=backend)
    cache.refuse(other.weight)
    assert torch.equal(call(x), x + 1)
    cache.refuse(module.weight)
    assert torch.equal(call(x), x + 1)
    cache.allow(module.weight)
    cache.allow(other.weight)
    assert torch.equal(call(x), x + 1)
    torch.compiler.reset()
    assert len(compiled) == 1
