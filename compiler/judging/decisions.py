"""Decisions of a graph (comparisons, clamps, roundings), and inputs that lead to either side of each.

`thresholds` propagates what values are compared with back to inputs, through what can be inverted: views, casts, ops
with a number, functions of one value. `Decision` says which sides a set of inputs reaches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import ReferenceCall, Trait
from kernels_hub.compiler.ir.types import Array

MOST_POINTS = 160
"""Of one input."""
_MOST_VISITS = 4000
_COMPARED = frozenset({"lt", "le", "eq", "ne", "maximum", "minimum"})
_WITH_ZERO = frozenset({"abs", "sign", "sqrt", "rsqrt", "log"})


@dataclass(eq=False)
class Decision:
    """An op of two values, or of one and 0, that gives another result on another side. sides: those reached so far."""

    value: Value
    wanted: tuple[str, ...]
    sides: set[str] = field(default_factory=set)

    @property
    def open(self) -> bool:
        """Whether a side is not reached yet."""
        return not self.sides.issuperset(self.wanted)

    def missed(self) -> list[str]:
        """For people."""
        return [
            f"%{self.value.id} ({self.value.op_name}): no set has {name}"
            for name in self.wanted
            if name not in self.sides
        ]

    def note(self, operands: Sequence[Array]) -> None:
        """The sides that these operands are on."""
        with np.errstate(all="ignore"):
            a = operands[0].astype(np.float64)
            b = operands[1].astype(np.float64) if len(operands) > 1 else np.zeros(())
            for side, there in (("a < b", a < b), ("a > b", a > b), ("a == b", a == b)):
                if there.any():
                    self.sides.add(side)


def observe(
    open_: Sequence[Decision],
    graph: Graph,
    inputs: Mapping[str, Array],
    sizes: Mapping[str, int],
    weights: Mapping[str, Array],
) -> bool:
    """Whether inputs reach a side of one of these that was not reached before, in one run of the oracle."""
    by_node = {decision.value.node: decision for decision in open_}
    before = sum(len(decision.sides) for decision in open_)

    def note(node: Node, step: ReferenceCall | None, _: Sequence[Array]) -> None:
        if step is not None and node in by_node:
            by_node[node].note(step.operands)

    bindings = {name: size for name, size in sizes.items() if name in graph.symbols}
    evaluate(graph, inputs, bindings=bindings, weights=weights, observe=note)
    return sum(len(decision.sides) for decision in open_) > before


def decisions(graph: Graph) -> list[Decision]:
    """All of a graph, in its order."""
    found = []
    for node in graph.live():
        if not node.operands or node.operands[0].dtype.kind not in {"float", "int", "uint"}:
            continue
        if node.op.name in _COMPARED:
            equal = node.op.name in {"eq", "ne"}
            found.append(Decision(node.results[0], ("a == b",) if equal else ("a < b", "a > b")))
        elif node.op.name in {"abs", "sign"} and node.operands[0].dtype.kind != "uint":
            found.append(Decision(node.results[0], ("a < b", "a > b")))
    return found


def thresholds(graph: Graph) -> dict[str, list[float]]:
    """Input -> what it is to be, so that something in the graph is what it is compared with, and its neighbours."""
    back = _Back()
    for node in graph.live():
        name, operands = node.op.name, node.operands
        if not operands:
            continue
        if len(operands) == 2 and name in {*_COMPARED, "add", "sub", "mod", "fmod", "floordiv"}:
            for one, other in (operands, operands[::-1]):
                number = other.scalar
                if isinstance(number, (int, float)) and math.isfinite(number):
                    back.walk(one, float(number))
                    back.walk(one, -float(number))
        if name in _WITH_ZERO:
            back.walk(operands[0], 0.0)
        if (Trait.STEP in node.op.traits and node.op.inverse is not None) or (
            name == "cast" and node.results[0].dtype.is_integer and operands[0].dtype.is_float
        ):
            for half in range(-5, 6):
                back.walk(operands[0], half / 2)
            if name == "cast" and node.results[0].dtype.bits <= 16:
                for limit in node.results[0].dtype.limits:
                    back.walk(operands[0], float(limit))
        if name == "div" and len(operands) == 2:
            back.walk(operands[1], 0.0)
    return {name: _neighbours(points, graph.inputs[name]) for name, points in back.points.items() if points}


def _neighbours(points: dict[float, None], value: Value) -> list[float]:
    """The points, then what is right beside them, then what is near."""
    known = [point for point in points if math.isfinite(point)]
    if not value.dtype.is_float:
        return list(dict.fromkeys(point + by for by in (0, -1, 1) for point in known))[:MOST_POINTS]
    row = value.dtype.compute.numpy if value.dtype.bits < 64 else np.dtype(np.float64)
    with np.errstate(all="ignore"):
        exact = [np.asarray(one).astype(row) for one in known]
        beside = [np.nextafter(one, row.type(sign * np.inf)) for sign in (1, -1) for one in exact]
        further = [one + 2 * (one - middle) for one, middle in zip(beside, [*exact, *exact], strict=True)]
        near = [one * by for by in (1 + 2**-6, 1 - 2**-6, 1.5, 0.5) for one in exact]
    found = dict.fromkeys(float(one) for one in (*exact, *beside, *near, *further))
    return [one for one in found if math.isfinite(one)][:MOST_POINTS]


class _Back:
    """Points of inputs."""

    def __init__(self) -> None:
        self.points: dict[str, dict[float, None]] = {}
        self._seen: set[tuple[Value, float]] = set()

    def walk(self, value: Value, target: float) -> None:
        """Note what inputs are to be for a value to be `target`."""
        waiting = [(value, target)]
        while waiting and len(self._seen) < _MOST_VISITS:
            at = waiting.pop()
            if at in self._seen or not math.isfinite(at[1]):
                continue
            self._seen.add(at)
            if at[0].op_name == "input":
                self.points.setdefault(at[0].attrs["name"], {})[at[1]] = None
                continue
            try:
                waiting += list(_before(*at))
            except (ValueError, OverflowError, ZeroDivisionError):
                continue


def _before(value: Value, target: float) -> Iterator[tuple[Value, float]]:
    """What operands are to be; where two of them decide together, each as if the other were neutral, or the same."""
    name, operands = value.op_name, value.operands
    if Trait.VIEW in value.op.traits or name in {"cast", "concat", "select"}:
        for operand in operands[1:] if name == "select" else operands:
            yield operand, target
    elif value.op.inverse is not None:
        yield operands[0], value.op.inverse(target)
    elif name == "abs":
        yield operands[0], target
        yield operands[0], -target
    elif name in {"maximum", "minimum"}:
        for operand in operands:
            yield operand, target
    elif name in {"add", "sub", "mul", "div"}:
        yield from _of_two(name, operands[0], operands[1], target)
    elif name in {"reduce_mean", "reduce_max", "reduce_min", "max_pool", "avg_pool"}:
        yield operands[0], target
    elif name == "reduce_sum":
        count = math.prod(dim for dim in operands[0].shape if isinstance(dim, int)) or 1
        yield operands[0], target
        yield operands[0], target / count


def _of_two(name: str, a: Value, b: Value, target: float) -> Iterator[tuple[Value, float]]:
    x, y = a.scalar, b.scalar
    if isinstance(y, (int, float)):
        yield a, {"add": lambda: target - y, "sub": lambda: target + y, "mul": lambda: target / y,
                  "div": lambda: target * y}[name]()  # fmt: skip
    elif isinstance(x, (int, float)):
        yield b, {"add": lambda: target - x, "sub": lambda: x - target, "mul": lambda: target / x,
                  "div": lambda: x / target}[name]()  # fmt: skip
    elif name == "mul":
        root = math.sqrt(abs(target))
        for one in (a, b):
            yield one, root
            yield one, target
        yield a, math.copysign(root, target)
    else:
        yield a, target
        yield b, -target if name == "sub" else target
