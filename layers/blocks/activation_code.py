"""Recognises activation modules of anyone's by the code of their forward: `return x * torch.sigmoid(x)`.

Compared are the instructions, constants and names that a forward was compiled to with those of the spellings below, and
that a name such as `F` means there what it means here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType

import torch
import torch.nn.functional as F
from torch import nn

_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "relu": ("F.relu(x)", "torch.relu(x)", "x.relu()", "nn.functional.relu(x)"),
    "silu": (
        "F.silu(x)", "nn.functional.silu(x)", "x * torch.sigmoid(x)", "x * x.sigmoid()", "x * F.sigmoid(x)",
        "torch.sigmoid(x) * x", "x.sigmoid() * x",
    ),
    "gelu": ("F.gelu(x)", "nn.functional.gelu(x)", "torch.nn.functional.gelu(x)", "F.gelu(x, approximate='none')"),
    "gelu_tanh": ("F.gelu(x, approximate='tanh')", "nn.functional.gelu(x, approximate='tanh')"),
    "quick_gelu": (
        "x * torch.sigmoid(1.702 * x)", "x * torch.sigmoid(x * 1.702)", "x * F.sigmoid(1.702 * x)",
        "torch.sigmoid(1.702 * x) * x", "x * (1.702 * x).sigmoid()",
    ),
}  # fmt: skip

_MEANT = {"F": F, "torch": torch, "nn": nn}

_Key = tuple[bytes, tuple[object, ...], tuple[str, ...]]


def _key(code: CodeType) -> _Key:
    """What a code does; without its docstring, the first constant."""
    return code.co_code, code.co_consts[1:], code.co_names


_IMPORTS = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
"""Python compiles calls of what a module imports otherwise than those of other objects."""


def _spelled(formula: str) -> list[CodeType]:
    codes = []
    for before in ("", _IMPORTS):
        for lines in (f"    return {formula}\n", f"    y = {formula}\n    return y\n"):
            namespace: dict[str, FunctionType] = {}
            exec(f"{before}def forward(self, x):\n{lines}", namespace)  # noqa: S102 - the texts above
            codes.append(namespace["forward"].__code__)
    return codes


@functools.cache
def _names() -> dict[_Key, tuple[str, tuple[str, ...]]]:
    """The activations, and the globals that have to mean what they mean here; made when a class is unknown."""
    return {
        _key(code): (
            name,
            tuple(used for used in _MEANT if f"{used}." in formula.replace("torch.nn.", "torch.")),
        )
        for name, spellings in _SPELLINGS.items()
        for formula in spellings
        for code in _spelled(formula)
    }


def activation_of_code(forward: Callable[..., object]) -> str | None:
    """The name of the activation that a forward spells, `forward(self, x)`; None where it is none of those above."""
    if not isinstance(forward, FunctionType):
        return None
    code = forward.__code__
    takes_more = code.co_kwonlyargcount or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    if code.co_argcount != 2 or takes_more or code.co_freevars:
        return None
    name, used = _names().get(_key(code), (None, ()))
    return name if all(forward.__globals__.get(one) is _MEANT[one] for one in used) else None
