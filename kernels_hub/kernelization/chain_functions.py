"""Functions in a chain: the activations of PyTorch that forwards call between their children, `F.relu(self.bn(x))`.

A function has a name as children have (with a dot, which no child's has) that says which it is, with which settings:
`F.relu`, `F.relu(inplace=True)`, `torch.relu`, `F.gelu(approximate='tanh')`. For kernels that compute it with what is
before it, an activation module of torch.nn stands in its place, which is never called. A call of a chain is given what
the forward would have called: where that is no longer PyTorch's own, nothing runs as one.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

_MODULES: Mapping[str, tuple[str, frozenset[str]]] = {
    "F.relu": ("ReLU", frozenset({"inplace"})),
    "F.relu_": ("ReLU", frozenset()),
    "F.relu6": ("ReLU6", frozenset({"inplace"})),
    "F.silu": ("SiLU", frozenset({"inplace"})),
    "F.hardswish": ("Hardswish", frozenset({"inplace"})),
    "F.gelu": ("GELU", frozenset({"approximate"})),
    "torch.relu": ("ReLU", frozenset()),
    "torch.relu_": ("ReLU", frozenset()),
}
"""The module of torch.nn that computes what a function does, and the settings that both have."""


def is_function(name: str) -> bool:
    """Whether a name in a chain is that of a function, not of a child."""
    return "." in name


def function_name(call: ast.Call, forward: FunctionType) -> str | None:
    """The name of a call of an activation in a forward; None for calls of anything else."""
    found = _value_of(call.func, forward)
    plain = next((name for name in _MODULES if found is not None and found is _function(name)), None)
    if plain is None or not _is_pytorchs(plain):
        return None
    settings: dict[str, object] = {}
    for keyword in call.keywords:
        if keyword.arg not in _MODULES[plain][1] or not isinstance(keyword.value, ast.Constant):
            return None
        settings[keyword.arg] = keyword.value.value
    told = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    name = f"{plain}({told})" if told else plain
    try:
        chain_function(name)
    except (TypeError, ValueError):  # settings that PyTorch refuses: it shall say so at the call
        return None
    return name


@dataclass(frozen=True)
class ChainFunction:
    """A function of PyTorch's, how it is called, and the module that stands for it before kernels."""

    original: object
    """None where somebody's own was there from the first."""
    settings: Mapping[str, object]
    module: nn.Module


@functools.cache
def chain_function(name: str) -> ChainFunction:
    """The function of a name that `function_name` gave.

    Raises TypeError and ValueError for settings that PyTorch refuses.
    """
    from torch import nn

    plain, settings = _parts(name)
    if settings.get("approximate", "none") not in ("none", "tanh"):
        raise ValueError(name)
    module: nn.Module = getattr(nn, _MODULES[plain][0])(**settings)
    original = _function(plain) if _is_pytorchs(plain) else None
    return ChainFunction(original, settings, module.eval())


@functools.cache
def _parts(name: str) -> tuple[str, dict[str, object]]:
    plain, _, told = name.partition("(")
    call = ast.parse(f"f({told}" if told else "f()", mode="eval").body
    assert isinstance(call, ast.Call)
    return plain, {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}


def _function(plain: str) -> Callable[..., object]:
    import torch
    import torch.nn.functional

    space, _, attribute = plain.partition(".")
    found: Callable[..., object] = vars(torch if space == "torch" else torch.nn.functional)[attribute]
    return found


def _is_pytorchs(plain: str) -> bool:
    """Whether PyTorch's function has its own name still: somebody may have put another in its place."""
    import torch.nn.functional

    found = _function(plain)
    if isinstance(found, FunctionType) and found.__globals__ is not vars(torch.nn.functional):
        return False
    is_written = isinstance(found, FunctionType | BuiltinFunctionType)
    return is_written and found.__name__ == plain.partition(".")[2]


def _value_of(expression: ast.expr, forward: FunctionType) -> object:
    """What `F.relu` or `torch.nn.functional.relu` is to a forward: an attribute of a module that is a global of it."""
    if isinstance(expression, ast.Name):
        is_local = expression.id in (*forward.__code__.co_varnames, *forward.__code__.co_cellvars)
        return None if is_local else forward.__globals__.get(expression.id)
    if isinstance(expression, ast.Attribute):
        owner = _value_of(expression.value, forward)
        return vars(owner).get(expression.attr) if isinstance(owner, ModuleType) else None
    return None
