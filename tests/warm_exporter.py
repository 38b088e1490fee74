"""What each forked compilation of a layer would import and set up anew, done once in the process that forks."""

from __future__ import annotations

import functools

import torch
from torch import nn


@functools.cache
def warm_exporter() -> None:
    """Export a module, as the first compilation of a process does: some 750 modules of torch and SymPy, 2 s.

    A layer that is compiled at its first call is compiled in a forked process, which begins with what its parent has
    imported: a user's process has not, and does not wait; the tests compile a hundred layers, and wait for each.
    `tests/compiler/jit/test_layer_compiler.py` compiles in processes that have imported nothing.
    """
    import kernels_hub.compiler.export.emit_layer
    import kernels_hub.compiler.jit.layer_compiler  # noqa: F401
    from kernels_hub.compiler.importers.torch_export import import_torch

    import_torch(nn.ReLU(), (torch.ones(2, 3),), dynamic_shapes=({0: torch.export.Dim("rows")},))
