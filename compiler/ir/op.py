"""Rows of the op table: `Op`, its attributes, and the rules that rows are written with.

A row states everything about an op once: which operands and attributes it takes, what type it gives, what
it computes (in NumPy), how a code generator spells it, and its traits. The graph, the verifier, the printer,
the parser, the oracle, the code generators and the documentation read it; nothing else lists ops.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from kernels_hub.compiler.errors import ShapeError, TypeRuleError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim, Expr, product
from kernels_hub.compiler.ir.proofs import proves_different, proves_equal
from kernels_hub.compiler.ir.types import Array, DType

Shape = tuple[Dim, ...]
Attrs = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dtype and a shape; printed as float32[batch, 3]."""

    dtype: DType
    shape: Shape

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def rank(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def size(self) -> Dim:
        """The number of elements."""
        return product(self.shape)


class Trait(enum.Flag):
    """What rewrites and schedulers may assume of an op. Every op is pure: same operands, same results."""

    NONE = 0
    LEAF = enum.auto()  # no operands: inputs, parameters, constants, iota
    POINTWISE = enum.auto()  # element i of the result depends on elements i of the operands alone
    COMMUTATIVE = enum.auto()
    ASSOCIATIVE = enum.auto()  # exactly for integers; up to rounding for floats
    VIEW = enum.auto()  # a new way to index its operand: no element is computed
    REDUCTION = enum.auto()  # drops the dims in `axes`
    CONTRACTION = enum.auto()  # sums of products: matmul, conv
    INDEXING = enum.auto()  # reads or writes at places that data decide
    REGION = enum.auto()  # holds graphs
    STEP = enum.auto()  # piecewise constant in floats: its derivative is 0 wherever there is one
    COPY = enum.auto()  # copies elements of its operands to other places, and computes none


class Region(Protocol):
    """What an op needs of a graph that it holds as an attribute."""

    def signature(self) -> tuple[tuple[TensorType, ...], tuple[TensorType, ...]]:
        """Types of inputs and of outputs."""

    def freeze(self) -> None:
        """Refuse to be appended to from now on."""


@dataclass(frozen=True, eq=False)
class Literal:
    """A constant array as an attribute: compared by dtype, shape and bytes (so NaN equals itself, 0.0 is not -0.0)."""

    array: Array
    digest: str

    @classmethod
    def of(cls, array: Array) -> Literal:
        """Takes a private, read-only, row-major copy (no copy of what nobody can write to, as a mapped file)."""
        array = np.asarray(array)
        row = types.dtype(array.dtype)  # refuses strings and objects
        if _writeable(array) or not array.flags.c_contiguous or not array.dtype.isnative:
            array = np.array(array, array.dtype.newbyteorder("="), order="C", copy=True)
            array.flags.writeable = False
        header = f"{row.name}{array.shape}".encode()
        bits = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        digest = hashlib.blake2b(header, digest_size=16)
        digest.update(bits.data)
        return cls(array, digest.hexdigest())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def _writeable(array: Array) -> bool:
    """Whether an array, or one that it is a view of, can be written to."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return True
        owner = owner.base
    return False


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of attribute: how a value given for it becomes canonical, or is refused with ValueError/TypeError."""

    name: str
    normalise: Callable[[Any], Any]


def _int(value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{value!r} is no int")
    return int(value)


def _dim(value: Any) -> Dim:
    return value if isinstance(value, Expr) else _int(value)


def _symbol(value: Any) -> Expr:
    if isinstance(value, Expr) and value.only_symbol is not None:
        return value
    raise TypeError(f"{value!r} is no symbol")


def _exactly(kind: type) -> Callable[[Any], Any]:
    def normalise(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"{value!r} is no {kind.__name__}")
        return value

    return normalise


def _tuple(item: Callable[[Any], Any], *canonical: type) -> Callable[[Any], tuple[Any, ...]]:
    """canonical: types of items that stay as they are; a tuple of these alone does, too."""

    def normalise(values: Any) -> tuple[Any, ...]:
        if type(values) is tuple:
            for value in values:
                if type(value) not in canonical:
                    break
            else:
                return values
        return tuple([item(value) for value in values])

    return normalise


def _pair(value: Any) -> tuple[Dim, Dim]:
    low, high = value
    return _dim(low), _dim(high)


def _region(value: Any) -> Any:
    value.freeze()
    return value


class Float(float):
    """A float attribute: compared by its bits, so NaN equals itself and 0.0 is not -0.0."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and struct.pack("d", self) == struct.pack("d", other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(struct.pack("d", self))


INT, BOOL = Kind("int", _int), Kind("bool", _exactly(bool))
DIM, DIMS, PAIRS = Kind("dim", _dim), Kind("dims", _tuple(_dim, int, Expr)), Kind("pairs", _tuple(_pair))
INTS = Kind("ints", _tuple(_int, int))
FLOAT, FLOATS = Kind("float", Float), Kind("floats", _tuple(Float, Float))
STR = Kind("str", _exactly(str))
DTYPE = Kind("dtype", types.dtype)
ARRAY = Kind("array", lambda value: value if isinstance(value, Literal) else Literal.of(value))
SYMBOL = Kind("symbol", _symbol)
REGION = Kind("region", _region)


def one_of(*choices: str) -> Kind:
    """A word out of a few."""

    def normalise(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"{value!r} is none of {', '.join(choices)}")
        return str(value)

    return Kind("str", normalise)


REQUIRED: Any = type("Required", (), {"__repr__": lambda _: "REQUIRED"})()


@dataclass(frozen=True, eq=False)
class Attr:
    """An attribute of an op. One without a default must be given."""

    name: str
    kind: Kind
    default: Any = REQUIRED
    doc: str = ""


@dataclass(frozen=True, eq=False)
class ReferenceCall:
    """One op about to be computed by its NumPy reference: everything is a number by now.

    run(graph, arrays) evaluates a region.
    """

    operands: Sequence[Array]
    attrs: Attrs
    results: tuple[TensorType, ...]
    run: Callable[[Any, Sequence[Array]], Sequence[Array]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the only result."""
        return self.results[0].shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the only result."""
        return self.results[0].dtype.numpy


Operands = Sequence[TensorType]
Spelling = str | Mapping[str, str]
"""An expression, {0} and {1} for the operands, {dtype} for the result's element type; or one by kind of dtype."""


def spelled(**by_target: Spelling) -> Mapping[str, Spelling]:
    """Spellings of an op, by the name of the target: "cpp", "triton"."""
    return by_target


Formula = Callable[[Any], Any]
"""The gradient of one operand, from the gradient g, operands a and b and result y: lambda s: s.g * s.y."""


@dataclass(frozen=True, eq=False)
class Formulas:
    """The derivative of a pointwise op: a formula for each operand, None where it has none; doc: in words."""

    doc: str
    operands: tuple[Formula | None, ...]


def formulas(doc: str, *operands: Formula | None) -> Formulas:
    """The derivative of a pointwise op in words, and a formula for each operand."""
    return Formulas(doc, operands)


@dataclass(frozen=True, eq=False)
class Pull:
    """The derivative of any other op: the gradients of its operands, from an `autodiff.rule.Site`; doc: in words."""

    doc: str
    gradients: Callable[[Any], Sequence[Any]]


Flops = Callable[[Operands, Sequence[TensorType], Attrs], Dim]
"""Floating-point operations of a call, from the types of its operands and results and its attributes."""

EXPENSIVE = 4
"""The cost from which it is cheaper to read an element from memory than to compute it."""


@dataclass(frozen=True, eq=False)
class Op:
    """A row of the op table.

    arity: how many operands, or (least, most); most None for any number.
    dtype, shape: the type of the only result from the operands' types and the attributes; or `signature`,
      the types of all results, for ops that have several.
    numpy: the reference, from a `ReferenceCall` to the array (or, with `signature`, the arrays) of the result.
    spellings: the expression of a pointwise op by target, and by kind of the first operand's dtype where these differ.
    derivative: formulas of a pointwise op, a `Pull` of any other; rules that several ops share are rows of
      `autodiff.rules`.
    identity: x of op(a, x) == a, by dtype.
    inverse: x of op(x) == y, of a function of one float, where y is in its range.
    torch, onnx: ATen overloads ("tan.default") and ONNX ops ("Tan") that are this op and no more: importers need no
      handler for these, and the library engine no kernel. Of an op that is not pointwise, torch alone: overloads that
      take the operands, then the attributes in the order of `attrs`, an `axis` from either end.
    cost: time that an element of a pointwise op takes, an addition being 1.
    flops: floating-point operations of a call; None for one an element (of the result of a pointwise op, of the
      operand of a reduction) and none of all other ops. See `compiler/ir/flops.py`.
    defines: the attribute that names a symbol whose size only the data tell.
    """

    name: str
    doc: str
    arity: int | tuple[int, int | None]
    numpy: Callable[[ReferenceCall], Any]
    dtype: Callable[[Operands, Attrs], DType] | None = None
    shape: Callable[[Operands, Attrs], Shape] | None = None
    signature: Callable[[Operands, Attrs], tuple[TensorType, ...]] | None = None
    attrs: tuple[Attr, ...] = ()
    traits: Trait = Trait.NONE
    identity: Callable[[DType], Any] | None = None
    inverse: Callable[[float], float] | None = None
    spellings: Mapping[str, Spelling] = field(default_factory=dict)
    derivative: Formulas | Pull | None = None
    torch: tuple[str, ...] = ()
    onnx: tuple[str, ...] = ()
    cost: int = 1
    flops: Flops | None = None
    source: str = ""
    defines: str | None = None
    _by_name: dict[str, Attr] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._by_name.update({attr.name: attr for attr in self.attrs})

    def __repr__(self) -> str:
        return self.name

    @property
    def is_expensive(self) -> bool:
        """Whether an element costs at least as much as reading it from memory."""
        return self.cost >= EXPENSIVE

    @cached_property
    def bounds(self) -> tuple[int, int | None]:
        """Least and most operands."""
        return (self.arity, self.arity) if isinstance(self.arity, int) else self.arity

    def attr(self, name: str) -> Attr | None:
        """The attribute of that name."""
        return self._by_name.get(name)

    def normalise(self, given: Attrs) -> dict[str, Any]:
        """All attributes in the row's order, canonical, defaults filled in. Raises TypeRuleError."""
        if not self.attrs and not given:
            return {}
        for name in given:
            if name not in self._by_name:
                known = ", ".join(self._by_name) or "none"
                raise TypeRuleError(f"{self.name} has no attribute {name!r}; it has {known}")
        values = {}
        for attr in self.attrs:
            value = given.get(attr.name, attr.default)
            if value is REQUIRED:
                raise TypeRuleError(f"{self.name} needs the attribute {attr.name!r} ({attr.kind.name})")
            try:
                values[attr.name] = (
                    value if value is None and attr.default is None else attr.kind.normalise(value)
                )
            except (TypeError, ValueError) as error:
                raise TypeRuleError(
                    f"{self.name}: attribute {attr.name!r} takes {attr.kind.name}, got {value!r}: {error}"
                ) from error
        return values

    def infer(self, operands: Operands, attrs: Attrs) -> tuple[TensorType, ...]:
        """Types of the results. Raises TypeRuleError or ShapeError, with op and operands in the message."""
        least, most = self.bounds
        if len(operands) < least or (most is not None and len(operands) > most):
            expected = (
                f"{least}" if least == most else f"{least} or more" if most is None else f"{least} to {most}"
            )
            raise TypeRuleError(f"{self.name} takes {expected} operands, got {len(operands)}")
        try:
            if self.signature is not None:
                return self.signature(operands, attrs)
            assert self.dtype is not None and self.shape is not None
            return (TensorType(self.dtype(operands, attrs), self.shape(operands, attrs)),)
        except TypeRuleError as error:
            shown = ", ".join(map(str, operands))
            error.args = (f"{self.name}({shown}): {error}",)
            raise

    def spell(self, target: str, kind: str) -> str | None:
        """The row's template for a target and a kind of dtype, or None where it has none."""
        return of_kind(self.spellings.get(target), kind)


def of_kind(spelling: Spelling | None, kind: str) -> str | None:
    """A spelling for a kind of dtype, or None where there is none."""
    return spelling if isinstance(spelling, str) or spelling is None else spelling.get(kind)


# -- rules that rows are written with ---------------------------------------------------------------


def same(*kinds: str) -> Callable[[Operands, Attrs], DType]:
    """All operands have one dtype, of these kinds; so has the result."""

    def rule(operands: Operands, _: Attrs) -> DType:
        first = operands[0].dtype
        for index, operand in enumerate(operands):
            if operand.dtype is not first:
                raise TypeRuleError(
                    f"operand 0 is {first} and operand {index} is {operand.dtype}; nothing is converted "
                    "implicitly: cast one of them"
                )
        if kinds and first.kind not in kinds:
            raise TypeRuleError(f"takes {', '.join(kinds)}, not {first}")
        return first

    return rule


def gives(result: DType, *kinds: str) -> Callable[[Operands, Attrs], DType]:
    """As `same`, but the result is always of one dtype."""
    check = same(*kinds)

    def rule(operands: Operands, attrs: Attrs) -> DType:
        check(operands, attrs)
        return result

    return rule


def from_attr(name: str = "dtype") -> Callable[[Operands, Attrs], DType]:
    """The dtype that an attribute names."""
    return lambda _, attrs: attrs[name]


def same_shape(operands: Operands, _: Attrs) -> Shape:
    """All operands have one shape; nothing is broadcast implicitly."""
    first = operands[0].shape
    for index, operand in enumerate(operands):
        if operand.shape != first:
            require_equal_shapes(first, operand.shape, "operand 0", f"operand {index}")
    return first


def shape_along_axis(operands: Operands, attrs: Attrs) -> Shape:
    """As `same_shape`, where the attribute "axis" is an axis of it."""
    axis_in(attrs["axis"], operands[0].rank)
    return same_shape(operands, attrs)


def require_equal_shapes(a: Shape, b: Shape, where_a: str, where_b: str) -> None:
    """Raise ShapeError unless two shapes are provably equal; says which dims differ and where."""
    if len(a) != len(b):
        raise ShapeError(f"{where_a} has rank {len(a)} {show(a)}, {where_b} has rank {len(b)} {show(b)}")
    for axis, (x, y) in enumerate(zip(a, b, strict=True)):
        if x != y:  # else the words for it, which are most of the time, are for nothing
            require_equal(x, y, f"dim {axis} of {where_a} {show(a)}", f"dim {axis} of {where_b} {show(b)}")


def require_equal(a: Dim, b: Dim, where_a: str, where_b: str) -> None:
    """Raise ShapeError unless two dims are provably equal; names both places."""
    if a == b or proves_equal(a, b):
        return
    if proves_different(a, b):
        raise ShapeError(f"{where_a} is {a}, but {where_b} is {b}")
    raise ShapeError(
        f"{where_a} is {a}, and nothing says that it equals {where_b}, {b}: give both the same symbol, or bind them",
        unequal=(a, b),
    )


def show(shape: Shape) -> str:
    """A shape as messages show it: [2, batch, 3]."""
    return f"[{', '.join(map(str, shape))}]"


def axis_in(axis: int, rank: int, what: str = "axis") -> int:
    """The axis, if it is in 0..rank-1. Raises ShapeError."""
    if not 0 <= axis < rank:
        raise ShapeError(f"{what} {axis} is not in 0..{rank - 1}")
    return axis


def axes_in(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """The axes, if they rise and are in 0..rank-1. Raises ShapeError."""
    for axis in axes:
        axis_in(axis, rank)
    if list(axes) != sorted(set(axes)):
        raise ShapeError(f"axes {tuple(axes)} do not rise")
    return tuple(axes)


def require_rank(operand: TensorType, rank: int, what: str) -> None:
    """Raise ShapeError unless an operand has that rank."""
    if operand.rank != rank:
        raise ShapeError(f"{what} has rank {operand.rank}, expected {rank}")


def require_integer(operand: TensorType, what: str) -> None:
    """Raise TypeRuleError unless an operand is int32 or int64, as indices are."""
    if operand.dtype not in {types.INT32, types.INT64}:
        raise TypeRuleError(f"{what} are int32 or int64, not {operand.dtype}")
