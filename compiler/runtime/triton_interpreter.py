"""Adds to Triton's interpreter what it lacks: functions of `libdevice`, and fast reductions, in NumPy.

Only imported under TRITON_INTERPRET=1, where kernels run on the CPU: by tests, on machines without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.runtime.interpreter import TensorHandle, np

from .triton_versions import mend_interpreter

mend_interpreter()

_NAMES = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh",
    "atan2": "arctan2", "pow": "power",
}  # fmt: skip


class _Libdevice:
    """The functions of the module `triton.language.extra.libdevice`, by name."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(np, _NAMES.get(name, name))

        def call(*args: Any) -> Any:
            result = function(*(argument.handle.data for argument in args))
            of_block = next((argument for argument in args if argument.type.is_block()), args[0])
            return _tensor(result.astype(args[0].handle.data.dtype), of_block)

        return call


libdevice = _Libdevice()


def reduction(function: np.ufunc) -> Callable[[Any], Any]:
    """A reduction along axis 1 that keeps the axis."""

    def reduce(x: Any) -> Any:
        data = x.handle.data
        return _tensor(function.reduce(data, axis=1, keepdims=True, dtype=data.dtype), x)

    return reduce


def scan(function: np.ufunc) -> Callable[[Any], Any]:
    """A running reduction along axis 1."""

    def run(x: Any) -> Any:
        data = x.handle.data
        return _tensor(function.accumulate(data, axis=1, dtype=data.dtype), x)

    return run


def dot(a: Any, b: Any, total: Any, precision: str = "ieee") -> Any:  # noqa: ARG001  (that of NumPy)
    """total + a @ b, of operands widened before: the interpreter would multiply the bits of bfloat16."""
    return tl.dot(a.to(tl.float32), b.to(tl.float32), total)


def _tensor(data: Any, like: Any) -> Any:
    kind = tl.block_type(like.type.scalar, list(data.shape)) if like.type.is_block() else like.type
    return tl.core.tensor(TensorHandle(data, like.handle.dtype), kind)
