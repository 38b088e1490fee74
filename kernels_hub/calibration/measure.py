"""Measures kernels against what they replace: modules of a class of shape, both sides in turn.

Between two calls runs what a model does between them: operators of PyTorch, with weights that fill the second-level
cache. So a module finds its weights and its code as far away as in a model; called over and over, an operator that is
written in Python seems to take a third of what it takes there. Of classes that are read from memory there are so many
modules, called in turn, that no cache holds the weights of all: as in a model of normal size, where reading them takes
the time of a call of few rows. Of each side the shortest time counts: what else runs on the machine can only
lengthen one. A time in which a thread of this process waited for a core does not count at all, see `waiting`.
"""

from __future__ import annotations

import bisect
import copy
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from kernels_hub.calibration.gain_table import Shape
from kernels_hub.calibration.kind import Arguments
from kernels_hub.calibration.kinds import KINDS, is_from_memory, split_kind
from kernels_hub.calibration.processor import LARGER_THAN_CACHES, last_level_cache
from kernels_hub.calibration.waiting import is_undisturbed, waiting

if TYPE_CHECKING:
    import torch
    from torch import nn

_LEAST_PAIRS, _ENOUGH_PAIRS = 5, 60
_ENOUGH_S = 0.04
"""Undisturbed time of the pairs of an example: so many are made, at most `_ENOUGH_PAIRS`, or more until two agree."""
_MOST_S = 0.6
"""After so long an example has the times that it has; of calls that take long, after twice `_LEAST_PAIRS` pairs."""
_AGREEMENT = 1.1
"""The second shortest time over the shortest: above it, the shortest may be a chance, and is not trusted."""
_NAP_S = 0.004

Value: TypeAlias = Any
"""An argument: a tensor, a tuple of them, or None."""
Run = Callable[[], object]
"""Calls the module of one side once."""
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
    seconds: of measuring, after which nothing more is begun; making copies of modules counts, what is imported and
        built for the first of them does not.
    on_skip: told of shapes that cannot be measured here, and why.
    """
    import torch

    measuring = 0.0
    for shape, rows_of_shape in wanted:
        if measuring >= seconds:
            return
        try:
            original, kernel = _modules(shape, swap)
            begun = time.monotonic()
            originals, kernels = _copied(shape, original, kernel, swap)
        except (ImportError, ValueError, RuntimeError, AttributeError, TypeError) as error:
            on_skip(shape, f"{type(error).__name__}: {error}"[:120])
            continue
        measuring += time.monotonic() - begun
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


def _modules(shape: Shape, swap: Swap) -> tuple[nn.Module, nn.Module]:
    import torch

    layer, form = split_kind(shape.kind)
    if layer not in KINDS:
        raise ValueError(f"no kind {layer!r} is measured")
    original = KINDS[layer].build(form, shape.depth, shape.columns)
    original = original.to(getattr(torch, shape.dtype)).eval()
    kernel = copy.deepcopy(original)
    swap(kernel)
    if "forward" not in kernel.__dict__:
        raise ValueError("no kernel of the mapping fits it")
    return original, kernel


def _copied(
    shape: Shape, original: nn.Module, kernel: nn.Module, swap: Swap
) -> tuple[list[nn.Module], list[nn.Module]]:
    """A module as PyTorch has it and one on kernels, with so many copies of each that no cache holds the weights of
    all, where they are to be read from memory.
    """
    originals, kernels = [original], [kernel]
    if is_from_memory(shape):
        weights = sum(tensor.nbytes for tensor in original.parameters())
        count = math.ceil(LARGER_THAN_CACHES * last_level_cache() / (2 * max(weights, _LEAST_WEIGHTS)))
        for _ in range(count - 1):
            originals.append(copy.deepcopy(original))
            kernels.append(copy.deepcopy(original))
            swap(kernels[-1])
    return originals, kernels


_LEAST_WEIGHTS = 1 << 17
"""Bytes of weights below which there are no more copies of a module."""


def _pairs(
    shape: Shape, rows: int, originals: list[nn.Module], kernels: list[nn.Module]
) -> list[tuple[Run, Run]]:
    """Calls of both sides, one pair for each of a class's examples; what is built at a first call is built."""
    import torch

    layer, form = split_kind(shape.kind)
    dtype = getattr(torch, shape.dtype)
    pairs = []
    for example, named in KINDS[layer].example(form, shape.depth, shape.columns, rows):
        arguments = _cast(example, dtype), {name: _cast(each, dtype) for name, each in named.items()}
        pair = _run(originals, arguments), _run(kernels, arguments)
        for run in pair:
            for _ in originals:
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
    run_others = _other_layers()
    with waiting() as waited_s:
        while True:
            for run, undisturbed in ((original, before), (kernel, after)):
                run_others()
                earlier = waited_s()
                seconds = _seconds(run)
                if is_undisturbed(waited_s() - earlier, seconds):
                    bisect.insort(undisturbed, seconds)
                else:  # who has slept gets a core at once, and keeps it for a while
                    time.sleep(_NAP_S)
            pairs = min(len(before), len(after))
            shortest_pair = before[0] + after[0] if pairs else 0.0
            late = time.perf_counter() > start + max(_MOST_S, 2 * _LEAST_PAIRS * shortest_pair)
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
    """Calls the modules in turn."""
    args, kwargs = arguments
    turns = itertools.cycle(modules)
    return lambda: next(turns)(*args, **kwargs)


def _seconds(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


@lru_cache(maxsize=1)
def _other_layers() -> Run:
    """What runs between two calls: a small transformer block of PyTorch's, with 3 MiB of weights."""
    import torch
    from torch.nn import functional

    width, heads, tokens = 256, 4, 4
    x = torch.randn(1, tokens, width)
    shapes = ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width))
    joined, out, up, down = (torch.randn(*shape) for shape in shapes)

    def run() -> object:
        parts = functional.linear(functional.layer_norm(x, (width,)), joined).chunk(3, dim=-1)
        query, key, value = (part.view(1, tokens, heads, -1).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        hidden = x + functional.linear(mixed.transpose(1, 2).reshape(1, tokens, width), out)
        wide = functional.gelu(functional.linear(functional.layer_norm(hidden, (width,)), up))
        return hidden + functional.linear(wide, down)

    return run


def _cast(value: Value, dtype: torch.dtype) -> Value:
    if isinstance(value, tuple):
        return tuple(_cast(each, dtype) for each in value)
    return value.to(dtype) if value is not None and value.is_floating_point() else value
