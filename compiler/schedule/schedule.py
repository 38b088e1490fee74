"""Schedules a graph: from values to kernels of loop nests, in execution order."""

from __future__ import annotations

import itertools

from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.types import BOOL, DType
from kernels_hub.compiler.schedule.anchors import NotStrided, make_anchor
from kernels_hub.compiler.schedule.buffers import NAMES, copy_kernel
from kernels_hub.compiler.schedule.choices import Choices
from kernels_hub.compiler.schedule.expand import expanded, with_inputs_laid_out
from kernels_hub.compiler.schedule.fuse import Fusion, FusionGroup
from kernels_hub.compiler.schedule.index import Loop, row_major
from kernels_hub.compiler.schedule.inlining import Inlining, unsupported
from kernels_hub.compiler.schedule.kernel import (
    Anchor,
    Buffer,
    Convolution,
    Kernel,
    Nest,
    Order,
    Role,
    Schedule,
    Store,
)
from kernels_hub.compiler.schedule.layout import StrideOrder, stands_alone
from kernels_hub.compiler.schedule.loop_plan import plans_by_place
from kernels_hub.compiler.schedule.lower import SCATTERS
from kernels_hub.compiler.schedule.partial import with_partial_reductions
from kernels_hub.compiler.schedule.planned_nest import with_plans
from kernels_hub.compiler.schedule.scatter import needed, updates
from kernels_hub.compiler.schedule.scores import ANCHOR_DTYPES
from kernels_hub.compiler.schedule.split import MOST_LAUNCHES, MOST_PARTS, parts
from kernels_hub.compiler.schedule.stages import has_regions, schedule_stages


def schedule(
    graph: Graph,
    anchors: frozenset[DType] = ANCHOR_DTYPES,
    choices: Choices | None = None,
    most_parts: int = MOST_PARTS,
    *,
    cpu: bool = True,
) -> Schedule:
    """The schedule of a graph. anchors: dtypes of the products, convolutions and attentions that are anchors of nests.

    choices: what is open otherwise; the usual ones by default. most_parts: see `split`. cpu: whether it is for
    one: convolutions by blocks of pixels (`expanded`), and more values in memory (`Inlining`).

    Raises EngineError where it has values that no nest can make (`inlining.unsupported`).
    """
    choices = choices or Choices()
    if has_regions(graph):

        def again(part: Graph) -> Schedule:
            return schedule(part, anchors, choices, most_parts, cpu=cpu)

        return schedule_stages(graph, choices, again)
    graph = expanded(graph, anchors, cpu=cpu)
    graph = with_partial_reductions(graph, choices.split)
    if refused := unsupported(graph, anchors):
        value, reason = next(iter(refused.items()))
        raise EngineError(f"graph {graph.name}: {value} ({value.node!r}) cannot be scheduled: {reason}")
    rows: frozenset[Value] = frozenset()
    in_rows = choices.layout == "rows" or (choices.layout == "auto" and stands_alone(graph))
    if not in_rows:
        graph = with_inputs_laid_out(graph)
    inlining = Inlining(graph, anchors, choices, cpu=cpu)
    if in_rows:
        rows = frozenset(inlining.kinds)
    while True:
        layout = StrideOrder(inlining, rows)
        try:
            return _Builder(graph, inlining, layout, choices, most_parts).build()
        except NotStrided as error:
            if inlining.orders.pop(error.value, None) is None:
                if layout.is_channels_last(error.value):
                    rows |= {error.value}
                else:
                    inlining.force(error.operand)


class _Builder:
    """One attempt, with one layout."""

    def __init__(
        self, graph: Graph, inlining: Inlining, layout: StrideOrder, choices: Choices, most_parts: int
    ) -> None:
        self.graph, self.inlining, self.layout, self.choices = graph, inlining, layout, choices
        self.most_parts = most_parts
        self.buffers: dict[Value, Buffer] = {}
        self.counts = dict.fromkeys(Role, 0)
        self.prepared = _prepared(graph)
        self.outputs = {value: name for name, value in reversed(graph.outputs.items())}
        for value in (*graph.inputs.values(), *graph.parameters.values()):
            self.buffer_of(value)

    def build(self) -> Schedule:
        apart = self.choices.places("apart")
        most_parts = self.most_parts if self.most_parts > MOST_LAUNCHES else 1
        fusion = Fusion(self.inlining, self.buffer_of, self._anchor, self.prepared, apart, most_parts)
        groups = fusion.ordered()
        made = {group.number: self._kernel(group, set(group.values)) for group in groups}
        needed = {buffer for kernel in made.values() for buffer in kernel.reads()}
        kernels = [(group, self._stored(group, made[group.number], needed)) for group in groups]
        outputs: dict[str, Buffer] = {}
        for name, value in self.graph.outputs.items():
            buffer = self.buffer_of(value)
            assert buffer is not None
            outputs[name] = buffer
        copies = self._copies(outputs)
        return Schedule(
            self.graph.name,
            (*self.buffers.values(), *(copy for copy, _ in copies)),
            tuple(kernel for group, kernel in kernels if group.prepared),
            with_plans(
                [
                    *(kernel for group, kernel in kernels if not group.prepared),
                    *(kernel for _, kernel in copies),
                ],
                plans_by_place(self.choices.nests),
            ),
            {name: self.buffers[value] for name, value in self.graph.inputs.items()},
            outputs,
            self.choices,
            tuple(fusion.joined),
            tuple(range(len(self.inlining.shared))),
            tuple(range(len(self.inlining.products))),
        )

    def buffer_of(self, value: Value) -> Buffer | None:
        """The memory of a value that has some."""
        known = self.buffers.get(value)
        if known is None and self.inlining.is_stored(value):
            role = self._role(value)
            strides = self.layout.strides(value) if value in self.inlining.kinds else row_major(value.shape)
            name = f"{NAMES[role]}{self.counts[role]}"
            self.counts[role] += 1
            known = self.buffers[value] = Buffer(name, role, value.dtype, value.shape, strides, value)
        return known

    def _role(self, value: Value) -> Role:
        if value.op_name == "input":
            return Role.INPUT
        if value.op_name == "parameter":
            return Role.PARAMETER
        if value.array is not None and value not in self.inlining.kinds:
            return Role.CONSTANT
        if value in self.outputs and not self.layout.is_channels_last(value):
            return Role.OUTPUT  # one that lies channels last is copied at the end
        return Role.PREPARED if value in self.prepared else Role.SCRATCH

    def _anchor(self, value: Value, loops: tuple[Loop, ...], name: str) -> Anchor:
        return make_anchor(value, loops, name, self.buffer_of)

    def _stored(self, group: FusionGroup, kernel: Kernel, needed: set[Buffer]) -> Kernel:
        """The kernel with stores only of what others read and of outputs; what is not stored loses its buffer."""
        stored = {
            value for value in group.values if value in self.outputs or self.buffers.get(value) in needed
        }
        for value in group.values:
            if value not in stored:
                self.buffers.pop(value, None)
        return kernel if stored == set(group.values) else self._kernel(group, stored)

    def _kernel(self, group: FusionGroup, stored: set[Value]) -> Kernel:
        nests = []
        for piece in parts(group, self.most_parts):
            loops, body = piece.loops, piece.body
            stores: dict[Store, None] = {}
            for value, made in itertools.product(group.values, piece.made):
                if value in stored:
                    buffer, index = self.buffer_of(value), made[value]
                    assert buffer is not None
                    stores[Store(buffer, buffer.place(index), body.names[value, index, ()])] = None
            outer = [loop for axis, loop in enumerate(loops) if axis not in group.inner]
            if isinstance(group.anchor, Convolution):
                outer = [outer[0], *outer[2:], outer[1]]
            if isinstance(group.anchor, Order) and group.anchor.kth is None:
                outer.append(outer.pop(group.anchor.axis))
            inner = (*(loops[axis] for axis in sorted(group.inner)), *group.extra)
            nests.append(Nest(tuple(outer), inner, needed(body.statements, [*stores]), group.anchor))
        if group.values[0].op_name in SCATTERS:
            nests.append(updates(group.values[0], group.number, self.buffer_of))
        name = f"k{group.number}_{_hint(group)}"
        return Kernel(name, tuple(nests), tuple(dict.fromkeys(value.node.origin for value in group.values)))

    def _copies(self, outputs: dict[str, Buffer]) -> list[tuple[Buffer, Kernel]]:
        """Outputs that are inputs, weights, constants or outputs under another name get memory of their own."""
        copies = []
        taken: set[Buffer] = set()
        for name, buffer in outputs.items():
            if buffer.role is Role.OUTPUT and buffer not in taken:
                taken.add(buffer)
                continue
            number, shape = self.counts[Role.OUTPUT], buffer.shape
            copy = Buffer(f"output{number}", Role.OUTPUT, buffer.dtype, shape, row_major(shape))
            self.counts[Role.OUTPUT] += 1
            copies.append((copy, copy_kernel(buffer, copy)))
            outputs[name] = copy
            taken.add(copy)
        return copies


def _prepared(graph: Graph) -> frozenset[Value]:
    """Values that depend on weights and constants alone, and are no outputs.

    Masks of positions alone are none: attention that sees how they are made skips what they hide.
    """
    values: set[Value] = set()
    of_weights: set[Value] = set()
    outputs = set(graph.outputs.values())
    for node in graph.live():
        if node.op.name in {"input", "random_bits"} or node.symbols():
            continue
        if all(operand in values for operand in node.operands):
            if node.op.name == "parameter" or any(operand in of_weights for operand in node.operands):
                of_weights.update(node.results)
            elif any(value.dtype is BOOL for value in node.results) and node.operands:
                continue
            values.update(value for value in node.results if value not in outputs)
    return frozenset(values)


def _hint(group: FusionGroup) -> str:
    """A word or two for what a group does."""
    words = []
    for value in group.values:
        word = (
            value.attrs["callee"].name if value.op_name == "call" else value.op_name.removeprefix("reduce_")
        )
        if word not in words:
            words.append(word)
    return "_".join(words[:4])
