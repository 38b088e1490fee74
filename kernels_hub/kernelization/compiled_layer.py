"""A layer that is compiled where it runs: what is to be done, and who does it.

`CompiledLayer` is a value like every reference. The compiler is found among the entry points of the group
"kernels_hub.layer_compilers": the name is a device type, the value an object with the methods of `LayerCompiler`.
"""

from __future__ import annotations

import keyword
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

from kernels_hub.entry_points import entry_points
from kernels_hub.errors import KernelImportError, MappingError

if TYPE_CHECKING:
    from torch import nn

GROUP = "kernels_hub.layer_compilers"

Arguments: TypeAlias = tuple[Any, ...]
Keywords: TypeAlias = Mapping[str, Any]
"""Of a call: by place, and by name."""

Frozen = tuple[Any, ...] | str | None
"""Dynamic dims as a value: ("dims", (axis, name), …), ("items", …), ("fields", (name, …), …) or None."""


@dataclass(frozen=True, init=False)
class CompiledLayer:
    """A layer that is compiled from the very module that it replaces, beside that module's first calls.

    layer_name: what the compiled layer is called, an identifier; usually the name that it is mapped for.
    dynamic: which sizes may change from call to call. True: all that the module leaves free, of images the batch
        alone; a call with other sizes of 1 than those before has a program of its own, up to eight, and so has every
        size where what the module computes depends on sizes. False: none. Or names for the dims of the forward's
        arguments, as in `{"x": {0: "batch", 1: "length"}}` or `{"x": ["batch", "length", None]}`; dims of
        one name are equal. Arguments that are lists, tuples or dicts of tensors have lists or dicts of these.
    ranges: name -> (smallest, largest) size of named dims.

    The original forward runs until what was compiled is ready and has proven to be faster; see `wait_until_compiled`.
    What comes out is kept on this machine and found again by its content, by later processes too. A call that cannot
    be compiled keeps the original forward: `report` says why. Raises MappingError (a ValueError) for names and ranges
    that cannot be.

    >>> use_kernel_mapping({"GatedMLP": {"cpu": CompiledLayer("GatedMLP", dynamic={"x": {0: "batch"}})}})
    """

    layer_name: str
    dynamic: bool | Frozen = True
    ranges: tuple[tuple[str, int, int], ...] = field(default=())

    def __init__(
        self,
        layer_name: str,
        *,
        dynamic: bool | Mapping[str, Any] = True,
        ranges: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        if (
            not isinstance(layer_name, str)
            or not layer_name.isidentifier()
            or not layer_name.isascii()
            or keyword.iskeyword(layer_name)
        ):
            raise MappingError(f"CompiledLayer: expected a name that a class can have, got {layer_name!r}")
        if not isinstance(dynamic, bool | Mapping):
            raise MappingError(
                f"CompiledLayer({layer_name!r}): dynamic is True, False or {{argument: {{axis: name}}}}, "
                f"got {dynamic!r}"
            )
        object.__setattr__(self, "layer_name", layer_name)
        names: set[str] = set()
        frozen: bool | Frozen = dynamic if isinstance(dynamic, bool) else None
        if not isinstance(dynamic, bool):
            frozen = _fields(dynamic, f"CompiledLayer({layer_name!r}): dynamic", names)
        object.__setattr__(self, "dynamic", frozen)
        object.__setattr__(self, "ranges", _ranges(ranges or {}, names, layer_name))

    def __reduce__(self) -> tuple[Any, ...]:
        ranges = {name: (low, high) for name, low, high in self.ranges}
        return _again, (self.layer_name, self.dims(), ranges)

    def __str__(self) -> str:
        return f"compiled:{self.layer_name}"

    def dims(self) -> bool | dict[str, Any]:
        """`dynamic` as it can be given again: {argument: {axis: name}}, nested as the arguments are."""
        return self.dynamic if isinstance(self.dynamic, bool) else _thawed(self.dynamic)

    def load(self) -> NoReturn:
        """There is nothing to load without a module. Raises KernelImportError."""
        raise KernelImportError(
            f"{self} is compiled from a module: map it, kernelize a model, and call the model; "
            "kernels-hub compile writes a repository that can be loaded"
        )


@dataclass(frozen=True)
class CompileRequest:
    """What a layer compiler is asked for: a layer that computes what `module` computes on such arguments.

    module: a copy, with the weights of the one that runs; arguments too are the compiler's to keep, not to change.
    """

    layer: CompiledLayer
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Keywords


MESSAGE_CHARACTERS = 200


@dataclass(frozen=True)
class Refusal:
    """Why a call cannot be compiled. reason: one line of at most 200 characters; details: all that is known.

    seconds: the budget that was not enough, where it was that. of_sizes: whether it might be with fixed sizes.
    """

    reason: str
    details: str = ""
    seconds: float | None = None
    of_sizes: bool = False

    @staticmethod
    def of(error: BaseException) -> Refusal:
        """What an exception says, and its cause."""
        text = str(error).strip() or type(error).__name__
        return Refusal(one_line(text), text, of_sizes=bool(getattr(error, "of_sizes", False)))


def one_line(text: str, most: int = MESSAGE_CHARACTERS) -> str:
    """The text in one line; of one that is too long, its beginning."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


class LayerCompiler(Protocol):
    """What an entry point of the group names, for one type of device."""

    def signature(
        self, layer: CompiledLayer, module: nn.Module, args: Arguments, kwargs: Keywords
    ) -> Hashable | None:
        """What tells apart calls that need different programs; None of a call that is not to be compiled.

        Asked at every call: takes microseconds.
        """

    def form(self, layer: CompiledLayer, args: Arguments, kwargs: Keywords) -> Hashable | None:
        """What of a signature can be told in a microsecond or two; None of a call that is not to be compiled.

        Asked in the place of `signature` once a call of a module was refused: what was refused for one signature is
        taken to be for all of its form. A compiler need not have this method; then they are told apart each time.
        """

    def key(self, layer: CompiledLayer, module: nn.Module, args: Arguments, kwargs: Keywords) -> str:
        """A digest of all that decides what the layer is compiled to. Takes milliseconds, changes nothing."""

    def find(self, key: str) -> Path | Refusal | None:
        """What is known of a key on this machine: the folder of a layer repository, or why there is none."""

    def repository(self, request: CompileRequest, key: str) -> Path:
        """A folder of a layer repository that has the layer; compiled now where it is not known yet.

        Asked in a forked process. Raises any exception, with a message for people, where it cannot be.
        """

    def refuse(self, key: str, refusal: Refusal) -> None:
        """Remember why a key cannot be compiled, for later processes as well."""


def layer_compiler(backend: str) -> LayerCompiler | None:
    """The compiler for a type of device, None where none is installed. Raises what its import raises."""
    for entry in entry_points(GROUP):
        if entry.name == backend:
            compiler: LayerCompiler = entry.load()
            return compiler
    return None


def missing_compiler(backend: str) -> str | None:
    """Why layers cannot be compiled for a type of device; None where they can. Imports nothing."""
    entries = entry_points(GROUP)
    if any(entry.name == backend for entry in entries):
        return None
    there = ", ".join(sorted({entry.name for entry in entries})) or "no device: reinstall kernels-hub"
    return f"no layer compiler is installed for {backend}; there is one for {there}"


# -- dynamic dims as a value ------------------------------------------------------------------------


def _fields(value: Mapping[Any, Any], where: str, names: set[str]) -> Frozen:
    rows = []
    for name, inner in value.items():
        if not isinstance(name, str):
            raise MappingError(f"{where}: expected names of arguments, got {name!r}")
        rows.append((name, _spec(inner, f"{where}[{name!r}]", names)))
    return ("fields", *sorted(rows))


def _spec(value: Any, where: str, names: set[str]) -> Frozen:
    if value is None:
        return None
    if isinstance(value, Mapping):
        axes = {_axis(key): inner for key, inner in value.items()}
        if None not in axes:
            return ("dims", *sorted((axis, _name(name, where, names)) for axis, name in axes.items()))
        return _fields(value, where, names)
    if isinstance(value, (list, tuple)):
        if all(name is None or isinstance(name, str) for name in value) and any(value):
            named = [(axis, _name(name, where, names)) for axis, name in enumerate(value) if name]
            return ("dims", *named)
        return ("items", *(_spec(item, f"{where}[{index}]", names) for index, item in enumerate(value)))
    raise MappingError(f"{where}: expected {{axis: name}} or a list of names, got {value!r}")


def _axis(key: Any) -> int | None:
    if isinstance(key, str) and key.isdecimal():  # as TOML has it
        return int(key)
    return key if isinstance(key, int) and not isinstance(key, bool) else None


def _name(one: Any, where: str, names: set[str]) -> str:
    if not isinstance(one, str) or not one.isidentifier() or keyword.iskeyword(one):
        raise MappingError(f"{where}: expected the name of a dim, such as 'batch', got {one!r}")
    names.add(one)
    return one


def _thawed(value: Any) -> Any:
    if value is None:
        return None
    kind, *rows = value
    if kind == "dims":
        return dict(rows)
    if kind == "items":
        return [_thawed(row) for row in rows]
    return {name: _thawed(value_row) for name, value_row in rows}


def _ranges(
    ranges: Mapping[str, Sequence[int]], names: set[str], layer: str
) -> tuple[tuple[str, int, int], ...]:
    rows = []
    for name, bounds in ranges.items():
        if name not in names:
            raise MappingError(
                f"CompiledLayer({layer!r}): ranges are given for {name!r}; "
                f"dynamic names {', '.join(sorted(names)) or 'no dims'}"
            )
        if not (
            isinstance(bounds, (list, tuple))
            and len(bounds) == 2
            and all(type(bound) is int for bound in bounds)
            and 0 <= bounds[0] <= bounds[1]
        ):
            raise MappingError(
                f"CompiledLayer({layer!r}): the range of {name!r} is (smallest, largest), got {bounds!r}"
            )
        rows.append((name, bounds[0], bounds[1]))
    return tuple(sorted(rows))


def _again(layer_name: str, dynamic: Any, ranges: Any) -> CompiledLayer:
    return CompiledLayer(layer_name, dynamic=dynamic, ranges=ranges)
