"""Known values while a model is imported: numbers, and dims, from the graph built so far.

ONNX computes shapes as data (Shape, Gather, Concat, arithmetic, Reshape), the IR has them in types. So an importer
asks `KnownValues` what a value will be. It evaluates the IR, not ONNX, which makes every spelling of a shape
computation work, expanded functions included: arrays of numbers by the ops' own references, integer tensors that
depend on symbolic dims elementwise in the algebra of dims (arrays of dtype object).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.ir.dims import Dim, Expr, divide_exactly
from kernels_hub.compiler.ir.extrema import dim_max, dim_min
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import ReferenceCall, Trait
from kernels_hub.compiler.ir.proofs import proves_different, proves_equal, proves_le
from kernels_hub.compiler.ir.types import Array

LIMIT = 1 << 16
"""Elements of the largest value that is computed here; constants of any size are known."""


class _Unknown(Exception):
    """This cannot be said of a dim without a binding."""


class KnownValues:
    """value -> its array, where it does not depend on what a call brings; else None. Each is computed once."""

    def __init__(self) -> None:
        self._memo: dict[Value, Array | None] = {}

    def know(self, value: Value, array: Array | None) -> None:
        """State what a value is, such as an input of a region whose operand is known."""
        self._memo[value] = array

    def __call__(self, value: Value) -> Array | None:
        """Numbers in the value's dtype, or an object array of ints and dims."""
        memo = self._memo
        stack = [value]
        while stack:
            top = stack[-1]
            if top in memo:
                stack.pop()
                continue
            if not _computable(top):
                memo[top] = None
                continue
            waiting = [operand for operand in top.operands if operand not in memo]
            if waiting:
                stack += waiting
                continue
            self._compute(top.node)
        return memo[value]

    def _compute(self, node: Node) -> None:
        operands: list[Array] = []
        for operand in node.operands:
            array = self._memo[operand]
            if array is None:
                self._memo.update(dict.fromkeys(node.results))
                return
            operands.append(array)
        try:
            with np.errstate(all="ignore"):
                results = _results(node, operands)
        except (_Unknown, CompilerError, ArithmeticError, ValueError, IndexError, TypeError):
            results = [None] * len(node.results)
        self._memo.update(zip(node.results, results, strict=True))


def _computable(value: Value) -> bool:
    """Whether an op may be computed at all: no input, of known and small size."""
    name = value.op_name
    if name == "constant":
        return True
    if name == "parameter":
        return _small(value) and value.attrs["name"] in value.graph.weights
    if name in {"input", "random_bits"} or value.op.defines is not None or Trait.REGION in value.op.traits:
        return False
    return _small(value)


def _small(value: Value) -> bool:
    size = value.type.size
    return isinstance(size, int) and size <= LIMIT


def _results(node: Node, operands: Sequence[Array]) -> Sequence[Array | None]:
    name = node.op.name
    if name == "constant":
        return [node.attrs["value"].array]
    if name == "parameter":
        return [node.graph.weight(node.attrs["name"])]
    if name == "size":
        return [_objects(node.attrs["value"])]
    if any(array.dtype == object for array in operands):
        return [_tidy(_symbolic(node, operands), node)]
    answer = node.op.numpy(
        ReferenceCall(operands, node.attrs, tuple(result.type for result in node.results), _no_region)
    )
    return list(answer) if node.op.signature is not None else [np.asarray(answer)]


def _no_region(_graph: object, _arrays: Sequence[Array]) -> Sequence[Array]:
    raise _Unknown


def _objects(dim: Dim) -> Array:
    array = np.empty((), object)
    array[()] = dim
    return array


def _tidy(array: Array, node: Node) -> Array:
    """An object array without dims in it as one of the node's dtype."""
    if any(isinstance(one, Expr) for one in array.flat):
        return array
    return array.astype(node.results[0].dtype.numpy)


def _symbolic(node: Node, operands: Sequence[Array]) -> Array:
    name = node.op.name
    if node.op.traits & (Trait.VIEW | Trait.COPY) or name in {"gather", "gather_elements"}:
        # References that move elements and compute nothing work on arrays of dims as they are.
        moved = node.op.numpy(
            ReferenceCall(operands, node.attrs, tuple(result.type for result in node.results), _no_region)
        )
        return np.asarray(moved, object)
    if name in _REDUCED:
        return np.asarray(_REDUCED[name](operands[0].astype(object), node.attrs["axes"]), object)
    function = _ELEMENTWISE.get(name)
    if function is None:
        raise _Unknown
    if name == "cast":
        kind = node.results[0].dtype.kind
        function = _truth if kind == "bool" else _exact
    result = np.empty(np.broadcast_shapes(*(array.shape for array in operands)), object)
    for place in np.ndindex(result.shape):
        result[place] = function(*(_dim(array[place]) for array in operands))
    return result


def _dim(element: Any) -> Any:
    """A number as a Python int where it is whole."""
    if isinstance(element, (Expr, bool, np.bool_)):
        return element
    if float(element) != int(element):
        raise _Unknown
    return int(element)


def _exact(a: Any) -> Any:
    return a if isinstance(a, Expr) else int(a)


def _truth(a: object) -> bool:
    return bool(a) if isinstance(a, (bool, np.bool_)) else not _equal(a, 0)


def _equal(a: Dim, b: Dim) -> bool:
    if proves_equal(a, b):
        return True
    if proves_different(a, b):
        return False
    raise _Unknown


def _less_equal(a: Dim, b: Dim) -> bool:
    if proves_le(a, b):
        return True
    if proves_le(b + 1, a):
        return False
    raise _Unknown


def _quotient(a: Dim, b: Dim) -> Dim:
    """a / b towards zero, where both are never negative."""
    if not (proves_le(0, a) and proves_le(1, b)):
        exact = divide_exactly(a, b) if b != 0 else None
        if exact is None:
            raise _Unknown
        return exact
    return a // b


def _positive_mod(a: Dim, b: Dim) -> Dim:
    if not proves_le(1, b):
        raise _Unknown
    return a % b


def _absolute(a: Dim) -> Dim:
    return a if _less_equal(0, a) else -a


_ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "abs": _absolute,
    "div": _quotient,
    "floordiv": lambda a, b: a // b,
    "mod": _positive_mod,
    "maximum": dim_max,
    "minimum": dim_min,
    "eq": _equal,
    "ne": lambda a, b: not _equal(a, b),
    "lt": lambda a, b: not _less_equal(b, a),
    "le": _less_equal,
    "select": lambda condition, a, b: a if bool(condition) else b,
    "floor": lambda a: a,
    "ceil": lambda a: a,
    "round": lambda a: a,
    "trunc": lambda a: a,
    "cast": _exact,
}

_REDUCED: Mapping[str, Callable[..., Any]] = {
    "reduce_sum": lambda array, axes: np.add.reduce(array, axes, initial=0),
    "reduce_prod": lambda array, axes: np.multiply.reduce(array, axes, initial=1),
}


def dims_value(graph: Graph, dims: Sequence[Dim]) -> Value:
    """Dims as an int64 vector: a constant where all are numbers."""
    if all(isinstance(dim, int) for dim in dims):
        return graph.constant(np.asarray(dims, np.int64).reshape(len(dims)))
    return graph.apply("concat", *(graph.size(dim).reshape(1) for dim in dims), axis=0)


def depends_on_floats(value: Value, outside: Mapping[Value, Value]) -> bool:
    """Whether floats that an op computes, inputs and weights aside, decide a value; `outside` as `source_inputs`."""
    seen, stack = {value}, [value]
    while stack:
        top = stack.pop()
        if top.dtype.is_float and Trait.LEAF not in top.op.traits:
            return True
        above = (outside[top],) if top in outside else top.operands
        for one in above:
            if one not in seen:
                seen.add(one)
                stack.append(one)
    return False


def source_inputs(value: Value, outside: Mapping[Value, Value]) -> list[Value]:
    """The inputs that a value depends on; `outside`: what inputs of regions stand for."""
    seen, stack = {value}, [value]
    inputs: list[Value] = []
    while stack:
        top = stack.pop()
        if top.op_name == "input":
            if top in outside:
                above: tuple[Value, ...] = (outside[top],)
            else:
                inputs.append(top)
                continue
        else:
            above = top.operands
        for one in above:
            if one not in seen:
                seen.add(one)
                stack.append(one)
    return inputs
