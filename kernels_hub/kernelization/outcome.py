"""Records of what `kernelize` decided for a module; they live on the module itself.

The record is what makes a kernelized model travel: it survives deepcopy and pickle as a reference
to the kernel (repository, revision, layer, device), never as code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels_hub.calibration.gain_table import Gain
from kernels_hub.kernelization.device import Target
from kernels_hub.kernelization.mapping_records import LayerSource
from kernels_hub.kernelization.mode import Mode

RECORD_ATTRIBUTE = "_kernels_hub"
"""Key in a module's `__dict__` under which its Record lies."""


@dataclass(frozen=True, slots=True)
class SwapDecision:
    """One decision: swapped for which kernel, or left alone for which reason."""

    layer_name: str | None
    swapped: bool = False
    repository: str | None = None
    revision: str | None = None
    variant: str | None = None
    device: str | None = None
    """The mapping's device entry that matched, e.g. "cuda[90..]"."""
    mode: Mode | None = None
    """The registered mode that matched."""
    reason: str | None = None
    """Why the original forward was kept; of a swapped one, why it runs for now, or None."""
    source: LayerSource | None = None
    """Where the kernel is loaded from again, after unpickling."""
    target: Target | None = None
    positional: bool = False
    details: str | None = None
    """All that is known of why calls keep the original forward, where `reason` has only its beginning."""
    original_ms: float | None = None
    compiled_ms: float | None = None
    """What a call took when what was compiled was tried, each way; None where it was not timed."""
    gain: Gain | None = None
    """How much faster it was measured to be; None where that was not asked, or is not known."""
    sizes: tuple[tuple[int, float], ...] = ()
    """Ranges of the number of elements of the first argument for which the kernel runs; none: for all."""
    copies: bool = True
    """Whether the kernel may keep copies of weights; without, it is slower."""
    served_by: str | None = None
    """The addresses that the kernel came from, where a mirror's is among them."""

    def __deepcopy__(self, memo: dict[int, Any]) -> SwapDecision:
        return self  # immutable, and shared by every module with the same decision


Chain = tuple[tuple[str, ...], SwapDecision]
"""Names of children, each of which gets what the one before returns, and the decision whose kernel runs them."""


@dataclass(frozen=True, slots=True)
class ModuleRecord:
    """Everything decided for one module: its own forward, and the functions that forward calls."""

    own: SwapDecision | None
    functions: tuple[tuple[str, SwapDecision], ...] = ()
    """(function name, decision); swapped ones are bound into a forward of this module's own."""
    attributes: tuple[tuple[str, SwapDecision], ...] = ()
    """(instance attribute that holds a tagged function, decision)."""
    strict: bool = False
    """Whether copies of its weights are compared with them at every call."""
    chains: tuple[Chain, ...] = ()
    """Children that its forward calls one after the other and that run as one."""

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleRecord:
        return self


def record_of(module: Any) -> ModuleRecord | None:
    """The record that the last `kernelize` left on a module, None without one."""
    record = module.__dict__.get(RECORD_ATTRIBUTE)
    return record if isinstance(record, ModuleRecord) else None
