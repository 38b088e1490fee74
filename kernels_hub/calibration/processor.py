"""The processor of this machine: vendor, family, model and instruction sets, from /proc/cpuinfo."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_VENDORS = {"AuthenticAMD": "amd", "GenuineIntel": "intel"}
_INSTRUCTION_SETS = (
    ("amx", {"amx_tile", "amx_bf16"}),
    ("avx512bf16", {"avx512f", "avx512_bf16"}),
    ("avx512", {"avx512f", "avx512bw", "avx512vl"}),
    ("avx2", {"avx2", "fma"}),
    ("sve", {"sve"}),
    ("neon", {"asimd"}),
)
"""Best first: a name, and the CPU flags that it needs."""


@dataclass(frozen=True)
class Processor:
    """A processor model. Two machines with equal ones share what was measured, at equal thread counts."""

    vendor: str
    family: str
    model: str
    instruction_set: str

    @property
    def name(self) -> str:
        """As files are called: "amd-25-17-avx512bf16"."""
        text = "-".join((self.vendor, self.family, self.model, self.instruction_set))
        return "".join(character if character.isalnum() or character == "-" else "_" for character in text)


def read_processor(cpuinfo: str) -> Processor:
    """The processor that a text in the format of /proc/cpuinfo describes."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    best = next((name for name, needed in _INSTRUCTION_SETS if needed <= flags), "baseline")
    vendor = fields.get("vendor_id") or fields.get("CPU implementer") or platform.machine() or "unknown"
    return Processor(
        _VENDORS.get(vendor, vendor.lower()),
        fields.get("cpu family") or fields.get("CPU architecture") or "0",
        fields.get("model") or fields.get("CPU part") or "0",
        best,
    )


@lru_cache(maxsize=1)
def this_processor() -> Processor:
    """The processor of this machine; without /proc/cpuinfo, what Python knows of it."""
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return read_processor(text)


LARGER_THAN_CACHES = 1.5
"""Weights of so many times the last cache: below it, some of them are still there when they are read again."""


@lru_cache(maxsize=1)
def last_level_cache() -> int:
    """The bytes of the largest cache of the first processor; 32 MiB where the system does not tell."""
    sizes = []
    for path in _CACHES.glob("index*/size"):
        try:
            text = path.read_text(encoding="ascii").strip()
            sizes.append(int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0))
        except (OSError, ValueError):
            continue
    return max(sizes, default=32 << 20)


def processor_name() -> str:
    """The name of this machine's processor, as files are called after it."""
    return this_processor().name
