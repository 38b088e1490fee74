"""A call of a published layer: runs the program where it was built for such a call, else the original forward.

A fallback is said once for each reason, on the logger "kernels_hub".
"""

from __future__ import annotations

import inspect
import logging
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import nn

from .arguments import Inputs, Place, dtype_of, returned, values_by_name
from .arrays import read_tensors
from .binding import Binding, ShapeCache
from .errors import Misfit, NoOriginalError, ShapeMisfit, SizeMisfit, ValueMisfit
from .intervals import arena_layouts
from .parts import Input, Shape, Table
from .sizes import Declared, ShapeBinder
from .state import State
from .surroundings import Surroundings
from .views import Views

_LOGGER = logging.getLogger("kernels_hub.runtime.layer")

# Asked at every call, with nothing of it in a cache: names of this module are found sooner than those of torch's.
_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled


class Bindings(ShapeCache[Binding]):
    """The bindings of a table's program, by the shapes of its inputs."""

    def __init__(self, table: Table) -> None:
        super().__init__(self._bound)
        self._table = table
        self._layouts = arena_layouts(
            [(scratch.buffers, scratch.first, scratch.last) for scratch in table.scratch]
        )
        self._dtypes = [dtype_of(output.dtype) for output in table.outputs]
        self.sizes = ShapeBinder(list(map(_declared, table.inputs)), table.bounds).of
        """The sizes of symbols, by the shapes of inputs."""

    def _bound(self, shapes: tuple[Shape, ...]) -> Binding:
        table = self._table
        sizes = self.sizes(shapes)
        return Binding(
            [sizes[name] for name in table.symbols],
            self._layouts.of(table.scratch_bytes(sizes)),
            list(zip(table.output_shapes(sizes), self._dtypes, strict=True)),
        )


def _declared(given: Input) -> Declared:
    shape = ", ".join(map(str, given.shape))
    return Declared(given.name, f"{given.name}, compiled for [{shape}],", given.shape)


class Watcher(Protocol):
    """Who is told of calls that a layer does not take."""

    def shapes_misfit(self, module: nn.Module) -> None:
        """A call of a module had shapes, or values of arguments, that the program does not take."""


class WithGradient(Protocol):
    """What a layer needs of the programs that it runs where a gradient is asked for."""

    def outputs(self, module: nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor] | None:
        """The call's outputs; None where no gradient is asked for. Raises Misfit."""

    def prepare(self, module: nn.Module) -> None:
        """Do now what the first call would take long for. Raises Misfit."""

    def forget(self, module: nn.Module) -> None:
        """Drop what was made of a module."""


S = TypeVar("S", bound=State)


class Layer(ABC, Generic[S]):
    """The program of a folder, and the modules that it serves.

    shipped: gives the module whose weights are used for modules without any of their own.
    """

    place: Place
    """Where the program runs."""

    def __init__(self, table: Table, folder: Path, shipped: Callable[[], nn.Module] | None = None) -> None:
        self.table, self.folder, self.shipped = table, folder, shipped
        self._states: weakref.WeakKeyDictionary[nn.Module, S] = weakref.WeakKeyDictionary()
        self._strict: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._inputs = Inputs(table, self.place)
        self._surroundings = Surroundings(table.modules, self.place.device)
        self.bindings = Bindings(table)
        self._views = Views(table, self.bindings.sizes) if table.views else None
        self._constants: dict[int, torch.Tensor] | None = None
        self._names: dict[type[nn.Module], tuple[str, ...]] = {}
        self._lock = threading.RLock()
        self.gradient: WithGradient | None = None
        """What runs where a gradient is asked for; None where the original does."""
        self.fallbacks: dict[str, str] = {}
        """Kind -> the first reason of that kind for which the program did not run."""
        self.watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()
        """Who is told of calls whose shapes do not fit."""

    @abstractmethod
    def make_state(self, module: nn.Module) -> S:
        """A module's weights as the program takes them. Raises Misfit where it was not built for them."""

    @abstractmethod
    def run(self, state: S, binding: Binding, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs. Raises IndexError for an index that is out of range, Misfit where it cannot run here."""

    def call(self, module: nn.Module, *values: Any) -> Any:
        """The result of a call. values: of the forward's arguments in order, *args as a tuple, **kwargs as a dict."""
        if _is_compiling():
            return self._original(module, values)
        try:
            self._surroundings.check(values)
            inputs = self._inputs.of(values)
            outputs = self._outputs(module, inputs)
            if self.table.assertions is not None and not outputs[self.table.assertions]:
                raise Misfit("assertion", "what its forward asserts of data does not hold")
            if self._views is not None:
                outputs += self._views.of(module, values_by_name(self.table, values), inputs, outputs)
            return returned(self.table, values, outputs)
        except Misfit as reason:
            return self.instead(module, values, reason)

    def _outputs(self, module: nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        if self.gradient is not None and module.training and _is_grad_enabled():
            outputs = self.gradient.outputs(module, inputs)
            if outputs is not None:
                return outputs
        binding = self.bindings.of(inputs)
        state = self.state(module)
        if _is_grad_enabled() and (state.needs_grad() or any(tensor.requires_grad for tensor in inputs)):
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
        if isinstance(reason, (ShapeMisfit, SizeMisfit, ValueMisfit)):
            for watcher in self.watchers:
                watcher.shapes_misfit(module)
        if (original := self._without_original(module)) is not None:
            raise NoOriginalError(f"{self.table.layer}: {reason}; {original}") from reason
        return self._original(module, values)

    def state(self, module: nn.Module) -> S:
        """The module's weights as the program takes them, made now where that is needed. Raises Misfit."""
        owner = module
        if self.shipped is not None and not module._parameters and not module._modules:
            module = self.shipped()
        known = self._states.get(module)
        if known is None or not known.is_current(module):
            with self._lock:
                known = self._states[module] = self.make_state(module)
                known.be_strict(owner in self._strict)
        return known

    def refresh(self, module: nn.Module) -> None:
        """Compare all that is kept of a module's weights with them, and make it again where it is of others."""
        state = self._states.get(module)
        if state is not None and not state.is_current_whole(module):
            self._states.pop(module, None)
            self.state(module)

    def be_strict(self, module: nn.Module, on: bool) -> None:
        """Compare all that is kept of a module's weights at every call, or no more."""
        (self._strict.add if on else self._strict.discard)(module)
        if (state := self._states.get(module)) is not None:
            state.be_strict(on)

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
        names = self._names.get(kind)
        if names is None and not torch.compiler.is_compiling():
            names = self._names[kind] = _keywords_of(kind)
        return names or ()

    def _without_original(self, module: nn.Module) -> str | None:
        """Why a module has no forward to fall back on; None where it has."""
        owner = next((base for base in type(module).__mro__ if "forward" in base.__dict__), nn.Module)
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
    if any(
        parameter.kind in {parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL} for parameter in parameters
    ):
        return ()
    return tuple(
        parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    )
