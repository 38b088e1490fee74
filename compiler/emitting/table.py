"""table.py of what is emitted: how the program is called, as Python literals and three functions of sizes."""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernels_hub.compiler.binding import linear
from kernels_hub.compiler.codegen.cpp import Program
from kernels_hub.compiler.codegen.cpp_packed import Packed
from kernels_hub.compiler.codegen.triton import Program as TritonProgram
from kernels_hub.compiler.emitting.runtime.parts import Module, Tensor
from kernels_hub.compiler.emitting.source import Source
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.dims import Dim, Symbol, dim_symbols, substitute, symbol
from kernels_hub.compiler.ir.op import show
from kernels_hub.compiler.schedule.kernel import Buffer, Load, Role, Schedule, statements
from kernels_hub.compiler.schedule.memory import spans as spans_of
from kernels_hub.escaping import CommentText, DocstringText, Identifier, python_string

_PARTS = (
    "Argument", "Cache", "Input", "Module", "Output", "Record", "Scratch", "Table", "Tensor", "Weight",
)  # fmt: skip


@dataclass(frozen=True)
class Parts:
    """What a table is written from. label: tells files of several programs of a folder from each other, "" of one."""

    layer: str
    source: Source
    schedule: Schedule
    program: Program | TritonProgram
    modules: tuple[Module, ...]
    label: str = ""

    def file(self, name: str) -> str:
        """The name of a file of this program: "table.py", or "table_bfloat16.py"."""
        stem, dot, suffix = name.partition(".")
        return f"{stem}_{self.label}{dot}{suffix}" if self.label else name

    @property
    def program_file(self) -> str:
        """The program's text."""
        return self.file("program.cpp" if isinstance(self.program, Program) else "kernels.py")

    @property
    def packed(self) -> tuple[Packed, ...]:
        """Operands that the program packs."""
        return self.program.packed if isinstance(self.program, Program) else ()

    @property
    def places(self) -> dict[Buffer, int]:
        """Buffer -> its place among the program's."""
        return {buffer: place for place, buffer in enumerate(self.program.buffers)}

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
        return [one for one in self.program.buffers if one.role is role]


def write_table(parts: Parts) -> str:
    """The text of table.py. Raises EngineError where the inputs' shapes do not tell a size that the program takes."""
    places, source = parts.places, parts.source
    inputs = [(name, parts.schedule.inputs[name]) for name in source.graph.inputs]
    outputs = [(name, parts.schedule.outputs[name]) for name in source.graph.outputs]
    spans = spans_of(parts.schedule)
    names = _Names(parts.program.buffers)
    kinds = [_literal(one) for one in parts.modules]
    signature = source.signature.parameters.values()
    starred = next((one.name for one in signature if one.kind is one.VAR_POSITIONAL), "")
    named = next((one.name for one in signature if one.kind is one.VAR_KEYWORD), "")
    positional = [
        one.name for one in signature if one.kind in {one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD}
    ]
    native = isinstance(parts.program, Program)
    fields = {
        "layer": _literal(parts.layer),
        "source": _literal(parts.program_file),
        "arguments": _lines("{}", (f"{_literal(name)}: {_literal(one)}" for name, one in source.arguments.items())),
        "positional": _literal(tuple(positional)),
        "starred": _literal(starred),
        "named": _literal(named),
        "result": _literal(source.result),
        "changed": _literal(source.changed),
        "inputs": _lines("()", (
            f"Input({_literal(name)}, {_literal(one.dtype.name)}, {_literal(show(one.shape))}, {places[one]})"
            for name, one in inputs
        )),
        "weights": _lines("()", _weights(parts)),
        "constants": _lines("{}", (f"{places[one]}: {_literal(one.name)}" for one in parts.constants())),
        "constants_file": _literal(parts.file("constants.safetensors")),
        "prepared": _lines("{}", (f"{places[one]}: {one.bytes}" for one in parts.of(Role.PREPARED))),
        "outputs": _lines("()", (
            f"Output({_literal(name)}, {_literal(one.dtype.name)}, {places[one]})" for name, one in outputs
        )),
        "scratch": _lines("()", (
            f"Scratch({_literal(tuple(places[one] for one in span.buffers))}, {span.first}, {span.last})"
            for span in spans
        )),
        "buffers": str(len(parts.program.buffers)),
        "dtypes": _literal(() if native else tuple(one.dtype.name for one in parts.program.buffers)),
        "packed": str(len(parts.packed)),
        "symbols": _literal(parts.program.sizes),
        "sources": _literal(parts.program.runtime if isinstance(parts.program, Program) else ()),
        "messages": _literal(parts.program.messages),
        "modules": _lines("()", kinds),
        "bind": "bind",
        "output_shapes": "output_shapes",
        "scratch_bytes": "scratch_bytes",
    }  # fmt: skip
    body = "".join(f"    {name}={text},\n" for name, text in fields.items())
    used = sorted({one for one in _PARTS if f"{one}(" in body + "Table("})
    sizes, count = names.unpacked, len(parts.program.steps)
    rooms = [_room(span.buffers[0].bytes, names) for span in spans]
    return "\n".join([
        f'"""How {parts.program_file} is called: {len(places)} buffers, {count} kernels. Generated."""',
        "", *(["from .arena import roomy"] if any("roomy(" in room for room in rooms) else ()),
        "from .errors import Misfit", f"from .parts import {', '.join(used)}", "", "",
        *_bind(inputs, names, parts.program.sizes), "", "",
        "def output_shapes(sizes):",
        '    """The shape of each output."""',
        *sizes,
        f"    return {_tuple(_shape(one.shape, names) for _, one in outputs)}", "", "",
        "def scratch_bytes(sizes):",
        '    """The bytes of each entry of `scratch`."""',
        *(sizes if spans else []),
        "    return (",
        *(f"        {room},  # {CommentText(', '.join(one.name for one in span.buffers))}"
          for room, span in zip(rooms, spans, strict=True)),
        "    )", "", "",
        "TABLE = Table(",
    ]) + "\n" + body + ")\n"  # fmt: skip


def _room(size: Dim, names: _Names) -> str:
    """Bytes of scratch buffers; some more, where the number is not always the same."""
    return str(size) if isinstance(size, int) else f"roomy({names.text(size)})"


class _Names:
    """Symbols of the graph as variables of the generated functions."""

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        dims = [dim for one in buffers for dim in (*one.shape, *one.strides)]
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


_TAKEN = frozenset({"sizes", "shapes", "min", "max", "divmod", "len", "tuple", "odd", "roomy", "Misfit"})


def _bind(inputs: Sequence[tuple[str, Buffer]], names: _Names, needed: Sequence[str]) -> list[str]:
    told = DocstringText(", ".join(names.variables) or "nothing")
    lines = [
        "def bind(shapes):",
        f'    """The sizes of {told}; Misfit where shapes are others."""',
        f"    {_tuple(f'shape{place}' for place in range(len(inputs)))} = shapes"
        if inputs
        else "    del shapes",
    ]
    for place, (name, buffer) in enumerate(inputs):
        lines += [f"    if len(shape{place}) != {len(buffer.shape)}:", _misfit(name, buffer, place)]
    known: set[str] = set()
    for place, (name, buffer) in enumerate(inputs):
        for axis, dim in enumerate(buffer.shape):
            found = linear(dim)
            if found is None or found[0].name in known:
                continue
            one, factor, constant = found
            known.add(one.name)
            variable, size = names.variables[one.name], f"shape{place}[{axis}]"
            if factor == 1:
                lines.append(f"    {variable} = {size}" + (f" - {constant}" if constant else ""))
            else:
                lines.append(f"    {variable}, odd = divmod({size} - {constant}, {factor})")
                lines += ["    if odd:", _misfit(name, buffer, place)]
            if (limit := _limits(one, variable)) is not None:
                lines += [f"    if not {limit}:", _out_of_range(one, variable)]
    if missing := [one for one in (*needed, *names.variables) if one not in known]:
        raise EngineError(f"no shape of an input tells the size of {missing[0]!r}, which the program needs")
    for place, (name, buffer) in enumerate(inputs):
        lines += [f"    if shape{place} != {_shape(buffer.shape, names)}:", _misfit(name, buffer, place)]
    pairs = (f"{_literal(name)}: {variable}" for name, variable in names.variables.items())
    return [*lines, f"    return {{{', '.join(pairs)}}}"]


def _limits(one: Symbol, variable: str) -> str | None:
    if one.max is not None:
        return f"{one.min} <= {variable} <= {one.max}"
    return f"{variable} >= {one.min}"


def _misfit(name: str, buffer: Buffer, place: int) -> str:
    before, after = (text.replace("{", "{{").replace("}", "}}") for text in (name, show(buffer.shape)))
    text = f"{before} has shape {{shape{place}}}, it was compiled for {after}"
    return f"        raise Misfit({_literal('shape ' + name)}, f{_literal(text)})"


def _out_of_range(one: Symbol, variable: str) -> str:
    text = f"{one.name} is {{{variable}}}, it was compiled for {one.facts}"
    return f"        raise Misfit({_literal('size ' + one.name)}, f{_literal(text)})"


def _weights(parts: Parts) -> Iterable[str]:
    copied = {one.source for one in parts.packed}
    for kernel in parts.schedule.prepare:
        for nest in kernel.nests:
            copied |= {one.buffer for one in statements(nest) if isinstance(one, Load)}
            copied |= {view.buffer for view in nest.root.views} if nest.root is not None else set()
    for name, buffer in parts.parameters().items():
        if name in parts.source.constants:
            continue
        aliases = parts.source.aliases.get(name, ())
        more = f", {_literal(aliases)}" if aliases else ""
        yield (
            f"Weight({_literal(name)}, {_literal(buffer.dtype.name)}, {_literal(tuple(buffer.shape))}, "
            f"{parts.places[buffer]}, {buffer in copied}{more})"
        )


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


def _literal(value: Any) -> str:
    """A value as Python text."""
    if isinstance(value, Tensor):
        return f"Tensor({value.place})"
    if isinstance(value, Module):
        return f"Module({', '.join(map(_literal, (value.path, value.kind, value.forward, value.facts)))})"
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
