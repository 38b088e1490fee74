"""Import a module, run the graph on the oracle, and compare with what the module itself gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from packaging.version import Version
from torch.utils import _pytree as pytree

from kernels_hub.compiler import evaluate, parse_graph, print_graph, verify
from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.importers.torch_export import import_torch_program

TOLERANCE = {torch.float64: 1e-10, torch.float32: 5e-6, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""Largest error over the largest magnitude, after as many roundings as a small model has."""


class Function(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def assert_matches(actual, expected, tolerance=None):
    """Same dtype and shape; integers equal, floats up to the dtype's tolerance, NaN and infinities in place."""
    assert actual.shape == tuple(expected.shape), f"{actual.shape}, expected {tuple(expected.shape)}"
    assert actual.dtype.name == str(expected.dtype).removeprefix("torch."), (
        f"{actual.dtype}, expected {expected.dtype}"
    )
    if expected.dtype.is_complex:
        parts = np.stack([actual.real, actual.imag], -1)
        assert_matches(parts, torch.view_as_real(expected.resolve_conj()), tolerance)
        return
    if not expected.dtype.is_floating_point:
        np.testing.assert_array_equal(actual, expected.numpy())
        return
    wanted, got = expected.detach().double().numpy(), np.asarray(actual, np.float64)
    finite = np.isfinite(wanted)
    there, here = np.where(finite, 0, wanted), np.where(finite, 0, got)
    elsewhere = np.argwhere(~np.equal(there, here) & ~(np.isnan(there) & np.isnan(here)))
    assert not elsewhere.size, (
        "not finite in other places, at "
        + ", ".join(
            f"{tuple(map(int, at))}: {got[tuple(at)]} for {wanted[tuple(at)]}" for at in elsewhere[:4]
        )
        + f"; {len(elsewhere)} of {got.size}"
    )
    if finite.any():
        error = np.abs(got - wanted)[finite].max()
        bound = (tolerance or TOLERANCE[expected.dtype]) * max(np.abs(wanted[finite]).max(), 1e-3)
        assert error <= bound, f"largest error {error:.3g}, allowed {bound:.3g}"


def check(module, args, kwargs=None, *, others=(), tolerance=None, **options):
    """The program of a module, after it gave what the module gives on its examples and on other arguments."""
    program = import_torch_program(module, args, kwargs, **options)
    verify(program.graph)
    for given, named in ((args, kwargs or {}), *others):
        with torch.no_grad():
            expected = module(*given, **named)
        result = program.unflatten(evaluate(program.graph, program.flatten(given, named)))
        wanted, spec = pytree.tree_flatten(expected)
        got = pytree.tree_leaves(result)
        assert len(got) == len(wanted), spec
        for one, other in zip(got, wanted, strict=True):
            if isinstance(other, torch.Tensor):
                assert_matches(one, other, tolerance)
            else:
                assert one == other
    return program


def check_function(function, *args, **options):
    """As `check`, of a function."""
    return check(Function(function), args, **options)


def round_trips(graph):
    """Whether the graph's text parses to the same text."""
    text = print_graph(graph, data=True)
    return print_graph(parse_graph(text), data=True) == text


@contextmanager
def as_far_as_pytorch_traces() -> Iterator[None]:
    """Skip what a release before 2.15 traces wrongly or not at all; of others nothing is forgiven."""
    try:
        yield
    except ImportFailure as error:
        untraced = any(
            words in str(error) for words in ("torch.export cannot trace", "this release of PyTorch")
        )
        if not untraced or Version(torch.__version__) >= Version("2.15"):
            raise
        pytest.skip(f"needs a later release of PyTorch: {str(error)[:100]}")
