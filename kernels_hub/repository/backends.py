"""The backends that a variant may be built for: how each is spelled in variant names and metadata."""

from __future__ import annotations

from dataclasses import dataclass

from kernels_hub.errors import DeviceError

UNIVERSAL = "universal"
"""Backend of a noarch variant that runs on every device."""


@dataclass(frozen=True)
class Backend:
    """One row of the table."""

    name: str
    """As in noarch variants: `torch-<name>`."""
    spelling: str
    """As in arch variants, where a version follows if `versioned`: `cu130`, `rocm63`, `cpu`."""
    versioned: bool
    metadata_type: str
    """As in metadata.json, `{"backend": {"type": …}}`."""
    aliases: tuple[str, ...] = ()
    """Other names that callers use: torch's device type, the vendor's software stack."""


BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend("cpu", "cpu", versioned=False, metadata_type="cpu"),
        Backend("cuda", "cu", versioned=True, metadata_type="cuda"),
        Backend("rocm", "rocm", versioned=True, metadata_type="rocm", aliases=("hip",)),
        Backend("metal", "metal", versioned=False, metadata_type="metal", aliases=("mps",)),
        Backend("xpu", "xpu", versioned=True, metadata_type="xpu"),
        Backend("npu", "cann", versioned=True, metadata_type="cann", aliases=("cann",)),
        Backend("neuron", "neuron", versioned=False, metadata_type="neuron"),
        Backend("tpu", "tpu", versioned=False, metadata_type="tpu"),
    )
}

_BY_ANY_NAME = {name: backend for backend in BACKENDS.values() for name in (backend.name, *backend.aliases)}


def backend_named(name: str) -> Backend:
    """The backend of that name or alias ("mps" is "metal"); DeviceError lists the known ones."""
    if (backend := _BY_ANY_NAME.get(name)) is None:
        raise DeviceError(f"unknown backend {name!r}; known: {', '.join(BACKENDS)}")
    return backend
