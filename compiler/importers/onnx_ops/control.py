# ruff: noqa: D103 (what an importer does is what ONNX says of its op)
"""If, Loop, Scan: resolved or written out where they can be, else ops with regions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.importers.onnx_messages import GraphProto
from kernels_hub.compiler.importers.onnx_node import OnnxNode, onnx_op
from kernels_hub.compiler.importers.onnx_sequences import Named, flat, regrouped, same_parts
from kernels_hub.compiler.importers.onnx_values import source_inputs
from kernels_hub.compiler.ir.counters import Counter, counter_of, step_of
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.ir.operators import same_shapes
from kernels_hub.compiler.ir.transform import extract

UNROLLED = 32
"""Trips of the longest loop that is written out."""
MOST_COUNTED = 1 << 14
"""Trips of the longest loop whose trips are counted by evaluating its condition."""
UNROLLED_SEQUENCES = 1024
"""The same where it carries a sequence: one that grows cannot be carried by an op."""


@onnx_op("If", since=1)
def if_(node: OnnxNode) -> Sequence[Named]:
    condition = node.input(0).reshape(())
    then, otherwise = node.subgraph("then_branch"), node.subgraph("else_branch")
    known = node.maybe_known(condition)
    if known is not None:
        return node.scope.inline(then if bool(known) else otherwise, (), "then" if bool(known) else "else")
    if node.scope.session.by_value and _is_told_by_scalars(node, condition):
        node.known(condition, "the condition")
    attempt = node.scope.attempt()
    try:
        captures = node.scope.captures(then, otherwise)
        (yes, given), (no, other) = (
            node.scope.region(body, (), captures, what)
            for body, what in ((then, "then"), (otherwise, "else"))
        )
        if len(given) != len(other):
            raise node.refuse(f"one branch gives {len(given)} values, the other {len(other)}")
        for a, b in zip(given, other, strict=True):
            if not same_parts(a, b):
                raise node.refuse(f"one branch gives {a.type}, the other {b.type}")
        operands = (condition, *flat([named for _, named in captures]))
        return regrouped(given, node.graph.add("if", operands, {"then": yes, "otherwise": no}).results)
    except CompilerError as error:
        reason = attempt.reason(error)
        attempt.undo()
        try:
            node.known(condition, "the condition")
        except CompilerError as unknown:
            unknown.args = (f"{unknown} (and as an op of its own: {reason})",)
            raise
        raise


def _is_told_by_scalars(node: OnnxNode, condition: Value) -> bool:
    """Whether a condition depends on nothing but inputs of one integer or truth value each."""
    told = source_inputs(condition, node.scope.outside)
    return bool(told) and all(
        one.type.size == 1 and not one.dtype.is_float and not one.dtype.is_complex for one in told
    )


@onnx_op("Loop", since=1)
def loop(node: OnnxNode) -> Sequence[Named]:
    body = node.subgraph("body")
    trips, first = node.optional(0), node.optional(1)
    carried = [node.operand(index) for index in range(2, len(node.operands))]
    count = node.maybe_known(trips)
    known = count is None or count.dtype != object
    limit = int(count.reshape(-1)[0]) if count is not None and known else None
    go_on = node.constant(value=True) if first is None else first
    start = node.maybe_known(go_on)
    few = limit is None or limit <= _most(carried)
    attempt = node.scope.attempt()
    if start is not None and (trips is None or count is not None) and known and few:
        written = _unrolled(node, body, limit, bool(start), carried)
        if written is not None:
            return written
        attempt.undo()
    try:
        return _as_op(node, body, carried)
    except CompilerError as error:
        reason = attempt.reason(error)
        attempt.undo()
        if not few:
            raise node.refuse(
                f"its {limit} trips are more than the {_most(carried)} that are written out, and as an op: {reason}"
            ) from error
        for value, what in ((trips, "the number of trips"), (first, "the first condition")):
            if value is not None:
                try:
                    node.known(value, what)
                except CompilerError as unknown:
                    unknown.args = (f"{unknown} (and as an op of its own: {reason})",)
                    raise
        for value in flat(carried):
            if node.maybe_known(value) is None:
                node.known(value, f"how the loop goes, which cannot be an op of its own ({reason}),")
        raise


def _most(carried: Sequence[Named]) -> int:
    """Trips that are written out at most."""
    return UNROLLED if all(isinstance(named, Value) for named in carried) else UNROLLED_SEQUENCES


def _unrolled(
    node: OnnxNode, body: GraphProto, trips: int | None, go_on: bool, carried: list[Named]
) -> list[Named] | None:
    """The loop written out, or None where it is too long, or how long is not known."""
    current, stacks, done = list(carried), [list[Value]() for _ in body.output[1 + len(carried) :]], 0
    condition = node.constant(go_on)
    while go_on and (trips is None or done < trips):
        if done >= _most(carried):
            return None
        results = node.scope.inline(body, (node.constant(done), condition, *current), f"trip {done}")
        condition = node.tensor(results[0], "whether to go on")
        known = node.maybe_known(condition)
        if known is None:
            return None
        go_on, done = bool(known), done + 1
        current = results[1 : 1 + len(carried)]
        for stack, value in zip(stacks, results[1 + len(carried) :], strict=True):
            stack.append(node.tensor(value, "a stacked result").unsqueeze(0))
    if stacks and not done:
        return None
    stacked = [node.graph.apply("concat", *stack, axis=0) for stack in stacks]
    return [*current, *stacked]


def _as_op(node: OnnxNode, body: GraphProto, carried: list[Named]) -> Sequence[Named]:
    """The op takes (i, carried…, captures…) and no condition: within a trip that is always true."""
    graph, scope = node.graph, node.scope
    captures = scope.captures(body)
    place, truth = node.constant(0), node.constant(value=True)
    region, results = scope.region(body, (place, truth, *carried), captures, "body")
    region = _without_condition(region)
    trips = node.constant((1 << 63) - 1) if node.optional(0) is None else node.input(0).reshape(())
    first = truth if node.optional(1) is None else node.input(1).reshape(())
    for before, after in zip(carried, results[1:], strict=False):
        if not _same(before, after):
            raise node.refuse(f"a carried value is {before.type} before and {after.type} after a trip")
    stacked = [node.tensor(result, "a stacked result") for result in results[1 + len(carried) :]]
    count: Dim = 0
    if stacked:
        count = _trips(node, region, trips, first, carried, captures)
        if region.outputs["0"].scalar is not True:  # counted: it need not ask any more
            region, trips, first = _going_on(region), graph.size(count), truth
    values = flat(carried)
    operands = (trips, first, *values, *flat([named for _, named in captures]))
    made = graph.add("loop", operands, {"body": region, "carried": len(values), "count": count})
    return regrouped([*carried, *stacked], made.results)


def _trips(
    node: OnnxNode,
    region: Graph,
    trips: Value,
    first: Value,
    carried: Sequence[Named],
    captures: Sequence[tuple[str, Named]],
) -> Dim:
    """How many trips a loop makes, which is how long its stacked results are. Raises what is not known."""
    if region.outputs["0"].scalar is True:
        known = node.known(trips, "the number of trips, which is how long the stacked results are,")
        count = known.reshape(-1)[0]
        return int(count) if known.dtype != object else count
    limit, start = node.maybe_known(trips), node.maybe_known(first)
    outside = (*flat(carried), *flat([named for _, named in captures]))
    counted: Dim | None = None
    if limit is not None and start is not None and limit.dtype != object:
        counted = _counted_trips(
            node, region, int(limit.reshape(-1)[0]), bool(start), outside, len(flat(carried))
        )
    if counted is None and limit is not None:
        most = limit.reshape(-1)[0] if limit.dtype == object else int(limit.reshape(-1)[0])
        counted = _asked_trips(node, region, most, first, outside, len(flat(carried)))
    if counted is None:
        raise node.refuse(
            "it may end early, and stacks results of which it is then not known how many there are"
        )
    return counted


def _counted_trips(
    node: OnnxNode, region: Graph, limit: int, go_on: bool, outside: Sequence[Value], carried: int
) -> int | None:
    """Trips of a loop whose condition only depends on what is known: run for its condition alone.

    outside: what the region's inputs but for the first, the trip, are at the first trip.
    """
    place, *inputs = region.inputs.values()
    following = dict(zip(inputs[:carried], list(region.outputs.values())[1:], strict=False))
    needed, waiting = {region.outputs["0"]}, [region.outputs["0"]]
    while waiting:  # what the condition depends on, through trips
        top = waiting.pop()
        for operand in (*top.operands, *([following[top]] if top in following else [])):
            if operand not in needed:
                needed.add(operand)
                waiting.append(operand)
    used = [one for one in inputs if one in needed]
    state = {
        one: node.maybe_known(value) for one, value in zip(inputs, outside, strict=True) if one in needed
    }
    if any(array is None or array.dtype == object for array in state.values()):
        return None
    if any(one.op_name == "parameter" or Trait.REGION in one.op.traits for one in needed):
        return None
    kept = [one for one in used if one in following]
    shown = {"go on": region.outputs["0"], **{str(n): following[one] for n, one in enumerate(kept)}}
    step = extract(region, {"trip": place, **{f"in{n}": one for n, one in enumerate(used)}}, shown)
    done = 0
    while go_on and done < limit:
        if done >= MOST_COUNTED:
            return None
        given = {f"in{n}": state[one] for n, one in enumerate(used)}
        results = evaluate(step, {"trip": np.asarray(done, np.int64), **given})
        go_on, done = bool(results["go on"]), done + 1
        state |= {one: results[str(n)] for n, one in enumerate(kept)}
    return done


def _asked_trips(
    node: OnnxNode, region: Graph, limit: Dim, first: Value, outside: Sequence[Value], carried: int
) -> Dim | None:
    """Trips of a loop that goes on while a counter, which begins at 0 or 1, is below a size; None of others.

    outside: what the region's inputs but for the first, the trip, are at the first trip.
    """
    flag = region.outputs["0"]
    if flag.op_name not in {"lt", "gt"}:
        return None
    place, *inputs = region.inputs.values()
    following = dict(zip(inputs[:carried], list(region.outputs.values())[1:], strict=False))
    of_outside = dict(zip(inputs, outside, strict=True))
    counters = {place: Counter(0, 1)}
    for inside, after in following.items():
        step, start = step_of(inside, after), node.maybe_known(of_outside[inside])
        if step is not None and start is not None and start.dtype != object:
            counters[inside] = Counter(int(start.reshape(-1)[0]), step)
    counting, end = flag.operands if flag.op_name == "lt" else flag.operands[::-1]
    while end.op_name == "cast":
        (end,) = end.operands
    if counter_of(counting, counters, as_float=True) != Counter(1, 1) or end not in of_outside:
        return None  # after trip k the counter is k + 1: as many trips as it takes to get to the end
    if end in following and following[end] is not end:
        return None
    size = _size_of(node, of_outside[end])
    if size is None or (limit != size and not (isinstance(limit, int) and limit >= 1 << 31)):
        return None
    if first.op_name not in {"lt", "gt"}:
        return None
    zero, below = first.operands if first.op_name == "lt" else first.operands[::-1]
    begins_at_0 = zero.scalar is not None and zero.scalar == 0
    return size if begins_at_0 and _size_of(node, below) == size else None


def _size_of(node: OnnxNode, value: Value) -> Dim | None:
    """A scalar as a size, where it is known to be one, be it as a float."""
    while value.op_name == "cast":
        (value,) = value.operands
    known = node.maybe_known(value)
    if known is None:
        return None
    one = known.reshape(-1)[0]
    return one if known.dtype == object else int(one)


def _same(before: Named, after: Named) -> bool:
    """Whether a trip leaves the type of a carried value as it is."""
    return same_parts(before, after) and all(
        a.dtype is b.dtype and same_shapes(a.shape, b.shape)
        for a, b in zip(flat([before]), flat([after]), strict=True)
    )


def _without_condition(region: Graph) -> Graph:
    """The region with its second input, the condition, replaced by True."""
    return _copied(region, list(region.inputs.values())[1])


def _going_on(region: Graph) -> Graph:
    """The region with its first output, whether to go on, replaced by True."""
    new = _copied(region, None)
    outputs, new.outputs = new.outputs, {}
    new.output("0", new.constant(value=True))
    for name, value in list(outputs.items())[1:]:
        new.output(name, value)
    return new


def _copied(region: Graph, condition: Value | None) -> Graph:
    """The region again, with one of its inputs replaced by True."""
    new = Graph(region.name)
    mapped = {}
    for node in region.live():
        if node.results[0] is condition:
            mapped[condition] = new.constant(value=True)
            continue
        copied = new.copy(node, tuple(mapped[operand] for operand in node.operands))
        mapped.update(zip(node.results, copied.results, strict=True))
    for name, value in region.outputs.items():
        new.output(name, mapped[value])
    return new


@onnx_op("Scan", since=8)
def scan_8(node: OnnxNode) -> list[Value]:
    """With a batch in front: written out over it, where it is 1 to a few."""
    body, count = node.subgraph("body"), node.attr("num_scan_inputs")
    if node.optional(0) is not None:
        raise node.refuse("sequence lengths of Scan of opset 8 are not taken")
    directions = node.attr("directions", [0] * count)
    values = [node.input(index) for index in range(1, len(node.operands))]
    states = values[: len(values) - count]
    runs = [x.flip(1) if back else x for x, back in zip(values[len(states) :], directions, strict=True)]
    batch = values[0].shape[0]
    if not isinstance(batch, int) or not 1 <= batch <= UNROLLED:
        raise node.refuse(f"the batch of Scan of opset 8 is {batch}; it must be known and at most {UNROLLED}")
    each = []
    for position in range(batch):
        picked = [value.slice(0, position, position + 1).squeeze(0) for value in (*states, *runs)]
        each.append(_scanned(node, body, picked[: len(states)], picked[len(states) :]))
    return [
        node.graph.apply("concat", *(value.unsqueeze(0) for value in column), axis=0)
        for column in zip(*each, strict=True)
    ]


@onnx_op("Scan", since=9)
def scan(node: OnnxNode) -> list[Value]:
    body, count = node.subgraph("body"), node.attr("num_scan_inputs")
    values = node.all_inputs()
    states, runs = values[: len(values) - count], values[len(values) - count :]
    axes = node.attr("scan_input_axes", [0] * count)
    runs = [_to_front(x, axis) for x, axis in zip(runs, axes, strict=True)]
    directions = node.attr("scan_input_directions", [0] * count)
    runs = [x.flip(0) if back else x for x, back in zip(runs, directions, strict=True)]
    results = _scanned(node, body, states, runs)
    stacked = results[len(states) :]
    back = node.attr("scan_output_directions", [0] * len(stacked))
    stacked = [x.flip(0) if one else x for x, one in zip(stacked, back, strict=True)]
    axes = node.attr("scan_output_axes", [0] * len(stacked))
    stacked = [_from_front(x, axis) for x, axis in zip(stacked, axes, strict=True)]
    return [*results[: len(states)], *stacked]


def _to_front(x: Value, axis: int) -> Value:
    axis = x.axis(axis)
    return x.permute(axis, *(one for one in range(x.rank) if one != axis))


def _from_front(x: Value, axis: int) -> Value:
    order = list(range(1, x.rank))
    order.insert(x.axis(axis), 0)
    return x.permute(*order)


def _scanned(node: OnnxNode, body: GraphProto, states: list[Value], runs: list[Value]) -> list[Value]:
    length = runs[0].shape[0]
    if isinstance(length, int) and 1 <= length <= UNROLLED:
        current, stacks = list(states), [list[Value]() for _ in body.output[len(states) :]]
        for index in range(length):
            elements = [x.slice(0, index, index + 1).squeeze(0) for x in runs]
            results = [
                node.tensor(one, "a result of the body")
                for one in node.scope.inline(body, (*current, *elements), f"step {index}")
            ]
            current = results[: len(states)]
            for stack, value in zip(stacks, results[len(states) :], strict=True):
                stack.append(value.unsqueeze(0))
        return [*current, *(node.graph.apply("concat", *stack, axis=0) for stack in stacks)]
    captures = node.scope.captures(body)
    elements = [x.slice(0, 0, 1).squeeze(0) for x in runs]
    region, _ = node.scope.region(body, (*states, *elements), captures, "body")
    operands = (*states, *runs, *flat([named for _, named in captures]))
    return list(
        node.graph.add(
            "scan", operands, {"body": region, "states": len(states), "sequences": len(runs)}
        ).results
    )
