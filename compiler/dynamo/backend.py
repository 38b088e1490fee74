"""The backend: Dynamo's graph through AOTAutograd, and each graph of ATen ops to kernels, or to a fallback.

    torch.compile(model, backend="kernels_hub", mode="max-autotune", options={"engines": ("cpp",)})

AOTAutograd gives functional graphs: it writes what the model wrote in place, and makes views of arguments, around them.
Found through the entry point "torch_dynamo_backends" of the name "kernels_hub".
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import _disable_current_modes

from kernels_hub.compiler.dynamo.compiled import CompiledGraph
from kernels_hub.compiler.dynamo.fallback import Argument, Boxed, eager, inductor
from kernels_hub.compiler.dynamo.options import Options
from kernels_hub.compiler.dynamo.size_guards import make_equal, make_lengths
from kernels_hub.compiler.dynamo.statistics import GraphRecord, flops_of, statistics
from kernels_hub.compiler.engines.devices import find_device
from kernels_hub.compiler.errors import CompilerError, ImportFailure
from kernels_hub.compiler.importers.aten_ops import handler_of
from kernels_hub.compiler.importers.torch_aten import AtenGraph, import_aten
from kernels_hub.compiler.plan.selection import Filter
from kernels_hub.compiler.settings import Settings

if TYPE_CHECKING:
    from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta
    from torch._ops import OpOverload
    from torch.fx import GraphModule

    from kernels_hub.compiler.engines.engine import Device

_LOGGER = logging.getLogger(__name__)
_NUMBERS = itertools.count()


def kernels_hub(
    module: GraphModule,
    examples: Sequence[Argument],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., object]:
    """What torch.compile asks of a backend: see `Options` for mode and options."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    work = _Work(Options.of(mode, options), module, examples)
    backend = aot_autograd(
        fw_compiler=functools.partial(work.compile, kind="forward"),
        bw_compiler=functools.partial(work.compile, kind="backward"),
        inference_compiler=functools.partial(work.compile, kind="inference"),
        decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition,
    )
    made: Callable[..., object] = backend(module, examples)
    return made


@functools.cache
def decompositions() -> dict[OpOverload, Callable[..., object]]:
    """PyTorch's own, of ops that the importer has no handler for: to core ATen, and of all gradients."""
    from torch._decomp import core_aten_decompositions, decomposition_table
    from torch._ops import OpOverload

    gradients = {op: rule for op, rule in decomposition_table.items() if "backward" in str(op)}
    return {
        op: rule
        for op, rule in {**gradients, **core_aten_decompositions()}.items()
        if isinstance(op, OpOverload) and handler_of(str(op).removeprefix("aten.")) is None
    }


class _Work:
    """The graphs of one graph of Dynamo's: one of inference, or a forward and its backward."""

    def __init__(self, options: Options, module: GraphModule, examples: Sequence[Argument]) -> None:
        self.options = options
        self.name = f"graph {next(_NUMBERS)}"
        nodes = module.graph.find_nodes(op="placeholder")
        self._static = {
            index: one
            for index, (node, one) in enumerate(zip(nodes, examples, strict=True))
            if (node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type")
            and isinstance(one, torch.Tensor)
            and type(one) in _PLAIN
        }
        """Arguments of Dynamo's graph that are parameters and buffers of modules."""

    def compile(self, module: GraphModule, examples: Sequence[Argument], *, kind: str) -> Boxed:
        """One graph of ATen ops, compiled or not."""
        options = self.options
        ops = sum(node.op == "call_function" for node in module.graph.nodes)
        flops = flops_of(module.graph)
        made: Boxed
        reason = ""
        try:
            if kind != "inference" and not options.training:
                raise CompilerError("it is of training, and training=False was asked for")
            with _disable_current_modes(), torch.no_grad():  # AOTAutograd's, of fake tensors
                made = self._compiled(module, kind)
        except Exception as error:  # a defect here is no reason to fail the model
            if options.fallback == "error":
                raise CompilerError(f"{self.name} ({kind}, {ops} ops): {_line(error)}") from error
            reason = _line(error)
        if not reason:
            statistics.add(GraphRecord(self.name, kind, "kernels_hub", ops, flops))
            return made
        backend: str = options.fallback
        if backend == "inductor":
            try:
                made = inductor(module, examples, kind=kind)
            except Exception as error:  # noqa: BLE001  (no compiler, or anything else)
                backend, reason = "eager", f"{reason}; inductor: {_line(error)}"
        if backend == "eager":
            made = eager(module)
        _LOGGER.warning(
            "torch.compile: %s (%s, %d ops) runs on %s: %s", self.name, kind, ops, backend, reason
        )
        statistics.add(GraphRecord(self.name, kind, backend, ops, flops, reason))
        return made

    def _compiled(self, module: GraphModule, kind: str) -> CompiledGraph:
        options = self.options
        placeholders = module.graph.find_nodes(op="placeholder")
        device = _device(placeholders)
        only = Filter(options.engines, frozenset(options.exclude_notes), options.workspace_limit)
        settings = Settings(device, only, options.heuristic, options.max_shapes, options.cache)
        weights = self._weights(placeholders) if kind == "inference" and options.weights != "inputs" else {}
        aten = self._imported(module, weights, kind)
        original = eager(module)
        return CompiledGraph(aten, settings, weights, original, follow=options.weights == "followed")

    def _imported(self, module: GraphModule, weights: Mapping[int, torch.Tensor], kind: str) -> AtenGraph:
        """The graph; sizes that have to be equal are, once Dynamo checks that at each call."""
        placeholders = module.graph.find_nodes(op="placeholder")
        may_guard = kind != "backward"  # which is compiled when it first runs, too late for guards
        if may_guard:
            make_lengths(placeholders)
        asked: set[tuple[object, object]] = set()
        while True:
            try:
                return import_aten(module, weights, self.name, aliases=_sharing(kind))
            except ImportFailure as error:
                pairs = set(error.unequal) - asked  # what is a guard, and still not proven, stays so
                asked |= pairs
                if not (may_guard and make_equal(pairs, placeholders)):
                    raise

    def _weights(self, placeholders: Sequence[torch.fx.Node]) -> dict[int, torch.Tensor]:
        """Arguments of a graph that are weights of the model, which it does not write."""
        meta = _forward_metadata()
        if meta is None:
            return {}
        written = {index for index, one in enumerate(meta.input_info) if one.mutates_data}
        tensors = {}
        for position, node in enumerate(placeholders):
            source = getattr(node.meta.get("desc"), "idx", -1)
            tensor = self._static.get(source) if position not in written else None
            example = node.meta.get("val")
            if tensor is not None and example is not None and tensor.shape == example.shape:
                tensors[position] = tensor
        return tensors


def _forward_metadata() -> ViewAndMutationMeta | None:
    """What AOTAutograd knows of the graph that it compiles; None outside of it."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    return None if context is None else context.fw_metadata


def _sharing(kind: str) -> list[int] | None:
    """Which results of a graph have to share memory, None for all: those of the model that AOTAutograd does not make
    itself, of an argument or of another result; not what a backward is to have, and no gradients.
    """
    if kind == "backward":
        return []
    meta = _forward_metadata()
    if kind == "inference" or meta is None:
        return None
    first = meta.num_mutated_inp_runtime_indices
    return [place for place, of in enumerate(meta.output_info, first) if of.output_type.name in _AS_COMPILED]


_AS_COMPILED = frozenset({"non_alias", "unsafe_view_alias", "custom_function_view"})
"""Kinds of results that AOTAutograd hands on as a compiled forward gives them."""
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})


def _device(placeholders: Sequence[torch.fx.Node]) -> Device:
    """Where the arguments are. Raises CompilerError where they are in several places."""
    tensors = (node.meta.get("val") for node in placeholders)
    devices = {tensor.device for tensor in tensors if isinstance(tensor, torch.Tensor)}
    if len(devices) > 1:
        raise CompilerError(f"its arguments are on {' and '.join(sorted(map(str, devices)))}")
    return find_device(next(iter(devices)) if devices else "cpu")


def _line(error: BaseException) -> str:
    """The first two lines of an error, as one."""
    return " ".join(str(error).split("\n")[:2]).strip() or type(error).__name__
