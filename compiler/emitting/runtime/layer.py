"""A call of the layer: by the program where it was built for such a call, else by the module's original forward.

A fallback is said once for each reason, on the logger "kernels_hub".
"""

from __future__ import annotations

import inspect
import logging
import threading
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import nn
from torch.autograd import forward_ad

from .arena import Packing
from .arguments import Inputs, Place, dtype_of, returned
from .arrays import read_tensors
from .errors import Misfit, NoOriginalError
from .parts import Shape, Table
from .state import State

_LOGGER = logging.getLogger("kernels_hub")

_MOST_BINDINGS = 64
"""Sets of shapes for which the places of buffers are kept."""

# Asked at every call, with nothing of it in a cache: names of this module are found sooner than those of torch's.
_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_is_any_autocast_enabled = torch._C._is_any_autocast_enabled
_is_autocast_enabled = torch.is_autocast_enabled
_is_tracing = torch._C._is_tracing
_is_transformed = torch._C._are_functorch_transforms_active


@dataclass(frozen=True, eq=False)
class Room:
    """Where scratch buffers lie, in an arena of so many bytes. Sizes that differ by little have the same."""

    offsets: list[tuple[int, int]]
    """(buffer, bytes from the arena's beginning)."""
    size: int


def rooms_of(table: Table) -> Packing[Room]:
    """Rooms for a program's scratch buffers, by their sizes."""

    def made(offsets: list[int], size: int) -> Room:
        placed = zip(table.scratch, offsets, strict=True)
        return Room([(buffer, offset) for one, offset in placed for buffer in one.buffers], size)

    return Packing([(one.first, one.last) for one in table.scratch], made)


class Binding:
    """What is fixed once the sizes are known."""

    __slots__ = ("outputs", "room", "sizes")

    def __init__(self, table: Table, shapes: tuple[Shape, ...], rooms: Packing[Room]) -> None:
        sizes = table.bind(shapes)
        self.room = rooms.of(table.scratch_bytes(sizes))
        self.outputs = [
            (shape, dtype_of(one.dtype), one.buffer)
            for shape, one in zip(table.output_shapes(sizes), table.outputs, strict=True)
        ]
        self.sizes = [sizes[name] for name in table.symbols]


class WithGradient(Protocol):
    """What a layer needs of the programs that it runs where a gradient is asked for."""

    def outputs(self, module: nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor] | None:
        """The call's outputs; None where no gradient is asked for. Raises Misfit."""

    def prepare(self, module: nn.Module) -> None:
        """Do now what the first call would take long for. Raises Misfit."""

    def forget(self, module: nn.Module) -> None:
        """Drop what was made of a module."""


S = TypeVar("S", bound=State)
B = TypeVar("B", bound=Binding)


class Layer(ABC, Generic[S, B]):
    """The program of a folder, and the modules that it serves.

    shipped: gives the module whose weights are used for modules without any of their own.
    """

    place: Place
    """Where the program runs."""

    def __init__(self, table: Table, folder: Path, shipped: Callable[[], nn.Module] | None = None) -> None:
        self.table, self.folder, self.shipped = table, folder, shipped
        self._states: weakref.WeakKeyDictionary[nn.Module, S] = weakref.WeakKeyDictionary()
        self._strict: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.rooms = rooms_of(table)
        self._inputs = Inputs(table, self.place)
        self._bindings: OrderedDict[tuple[Shape, ...], B] = OrderedDict()
        self._constants: dict[int, torch.Tensor] | None = None
        self._names: dict[type[nn.Module], tuple[str, ...]] = {}
        self._lock = threading.RLock()
        self.gradient: WithGradient | None = None
        """What runs where a gradient is asked for; None where the original does."""
        self.fallbacks: dict[str, str] = {}
        """Kind -> the first reason of that kind for which the program did not run."""

    @abstractmethod
    def make_state(self, module: nn.Module) -> S:
        """A module's weights as the program takes them. Raises Misfit where it was not built for them."""

    @abstractmethod
    def make_binding(self, shapes: tuple[Shape, ...]) -> B:
        """What is fixed for inputs of these shapes. Raises Misfit where it was not built for them."""

    @abstractmethod
    def run(self, state: S, binding: B, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs. Raises IndexError for an index that is out of range, Misfit where it cannot run here."""

    def call(self, module: nn.Module, *values: Any) -> Any:
        """The result of a call. values: of the forward's arguments in order, *args as a tuple, **kwargs as a dict."""
        if _is_compiling():
            return self._original(module, values)
        try:
            _check_surroundings(self.place.device)
            outputs = self._outputs(module, self._inputs.of(values))
            return returned(self.table, values, outputs)
        except Misfit as reason:
            return self.instead(module, values, reason)

    def _outputs(self, module: nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        if self.gradient is not None and module.training and _is_grad_enabled():
            outputs = self.gradient.outputs(module, inputs)
            if outputs is not None:
                return outputs
        binding = self._binding(tuple([one.shape for one in inputs]))
        state = self.state(module)
        if _is_grad_enabled() and (state.needs_grad() or any(one.requires_grad for one in inputs)):
            trains = ", or train() to have it computed" if self.gradient is not None else ""
            raise Misfit(
                "gradient", f"a gradient is asked for; use torch.no_grad() or torch.inference_mode(){trains}"
            )
        begin = perf_counter_ns()
        outputs = self.run(state, binding, inputs)
        state.took(perf_counter_ns() - begin)
        return outputs

    def prepare(self, module: nn.Module) -> None:
        """Do now what the first call of a module would take long for. Raises Misfit."""
        self._keywords(type(module))
        if module.training and self.gradient is not None:
            self.gradient.prepare(module)
        else:
            self.state(module)

    @property
    def has_backward(self) -> bool:
        """Whether gradients flow through the program."""
        return self.gradient is not None

    def instead(self, module: nn.Module, values: tuple[Any, ...], reason: Misfit) -> Any:
        """The original's result. Raises NoOriginalError where the module has none."""
        self.say(reason)
        if (original := self._without_original(module)) is not None:
            raise NoOriginalError(f"{self.table.layer}: {reason}; {original}") from reason
        return self._original(module, values)

    def state(self, module: nn.Module) -> S:
        """The module's weights as the program takes them, made now where that is needed. Raises Misfit."""
        owner = module
        if self.shipped is not None and not module._parameters and not module._modules:
            module = self.shipped()
        found = self._states.get(module)
        if found is None or not found.is_current(module):
            with self._lock:
                found = self._states[module] = self.make_state(module)
                found.be_strict(owner in self._strict)
        return found

    def refresh(self, module: nn.Module) -> None:
        """Compare all that is kept of a module's weights with them, and make it again where it is of others."""
        found = self._states.get(module)
        if found is not None and not found.is_current_whole(module):
            self._states.pop(module, None)
            self.state(module)

    def be_strict(self, module: nn.Module, on: bool) -> None:
        """Compare all that is kept of a module's weights at every call, or no more."""
        (self._strict.add if on else self._strict.discard)(module)
        if (found := self._states.get(module)) is not None:
            found.be_strict(on)

    def known(self, module: nn.Module) -> S | None:
        """The state of a module that has one."""
        return self._states.get(module)

    def forget(self, module: nn.Module) -> None:
        """Drop what was made of a module."""
        self._states.pop(module, None)
        if self.gradient is not None:
            self.gradient.forget(module)

    def say(self, reason: Misfit) -> None:
        """Log a fallback, once for each kind of reason."""
        if reason.kind not in self.fallbacks:
            self.fallbacks[reason.kind] = str(reason)
            what = "cannot run a call" if self.shipped is not None else "runs the original forward"
            _LOGGER.warning("%s %s: %s", self.table.layer, what, reason)

    def _binding(self, shapes: tuple[Shape, ...]) -> B:
        found = self._bindings.get(shapes)
        if found is None:
            shapes = tuple(map(tuple, shapes))
            found = self.make_binding(shapes)
            with self._lock:
                self._bindings[shapes] = found
                while len(self._bindings) > _MOST_BINDINGS:
                    self._bindings.popitem(last=False)
        return found

    def constants(self) -> dict[int, torch.Tensor]:
        """Buffer -> its tensor, of what every module has equal, on the CPU."""
        if self._constants is None:
            names = self.table.constants
            arrays = read_tensors(self.folder / self.table.constants_file) if names else {}
            self._constants = {buffer: arrays[name] for buffer, name in names.items()}
        return self._constants

    def _keywords(self, kind: type[nn.Module]) -> tuple[str, ...]:
        """Names of a forward's arguments, if each may be given by its name: wrappers around it look for some by theirs.

        While torch.compile traces, those that are known; `prepare` makes them so.
        """
        found = self._names.get(kind)
        if found is None and not torch.compiler.is_compiling():
            found = self._names[kind] = _keywords_of(kind)
        return found or ()

    def _without_original(self, module: nn.Module) -> str | None:
        """Why a module has no forward to fall back on; None where it has."""
        owner = next((one for one in type(module).__mro__ if "forward" in one.__dict__), nn.Module)
        if owner is nn.Module or owner.__module__.partition(".")[0] == __name__.partition(".")[0]:
            return f"a {type(module).__name__} has no other forward"
        return None

    def _original(self, module: nn.Module, values: tuple[Any, ...]) -> Any:
        """What the module's class computes."""
        named = dict(zip(self.table.arguments, values, strict=True))
        args = [named.pop(name) for name in self.table.positional]
        starred = named.pop(self.table.starred, ())
        named |= named.pop(self.table.named, {})
        keywords = self._keywords(type(module))
        if len(keywords) == len(args) and not starred:
            named |= dict(zip(keywords, args, strict=True))
            args = []
        return type(module).forward(module, *args, *starred, **named)


def _keywords_of(kind: type[nn.Module]) -> tuple[str, ...]:
    parameters = list(inspect.signature(kind.forward).parameters.values())[1:]
    if any(one.kind in {one.POSITIONAL_ONLY, one.VAR_POSITIONAL} for one in parameters):
        return ()
    return tuple(one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD)


def _check_surroundings(device: str) -> None:
    """Raise Misfit where tensors are not what they seem, or an autocast changes what the original would compute."""
    if _is_any_autocast_enabled() and _is_autocast_enabled(device):
        raise Misfit("autocast", "torch.autocast is on, which the program does not follow")
    if _is_tracing() or _is_transformed():
        raise Misfit("tracing", "it is traced, or transformed by torch.func")
    if forward_ad._current_level >= 0:
        raise Misfit("forward gradient", "forward-mode gradients are on")
