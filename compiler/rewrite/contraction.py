"""Turns a multiplication and a sum over broadcast operands into a matrix product.

    (x[:, None, :] * w.T[None]).sum(2)       Mul [M, N, K] by SumReduce(2): x @ w

Each dim of the product's space is one of these, by which of the two factors varies along it, and whether it is summed:

    both, kept      batch          both, summed    depth
    one, kept       rows or columns                one, summed     summed in that factor before
    none, kept      broadcast of the result        none, summed    times the number of elements

So any layout does, with any number of dims of each kind. Factors may be views of what they are made of (broadcasts,
permutes, dims of one element); what is one number, or lies along dims of another factor alone, is multiplied apart.
Where windows of an image are multiplied, it is a convolution: see `windows`. None of this is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Shape
from kernels_hub.compiler.ir.proofs import proves_equal
from kernels_hub.compiler.rewrite.pattern import Bind, Op
from kernels_hub.compiler.rewrite.rule import Match, Rule
from kernels_hub.compiler.rewrite.windows import PADDED, Kinds, Plan, Windows, fits, plan, windows_of

DTYPES = frozenset({types.FLOAT32, types.FLOAT64, types.FLOAT16, types.BFLOAT16})
MANY, SMALL = 32, 256
"""So many matrices, each of so few multiplications, are better summed by loops than by products."""
SHALLOW = 4
"""So few terms of a sum, of a matrix and a vector, are as well added by loops, and may be part of others."""
MOST_FACTORS = 6


@dataclass(frozen=True)
class Factor:
    """source: what is multiplied; axes: for each of its dims the axis of the space along which it lies."""

    source: Value
    axes: tuple[int, ...]

    def within(self, axes: tuple[int, ...]) -> bool:
        """Whether it varies along some of these axes alone."""
        return set(self.axes) <= set(axes)

    def along(self, axes: tuple[int, ...], shape: Shape) -> Value:
        """It, along these axes in this order, of which it may lack some."""
        mine = [axis for axis in axes if axis in self.axes]
        value = self.source.permute(*(self.axes.index(axis) for axis in mine))
        return value.broadcast(tuple(shape[axis] for axis in axes), tuple(axes.index(axis) for axis in mine))


def factor_of(value: Value) -> Factor:
    """A value as what it is a view of, without the dims that are only repeated."""
    axes: list[int | None] = list(range(value.rank))
    source = value
    while True:
        inner = _beneath(source, axes, value.shape)
        if inner is None:
            break
        source, axes = inner
    kept = [index for index, axis in enumerate(axes) if axis is not None and source.shape[index] != 1]
    if len(kept) < source.rank:
        source = source.reshape(tuple(source.shape[place] for place in kept))
    return Factor(source, tuple(axis for place in kept if (axis := axes[place]) is not None))


def _beneath(value: Value, axes: list[int | None], shape: Shape) -> tuple[Value, list[int | None]] | None:
    """The operand of a view and the axes of its dims; None where it is no view that only names dims anew."""
    if value.op_name == "broadcast":
        operand = value.operands[0]
        found = [axes[axis] for axis in value.attrs["axes"]]
        return operand, [
            None if axis is None or (dim == 1 and shape[axis] != 1) else axis
            for axis, dim in zip(found, operand.shape, strict=True)
        ]
    if value.op_name == "permute":
        order = list(value.attrs["order"])
        return value.operands[0], [axes[order.index(axis)] for axis in range(len(order))]
    if value.op_name == "reshape":
        operand = value.operands[0]
        old, new = ([at for at, dim in enumerate(one.shape) if dim != 1] for one in (operand, value))
        pairs = list(zip(old, new, strict=False))
        alike = all(proves_equal(operand.shape[a], value.shape[b]) for a, b in pairs)
        if len(old) != len(new) or not alike:
            return None
        places = dict(pairs)
        return operand, [axes[places[at]] if at in places else None for at in range(operand.rank)]
    return None


@dataclass(frozen=True)
class Contraction:
    """Two factors over a space, and which of its axes are of which kind (see the module)."""

    left: Factor
    right: Factor
    apart: tuple[Factor, ...]
    shape: Shape
    summed: tuple[int, ...]

    def kept(self, *factors: Factor) -> tuple[int, ...]:
        """Axes that are kept, along which just these factors vary."""
        return self._axes(factors, summed=False)

    def gone(self, *factors: Factor) -> tuple[int, ...]:
        """Axes that are summed, along which just these factors vary."""
        return self._axes(factors, summed=True)

    def _axes(self, factors: tuple[Factor, ...], *, summed: bool) -> tuple[int, ...]:
        mine = {id(factor) for factor in factors}
        return tuple(
            axis
            for axis in range(len(self.shape))
            if (axis in self.summed) is summed
            and {id(one) for one in (self.left, self.right) if axis in one.axes} == mine
        )

    def sizes(self, axes: tuple[int, ...]) -> Dim:
        """The number of elements along axes."""
        return product(self.shape[axis] for axis in axes)


def _factors(root: Value, match: Match) -> list[Value] | str:
    """What is multiplied, of a tree of multiplications that nothing else uses."""
    values: list[Value] = []
    stack = [root]
    while stack:
        value = stack.pop()
        inner = value.op_name == "mul" and (value is root or match.scope.uses(value) == 1)
        if inner and not (value is not root and match.scope.is_output(value)):
            stack += reversed(value.operands)
        else:
            values.append(value)
        if len(values) > MOST_FACTORS:
            return f"the product is of more than {MOST_FACTORS} factors"
    return values


def contraction_of(match: Match) -> Contraction | str:
    """The sum of a product as a contraction; or why it is none."""
    root, whole = match.root, match["product"]
    if whole.dtype not in DTYPES:
        return f"sums of {whole.dtype} are left to loops"
    values = _factors(whole, match)
    if isinstance(values, str):
        return values
    factors = [factor_of(value) for value in values]
    if all(set(factor.axes) == set(factors[0].axes) for factor in factors if factor.axes):
        return "no dim is kept of one factor alone: each result is a sum of its own, which loops do as well"
    return _paired(factors, whole.shape, tuple(root.attrs["axes"]))


def _paired(factors: list[Factor], shape: Shape, summed: tuple[int, ...]) -> Contraction | str:
    """Two of the factors that share summed dims; each other one lies within one of them, or within what is kept."""
    reasons: list[str] = []
    for index, left in enumerate(factors):
        for right in factors[index + 1 :]:
            others = tuple(factor for factor in factors if factor is not left and factor is not right)
            found = Contraction(left, right, others, shape, summed)
            reason = _declined(found)
            if reason is None:
                return found
            reasons.append(reason)
    return reasons[0] if reasons else "there is one factor"


def _declined(contraction: Contraction) -> str | None:
    left, right = contraction.left, contraction.right
    depth, batch = contraction.gone(left, right), contraction.kept(left, right)
    rows, columns = contraction.kept(left), contraction.kept(right)
    if not depth:
        return "no dim that is summed is of both factors"
    if not rows and not columns:
        return "no dim is kept of one factor alone: each result is a sum of its own, which loops do as well"
    kept = tuple(axis for axis in range(len(contraction.shape)) if axis not in contraction.summed)
    for one in contraction.apart:
        if not (one.within(left.axes) or one.within(right.axes) or one.within(kept)):
            return f"a factor of {one.source.type} lies along {one.axes}, within none of the others"
    matrices, each = contraction.sizes(batch), contraction.sizes((*rows, *columns, *depth))
    if isinstance(matrices, int) and isinstance(each, int) and matrices >= MANY and each <= SMALL:
        return f"{matrices} matrices of {each} multiplications each are left to loops"
    terms = contraction.sizes(depth)
    if isinstance(terms, int) and terms <= SHALLOW and batch and not (rows and columns):
        return f"sums of {terms} products of matrices with vectors are left to loops"
    return None


def _contracted(match: Match) -> Value:
    found = contraction_of(match)
    assert isinstance(found, Contraction)
    for one in (found, replace(found, left=found.right, right=found.left)):
        windows = windows_of(one.left.source)
        if windows is not None and isinstance(made := _convolution(one, windows), Plan):
            return _conv(one, windows, made, match.root)
    return _matmul(found, match.root)


def _convolution(contraction: Contraction, windows: Windows) -> Plan | str:
    """How the sum is a convolution of the windows that its left factor is; or why not."""
    left, right = contraction.left, contraction.right
    alone = contraction.gone(left), contraction.gone(right), contraction.gone()
    if any(alone):
        return f"dims {alone} are summed of one factor, or of none"
    rows = contraction.kept(left)
    kinds = Kinds(left.axes, contraction.kept(left, right), contraction.gone(left, right), rows)
    made = plan(windows, kinds)
    return made if isinstance(made, str) else fits(made, windows, contraction.shape) or made


def _conv(contraction: Contraction, windows: Windows, made: Plan, root: Value) -> Value:
    shape, image = contraction.shape, windows.image
    axes = {along: axis for axis, (along, _) in zip(contraction.left.axes, windows.walks, strict=True)}
    kept = tuple(axis for axis in range(len(shape)) if axis not in contraction.summed)
    batch, group, channel = (
        tuple(axes[one] for one in part) for part in (made.batch, made.group, made.channel)
    )
    columns = contraction.kept(contraction.right)
    left, right, after = _with_others(contraction, kept)
    if left is not contraction.left:  # a factor of the windows' own: they are no view any more
        return _matmul(contraction, root)
    groups, inside = contraction.sizes(group), contraction.sizes(channel)
    order = (*made.batch, *made.group, *made.channel, *made.spatial)
    pixels = tuple(image.shape[one] for one in made.spatial)
    x = image.permute(*order).reshape((contraction.sizes(batch), groups * inside, *pixels))
    taps = tuple(shape[axis] for axis in made.taps)
    weight = right.along((*group, *columns, *channel, *made.taps), shape)
    weight = weight.reshape((groups * contraction.sizes(columns), inside, *taps))
    result = root.graph.apply(
        "conv",
        x,
        weight,
        strides=made.strides,
        dilations=made.dilations,
        padding=[(0, 0)] * len(taps),
        groups=groups,
    )
    ordered = (*batch, *group, *columns, *made.pixels)
    result = result.reshape(tuple(shape[axis] for axis in ordered))
    mine = sorted(ordered)
    result = result.permute(*(ordered.index(axis) for axis in mine))
    result = result.broadcast(root.shape, tuple(kept.index(axis) for axis in mine))
    for one in after:
        result = result * one.along(kept, shape)
    return result


def _matmul(contraction: Contraction, root: Value) -> Value:
    shape = contraction.shape
    kept = tuple(axis for axis in range(len(shape)) if axis not in contraction.summed)
    repeats = contraction.sizes(contraction.gone())
    left, right, after = _with_others(contraction, kept)
    left, right = (
        _summed(left, contraction.gone(contraction.left)),
        _summed(right, contraction.gone(contraction.right)),
    )
    outer, rows = _merged(left, contraction.kept(contraction.left))
    more, columns = _merged(right, contraction.kept(contraction.right))
    depth, batch = (
        contraction.gone(contraction.left, contraction.right),
        (*contraction.kept(contraction.left, contraction.right), *outer, *more),
    )
    dims = tuple(shape[axis] for axis in batch)
    m, k, n = (contraction.sizes(axes) for axes in (rows, depth, columns))
    a = left.along((*batch, *rows, *depth), shape).reshape((*dims, m, k))
    b = right.along((*batch, *depth, *columns), shape).reshape((*dims, k, n))
    order = (*batch, *rows, *columns)
    mine = sorted(order)
    result = (
        (a @ b).reshape(tuple(shape[axis] for axis in order)).permute(*(order.index(axis) for axis in mine))
    )
    result = result.broadcast(root.shape, tuple(kept.index(axis) for axis in mine))
    for one in after:
        result = result * one.along(kept, shape)
    if repeats != 1:
        result = result * root.graph.size(repeats).cast(result.dtype).broadcast(result.shape, ())
    return result


def _with_others(contraction: Contraction, kept: tuple[int, ...]) -> tuple[Factor, Factor, list[Factor]]:
    """The two factors times those that lie within one of them, and those that the result is multiplied by."""
    left, right, after = contraction.left, contraction.right, []
    for one in contraction.apart:
        if one.within(kept):
            after.append(one)
        elif one.within(left.axes):
            left = Factor(left.source * _over(one, left), left.axes)
        else:
            right = Factor(right.source * _over(one, right), right.axes)
    return left, right, after


def _over(factor: Factor, other: Factor) -> Value:
    """A factor in the shape of another, within whose axes it lies."""
    order = sorted(range(len(factor.axes)), key=lambda place: other.axes.index(factor.axes[place]))
    axes = tuple(other.axes.index(factor.axes[place]) for place in order)
    return factor.source.permute(*order).broadcast(other.source.shape, axes)


def _summed(factor: Factor, axes: tuple[int, ...]) -> Factor:
    """A factor summed over axes that no other one has."""
    if not axes:
        return factor
    left = tuple(axis for axis in factor.axes if axis not in axes)
    return Factor(factor.source.sum([factor.axes.index(axis) for axis in axes]), left)


def _merged(factor: Factor, axes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Axes that become batch dims, and those that are one dim of a matrix: all, where they are neighbours, so that
    nothing is copied; else the last."""
    places = [factor.axes.index(axis) for axis in axes]
    if all(second == first + 1 for first, second in pairwise(places)):
        return (), axes
    return axes[:-1], axes[-1:]


def _before_permute(match: Match) -> Value:
    order, axes = match.fact("order"), tuple(match.root.attrs["axes"])
    gone = [order[axis] for axis in axes]
    result = match["product"].sum(sorted(gone))
    kept = [axis for axis in range(len(order)) if axis not in gone]
    return result.permute(*(kept.index(axis) for axis in order if axis not in gone))


CONTRACTION = (
    *PADDED,
    Rule("sum_before_permute",
         Op("reduce_sum", Op("permute", Op("mul", name="product").once(), order=Bind("order")).once()), _before_permute,
         exact=False, doc="sum(permute(x * y)) -> permute(sum(x * y))"),
    Rule("sum_of_product", Op("reduce_sum", Op("mul", name="product").once()), _contracted,
         lambda match: found if isinstance(found := contraction_of(match), str) else None, exact=False,
         doc="sum(broadcast(x) * broadcast(y)) -> matmul(x, y)"),
)  # fmt: skip
