"""One ATen graph as it runs: arguments in, results out, weights as the model has them at each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, cast

import torch
from torch import nn

from kernels_hub.compiler.dynamo.fallback import Argument, Boxed
from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.executable import Executable
from kernels_hub.compiler.importers.further_arguments import numbers
from kernels_hub.compiler.importers.torch_aten import AtenGraph, Result
from kernels_hub.compiler.plan.followed_weights import Followed, frozen
from kernels_hub.compiler.plan.selection import untold_symbols
from kernels_hub.compiler.settings import Settings


class _WeightBuffers(nn.Module):
    """The tensors that a graph was given as its weights, as buffers under the names of its parameters."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        for name, one in tensors.items():
            self.register_buffer(name, one)


class CompiledGraph:
    """Called as AOTAutograd calls what compilers give: with a list of arguments, which is emptied.

    Weights are those of the arguments: another tensor in the place of one, or one that was written to, makes the
    graph anew, as `compile(weights="followed")` says. What an assertion on data does not hold for is left to the
    original, which raises what PyTorch raises.
    """

    def __init__(
        self,
        aten: AtenGraph,
        settings: Settings,
        weights: Mapping[int, torch.Tensor],
        original: Boxed,
        *,
        follow: bool,
    ) -> None:
        self._boxed_call = True  # of the instance: what wraps it copies its attributes
        graph = aten.graph
        if untold := untold_symbols(graph):
            raise CompilerError(
                f"it takes {', '.join(untold)}, a number that is no size of a tensor among its arguments"
            )
        followed = None
        self._held: dict[str, Any] = {}
        self._weights: list[tuple[int, str]] = []
        if aten.weights and follow:
            module = _WeightBuffers({name: weights[place] for name, place in aten.weights.items()})
            self._held, self._weights = (
                module._buffers,
                [(place, name) for name, place in aten.weights.items()],
            )
            followed = Followed(module, graph, lambda: aten.graph)
            graph = followed.graph()
        elif graph.weights:
            graph = frozen(graph)
        self.run = Executable.of(graph, settings, None, followed, rewrite=True)
        self._further, self._sizes = aten.further, aten.sizes
        self._inputs = _taker(aten.inputs)
        self._results = tuple(aten.results)
        self._single = len(aten.graph.outputs) == 1
        self._asserts, self._original = aten.asserts, original
        self._plain = [result.output for result in self._results] == list(
            range(len(aten.graph.outputs))
        ) and all(result.is_plain for result in self._results)

    def __call__(self, args: list[Argument]) -> Sequence[Argument]:
        """All results of the graph."""
        held = self._held
        for place, name in self._weights:
            if held[name] is not args[place]:
                held[name] = args[place]
        sizes = {name: _size(args[place], axis) for name, (place, axis) in self._sizes.items()}
        if self._further:
            args.extend([one.tensor(sizes) for one in self._further])
        found = self.run(*self._inputs(args))
        outputs = (found,) if self._single else found
        if self._asserts and not outputs[-1]:
            return self._original(args[: len(args) - len(self._further)])
        results = (
            outputs if self._plain else [_result(result, outputs, args, sizes) for result in self._results]
        )
        args.clear()
        return results


def _size(argument: Argument, axis: int | None) -> int:
    """A size that an argument tells: that of an axis, or itself."""
    if axis is None:
        return cast("int", argument)
    return cast("torch.Tensor", argument).shape[axis]


def _taker(places: Sequence[int]) -> Callable[[list[Argument]], tuple[Argument, ...]]:
    """A function that takes the items at these places."""
    if not places:
        return lambda _: ()
    if len(places) == 1:
        (only,) = places
        return lambda args: (args[only],)
    return itemgetter(*places)


def _result(
    of: Result, outputs: Sequence[torch.Tensor], args: Sequence[Argument], sizes: Mapping[str, int]
) -> Argument:
    """A result, of the outputs of a call and its arguments. sizes: of the symbols that results need."""
    if of.output is None and of.argument is None:
        return None if of.literal is None else cast("int", of.literal)
    found: Any = args[of.argument] if of.argument is not None else outputs[of.output or 0]
    if of.is_size:
        return int(found)
    if of.layout is not None:
        return of.layout.view(found, sizes)
    tensor: torch.Tensor = found
    if of.axes is not None:
        tensor = tensor.permute(of.axes)
    return tensor if of.expanded is None else tensor.expand(numbers(of.expanded, sizes))
