"""`import_onnx`: a model file becomes a graph of the IR. `check_onnx`: everything that stands in the way of that.

Opsets 7 and later, each op by the version that the model names. Functions of the model are written out, and so
are ops that ONNX defines by others, where they have no importer of their own. Shapes that the model computes as
data are evaluated while it is imported; where one depends on an input's value, `values` fixes that input.

    graph = import_onnx("model.onnx", dims={"batch": 8})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernels_hub.compiler.errors import CompilerError, ImportFailure, MissingDependencyError, ShapeError

try:
    from onnx import TensorProto, ValueInfoProto
except ImportError as error:
    raise MissingDependencyError(
        "the ONNX importer needs the package onnx: pip install 'kernels-hub[onnx]'"
    ) from error

from kernels_hub.compiler.importers import onnx_ops  # noqa: F401  (enters the importers)
from kernels_hub.compiler.importers.external_data import ExternalData
from kernels_hub.compiler.importers.onnx_file import OnnxFile, OnnxSource, read_onnx
from kernels_hub.compiler.importers.onnx_node import UnknownValueError
from kernels_hub.compiler.importers.onnx_scope import BrokenError, Scope, Session, Unsupported
from kernels_hub.compiler.importers.onnx_types import dtype_of, tensor_array
from kernels_hub.compiler.ir.dims import Dim, Expr
from kernels_hub.compiler.ir.graph import Graph, Value, unify
from kernels_hub.compiler.ir.proofs import proves_different
from kernels_hub.compiler.ir.types import Array, DType

Size = int | str | tuple[int, int | None]
"""A number; another symbol's name, or an expression; or bounds (least, most)."""

_INLINE = 1024
"""Integer weights of up to so many elements are constants: they are indices, axes and shapes, not weights."""


class OnnxImportError(ImportFailure):
    """A model with nodes that cannot be imported: `unsupported` lists them all."""

    def __init__(self, name: str, unsupported: Sequence[Unsupported], wanted: Sequence[str]) -> None:
        count = f"{len(unsupported)} node{'s' if len(unsupported) != 1 else ''}"
        lines = "\n".join(f"  {one}" for one in unsupported)
        super().__init__(f"{name}: {count} cannot be imported:\n{lines}")
        self.unsupported = tuple(unsupported)
        self.wanted = tuple(wanted)
        """Inputs whose values would have to be fixed."""


def import_onnx(
    source: OnnxSource,
    *,
    dims: Mapping[str, Size] | None = None,
    shapes: Mapping[str, Sequence[Size]] | None = None,
    values: Mapping[str, Any] | None = None,
    random_weights: int | None = None,
) -> Graph:
    """The graph of a model: a path, bytes, or a ModelProto.

    dims: sizes of named axes, {"batch": 8}; those not named stay symbolic, and at least 1 (a pair of bounds says
    otherwise). One by which the model slices something of a fixed length, and which it then takes for the length
    of the slice (position embeddings), is at most that long. shapes: whole shapes of inputs, in place of those
    declared. values: inputs that are the same in every call, which become constants. random_weights: a seed for
    weights whose external data are missing.

    Float initializers become parameters of their names, mapped and not copied; scalars and small integers constants.
    Raises OnnxImportError, which lists every node that cannot be imported; ImportFailure for bad files.
    """
    file = read_onnx(source)
    bounds: dict[str, int] = {}
    first: OnnxImportError | None = None
    while True:
        one = _Import(file, dims or {}, shapes or {}, values or {}, random_weights, bounds)
        try:
            return one.graph()
        except OnnxImportError as error:
            first = first or error
            more = {name: limit for name, limit in one.session.clamped.items() if name not in bounds}
            if not more:
                raise first from first.__cause__
            bounds |= more


def check_onnx(
    source: OnnxSource,
    *,
    dims: Mapping[str, Size] | None = None,
    shapes: Mapping[str, Sequence[Size]] | None = None,
) -> tuple[Unsupported, ...]:
    """Everything in a model that cannot be imported; () where it can. Weights need not be there.

    Raises ImportFailure for what is no model.
    """
    try:
        import_onnx(source, dims=dims, shapes=shapes, random_weights=0)
    except OnnxImportError as error:
        return error.unsupported
    return ()


class _Import:
    """One import of one model."""

    def __init__(
        self,
        file: OnnxFile,
        dims: Mapping[str, Size],
        shapes: Mapping[str, Sequence[Size]],
        values: Mapping[str, Any],
        seed: int | None,
        bounds: Mapping[str, int],
    ) -> None:
        self.file, self.dims, self.shapes, self.values = file, dims, shapes, values
        self.bounds = bounds
        """Symbols -> their largest value, found by an import before this one."""
        self.random = None if seed is None else np.random.default_rng(seed)
        self.session = Session(ExternalData(file.folder), file.functions)
        self.result = Graph(file.name)
        self.scope = Scope(self.session, self.result, file.opsets)
        self.problems: list[Unsupported] = self.session.unsupported

    def graph(self) -> Graph:
        """Import it."""
        model = self.file.model.graph
        self._check_options(model.input)
        weights = {tensor.name for tensor in model.initializer} | {
            one.values.name for one in model.sparse_initializer
        }
        for one in model.input:
            if one.name in self.values or one.name not in weights:
                self._noted("input", one.name, lambda one=one: self._input(one))
        for tensor in model.initializer:
            if tensor.name not in self.scope.names:
                self._noted("initializer", tensor.name, lambda tensor=tensor: self._weight(tensor))
        for sparse in model.sparse_initializer:
            name = sparse.values.name
            self._noted("initializer", name, lambda sparse=sparse: self._sparse(sparse))
        self.scope.run(model.node, f"graph {self.file.name}")
        for one in (*model.value_info, *model.output):
            self._check_declared(one)
        if self.problems:
            raise OnnxImportError(
                self.file.name, self.problems, tuple(self.session.wanted)
            ) from self.session.cause
        for one in model.output:
            self.result.output(one.name, self._output(one.name))
        return self.result

    def _noted(self, op: str, name: str, act: Any) -> None:
        """Do something for an input or weight; what is wrong with it is noted as a node's would be."""
        try:
            self.scope.names[name] = act()
        except CompilerError as error:
            self.scope.names[name] = None
            self.problems.append(Unsupported(name, op, "", None, (), str(error)))

    def _check_options(self, inputs: Sequence[ValueInfoProto]) -> None:
        names = [one.name for one in inputs]
        for option, given in (("shapes", self.shapes), ("values", self.values)):
            for name in given:
                if name not in names:
                    known = ", ".join(map(repr, names)) or "none"
                    raise ImportFailure(f"{option} names the input {name!r}; {self.file.name} has {known}")
        axes = {
            dim.dim_param
            for one in inputs
            for dim in one.type.tensor_type.shape.dim
            if dim.HasField("dim_param")
        }
        for name in self.dims:
            if name not in axes:
                known = ", ".join(sorted(map(repr, axes))) or "none"
                raise ImportFailure(f"dims binds {name!r}; the named axes of {self.file.name} are {known}")

    # -- inputs

    def _input(self, one: ValueInfoProto) -> Value:
        kind = one.type.WhichOneof("value")
        if kind != "tensor_type":
            raise ImportFailure(
                f"it is a {(kind or 'value without a type').removesuffix('_type')}; the IR has tensors only"
            )
        row = dtype_of(one.type.tensor_type.elem_type)
        shape = self._shape(one)
        if one.name in self.values:
            array = np.asarray(self.values[one.name])
            if array.dtype != row.numpy:
                raise ShapeError(
                    f"the value given for input {one.name!r} is {array.dtype}, declared is {row}"
                )
            unify(shape, array.shape, {}, f"input {one.name!r}")
            return self.result.constant(array)
        return self.result.input(one.name, shape, row)

    def _shape(self, one: ValueInfoProto) -> tuple[Dim, ...]:
        declared = one.type.tensor_type
        if one.name in self.shapes:
            return tuple(
                self._size(size, f"{one.name}_{axis}") for axis, size in enumerate(self.shapes[one.name])
            )
        if not declared.HasField("shape"):
            if one.name in self.values:
                return tuple(np.asarray(self.values[one.name]).shape)
            raise ImportFailure(f"its rank is not declared: give its shape (shapes={{{one.name!r}: …}})")
        dims: list[Dim] = []
        for axis, dim in enumerate(declared.shape.dim):
            if dim.HasField("dim_value"):
                if dim.dim_value < 0:
                    raise ImportFailure(f"dim {axis} is {dim.dim_value}")
                dims.append(dim.dim_value)
            elif dim.dim_param:
                dims.append(self._size(self.dims.get(dim.dim_param, (1, None)), dim.dim_param))
            else:
                dims.append(self._size((1, None), f"{one.name}_{axis}"))
        return tuple(dims)

    def _size(self, size: Size, name: str) -> Dim:
        if isinstance(size, tuple) and name in self.result.symbols:
            return self.result.symbol(name)
        if isinstance(size, tuple):
            least, most = size
            limit = self.bounds.get(name)
            most = limit if most is None else most if limit is None else min(most, limit)
            return self.result.symbol(name, least, most)
        return self.result.dims((size,))[0]

    # -- weights

    def _weight(self, tensor: TensorProto) -> Value:
        row, shape = dtype_of(tensor.data_type), tuple(tensor.dims)
        try:
            array = tensor_array(tensor, self.session.data)
        except ImportFailure:
            if self.random is None or tensor.data_location != TensorProto.EXTERNAL:
                raise
            array = self._random(row, shape)
        return self._named(tensor.name, array, row)

    def _named(self, name: str, array: Array, row: DType) -> Value:
        size = int(array.size)
        if size <= 1 or (size <= _INLINE and not (row.is_float or row.is_complex)):
            return self.result.constant(array)
        return self.result.parameter(name, array.shape, row, array)

    def _sparse(self, sparse: Any) -> Value:
        values, indices = (
            tensor_array(sparse.values, self.session.data),
            tensor_array(sparse.indices, self.session.data),
        )
        dense = np.zeros(tuple(sparse.dims), values.dtype)
        places = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), dense.shape)
        dense.reshape(-1)[places] = values
        return self._named(sparse.values.name, dense, dtype_of(sparse.values.data_type))

    def _random(self, row: DType, shape: tuple[int, ...]) -> Array:
        """Normal, of a spread that keeps activations of usual layers finite; integers are 0 or 1."""
        assert self.random is not None
        if row.is_float:
            fan = int(np.prod(shape[1:], dtype=np.int64)) or 1
            normal: Array = self.random.standard_normal(shape, np.float32) / np.sqrt(np.float32(fan))
            return normal.astype(row.numpy)
        return self.random.integers(0, 2, shape).astype(row.numpy)

    # -- outputs

    def _output(self, name: str) -> Value:
        return self.scope.value(name)

    def _check_declared(self, one: ValueInfoProto) -> None:
        """What a model states of its own values must not contradict what they are."""
        if one.type.WhichOneof("value") != "tensor_type":
            return
        try:
            value = self.scope.value(one.name)
        except BrokenError:
            return
        except ImportFailure as error:
            self.problems.append(Unsupported(one.name, "output", "", None, (), str(error)))
            return
        declared = one.type.tensor_type
        reason = None
        if declared.elem_type and dtype_of(declared.elem_type) is not value.dtype:
            reason = f"declared as {dtype_of(declared.elem_type)}, but it is {value.type}"
        elif declared.HasField("shape"):
            reason = self._contradiction(declared, value)
        if reason:
            where = value.node.origin or value.op_name
            self.problems.append(Unsupported(one.name, "value", "", None, (), f"{reason} (made by {where})"))

    def _contradiction(self, declared: Any, value: Value) -> str | None:
        dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in declared.shape.dim]
        shown = ", ".join("?" if dim is None else str(dim) for dim in dims)
        if len(dims) != value.rank:
            return f"declared with shape [{shown}], but it is {value.type}"
        if self.shapes or any(isinstance(dim, Expr) for dim in value.shape):
            return None
        if any(
            dim is not None and proves_different(dim, own) for dim, own in zip(dims, value.shape, strict=True)
        ):
            return f"declared with shape [{shown}], but it is {value.type}"
        return None


__all__ = ["OnnxImportError", "Size", "UnknownValueError", "Unsupported", "check_onnx", "import_onnx"]
