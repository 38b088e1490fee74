"""A model as graphs for classes of calls, where one graph for all calls cannot be had.

Some models only make sense for some sizes: 2 * ((h + 1) // 2) is h where h is even, which no declaration says. Others
build shapes from the values of inputs. So a call is looked at, and the model is imported for what it shows: first for
all sizes, then for sizes that leave the same remainders as those of the call, by the divisors that the model's own
shapes show, then with sizes of 1 known, which are squeezed, at last for the call's sizes themselves; and for the values
of those inputs that have to be known. What was assumed is in the variant, which therefore tells which other calls it is
right for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from kernels_hub.compiler.errors import CompilerError, DimError, ShapeError
from kernels_hub.compiler.importers.onnx import Import, OnnxImportError
from kernels_hub.compiler.importers.onnx_file import OnnxSource, read_onnx
from kernels_hub.compiler.importers.onnx_inputs import Shapes, Size, axis_name, element_of, symbol_name
from kernels_hub.compiler.importers.onnx_messages import ValueInfoProto
from kernels_hub.compiler.importers.onnx_types import dtype_of
from kernels_hub.compiler.ir.binding import bind_shapes
from kernels_hub.compiler.ir.dims import Dim, Expr, Opaque, symbol
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.op import Shape, TensorType
from kernels_hub.compiler.ir.types import Array

LARGEST = 10**9
"""The largest size of an axis that a variant is for; exporters write such numbers for "to the end"."""
_MOST_DIVISOR = 1 << 12
"""Remainders by more are as good as the size itself."""
_ATTEMPTS = 5
_FAR = 1 << 16
"""From here on a number tells sizes up to LARGEST, by whatever they are divided, from sizes without a bound."""
_TO_THE_END = 1 << 31
"""From here on importers take a number for "to the end", and compare it with no size."""


@dataclass(frozen=True)
class Variant:
    """A graph for some calls. inputs: types of all inputs of the model; values: of those that were assumed."""

    graph: Graph
    inputs: Mapping[str, TensorType]
    values: Mapping[str, Array]

    def takes(self, shapes: Sequence[tuple[int, ...]], values: Mapping[str, Array]) -> bool:
        """Whether it is right for a call; values: of the inputs that a variant assumed anything of."""
        for name, value in self.values.items():
            if not np.array_equal(values[name], value):
                return False
        try:
            bind_shapes(self.inputs, shapes)
        except CompilerError:
            return False
        return True


_Attempt = tuple[Variant | CompilerError, Mapping[str, int]]


class OnnxVariants:
    """A model of which each call tells more. dims, shapes, values: as `import_onnx` takes them.

    Raises CompilerError for inputs that are no tensors, and for shapes that are given as expressions.
    """

    def __init__(
        self,
        source: OnnxSource,
        dims: Mapping[str, Size] | None = None,
        shapes: Shapes | None = None,
        values: Mapping[str, object] | None = None,
    ) -> None:
        self.file, self.dims = read_onnx(source), dict(dims or {})
        self.shapes, self.values = dict(shapes or {}), dict(values or {})
        self.name = self.file.name
        weights = {one.name for one in self.file.model.graph.initializer}
        weights |= {one.values.name for one in self.file.model.graph.sparse_initializer}
        self._declared = [
            one
            for one in self.file.model.graph.input
            if one.name not in self.values and (one.name in self.shapes or one.name not in weights)
        ]
        self._axes: dict[Expr, str] = {}
        """The symbol of an axis -> its name, as `dims` takes it."""
        self.inputs = {one.name: self._type(one) for one in self._declared}
        self.outputs = tuple(one.name for one in self.file.model.graph.output)
        self.wanted: dict[str, None] = {}
        """Inputs whose values a variant had to know."""
        self._attempts: dict[frozenset[tuple[str, Size]], _Attempt] = {}
        """Sizes of axes -> what came of them, without values of inputs. One for calls is used once."""

    @property
    def is_open(self) -> bool:
        """Whether a call tells anything that the model does not."""
        return any(isinstance(dim, Expr) for of in self.inputs.values() for dim in of.shape)

    def probe(self, size: int) -> OnnxImportError | None:
        """What cannot be imported with every open axis of one size."""
        made, _ = self._attempt(dict.fromkeys(self._axes.values(), size), None)
        return made if isinstance(made, OnnxImportError) else None

    def probe_multiples(self, failed: OnnxImportError) -> bool:
        """Whether it can be imported for multiples of what sizes are divided by. failed: of the import for all sizes.

        That is the variant that most calls want, which therefore is kept for them; neither is that for all sizes tried
        again, where it would fail as it did.
        """
        graph = failed.partial
        if not isinstance(graph, Graph) or self.shapes:
            return False
        divisors, is_far = self._divisors(graph), _has_far_numbers(graph)
        graph = failed.partial = failed.__traceback__ = None  # it is large, and frames hold it, too
        unbounded = {name: _congruent(name, 0, 1) for name in divisors}
        if max(divisors.values(), default=1) > _MOST_DIVISOR:
            return False
        if not is_far:
            self._attempts[frozenset(unbounded.items())] = _alone(failed), divisors
        multiples: dict[str, Size] = {
            name: _congruent(name, 0, divisor) for name, divisor in divisors.items()
        }
        if multiples == unbounded:
            return False
        made, divisors = self._attempt(multiples, None)
        made = made if isinstance(made, Variant) else _alone(made)
        self._attempts[frozenset(multiples.items())] = made, divisors
        return isinstance(made, Variant)

    def of(self, shapes: Sequence[tuple[int, ...]], values: Mapping[str, Array]) -> Iterator[Variant]:
        """Variants for a call, the most general first. Raises what stands in the way of the last one.

        values: of all inputs; those that have to be known are looked at.
        """
        self._check(shapes)
        sizes = self._sizes(shapes)
        moduli = dict.fromkeys(sizes, 1)
        given: dict[str, Size]
        for _ in range(_ATTEMPTS):
            given = {name: _congruent(name, size, moduli[name]) for name, size in sizes.items()}
            made, divisors = self._attempt(given, values)
            if isinstance(made, Variant):
                yield made
                break
            grown = {name: moduli[name] * divisors.get(name, 1) for name in sizes}
            if grown == moduli or max(grown.values(), default=1) > _MOST_DIVISOR:
                break
            moduli = grown
        ones: dict[str, Size] = {
            name: 1 if size == 1 else _congruent(name, size, 1) for name, size in sizes.items()
        }
        if 1 in ones.values() and set(ones.values()) != {1}:
            made, _ = self._attempt(ones, values)
            if isinstance(made, Variant):
                yield made
        firsts = {self._axes.get(of.shape[0]) for of in self.inputs.values() if of.shape}
        batch = {name: _congruent(name, size, 1) for name, size in sizes.items() if name in firsts}
        if batch and len(batch) < len(sizes):
            made, _ = self._attempt({**sizes, **batch}, values)
            if isinstance(made, Variant):
                yield made
        made, _ = self._attempt(dict(sizes), values)
        if not isinstance(made, Variant):
            raise made
        yield made

    def _attempt(self, dims: Mapping[str, Size], values: Mapping[str, Array] | None) -> _Attempt:
        """A variant with axes of these sizes, or why there is none, and by what the sizes of symbols are divided."""
        while True:
            known = {} if values is None else {name: values[name] for name in self.wanted}
            made, divisors = (None if known else self._earlier(dims)) or self._import(dims, known)
            more = made.wanted if isinstance(made, OnnxImportError) else ()
            if values is None or set(more) <= self.wanted.keys():
                return made, divisors
            self.wanted.update(dict.fromkeys(more))

    def _earlier(self, dims: Mapping[str, Size]) -> _Attempt | None:
        """What came of these sizes before; a variant is given away, as its graph is of one executable."""
        key = frozenset(dims.items())
        attempt = self._attempts.get(key)
        if attempt is not None and isinstance(attempt[0], Variant):
            del self._attempts[key]
        return attempt

    def _import(self, dims: Mapping[str, Size], known: Mapping[str, Array]) -> _Attempt:
        own = {name: size for name, size in {**dims, **self.dims}.items() if not self._is_known(name, known)}
        shapes, axes = self._shapes(own), self._named_axes()
        own = {name: size for name, size in own.items() if name in axes}
        one = Import(self.file, own, shapes, {**self.values, **known}, None, {}, by_value=True)
        try:
            graph = one.program().graph
        except CompilerError as error:
            return error, self._divisors(one.result)
        types = {
            name: graph.inputs[name].type
            if name in graph.inputs
            else TensorType(of.dtype, np.shape(known[name]))
            for name, of in self.inputs.items()
        }
        return Variant(graph, types, known), {}

    def _divisors(self, graph: Graph) -> Mapping[str, int]:
        """By what the size of each named axis is divided in a graph, as far as it got."""
        found = divisors_of(dim for value in graph.values for dim in value.shape)
        return {name: found.get(symbol_name(name), 1) for name in self._axes.values()}

    def _is_known(self, axis: str, known: Mapping[str, Array]) -> bool:
        """Whether no input that is left has an axis."""
        return not any(
            isinstance(dim, Expr) and dim == _symbol(axis)
            for name, of in self.inputs.items()
            if name not in known
            for dim in of.shape
        )

    def _shapes(self, sizes: Mapping[str, Size]) -> dict[str, list[Size]]:
        """The shapes that were given, with the sizes of axes."""
        return {
            name: [
                sizes.get(axis, size) if (axis := _given_axis(name, index, size)) is not None else size
                for index, size in enumerate(of)
            ]
            for name, of in self._given()
        }

    def _given(self) -> list[tuple[str, Sequence[Size]]]:
        """Shapes of tensors that were given."""
        return [(name, cast("Sequence[Size]", of)) for name, of in self.shapes.items() if of is not None]

    def _named_axes(self) -> set[str | None]:
        """Axes that the model names, which `dims` may bind."""
        return {
            axis_name(one.name, axis, dim)
            for one in self.file.model.graph.input
            for axis, dim in enumerate(element_of(one.type).tensor_type.shape.dim)
        }

    def _type(self, info: ValueInfoProto) -> TensorType:
        declared = element_of(info.type).tensor_type
        given = dict(self._given()).get(info.name)
        named: list[tuple[str | None, Size]]
        if given is None:
            named = [
                (axis_name(info.name, axis, dim), dim.dim_value)
                for axis, dim in enumerate(declared.shape.dim)
            ]
        else:
            named = [(_given_axis(info.name, axis, size), size) for axis, size in enumerate(given)]
        dims: list[Dim] = []
        for name, size in named:
            if name is None:
                dims.append(cast("int", size))
            else:
                dims.append(_symbol(name))
                self._axes[dims[-1]] = name
        return TensorType(dtype_of(declared.elem_type), tuple(dims))

    def _check(self, shapes: Sequence[tuple[int, ...]]) -> None:
        for (name, of), shape in zip(self.inputs.items(), shapes, strict=True):
            fits = len(shape) == of.rank and all(
                dim == size if isinstance(dim, int) else size >= 0
                for dim, size in zip(of.shape, shape, strict=True)
            )
            if not fits:
                raise ShapeError(f"model {self.name}: input {name!r} {of} got {list(shape)}")

    def _sizes(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """The size of each named axis. Raises ShapeError where one name has two sizes."""
        sizes: dict[str, int] = {}
        for (name, of), shape in zip(self.inputs.items(), shapes, strict=True):
            for dim, size in zip(of.shape, shape, strict=True):
                if isinstance(dim, Expr):
                    axis = self._axes[dim]
                    if sizes.setdefault(axis, size) != size:
                        raise ShapeError(
                            f"model {self.name}: axis {axis!r} is {size} in input {name!r}, {sizes[axis]} before"
                        )
        return sizes


def _given_axis(name: str, axis: int, size: object) -> str | None:
    """The name of an axis of a shape that was given; None where its size is a number. Raises DimError for the rest."""
    if isinstance(size, int):
        return None
    if isinstance(size, str):
        return size
    if isinstance(size, tuple):
        return f"{name}_{axis}"
    raise DimError(
        f"the shape given for input {name!r} has {size}, where a number, a name or bounds would do"
    )


def _symbol(axis: str) -> Expr:
    return symbol(symbol_name(axis), 1)


def _congruent(name: str, size: int, modulus: int) -> Expr:
    """All sizes that leave the remainder of one: modulus * symbol + remainder, at least 1."""
    rest = size % modulus
    found = symbol(symbol_name(name), 0 if rest else 1, LARGEST // modulus) * modulus + rest
    assert isinstance(found, Expr)
    return found


def _alone(error: CompilerError) -> CompilerError:
    """An error without what it keeps alive: the graph, and what the frames of its traceback hold."""
    if isinstance(error, OnnxImportError):
        return OnnxImportError(error.model, error.unsupported, error.wanted)
    return type(error)(*error.args)


def _has_far_numbers(graph: Graph) -> bool:
    """Whether sizes in a graph, or its small constants, have numbers that only some sizes below LARGEST reach."""
    dims = {dim for value in graph.values for dim in value.shape if isinstance(dim, Expr)}
    constants = (
        node.attrs["value"].array
        for node in graph.nodes
        if node.op.name == "constant" and node.results[0].dtype.is_integer
    )
    return any(map(_is_far, itertools.chain.from_iterable(map(_numbers, dims)))) or any(
        _is_far(number) for array in constants for number in array.ravel().tolist()
    )


def _is_far(number: int) -> bool:
    return _FAR <= abs(number) < _TO_THE_END


def _numbers(dim: Dim) -> Iterator[int]:
    if isinstance(dim, int):
        yield dim
        return
    for monomial, coefficient in dim.terms:
        yield coefficient
        for atom, _ in monomial:
            if isinstance(atom, Opaque):
                for arg in atom.args:
                    yield from _numbers(arg)


def divisors_of(dims: Iterable[Dim]) -> dict[str, int]:
    """Symbol -> the least number whose multiples leave no division of it in dims: 4 for (n // 2 + 1) // 2."""
    found: dict[str, int] = {}
    for dim in set(dims):
        if isinstance(dim, Expr):
            for name, divisor in _divisors(dim).items():
                found[name] = math.lcm(found.get(name, 1), divisor)
    return found


def _divisors(dim: Dim) -> dict[str, int]:
    divisors: dict[str, int] = {}
    if isinstance(dim, int):
        return divisors
    for atom in {atom for monomial, _ in dim.terms for atom, _ in monomial}:
        if not isinstance(atom, Opaque):
            continue
        factor = atom.args[1] if atom.kind in {"floordiv", "mod"} and isinstance(atom.args[1], int) else 1
        for arg in atom.args:
            inner = _divisors(arg)
            for one in arg.symbols if isinstance(arg, Expr) else ():
                divisor = max(abs(factor), 1) * inner.get(one.name, 1)
                divisors[one.name] = math.lcm(divisors.get(one.name, 1), divisor)
    return divisors


__all__ = ["LARGEST", "OnnxVariants", "Shape", "Variant", "divisors_of"]
