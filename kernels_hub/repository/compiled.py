"""A layer that is compiled where it runs: what is to be done, and who does it.

`CompiledLayer` is a value like every reference. The compiler is found among the entry points of the group
"kernels_hub.layer_compilers": the name is a device type, the value an object with the methods of `LayerCompiler`.
"""

from __future__ import annotations

import importlib.metadata
import keyword
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

from kernels_hub.errors import KernelImportError, MappingError

if TYPE_CHECKING:
    from torch import nn

GROUP = "kernels_hub.layer_compilers"

Frozen = tuple[Any, ...] | str | None
"""Dynamic dims as a value: ("dims", (axis, name), …), ("items", …), ("fields", (name, …), …) or None."""


@dataclass(frozen=True, init=False)
class CompiledLayer:
    """A layer that is compiled from the very module that it replaces, at that module's first call.

    layer_name: what the compiled layer is called, an identifier; usually the name that it is mapped for.
    dynamic: which sizes may change from call to call. True: all that the module leaves free; a call with other sizes
        of 1 than those before has a program of its own, up to eight. False: none. Or names for the dims of the
        forward's arguments, as in `{"x": {0: "batch", 1: "length"}}` or `{"x": ["batch", "length", None]}`; dims of
        one name are equal. Arguments that are lists, tuples or dicts of tensors have lists or dicts of these.
    ranges: name -> (smallest, largest) size of named dims.

    What comes out is kept on this machine and found again by its content, by later processes too; the first call of a
    module whose layer is known takes milliseconds. A module that cannot be compiled keeps its forward: `report` says
    why. Raises MappingError (a ValueError) for names and ranges that cannot be.

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
class Wanted:
    """What a layer compiler is asked for: a layer that computes what `module` computes on such arguments.

    module: a copy, with the weights of the one that runs; arguments too are the compiler's to keep, not to change.
    """

    layer: CompiledLayer
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class LayerCompiler(Protocol):
    """What an entry point of the group names, for one type of device."""

    def key(
        self, layer: CompiledLayer, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> str:
        """A digest of all that decides what the layer is compiled to. Takes milliseconds, changes nothing."""

    def repository(self, wanted: Wanted, key: str) -> Path:
        """A folder of a layer repository that has the layer; compiled now where it is not known yet.

        Raises any exception, with a message for people, where it cannot be.
        """


@runtime_checkable
class HasForms(Protocol):
    """A layer compiler some of whose layers have a program for each form of call."""

    def has_forms(self, layer: CompiledLayer, cls: type[nn.Module]) -> bool:
        """Whether calls of a class's modules may come in several forms, each of which wants a program of its own."""

    def form(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, ...] | None:
        """The form of a call; None of one that is not to be compiled, but does not decide anything.

        Asked at every call of a class that has forms: takes microseconds.
        """


def layer_compiler(backend: str) -> LayerCompiler | None:
    """The compiler for a type of device, None where none is installed. Raises what its import raises."""
    for entry in importlib.metadata.entry_points(group=GROUP, name=backend):
        found: LayerCompiler = entry.load()
        return found
    return None


def missing_compiler(backend: str) -> str | None:
    """Why layers cannot be compiled for a type of device; None where they can. Imports nothing."""
    entries = importlib.metadata.entry_points(group=GROUP)
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
            return ("dims", *sorted((axis, _name(one, where, names)) for axis, one in axes.items()))
        return _fields(value, where, names)
    if isinstance(value, (list, tuple)):
        if all(one is None or isinstance(one, str) for one in value) and any(value):
            found = [(axis, _name(one, where, names)) for axis, one in enumerate(value) if one]
            return ("dims", *found)
        return ("items", *(_spec(one, f"{where}[{place}]", names) for place, one in enumerate(value)))
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
        return [_thawed(one) for one in rows]
    return {name: _thawed(one) for name, one in rows}


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
            and all(type(one) is int for one in bounds)
            and 0 <= bounds[0] <= bounds[1]
        ):
            raise MappingError(
                f"CompiledLayer({layer!r}): the range of {name!r} is (smallest, largest), got {bounds!r}"
            )
        rows.append((name, bounds[0], bounds[1]))
    return tuple(sorted(rows))


def _again(layer_name: str, dynamic: Any, ranges: Any) -> CompiledLayer:
    return CompiledLayer(layer_name, dynamic=dynamic, ranges=ranges)
