"""Imports a module; where values of tensors decide its sizes or branches, a program of the example's values.

A vision tower that is given a grid of patches (`for t, h, w in grid_thw.tolist()`), packed sequences with their
offsets, a forward that asks a mask whether it hides anything: torch.export gives up there, as a trace has no values.
The program is of those of the example, then. Small arguments of whole numbers are compared at each call, and other ones
have a program of their own; all else that was asked is asserted by the program: see `importers.known_values`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import torch

from kernels_hub.compiler.errors import CompilerError, ImportFailure
from kernels_hub.compiler.export.source import Example, Source, from_module
from kernels_hub.compiler.importers.known_values import KnownValues, Recording, is_small
from kernels_hub.compiler.importers.torch_trace import arguments_of
from kernels_hub.compiler.ir.graph import Graph


def imported(example: Example, name: str, *, may_fix: bool = False) -> Source:
    """The source of a module's call; of its very values where it has to be. Raises ImportFailure as `from_module`.

    may_fix: see `Sizes.guard`.
    """
    try:
        source = from_module(example, name, may_fix=may_fix)
    except ImportFailure as error:
        recorded = _recorded(example)
        if not recorded.asks:
            raise
        found = _by_values(example, name, recorded, may_fix=may_fix)
        if found is None:
            error.of_sizes = error.of_sizes or may_fix
            raise
        return found
    if not _has_sizes_of_data(source.graph):
        return source
    found = _by_values(example, name, _recorded(example), may_fix=may_fix)
    return found or replace(source, asks_for_values=may_fix)


def _has_sizes_of_data(graph: Graph) -> bool:
    return any(node.op.defines is not None for node in graph.live())


def _by_values(example: Example, name: str, recorded: Recording, *, may_fix: bool) -> Source | None:
    """The source of a call's values; None where these do not help."""
    arguments: Mapping[str, torch.Tensor] = {
        path: one for path, one in arguments_of(example.module, example.args, example.kwargs) if is_small(one)
    }
    with suppress(CompilerError):
        values = KnownValues(example.module, arguments, recorded.answers)
        source = from_module(example, name, may_fix=may_fix, values=values)
        if values.asked != arguments.keys():
            asked = {path: one for path, one in arguments.items() if path in values.asked}
            values = KnownValues(example.module, asked, recorded.answers)
            source = from_module(example, name, may_fix=may_fix, values=values)
        return None if _has_sizes_of_data(source.graph) else source
    return None


def _recorded(example: Example) -> Recording:
    """What a call asks tensors for; nothing where it raises."""
    recording = Recording()
    try:
        memo: dict[int, object] = {id(one): one for one in example.module.parameters()}
        module = copy.deepcopy(example.module, memo)
        args, kwargs = copy.deepcopy((example.args, dict(example.kwargs)))
        with torch.no_grad(), recording:
            module(*args, **kwargs)
    except Exception:  # noqa: BLE001 - of the module; who traces it is told
        return Recording()
    return recording
