"""Modes: what a model is kernelized for, and in which order registered modes stand in for each other."""

from __future__ import annotations

from enum import Flag
from typing import Any

from kernels_hub.errors import ModeError


class Mode(Flag):
    """How a kernelized model will be used, or what a kernel was registered for.

    `INFERENCE` and `TRAINING` are mutually exclusive; each may be combined with `TORCH_COMPILE`.
    `FALLBACK` stands alone: in a mapping it is the kernel used when no other mode matches.
    A set that cannot exist raises ModeError, whichever operator or call builds it.

    >>> Mode.INFERENCE | Mode.TORCH_COMPILE
    <Mode.INFERENCE|TORCH_COMPILE: 12>
    """

    _NONE = 0
    FALLBACK = 1
    TRAINING = 2
    INFERENCE = 4
    TORCH_COMPILE = 8

    @classmethod
    def _missing_(cls, value: object) -> Any:
        # Every set that is not a single flag is born here, whatever the operator (|, ^, ~, Mode(n)).
        if isinstance(value, int):
            if not -16 <= value < 16:
                raise ModeError(f"{value} is no set of modes: these are numbers up to 15")
            if value & 6 == 6:
                raise ModeError(
                    "Mode.INFERENCE and Mode.TRAINING are mutually exclusive: "
                    "use Mode.TRAINING for a model that does both, it serves inference too"
                )
            if value & 1 and value != 1:
                raise ModeError("Mode.FALLBACK cannot be combined with other modes")
        return super()._missing_(value)

    def __str__(self) -> str:
        return (self.name or "none").lower()


FALLBACK_CHAIN: dict[Mode, tuple[Mode, ...]] = {
    Mode.INFERENCE: (
        Mode.INFERENCE,
        Mode.INFERENCE | Mode.TORCH_COMPILE,
        Mode.TRAINING,
        Mode.TRAINING | Mode.TORCH_COMPILE,
        Mode.FALLBACK,
    ),
    Mode.INFERENCE | Mode.TORCH_COMPILE: (
        Mode.INFERENCE | Mode.TORCH_COMPILE,
        Mode.TRAINING | Mode.TORCH_COMPILE,
        Mode.FALLBACK,
    ),
    Mode.TRAINING: (Mode.TRAINING, Mode.TRAINING | Mode.TORCH_COMPILE, Mode.FALLBACK),
    Mode.TRAINING | Mode.TORCH_COMPILE: (Mode.TRAINING | Mode.TORCH_COMPILE, Mode.FALLBACK),
}
"""Mode asked of `kernelize` -> registered modes that may serve it, best first."""

REGISTRABLE_MODES: frozenset[Mode] = frozenset((*FALLBACK_CHAIN, Mode.FALLBACK))
"""Modes that a mapping may use as a key."""


def check_kernelize_mode(mode: object) -> Mode:
    """`mode` if `kernelize` can serve it, else ModeError (TypeError for another type)."""
    if not isinstance(mode, Mode):
        raise TypeError(f"mode must be a kernels_hub.Mode, got {mode!r}; for example Mode.INFERENCE")
    if mode not in FALLBACK_CHAIN:
        problem = (
            "Mode.FALLBACK can only be used to register kernel mappings: ask for"
            if mode is Mode.FALLBACK
            else f"kernelize's mode must contain what the model is for, got {mode!r}: ask for"
        )
        raise ModeError(
            f"{problem} Mode.INFERENCE or Mode.TRAINING, each with or without | Mode.TORCH_COMPILE"
        )
    return mode


def parse_mode(text: str) -> Mode:
    """A mode as mapping files and the command line write it: "inference|torch_compile".

    Case does not matter; "," and "+" separate too. Raises ModeError for an unknown name.
    """
    mode = Mode(0)
    for part in text.replace(",", "|").replace("+", "|").split("|"):
        name = part.strip().upper()
        if name not in Mode.__members__:
            known = ", ".join(member.lower() for member in Mode.__members__ if not member.startswith("_"))
            raise ModeError(f"unknown mode {part.strip()!r} in {text!r}; known: {known}, joined by '|'")
        mode |= Mode[name]
    return mode
