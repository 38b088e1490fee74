"""The mappings in force: who registered which, and who may see it.

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from kernels_hub.errors import MappingError
from kernels_hub.kernelization.device import Device, as_device
from kernels_hub.kernelization.mapping_records import (
    ActiveMapping,
    Choice,
    DeviceEntry,
    KernelMapping,
    LayerSource,
    merged,
)
from kernels_hub.kernelization.mode import REGISTRABLE_MODES, Mode


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
    from kernels_hub.kernelization.mapping_file import load_kernel_mapping

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

    >>> with use_kernel_mapping({"SiLU": {"cpu": BundledLayerRepository("activation", layer_name="SiLU")}}):
    ...     model = kernelize(nn.Sequential(nn.SiLU()), mode=Mode.INFERENCE, device="cpu")
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
            by_kind[entry.device.type] = merged((*by_kind.get(entry.device.type, ()), entry))
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
