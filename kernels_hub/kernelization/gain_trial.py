"""Tries kernels whose gain is not known yet at a model's own calls, until it is: of two calls, one runs the kernel.

Processors that no table is shipped for, and sizes that none has, would keep PyTorch's code until another `kernelize`.
Here a module's calls run the original and the kernel in turn, each timed; the ratios of all modules of a class of shape
count together. From five pairs on, a kernel that is faster stays, at no further cost, and one that is not is taken off.
Both results are right, so nothing is computed twice, and no call takes longer than the slower of the two.

Not where it would show: within a `generate`, under torch.use_deterministic_algorithms, with gradients, where something
traces the model; such calls run the original, and do not count.
"""

from __future__ import annotations

import inspect
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kernels_hub.calibration.database import THIS_MACHINE, KnownGains, Machine, add, load
from kernels_hub.calibration.gain_table import LEAST_GAIN, Gain, GainTable, Shape
from kernels_hub.kernelization.bind import (
    Forward,
    KernelForward,
    bind_forward,
    unbind_forward,
    weights_protocol,
)
from kernels_hub.kernelization.compiled_layer import Arguments, Keywords
from kernels_hub.kernelization.generation import is_generating
from kernels_hub.kernelization.native_builds import has_native_code
from kernels_hub.kernelization.outcome import RECORD_ATTRIBUTE, SwapDecision, record_of
from kernels_hub.kernelization.settle import CHANGING

if TYPE_CHECKING:
    from torch import nn

_PAIRS, _MOST_PAIRS = 5, 11
"""Pairs of calls that decide, where all but one say the same, and that decide in any case."""
_LOST, _LOST_PAIRS = 0.7, 2
"""A kernel that takes this much longer each time is not tried further."""
_WARM_UPS = 2
"""Calls of a module before its first pair: one of each side, which makes what later ones find."""
_MOST_UNTRIED = 256
"""Calls of a class of shape that cannot be tried, as all in a `generate`, until its modules are asked no more."""
_MOST_CALLS = 40
"""Calls of a module that are tried, whatever came of them: of arguments that are of another size each time, nothing."""


@dataclass
class _Turns:
    """Where a module is. original: the size and the seconds of a call of the original that a kernel's is to follow."""

    calls: int = 0
    original: tuple[int, float] | None = None


@dataclass
class GainTrial:
    """What calls of modules of one class of shape have shown; one for all of them.

    kernel: takes the module first. own: the decision for it. cell: that class. width: elements of the first argument a
        row. gated: makes the forward that runs the kernel for first arguments of certain sizes. keeps: what is found is
        written to the machine's file; not of weights that come from memory, which gain otherwise than in other models.
    """

    kernel: Forward
    own: SwapDecision
    cell: Shape
    width: int
    machine: Machine
    gated: Callable[[tuple[tuple[int, float], ...]], Forward]
    keeps: bool = True
    _turns: dict[tuple[int, int], _Turns] = field(default_factory=dict)
    """By the identity of the module and the class of rows."""
    _ratios: dict[int, list[float]] = field(default_factory=dict)
    _table: GainTable = field(default_factory=GainTable)
    _given_up: set[int] = field(default_factory=set)
    _untried: int = 0
    """Calls that could not be tried."""

    def run(self, forward: Forward, module: nn.Module, args: Arguments, kwargs: Keywords) -> object:
        """A call of a module. forward: what is bound to it, which is taken off once it is known what is faster."""
        original = type(module).forward
        first: Any = args[0] if args else next(iter(kwargs.values()), None)
        if self._untried > _MOST_UNTRIED:
            self._settle(forward, module)
            return original(module, *args, **kwargs)
        if not _can_be_tried(first):
            self._untried += 1
            return original(module, *args, **kwargs)
        size = first.numel()
        rows = 1 << round(math.log2(max(1, size // self.width)))
        if rows in self._given_up or rows in self._table.cells.get(self.cell, {}):
            self._settle(forward, module)
            return self._known_forward(original, size)(module, *args, **kwargs)
        if (is_here := has_native_code(self.kernel)) is not True:
            self._untried += is_here is False
            return original(module, *args, **kwargs)
        turns = self._turns.setdefault((id(module), rows), _Turns())
        turns.calls += 1
        if turns.calls >= _MOST_CALLS:
            self._given_up.add(rows)
        if turns.calls <= _WARM_UPS:
            return (original if turns.calls % 2 else self.kernel)(module, *args, **kwargs)
        before = turns.original
        runs_kernel = before is not None and before[0] == size
        started = time.perf_counter()
        result = (self.kernel if runs_kernel else original)(module, *args, **kwargs)
        seconds = max(time.perf_counter() - started, 1e-9)
        if before is not None and runs_kernel:
            turns.original = None
            self._note(rows, before[1] / seconds)
        else:
            turns.original = size, seconds
        return result

    def _note(self, rows: int, ratio: float) -> None:
        """Count a pair of calls; decide where that is enough."""
        ratios = self._ratios.setdefault(rows, [])
        ratios.append(ratio)
        ordered = sorted(ratios)
        middle = ordered[len(ordered) // 2]
        agree = len(ordered) >= _PAIRS and (
            ordered[1] >= 1 if middle >= LEAST_GAIN else ordered[-2] < LEAST_GAIN
        )
        if agree or len(ordered) >= _MOST_PAIRS or (len(ordered) >= _LOST_PAIRS and ordered[-1] < _LOST):
            self._table.put(self.cell, rows, middle)
            if self.keeps:
                _keep(self.machine, self.cell, rows, middle)

    def _gain(self) -> Gain | None:
        return KnownGains(((THIS_MACHINE, self._table),)).gain(self.cell)

    def _sizes(self) -> tuple[tuple[int, float], ...]:
        """The numbers of elements of first arguments for which the kernel is known to be faster."""
        gain = self._gain()
        return tuple((first * self.width, last * self.width) for first, last in gain.rows) if gain else ()

    def _known_forward(self, original: Forward, size: int) -> Forward:
        return self.kernel if any(first <= size <= last for first, last in self._sizes()) else original

    def _settle(self, forward: Forward, module: nn.Module) -> None:
        """Take the trial off a module, and leave the kernel for the sizes at which it gains."""
        with CHANGING:
            state = module.__dict__
            bound, record = state.get("forward"), record_of(module)
            if type(bound) is not KernelForward or bound.func is not forward or record is None:
                return
            gain, sizes = self._gain(), self._sizes()
            unbind_forward(module)
            if sizes:
                bind_forward(module, self.gated(sizes))
                own = replace(self.own, gain=gain, sizes=sizes)
            else:
                if (weights := weights_protocol(self.kernel)) is not None:
                    weights.release(module)
                found = "its calls did not tell" if gain is None else f"{gain.ratio:.2f} of PyTorch here"
                own = replace(self.own, swapped=False, reason=f"kept: {found} (this machine)", gain=gain)
            state[RECORD_ATTRIBUTE] = replace(record, own=own)


def _can_be_tried(first: object) -> bool:
    """Whether a call with this first argument may run either side, with nobody the wiser."""
    import torch

    return (
        not torch.compiler.is_compiling()
        and type(first) is torch.Tensor
        and not torch.is_grad_enabled()
        and not torch.are_deterministic_algorithms_enabled()
        and torch._C._get_tracing_state() is None
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._len_torch_function_stack()
        and not is_generating()
    )


def tried_forward(trial: GainTrial, cls: type[nn.Module]) -> Forward:
    """The forward of modules of a class on trial."""

    def forward(self: nn.Module, *args: object, **kwargs: object) -> object:
        return trial.run(forward, self, args, kwargs)

    made: Any = forward
    made.__signature__ = inspect.signature(cls.forward)
    if (weights := weights_protocol(trial.kernel)) is not None:
        made.kernel_weights = _WeightsOfTrial(weights)
    return forward


class _WeightsOfTrial:
    """The packed weights of modules on trial: those that calls have made, none ahead."""

    def __init__(self, weights: object) -> None:
        self._weights = weights

    def __getattr__(self, name: str) -> object:
        return getattr(self._weights, name)

    def prepare(self, module: nn.Module) -> None:
        """Leave it to the calls."""


# -- what is kept for later processes ---------------------------------------------------------------

_FOUND: list[tuple[Machine, Shape, int, float]] = []
_LOCK = threading.Lock()
_WRITER = "kernels_hub-gains"
_TOGETHER_S = 1.0
"""What is found within this long is written at once."""


def _keep(machine: Machine, cell: Shape, rows: int, ratio: float) -> None:
    """Have what was found written to the machine's file, where no careful measurement says it."""
    with _LOCK:
        _FOUND.append((machine, cell, rows, ratio))
        if len(_FOUND) == 1:
            threading.Thread(target=_write, name=_WRITER, daemon=True).start()


def _write() -> None:
    time.sleep(_TOGETHER_S)
    with _LOCK:
        found = _FOUND[:]
        _FOUND.clear()
    for machine in {one[0] for one in found}:
        known, table = load(machine), GainTable()
        for of, cell, rows, ratio in found:
            if of == machine and rows not in known.cells.get(cell, {}):
                table.put(cell, rows, ratio)
        if table.cells:
            add(machine, table)
