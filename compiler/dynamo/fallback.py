"""Fallback of graphs that are not compiled here: inductor, or eager where that fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule

Argument: TypeAlias = "torch.Tensor | int | None"
"""What goes into a graph of ATen ops, and comes out of it."""
Boxed: TypeAlias = "Callable[[list[Argument]], Sequence[Argument]]"
"""Takes a list of arguments, which it may empty, and gives all results."""


def inductor(module: GraphModule, examples: Sequence[Argument], *, kind: str) -> Boxed:
    """What inductor makes of an ATen graph, in its own decompositions. Raises whatever it raises."""
    import torch
    from torch._guards import detect_fake_mode
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.replace_random import replace_random_passes
    from torch._inductor.virtualized import V
    from torch.fx.experimental.proxy_tensor import make_fx

    with V.set_fake_mode(detect_fake_mode(examples)), torch.no_grad():
        lowered = make_fx(torch.fx.Interpreter(module).run, select_decomp_table())(*examples)
        replace_random_passes(lowered)  # inductor has no other code for random numbers
        made: Boxed = compile_fx_inner(
            lowered, examples, is_backward=kind == "backward", is_inference=kind == "inference"
        )
    return made


def eager(module: GraphModule) -> Boxed:
    """The graph, op by op."""
    from torch._functorch._aot_autograd.utils import make_boxed_func

    made: Boxed = make_boxed_func(module.forward)
    return made
