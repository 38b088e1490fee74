"""A call of the layer: by the program where it was built for such a call, else by the module's original forward.

A fallback is said once for each reason, on the logger "kernels_hub".
"""

from __future__ import annotations

import ctypes
import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad

from .arena import ALIGNMENT, place
from .arguments import dtype_of, inputs_of, result_of
from .arrays import read_tensors
from .errors import Misfit, NoOriginalError
from .native import Builder, Native, numbers, pointers
from .parts import Shape, Table
from .state import State

_LOGGER = logging.getLogger("kernels_hub")

_MOST_BINDINGS = 64
"""Sets of shapes for which the places of buffers are kept."""
_MOST_ADDRESSES = 1024
"""Calls (a module, a set of shapes) whose addresses a thread keeps."""


class _Binding:
    """What is fixed once the sizes are known."""

    __slots__ = ("arena", "offsets", "outputs", "sizes")

    def __init__(self, table: Table, shapes: tuple[Shape, ...]) -> None:
        sizes = table.bind(shapes)
        offsets, self.arena = place(table.scratch, table.scratch_bytes(sizes))
        self.offsets = [
            (buffer, offset)
            for one, offset in zip(table.scratch, offsets, strict=True)
            for buffer in one.buffers
        ]
        self.outputs = [
            (shape, dtype_of(one.dtype), one.buffer)
            for shape, one in zip(table.output_shapes(sizes), table.outputs, strict=True)
        ]
        self.sizes = numbers([sizes[name] for name in table.symbols])


class _Local(threading.local):
    """A thread's arena, and the addresses that it called with."""

    def __init__(self) -> None:
        self.arena: torch.Tensor | None = None
        self.addresses: dict[tuple[int, int], tuple[State, _Binding, ctypes.Array[ctypes.c_void_p]]] = {}


class Layer:
    """The program of a folder, and the modules that it serves.

    shipped: gives the module whose weights are used for modules without any of their own.
    """

    def __init__(self, table: Table, folder: Path, shipped: Callable[[], nn.Module] | None = None) -> None:
        self.table, self.folder, self.shipped = table, folder, shipped
        self._builder = Builder(table, folder / "program.cpp")
        self._states: weakref.WeakKeyDictionary[nn.Module, State] = weakref.WeakKeyDictionary()
        self._bindings: OrderedDict[tuple[Shape, ...], _Binding] = OrderedDict()
        self._constants: dict[int, torch.Tensor] | None = None
        self._lock = threading.RLock()
        self._local = _Local()
        self.fallbacks: dict[str, str] = {}
        """Kind -> the first reason of that kind for which the program did not run."""
        self._empty = torch.zeros(ALIGNMENT, dtype=torch.uint8)
        """Where tensors without elements point to, which have no address."""

    def call(self, module: nn.Module, *values: Any) -> Any:
        """The result of a call. values: of the forward's arguments in order, *args as a tuple, **kwargs as a dict."""
        if torch.compiler.is_compiling():
            return self._original(module, values)
        try:
            _check_surroundings()
            inputs = inputs_of(self.table, values)
            binding = self._binding(tuple([tuple(one.shape) for one in inputs]))
            state = self.state(module)
            if torch.is_grad_enabled() and (state.needs_grad() or any(one.requires_grad for one in inputs)):
                raise Misfit(
                    "gradient", "a gradient is asked for; use torch.no_grad() or torch.inference_mode()"
                )
        except Misfit as reason:
            self.say(reason)
            if (original := self._without_original(module)) is not None:
                raise NoOriginalError(f"{self.table.layer}: {reason}; {original}") from reason
            return self._original(module, values)
        return result_of(self.table.result, self._run(state, binding, inputs))

    def state(self, module: nn.Module) -> State:
        """The module's weights as the program takes them, made now where that is needed. Raises Misfit."""
        if self.shipped is not None and not module._parameters and not module._modules:
            module = self.shipped()
        found = self._states.get(module)
        if found is None or not found.is_current():
            native = self._builder.native()
            with self._lock:
                found = self._states[module] = State(module, self.table, native, self._arrays())
        return found

    def known(self, module: nn.Module) -> State | None:
        """The state of a module that has one."""
        return self._states.get(module)

    def forget(self, module: nn.Module) -> None:
        """Drop what was made of a module."""
        self._states.pop(module, None)

    def say(self, reason: Misfit) -> None:
        """Log a fallback, once for each kind of reason."""
        if reason.kind not in self.fallbacks:
            self.fallbacks[reason.kind] = str(reason)
            what = "cannot run a call" if self.shipped is not None else "runs the original forward"
            _LOGGER.warning("%s %s: %s", self.table.layer, what, reason)

    def _run(self, state: State, binding: _Binding, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        outputs = [torch.empty(shape, dtype=dtype) for shape, dtype, _ in binding.outputs]
        addresses = self._addresses(state, binding)
        empty = self._empty.data_ptr()
        for one, tensor in zip(self.table.inputs, inputs, strict=True):
            addresses[one.buffer] = tensor.data_ptr() or empty
        for (_, _, buffer), tensor in zip(binding.outputs, outputs, strict=True):
            addresses[buffer] = tensor.data_ptr() or empty
        if code := self._native.run(addresses, binding.sizes):
            raise IndexError(f"{self.table.layer}: {self.table.messages[code - 1]}")
        return outputs

    @property
    def _native(self) -> Native:
        return self._builder.native()

    def _binding(self, shapes: tuple[Shape, ...]) -> _Binding:
        found = self._bindings.get(shapes)
        if found is None:
            found = _Binding(self.table, shapes)
            with self._lock:
                self._bindings[shapes] = found
                while len(self._bindings) > _MOST_BINDINGS:
                    self._bindings.popitem(last=False)
        return found

    def _addresses(self, state: State, binding: _Binding) -> ctypes.Array[ctypes.c_void_p]:
        """Those of a thread's last call of the same kind, to be filled in again."""
        local = self._local
        key = (id(state), id(binding))
        found = local.addresses.get(key)
        if found is None or found[0] is not state or found[1] is not binding:
            if local.arena is None or local.arena.numel() < binding.arena:
                local.arena = torch.empty(max(binding.arena, ALIGNMENT), dtype=torch.uint8)
                local.addresses.clear()
            if len(local.addresses) >= _MOST_ADDRESSES:
                local.addresses.clear()
            addresses = pointers(state.addresses)
            base = local.arena.data_ptr()
            for buffer, offset in binding.offsets:
                addresses[buffer] = base + offset
            found = local.addresses[key] = (state, binding, addresses)
        return found[2]

    def _arrays(self) -> dict[int, torch.Tensor]:
        if self._constants is None:
            names = self.table.constants
            arrays = read_tensors(self.folder / "constants.safetensors") if names else {}
            found = {buffer: arrays[name] for buffer, name in names.items()}
            self._constants = {buffer: one if one.numel() else self._empty for buffer, one in found.items()}
        return self._constants

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
        args += named.pop(self.table.starred, ())
        named |= named.pop(self.table.named, {})
        return type(module).forward(module, *args, **named)


def _check_surroundings() -> None:
    """Raise Misfit where tensors are not what they seem, or an autocast changes what the original would compute."""
    if torch.is_autocast_enabled("cpu"):
        raise Misfit("autocast", "torch.autocast is on, which the program does not follow")
    if torch._C._get_tracing_state() is not None or torch._C._functorch.peek_interpreter_stack() is not None:
        raise Misfit("tracing", "it is traced, or transformed by torch.func")
    if forward_ad._current_level >= 0:
        raise Misfit("forward gradient", "forward-mode gradients are on")
