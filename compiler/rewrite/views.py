"""Views: merges chains, cancels inverses, and moves the rest behind pointwise ops, towards the outputs.

All of it is exact: no element is computed otherwise, only named otherwise. A view moves behind an op only if the
op is all that uses it; behind a broadcast, the op then computes each number once.
"""

from __future__ import annotations

from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.ir.operators import same_shapes
from kernels_hub.compiler.rewrite.pattern import Any, Bind, Op, Scalar, one_of
from kernels_hub.compiler.rewrite.rule import Match, Rule

X, Y = Any("x"), Any("y")
_POINTWISE = Op(Trait.POINTWISE).names
_MOVING = {"reshape", "permute", "flip"}
_AGAIN = (*_MOVING, "broadcast")


def _same_type(match: Match) -> str | None:
    x, root = match["x"], match.root
    if not same_shapes(x.shape, root.shape):
        return f"the shape changes, {x.type} to {root.type}"
    if root.op_name == "permute" and list(root.attrs["order"]) != list(range(root.rank)):
        return f"order {root.attrs['order']} moves dims"
    if root.op_name == "flip" and root.attrs["axes"]:
        return f"axes {root.attrs['axes']} run backwards"
    if root.op_name == "slice" and any(step != 1 for step in root.attrs["steps"]):
        return "the slice has steps"
    return None


def _merge_permutes(match: Match) -> Value:
    inner = match.fact("inner")
    return match["x"].permute(*(inner[axis] for axis in match.root.attrs["order"]))


def _merge_flips(match: Match) -> Value:
    axes = set(match.fact("inner")) ^ set(match.root.attrs["axes"])
    return match["x"].flip(*sorted(axes)) if axes else match["x"]


def _merge_slices(match: Match) -> Value:
    outer, starts, steps = match.root.attrs, match.fact("starts"), match.fact("steps")
    low = [a + s * b for a, s, b in zip(starts, steps, outer["starts"], strict=True)]
    both = [s * t for s, t in zip(steps, outer["steps"], strict=True)]
    high = [a + end for a, end in zip(starts, outer["stops"], strict=True)]
    return match.graph.apply("slice", match["x"], starts=low, stops=high, steps=both)


def _plain_slices(match: Match) -> str | None:
    if any(step != 1 for step in match.fact("steps")):
        return "the inner slice has steps"
    return None


def _merge_pads(match: Match) -> Value:
    both = [
        (a + c, b + d)
        for (a, b), (c, d) in zip(match.fact("inner"), match.root.attrs["padding"], strict=True)
    ]
    return match.graph.apply("pad", match["x"], match["v"], padding=both)


def _same_view_of(view: Value, x: Value) -> Value:
    """The view of another value of the shape that the view is of."""
    return view.graph.apply(view.op, x, **view.attrs)


def _behind_unary(match: Match) -> Value:
    root, view = match.root, match["view"]
    return _same_view_of(view, root.graph.apply(root.op, match["x"], **root.attrs))


def _behind_binary(match: Match) -> Value:
    root, first, second = match.root, *match.root.operands
    if first.node is second.node:
        return _same_view_of(first, root.graph.apply(root.op, first.operands[0], first.operands[0]))
    return _same_view_of(first, root.graph.apply(root.op, first.operands[0], second.operands[0]))


def _alike(match: Match) -> str | None:
    first, second = match.root.operands
    if first.op_name != second.op_name:
        return f"the operands are a {first.op_name} and a {second.op_name}"
    if first.attrs != second.attrs:
        return f"the two views differ: {first.attrs} and {second.attrs}"
    if not same_shapes(first.operands[0].shape, second.operands[0].shape):
        return f"they are of other shapes: {first.operands[0].type} and {second.operands[0].type}"
    if first.op_name == "broadcast" and first.scalar is not None and second.scalar is not None:
        return None
    uses = match.scope.uses
    return None if uses(first) <= 2 and uses(second) <= 2 else "the views are used elsewhere, too"


def _behind_scalar(match: Match) -> Value:
    root, view = match.root, match["view"]
    x, number = match["x"], match["c"].broadcast_to(match["x"].shape)
    operands = (x, number) if root.operands[0] is view else (number, x)
    return _same_view_of(view, root.graph.apply(root.op, *operands))


def _scalar_is_0d(match: Match) -> str | None:
    return None if match["c"].rank == 0 else f"the number stands in a {match['c'].type}"


def _moving(*more: str) -> Op:
    return Op({*_MOVING, *more}, X, name="view")


CANCEL = (
    Rule("view_of_nothing", Op({"reshape", "permute", "flip", "slice", "broadcast"}, X), lambda match: match["x"],
         _same_type, doc="a view that changes nothing"),
    Rule("reshape_twice", Op("reshape", Op("reshape", X)), lambda match: match["x"].reshape(match.root.shape),
         doc="reshape(reshape(x)) -> reshape(x)"),
    Rule("permute_twice", Op("permute", Op("permute", X, order=Bind("inner"))), _merge_permutes,
         doc="permute(permute(x)) -> permute(x)"),
    Rule("flip_twice", Op("flip", Op("flip", X, axes=Bind("inner"))), _merge_flips,
         doc="flip(flip(x)) -> flip of the axes in one of them"),
    Rule("broadcast_twice", Op("broadcast", Op("broadcast", X)),
         lambda match: match.root.operands[0].broadcast(match.root.shape, match.root.attrs["axes"]),
         doc="broadcast(broadcast(x)) -> broadcast(x)"),
    Rule("slice_twice", Op("slice", Op("slice", X, starts=Bind("starts"), steps=Bind("steps"))), _merge_slices,
         _plain_slices, doc="slice(slice(x)) -> slice(x), if the inner one takes every element"),
    Rule("pad_twice", Op("pad", Op("pad", X, Any("v"), padding=Bind("inner"), mode="constant"), Any("v"),
                         mode="constant"), _merge_pads, doc="pad(pad(x, v), v) -> pad(x, v)"),
)  # fmt: skip

SINK = (
    Rule("view_behind_unary", Op(_POINTWISE, _moving("broadcast").once()), _behind_unary,
         doc="f(view(x)) -> view(f(x))"),
    Rule("view_behind_binary", Op(_POINTWISE, Op(set(_AGAIN)), Op(set(_AGAIN))), _behind_binary, _alike,
         doc="f(view(x), view(y)) -> view(f(x, y)) for the same view"),
    Rule("view_behind_scalar", one_of(Op(_POINTWISE, _moving("broadcast").once(), Scalar("c")),
         Op(_POINTWISE, Scalar("c"), _moving("broadcast").once())),
         _behind_scalar, _scalar_is_0d, doc="f(view(x), number) -> view(f(x, number))"),
)  # fmt: skip

VIEWS = (*CANCEL, *SINK)
