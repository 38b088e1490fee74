"""Compiles what is exported: to C++, and to Triton where that takes all of the graph."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernels_hub.compiler.codegen.cpp.translation_unit import CppCode, generate
from kernels_hub.compiler.codegen.triton.source import TritonCode
from kernels_hub.compiler.errors import CompilerError, EngineError
from kernels_hub.compiler.export.recorded_attributes import recorded
from kernels_hub.compiler.export.source import Example, Source, evaluating
from kernels_hub.compiler.export.table import Parts
from kernels_hub.compiler.export.triton_program import triton_program, triton_schedule
from kernels_hub.compiler.export.tuned import Tuned, chosen
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.rewrite.fold import FoldParameters
from kernels_hub.compiler.rewrite.pipeline import PIPELINE, rewrite
from kernels_hub.compiler.rewrite.rule import Options as RewriteOptions
from kernels_hub.compiler.runtime.arguments import dtype_of
from kernels_hub.compiler.schedule.choices import Choices
from kernels_hub.compiler.schedule.complex_pairs import in_pairs
from kernels_hub.compiler.schedule.inlining import refused
from kernels_hub.compiler.schedule.kernel import Schedule
from kernels_hub.compiler.schedule.ordered import OF_LENGTHS
from kernels_hub.compiler.schedule.schedule import schedule

DTYPES = ("float32", "float16", "bfloat16", "float64")


_PASSES = tuple(one for one in PIPELINE if not isinstance(one, FoldParameters))


@dataclass(frozen=True)
class Programs:
    """Those of one dtype. found: as imported. triton: None where there is none, for the reason `without_triton`."""

    dtype: str
    found: Source
    native: Parts
    triton: Parts | None
    without_triton: str = ""

    @property
    def graph(self) -> Graph:
        """After rewriting."""
        return self.native.source.graph


def compile_programs(
    found: Source, layer: str, dtype: str, label: str, *, triton: bool, tuned: Sequence[Tuned] = ()
) -> Programs:
    """Rewrite, schedule, generate. Raises EngineError with all values that no C++ kernel computes."""
    usual = rewrite(found.graph, _PASSES).graph
    for_cpu, for_gpu = (chosen(tuned, dtype, gpu=gpu) for gpu in (False, True))
    graph = for_cpu.graph_for(usual) if for_cpu is not None else usual
    _check_ops(graph)
    lowered = replace(found, graph=graph)
    modules = found.modules or ()
    if found.modules is None and found.example is not None:
        with evaluating(found.example.module):
            modules = recorded(found.example, by_layout=found.by_layout, remembered=found.remembered)
    scheduled = schedule(in_pairs(graph), choices=Choices.of(for_cpu.choices if for_cpu is not None else {}))
    native = Parts(layer, lowered, scheduled, native_program(scheduled), modules, label)
    if not triton:
        return Programs(dtype, found, native, None, "it was not asked for")
    for_triton = for_gpu.graph_for(usual) if for_gpu is not None else _for_gpu(usual, found.graph)
    launched = triton_schedule(for_triton)
    if isinstance(launched, str):
        return Programs(dtype, found, native, None, launched)
    try:
        program = _without_folders(triton_program(launched))
        parts = replace(native, source=replace(found, graph=for_triton), schedule=launched, program=program)
        return Programs(dtype, found, native, parts)
    except CompilerError as error:
        return Programs(dtype, found, native, None, str(error))


def _for_gpu(usual: Graph, found: Graph) -> Graph:
    """The graph for GPUs, on which weights of few bits become floats before products."""
    if not any(node.op.name == "matmul_few_bits" for node in usual.live()):
        return usual
    return rewrite(found, _PASSES, options=RewriteOptions(few_bits=False)).graph


def examples_of(example: Example, dtypes: Sequence[str]) -> dict[str, Example]:
    """The example in each dtype: a copy of the module, and its arguments. Raises CompilerError for an unknown one."""
    if not dtypes:
        raise CompilerError("dtypes is empty; leave it out to compile for the dtype that the module has")
    found = {}
    for name in dict.fromkeys(dtypes):
        if name not in DTYPES:
            raise CompilerError(
                f"a layer cannot be compiled for dtype {name!r}; it can be for {', '.join(DTYPES)}"
            )
        found[name] = _converted(example, dtype_of(name))
    return found


def dtype_name(example: Example) -> str:
    """The dtype of most of a module's weights; of its arguments where it has none."""
    leaves: list[Any] = [*example.module.parameters(), *example.module.buffers()]
    leaves += pytree.tree_leaves((example.args, dict(example.kwargs)))
    kinds = [leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    return str(max(kinds, key=kinds.count, default=torch.float32)).removeprefix("torch.")


def _converted(example: Example, dtype: torch.dtype) -> Example:
    def cast(one: object) -> Any:
        return one.to(dtype) if isinstance(one, torch.Tensor) and one.is_floating_point() else one

    module: nn.Module = copy.deepcopy(example.module).to(dtype)
    args, kwargs = pytree.tree_map(cast, (tuple(example.args), dict(example.kwargs)))
    return replace(example, module=module, args=args, kwargs=kwargs)


P = TypeVar("P", CppCode, TritonCode)


def _without_folders(program: P) -> P:
    """Comments that name lines of a model's source say its file, not where that lies on this machine."""
    return replace(program, source=re.sub(r"(?<=[ ,])/[^\s,:]*/(?=[^\s/,:]+\.py:\d)", "", program.source))


def native_program(scheduled: Schedule) -> CppCode:
    """The C++ of a schedule, with the function that layers ask before each call whether weights are what they were."""
    return _without_folders(generate(scheduled, headers=("module_guard.h",)))


def _check_ops(graph: Graph) -> None:
    if found := refused(in_pairs(graph), regions=True):
        lines = [
            f"{value.op_name}: {reason}; from {value.node.origin or 'the graph'}"
            for value, reason in found.items()
        ]
        count = "1 value" if len(lines) == 1 else f"{len(lines)} values"
        error = EngineError(
            f"graph {graph.name} has {count} that no C++ kernel computes:\n  " + "\n  ".join(lines)
        )
        error.of_sizes = all(one.op_name in OF_LENGTHS for one in found)
        raise error
