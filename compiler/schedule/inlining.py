"""Inlining: decides which values are inlined into their users, and which a loop nest computes as a whole.

A nest computes as a whole: outputs, reductions, products, operands that anchors read through strides, and pointwise
values that have several users and are too expensive to be computed twice. Every other value is inlined: computed again
inside each user. A value that only its own nest reads is never stored, so that inlining too little costs nothing.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterable, Sequence

from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import Shape, Trait
from kernels_hub.compiler.ir.types import DType
from kernels_hub.compiler.schedule.choices import Choices
from kernels_hub.compiler.schedule.expand import is_laid_out, is_written_out
from kernels_hub.compiler.schedule.index import Ranges, linear, permuted, row_major
from kernels_hub.compiler.schedule.lower import INLINE, ORDERS, POOLS, REDUCTIONS, SCANS, SCATTERS, repeats
from kernels_hub.compiler.schedule.ordered import SORTED
from kernels_hub.compiler.schedule.scores import ANCHOR_DTYPES, attention_parts
from kernels_hub.compiler.schedule.stages import REGIONS, why_no_region
from kernels_hub.compiler.schedule.views import Index, loops_of, walk

EXPENSIVE_COST = 8
"""Weight of an expensive op (`Op.is_expensive`) in the cost of inlining a value; any other pointwise op weighs 1."""

REPEATED_PRICE = 3
"""The cost and the loads of a value that a broadcast repeats at least `OFTEN` times, in a result of at least
`MANY_ELEMENTS`, for it to be stored, on a CPU: one load is what it costs then."""
OFTEN = 3
OVERLAPPING = 2
"""How many windows have an element in common, from where on it is computed once."""
MANY_ELEMENTS = 16384

TINY_DEPTH = 8
TINY_PRODUCT = 4096
"""Multiplications of a matrix of a batch, up to which its product is written out."""

MOST_PERMUTED = 5
"""The highest rank for which other orders of the dims in memory are tried."""
MOST_COST = 256
"""The highest cost at which a value with one user is inlined: beyond it nests are unreadable, and spill registers."""

DTYPES: frozenset[DType] = frozenset(
    {
        types.BOOL, types.INT8, types.INT16, types.INT32, types.INT64, types.UINT8, types.UINT16, types.UINT32,
        types.UINT64, types.FLOAT16, types.BFLOAT16, types.FLOAT32, types.FLOAT64,
    }
)  # fmt: skip


class Kind(enum.Enum):
    """The kind of loop nest that computes a value."""

    POINTWISE = enum.auto()
    REDUCTION = enum.auto()
    SCAN = enum.auto()
    SCATTER = enum.auto()
    POOL = enum.auto()
    CONTRACTION = enum.auto()  # multiplied out by loops
    PRODUCT = enum.auto()
    CONVOLUTION = enum.auto()
    ATTENTION = enum.auto()
    GROUPED = enum.auto()
    FEW_BITS = enum.auto()
    ORDER = enum.auto()
    RECURRENCE = enum.auto()
    TREES = enum.auto()
    COUPLING = enum.auto()
    FOURIER = enum.auto()


ANCHORS = frozenset(
    {
        Kind.PRODUCT, Kind.CONVOLUTION, Kind.ATTENTION, Kind.GROUPED, Kind.FEW_BITS, Kind.ORDER, Kind.RECURRENCE,
        Kind.TREES, Kind.COUPLING, Kind.FOURIER,
    }
)  # fmt: skip

NATIVE_ONLY = (
    ORDERS
    | SORTED
    | SCATTERS
    | {"grouped_matmul", "matmul_few_bits", "recurrent", "tree_ensemble", "pairwise_coupling", "fourier"}
)
"""Ops that have a kernel in C++, and no form in the language of GPU kernels."""

_ALWAYS: dict[str, Kind] = {
    **dict.fromkeys(REDUCTIONS, Kind.REDUCTION),
    **dict.fromkeys(SCANS, Kind.SCAN),
    **dict.fromkeys(POOLS, Kind.POOL),
    **dict.fromkeys(ORDERS, Kind.ORDER),
}


def kind_of(value: Value, dtypes: frozenset[DType] = ANCHOR_DTYPES) -> Kind | None:
    """How a value is made for itself; None where no nest can. dtypes: those that anchors take."""
    name, traits = value.op_name, value.op.traits
    if name == "resize" and repeats(value) is None:
        return None
    if Trait.POINTWISE in traits or Trait.VIEW in traits or name in INLINE or Trait.LEAF in traits:
        return Kind.POINTWISE
    if name in _ALWAYS:
        return _ALWAYS[name]
    if name in SCATTERS:
        return Kind.SCATTER if value.dtype is not types.BOOL or value.attrs["reduction"] == "none" else None
    if name in {"matmul", "conv"}:
        if _is_plain(value, dtypes):
            return Kind.PRODUCT if name == "matmul" else _convolution(value)
        return Kind.CONTRACTION
    if name == "call" and attention_parts(value, dtypes) is not None:
        return Kind.ATTENTION
    if name == "grouped_matmul":
        return Kind.GROUPED if _is_plain(value, dtypes) else None
    if name == "matmul_few_bits":
        return Kind.FEW_BITS if _has_few_bits(value) else None
    if name == "recurrent":
        return Kind.RECURRENCE if _is_native(value) else None
    if name == "tree_ensemble":
        return Kind.TREES if value.operands[1].dtype is types.INT64 else None
    if name == "pairwise_coupling":
        return Kind.COUPLING if value.dtype is types.FLOAT32 else None
    if name == "fourier":
        return Kind.FOURIER
    return None


def _has_few_bits(value: Value) -> bool:
    """Whether a product with a weight of few bits is of dtypes that the runtime takes, and the weight of known size."""
    a, w, scales = value.operands[:3]
    narrow = {a.dtype, scales.dtype} <= ANCHOR_DTYPES and value.dtype in {a.dtype, types.FLOAT32}
    return narrow and all(isinstance(dim, int) for dim in (*w.shape, a.shape[1]))


def _is_native(value: Value) -> bool:
    """Whether a recurrent cell is of float32, but for a weight of int8, and its lengths of int64."""
    *floats, last = value.operands
    if value.attrs["quantized"]:
        del floats[1]
    lengths = last.dtype is types.INT64 if value.attrs["lengths"] else last.dtype is types.FLOAT32
    return lengths and all(one.dtype is types.FLOAT32 for one in floats)


def _is_plain(value: Value, dtypes: frozenset[DType]) -> bool:
    """Whether a product is of one dtype that anchors take, and summed in float32."""
    first = value.operands[0].dtype
    same = all(operand.dtype is first for operand in value.operands[:2])
    result = value.dtype in {first, types.FLOAT32} and value.attrs["accumulate"] in {None, types.FLOAT32}
    return first in dtypes and same and result


def _is_tiny(value: Value) -> bool:
    """Whether a product is of many matrices so small that readying each for a kernel takes longer than the loops."""
    if value.op_name != "matmul" or any(operand.rank < 3 for operand in value.operands):
        return False
    *_, rows, depth = value.operands[0].shape
    sizes = (rows, depth, value.shape[-1])
    if not all(isinstance(size, int) for size in sizes):
        return False
    return depth <= TINY_DEPTH and math.prod(sizes) <= TINY_PRODUCT


def _convolution(value: Value) -> Kind:
    fixed = all(isinstance(dim, int) for dim in (*value.operands[1].shape, *value.shape[1:2]))
    flat = [one for pair in value.attrs["padding"] for one in pair]
    known = fixed and all(isinstance(one, int) for one in flat)
    return Kind.CONVOLUTION if known and 3 <= value.rank <= 5 else Kind.CONTRACTION


def unsupported(graph: Graph, dtypes: frozenset[DType] = ANCHOR_DTYPES) -> dict[Value, str]:
    """Values that no nest can make, each with the reason. dtypes: those that anchors take."""
    found: dict[Value, str] = {}
    for node in graph.live():
        for value in node.results:
            if node.op.defines is not None or len(node.results) != 1 or kind_of(value, dtypes) is None:
                found[value] = f"{node.op.name} has no loop form"
            elif value.dtype not in DTYPES:
                found[value] = f"{value.dtype} has no C type"
    return found


def refused(
    graph: Graph, dtypes: frozenset[DType] = ANCHOR_DTYPES, *, regions: bool = False
) -> dict[Value, str]:
    """Values of a graph, before it is expanded, that no nest can make; those whose sizes only the data tell, too.

    dtypes: those that anchors take. regions: whether loops and branches are taken whose parts have a schedule.
    """
    reasons: dict[Value, str] = {}
    callees: dict[int, str | None] = {}
    for node in graph.live():
        reason: str | None = None
        if node.op.name == "call" and attention_parts(node.results[0], dtypes) is None:
            callee = node.attrs["callee"]
            if id(callee) not in callees:
                inner = refused(callee, dtypes)
                callees[id(callee)] = next((f"in {callee.name}: {loop}" for loop in inner.values()), None)
            reason = callees[id(callee)]
        elif node.op.defines is not None or any(symbol.name in graph.definers for symbol in node.symbols()):
            reason = "its size is only known from the data"
        elif node.op.name in REGIONS:
            reason = "loops and branches are native code on the CPU alone"
            if regions:
                reason = why_no_region(node, lambda body: refused(body, dtypes, regions=True))
        elif not is_written_out(node) and (
            len(node.results) != 1 or kind_of(node.results[0], dtypes) is None
        ):
            reason = f"{node.op.name} has no loop form"
        for value in node.results:
            if value.dtype not in DTYPES:
                reason = f"{value.dtype} has no C type"
            if reason is not None:
                reasons[value] = reason
    return reasons


class Inlining:
    """Which values of an expanded graph are inlined. dtypes: those that anchors take. cpu: whether it is for one.

    kinds: the values that are not, in the order of the graph, and the kind of nest of each.
    """

    def __init__(
        self,
        graph: Graph,
        dtypes: frozenset[DType] = ANCHOR_DTYPES,
        choices: Choices | None = None,
        *,
        cpu: bool = True,
    ) -> None:
        self.graph, self.dtypes, self.cpu = graph, dtypes, cpu
        self.choices = choices or Choices()
        self.products = [
            value
            for node in graph.live()
            for value in node.results
            if kind_of(value, dtypes) in {Kind.PRODUCT, Kind.CONVOLUTION}
        ]
        looped = self.choices.places("loops")
        self._looped = {
            value for index, value in enumerate(self.products) if index in looped or (cpu and _is_tiny(value))
        }
        self.shared: list[Value] = []
        """Values that are inlined or not only because they have several users; `Choices.again` inlines them."""
        self.kinds: dict[Value, Kind] = {}
        self.cost: dict[Value, int] = {}
        self.loads: dict[Value, frozenset[Value]] = {}
        """The values in memory that inlining a value reads."""
        self.in_memory = {
            value
            for node in graph.live()
            for value in node.results
            if node.op.name in {"input", "parameter"} or (value.array is not None and value.array.size != 1)
        }
        self.outputs = set(graph.outputs.values())
        self.orders: dict[Value, tuple[int, ...]] = {}
        """Order of a value's dims in memory, slowest first, with which its readers need no copy."""
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
            own = EXPENSIVE_COST if value.op.is_expensive else 1
        elif value.op_name in INLINE - {"iota", "size"}:
            own = 2
        inline = [operand for operand in value.operands if not self.is_stored(operand)]
        self.cost[value] = own + sum(self.cost[one] for one in inline)
        stored = frozenset(operand for operand in value.operands if self.is_stored(operand))
        self.loads[value] = stored.union(*(self.loads[one] for one in inline))

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
        loads, cost = len(self.loads[value]), self.cost[value]
        return (cost <= 3 and loads <= 1) or (cost < EXPENSIVE_COST and loads == 0)

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
        """Keep operands from being inlined where a node reads their elements more than once."""
        name = node.op.name
        if name in {"broadcast", "strided"}:
            self._read_repeatedly(node, value)
        elif name in {"gather", "gather_elements", "gather_nd"}:
            self._once(node.operands[:1], 1)
            self._once(node.operands[1:], EXPENSIVE_COST)
        elif name in POOLS or name in {"concat", "resize"}:
            self._once(node.operands, 1 if name in POOLS else EXPENSIVE_COST)
        elif name in {"matmul", "conv"}:
            for operand in node.operands:
                if self._kind(value) is Kind.CONTRACTION:
                    self._once((operand,), 1)
                else:
                    self.strided(operand)
        elif name in SCATTERS:
            self._once(node.operands[1:2], EXPENSIVE_COST)
        elif name in NATIVE_ONLY:
            for operand in node.operands:
                self.strided(operand)
        elif name == "call":
            parts = attention_parts(value, self.dtypes)
            if parts is not None:
                for operand in parts.strided:
                    self.strided(operand)
                self._once(node.operands[len(parts.strided) :], 2)  # but masks of positions

    def _read_repeatedly(self, node: Node, value: Value) -> None:
        """The same of a broadcast, or of windows, which may overlap."""
        if node.op.name == "strided":
            if self._repeats_much(value, OVERLAPPING):
                self._once([self._unpadded(node.operands[0])], 1, REPEATED_PRICE)
            return
        self._once(node.operands[:1], EXPENSIVE_COST)
        if self._repeats_much(value, OFTEN):
            self._once(node.operands[:1], 1, REPEATED_PRICE)

    def _unpadded(self, value: Value) -> Value:
        """What a padded value is made of: whether an element is padding is asked once for a run of them."""
        while not self.is_stored(value) and (value.op_name == "pad" or Trait.VIEW in value.op.traits):
            value = value.operands[0]
        return value

    def _repeats_much(self, value: Value, often: int) -> bool:
        """Whether each element of what a view repeats would be computed so often that a nest of its own pays.

        That of a GPU is a launch, which takes as long as thousands of elements do.
        """
        size, repeated = product(value.shape), product(value.operands[0].shape)
        if not self.cpu or not isinstance(size, int) or not isinstance(repeated, int):
            return False
        return size >= MANY_ELEMENTS and size >= often * repeated

    def _once(self, operands: Iterable[Value], cost: int, price: int = 0) -> None:
        for operand in operands:
            base = operand
            while Trait.VIEW in base.op.traits and not self.is_stored(base):
                base = base.operands[0]
            if not self.is_stored(base) and self.cost[base] >= cost and base.rank and self.loads[base]:
                loads = sum(
                    2 if one.dtype is types.BOOL else 1 for one in self.loads[base]
                )  # bools are widened
                if self.cost[base] + loads >= price:
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
        """Keep a value from being inlined."""
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
