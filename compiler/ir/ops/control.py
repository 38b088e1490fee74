"""Ops that hold graphs: call, if, loop, scan.

A region is closed: what it needs of outside are operands ("captures", the last ones). It has inputs and
constants, no parameters. Putting it into an op freezes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from kernels_hub.compiler.errors import EvaluateError, TypeRuleError
from kernels_hub.compiler.ir.op import (
    DIM,
    INT,
    REGION,
    Attr,
    Attrs,
    Op,
    Operands,
    ReferenceCall,
    TensorType,
    Trait,
    require_equal,
    require_equal_shapes,
)  # fmt: skip
from kernels_hub.compiler.ir.types import BOOL, INT64, Array

_TYPES = tuple[TensorType, ...]

_most_trips: ContextVar[int | None] = ContextVar("most_trips", default=None)


@contextmanager
def at_most_trips(count: int) -> Iterator[None]:
    """A loop that the data end raises EvaluateError after so many trips: on some inputs it may never end."""
    token = _most_trips.set(count)
    try:
        yield
    finally:
        _most_trips.reset(token)


def _accepts(region: Any, operands: Sequence[TensorType], what: str) -> _TYPES:
    """Types of a region's outputs. Raises TypeRuleError unless its inputs are of these types."""
    inputs, outputs = region.signature()
    _agree(inputs, operands, f"the inputs of {what}", "what it is given")
    return outputs  # type: ignore[no-any-return]


def _agree(a: Sequence[TensorType], b: Sequence[TensorType], what_a: str, what_b: str) -> None:
    if len(a) != len(b):
        raise TypeRuleError(f"{what_a} are {len(a)}, {what_b} {len(b)}")
    for index, (x, y) in enumerate(zip(a, b, strict=True)):
        if x.dtype is not y.dtype:
            raise TypeRuleError(f"{what_a}: number {index} is {x}, but {what_b}: {y}")
        require_equal_shapes(x.shape, y.shape, f"number {index} of {what_a}", f"number {index} of {what_b}")


def _scalar(operand: TensorType, dtype: Any, what: str) -> None:
    if operand.dtype is not dtype or operand.rank:
        raise TypeRuleError(f"{what} is a {dtype} scalar, not {operand}")


def _call(operands: Operands, attrs: Attrs) -> _TYPES:
    return _accepts(attrs["callee"], operands, "the callee")


def _if(operands: Operands, attrs: Attrs) -> _TYPES:
    _scalar(operands[0], BOOL, "the condition (operand 0)")
    then = _accepts(attrs["then"], operands[1:], "the then branch")
    other = _accepts(attrs["otherwise"], operands[1:], "the otherwise branch")
    _agree(then, other, "the results of then", "the results of otherwise")
    return then


def _loop(operands: Operands, attrs: Attrs) -> _TYPES:
    carried = attrs["carried"]
    _scalar(operands[0], INT64, "the trip count (operand 0)")
    _scalar(operands[1], BOOL, "the first condition (operand 1)")
    if not 0 <= carried <= len(operands) - 2:
        raise TypeRuleError(f"{carried} carried values, but {len(operands) - 2} operands after the condition")
    outputs = _accepts(attrs["body"], (TensorType(INT64, ()), *operands[2:]), "the body")
    if len(outputs) < 1 + carried:
        raise TypeRuleError(
            f"the body gives {len(outputs)} values, fewer than a condition and {carried} carried"
        )
    _scalar(outputs[0], BOOL, "the body's first result, whether to go on,")
    _agree(
        outputs[1 : 1 + carried],
        operands[2 : 2 + carried],
        "the body's carried results",
        "the carried operands",
    )
    stacked = outputs[1 + carried :]
    return (
        *outputs[1 : 1 + carried],
        *(TensorType(one.dtype, (attrs["count"], *one.shape)) for one in stacked),
    )


def _run_loop(step: ReferenceCall) -> list[Array]:
    carried = step.attrs["carried"]
    trips, go_on = int(step.operands[0]), bool(step.operands[1])
    state, captures = list(step.operands[2 : 2 + carried]), step.operands[2 + carried :]
    stacks: list[list[Array]] = [[] for _ in step.results[carried:]]
    done = 0
    flag_of_body = next(iter(step.attrs["body"].outputs.values()))
    most = None if flag_of_body.scalar is True else _most_trips.get()
    while go_on and done < trips:
        if done == most:
            raise EvaluateError(f"a loop has not ended after {most} trips")
        flag, *results = step.run(step.attrs["body"], [np.asarray(done, np.int64), *state, *captures])
        go_on, done = bool(flag), done + 1
        state = results[:carried]
        for stack, result in zip(stacks, results[carried:], strict=True):
            stack.append(result)
    if stacks and done != step.attrs["count"]:
        raise EvaluateError(
            f"the loop ran {done} times, but its stacked results are {step.attrs['count']} long"
        )
    return [*state, *_stacked(stacks, step, carried)]


def _scan(operands: Operands, attrs: Attrs) -> _TYPES:
    states, sequences = attrs["states"], attrs["sequences"]
    if states < 0 or sequences < 1 or states + sequences > len(operands):
        raise TypeRuleError(f"{states} states and {sequences} sequences do not fit {len(operands)} operands")
    runs = operands[states : states + sequences]
    for index, one in enumerate(runs):
        if not one.rank:
            raise TypeRuleError(f"sequence {index} is a scalar")
        require_equal(runs[0].shape[0], one.shape[0], "the length of sequence 0", f"that of sequence {index}")
    elements = [TensorType(run.dtype, run.shape[1:]) for run in runs]
    outputs = _accepts(
        attrs["body"], [*operands[:states], *elements, *operands[states + sequences :]], "the body"
    )
    _agree(outputs[:states], operands[:states], "the body's states", "the first states")
    length = runs[0].shape[0]
    return (
        *outputs[:states],
        *(TensorType(output.dtype, (length, *output.shape)) for output in outputs[states:]),
    )


def _run_scan(step: ReferenceCall) -> list[Array]:
    states, sequences = step.attrs["states"], step.attrs["sequences"]
    state = list(step.operands[:states])
    runs, captures = step.operands[states : states + sequences], step.operands[states + sequences :]
    stacks: list[list[Array]] = [[] for _ in step.results[states:]]
    for index in range(runs[0].shape[0]):
        results = step.run(step.attrs["body"], [*state, *(np.asarray(run[index]) for run in runs), *captures])
        state = list(results[:states])
        for stack, result in zip(stacks, results[states:], strict=True):
            stack.append(result)
    return [*state, *_stacked(stacks, step, states)]


def _stacked(stacks: list[list[Array]], step: ReferenceCall, first: int) -> list[Array]:
    return [
        np.stack(stack) if stack else np.zeros(result.shape, result.dtype.numpy)
        for stack, result in zip(stacks, step.results[first:], strict=True)
    ]


def _run_if(step: ReferenceCall) -> Sequence[Array]:
    return step.run(step.attrs["then" if step.operands[0] else "otherwise"], step.operands[1:])


_BODY = Attr("body", REGION)

ROWS = (
    Op("call", "A graph applied to operands; `Graph.call` writes its nodes out instead.", (0, None),
       lambda step: step.run(step.attrs["callee"], step.operands), signature=_call, attrs=(Attr("callee", REGION),),
       traits=Trait.REGION),
    Op("if", "(condition, captures…): one of two graphs on the captures.", (1, None), _run_if, signature=_if,
       attrs=(Attr("then", REGION), Attr("otherwise", REGION)), traits=Trait.REGION, source="ONNX If"),
    Op("loop", "(trip count, condition, carried…, captures…): body(i, carried…, captures…) gives whether to go on, the "
       "carried values, and values that are stacked; `count` is how many of these there will be.", (2, None),
       _run_loop, signature=_loop, attrs=(_BODY, Attr("carried", INT), Attr("count", DIM, 0)), traits=Trait.REGION,
       source="ONNX Loop"),
    Op("scan", "(states…, sequences…, captures…): body(states…, an element of each sequence along dim 0, captures…) "
       "gives the states and values that are stacked.", (1, None), _run_scan, signature=_scan,
       attrs=(_BODY, Attr("states", INT), Attr("sequences", INT)), traits=Trait.REGION, source="ONNX Scan"),
)  # fmt: skip
