"""Which units share a nest.

Units are taken in the order of the graph. Each joins the nest of something that it reads, the latest first, if
that leaves no cycle among nests and if all that it reads of that nest is read at the place where it was just made:
then it is in a register. Else it begins a nest of its own. Joining is tried by lowering the unit into a copy of the
nest's body (`Body.at` raises `NotHere` where the place is another), so that what is accepted is what is run.

A nest begins with the loops of its first unit; a reduction that joins makes the loops that it sums over inner ones. A
running sum is the first of its nest, and only pointwise units join it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Shape
from kernels_hub.compiler.ir.proofs import proves_equal
from kernels_hub.compiler.schedule.index import Loop, Ranges, flatten
from kernels_hub.compiler.schedule.kernel import Buffer, Root
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
from kernels_hub.compiler.schedule.units import ROOTS, Kind, Units
from kernels_hub.compiler.schedule.views import Index

FEW_TURNS = 16
"""Nests with fewer turns of the outer loops than this, and many inner ones, keep to the reduction alone: one thread
would do the rest."""
MANY_INNER = 4096


@dataclass
class Group:
    """A nest in the making. domain: dims of its first unit; loops: one for each; inner: which of these are inner."""

    number: int
    domain: Shape
    loops: tuple[Loop, ...]
    body: Body
    prepared: bool
    inner: frozenset[int] = frozenset()
    extra: tuple[Loop, ...] = ()
    """Inner loops that are no dims of the domain: windows of pools, sums of products."""
    root: Root | None = None
    units: list[Value] = field(default_factory=list)
    before: int = 0
    """Groups that must run earlier, as bits."""

    @property
    def index(self) -> Index:
        """The place in the domain."""
        return tuple(loop.index for loop in self.loops)

    @property
    def kept(self) -> tuple[Shape, Index]:
        """Dims and variables of the outer loops, in the order of the domain."""
        axes = [axis for axis in range(len(self.domain)) if axis not in self.inner]
        return tuple(self.domain[axis] for axis in axes), tuple(self.index[axis] for axis in axes)


class Fusion:
    """Groups of an expanded graph's units. make_root: the root of a unit that has one, given its loops.

    apart: numbers of units that join no nest.
    """

    def __init__(
        self,
        units: Units,
        buffer_of: Callable[[Value], Buffer | None],
        make_root: Callable[[Value, tuple[Loop, ...], str], Root],
        prepared: frozenset[Value],
        apart: frozenset[int] = frozenset(),
    ) -> None:
        self.units, self.buffer_of, self.make_root, self.prepared = units, buffer_of, make_root, prepared
        self.groups: list[Group] = []
        self.group_of: dict[Value, Group] = {}
        self.joined: list[int] = []
        """Units, by their number, that joined the nest of another."""
        for number, (value, kind) in enumerate(units.kinds.items()):
            if self._place(value, kind, alone=number in apart):
                self.joined.append(number)

    def _place(self, value: Value, kind: Kind, *, alone: bool) -> bool:
        """Whether it joined a nest that was there."""
        sources = self._reads(value)
        behind = {self.group_of[one].number for one in sources if one in self.group_of}
        ancestors = 0
        for number in behind:
            ancestors |= self.groups[number].before | 1 << number
        if kind in {Kind.POINTWISE, Kind.REDUCTION} and not alone:
            for number in sorted(behind, reverse=True):
                group = self.groups[number]
                cyclic = any(self.groups[one].before >> number & 1 for one in behind if one != number)
                if (
                    not cyclic
                    and group.prepared == (value in self.prepared)
                    and self._join(group, value, kind)
                ):
                    self._account(group, value, ancestors & ~(1 << number))
                    return True
        group = self._begin(value, kind)
        self.groups.append(group)
        self._account(group, value, ancestors)
        return False

    def _account(self, group: Group, value: Value, ancestors: int) -> None:
        group.units.append(value)
        self.group_of[value] = group
        if ancestors & ~group.before:
            group.before |= ancestors
            for other in self.groups:
                if other.before >> group.number & 1:
                    other.before |= group.before

    def _reads(self, value: Value) -> list[Value]:
        """Units that are read to make this one."""
        found: dict[Value, None] = {}
        stack, seen = list(value.operands), set()
        while stack:
            one = stack.pop()
            if one in seen:
                continue
            seen.add(one)
            if one in self.units.kinds:
                found[one] = None
            else:
                stack += one.operands
        return list(found)

    def _begin(self, value: Value, kind: Kind) -> Group:
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
        group = Group(number, shape, loops, body, value in self.prepared, inner, extra)
        if kind in ROOTS:
            name = "root"
            group.root = self.make_root(value, loops, name)
            body.define_at(value, group.index, name)
            return group
        index = group.index if kind is Kind.SCAN else group.kept[1]
        if kind is Kind.POINTWISE:
            name = body.make(value, index)
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

    def _join(self, group: Group, value: Value, kind: Kind) -> bool:
        body = group.body.copy()
        try:
            if kind is Kind.REDUCTION:
                return self._join_reduction(group, body, value)
            return self._join_pointwise(group, body, value)
        except NotHere:
            return False

    def _join_pointwise(self, group: Group, body: Body, value: Value) -> bool:
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
        return False

    def _join_reduction(self, group: Group, body: Body, value: Value) -> bool:
        axes = frozenset(reduction_axes(value))
        if value.operands[0].shape != group.domain or group.root is not None or group.extra:
            return False
        if group.inner and (group.inner != axes or self.units.kinds[group.units[0]] is Kind.SCAN):
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

    def _starved(self, group: Group, kept: Shape) -> bool:
        """Whether too few threads would find work if the inner loops did more than reduce."""
        turns, inner = product(kept), product(group.domain[axis] for axis in group.inner)
        return (
            isinstance(turns, int)
            and turns < FEW_TURNS
            and not (isinstance(inner, int) and inner <= MANY_INNER)
        )

    def ordered(self) -> list[Group]:
        """Groups in an order in which they can run."""
        done = 0
        result: list[Group] = []
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
