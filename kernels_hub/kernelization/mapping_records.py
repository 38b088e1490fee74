"""Records of a checked mapping: immutable, and only read.

layer name -> device (and its range of capabilities) -> mode -> repository, and where it applies
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kernels_hub.kernelization.device import Device, Target
from kernels_hub.kernelization.mode import FALLBACK_CHAIN, Mode

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
    measured: bool = False
    """Whether it runs only where it is known to be faster on this processor; from mapping files."""


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
                known[kind] = merged((*known.get(kind, ()), *added))
        return KernelMapping(entries, (*other.rules, *self.rules))

    def find(self, layer_name: str, target: Target) -> DeviceEntry | None:
        """The entry for a concrete device: of those that fit, the narrowest range, then the oldest."""
        entries = self.entries.get(layer_name, {}).get(target.type, ())
        fitting = [entry for entry in entries if _fits(entry.device, target)]
        return min(fitting, key=_width, default=None)  # min keeps the first of equals


def merged(entries: Iterable[DeviceEntry]) -> tuple[DeviceEntry, ...]:
    """The entries of one layer and device type, where a later one of the same range replaces an earlier one."""
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
