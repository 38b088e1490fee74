"""The `[[map]]` tables of a mapping file: layer, device and modes -> repository, and where it applies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernels_hub.calibration.kinds import MEASURED
from kernels_hub.errors import KernelsHubError
from kernels_hub.kernelization.condition import OPERATIONS, ConditionError, Conditions, Test
from kernels_hub.kernelization.device import CUDAProperties, Device, ROCMProperties
from kernels_hub.kernelization.mapping_records import Choice, DeviceEntry, LayerSource
from kernels_hub.kernelization.mapping_table import Table, unknown
from kernels_hub.kernelization.mode import REGISTRABLE_MODES, Mode

Entries = dict[str, dict[str, tuple[DeviceEntry, ...]]]

_REPOSITORY = '"bundled:name", "local:folder", "org/name", "locked:org/name" or "compiled"'
_COMPILED = "compiled"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_MODES = {str(mode): mode for mode in REGISTRABLE_MODES}
_PROPERTIES = {"cuda": CUDAProperties, "rocm": ROCMProperties}


def read_entries(document: Table, alternatives: Mapping[str, Any], fulfilled: Mapping[str, Test]) -> Entries:
    """All `[[map]]` tables of a file, as the `entries` of a KernelMapping. Raises MappingError.

    fulfilled: by the name of each contract, whether a module's class fulfils it.
    """
    modes_of: dict[tuple[str, Device], dict[Mode, Choice]] = {}
    for table in document.tables("map"):
        layers = _layers(table)
        devices = _devices(table)
        modes = _modes(table)
        where = read_conditions(table, alternatives, fulfilled)
        covers = tuple(table.strings("covers", "a list of attribute names"))
        measured = bool(table.get("measured", bool, "true or false"))
        for layer in layers:
            if measured and layer not in MEASURED:
                raise table.error("measured", unknown(layer, sorted(MEASURED), "kind that is measured"))
            choice = Choice(_repository(table, layer, single=len(layers) == 1), where, covers, measured)
            for device in devices:
                chosen = modes_of.setdefault((layer, device), {})
                for mode in modes:
                    if mode in chosen:
                        raise table.source.error(
                            table.keys, f"{layer!r} is already mapped for {device}, mode {mode}, in this file"
                        )
                    chosen[mode] = choice
        table.done()
    entries: Entries = {}
    for (layer, device), chosen in modes_of.items():
        by_type = entries.setdefault(layer, {})
        by_type[device.type] = (*by_type.get(device.type, ()), DeviceEntry(device, chosen))
    return entries


def read_alternatives(document: Table) -> dict[str, list[Any]]:
    """The `[alternatives]` table: lists that conditions refer to by name. Raises MappingError."""
    found: dict[str, list[Any]] = {}
    for name, values in (document.get("alternatives", dict) or {}).items():
        if not isinstance(values, list):
            raise document.error(("alternatives", name), f"expected a list of alternatives, got {values!r}")
        try:
            Conditions({"value": values}, found)
        except ConditionError as error:
            raise document.error(("alternatives", name), str(error)) from error
        found[name] = values
    return found


def read_conditions(
    table: Table, alternatives: Mapping[str, Any], fulfilled: Mapping[str, Test]
) -> Conditions | None:
    """The `where` of a table, compiled; None without one. fulfilled: see `read_entries`."""
    where = table.get("where", dict, "a table of conditions")
    if where is None:
        return None
    try:
        return Conditions(_flat(where), alternatives, fulfilled)
    except ConditionError as error:
        raise table.error(("where", *error.key.split(".")), str(error)) from error


def _flat(where: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    # TOML reads `weight.numel = 3` as a table in a table.
    flat: dict[str, Any] = {}
    for key, value in where.items():
        if isinstance(value, dict) and value and not value.keys() & OPERATIONS:
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _layers(table: Table) -> list[str]:
    layer, layers = table.get("layer", str, "a layer name"), table.strings("layers", "a list of layer names")
    if (layer is None) == (not layers):
        got = "both" if layers else "neither"
        raise table.source.error(table.keys, f"expected 'layer' (one name) or 'layers' (a list), got {got}")
    if layer == "":
        raise table.error("layer", "expected a layer name, got ''")
    return layers or [layer]


def _devices(table: Table) -> list[Device]:
    if not table.has("device"):
        raise table.source.error(table.keys, "the key 'device' is missing: expected a device such as \"cpu\"")
    value = table.values["device"]
    if isinstance(value, list) and value:
        return [_device(table, ("device", index), item) for index, item in enumerate(value)]
    return [_device(table, ("device",), value)]


def _device(table: Table, keys: tuple[str | int, ...], value: Any) -> Device:
    try:
        if isinstance(value, str):
            return Device(value)
        if isinstance(value, dict):
            return _device_with_range(Table(table.source, (*table.keys, *keys), value))
    except KernelsHubError as error:
        if str(table.source.path) in str(error):
            raise
        raise table.error(keys, str(error)) from error
    raise table.error(
        keys, f'expected "cpu", {{ type = "cuda", min_capability = 80 }} or a list of such, got {value!r}'
    )


def _device_with_range(table: Table) -> Device:
    kind = table.required("type", str, "a device type")
    lowest = table.get("min_capability", int, "a capability such as 80 for 8.0")
    highest = table.get("max_capability", int, "a capability such as 89 for 8.9")
    table.done()
    if lowest is None and highest is None:
        return Device(kind)
    properties = _PROPERTIES.get(Device(kind).type)
    if properties is None:
        raise table.source.error(table.keys, f"device {kind!r} has no capabilities; cuda and rocm do")
    bounds = {} if highest is None else {"max_capability": highest}
    return Device(kind, properties(min_capability=lowest or 0, **bounds))


def _modes(table: Table) -> list[Mode]:
    if not table.has("modes"):
        return [Mode.FALLBACK]
    modes = []
    for index, text in enumerate(table.strings("modes", 'a list of modes such as "inference|torch_compile"')):
        if text not in _MODES:
            raise table.error(("modes", index), unknown(text, sorted(_MODES), "mode"))
        modes.append(_MODES[text])
    return modes


def _repository(table: Table, layer: str, *, single: bool) -> LayerSource:
    from kernels_hub.hub.references import (
        BundledLayerRepository,
        LayerRepository,
        LocalLayerRepository,
        LockedLayerRepository,
    )

    text = table.required("repository", str, _REPOSITORY)
    layer_name = table.get("layer_name", str, "the layer's name in the repository") or layer
    if layer_name != layer and not single:
        raise table.error(
            "layer_name", "a name in the repository can be given for one layer; 'layers' lists several"
        )
    version = _version(table)
    revision = table.get("revision", str, "a branch, tag or commit")
    kind, colon, rest = text.partition(":")
    try:
        if text == _COMPILED:
            return _compiled(table, layer_name)
        for key in ("dynamic", "ranges"):
            if table.has(key):
                raise table.error(key, 'is for repository = "compiled" alone; remove the key')
        if colon and kind in ("bundled", "local", "locked") and rest:
            for key in ("version", "revision"):
                if table.has(key):
                    raise table.error(key, f"a {kind} repository has no {key}; remove the key")
            if kind == "bundled":
                return BundledLayerRepository(rest, layer_name=layer_name)
            if kind == "locked":
                if not _HUB_NAME.fullmatch(rest):
                    raise table.error("repository", f"expected locked:org/name, got {text!r}")
                lockfile = _lockfile(table.source.path)
                return LockedLayerRepository(rest, lockfile=lockfile, layer_name=layer_name)
            return LocalLayerRepository(_folder(table.source.path, rest), layer_name=layer_name)
        if _HUB_NAME.fullmatch(text):
            return LayerRepository(text, layer_name=layer_name, version=version, revision=revision)
    except KernelsHubError as error:
        if str(table.source.path) in str(error):
            raise
        raise table.source.error(table.keys, str(error)) from error
    raise table.error("repository", f"expected {_REPOSITORY}, got {text!r}")


def _compiled(table: Table, layer_name: str) -> LayerSource:
    from kernels_hub.kernelization.compiled_layer import CompiledLayer

    for key in ("version", "revision"):
        if table.has(key):
            raise table.error(key, f"what is compiled here has no {key}; remove the key")
    dynamic = table.values.get("dynamic", True)
    ranges = table.get("ranges", dict, "a table { name = [smallest, largest] }")
    if table.has("dynamic") and not isinstance(dynamic, bool | dict):
        raise table.error(
            "dynamic", f'expected true, false, or a table {{ x = ["batch", "length"] }}, got {dynamic!r}'
        )
    try:
        return CompiledLayer(layer_name, dynamic=dynamic, ranges=ranges)
    except KernelsHubError as error:
        key = "ranges" if "range" in str(error).partition(":")[2] else "dynamic"
        at = table.error(key, str(error)) if table.has(key) else table.source.error(table.keys, str(error))
        raise at from error


def _version(table: Table) -> str | int | None:
    value = table.values.get("version")
    if table.has("version") and (isinstance(value, bool) or not isinstance(value, str | int)):
        raise table.error(
            "version", f'expected a specifier such as ">=1.0,<2" or the number of a branch, got {value!r}'
        )
    return value


def _lockfile(mapping_file: Path) -> Path:
    """The kernels.lock of the project that a mapping file belongs to; where it should be if there is none."""
    from kernels_hub.hub.lock import up_to_the_project
    from kernels_hub.hub.locked_kernels import LOCK_FILE

    here = mapping_file.absolute().parent
    for folder in up_to_the_project(here):
        if (folder / LOCK_FILE).is_file():
            return folder / LOCK_FILE
    return here / LOCK_FILE


def _folder(mapping_file: Path, text: str) -> Path:
    return mapping_file.parent / Path(text).expanduser()
