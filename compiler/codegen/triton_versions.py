"""What differs between the releases of Triton that are supported, 3.6 to 3.9: asked for here, and nowhere else.

Emitted layers carry this file, too.
"""

from __future__ import annotations

from typing import Any


def scratch_bytes(metadata: Any) -> int:
    """Bytes of global memory that a launch of a compiled kernel needs beside its arguments.

    For AMD, 3.7 has no memory of kernels' own, only that of profilers; 3.6 has neither.
    """
    return int(getattr(metadata, "global_scratch_size", 0) or 0) + int(
        getattr(metadata, "profile_scratch_size", 0) or 0
    )


def mend_interpreter() -> None:
    """Let the interpreter flip the bits of unsigned integers: before 3.9, NumPy refuses the -1 that it makes.

    Only for a process under TRITON_INTERPRET=1.
    """
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, _get_np_dtype, np

    of_signed = InterpreterBuilder.get_all_ones_value

    def get_all_ones_value(self: Any, type: Any) -> Any:  # noqa: A002  (Triton's name)
        dtype = np.dtype(_get_np_dtype(type))
        if dtype.kind != "u":
            return of_signed(self, type)
        return TensorHandle(np.full(1, np.iinfo(dtype).max, dtype=dtype), type.scalar)

    try:
        of_signed(InterpreterBuilder(), tl.uint8)
    except OverflowError:
        InterpreterBuilder.get_all_ones_value = get_all_ones_value  # type: ignore[method-assign]
