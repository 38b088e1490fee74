"""Differences between the supported releases of Triton, 3.6 to 3.9, in one place.

Emitted layers carry this file, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

# Release -> (kernel, bits of an operand, sizes) -> fields of the tile that are others. Those of options.py are for the
# newest release; what its predecessors spill of them was read from what they compile for NVIDIA's sm_80, sm_90 and
# sm_100 and AMD's gfx942, and so was that what takes its place does not spill.
_TILES: dict[str, dict[tuple[str | int, ...], dict[str, int]]] = {
    "3.6": {
        ("attention", 32, 64): {"COLUMNS": 16},
        ("convolution", 16, 64, 64, 64): {"num_warps": 8},
    },
    "3.7": {
        ("product", 16, 32, 64, 64): {"DEPTH": 32},
    },
}
_NONE: dict[str, int] = {}


@functools.cache
def release() -> str:
    """Of the Triton that is installed, "3.9"; "" where there is none, which is as good as the newest."""
    try:
        import triton
    except ImportError:
        return ""
    return ".".join(triton.__version__.split(".")[:2])


def other_fields(kernel: str, bits: int, *sizes: int) -> dict[str, int]:
    """Fields of the tile of a kernel that are others with the release that is installed; empty for most.

    bits: of an operand, 33 for float32 that stays exact. sizes: ROWS, COLUMNS and DEPTH of a product or a convolution,
    the width of an attention's heads.
    """
    return _TILES.get(release(), {}).get((kernel, bits, *sizes), _NONE)


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
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpreterBuilder

    try:
        InterpreterBuilder().get_all_ones_value(tl.uint8)
    except OverflowError:
        InterpreterBuilder.get_all_ones_value = _all_ones(InterpreterBuilder.get_all_ones_value)
    of_release = interpreter._patch_lang_tensor
    if release() == "3.6" and not hasattr(of_release, "mended"):

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
