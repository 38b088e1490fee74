"""`import_onnx`: a model file becomes a graph of the IR. `check_onnx`: everything that stands in the way of that.

Opsets 7 and later, each op by the version that the model names. Functions of the model are written out, and so
are ops that ONNX defines by others, where they have no importer of their own. Shapes that the model computes as
data are evaluated while it is imported; where one depends on an input's value, `values` fixes that input.

    graph = import_onnx("model.onnx", dims={"batch": 8})
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from kernels_hub.compiler.errors import (
    CompilerError,
    ImportFailure,
    MissingDependencyError,
    OnnxImportError,
    Unsupported,
)
from kernels_hub.compiler.importers.external_data import ExternalData
from kernels_hub.compiler.importers.onnx_dispatch import import_node
from kernels_hub.compiler.importers.onnx_file import OnnxFile, OnnxSource, read_onnx
from kernels_hub.compiler.importers.onnx_inputs import Inputs, Shapes, Size, axis_name, element_of
from kernels_hub.compiler.importers.onnx_messages import TensorProto, ValueInfoProto
from kernels_hub.compiler.importers.onnx_node import UnknownValueError
from kernels_hub.compiler.importers.onnx_ops import enter_domains
from kernels_hub.compiler.importers.onnx_remedy import remedy
from kernels_hub.compiler.importers.onnx_scope import BrokenError, Scope, Session
from kernels_hub.compiler.importers.onnx_sequences import Nothing, part_name, parts
from kernels_hub.compiler.importers.onnx_types import ELEMENT_TYPES, dtype_of, few_bit_elements, tensor_array
from kernels_hub.compiler.importers.window_sizes import with_whole_windows
from kernels_hub.compiler.ir.dims import Expr
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.proofs import proves_different
from kernels_hub.compiler.ir.types import Array, DType
from kernels_hub.compiler.ir.uncollected import uncollected

if find_spec("onnx") is None:  # what files that are like others need only where they spell an op out
    raise MissingDependencyError("the ONNX importer needs the package onnx: pip install 'kernels-hub[onnx]'")

_LOGGER = logging.getLogger(__name__)

_INLINE = 1024
"""Integer weights of up to so many elements are constants: they are indices, axes and shapes, not weights."""
_MOST_SPARSE = 1 << 22
"""Elements that a sparse weight may have, beside a thousand for each that is stored."""

Given = Array | list[Array] | None
"""An input or output in a call: a tensor, a sequence of them, or an optional that is empty."""


@dataclass(frozen=True)
class OnnxProgram:
    """A graph, and how the model's inputs and outputs map to those of the graph, which are tensors.

    outputs: the model's -> one of the graph, those of a sequence's tensors, or None for an optional that is empty.
    """

    graph: Graph
    outputs: Mapping[str, str | tuple[str, ...] | None]

    def flatten(self, inputs: Mapping[str, Given]) -> dict[str, Array]:
        """The graph's inputs from the model's."""
        tensors: dict[str, Array] = {}
        for name, given in inputs.items():
            if isinstance(given, list):
                tensors |= {part_name(name, index): one for index, one in enumerate(given)}
            elif given is not None:
                tensors[name] = given
        return {name: tensors[name] for name in self.graph.inputs}

    def unflatten(self, outputs: Mapping[str, Array]) -> dict[str, Given]:
        """The model's outputs from the graph's."""
        return {
            name: None if of is None else outputs[of] if isinstance(of, str) else [outputs[one] for one in of]
            for name, of in self.outputs.items()
        }


def import_onnx(
    source: OnnxSource,
    *,
    dims: Mapping[str, Size] | None = None,
    shapes: Shapes | None = None,
    values: Mapping[str, object] | None = None,
    random_weights: int | None = None,
    by_value: bool = False,
) -> Graph:
    """The graph of a model: a path, bytes, or a ModelProto.

    dims: sizes of named axes, {"batch": 8}; those not named stay symbolic, and at least 1 (a pair of bounds says
    otherwise). One by which the model slices something of a fixed length, and which it then takes for the length
    of the slice (position embeddings), is at most that long, and one that is pooled at least as long as the window
    needs it. shapes: whole shapes of inputs, in place of those
    declared; of a sequence those of its tensors ({"frames": [(2, 3), (4, 3)]}), of an optional input that is not
    given None. values: inputs that are the same in every call, which become constants. random_weights: a seed for
    weights whose external data are missing. by_value: an If that only scalar inputs decide asks for their values, and
    is not imported with both of its branches.

    A sequence is spread over inputs (or outputs) of the graph, "frames.0", "frames.1", …; an empty optional has none.

    Float initializers become parameters of their names, mapped and not copied; scalars and small integers constants.
    Raises OnnxImportError, which lists every node that cannot be imported; ImportFailure for bad files.

    >>> model = onnx.parser.parse_model(
    ...     '<ir_version: 8, opset_import: ["": 17]> double (float[n, 4] x) => (float[n, 4] y) { y = Add(x, x) }'
    ... )
    >>> import_onnx(model).outputs["y"]
    %1: float32[n, 4]
    """
    return import_onnx_program(
        source, dims=dims, shapes=shapes, values=values, random_weights=random_weights, by_value=by_value
    ).graph


def import_onnx_program(
    source: OnnxSource,
    *,
    dims: Mapping[str, Size] | None = None,
    shapes: Shapes | None = None,
    values: Mapping[str, object] | None = None,
    random_weights: int | None = None,
    by_value: bool = False,
) -> OnnxProgram:
    """As `import_onnx`, with how the model's inputs and outputs map to the graph's."""
    file = read_onnx(source)
    bounds: dict[str, int] = {}
    first: OnnxImportError | None = None
    while True:
        one = Import(file, dims or {}, shapes or {}, values or {}, random_weights, bounds, by_value=by_value)
        try:
            return one.program()
        except ImportFailure as error:
            if not isinstance(error, OnnxImportError):
                raise
            first = first or error
            more = {name: limit for name, limit in one.session.clamped.items() if name not in bounds}
            if not more:
                if by_value:  # what is bound, calls will tell
                    raise first from first.__cause__
                raise _with_remedy(first, file, dims or {}, shapes or {}, values or {}) from first.__cause__
            bounds |= more
        except CompilerError as error:
            raise ImportFailure(f"{file.name}: {error}") from error


def _with_remedy(
    error: OnnxImportError,
    file: OnnxFile,
    dims: Mapping[str, Size],
    shapes: Shapes,
    values: Mapping[str, object],
) -> OnnxImportError:
    """The error, with the options that would let the model be imported."""
    axes = {
        own: None
        for one in file.model.graph.input
        if one.name not in shapes and one.name not in values
        for axis, dim in enumerate(element_of(one.type).tensor_type.shape.dim)
        if (own := axis_name(one.name, axis, dim)) is not None and own not in dims
    }

    def try_with(bound: Mapping[str, int]) -> CompilerError | None:
        try:
            Import(file, {**dims, **bound}, shapes, values, 0, {}).program()
        except CompilerError as failed:
            return failed
        return None

    return OnnxImportError(
        error.model, error.unsupported, error.wanted, remedy(tuple(axes), error.wanted, try_with)
    )


def check_onnx(
    source: OnnxSource,
    *,
    dims: Mapping[str, Size] | None = None,
    shapes: Shapes | None = None,
) -> tuple[Unsupported, ...]:
    """Everything in a model that cannot be imported; () where it can. Weights need not be there.

    Raises ImportFailure for what is no model.

    >>> model = onnx.parser.parse_model(
    ...     '<ir_version: 8, opset_import: ["": 17]> rise (float[4] x) => (float[4] y) { y = Rise(x) }'
    ... )
    >>> [problem.op for problem in check_onnx(model)]
    ['Rise']
    """
    try:
        import_onnx(source, dims=dims, shapes=shapes, random_weights=0)
    except OnnxImportError as error:
        return error.unsupported
    return ()


class Import:
    """One import of one model.

    by_value: an If that only scalar inputs decide is not imported with both of its branches, but asks for the values.
    """

    def __init__(
        self,
        file: OnnxFile,
        dims: Mapping[str, Size],
        shapes: Shapes,
        values: Mapping[str, object],
        seed: int | None,
        bounds: Mapping[str, int],
        *,
        by_value: bool = False,
    ) -> None:
        enter_domains(file.domains())
        self.file, self.values = file, values
        self.shaped = bool(shapes)
        """Whether declared shapes of the model are overruled."""
        self.random = None if seed is None else np.random.default_rng(seed)
        self.session = Session(
            ExternalData(file.folder), file.functions, import_node, file.outer, by_value=by_value
        )
        self.result = Graph(file.name)
        self.inputs = Inputs(self.result, self.session, dims, shapes, values, bounds)
        self.scope = Scope(self.session, self.result, file.opsets)
        self.problems: list[Unsupported] = self.session.unsupported

    def program(self) -> OnnxProgram:
        """Import it."""
        with uncollected():
            return self._program()

    def _program(self) -> OnnxProgram:
        model = self.file.model.graph
        self.inputs.check_options(model.input)
        weights = {tensor.name for tensor in model.initializer} | {
            one.values.name for one in model.sparse_initializer
        }
        for one in model.input:
            if one.name in self.values or one.name not in weights:
                self._noted("input", one.name, lambda one=one: self.inputs.make(one))
        for tensor in model.initializer:
            if tensor.name not in self.scope.names:
                self._noted("initializer", tensor.name, lambda tensor=tensor: self._weight(tensor))
        for sparse in model.sparse_initializer:
            name = sparse.values.name
            self._noted("initializer", name, lambda sparse=sparse: self._sparse(sparse))
        self.scope.run(model.node, f"graph {self.file.name}")
        for one in model.value_info:  # hints, which quantizers and editors of models leave behind
            if self.scope.has(one.name):
                self._check_declared(one, binding=False)
        for one in model.output:
            self._check_declared(one, binding=True)
        if self.problems:
            error = OnnxImportError(self.file.name, self.problems, tuple(self.session.wanted))
            error.partial = self.result
            raise error from self.session.cause
        outputs = {one.name: self._output(one.name) for one in model.output}
        return OnnxProgram(with_whole_windows(self.result), outputs)

    def _noted(self, op: str, name: str, act: Any) -> None:
        """Do something for an input or weight; what is wrong with it is noted as a node's would be."""
        try:
            self.scope.names[name] = act()
        except CompilerError as error:
            self.scope.names[name] = None
            self.problems.append(Unsupported(name, op, "", None, (), str(error)))

    # -- weights

    def _weight(self, tensor: TensorProto) -> Value:
        row, shape = dtype_of(tensor.data_type), tuple(tensor.dims)
        try:
            if math.prod(shape) > _INLINE and (packed := few_bit_elements(tensor, self.session.data)):
                return self.result.parameter(tensor.name, shape, row, packed)
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
        count = math.prod(sparse.dims)
        if min(sparse.dims, default=0) < 0 or count > _MOST_SPARSE + 1000 * values.size:
            raise ImportFailure(
                f"its dims {list(sparse.dims)} are too many elements for {values.size} values"
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

    def _output(self, name: str) -> str | tuple[str, ...] | None:
        """Enter an output; its names in the graph."""
        named = self.scope.named(name)
        spread = dict(parts(name, named))
        for part, value in spread.items():
            if part in self.result.outputs:
                raise ImportFailure(
                    f"the output {part!r} stands for two: {self.result.outputs[part]}, and {value} of {name!r}; "
                    "a sequence's tensors are numbered, so rename the other"
                )
            self.result.output(part, value)
        return name if isinstance(named, Value) else None if isinstance(named, Nothing) else tuple(spread)

    def _check_declared(self, info: ValueInfoProto, *, binding: bool) -> None:
        """Compare what a model states of its own values with what they are.

        A dtype or a kind of output that is another is an error; a shape, and whatever is said of values inside, is
        warned of: the graph's own is right, and runtimes go by that.
        """
        optional = info.type.WhichOneof("value") == "optional_type"
        declared = info.type.optional_type.elem_type if optional else info.type
        kind = declared.WhichOneof("value")
        if kind not in {"tensor_type", "sequence_type"}:
            return
        try:
            named = self.scope.named(info.name)
        except BrokenError:
            return
        except ImportFailure as error:
            self.problems.append(Unsupported(info.name, "output", "", None, (), str(error)))
            return
        if optional and isinstance(named, Nothing):
            return
        if element_of(declared).HasField("map_type") and isinstance(named, Value):
            return  # ZipMap, whose importer gives the scores
        reason = None
        if isinstance(named, Value) != (kind == "tensor_type") or isinstance(named, Nothing):
            reason = f"declared as a {kind.removesuffix('_type')}, but it is {named.type}"
        else:
            row, tensor = named.dtype, element_of(declared).tensor_type
            if tensor.elem_type and ELEMENT_TYPES.get(tensor.elem_type) is not row:
                stated = ELEMENT_TYPES.get(tensor.elem_type) or f"elements of type number {tensor.elem_type}"
                reason = f"declared as {stated}, but it is {named.type}"
            elif tensor.HasField("shape") and isinstance(named, Value):
                reason, binding = self._contradiction(tensor, named), False
        if reason:
            where = f" (made by {named.node.origin or named.op_name})" if isinstance(named, Value) else ""
            if binding:
                self.problems.append(Unsupported(info.name, "value", "", None, (), f"{reason}{where}"))
            else:
                _LOGGER.warning("%s: %r is %s%s", self.file.name, info.name, reason, where)

    def _contradiction(self, declared: Any, value: Value) -> str | None:
        dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in declared.shape.dim]
        own = value.shape
        if len(dims) == len(own):
            if self.shaped or any(isinstance(dim, Expr) for dim in own):
                return None
            if not any(
                one is not None and proves_different(one, dim) for one, dim in zip(dims, own, strict=True)
            ):
                return None
        shown = ", ".join("?" if dim is None else str(dim) for dim in dims)
        return f"declared with shape [{shown}], but it is {value.type}"


__all__ = [
    "Given",
    "OnnxImportError",
    "OnnxProgram",
    "Shapes",
    "Size",
    "UnknownValueError",
    "Unsupported",
    "check_onnx",
    "import_onnx",
    "import_onnx_program",
]
