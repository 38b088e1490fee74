"""Kernel mappings: layer name -> device -> mode -> repository, and who may see which.

A mapping is normalised once, when it is registered, into an immutable `KernelMapping`; from then on
it is only read. Three layers are looked through, the nearest first:

    use_kernel_mapping(...)         the innermost block of this thread or asyncio task
    register_kernel_mapping(...)    the process, or the block in which it was called
    mappings/default.toml           the bundled layers, unless inherit_mapping=False or
                                    KERNELS_HUB_DEFAULT_MAPPING=none dropped it
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kernels_hub.errors import MappingError
from kernels_hub.layer.device import Device, Target, as_device
from kernels_hub.layer.mode import FALLBACK_CHAIN, REGISTRABLE_MODES, Mode

if TYPE_CHECKING:
    from torch import nn

Predicate = Callable[["nn.Module"], "str | None"]
"""Called with a module instance: None when it applies, else the reason why not."""


class LayerSource(Hashable, Protocol):
    """What a mapping's values must offer: a layer class by `load()`; hashable, for caching.

    `kernels_hub`'s own repositories also offer `resolve(target)`; objects that only load, such as
    those of HF `kernels`, work too.
    """

    def load(self) -> Any:
        """Import the kernel and return its layer class, or a function."""


@dataclass(frozen=True)
class Choice:
    """A repository, and where the mapping lets it apply."""

    repository: LayerSource
    where: Predicate | None = None
    """Narrows it to modules for which it pays; from mapping files."""
    covers: tuple[str, ...] = ()
    """Attributes of the module whose own forwards this layer makes idle; from mapping files."""


@dataclass(frozen=True)
class DeviceEntry:
    """What is registered for one layer name on one device (and capability range)."""

    device: Device
    modes: Mapping[Mode, Choice]


@dataclass(frozen=True)
class RuleDecision:
    """What a tag rule says of a class or a function that it matched."""

    layer_name: str
    reason: str | None = None
    """Why it must be left alone; None to tag it."""
    positional: bool = False
    """The rule has proven that arguments correspond by position, whatever their names."""
    where: Predicate | None = None
    """Asked for every instance."""


class TagRule(Protocol):
    """Tags classes or functions that someone else owns, in the scope of one mapping."""

    def decide_class(self, cls: type) -> RuleDecision | None:
        """The decision on a class, None where the rule does not match it."""

    def decide_function(self, function: Callable[..., Any]) -> RuleDecision | None:
        """The decision on a function, None where the rule does not match it."""


@dataclass(frozen=True)
class KernelMapping:
    """A normalised mapping. `entries[layer_name][device.type]` is in registration order."""

    entries: Mapping[str, Mapping[str, tuple[DeviceEntry, ...]]] = field(default_factory=dict)
    rules: tuple[TagRule, ...] = ()

    def extended(self, other: KernelMapping) -> KernelMapping:
        """This mapping with `other` laid over it.

        The same layer and device replaces what was there, in its place; another capability range
        of the same device type stands beside it.
        """
        entries = {name: dict(devices) for name, devices in self.entries.items()}
        for name, devices in other.entries.items():
            known = entries.setdefault(name, {})
            for kind, added in devices.items():
                known[kind] = _merged((*known.get(kind, ()), *added))
        return KernelMapping(entries, (*other.rules, *self.rules))

    def find(self, layer_name: str, target: Target) -> DeviceEntry | None:
        """The entry for a concrete device: of those that fit, the narrowest range, then the oldest."""
        entries = self.entries.get(layer_name, {}).get(target.type, ())
        fitting = [entry for entry in entries if _fits(entry.device, target)]
        return min(fitting, key=_width, default=None)  # min keeps the first of equals


def _merged(entries: Iterable[DeviceEntry]) -> tuple[DeviceEntry, ...]:
    by_interval: dict[tuple[int, int], DeviceEntry] = {}
    for entry in entries:
        by_interval[entry.device.interval] = entry
    return tuple(by_interval.values())


def _fits(device: Device, target: Target) -> bool:
    if target.capability is None:  # no such hardware here: only an unbounded entry can be promised
        return device.properties is None
    low, high = device.interval
    return low <= target.capability <= high


def _width(entry: DeviceEntry) -> int:
    low, high = entry.device.interval
    return high - low


@dataclass(frozen=True)
class ActiveMapping:
    """The mappings that a lookup goes through, nearest first."""

    layers: tuple[KernelMapping, ...]

    def rules(self) -> tuple[TagRule, ...]:
        """Every tag rule, nearest first."""
        return tuple(rule for mapping in self.layers for rule in mapping.rules)

    def names(self) -> set[str]:
        """Every layer name that has an entry."""
        return {name for mapping in self.layers for name in mapping.entries}

    def devices(self, layer_name: str) -> tuple[DeviceEntry, ...]:
        """Every entry of a layer name, for messages and reports."""
        return tuple(
            entry
            for mapping in self.layers
            for entries in mapping.entries.get(layer_name, {}).values()
            for entry in entries
        )

    def find(self, layer_name: str, target: Target) -> DeviceEntry | None:
        """The nearest mapping's entry that serves the device."""
        for mapping in self.layers:
            if (entry := mapping.find(layer_name, target)) is not None:
                return entry
        return None


def choose_mode(modes: Mapping[Mode, Choice], mode: Mode) -> tuple[Mode, Choice] | None:
    """The first registered mode of `mode`'s fallback chain."""
    for candidate in FALLBACK_CHAIN[mode]:
        if candidate in modes:
            return candidate, modes[candidate]
    return None


class _Registry:
    """The process-wide mapping: replaced as a whole under a lock, read without one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.mapping = KernelMapping()
        self.inherits_default = True


@dataclass(frozen=True)
class _Scope:
    """What an open `use_kernel_mapping` block adds, and whether it looks further out."""

    mapping: KernelMapping
    inherit: bool
    outer: _Scope | None


_REGISTRY = _Registry()
_SCOPE: ContextVar[_Scope | None] = ContextVar("kernels_hub_mapping_scope", default=None)


def active_mapping() -> ActiveMapping:
    """The mapping in force here: in this thread or task, at this moment."""
    layers: list[KernelMapping] = []
    scope = _SCOPE.get()
    while scope is not None:
        layers.append(scope.mapping)
        if not scope.inherit:
            return ActiveMapping(tuple(layers))
        scope = scope.outer
    layers.append(_REGISTRY.mapping)
    if _REGISTRY.inherits_default and os.environ.get("KERNELS_HUB_DEFAULT_MAPPING", "") != "none":
        layers.append(_default_mapping())
    return ActiveMapping(tuple(layers))


def _default_mapping() -> KernelMapping:
    from kernels_hub.layer.mapping_file import load_kernel_mapping

    return load_kernel_mapping(os.environ.get("KERNELS_HUB_DEFAULT_MAPPING") or "default")


def register_kernel_mapping(mapping: Mapping[str, Any] | KernelMapping, inherit_mapping: bool = True) -> None:
    """Register kernels for the process, or for the enclosing `use_kernel_mapping` block.

    mapping: {layer name: {Device or str: repository or {Mode: repository}}}; a bare repository is
        one for Mode.FALLBACK. Or what `load_kernel_mapping` returned.
    inherit_mapping: extend what is registered (the default), or replace it, the default mapping of
        bundled layers included.

    Raises MappingError (a ValueError) before anything changes.

    >>> register_kernel_mapping({"SiluAndMul": {"cuda": LayerRepository(
    ...     "kernels-community/activation", layer_name="SiluAndMul", version=1)}})
    """
    added = normalise_mapping(mapping)
    scope = _SCOPE.get()
    if scope is not None:
        base = scope.mapping if inherit_mapping else KernelMapping()
        _SCOPE.set(_Scope(base.extended(added), scope.inherit and inherit_mapping, scope.outer))
        return
    with _REGISTRY.lock:
        base = _REGISTRY.mapping if inherit_mapping else KernelMapping()
        _REGISTRY.mapping = base.extended(added)
        _REGISTRY.inherits_default = _REGISTRY.inherits_default and inherit_mapping


@contextmanager
def use_kernel_mapping(
    mapping: Mapping[str, Any] | KernelMapping, *, inherit_mapping: bool = True
) -> Iterator[None]:
    """Register kernels for the length of a `with` block, in this thread or task only.

    mapping, inherit_mapping: as for `register_kernel_mapping`. An exception in the block, or a bad
    mapping, leaves what was in force before.
    """
    token = _SCOPE.set(_Scope(normalise_mapping(mapping), inherit_mapping, _SCOPE.get()))
    try:
        yield
    finally:
        _SCOPE.reset(token)


def normalise_mapping(mapping: Mapping[str, Any] | KernelMapping) -> KernelMapping:
    """Check a mapping and bring it into its one internal form. Raises MappingError, naming the key."""
    if isinstance(mapping, KernelMapping):
        return mapping
    if not isinstance(mapping, Mapping):
        raise MappingError(
            f"a kernel mapping is a dict {{layer name: {{device: repository}}}}, got {mapping!r}"
        )
    entries: dict[str, dict[str, tuple[DeviceEntry, ...]]] = {}
    for name, devices in mapping.items():
        if not isinstance(name, str) or not name:
            raise MappingError(f"a kernel mapping's keys are layer names, got {name!r}")
        if not isinstance(devices, Mapping):
            raise MappingError(f"mapping of {name!r}: expected {{device: repository}}, got {devices!r}")
        by_kind: dict[str, tuple[DeviceEntry, ...]] = {}
        for key, value in devices.items():
            entry = _device_entry(name, key, value)
            by_kind[entry.device.type] = _merged((*by_kind.get(entry.device.type, ()), entry))
        entries[name] = by_kind
    return KernelMapping(entries)


def _device_entry(name: str, key: object, value: object) -> DeviceEntry:
    if not isinstance(key, str | Device):
        raise MappingError(f"mapping of {name!r}: a device key is a string or a Device, got {key!r}")
    try:
        device = as_device(key)
    except ValueError as error:
        raise MappingError(f"mapping of {name!r}: {error}") from error
    modes = value if isinstance(value, Mapping) else {Mode.FALLBACK: value}
    if not modes:
        raise MappingError(f"mapping of {name!r} on {device}: no repository given")
    choices: dict[Mode, Choice] = {}
    for mode, repository in modes.items():
        if mode not in REGISTRABLE_MODES or not isinstance(mode, Mode):
            raise MappingError(
                f"mapping of {name!r} on {device}: a mode key is one of "
                f"{', '.join(sorted(map(repr, REGISTRABLE_MODES)))}; got {mode!r}"
            )
        choices[mode] = (
            repository if isinstance(repository, Choice) else Choice(_source(name, device, repository))
        )
    return DeviceEntry(device, choices)


def _source(name: str, device: Device, repository: object) -> LayerSource:
    if isinstance(repository, type) or not callable(getattr(repository, "load", None)):
        raise MappingError(
            f"mapping of {name!r} on {device}: expected a repository such as "
            f"LayerRepository('org/name', layer_name={name!r}, version=1), got {repository!r}"
        )
    return repository  # type: ignore[return-value]
