"""Writes table.py of an exported layer: how its program is called, as Python literals and two functions of sizes."""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from kernels_hub.compiler.codegen.cpp.packed import Packed
from kernels_hub.compiler.codegen.cpp.translation_unit import CppCode
from kernels_hub.compiler.codegen.triton.source import TritonCode
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.export.source import Source
from kernels_hub.compiler.ir.binding import bounds, runtime_dim, told_symbols
from kernels_hub.compiler.ir.dims import Dim, dim_symbols, symbol
from kernels_hub.compiler.ir.extrema import substitute
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Shape
from kernels_hub.compiler.ir.types import DType
from kernels_hub.compiler.runtime.parts import Module, Tensor, Values, View
from kernels_hub.compiler.runtime.sizes import Bound, SymbolicDim
from kernels_hub.compiler.schedule.kernel import Buffer, Load, Role, Schedule, statements
from kernels_hub.compiler.schedule.memory import spans as spans_of
from kernels_hub.escaping import CommentText, Identifier, python_string

_PARTS = (
    "Argument", "Cache", "Input", "Kept", "Module", "Output", "Record", "Scratch", "Table", "Tensor", "Values",
    "View", "Weight",
)  # fmt: skip


@dataclass(frozen=True)
class Parts:
    """What a table is written from. label: tells files of several programs of a folder from each other, "" of one."""

    layer: str
    source: Source
    schedule: Schedule
    program: CppCode | TritonCode
    modules: tuple[Module, ...]
    label: str = ""

    def file(self, name: str) -> str:
        """The name of a file of this program: "table.py", or "table_bfloat16.py"."""
        stem, dot, suffix = name.partition(".")
        return f"{stem}_{self.label}{dot}{suffix}" if self.label else name

    @property
    def program_file(self) -> str:
        """The program's text."""
        return self.file("program.cpp" if isinstance(self.program, CppCode) else "kernels.py")

    @property
    def packed(self) -> tuple[Packed, ...]:
        """Operands that the program packs."""
        return self.program.packed if isinstance(self.program, CppCode) else ()

    @property
    def places(self) -> dict[Buffer, int]:
        """Buffer -> its place among the program's."""
        return {buffer: index for index, buffer in enumerate(self.program.buffers)}

    def parameters(self) -> dict[str, Buffer]:
        """Name of a parameter -> its buffer."""
        named = {one.value.attrs["name"]: one for one in self.of(Role.PARAMETER) if one.value is not None}
        return {name: named[name] for name in sorted(named, key=list(self.source.graph.parameters).index)}

    def constants(self) -> dict[Buffer, Any]:
        """Buffer -> its array, of those that every module has equal."""
        found = {one: one.value.array for one in self.of(Role.CONSTANT) if one.value is not None}
        for name, buffer in self.parameters().items():
            if name in self.source.constants:
                array = self.source.arrays[name]
                found[buffer] = array() if callable(array) else array
        return found

    def of(self, role: Role) -> list[Buffer]:
        """The buffers of a role."""
        return [buffer for buffer in self.program.buffers if buffer.role is role]


def write_table(parts: Parts) -> str:
    """The text of table.py. Raises EngineError where the inputs' shapes do not tell a size that the program takes."""
    places, source = parts.places, parts.source
    inputs = {name: parts.schedule.inputs[name] for name in source.graph.inputs}
    outputs = {name: parts.schedule.outputs[name] for name in source.graph.outputs}
    taken = {name: _of_tensor(one, source.graph.inputs[name]) for name, one in inputs.items()}
    given = {name: _of_tensor(one, source.graph.outputs[name]) for name, one in outputs.items()}
    spans = spans_of(parts.schedule)
    sizes_of_views = [dim for view in source.views for _, given in view.steps for dim in _sizes(given)]
    names = _Names(parts.program.buffers, sizes_of_views)
    dims = _Dims(names)
    told = told_symbols(shape for _, shape in taken.values())
    if missing := [symbol for symbol in (*parts.program.sizes, *names.variables) if symbol not in told]:
        raise EngineError(f"no shape of an input tells the size of {missing[0]!r}, which the program needs")
    kinds = [_literal(module) for module in parts.modules]
    signature = source.signature.parameters.values()
    starred = next((one.name for one in signature if one.kind is one.VAR_POSITIONAL), "")
    named = next((one.name for one in signature if one.kind is one.VAR_KEYWORD), "")
    positional = [
        one.name for one in signature if one.kind in {one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD}
    ]
    native = isinstance(parts.program, CppCode)
    fields = {
        "layer": _literal(parts.layer),
        "source": _literal(parts.program_file),
        "arguments": _lines("{}", (f"{_literal(name)}: {_literal(one)}" for name, one in source.arguments.items())),
        "positional": _literal(tuple(positional)),
        "starred": _literal(starred),
        "named": _literal(named),
        "result": _literal(source.result),
        "changed": _literal(source.changed),
        "assertions": _literal(source.assertions),
        "inputs": _lines("()", (
            f"Input({_literal(name)}, {_literal(dtype.name)}, {dims.shape(shape)}, {places[inputs[name]]})"
            for name, (dtype, shape) in taken.items()
        )),
        "weights": _lines("()", _weights(parts)),
        "constants": _lines("{}", (f"{places[constant]}: {_literal(constant.name)}" for constant in parts.constants())),
        "constants_file": _literal(parts.file("constants.safetensors")),
        "prepared": _lines("{}", (f"{places[one]}: {one.bytes}" for one in parts.of(Role.PREPARED))),
        "outputs": _lines("()", (
            f"Output({_literal(name)}, {_literal(dtype.name)}, {places[outputs[name]]})"
            for name, (dtype, _) in given.items()
        )),
        "scratch": _lines("()", (
            f"Scratch({_literal(tuple(places[buffer] for buffer in span.buffers))}, {span.first}, {span.last})"
            for span in spans
        )),
        "buffers": str(len(parts.program.buffers)),
        "dtypes": _literal(() if native else tuple(buffer.dtype.name for buffer in parts.program.buffers)),
        "packed": str(len(parts.packed)),
        "symbols": _literal(parts.program.sizes),
        "sources": _literal(parts.program.runtime if isinstance(parts.program, CppCode) else ()),
        "messages": _literal(parts.program.messages),
        "modules": _lines("()", kinds),
        "bounds": _literal(bounds(dim for _, shape in taken.values() for dim in shape)),
        "output_shapes": "output_shapes",
        "scratch_bytes": "scratch_bytes",
        **({"views": _lines("()", (_view(view, dims) for view in source.views))} if source.views else {}),
    }  # fmt: skip
    body = "".join(f"    {name}={text},\n" for name, text in fields.items())
    used = sorted({part for part in _PARTS if f"{part}(" in body + "Table("})
    sizes, count = names.unpacked, len(parts.program.steps)
    rooms = [_room(span.buffers[0].bytes, names) for span in spans]
    return "\n".join([
        f'"""How {parts.program_file} is called: {len(places)} buffers, {count} kernels. Generated."""',
        "", *(["from .compiler.runtime.intervals import roomy"] if any("roomy(" in room for room in rooms) else ()),
        f"from .compiler.runtime.parts import {', '.join(used)}", *dims.lines, "", "",
        "def output_shapes(sizes):",
        '    """The shape of each output."""',
        *sizes,
        f"    return {_tuple(_shape(shape, names) for _, shape in given.values())}", "", "",
        "def scratch_bytes(sizes):",
        '    """The bytes of each entry of `scratch`."""',
        *(sizes if spans else []),
        "    return (",
        *(f"        {room},  # {CommentText(', '.join(buffer.name for buffer in span.buffers))}"
          for room, span in zip(rooms, spans, strict=True)),
        "    )", "", "",
        "TABLE = Table(",
    ]) + "\n" + body + ")\n"  # fmt: skip


def _of_tensor(buffer: Buffer, value: Value) -> tuple[DType, Shape]:
    """What calls take or give in a buffer: of complex numbers, the program knows pairs."""
    return (value.dtype, buffer.shape[:-1]) if value.dtype.is_complex else (buffer.dtype, buffer.shape)


def _room(size: Dim, names: _Names) -> str:
    """Bytes of scratch buffers; some more, where the number is not always the same."""
    return str(size) if isinstance(size, int) else f"roomy({names.text(size)})"


class _Names:
    """Symbols of the graph as variables of the generated functions."""

    def __init__(self, buffers: Iterable[Buffer], others: Iterable[Dim] = ()) -> None:
        dims = [dim for buffer in buffers for dim in (*buffer.shape, *buffer.strides)]
        dims += others
        self.variables: dict[str, str] = {}
        for one in sorted({one.name for one in dim_symbols(dims)}):
            wanted = str(Identifier(one))
            plain = wanted.isidentifier() and not keyword.iskeyword(wanted) and wanted not in _TAKEN
            wanted = wanted if plain and not wanted.startswith("shape") else f"n_{wanted}"
            while wanted in self.variables.values():
                wanted += "_"
            self.variables[one] = wanted

    @property
    def unpacked(self) -> list[str]:
        """Lines that make the variables of a dict of sizes."""
        return [f"    {variable} = sizes[{_literal(name)}]" for name, variable in self.variables.items()]

    def text(self, dim: Dim) -> str:
        """A dim as an expression."""
        if isinstance(dim, int):
            return str(dim)
        return str(substitute(dim, {name: symbol(variable) for name, variable in self.variables.items()}))


_TAKEN = frozenset({"sizes", "min", "max", "roomy", "TABLE"})


def _weights(parts: Parts) -> Iterable[str]:
    copied = {one.source for one in parts.packed}
    for kernel in parts.schedule.prepare:
        for nest in kernel.nests:
            copied |= {statement.buffer for statement in statements(nest) if isinstance(statement, Load)}
            copied |= {view.buffer for view in nest.anchor.views} if nest.anchor is not None else set()
    for name, buffer in parts.parameters().items():
        if name in parts.source.constants:
            continue
        aliases = parts.source.aliases.get(name, ())
        more = f", {_literal(aliases)}" if aliases else ""
        yield (
            f"Weight({_literal(name)}, {_literal(buffer.dtype.name)}, {_literal(tuple(buffer.shape))}, "
            f"{parts.places[buffer]}, {buffer in copied}{more})"
        )


class _Dims:
    """The dims of inputs that depend on symbols, as constants of the generated module."""

    def __init__(self, names: _Names) -> None:
        self._names = names
        self._constants: dict[Dim, str] = {}
        self._values: list[str] = []

    def shape(self, shape: Sequence[Dim]) -> str:
        """A shape as an expression over these constants."""
        return _tuple(self.text(dim) for dim in shape)

    def text(self, dim: Dim) -> str:
        """A dim likewise."""
        return str(dim) if isinstance(dim, int) else self._constant(dim)

    @property
    def lines(self) -> list[str]:
        """Imports and definitions."""
        if not self._constants:
            return []
        used = [
            name
            for name in ("Bound", "SymbolicDim", "named")
            if name == "Bound" or any(f"{name}(" in one for one in self._values)
        ]
        definitions = (
            f"{constant} = {value}"
            for constant, value in zip(self._constants.values(), self._values, strict=True)
        )
        return [f"from .compiler.runtime.sizes import {', '.join(used)}", "", *definitions]

    def _constant(self, dim: Dim) -> str:
        if dim not in self._constants:
            one = dim.only_symbol
            constant = "" if one is None else self._names.variables[one.name].upper()
            constant = constant if constant.isidentifier() else f"DIM_{len(self._constants)}"
            while constant in self._constants.values() or constant in _TAKEN:
                constant += "_"
            self._constants[dim] = constant
            self._values.append(f"named({_literal(one.name)})" if one is not None else self._value(dim))
        return self._constants[dim]

    def _value(self, dim: Dim) -> str:
        of = runtime_dim(dim)
        assert isinstance(of, SymbolicDim)
        variables = ", ".join(self._names.variables[name] for name in of.symbols)
        texts = ", ".join(map(_literal, (of.text, of.symbols, of.linear)))
        return f"SymbolicDim({texts}, lambda {variables}: {self._names.text(dim)})"


def _sizes(arguments: object) -> Iterable[Dim]:
    """The dims among the arguments of a view operation that depend on symbols."""
    if isinstance(arguments, tuple):
        return [dim for one in arguments for dim in _sizes(one)]
    return [arguments] if _is_symbolic(arguments) else []


def _is_symbolic(value: object) -> TypeGuard[Dim]:
    return value is not None and not isinstance(value, (bool, int, str, tuple))


def _view(view: View, dims: _Dims) -> str:
    """A view as an expression over the constants of dims."""

    def text(value: object) -> str:
        if isinstance(value, tuple):
            return _tuple(map(text, value))
        return dims.text(value) if _is_symbolic(value) else _literal(value)

    steps = _tuple(f"({_literal(name)}, {text(arguments)})" for name, arguments in view.steps)
    return f"View({_literal(view.of)}, {steps})"


def _shape(shape: Sequence[Dim], names: _Names) -> str:
    return _tuple(names.text(dim) for dim in shape)


def _tuple(texts: Iterable[str]) -> str:
    found = list(texts)
    return f"({', '.join(found)}{',' if len(found) == 1 else ''})"


def _lines(brackets: str, entries: Iterable[str]) -> str:
    found = list(entries)
    if not found:
        return brackets
    return f"{brackets[0]}\n" + "".join(f"        {one},\n" for one in found) + f"    {brackets[1]}"


def _literal(value: object) -> str:
    """A value as Python text."""
    if isinstance(value, Tensor):
        return f"Tensor({value.place})"
    if isinstance(value, Values):
        return f"Values({', '.join(map(_literal, (value.dtype, value.shape, value.values)))})"
    if isinstance(value, Bound):
        return f"Bound({', '.join(map(_literal, value))})"
    if isinstance(value, Module):
        fields = (value.path, value.kind, value.forward, value.facts, *filter(None, [value.functions]))
        return f"Module({', '.join(map(_literal, fields))})"
    if isinstance(value, tuple):
        return _tuple(map(_literal, value))
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_literal(name)}: {_literal(one)}' for name, one in value.items())}}}"
    if isinstance(value, str):
        return python_string(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)
