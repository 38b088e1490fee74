"""Measures kernels against what they replace: modules of a class of shape, both sides in turn.

A side is a few modules of one shape that are called one after the other, so that their weights come from beyond the
second-level cache, as in a model. Of each side the shortest time counts: what else runs on the machine can only
lengthen one. A time in which a thread of this process waited for a core does not count at all, see `waiting`.
"""

from __future__ import annotations

import bisect
import copy
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from kernels_hub.calibration.gain_table import Shape
from kernels_hub.calibration.kinds import KINDS, Arguments, split_kind
from kernels_hub.calibration.waiting import is_undisturbed, waiting

if TYPE_CHECKING:
    import torch
    from torch import nn

_WORKING_SET = 6 << 20
_MOST_COPIES = 8
_WORK_OF_A_SIDE = 1e8
"""Multiplications above which a side needs no more modules: weights take little of so long a call."""
_LEAST_PAIRS, _ENOUGH_PAIRS = 5, 60
_ENOUGH_S = 0.04
"""Undisturbed time of the pairs of an example: so many are made, at most `_ENOUGH_PAIRS`, or more until two agree."""
_MOST_S = 0.6
_AGREEMENT = 1.1
"""The second shortest time over the shortest: above it, the shortest may be a chance, and is not trusted."""
_NAP_S = 0.004

Value: TypeAlias = Any
"""An argument: a tensor, a tuple of them, or None."""
Run = Callable[[], None]
"""Calls the modules of one side once."""
Swap = Callable[["nn.Module"], object]
"""Puts kernels into a module, whatever they gain."""


def measure(
    wanted: Iterable[tuple[Shape, Iterable[int]]],
    swap: Swap,
    on_skip: Callable[[Shape, str], None],
    *,
    seconds: float = float("inf"),
) -> Iterator[tuple[Shape, int, float]]:
    """(class of shape, rows, time of PyTorch over time of the kernel) for each shape and each class of rows.

    wanted: classes of shape, each with the classes of rows.
    seconds: of measuring, after which nothing more is begun; what is imported and built for it does not count.
    on_skip: told of shapes that cannot be measured here, and why.
    """
    import torch

    measuring = 0.0
    for shape, rows_of_shape in wanted:
        if measuring >= seconds:
            return
        try:
            originals, kernels = _modules(shape, swap)
        except (ImportError, ValueError, RuntimeError, AttributeError, TypeError) as error:
            on_skip(shape, f"{type(error).__name__}: {error}"[:120])
            continue
        for rows in rows_of_shape:
            if measuring >= seconds:
                return
            try:
                with torch.inference_mode():
                    pairs = _pairs(shape, rows, originals, kernels)
                    start = time.monotonic()
                    ratio = _least_ratio(pairs)
            except (RuntimeError, ValueError, IndexError) as error:
                on_skip(shape, f"{rows} rows: {error}"[:120])
                break
            measuring += time.monotonic() - start
            if ratio is None:
                on_skip(shape, f"{rows} rows: the machine is too busy")
            else:
                yield shape, rows, ratio


def _modules(shape: Shape, swap: Swap) -> tuple[list[nn.Module], list[nn.Module]]:
    import torch

    layer, form = split_kind(shape.kind)
    if layer not in KINDS:
        raise ValueError(f"no kind {layer!r} is measured")
    original = KINDS[layer].build(form, shape.depth, shape.columns)
    original = original.to(getattr(torch, shape.dtype)).eval()
    nbytes = sum(each.nbytes for each in original.parameters())
    copies = max(1, min(_MOST_COPIES, _WORKING_SET // max(1, nbytes)))
    originals = [original, *(copy.deepcopy(original) for _ in range(copies - 1))]
    kernels = [copy.deepcopy(original) for _ in range(copies)]
    for module in kernels:
        swap(module)
        if "forward" not in module.__dict__:
            raise ValueError("no kernel of the mapping fits it")
    return originals, kernels


def _pairs(
    shape: Shape, rows: int, originals: list[nn.Module], kernels: list[nn.Module]
) -> list[tuple[Run, Run]]:
    """Calls of both sides, one pair for each of a class's examples; what is built at a first call is built."""
    import torch

    layer, form = split_kind(shape.kind)
    work = KINDS[layer].work(form, shape.depth, shape.columns, rows)
    modules = min(len(originals), max(1, int(_WORK_OF_A_SIDE / work)))
    dtype = getattr(torch, shape.dtype)
    pairs = []
    for example, named in KINDS[layer].example(form, shape.depth, shape.columns, rows):
        arguments = _cast(example, dtype), {name: _cast(each, dtype) for name, each in named.items()}
        pair = _run(originals[:modules], arguments), _run(kernels[:modules], arguments)
        for run in pair:
            run()
        pairs.append(pair)
    return pairs


def _least_ratio(pairs: list[tuple[Run, Run]]) -> float | None:
    """The least of the ratios of pairs; None where the machine is too busy to tell one."""
    ratios = []
    for original, kernel in pairs:
        ratio = shortest_ratio(original, kernel)
        if ratio is None:
            return None
        ratios.append(ratio)
    return min(ratios)


def shortest_ratio(original: Run, kernel: Run) -> float | None:
    """The shortest undisturbed time of one over that of the other, in turn; None where no two short times agree."""
    for warm_up in (original, kernel, original, kernel):
        warm_up()
    before: list[float] = []
    after: list[float] = []
    start = time.perf_counter()
    with waiting() as waited_s:
        waited = waited_s()
        while True:
            for run, undisturbed in ((original, before), (kernel, after)):
                seconds = _seconds(run)
                earlier, waited = waited, waited_s()
                if is_undisturbed(waited - earlier, seconds):
                    bisect.insort(undisturbed, seconds)
                else:  # who has slept gets a core at once, and keeps it for a while
                    time.sleep(_NAP_S)
                    waited = waited_s()
            pairs = min(len(before), len(after))
            late = time.perf_counter() > start + _MOST_S
            if pairs < _LEAST_PAIRS:
                if late:
                    return None
                continue
            agree = before[1] <= before[0] * _AGREEMENT and after[1] <= after[0] * _AGREEMENT
            if agree and (pairs >= _ENOUGH_PAIRS or pairs * (before[0] + after[0]) >= _ENOUGH_S):
                return before[0] / after[0]
            if late:
                return before[0] / after[0] if agree else None


def _run(modules: list[nn.Module], arguments: Arguments) -> Run:
    args, kwargs = arguments

    def run() -> None:
        for module in modules:
            module(*args, **kwargs)

    return run


def _seconds(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _cast(value: Value, dtype: torch.dtype) -> Value:
    if isinstance(value, tuple):
        return tuple(_cast(each, dtype) for each in value)
    return value.to(dtype) if value is not None and value.is_floating_point() else value
