"""Gradients that are easily got wrong, derived of what `import_torch` gives, against autograd; element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kernels_hub.compiler import evaluate, import_torch, rebuild, rewrite
from kernels_hub.compiler.autodiff import differentiate
from kernels_hub.compiler.errors import CompilerError, DerivativeError
from kernels_hub.compiler.importers.torch_program import array_of
from kernels_hub.compiler.ir.graph import Graph
from tests.compiler.autodiff.tricky_modules import TRICKY, Tricky

RIGHT = {name: case for name, case in TRICKY.items() if not case.refused}
REFUSED = {name: case for name, case in TRICKY.items() if case.refused}


def made(case: Tricky) -> nn.Module:
    torch.manual_seed(4)
    return case.make().double()


def graph_of(module: nn.Module, case: Tricky) -> Graph:
    args = tuple(one.clone() for one in case.args)
    return import_torch(module, args, **case.options)


@pytest.mark.parametrize("case", RIGHT.values(), ids=RIGHT)
def test_gradients_are_those_of_autograd(case: Tricky):
    module = made(case)
    graph = graph_of(module, case)
    weights = {
        name: one for name, one in module.named_parameters(remove_duplicate=False) if one.requires_grad
    }
    wrt = [name for name, one in graph.inputs.items() if one.dtype.is_float]
    both = differentiate(graph, [*wrt, *(name for name in weights if name in graph.parameters)])
    state = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
    for args in (case.args, *case.others):
        leaves = [one.clone().requires_grad_(one.is_floating_point()) for one in args]
        results = _results(module(*leaves))
        cotangents = [torch.randn(one.shape, dtype=one.dtype) for one in results]
        asked = {name: leaf for name, leaf in zip(graph.inputs, leaves, strict=True) if name in wrt} | weights
        module.zero_grad()
        pairs = [(one, g) for one, g in zip(results, cotangents, strict=True) if one.requires_grad]
        torch.autograd.backward([one for one, _ in pairs], [g for _, g in pairs])
        expected = [one.grad for one in asked.values()]
        parameters = {name: array_of(state[name]) for name in graph.parameters if name in state}
        inputs = {name: array_of(leaf) for name, leaf in zip(graph.inputs, leaves, strict=True)}
        outputs = evaluate(both.forward, inputs, weights=parameters)
        named = [name for name in both.outputs if not name.startswith("mutated.")]
        for one, name in zip(results, named, strict=True):
            _assert_same(name, outputs[name], array_of(one))
        given = {name: array_of(one) for name, one in zip(named, cotangents, strict=True)}
        given |= {name: np.zeros_like(outputs[name]) for name in both.outputs if name not in given}
        found = evaluate(both.backward, both.backward_inputs(inputs, outputs, given), weights=parameters)
        for (name, leaf), wanted in zip(asked.items(), expected, strict=True):
            tied = [other for other, one in weights.items() if one is leaf] or [name]
            ours = next((found[both.gradients[one]] for one in tied if one in both.gradients), None)
            zeros = np.zeros(leaf.shape)
            _assert_same(name, zeros if ours is None else ours, zeros if wanted is None else array_of(wanted))


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_derived_says_why(case: Tricky):
    with pytest.raises(CompilerError, match=case.refused):
        differentiate(graph_of(made(case), case))


def test_a_graph_rewritten_to_run_is_not_differentiated():
    module = made(TRICKY["detach"])
    rewritten = rewrite(graph_of(module, TRICKY["detach"])).graph
    assert not {value.op_name for value in rewritten.values} & {"stop_gradient", "with_derivative"}
    with pytest.raises(DerivativeError, match="was rewritten to be run"):
        differentiate(rebuild(rewritten).graph)


def _results(found: Any) -> list[torch.Tensor]:
    return list(found) if isinstance(found, tuple) else [found]


def _assert_same(name: str, found: Any, expected: Any) -> None:
    """NaN and infinities at the same places, and everything else to rounding in float64."""
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9, equal_nan=True, err_msg=name)
