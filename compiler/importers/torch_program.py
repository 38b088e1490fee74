"""What a module becomes: a graph, and how its arguments and results map to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.importers.torch_aliases import Shared
from kernels_hub.compiler.importers.torch_trace import path_text
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.types import Array

if TYPE_CHECKING:
    import torch

    from kernels_hub.compiler.importers.asked_tensors import Asks


@dataclass(frozen=True)
class TorchProgram:
    """A graph, and how the module's arguments and results map to its inputs and outputs.

    outputs: the leaves of the module's result, in order: ("output", name of an output) or ("literal", value).
    mutated: state that a call changes -> the output that has it afterwards. in_spec, out_spec: pytree specs.
    shared: the leaves that share memory. asks: what the forward asks of calls beside what tensors hold.
    """

    graph: Graph
    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, Any], ...]
    mutated: Mapping[str, str]
    in_spec: Any
    out_spec: Any
    shared: Shared = field(default_factory=Shared)
    asks: Asks | None = None

    def flatten(self, args: Sequence[object], kwargs: Mapping[str, object] | None = None) -> dict[str, Array]:
        """The graph's inputs from the module's arguments."""
        from torch.utils import _pytree as pytree

        leaves = pytree.tree_leaves((tuple(args), dict(kwargs or {})))
        tensors = zip(self.inputs, leaves, strict=True)
        return {name: array_of(leaf) for name, leaf in tensors if name in self.graph.inputs}

    def unflatten(self, outputs: Mapping[str, Array]) -> Any:
        """The module's result, with arrays for its tensors."""
        from torch.utils import _pytree as pytree

        leaves = [outputs[name] if kind == "output" else name for kind, name in self.outputs]
        return pytree.tree_unflatten(leaves, self.out_spec)


def array_of(tensor: Any) -> Array:
    """A NumPy view of a tensor's memory (a copy only where it lies on another device)."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise ImportFailure(f"{tensor!r} is no tensor")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    row = dtype_of(tensor.dtype)
    if row.module == "numpy":
        array: Array = plain.numpy()
        return array
    bits = {1: torch.uint8, 2: torch.int16}[tensor.element_size()]
    raw: Array = plain.view(bits).numpy()
    return raw.view(row.numpy)


def pairs_of(tensor: torch.Tensor) -> Array:
    """The parts of complex numbers, (…, 2)."""
    whole = array_of(tensor)
    return np.stack([whole.real, whole.imag], -1)


def dtype_of(dtype: torch.dtype) -> types.DType:
    """The row of a torch dtype. Raises CompilerError where there is none."""
    return types.dtype(str(dtype).removeprefix("torch."))


def output_names(paths: Sequence[tuple[Any, Any]]) -> list[str]:
    """What outputs are called: by their paths in the module's result."""
    texts = [path_text(path) for path, _ in paths]
    return [f"output.{text}" if text[:1].isdigit() else text or "output" for text in texts]
