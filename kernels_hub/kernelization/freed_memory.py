"""Memory that a model's calls free and take again: the C library is to keep it, rather than give it back in between.

A tensor of a few MiB that one layer frees is what the next one takes. glibc gives freed memory back to the system as
soon as more of it lies together than a threshold allows, and what is taken anew comes page by page, a fault and 4 KiB
of zeros each: 1.4 us a page within a virtual machine, up to a tenth of a model's time. How much that is was chance: the
threshold follows the largest block that a process ever freed (twice its size, 64 MiB at most), so that of two processes
one pays for each call and the other for none. One block of nearly 32 MiB, taken and freed untouched, settles it for
all: glibc then keeps up to 64 MiB of what was freed. The memory that a process has at most hardly differs.

glibc itself lets it be where the user has set a threshold (`mallopt`, GLIBC_TUNABLES, MALLOC_TRIM_THRESHOLD_ and the
like), and so do other allocators and C libraries. KERNELS_HUB_FREED_MEMORY=return leaves glibc as it is.
Source: the GNU C Library's manual, Malloc Tunable Parameters; man 3 mallopt, M_MMAP_THRESHOLD.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform

_NBYTES = (32 << 20) - (64 << 10)
"""Of the block: the most that glibc adapts to is 32 MiB, its own few bytes included."""


def keep_freed_memory(device_type: str) -> None:
    """Have freed memory kept for later calls of a model on this device: once a process, and on the CPU alone."""
    if device_type == "cpu" and os.environ.get("KERNELS_HUB_FREED_MEMORY", "").strip().lower() != "return":
        _raise_thresholds()


@functools.cache
def _raise_thresholds() -> None:
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    library.free.restype, library.free.argtypes = None, (ctypes.c_void_p,)
    library.free(library.malloc(_NBYTES))
