"""Checks the gradients of an exported layer, as clients get them, against those of its module, and times them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.export.check import (
    _example,
    _require,
    _shown,
    _sizes,
    _timed,
)
from kernels_hub.compiler.export.gradient import Trained, Training, in_mode
from kernels_hub.compiler.export.gradient_judging import judge_gradients
from kernels_hub.compiler.export.load_emitted import load_emitted
from kernels_hub.compiler.export.programs import dtype_name
from kernels_hub.compiler.export.source import Example, Source
from kernels_hub.compiler.importers.torch_trace import paths_of
from kernels_hub.escaping import MarkdownText, code_span, markdown_table, one_line
from kernels_hub.numerics import largest_error, tolerance

_NOTHING = 1e-6
"""A gradient below this part of the largest one is compared with that: it is zero but for rounding."""


@dataclass(frozen=True)
class GradientCase:
    """One set of sizes. error: the largest of any gradient, in units of its largest magnitude; eager_ms, compiled_ms,
    ratio: of a call and its backward, None where not measured; tolerance: of the gradients' dtype."""

    sizes: Mapping[str, int]
    error: float
    eager_ms: float | None = None
    compiled_ms: float | None = None
    ratio: float | None = None
    dtype: str = ""
    tolerance: float = 0.0


@dataclass(frozen=True)
class CheckedGradients:
    """All cases, and the inputs that have gradients; or the reason why there are none, "" where there are."""

    cases: tuple[GradientCase, ...]
    asked: tuple[str, ...] = ()
    reason: str = ""


def check_gradients(folder: Path, layer: str, trained: Trained | str, *, benchmark: bool) -> CheckedGradients:
    """Load the layer as `get_local_kernel` does, and compare all gradients in training, at the sizes of its results.

    Raises BuildError where the programs do not build here, EngineError where a gradient differs or the layer would not
    run a case by its programs.
    """
    if isinstance(trained, str):
        return CheckedGradients((), reason=trained)
    kernel = load_emitted(folder, "cpu")
    cases: list[GradientCase] = []
    for program, training in zip(trained.programs, trained.trainings, strict=True):
        several = len(trained.programs) > 1
        cases += _checked(kernel, layer, program.found, training, benchmark=benchmark, several=several)
    return CheckedGradients(tuple(cases), trained.trainings[0].asked)


def _checked(
    kernel: Any, layer: str, source: Source, training: Training, *, benchmark: bool, several: bool
) -> list[GradientCase]:
    assert source.example is not None
    module, program = source.example.module, kernel.program.LAYER
    forward = getattr(kernel.layers, layer).forward
    cases = []
    with in_mode(module, training=True), _learning(module):
        for seed, sizes in enumerate(_sizes(source)):
            example = _example(source, module, sizes, seed)
            inputs = _asked(example, training)

            def compiled(example: Example = example) -> Any:
                return forward(module, *example.args, **example.kwargs)

            def eager(example: Example = example) -> Any:
                return module(*example.args, **example.kwargs)

            asked = {**inputs, **dict(module.named_parameters())}
            ours = _gradients(compiled, asked)
            _require(program, layer)
            error = _largest_error(ours, _gradients(eager, asked), layer, sizes)
            timed: tuple[float, float, float] | tuple[None, None, None] = (None, None, None)
            if benchmark:
                timed = _timed(lambda: _gradients(eager, asked), lambda: _gradients(compiled, asked))  # noqa: B023
            dtype = dtype_name(source.example) if several else ""
            allowed = max(
                (tolerance(one.dtype).layer for one in ours.values() if one is not None), default=0.0
            )
            cases.append(GradientCase(sizes, error, timed[0], timed[1], timed[2], dtype, allowed))

        def ours_of(example: Example) -> Mapping[str, torch.Tensor | None]:
            asked = {**_asked(example, training), **dict(module.named_parameters())}
            return _gradients(lambda: forward(module, *example.args, **example.kwargs), asked)

        def theirs_of(module: nn.Module, example: Example) -> Mapping[str, torch.Tensor | None]:
            asked = {**_asked(example, training), **dict(module.named_parameters())}
            return _gradients(lambda: module(*example.args, **example.kwargs), asked)

        judge_gradients(source, cases[0].sizes, ours_of, theirs_of)
    return cases


@contextmanager
def _learning(module: nn.Module) -> Iterator[None]:
    """All parameters require a gradient, and do as before afterwards."""
    before = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    for one, _ in before:
        one.requires_grad_(one.is_floating_point())
    try:
        yield
    finally:
        for one, required in before:
            one.requires_grad_(required)


def _asked(example: Example, training: Training) -> dict[str, torch.Tensor]:
    leaves = pytree.tree_leaves((example.args, dict(example.kwargs)))
    named = zip(paths_of(example.module, example.args, example.kwargs), leaves, strict=True)
    return {name: leaf.requires_grad_() for name, leaf in named if name in training.asked}


def _gradients(call: Callable[[], Any], asked: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor | None]:
    """Of the sum of all results, each weighed by seeded numbers."""
    with torch.enable_grad():
        leaves = [
            leaf
            for leaf in pytree.tree_leaves(call())
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
    random = torch.Generator().manual_seed(5)
    weights = [torch.randn(leaf.shape, generator=random).to(leaf.dtype) for leaf in leaves]
    found = torch.autograd.grad(leaves, list(asked.values()), weights, allow_unused=True)
    return dict(zip(asked, found, strict=True))


def _largest_error(
    ours: Mapping[str, torch.Tensor | None],
    theirs: Mapping[str, torch.Tensor | None],
    layer: str,
    sizes: Mapping[str, int],
) -> float:
    magnitudes = [float(one.abs().max()) for one in theirs.values() if one is not None and one.numel()]
    largest = max(magnitudes, default=0.0)
    least = _NOTHING * largest
    worst = 0.0
    for name, expected in theirs.items():
        given = ours[name]
        if expected is None or given is None:
            found = given if expected is None else expected
            error = float("inf") if found is not None and found.any() else 0.0
        else:
            error = largest_error(given, expected)
            magnitude = float(expected.abs().max()) if expected.numel() else 0.0
            if magnitude < least and math.isfinite(error):
                error = float((given - expected).abs().max()) / largest
        if not error <= (0.0 if given is None else tolerance(given.dtype).layer):
            raise EngineError(
                f"layer {layer} has a gradient of {name} that differs from the original module's by {error:.2g} of "
                f"its largest magnitude, for {_shown(sizes)}: a defect of the compiler; nothing was written"
            )
        worst = max(worst, error)
    return worst


def training_section(checked: CheckedGradients, machine: str) -> str:
    """The card's words on training."""
    if checked.reason:
        reason = MarkdownText(one_line(checked.reason))
        return f"## In training\n\n`has_backward` is `False`, and the module's own forward runs: {reason}."
    cases = checked.cases
    inputs = ", ".join(map(code_span, checked.asked)) or "no input"
    head = ["sizes", "largest error of any gradient"]
    rows = [[_label(case), f"{case.error:.1e}"] for case in cases]
    timed = any(case.ratio is not None for case in cases)
    if timed:
        head += ["original, ms", "compiled, ms", "times faster"]
        rows = [[*row, *_times(case)] for row, case in zip(rows, cases, strict=True)]
    text = (
        "## In training\n\nIn training, where a gradient is asked for, two programs of their own run: "
        "`cpu/program_training*.cpp`, which keeps what the other needs, and `cpu/program_backward*.cpp`. Gradients are "
        f"those of all parameters and of {inputs}; another one that is asked for is left to the original forward, and "
        "one of a gradient raises. Errors are against the original module in training, in units of each gradient's "
        "largest magnitude"
    )
    text += f"; times are of a call and its backward, on {MarkdownText(machine)}.\n\n" if timed else ".\n\n"
    return text + markdown_table(head, rows)


def _times(case: GradientCase) -> list[str]:
    if case.ratio is None:
        return ["-", "-", "-"]
    return [f"{case.eager_ms:.3g}", f"{case.compiled_ms:.3g}", f"{case.ratio:.2f}"]


def _label(case: GradientCase) -> str:
    sizes = ", ".join(f"{name} = {size}" for name, size in case.sizes.items()) or "fixed"
    return f"{case.dtype}, {sizes}" if case.dtype else sizes
