"""One row is all that a new pointwise op takes: it is imported, differentiated, judged, compiled and run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels_hub.compiler import Graph, compile, differentiate, evaluate, import_torch
from kernels_hub.compiler.codegen.targets import TARGETS
from kernels_hub.compiler.importers.onnx_node import importer_of
from kernels_hub.compiler.ir.op import formulas, spelled
from kernels_hub.compiler.ir.ops import OPS
from kernels_hub.compiler.ir.ops.pointwise import pointwise
from kernels_hub.compiler.judging.bounds import bounded
from kernels_hub.compiler.runtime.toolchain import find_compiler
from kernels_hub.compiler.schedule.schedule import schedule
from tests.compiler.oracle import array, assert_same

HYPOT = pointwise(
    "hypot",
    "sqrt(a**2 + b**2) without overflow on the way",
    np.hypot,
    ("float",),
    arity=2,
    cost=20,
    spellings=spelled(
        cpp="std::hypot({0}, {1})",
        triton="libdevice.hypot({0}, {1})",
        metal="metal::precise::sqrt({0} * {0} + {1} * {1})",
    ),
    derivative=formulas("g * a / y; g * b / y", lambda s: s.g * s.a / s.y, lambda s: s.g * s.b / s.y),
    torch=("hypot.default",),
    onnx=("Hypot",),
    source="C",
)


class Lengths(torch.nn.Module):
    """sqrt(x**2 + y**2) + x."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.hypot(x, y) + x


@pytest.fixture(autouse=True)
def hypot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "hypot", HYPOT)


def _graph(dtype: str = "float32") -> Graph:
    graph = Graph("lengths")
    graph.output("y", graph.input("a", ("n",), dtype).binary("hypot", graph.input("b", ("n",), dtype)))
    return graph


def test_importers_know_it():
    graph = import_torch(Lengths(), (torch.ones(3), torch.ones(3)))
    assert [node.op.name for node in graph.live()].count("hypot") == 1
    assert importer_of("", "Hypot", 18) is not None


def test_torch_does_not_decompose_it(monkeypatch):
    """Nor where it would, and another op of the program has to be decomposed."""
    row = pointwise(
        "logaddexp", "log(exp(a) + exp(b))", np.logaddexp, ("float",), arity=2, torch=("logaddexp.default",)
    )
    later = pointwise("later", "of another PyTorch", np.negative, ("float",), torch=("no_such_op.default",))
    monkeypatch.setitem(OPS, row.name, row)
    monkeypatch.setitem(OPS, later.name, later)

    class Entropies(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.logaddexp(x, y) + torch.special.entr(x)

    graph = import_torch(Entropies(), (torch.ones(3), torch.ones(3)))
    assert [node.op.name for node in graph.live()].count("logaddexp") == 1


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("cpp", marks=pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")),
        "library",
    ],
)
def test_engines_run_it(engine, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path))
    x, y = array(40), array(40, seed=1)
    run = compile((Lengths(), (torch.from_numpy(x), torch.from_numpy(y)), {}), "cpu", engines=(engine,))
    assert_same(run(torch.from_numpy(x), torch.from_numpy(y)).numpy(), np.hypot(x, y) + x)


def test_every_target_spells_it():
    for target in TARGETS.values():
        text = target.spellings.of(HYPOT, "float")
        assert text is not None
        assert text.partition("(")[0] in target.generate(schedule(_graph())).source


def test_it_has_a_gradient():
    both = differentiate(_graph("float64"))
    inputs = {"a": np.array([3.0, -1.0]), "b": np.array([4.0, 2.0])}
    given = both.backward_inputs(inputs, evaluate(both.forward, inputs), {"y": np.ones(2)})
    got, length = evaluate(both.backward, given), np.hypot(inputs["a"], inputs["b"])
    assert_same(got["grad.a"], inputs["a"] / length)
    assert_same(got["grad.b"], inputs["b"] / length)


def test_its_error_is_bounded():
    """Narrowly, as that of a smooth function; an op of which nothing is known gets a share of the largest magnitude."""
    inputs = {"a": np.array([1.0, 1e6], np.float32), "b": np.array([2.0, 1e6], np.float32)}
    error = bounded(_graph(), inputs).bounds["y"]
    assert 0 < error[0] < 1e-5
