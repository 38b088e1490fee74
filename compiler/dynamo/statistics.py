"""Counts what became of the graphs that torch.compile passed on; `statistics()` lists them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class GraphRecord:
    """One graph of ATen ops. kind: "inference", "forward", "backward". backend: who runs it; reason: why no other.

    flops: of products, convolutions and attention, as torch.utils.flop_counter counts them.
    """

    name: str
    kind: str
    backend: str
    ops: int
    flops: int
    reason: str = ""


class Statistics:
    """All graphs since the process began, or since `clear`."""

    def __init__(self) -> None:
        self._records: list[GraphRecord] = []
        self._lock = threading.Lock()

    def add(self, record: GraphRecord) -> None:
        """Note a graph."""
        with self._lock:
            self._records.append(record)

    def clear(self) -> None:
        """Forget all graphs."""
        with self._lock:
            self._records.clear()

    @property
    def graphs(self) -> Sequence[GraphRecord]:
        """In the order in which they were compiled."""
        return tuple(self._records)

    @property
    def compiled(self) -> Sequence[GraphRecord]:
        """Those that run here."""
        return tuple(record for record in self._records if record.backend == "kernels_hub")

    @property
    def fell_back(self) -> Sequence[GraphRecord]:
        """Those that somebody else runs."""
        return tuple(record for record in self._records if record.backend != "kernels_hub")

    @property
    def flops_share(self) -> float:
        """Share of the FLOPs that is in compiled graphs; 1 where there are none."""
        total = sum(record.flops for record in self._records)
        return sum(one.flops for one in self.compiled) / total if total else 1.0

    def __str__(self) -> str:
        lines = [f"{len(self.compiled)} of {len(self._records)} graphs compiled"]
        if any(record.flops for record in self._records):
            lines[0] += f", {self.flops_share:.0%} of the FLOPs"
        lines += [
            f"  {one.name} ({one.kind}, {one.ops} ops): {one.backend}: {one.reason}" for one in self.fell_back
        ]
        return "\n".join(lines)


statistics = Statistics()


def flops_of(graph: torch.fx.Graph) -> int:
    """Of an ATen graph; sizes that are symbols count as their examples are."""
    import torch
    from torch.utils._pytree import tree_map
    from torch.utils.flop_counter import flop_registry

    def shape(one: object) -> object:
        value = one.meta.get("val") if isinstance(one, torch.fx.Node) else one
        if isinstance(value, torch.Tensor):
            return torch.empty([_number(size) for size in value.shape], dtype=value.dtype, device="meta")
        return tree_map(lambda leaf: _number(leaf) if isinstance(leaf, torch.SymInt) else leaf, value)

    total = 0
    for node in (node for node in graph.nodes if node.op == "call_function"):
        packet = getattr(node.target, "overloadpacket", None)
        if packet not in flop_registry:
            continue
        args, kwargs = (tree_map(shape, one) for one in (node.args, node.kwargs))
        with suppress(AssertionError):  # shapes that the op refuses, too, when it runs
            total += int(flop_registry[packet](*args, **kwargs, out_val=shape(node)))
    return total


def _number(size: int | torch.SymInt) -> int:
    """A size, or its example; 1 where it comes from data."""
    if isinstance(size, int):
        return size
    return size.node.hint if isinstance(size.node.hint, int) else 1
