"""Checks exported Triton in Triton's interpreter, in a process of its own, against the oracle; needs no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.export.check import oracle_case, weights_of
from kernels_hub.compiler.export.load_emitted import load_emitted
from kernels_hub.compiler.export.programs import Programs
from kernels_hub.compiler.schedule.cost import kernel_cost
from kernels_hub.numerics import largest_error, tolerance

_MOST_FLOPS = 3e8
"""What the interpreter does in some seconds."""
_TIMEOUT_S = 300


@dataclass(frozen=True)
class Interpreted:
    """One program. error: in units of the largest magnitude, None where it was not run, for this reason."""

    program: str
    sizes: Mapping[str, int]
    error: float | None
    reason: str = ""


def check_interpreted(
    folder: Path, layer: str, programs: Sequence[Programs], cases: Sequence[Mapping[str, int]]
) -> tuple[Interpreted, ...]:
    """Run each program on the largest of the cases that is small enough. Raises EngineError where one differs."""
    found: list[Interpreted] = []
    several = len([program for program in programs if program.triton is not None]) > 1
    for one in programs:
        if one.triton is None:
            continue
        sizes = max((case for case in cases if _flops(one, case) <= _MOST_FLOPS), key=lambda case: _flops(one, case),
                    default=None)  # fmt: skip
        if sizes is None:
            found.append(
                Interpreted(one.triton.program_file, {}, None, "it is too large for the interpreter")
            )
            continue
        found.append(_run(folder, layer, one, sizes, one.dtype if several else ""))
    return tuple(found)


def _flops(one: Programs, sizes: Mapping[str, int]) -> float:
    assert one.triton is not None
    return sum(kernel_cost(kernel, sizes).flops for kernel in one.triton.schedule.kernels)


def _run(folder: Path, layer: str, one: Programs, sizes: Mapping[str, int], dtype: str) -> Interpreted:
    assert one.triton is not None
    program = one.triton.program_file
    named, expected = oracle_case(one.found, sizes)
    inputs = [named[name] for name in one.graph.inputs]
    weights = weights_of(
        one.found, [name for name in one.triton.parameters() if name not in one.found.constants]
    )
    for name, tensor in list(weights.items()):
        weights |= dict.fromkeys(one.found.aliases.get(name, ()), tensor)
    with tempfile.TemporaryDirectory() as private:
        given, made = Path(private) / "given.pt", Path(private) / "made.pt"
        torch.save({"inputs": inputs, "weights": weights, "dtype": dtype}, given)
        environment = {
            **os.environ,
            "TRITON_INTERPRET": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", __name__, str(folder.resolve()), str(given), str(made)]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Interpreted(program, sizes, None, f"the interpreter took more than {_TIMEOUT_S} s")
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise EngineError(f"layer {layer}: {program} does not run in Triton's interpreter: {last}")
        outputs = torch.load(made, weights_only=True)
    worst = 0.0
    for ours, theirs in zip(outputs, expected, strict=True):
        error = largest_error(ours, theirs) if ours.shape == theirs.shape else float("inf")
        if not error <= tolerance(theirs.dtype).layer:
            raise EngineError(
                f"layer {layer}: {program}, in Triton's interpreter, differs from the oracle by {error:.2g} of the "
                "largest magnitude: a defect of the compiler; nothing was written"
            )
        worst = max(worst, error)
    return Interpreted(program, sizes, worst)


def _holder(weights: Mapping[str, torch.Tensor]) -> nn.Module:
    """A module that has these tensors under these names, and nothing else."""
    module = nn.Module()
    for path, tensor in weights.items():
        *parents, name = path.split(".")
        part = module
        for parent in parents:
            if parent not in part._modules:
                part.add_module(parent, nn.Module())
            part = part.get_submodule(parent)
        part.register_buffer(name, tensor)
    return module


def main(folder: str, given: str, made: str) -> None:
    """The other process: run the program of a folder on tensors of a file, write its outputs to another."""
    case: Any = torch.load(given, weights_only=True)
    layer: Any = load_emitted(Path(folder), "cuda").program.LAYER
    if case["dtype"]:
        layer = next(one for one in layer.layers if case["dtype"] in one.table.source)
    alone = type(layer)(replace(layer.table, modules=()), layer.folder, package=layer.package)
    state = alone.make_state(_holder(case["weights"]))
    torch.save(alone.run(state, alone.bindings.of(case["inputs"]), case["inputs"]), made)


if __name__ == "__main__":
    main(*sys.argv[1:])
