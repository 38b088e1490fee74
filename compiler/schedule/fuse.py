"""Fusion: decides which values share a loop nest (a fusion group).

The values that are not inlined (`inlining`) are taken in the order of the graph. Each joins the group of a value that
it reads, groups with an anchor first, of these the latest, if that leaves no cycle among groups and if every element
that it reads of the group was computed in the same iteration, and so is still in a register. Otherwise it begins a
group of its own. Joining is tried by lowering the value into a copy of the group's body (`Body.at` raises `NotHere`
for an element of another iteration), so that exactly what was accepted is what runs. Behind an anchor, permutes and
reshapes on the way are inverted: the value is computed at the index that the anchor's becomes by them, unless an
element would take a division, or stores far apart would cost more.

A group begins with the loops of its first value; a reduction that joins turns the loops that it sums over into inner
loops. A reduction over the same dims of what another one reads, too, joins its group as well: memory is read once. A
running sum is the first of its group, and only pointwise values join it. A scatter is alone in its group: its loops
copy what is written over, and `scatter` has those that write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kernels_hub.compiler.ir.dims import Dim, Expr, Opaque, names, product
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Shape, Trait
from kernels_hub.compiler.ir.proofs import proves_equal
from kernels_hub.compiler.schedule.cuts import cuts_of
from kernels_hub.compiler.schedule.index import Loop, Ranges, flatten
from kernels_hub.compiler.schedule.inlining import ANCHORS, Inlining, Kind
from kernels_hub.compiler.schedule.kernel import Anchor, Buffer, Convolution
from kernels_hub.compiler.schedule.layout import pays_for_copies
from kernels_hub.compiler.schedule.lower import (
    Body,
    NotHere,
    contract_along,
    contract_loops,
    pool_along,
    reduce_along,
    reduction_axes,
    scan_along,
)
from kernels_hub.compiler.schedule.views import Index

FEW_TURNS = 16
"""Nests with fewer turns of the outer loops than this, and many inner ones, keep to the reduction alone: one thread
would do the rest."""
MANY_INNER = 4096

_FEW_ELEMENTS = 4096
"""Of a nest, which are not worth a kernel of their own."""


@dataclass
class FusionGroup:
    """A nest in the making. domain: dims of its first unit; loops: one for each; inner: which of these are inner."""

    number: int
    domain: Shape
    loops: tuple[Loop, ...]
    body: Body
    prepared: bool
    inner: frozenset[int] = frozenset()
    extra: tuple[Loop, ...] = ()
    """Inner loops that are no dims of the domain: windows of pools, sums of products."""
    anchor: Anchor | None = None
    values: list[Value] = field(default_factory=list)
    before: int = 0
    """Groups that must run earlier, as bits."""

    @property
    def index(self) -> Index:
        """The place in the domain."""
        return tuple(loop.index for loop in self.loops)

    @property
    def root_is_convolution(self) -> bool:
        """Whether the columns of the anchor are channels, the second dim."""
        return isinstance(self.anchor, Convolution)

    @property
    def kept(self) -> tuple[Shape, Index]:
        """Dims and variables of the outer loops, in the order of the domain."""
        axes = [axis for axis in range(len(self.domain)) if axis not in self.inner]
        return tuple(self.domain[axis] for axis in axes), tuple(self.index[axis] for axis in axes)


class Fusion:
    """The fusion groups of an expanded graph.

    make_anchor: returns the anchor of a value that has one, given its loops. apart: numbers of the values that begin a
    group of their own. most_parts: ranges into which a loop is cut, at most, within one kernel.
    """

    def __init__(
        self,
        inlining: Inlining,
        buffer_of: Callable[[Value], Buffer | None],
        make_anchor: Callable[[Value, tuple[Loop, ...], str], Anchor],
        prepared: frozenset[Value],
        apart: frozenset[int] = frozenset(),
        most_parts: int = 1,
    ) -> None:
        self.inlining, self.buffer_of, self.make_anchor, self.prepared = (
            inlining,
            buffer_of,
            make_anchor,
            prepared,
        )
        self.most_parts = most_parts
        self.groups: list[FusionGroup] = []
        self.group_of: dict[Value, FusionGroup] = {}
        self._read: dict[Value, set[Value]] = {}
        self.joined: list[int] = []
        """Inlining, by their number, that joined the nest of another."""
        for number, (value, kind) in enumerate(inlining.kinds.items()):
            if self._place(value, kind, alone=number in apart):
                self.joined.append(number)

    def _place(self, value: Value, kind: Kind, *, alone: bool) -> bool:
        """Add a value to a group; returns whether it joined one that existed."""
        sources = self._reads(value)
        behind = {self.group_of[source].number for source in sources if source in self.group_of}
        ancestors = 0
        for number in behind:
            ancestors |= self.groups[number].before | 1 << number
        if kind in {Kind.POINTWISE, Kind.REDUCTION} and not alone:
            for number in sorted(
                behind, key=lambda one: (self.groups[one].anchor is not None, one), reverse=True
            ):
                group = self.groups[number]
                cyclic = any(self.groups[one].before >> number & 1 for one in behind if one != number)
                if (
                    not cyclic
                    and group.prepared == (value in self.prepared)
                    and self._join(group, value, kind)
                ):
                    self._account(group, value, ancestors & ~(1 << number))
                    return True
        if kind is Kind.REDUCTION and not alone and (beside := self._beside(value, ancestors)) is not None:
            self._account(beside, value, ancestors)
            return True
        group = self._begin(value, kind)
        self.groups.append(group)
        self._account(group, value, ancestors)
        return False

    def _beside(self, value: Value, ancestors: int) -> FusionGroup | None:
        """The group of a reduction along the same dims that reads memory which this one reads, once it has joined."""
        read = self._memory(value)
        for group in self.groups:
            first = group.values[0]
            if (
                self.inlining.kinds[first] is not Kind.REDUCTION
                or not group.inner
                or reduction_axes(first) != reduction_axes(value)
                or group.prepared != (value in self.prepared)
                or read.isdisjoint(self._memory(first))
            ):
                continue
            needed = [one for one in self.groups if ancestors >> one.number & 1]
            cyclic = any(one is group or one.before >> group.number & 1 for one in needed)
            if not cyclic and self._join(group, value, Kind.REDUCTION):
                return group
        return None

    def _memory(self, value: Value) -> set[Value]:
        """The values in memory that the loops of one read."""
        if value in self._read:
            return self._read[value]
        found = self._read[value] = set[Value]()
        stack, seen = list(value.operands), set[Value]()
        while stack:
            one = stack.pop()
            if one not in seen:
                seen.add(one)
                if self.inlining.is_stored(one):
                    found.add(one)
                else:
                    stack += one.operands
        return found

    def _account(self, group: FusionGroup, value: Value, ancestors: int) -> None:
        group.values.append(value)
        self.group_of[value] = group
        if ancestors & ~group.before:
            group.before |= ancestors
            for other in self.groups:
                if other.before >> group.number & 1:
                    other.before |= group.before

    def _reads(self, value: Value) -> list[Value]:
        """The values of other loop bodies that computing this one reads."""
        reads: dict[Value, None] = {}
        stack, seen = list(value.operands), set()
        while stack:
            one = stack.pop()
            if one in seen:
                continue
            seen.add(one)
            if one in self.inlining.kinds:
                reads[one] = None
            else:
                stack += one.operands
        return list(reads)

    def _begin(self, value: Value, kind: Kind) -> FusionGroup:
        number = len(self.groups)
        shape, inner = value.shape, frozenset[int]()
        if kind is Kind.REDUCTION:
            shape, inner = value.operands[0].shape, frozenset(reduction_axes(value))
        elif kind is Kind.SCAN:
            inner = frozenset({value.attrs["axis"]})
        loops = tuple(Loop(f"$i{number}_{axis}", dim) for axis, dim in enumerate(shape))
        extra: tuple[Loop, ...] = ()
        if kind in {Kind.POOL, Kind.CONTRACTION}:
            dims = tuple(value.attrs["kernel"]) if kind is Kind.POOL else contract_loops(value)
            extra = tuple(Loop(f"$r{number}_{axis}", dim) for axis, dim in enumerate(dims))
        body = Body(Ranges((*loops, *extra)), self.buffer_of)
        group = FusionGroup(number, shape, loops, body, value in self.prepared, inner, extra)
        if kind in ANCHORS:
            name = "root"
            group.anchor = self.make_anchor(value, loops, name)
            body.define_at(value, group.index, name)
            return group
        index = group.index if kind is Kind.SCAN else group.kept[1]
        if kind is Kind.POINTWISE:
            name = body.make(value, index)
        elif kind is Kind.SCATTER:
            name = body.at(value.operands[0], index)
        elif kind is Kind.SCAN:
            name = scan_along(body, value, index)
        else:
            inner_index = tuple(loop.index for loop in (*(loops[axis] for axis in sorted(inner)), *extra))
            make = {Kind.REDUCTION: reduce_along, Kind.POOL: pool_along, Kind.CONTRACTION: contract_along}[
                kind
            ]
            name = make(body, value, index, inner_index)
        body.define_at(value, index, name)
        return group

    def _join(self, group: FusionGroup, value: Value, kind: Kind) -> bool:
        if self.inlining.kinds[group.values[0]] is Kind.SCATTER:
            return False
        body = group.body.copy()
        try:
            if kind is Kind.REDUCTION:
                return self._join_reduction(group, body, value)
            return self._join_pointwise(group, body, value)
        except NotHere:
            return False

    def _join_pointwise(self, group: FusionGroup, body: Body, value: Value) -> bool:
        kept, outer = group.kept
        where: list[tuple[Shape, Index]] = [(kept, outer)]
        if group.inner and not group.extra:
            where.insert(0, (group.domain, group.index))
        for shape, index in where:
            if shape is group.domain and group.inner and self._starved(group, kept):
                continue
            place = position(value.shape, shape, index, body.ranges)
            if place is None:
                continue
            trial = body.copy()
            try:
                name = trial.make(value, place)
            except NotHere:
                continue
            trial.define_at(value, place, name)
            group.body = trial
            return True
        return group.anchor is not None and self._join_behind_views(group, value)

    def _join_behind_views(self, group: FusionGroup, value: Value) -> bool:
        """Join an anchor through permutes: at the place of `value` that the anchor's own place becomes by them."""
        place = Places(group.body, self.inlining).of(value)
        column = group.loops[1 if group.root_is_convolution else -1]
        if place is None or any(_divides(one, column) for one in place):
            return False
        side_by_side = bool(place) and isinstance(place[-1], Expr) and column.name in names(place[-1])
        anchor = group.values[0]
        if not side_by_side and anchor.op_name in {"matmul", "conv"} and pays_for_copies(anchor):
            return False
        trial = group.body.copy()
        try:
            name = trial.make(value, place)
        except NotHere:
            return False
        trial.define_at(value, place, name)
        group.body = trial
        return True

    def _join_reduction(self, group: FusionGroup, body: Body, value: Value) -> bool:
        axes = frozenset(reduction_axes(value))
        if value.operands[0].shape != group.domain or group.anchor is not None or group.extra:
            return False
        if group.inner and (group.inner != axes or self.inlining.kinds[group.values[0]] is Kind.SCAN):
            return False
        if not group.inner and self._is_cut(group):
            return False
        before, group.inner = group.inner, axes
        kept, outer = group.kept
        fits = bool(before) or not self._starved(group, kept)
        if fits:
            try:
                name = reduce_along(body, value, outer, tuple(group.index[axis] for axis in sorted(axes)))
            except NotHere:
                fits = False
        if not fits:
            group.inner = before
            return False
        body.define_at(value, outer, name)
        group.body = body
        return True

    def _is_cut(self, group: FusionGroup) -> bool:
        """Whether the loops of a pointwise nest will be cut at the parts of a concat: with a reduction they could not
        be, and every element would ask which part it is in, a vector of them for each."""
        elements = product(group.domain)
        return (
            self.most_parts > 1
            and not (isinstance(elements, int) and elements < _FEW_ELEMENTS)
            and cuts_of(group.loops, group.body, self.most_parts) is not None
        )

    def _starved(self, group: FusionGroup, kept: Shape) -> bool:
        """Whether too few threads would find work if the inner loops did more than reduce."""
        turns, inner = product(kept), product(group.domain[axis] for axis in group.inner)
        return (
            isinstance(turns, int)
            and turns < FEW_TURNS
            and not (isinstance(inner, int) and inner <= MANY_INNER)
        )

    def ordered(self) -> list[FusionGroup]:
        """Groups in an order in which they can run."""
        done = 0
        result: list[FusionGroup] = []
        left = list(self.groups)
        while left:
            ready = next(group for group in left if group.before & ~done == 0)
            result.append(ready)
            done |= 1 << ready.number
            left.remove(ready)
        return result


def position(shape: Shape, domain: Shape, index: Index, ranges: Ranges) -> Index | None:
    """The index into `shape` at the place of `index` in a domain of as many elements; None for another number."""
    if shape == domain:
        return index
    size: Dim = product(shape)
    if not proves_equal(size, product(domain)):
        return None
    return ranges.unflatten(flatten(index, domain), shape)


class Places:
    """Where values stand that are made of a body's own values by views and pointwise ops: their index, given its."""

    def __init__(self, body: Body, inlining: Inlining) -> None:
        self.body, self.inlining = body, inlining
        self._known: dict[Value, Index | None] = {}

    def of(self, value: Value) -> Index | None:
        """The index; None where no own value is among what it is made of, or a view on the way cannot be turned."""
        own = self.body.own.get(value)
        if own is not None:
            return own
        if value not in self._known:
            self._known[value] = self._through(value)
        return self._known[value]

    def _through(self, value: Value) -> Index | None:
        pointwise, name = Trait.POINTWISE in value.op.traits, value.op_name
        if not pointwise and name not in {"permute", "reshape"}:
            return None
        for operand in value.operands:
            if self.inlining.is_stored(operand) and operand not in self.body.own:
                continue
            index = self.of(operand)
            if index is None:
                continue
            if name == "permute":
                return tuple(index[axis] for axis in value.attrs["order"])
            if name == "reshape":
                return position(value.shape, operand.shape, index, self.body.ranges)
            return index
        return None


def _divides(place: Dim, column: Loop) -> bool:
    """Whether an index asks for a part of the column's number: that is a division an element."""
    if not isinstance(place, Expr):
        return False
    parts = [one for monomial, _ in place.terms for one, _ in monomial if isinstance(one, Opaque)]
    return any(column.name in names(arg) for part in parts for arg in part.args)
