"""Recognizes rotary embeddings of halves (Llama) and of pairs (GPT-J, RoFormer). Numbers stay: see `outline`.

rotary(x, cos, sin) = x * cos + concat(-x[half:], x[:half]) * sin                       Source: arXiv 2104.09864
rotary_pairs(x, cos, sin) = x * cos + interleave(-x[1::2], x[::2]) * sin

x may be a slice of something longer, of which only a part is turned; its own slices are slices of that, then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.operators import same_shapes
from kernels_hub.compiler.ir.proofs import proves_equal
from kernels_hub.compiler.rewrite.outline import closed_between, outline_between
from kernels_hub.compiler.rewrite.pattern import Any, Bind, Op, Pattern, floats, one_of
from kernels_hub.compiler.rewrite.rule import Match, Rule

X, WHOLE = Any("x").where(floats), Any("whole")
OPERANDS = ("x", "cos", "sin")
PARTS = ("turned", "other")
"""The slice of x that is negated, and the other one."""

_TURNED, _OTHER = Op("slice", WHOLE, name="turned"), Op("slice", WHOLE, name="other")
_HALVES = Op("concat", Op("neg", _TURNED), _OTHER, axis=Bind("axis"), name="joined")
_PAIRS = Op(
    "reshape",
    Op("concat", Op("reshape", Op("neg", _TURNED)), Op("reshape", _OTHER), axis=Bind("axis"), name="joined"),
)


def _relative(match: Match, name: str) -> dict[str, list[object]] | None:
    """What a part takes of x: attributes of a slice; None where it is no slice of x."""
    x, whole, attrs = match["x"], match["whole"], match[name].attrs
    if whole is x:
        first = [0] * x.rank
    elif x.op_name == "slice" and x.operands[0] is whole and all(step == 1 for step in x.attrs["steps"]):
        first = list(x.attrs["starts"])
    else:
        return None
    starts, stops = (
        [at - low for at, low in zip(attrs[key], first, strict=True)] for key in ("starts", "stops")
    )
    return {"starts": starts, "stops": stops, "steps": list(attrs["steps"])}


def _parts(match: Match, starts: tuple[object, object], step: int) -> str | None:
    """Whether the parts are halves of x: they start so, and go on in such steps."""
    x = match["x"]
    last = x.rank - 1
    half = x.shape[last] // 2
    if not proves_equal(half * 2, x.shape[last]):
        return f"the last dim of {x.type} is not known to be even"
    for name, start in zip(PARTS, starts, strict=True):
        part, taken = match[name], _relative(match, name)
        if taken is None:
            return f"{part} is no slice of {x}"
        wanted = [*[0] * last, start], [*[1] * last, step]
        if (taken["starts"], taken["steps"]) != wanted or not same_shapes(
            part.shape, (*x.shape[:last], half)
        ):
            return f"{part} is not the half of {x.type} that it has to be"
    given = {operand: match[operand] for operand in OPERANDS}
    return closed_between(
        match.root, given if match["whole"] is x else given | {part: match[part] for part in PARTS}
    )


def _halves(match: Match) -> str | None:
    last = match["x"].rank - 1
    if match.fact("axis") != last:
        return f"the halves are joined along {match.fact('axis')}, not along the last dim"
    return _parts(match, (match["x"].shape[last] // 2, 0), 1)


def _pairs(match: Match) -> str | None:
    x, joined = match["x"], match["joined"]
    if match.fact("axis") != x.rank or not same_shapes(joined.shape, (*x.shape[:-1], x.shape[-1] // 2, 2)):
        return f"{joined.type} is not made of pairs of {x.type}"
    return _parts(match, (1, 0), 2)


def _rotary(name: str, match: Match) -> Value:
    given = {operand: match[operand] for operand in OPERANDS}
    if match["whole"] is match["x"]:
        return outline_between(match.root, name, given)

    def part(of: str) -> Callable[[Mapping[str, Value]], Value]:
        taken = _relative(match, of) or {}
        return lambda inputs: inputs["x"].graph.apply("slice", inputs["x"], **taken)

    return outline_between(match.root, name, given, {match[of]: part(of) for of in PARTS})


def _table(name: str) -> Pattern:
    """A table of cosines or sines, as it was before it was broadcast to the heads."""
    return one_of(Op("broadcast", Any(name)), Any(name))


ROTARY = (
    Rule("rotary", Op("add", Op("mul", X, _table("cos")), Op("mul", _HALVES, _table("sin"))),
         lambda match: _rotary("rotary", match), _halves, doc="x * cos + concat(-x[half:], x[:half]) * sin"),
    Rule("rotary_pairs", Op("add", Op("mul", X, _table("cos")), Op("mul", _PAIRS, _table("sin"))),
         lambda match: _rotary("rotary_pairs", match), _pairs, doc="x * cos + interleave(-x[1::2], x[::2]) * sin"),
)  # fmt: skip
