"""Dispatches a call among the programs of a layer by the dtype of the weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from .errors import Misfit
from .layer import Layer
from .state import State, find_weight


class ByDtype:
    """As a `Layer`. layers: dtype -> its layer; the first says what a call is."""

    def __init__(self, layers: Mapping[str, Layer[Any]]) -> None:
        self._layers = {getattr(torch, name): layer_of_dtype for name, layer_of_dtype in layers.items()}
        self._names = " and ".join(layers)
        self.layers = list(layers.values())
        self._first = self.layers[0]
        self.table = self._first.table
        self._told_by = _differing(layers)
        self.fallbacks: dict[str, str] = {}
        """Kind -> the first reason of that kind for which no program ran."""
        for layer in layers.values():
            layer.fallbacks = self.fallbacks

    def call(self, module: nn.Module, *values: Any) -> Any:
        """As `Layer.call`."""
        try:
            layer = self._of(module, values)
        except Misfit as reason:
            if torch.compiler.is_compiling():
                return self._first.call(module, *values)
            return self._first.instead(module, values, reason)
        return layer.call(module, *values)

    def state(self, module: nn.Module) -> State:
        """As `Layer.state`."""
        state: State = self._of(module, ()).state(module)
        return state

    def prepare(self, module: nn.Module) -> None:
        """As `Layer.prepare`."""
        self._of(module, ()).prepare(module)

    @property
    def has_backward(self) -> bool:
        """Whether gradients flow through all of the programs."""
        return all(layer.has_backward for layer in self.layers)

    def known(self, module: nn.Module) -> State | None:
        """As `Layer.known`."""
        return next(
            (state for layer in self._layers.values() if (state := layer.known(module)) is not None), None
        )

    def forget(self, module: nn.Module) -> None:
        """As `Layer.forget`."""
        for layer in self._layers.values():
            layer.forget(module)

    def refresh(self, module: nn.Module) -> None:
        """As `Layer.refresh`."""
        for layer in self.layers:
            if layer.known(module) is not None:
                layer.refresh(module)

    def be_strict(self, module: nn.Module, on: bool) -> None:
        """As `Layer.be_strict`."""
        for layer in self.layers:
            layer.be_strict(module, on)

    def say(self, reason: Misfit) -> None:
        """As `Layer.say`."""
        self._first.say(reason)

    def _of(self, module: nn.Module, values: Iterable[Any]) -> Layer[Any]:
        if self._told_by is not None:
            name, tensor = f"its {self._told_by}", find_weight(module, self._told_by)[2]
        else:
            leaf = _first_float(values)
            if leaf is None:
                return self._first
            name, tensor = "an argument", leaf
        layer = self._layers.get(tensor.dtype)
        if layer is None:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise Misfit(f"dtype {dtype}", f"{name} is {dtype}, it was compiled for {self._names}")
        return layer


def _differing(layers: Mapping[str, Layer[Any]]) -> str | None:
    """A weight that has each program's dtype there; None where no weight tells them from each other."""
    weight_dtypes = [
        {weight.name: weight.dtype for weight in layer.table.weights} for layer in layers.values()
    ]
    for name in weight_dtypes[0]:
        if all(of.get(name) == dtype for dtype, of in zip(layers, weight_dtypes, strict=True)):
            return name
    return None


def _first_float(values: Iterable[Any]) -> torch.Tensor | None:
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_floating_point():
                return value
        elif isinstance(value, (tuple, list, dict)):
            dtype = _first_float(value.values() if isinstance(value, dict) else value)
            if dtype is not None:
                return dtype
    return None
