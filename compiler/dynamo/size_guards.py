"""What a graph needs of sizes and its trace does not say, as guards that Dynamo checks at each call.

PyTorch's kernels compare the number of keys with that of values, say, when they run; its trace does not, and sizes that
change from call to call are a symbol each. Numbers are lengths here, which are never below 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.importers.further_arguments import untold
from kernels_hub.compiler.ir.dims import Dim, Symbol
from kernels_hub.compiler.ir.extrema import evaluated

if TYPE_CHECKING:
    from torch.fx import Node


def make_equal(pairs: Iterable[tuple[Dim, Dim]], placeholders: Sequence[Node]) -> bool:
    """Have Dynamo trace anew for calls where the dims of a pair differ; whether it knows more of sizes by that.

    placeholders: of the graph that is compiled. Where the dims differ in the very call that is traced, they stay.
    """
    sizes = {str(size.node.expr): size for size in _sizes(placeholders)}
    learned = False
    for pair in pairs:
        left, right = (_in_sizes(dim, sizes) for dim in pair)
        if left is not None and right is not None:
            learned |= bool(left == right)  # the question is the guard
    return learned


def make_lengths(placeholders: Sequence[Node]) -> None:
    """Have Dynamo trace anew for calls where numbers that no shape tells are below 0.

    Raises CompilerError if one is.
    """
    for node in untold(placeholders):
        size = node.meta["val"]
        if size.node.has_hint() and not size >= 0:  # the question is the guard
            raise CompilerError(
                f"it takes {size}, a number that is no size of a tensor among its arguments, and below 0"
            )


def _sizes(placeholders: Sequence[Node]) -> Iterator[torch.SymInt]:
    """The sizes of arguments that may change, of those that the call tells."""
    for node in placeholders:
        example = node.meta.get("val")
        for size in (example, *getattr(example, "shape", ())):
            if isinstance(size, torch.SymInt) and size.node.has_hint():
                yield size


def _in_sizes(dim: Dim, sizes: Mapping[str, torch.SymInt]) -> int | torch.SymInt | None:
    """A dim in PyTorch's sizes; None where it is more than sums of products of them."""
    if isinstance(dim, int):
        return dim
    atoms = [one for monomial, _ in dim.terms for one, _ in monomial]
    if not all(isinstance(one, Symbol) and one.name in sizes for one in atoms):
        return None
    of: int | torch.SymInt = evaluated(dim, sizes)
    return of
