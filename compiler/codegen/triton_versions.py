"""What differs between the releases of Triton that are supported, 3.6 to 3.9: asked for here, and nowhere else.

Emitted layers carry this file, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def scratch_bytes(metadata: Any) -> int:
    """Bytes of global memory that a launch of a compiled kernel needs beside its arguments.

    For AMD, 3.7 has no memory of kernels' own, only that of profilers; 3.6 has neither.
    """
    return int(getattr(metadata, "global_scratch_size", 0) or 0) + int(
        getattr(metadata, "profile_scratch_size", 0) or 0
    )


def mend_interpreter() -> None:
    """Let the interpreter of older releases compute what that of the newest does.

    Before 3.9 it makes a -1 to flip the bits of unsigned integers, which NumPy refuses; that of 3.6 takes for a number
    an array of one dim, which NumPy refuses from 2.4 on. Only for a process under TRITON_INTERPRET=1, where
    it may be called again.
    """
    import triton
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpreterBuilder

    try:
        InterpreterBuilder().get_all_ones_value(tl.uint8)
    except OverflowError:
        InterpreterBuilder.get_all_ones_value = _all_ones(InterpreterBuilder.get_all_ones_value)
    of_release = interpreter._patch_lang_tensor
    if triton.__version__.startswith("3.6.") and not hasattr(of_release, "mended"):

        def patch(tensor: Any, scope: Any) -> None:
            of_release(tensor, scope)  # which makes the scope put everything back
            tensor.__index__ = lambda self: int(self.handle.data.item())

        patch.mended = True  # type: ignore[attr-defined]
        interpreter._patch_lang_tensor = patch


def _all_ones(of_release: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The value of ones, of unsigned types too, for releases that make it for signed ones."""
    from triton.runtime.interpreter import TensorHandle, _get_np_dtype, np

    def get_all_ones_value(self: Any, type: Any) -> Any:  # noqa: A002  (Triton's name)
        dtype = np.dtype(_get_np_dtype(type))
        if dtype.kind != "u":
            return of_release(self, type)
        return TensorHandle(np.full(1, np.iinfo(dtype).max, dtype=dtype), type.scalar)

    return get_all_ones_value
