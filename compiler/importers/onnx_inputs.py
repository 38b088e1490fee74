"""Inputs of a model as inputs of a graph: dims bound or symbolic, values fixed, sequences spread over their tensors.

How many tensors a sequence has, and whether an optional input is given, only a call tells; so `shapes` or `values`
must say it, and the graph is for that number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernels_hub.compiler.errors import ImportFailure, ShapeError
from kernels_hub.compiler.importers.onnx_messages import Dimension, TypeProto, ValueInfoProto
from kernels_hub.compiler.importers.onnx_scope import Session
from kernels_hub.compiler.importers.onnx_sequences import Named, Nothing, TensorSequence, part_name
from kernels_hub.compiler.importers.onnx_types import dtype_of
from kernels_hub.compiler.ir.binding import unify
from kernels_hub.compiler.ir.dims import Dim, Expr
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.types import Array, DType

Size = int | str | Expr | tuple[int, int | None]
"""A number; another symbol's name, or an expression; or bounds (least, most)."""
Shapes = Mapping[str, Sequence[Size] | Sequence[Sequence[Size]] | None]
"""Input -> its shape; the shapes of a sequence's tensors; None for an optional that is not given."""


class Inputs:
    """What `import_onnx` is told of inputs, and the inputs that it makes of them."""

    def __init__(
        self,
        graph: Graph,
        session: Session,
        dims: Mapping[str, Size],
        shapes: Shapes,
        values: Mapping[str, object],
        bounds: Mapping[str, int],
    ) -> None:
        self.graph, self.session, self.dims, self.shapes, self.values = graph, session, dims, shapes, values
        self.bounds = bounds
        """Symbols -> their largest value, found by an import before this one."""

    def check_options(self, inputs: Sequence[ValueInfoProto]) -> None:
        """Raise ImportFailure where an option names an input or an axis that there is not."""
        names = [info.name for info in inputs]
        for option, given in (("shapes", self.shapes), ("values", self.values)):
            for name in given:
                if name not in names:
                    known = ", ".join(map(repr, names)) or "none"
                    raise ImportFailure(f"{option} names the input {name!r}; {self.graph.name} has {known}")
        axes = {
            own
            for info in inputs
            for axis, dim in enumerate(element_of(info.type).tensor_type.shape.dim)
            if (own := axis_name(info.name, axis, dim)) is not None
        }
        for name in self.dims:
            if name not in axes:
                known = ", ".join(sorted(map(repr, axes))) or "none"
                raise ImportFailure(f"dims binds {name!r}; the named axes of {self.graph.name} are {known}")

    def make(self, one: ValueInfoProto) -> Named:
        """An input of the model. Raises ImportFailure, TypeRuleError, ShapeError."""
        return self._named(one.name, one.type)

    def _named(self, name: str, declared: TypeProto) -> Named:
        kind = declared.WhichOneof("value")
        if kind == "tensor_type":
            return self._tensor(
                name, declared, self.shapes.get(name), self.values.get(name), name in self.values
            )
        if kind == "optional_type":
            if not (name in self.shapes or name in self.values):
                raise ImportFailure(
                    "it is optional, and only a call tells whether it is given: say it by its shape "
                    f"(shapes={{{name!r}: …}}), or by None"
                )
            if self.shapes.get(name, self.values.get(name)) is None:
                return Nothing()
            return self._named(name, declared.optional_type.elem_type)
        if kind == "sequence_type" and element_of(declared).HasField("tensor_type"):
            return self._sequence(name, declared.sequence_type.elem_type)
        what = (kind or "value without a type").removesuffix("_type")
        raise ImportFailure(f"it is a {what}, of what is no tensor; the IR has tensors only")

    def _sequence(self, name: str, declared: TypeProto) -> TensorSequence:
        shapes, values = self.shapes.get(name), self.values.get(name)
        if shapes is None and values is None:
            raise ImportFailure(
                "it is a sequence, and only a call tells of how many tensors: give their shapes "
                f"(shapes={{{name!r}: [(2, 3), …]}})"
            )
        given: Sequence[Any] = shapes if values is None else values  # type: ignore[assignment]
        if isinstance(given, (str, np.ndarray)) or not all(
            isinstance(one, (Sequence, np.ndarray)) for one in given
        ):
            raise ImportFailure(
                f"it is a sequence: give a list, with one shape or array a tensor, not {given!r}"
            )
        elements = []
        for index, one in enumerate(given):
            part = part_name(name, index)
            self.session.spread[part] = name
            shape, value = (one, None) if values is None else (None, one)
            elements.append(self._tensor(part, declared, shape, value, values is not None))
        return TensorSequence(dtype_of(declared.tensor_type.elem_type), tuple(elements))

    def _tensor(
        self, name: str, declared: TypeProto, given: Sequence[Any] | None, value: Any, fixed: bool
    ) -> Value:
        row = dtype_of(declared.tensor_type.elem_type)
        shape = self._shape(name, declared, given, np.shape(value) if fixed else None)
        if not fixed:
            return self.graph.input(name, shape, row)
        array = _array(value, row)
        if array.dtype != row.numpy:
            raise ShapeError(f"the value given for input {name!r} is {array.dtype}, declared is {row}")
        unify(shape, array.shape, {}, f"input {name!r}")
        return self.graph.constant(array)

    def _shape(
        self, name: str, declared: TypeProto, given: Sequence[Any] | None, own: tuple[int, ...] | None
    ) -> tuple[Dim, ...]:
        if given is not None:
            return tuple(self._size(size, f"{name}_{axis}") for axis, size in enumerate(given))
        tensor = declared.tensor_type
        if not tensor.HasField("shape"):
            if own is not None:
                return own
            raise ImportFailure(f"its rank is not declared: give its shape (shapes={{{name!r}: …}})")
        dims: list[Dim] = []
        for axis, dim in enumerate(tensor.shape.dim):
            own_name = axis_name(name, axis, dim)
            if own_name is None:
                dims.append(dim.dim_value)
            else:
                dims.append(self._size(self.dims.get(own_name, (1, None)), own_name))
        return tuple(dims)

    def _size(self, size: Size, axis: str) -> Dim:
        name = symbol_name(axis)
        if isinstance(size, tuple) and name in self.graph.symbols:
            return self.graph.symbol(name)
        if isinstance(size, tuple):
            least, most = size
            limit = self.bounds.get(name)
            most = limit if most is None else most if limit is None else min(most, limit)
            return self.graph.symbol(name, least, most)
        if isinstance(size, Expr):
            for symbol in sorted(size.symbols):
                self.graph.symbol(symbol.name, symbol.min, symbol.max)
            return size
        return self.graph.dims((size,))[0]


def _array(value: object, row: DType) -> Array:
    """A value as an array; plain numbers and lists of them have no dtype, and take the declared one where it fits."""
    array = np.asarray(value)
    if hasattr(value, "dtype") or array.dtype == row.numpy:
        return array
    told = array.astype(row.numpy)
    return told if (row.is_float and array.dtype.kind in "iuf") or np.array_equal(told, array) else array


def symbol_name(axis: str) -> str:
    """The symbol of a named axis; "$" begins variables of generated loops."""
    return f"_{axis}" if axis.startswith("$") else axis


def axis_name(name: str, axis: int, dim: Dimension) -> str | None:
    """The name of an axis of an input whose size the model leaves open, "x_0" where it gives none; None for a number.

    A size of -1 is open, and so is each "?" by itself, which exporters write for sizes that they do not know.
    """
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return None
    own = dim.dim_param
    return own if any(letter.isalnum() for letter in own) else f"{name}_{axis}"


def element_of(declared: TypeProto) -> TypeProto:
    """The type of an optional's and a sequence's element; any other as it is."""
    while declared.WhichOneof("value") in {"optional_type", "sequence_type"}:
        kind = declared.WhichOneof("value")
        declared = (
            declared.optional_type.elem_type if kind == "optional_type" else declared.sequence_type.elem_type
        )
    return declared
