"""What the check of an exported layer found: errors and times of each case."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Case:
    """One set of sizes. Errors are in units of the largest magnitude, None where there was nothing to compare with.

    dtype: of the weights, where there are programs for several. eager_ms, compiled_ms: medians of a call, None where
    not measured, or where the ratio does not repeat; ratio: the least that was seen of calls in turn, twice. seed: of
    the inputs. tolerance: of the outputs' dtype; a larger error passed as float32 shows the original to err as much.
    """

    sizes: Mapping[str, int]
    original: float | None
    oracle: float | None
    eager_ms: float | None = None
    compiled_ms: float | None = None
    ratio: float | None = None
    dtype: str = ""
    seed: int = 0
    tolerance: float = 0.0


@dataclass(frozen=True)
class Checked:
    """All cases, and the machine. isas: instruction set levels whose prebuilt code gave the same.

    original: what `Case.original` and the times are of; an ONNX file's is another runtime. bytecode: files that gave
    the same. interpreted: whether the cases ran as bytecode, as there is no compiler.
    """

    cases: tuple[Case, ...]
    machine: str
    isas: tuple[str, ...] = ()
    original: str = "the original"
    bytecode: tuple[str, ...] = ()
    interpreted: bool = False


def machine() -> str:
    """What the figures were measured on."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(
            (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model
        )
    except OSError:
        pass
    return f"{model}, {os.cpu_count()} CPUs, {torch.get_num_threads()} threads, torch {torch.__version__}"
