"""Which values are made for themselves, and which only as parts of those.

A unit is a value that a nest makes as a whole: outputs, reductions, products, what roots read through strides, and
pointwise values that several others use and that are dear enough not to be computed twice. All else is computed
inside of what uses it. A unit that only its own nest uses never reaches memory, so that one too many costs nothing.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Sequence

from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import Shape, Trait
from kernels_hub.compiler.ir.types import DType
from kernels_hub.compiler.schedule.choices import Choices
from kernels_hub.compiler.schedule.expand import is_laid_out
from kernels_hub.compiler.schedule.index import Ranges, linear, permuted, row_major
from kernels_hub.compiler.schedule.lower import INLINE, ORDERS, POOLS, REDUCTIONS, SCANS, repeats
from kernels_hub.compiler.schedule.scores import ROOT_DTYPES, attention_parts
from kernels_hub.compiler.schedule.views import Index, loops_of, walk

DEAR = frozenset(
    {
        "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos", "atan",
        "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "sigmoid", "div", "floordiv", "mod", "fmod", "pow",
        "atan2",
    }
)  # fmt: skip
"""Ops that cost as much as reading an element from memory, or more."""

DEAR_COST = 8
MOST_PERMUTED = 5
"""The highest rank for which other orders of the dims in memory are tried."""
MOST_COST = 256
"""Above this, a value is a unit even where one other uses it: nests stay readable, and registers suffice."""

DTYPES: frozenset[DType] = frozenset(
    {
        types.BOOL, types.INT8, types.INT16, types.INT32, types.INT64, types.UINT8, types.UINT16, types.UINT32,
        types.UINT64, types.FLOAT16, types.BFLOAT16, types.FLOAT32, types.FLOAT64,
    }
)  # fmt: skip


class Kind(enum.Enum):
    """How a unit is made."""

    POINTWISE = enum.auto()
    REDUCTION = enum.auto()
    SCAN = enum.auto()
    POOL = enum.auto()
    CONTRACTION = enum.auto()  # multiplied out by loops
    PRODUCT = enum.auto()
    CONVOLUTION = enum.auto()
    ATTENTION = enum.auto()
    GROUPED = enum.auto()
    ORDER = enum.auto()


ROOTS = frozenset({Kind.PRODUCT, Kind.CONVOLUTION, Kind.ATTENTION, Kind.GROUPED, Kind.ORDER})


def kind_of(value: Value, dtypes: frozenset[DType] = ROOT_DTYPES) -> Kind | None:
    """How a value is made for itself; None where no nest can. dtypes: those that roots take."""
    name, traits = value.op_name, value.op.traits
    if name == "resize" and repeats(value) is None:
        return None
    if Trait.POINTWISE in traits or Trait.VIEW in traits or name in INLINE or Trait.LEAF in traits:
        return Kind.POINTWISE
    if name in REDUCTIONS:
        return Kind.REDUCTION
    if name in SCANS:
        return Kind.SCAN
    if name in POOLS:
        return Kind.POOL
    if name in {"matmul", "conv"}:
        if _is_plain(value, dtypes):
            return Kind.PRODUCT if name == "matmul" else _convolution(value)
        return Kind.CONTRACTION
    if name == "call" and attention_parts(value, dtypes) is not None:
        return Kind.ATTENTION
    if name in ORDERS:
        return Kind.ORDER
    if name == "grouped_matmul":
        return Kind.GROUPED if _is_plain(value, dtypes) else None
    return None


def _is_plain(value: Value, dtypes: frozenset[DType]) -> bool:
    """Whether a product is of one dtype that roots take, and summed in float32."""
    first = value.operands[0].dtype
    same = all(one.dtype is first for one in value.operands[:2])
    result = value.dtype in {first, types.FLOAT32} and value.attrs["accumulate"] in {None, types.FLOAT32}
    return first in dtypes and same and result


def _convolution(value: Value) -> Kind:
    fixed = all(isinstance(dim, int) for dim in (*value.operands[1].shape, *value.shape[1:2]))
    flat = [one for pair in value.attrs["padding"] for one in pair]
    known = fixed and all(isinstance(one, int) for one in flat)
    return Kind.CONVOLUTION if known and 3 <= value.rank <= 5 else Kind.CONTRACTION


def unsupported(graph: Graph, dtypes: frozenset[DType] = ROOT_DTYPES) -> dict[Value, str]:
    """Values that no nest can make, each with the reason. dtypes: those that roots take."""
    found: dict[Value, str] = {}
    for node in graph.live():
        for value in node.results:
            if node.op.defines is not None or len(node.results) != 1 or kind_of(value, dtypes) is None:
                found[value] = f"{node.op.name} has no loop form"
            elif value.dtype not in DTYPES:
                found[value] = f"{value.dtype} has no C type"
    return found


WRITTEN_OUT = frozenset({"softmax", "log_softmax", "reduce_mean"})
"""Ops that `expand` writes out."""


def refused(graph: Graph, dtypes: frozenset[DType] = ROOT_DTYPES) -> dict[Value, str]:
    """Values of a graph, before it is expanded, that no nest can make; those whose sizes only the data tell, too.

    dtypes: those that roots take.
    """
    found: dict[Value, str] = {}
    callees: dict[int, str | None] = {}
    for node in graph.live():
        reason: str | None = None
        if node.op.name == "call" and attention_parts(node.results[0], dtypes) is None:
            callee = node.attrs["callee"]
            if id(callee) not in callees:
                inner = refused(callee, dtypes)
                callees[id(callee)] = next((f"in {callee.name}: {one}" for one in inner.values()), None)
            reason = callees[id(callee)]
        elif node.op.defines is not None or any(one.name in graph.definers for one in node.symbols()):
            reason = "its size is only known from the data"
        elif node.op.name not in WRITTEN_OUT and (
            len(node.results) != 1 or kind_of(node.results[0], dtypes) is None
        ):
            reason = f"{node.op.name} has no loop form"
        for value in node.results:
            if value.dtype not in DTYPES:
                reason = f"{value.dtype} has no C type"
            if reason is not None:
                found[value] = reason
    return found


class Units:
    """The units of an expanded graph, in the order of its nodes. dtypes: those that roots take."""

    def __init__(
        self, graph: Graph, dtypes: frozenset[DType] = ROOT_DTYPES, choices: Choices | None = None
    ) -> None:
        self.graph, self.dtypes = graph, dtypes
        self.choices = choices or Choices()
        self.products = [
            value
            for node in graph.live()
            for value in node.results
            if kind_of(value, dtypes) in {Kind.PRODUCT, Kind.CONVOLUTION}
        ]
        looped = self.choices.places("loops")
        self._looped = {value for place, value in enumerate(self.products) if place in looped}
        self.shared: list[Value] = []
        """Values that are units, or would be, for nothing but that several use them."""
        self.kinds: dict[Value, Kind] = {}
        self.cost: dict[Value, int] = {}
        self.loads: dict[Value, int] = {}
        self.in_memory = {
            value
            for node in graph.live()
            for value in node.results
            if node.op.name in {"input", "parameter"} or (value.array is not None and value.array.size != 1)
        }
        self.outputs = set(graph.outputs.values())
        self.orders: dict[Value, tuple[int, ...]] = {}
        """In which order the dims of a unit should lie in memory, slowest first, so that who reads it needs no copy."""
        for node in graph.live():
            for value in node.results:
                self._read(node, value)
                self._weigh(value)
                if (value in self.outputs and value not in self.in_memory) or self._is_own(value):
                    self._add(value)
        self._sort()

    def is_stored(self, value: Value) -> bool:
        """Whether a value has memory of its own."""
        return value in self.in_memory or value in self.kinds

    def _add(self, value: Value) -> None:
        if value not in self.kinds:
            kind = self._kind(value)
            assert kind is not None, value
            self.kinds[value] = kind

    def _kind(self, value: Value) -> Kind | None:
        return Kind.CONTRACTION if value in self._looped else kind_of(value, self.dtypes)

    def _weigh(self, value: Value) -> None:
        own = 0
        if Trait.POINTWISE in value.op.traits:
            own = DEAR_COST if value.op_name in DEAR else 1
        elif value.op_name in INLINE - {"iota", "size"}:
            own = 2
        inline = [one for one in value.operands if not self.is_stored(one)]
        self.cost[value] = own + sum(self.cost[one] for one in inline)
        self.loads[value] = len(value.operands) - len(inline) + sum(self.loads[one] for one in inline)

    def _is_own(self, value: Value) -> bool:
        if value in self.in_memory or Trait.LEAF in value.op.traits:
            return False
        if self._kind(value) is not Kind.POINTWISE:
            return True
        if Trait.VIEW in value.op.traits:
            return is_laid_out(value)
        if self.cost[value] > MOST_COST:
            return True
        if self._consumers(value) < 2 or self._is_cheap(value):
            return False
        self.shared.append(value)
        return len(self.shared) - 1 not in self.choices.places("again")

    def _is_cheap(self, value: Value) -> bool:
        """Whether a value is computed anew wherever it is used: of an element, or of nothing but where it stands."""
        loads, cost = self.loads[value], self.cost[value]
        return (cost <= 3 and loads <= 1) or (cost < DEAR_COST and loads == 0)

    def _consumers(self, value: Value) -> int:
        """How many nodes that are no views use a value, itself or through views."""
        total = 0
        for user in value.users:
            if Trait.VIEW in user.op.traits:
                total += self._consumers(user.results[0])
            else:
                total += 1
        return total

    def _read(self, node: Node, value: Value) -> None:
        """Make units of operands that are read in a way which would compute them more than once."""
        name = node.op.name
        if name == "broadcast":
            self._once(node.operands[:1], DEAR_COST)
        elif name in {"gather", "gather_elements", "gather_nd"}:
            self._once(node.operands[:1], 1)
            self._once(node.operands[1:], DEAR_COST)
        elif name in POOLS or name in {"concat", "resize"}:
            self._once(node.operands, 1 if name in POOLS else DEAR_COST)
        elif name in {"matmul", "conv"}:
            for operand in node.operands:
                if self._kind(value) is Kind.CONTRACTION:
                    self._once((operand,), 1)
                else:
                    self.strided(operand)
        elif name in ORDERS or name == "grouped_matmul":
            for operand in node.operands:
                self.strided(operand)
        elif name == "call":
            parts = attention_parts(value, self.dtypes)
            if parts is not None:
                for operand in (parts.q, parts.k, parts.v):
                    self.strided(operand)
                self._once(node.operands[3:], 2)  # but masks of positions

    def _once(self, operands: Iterable[Value], cost: int) -> None:
        for operand in operands:
            base = operand
            while Trait.VIEW in base.op.traits and not self.is_stored(base):
                base = base.operands[0]
            if not self.is_stored(base) and self.cost[base] >= cost and base.rank and self.loads[base]:
                self._add(base)

    def strided(self, operand: Value) -> None:
        """See that an operand lies in memory, in strides: as it is, or with what it is a view of laid out for it."""
        loops = loops_of(operand)
        ranges, names = Ranges(loops), [loop.name for loop in loops]
        stored = self.kinds.keys() | self.in_memory
        base, index = walk(operand, tuple(loop.index for loop in loops), ranges, stored)
        if _linear(index, row_major(base.shape), names) is not None:
            self._add_unless_stored(base)
        elif (order := self._order_for(base, index, names)) is not None:
            self._add_unless_stored(base)
            self.orders[base] = order
        else:
            self._add_unless_stored(operand)

    def _order_for(self, base: Value, index: Index, names: Sequence[str]) -> tuple[int, ...] | None:
        """An order of the dims of `base` in which the index is linear; its last variable fastest, if that can be."""
        free = base not in self.in_memory and base not in self.outputs and base not in self.orders
        if not free or not 2 <= base.rank <= MOST_PERMUTED:
            return None
        fitting = [
            (order, found)
            for order in itertools.permutations(range(base.rank))
            if (found := _linear(index, permuted(base.shape, order), names)) is not None
        ]
        dense = [order for order, strides in fitting if strides[names[-1]] == 1]
        return next(iter(dense), None) or next((order for order, _ in fitting), None)

    def _add_unless_stored(self, value: Value) -> None:
        if not self.is_stored(value):
            self._add(value)

    def force(self, value: Value) -> None:
        """Make a value a unit that is none yet."""
        self._add(value)
        self._sort()

    def _sort(self) -> None:
        self.kinds = dict(sorted(self.kinds.items(), key=lambda one: one[0].id))


def _linear(index: Index, strides: Shape, names: Sequence[str]) -> dict[str, Dim] | None:
    """The stride of each variable in memory; None where there are no such."""
    place: Dim = 0
    for one, stride in zip(index, strides, strict=True):
        place = place + one * stride
    found = linear(place, names)
    return found[0] if found is not None else None
