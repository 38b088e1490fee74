"""Runs a kernel only where it is known to be faster: decided for a module when it is bound, for its rows at the call.

A module whose kernel gains for no number of rows keeps its original forward, at no cost a call. Where it depends on
the rows, a gate in front of the kernel compares the number of elements of its first argument with the bounds.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kernels_hub.calibration.database import (
    IGNORE,
    OTHERS,
    KnownGains,
    Machine,
    known_gains,
    setting,
    this_machine,
)
from kernels_hub.calibration.gain_table import Gain, Shape
from kernels_hub.calibration.kinds import class_of, from_memory, read_shape, rows_of
from kernels_hub.calibration.processor import LARGER_THAN_CACHES, last_level_cache

if TYPE_CHECKING:
    from torch import nn

Forward = Callable[..., Any]
Sizes = tuple[tuple[int, float], ...]
"""Ranges, first and last, of the number of elements of a forward's first argument."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a module gets its kernel. `reason` is why not, None where it gets it, for arguments of these sizes."""

    reason: str | None
    gain: Gain | None = None
    sizes: Sizes = ()
    unknown: tuple[Shape, int] | None = None
    """The class of shape, and elements of the first argument a row, where nothing is known yet."""


@dataclass
class GainGate:
    """Decides for the modules of one `kernelize` call; `unknown` are the classes of shape that nothing is known of.

    model: whose weights lie in a cache from call to call, or do not.
    """

    model: nn.Module | None = None
    unknown: dict[Shape, None] = field(default_factory=dict)
    _machine: Machine | None = None
    _known: KnownGains | None = None
    _verdicts: dict[tuple[Shape, int], Verdict] = field(default_factory=dict)

    @cached_property
    def reads_memory(self) -> bool:
        """Whether no cache holds the weights of the model: a call of a few rows waits for memory."""
        return self.model is not None and _holds_more(self.model, LARGER_THAN_CACHES * last_level_cache())

    @property
    def machine(self) -> Machine:
        """The machine that is decided for."""
        if self._machine is None:
            self._machine = this_machine()
        return self._machine

    def decide(self, layer: str, module: nn.Module, layer_of_both: str | None = None) -> Verdict:
        """The verdict on the kernel that a layer name has, for one module.

        layer_of_both: what the module was measured as together with what follows it, which its kernel computes too.
        """
        read = read_shape(layer, module)
        if read is None:
            return _UNREADABLE
        shape, width = read
        if layer_of_both is not None:
            verdict = self._verdict(replace(shape, kind=layer_of_both), width)
            if verdict.gain is not None:
                return verdict
        return self._verdict(shape, width)

    def _verdict(self, shape: Shape, width: int) -> Verdict:
        verdict = self._verdicts.get((shape, width))
        if verdict is None:
            verdict = self._verdicts[shape, width] = self._decide(shape, width)
        return verdict

    def _decide(self, shape: Shape, width: int) -> Verdict:
        if self._known is None:
            self._known = known_gains(self.machine)
        gain = self._known.gain(shape, reads_memory=self.reads_memory)
        cell = class_of(shape)
        for each in (cell, from_memory(cell)) if self.reads_memory else (cell,):
            if rows_of(each) and not self._known.is_measured(each):
                self.unknown[each] = None
        if gain is None and self._known.is_empty_by_determinism:
            return _CHOSEN_BY_TIME
        if gain is None:
            reason = f"kept: its gain is unknown on this processor ({self.machine.processor})"
            return Verdict(reason, unknown=(cell, width))
        if not gain.rows:
            where = "of PyTorch expected" if gain.source == OTHERS else "of PyTorch here"
            return Verdict(f"kept: {gain.ratio:.2f} {where} ({gain.source})", gain)
        return Verdict(None, gain, tuple((first * width, last * width) for first, last in gain.rows))


def _holds_more(model: nn.Module, size: float) -> bool:
    """Whether a model's weights take more than so many bytes. No more of them are looked at than that needs."""
    seen: set[int] = set()
    waiting = [model]
    held = 0
    while waiting:
        module = waiting.pop()
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)
        for tensors in (module._parameters, module._buffers):
            for tensor in tensors.values():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    held += tensor.nbytes
        if held > size:
            return True
    return False


_CHOSEN_BY_TIME = Verdict(
    "kept: nothing is chosen by time under torch.use_deterministic_algorithms; "
    "KERNELS_HUB_CALIBRATION=FILE.json pins what was measured"
)
_UNREADABLE = Verdict("kept: its gain is unknown, for its shape is of no kind that is measured")


def asks_for_gains() -> bool:
    """Whether gains decide at all in this process."""
    return setting() != IGNORE


def tries_gains() -> bool:
    """Whether kernels of unknown gain are tried at calls: not where KERNELS_HUB_CALIBRATION says what is known."""
    import torch

    return not setting() and not torch.are_deterministic_algorithms_enabled()


_FEW_ROWS = 63
"""Below the class of 64 rows: a kernel that gains at 16 and not at 64 reaches no further."""


def multiplies_few_rows_only(gain: Gain | None) -> bool:
    """Whether a kernel runs for so few rows that copies of its weights are made when a call needs them, if ever."""
    return gain is not None and bool(gain.rows) and gain.rows[-1][1] <= _FEW_ROWS


@functools.lru_cache(maxsize=4096)
def gated_forward(
    kernel: Forward, cls: type[nn.Module], sizes: Sizes, original: Forward | None = None
) -> Forward:
    """The kernel's forward for first arguments of these numbers of elements, `original` for others.

    original: the forward that the class has at the call where it is None.
    """
    import torch

    def is_open(size: int | torch.SymInt) -> bool:
        """Whether what is exported may be for other sizes, too: it is refused where one of those was compared."""
        return type(size) is not int or torch.compiler.is_dynamo_compiling()

    signature = inspect.signature(cls.forward)
    _, first, *others = signature.parameters.values()
    rest = ", *args, **kwargs" if others else ""
    test = " or ".join(
        f"{int(low)} <= size" if high == math.inf else f"{int(low)} <= size <= {int(high)}"
        for low, high in sizes
    )
    namespace: dict[str, Any] = {
        "kernel": kernel,
        "original": original,
        "class_of": type,
        "compiler": torch.compiler,
        "is_open": is_open,
    }
    # Not is_exporting(): before PyTorch 2.13, Dynamo answers it with True under torch.compile, too.
    if hasattr(torch.compiler, "_is_exporting_flag"):
        test = f"not (compiler._is_exporting_flag and is_open(size)) and ({test})"
    otherwise = "class_of(self).forward" if original is None else "original"
    closed = f"return {otherwise}(self, {first.name}{rest})"
    if original is None and _is_torchs_linear(
        cls.forward
    ):  # a token has dozens of them: without a call of it
        namespace |= {"linear_forward": cls.forward, "module": torch.nn.modules.linear}
        closed = (
            f"if {otherwise} is linear_forward:\n"
            f"        return module.F.linear({first.name}, self.weight, self.bias)\n"
            f"    {closed}"
        )
    exec(  # noqa: S102 - a name from a real signature, which is an identifier, and numbers
        f"def forward(self, {first.name}{rest}):\n"
        f"    try:\n"
        f"        size = {first.name}.numel()\n"
        f"    except AttributeError:\n"
        f"        size = -1  # no tensor: the original says so\n"
        f"    if {test}:\n"
        f"        return kernel(self, {first.name}{rest})\n"
        f"    {closed}\n",
        namespace,
    )
    forward: Any = namespace["forward"]
    forward.__module__, forward.__qualname__ = kernel.__module__, kernel.__qualname__
    forward.__doc__, forward.__signature__ = kernel.__doc__, signature
    if (decided := getattr(kernel, "decided", None)) is not None:  # see native_builds
        forward.decided = decided
    return forward  # type: ignore[no-any-return]


def _is_torchs_linear(forward: Forward) -> bool:
    """Whether it is the forward of torch.nn.Linear that PyTorch has, and nobody else has put there."""
    import torch

    linear = torch.nn.modules.linear
    is_named = getattr(forward, "__qualname__", None) == "Linear.forward"
    return is_named and getattr(forward, "__globals__", None) is vars(linear)
