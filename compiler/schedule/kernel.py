"""The records of a schedule: buffers, views of them, loop nests with their statements, kernels.

A nest runs its statements for every turn of its `outer` loops, in any order and in parallel; where it has `inner`
loops, these run in order inside, and a `Reduce` sums (or …) its argument over all their turns. A statement that
depends on an inner variable is computed inside, any other once a turn of the outer loops; what depends on the
result of a `Reduce` comes after all inner turns, and if it depends on inner variables too, in a second pass over them.
A `Scan` sums over the turns so far, so that what depends on it is inner; no nest has both. An `Update` writes where
data say, in the order of the inner loops; turns of the outer loops write to different places.

A nest may have an anchor: a product, a convolution, an attention, an order. Then the outer loops run over the result of
the anchor, `anchor.name` is its element there, and the statements are the epilogue.

Statements are in SSA order; names are "v0", "v1", …; places are row-major or strided positions in buffers, as
expressions of variables ("$…") and sizes. A loaded integer may stand in a place as the variable "$" + its name.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Op, Shape
from kernels_hub.compiler.ir.types import DType
from kernels_hub.compiler.schedule.choices import Choices
from kernels_hub.compiler.schedule.index import Loop, variables_in
from kernels_hub.compiler.schedule.loop_plan import LoopPlan


class Role(enum.Enum):
    """Whose memory a buffer is."""

    INPUT = "input"
    PARAMETER = "parameter"
    CONSTANT = "constant"
    OUTPUT = "output"
    SCRATCH = "scratch"  # of the arena, while a call runs
    PREPARED = "prepared"  # made of parameters and constants, once


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory for one value: dense, in the order that its strides (in elements) say."""

    name: str
    role: Role
    dtype: DType
    shape: Shape
    strides: Shape
    value: Value | None = None

    @property
    def size(self) -> Dim:
        """Elements."""
        return product(self.shape)

    @property
    def bytes(self) -> Dim:
        """Bytes, one element in whole bytes."""
        return self.size * max(self.dtype.bits // 8, 1)

    def place(self, index: tuple[Dim, ...]) -> Dim:
        """Where the element of an index lies, in elements."""
        total: Dim = 0
        for dim, stride in zip(index, self.strides, strict=True):
            total = total + dim * stride
        return total

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class View:
    """A strided window of a buffer, as anchors read their operands."""

    buffer: Buffer
    offset: Dim
    shape: Shape
    strides: Shape


@dataclass(frozen=True, slots=True)
class Guard:
    """low <= place < high."""

    place: Dim
    low: Dim
    high: Dim


@dataclass(frozen=True, slots=True)
class Load:
    """name = buffer[place]; 0 where a guard does not hold (then nothing is read)."""

    name: str
    dtype: DType
    buffer: Buffer
    place: Dim
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True, slots=True)
class Constant:
    """name = a number."""

    name: str
    dtype: DType
    value: Any


@dataclass(frozen=True, slots=True)
class Position:
    """name = an index expression as a number."""

    name: str
    dtype: DType
    place: Dim


@dataclass(frozen=True, slots=True)
class Test:
    """name = whether all guards hold."""

    name: str
    dtype: DType
    guards: tuple[Guard, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """name = an index that data gave, counted from the start of a dim: negative ones from its end.

    One that is not in -extent..extent-1 makes the call fail with `message`; until then it counts as 0.
    """

    name: str
    dtype: DType
    arg: str
    extent: Dim
    message: str


@dataclass(frozen=True, slots=True)
class Compute:
    """name = a pointwise op of values. `origin`: where in the model it comes from."""

    name: str
    dtype: DType
    op: Op
    args: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Reduce:
    """name = sum, prod, max, min, any or all of `arg` over the inner loops; argmax, argmin: the place in these."""

    name: str
    dtype: DType
    kind: str
    arg: str
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Scan:
    """name = sum, prod, max or min of `arg` over this turn of the inner loop and all before it."""

    name: str
    dtype: DType
    kind: str
    arg: str
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[place] = arg."""

    buffer: Buffer
    place: Dim
    arg: str


@dataclass(frozen=True, slots=True)
class Update(Store):
    """buffer[place] and `arg` meet there as `reduction` says (add, mul, max, min); none: the last one stays."""

    reduction: str


Definition = Load | Constant | Position | Test | Bound | Compute | Reduce | Scan
"""A statement that gives a value its name."""
Statement = Definition | Store


@dataclass(frozen=True)
class Product:
    """A matrix product. Outer loops: (batch…, m, n). a: (batch…, m, k), b: (batch…, k, n)."""

    name: str
    a: View
    b: View
    dtype: DType
    origin: str = ""

    @property
    def views(self) -> tuple[View, ...]:
        """What it reads."""
        return self.a, self.b


@dataclass(frozen=True)
class Convolution:
    """Outer loops: (n, out spatial…, out channels). x: (n, channels, spatial…), w: (out, channels/groups, kernel…)."""

    name: str
    x: View
    w: View
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: tuple[tuple[Dim, Dim], ...]
    groups: int
    dtype: DType
    origin: str = ""

    @property
    def views(self) -> tuple[View, ...]:
        """What it reads."""
        return self.x, self.w


class Weights(enum.Enum):
    """What the rows of scores become; the value is the name that it has in the C++ runtime."""

    SOFTMAX = "kSoftmax"
    SCORES = "kScores"  # themselves
    TOTAL = "kTotal"  # log(sum(exp(score))), which is the result: there is no v


@dataclass(frozen=True)
class Attention:
    """softmax(scale * q @ k^T, masked) @ v, or what `weights` says. Outer loops: (batch, heads, queries, width of v).

    q: (batch, heads, queries, width), k and v: (batch, heads of keys, keys, width); `heads` is a multiple of
    the heads of keys. `scores`: statements for one score, variables as in `score_loops` (batch, heads, queries, keys),
    from "score" (scaled) to the value named `score`. blank: a row whose scores are all -inf gives 0, not NaN.
    v: None of totals, whose results have the width 1.
    """

    name: str
    q: View
    k: View
    v: View | None
    scale: float
    score_loops: tuple[Loop, ...]
    scores: tuple[Statement, ...]
    score: str
    dtype: DType
    blank: bool = False
    origin: str = ""
    weights: Weights = Weights.SOFTMAX

    @property
    def views(self) -> tuple[View, ...]:
        """What it reads, but for what the scores load."""
        return (self.q, self.k) if self.v is None else (self.q, self.k, self.v)


@dataclass(frozen=True)
class GroupedProduct:
    """A matrix product for each group of rows. Outer loops: (m, n). a: (m, k), b: (groups, k, n).

    ends: (groups), integers: where the rows of each group end. Rows behind the last end are 0.
    """

    name: str
    a: View
    b: View
    ends: View
    dtype: DType
    origin: str = ""

    @property
    def views(self) -> tuple[View, ...]:
        """What it reads."""
        return self.a, self.b, self.ends


@dataclass(frozen=True)
class Order:
    """Where the elements of x stand along an axis, in order; equal ones as they stand, NaN the greatest.

    Outer loops: (the other dims of x…, places), of which there may be fewer than elements. kth: of the one place that
    is wanted, counted from 0; then there is no loop of places.
    """

    name: str
    x: View
    axis: int
    descending: bool
    kth: Dim | None = None
    origin: str = ""

    @property
    def views(self) -> tuple[View, ...]:
        """What it reads."""
        return (self.x,)


@dataclass(frozen=True)
class Recurrence:
    """A recurrent cell over a sequence, as the op "recurrent". Outer loops: (T + 1, states, directions, batch, hidden).

    x: (T, batch, directions * gates * hidden); weight: (directions, gates * hidden, hidden); h, c: (directions, batch,
    hidden), c of an LSTM; bias: (directions, hidden) of "gru_after"; scales, zeros: (directions, gates * hidden) where
    the weight is of int8; lengths: (batch), int64.
    """

    name: str
    cell: str
    reverse: bool
    x: View
    weight: View
    h: View
    c: View | None
    bias: View | None
    scales: View | None
    zeros: View | None
    lengths: View | None
    dtype: DType
    origin: str = ""

    @property
    def views(self) -> tuple[View, ...]:
        """What it reads."""
        given = (self.x, self.weight, self.h, self.c, self.bias, self.scales, self.zeros, self.lengths)
        return tuple(one for one in given if one is not None)


@dataclass(frozen=True)
class Trees:
    """What the leaves say that rows reach in trees, as the op "tree_ensemble". Outer loops: (rows, columns of weights).

    x: (rows, features); roots: (trees); nodes: (nodes, 4); weights: (nodes, columns).
    """

    name: str
    aggregate: str
    x: View
    roots: View
    nodes: View
    weights: View
    origin: str = ""

    @property
    def views(self) -> tuple[View, ...]:
        """What it reads."""
        return self.x, self.roots, self.nodes, self.weights


@dataclass(frozen=True)
class Coupling:
    """Probabilities of classes, as the op "pairwise_coupling". Outer loops: (rows, classes). sure: (rows, pairs)."""

    name: str
    sure: View
    origin: str = ""

    @property
    def views(self) -> tuple[View, ...]:
        """What it reads."""
        return (self.sure,)


@dataclass(frozen=True)
class FourierTransform:
    """A transform along an axis, as the op "fourier". Outer loops: those of its result.

    real, imaginary: of one shape. samples: how many are transformed.
    """

    name: str
    form: str
    inverse: bool
    axis: int
    samples: int
    scale: float
    real: View
    imaginary: View | None
    dtype: DType
    origin: str = ""

    @property
    def views(self) -> tuple[View, ...]:
        """What it reads."""
        return (self.real,) if self.imaginary is None else (self.real, self.imaginary)


@dataclass(frozen=True)
class FewBitsProduct:
    """Rows by a weight of few bits, as the op "matmul_few_bits". Outer loops: (m, n).

    a: (m, k); w: (n, blocks, bytes); scales, zeros: (n, blocks).
    """

    name: str
    bits: int
    a: View
    w: View
    scales: View
    zeros: View | None
    dtype: DType
    origin: str = ""

    @property
    def views(self) -> tuple[View, ...]:
        """What it reads."""
        return (self.a, self.w, self.scales, *(() if self.zeros is None else (self.zeros,)))


Anchor = (
    Product
    | Convolution
    | Attention
    | GroupedProduct
    | FewBitsProduct
    | Order
    | Recurrence
    | Trees
    | Coupling
    | FourierTransform
)


@dataclass(frozen=True)
class Nest:
    """See the module. plan: how it runs, where that was chosen (`loop_plan`); engines may leave it alone."""

    outer: tuple[Loop, ...]
    inner: tuple[Loop, ...]
    body: tuple[Statement, ...]
    anchor: Anchor | None = None
    plan: LoopPlan | None = None

    @property
    def reduces(self) -> bool:
        """Whether it has a `Reduce`."""
        return any(isinstance(statement, Reduce) for statement in self.body)

    @property
    def scans(self) -> bool:
        """Whether it has a `Scan`."""
        return any(isinstance(statement, Scan) for statement in self.body)

    @property
    def scatters(self) -> bool:
        """Whether it has an `Update`."""
        return any(isinstance(statement, Update) for statement in self.body)

    @property
    def accumulates(self) -> bool:
        """Whether turns of its inner loops depend on one another."""
        return self.reduces or self.scans or self.scatters

    def is_inner(self) -> dict[str, bool]:
        """Name -> whether it depends on inner variables (the result of a Reduce does not)."""
        mine = {loop.name for loop in self.inner}
        known: dict[str, bool] = {self.anchor.name: False} if self.anchor is not None else {}
        for statement in self.body:
            if isinstance(statement, (Reduce, Scan)):
                known[statement.name] = isinstance(statement, Scan)
            elif not isinstance(statement, Store):
                known[statement.name] = any(known[arg] for arg in arguments(statement)) or bool(
                    mine & variables(statement)
                )
        return known


@dataclass(frozen=True)
class Kernel:
    """Nests that run one after the other under one name; `origins`: where in the model its values come from."""

    name: str
    nests: tuple[Nest, ...]
    origins: tuple[str, ...] = ()

    def reads(self) -> dict[Buffer, None]:
        """Buffers read, each once, in order."""
        found: dict[Buffer, None] = {}
        for nest in self.nests:
            for statement in statements(nest):
                if isinstance(statement, Load):
                    found[statement.buffer] = None
            if nest.anchor is not None:
                found.update(dict.fromkeys(view.buffer for view in nest.anchor.views))
        return found

    def writes(self) -> dict[Buffer, None]:
        """Buffers written, each once, in order."""
        return {
            statement.buffer: None for nest in self.nests for statement in nest.body if isinstance(statement, Store)
        }  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """Kernels in order. `prepare` runs once, on parameters and constants alone; `kernels` at each call.

    inputs, outputs: by the names of the graph. An output may be an input's, a constant's or another output's memory:
    then a kernel copies it. `constants`: arrays of the constants' buffers by name.
    """

    name: str
    buffers: tuple[Buffer, ...]
    prepare: tuple[Kernel, ...]
    kernels: tuple[Kernel, ...]
    inputs: Mapping[str, Buffer]
    outputs: Mapping[str, Buffer]
    choices: Choices = field(default_factory=Choices)
    joined: tuple[int, ...] = ()
    """Numbers of the values that joined the fusion group of another: what `Choices.apart` takes."""
    shared: tuple[int, ...] = ()
    """Values that are made once for several users: places for `Choices.again`."""
    products: tuple[int, ...] = ()
    """Products and convolutions: places for `Choices.loops`."""

    def __str__(self) -> str:
        return _printed(self)


def statements(nest: Nest) -> Iterator[Statement]:
    """All of a nest, those of an attention's scores included."""
    yield from nest.body
    if isinstance(nest.anchor, Attention):
        yield from nest.anchor.scores


def arguments(one: Statement) -> tuple[str, ...]:
    """Names that a statement uses, those inside places included."""
    direct: tuple[str, ...] = ()
    if isinstance(one, Compute):
        direct = one.args
    elif isinstance(one, (Bound, Reduce, Scan, Store)):
        direct = (one.arg,)
    return direct + tuple(name[1:] for name in sorted(variables(one)) if name.startswith("$v"))


def dims_of(one: Statement) -> list[Dim]:
    """Every index expression in a statement."""
    places: list[Dim] = []
    if isinstance(one, (Load, Position, Store)):
        places.append(one.place)
    if isinstance(one, Bound):
        places.append(one.extent)
    if isinstance(one, (Load, Test)):
        for guard in one.guards:
            places += [guard.place, guard.low, guard.high]
    return places


def variables(one: Statement) -> frozenset[str]:
    """Variables in the places of a statement."""
    return frozenset().union(*map(variables_in, dims_of(one)))


def _printed(schedule: Schedule) -> str:
    """A line a kernel, in order: its loops, what it reads and what it writes; those that run once first."""
    lines = [f"schedule {schedule.name}: {_counted(len(schedule.kernels), 'kernel')} a call"]
    if schedule.prepare:
        lines[0] += f", {len(schedule.prepare)} once"
        lines += [_kernel_line(kernel, "once") for kernel in schedule.prepare]
    lines += [_kernel_line(kernel, "") for kernel in schedule.kernels]
    return "\n".join(lines)


def _kernel_line(kernel: Kernel, when: str) -> str:
    loops = "; ".join(_loops_text(nest) for nest in kernel.nests)
    reads, writes = (", ".join(map(_buffer_text, buffers)) for buffers in (kernel.reads(), kernel.writes()))
    return f"  {when + ' ' if when else ''}{kernel.name}: {loops}: {reads} -> {writes}"


def _loops_text(nest: Nest) -> str:
    text = "[" + ", ".join(str(loop.extent) for loop in nest.outer) + "]"
    if nest.inner:
        text += " x [" + ", ".join(str(loop.extent) for loop in nest.inner) + "]"
    return text if nest.anchor is None else f"{type(nest.anchor).__name__.lower()} {text}"


def _buffer_text(buffer: Buffer) -> str:
    return f"{buffer.name} {buffer.dtype}[{', '.join(map(str, buffer.shape))}]"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
