"""Adapts a module's forward for torch.export: tensors alone, with all that a call changes among its results."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MethodType
from typing import Any, cast

from torch import nn
from torch.utils import _pytree as pytree

from kernels_hub.compiler.errors import CompilerError, ImportFailure
from kernels_hub.compiler.export.caches import Context, Gaps, context_of, fresh, gaps_of, spread, tensors_of
from kernels_hub.compiler.export.results import result_tree
from kernels_hub.compiler.importers.data_assertions import ASSERTIONS
from kernels_hub.compiler.importers.torch_aliases import View as FoundView
from kernels_hub.compiler.importers.torch_program import TorchProgram
from kernels_hub.compiler.importers.torch_trace import arguments_of, name_children, path_text
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.runtime.caches import is_cache, numbered, own_states, window_class
from kernels_hub.compiler.runtime.parts import Argument, Cache, Held, Kept, Tensor, View

Changed = dict[str, dict[int, Held]]


class TracedCall:
    """What a call came to, noted while it was traced: its result, and the caches among its arguments.

    Where no cache takes part, the results of the program are the result. Else they are a dict: the leaves of the
    result, but for caches of the arguments, and keys and values of every layer that the call gave others.
    """

    def __init__(self) -> None:
        self._leaves: list[Any] = []
        """Of the result: a name in the dict, or an Argument."""
        self._kinds: dict[str, Context] = {}
        """Of the caches among them that the call made: as `caches.context_of` gives it."""
        self._spec: Any = None
        self._changed: dict[str, dict[int, tuple[str, Gaps]]] = {}
        """Argument -> layer -> the name of what it holds afterwards, and where that has tensors."""

    def noted(self, result: Any, caches: Mapping[str, Any], before: Mapping[str, Mapping[int, Any]]) -> Any:
        """The results of the program. caches: of the arguments; before: what they held."""
        name_children(result)
        found, self._spec = pytree.tree_flatten_with_path(result, is_leaf=is_cache)
        if not caches and not any(is_cache(leaf) for _, leaf in found):
            self._spec = None
            return result
        self._leaves, self._kinds, self._changed = [], {}, {}
        results: dict[str, Any] = {}
        for path, leaf in found:
            argument = next((name for name, one in caches.items() if one is leaf), None)
            if argument is not None:
                self._leaves.append(Argument(argument))
                continue
            name = path_text(path) or "result"
            if is_cache(leaf):
                self._kinds[name] = context_of(leaf, states_alone=False)
            self._leaves.append(name)
            results[name] = leaf
        for argument, cache in caches.items():
            of = self._changed[argument] = {}
            was = before[argument]
            for place, held in numbered(cache).items():
                earlier = was.get(place, (None,) * len(held))
                if any(one is not other for one, other in zip(held, earlier, strict=True)):
                    of[place] = (name := f"{argument}.{place}"), gaps_of(held)
                    results[name] = tensors_of(held)
        return results

    def of(self, program: TorchProgram) -> tuple[Any, Changed, tuple[View, ...]]:
        """The result, with a Tensor for each output, what caches hold afterwards, and the views among the results.

        What is the very tensor that an argument is, or another part of the result, is it again; views of these are
        numbered behind the outputs. Raises ImportFailure where memory is shared in another way; as `result_tree`.
        """
        if program.shared.refused:
            raise _refusal(program.shared.refused[0])
        taken: list[Any] = [
            Argument(program.shared.given[place]) if place in program.shared.given else one
            for place, (_, one) in enumerate(program.outputs)
        ]
        memory = _memory(program)
        for place, view in program.shared.views.items():
            taken[place] = view
        for place, first in program.shared.same.items():
            taken[place] = taken[first]
        is_tensor = [
            kind == "output" and not isinstance(one, (Argument, FoundView))
            for (kind, _), one in zip(program.outputs, taken, strict=True)
        ]
        used = {one for one, is_one in zip(taken, is_tensor, strict=True) if is_one} | {
            *memory.values(),
            ASSERTIONS,
        }
        for name in [name for name in program.graph.outputs if name not in used]:
            del program.graph.outputs[name]
        places: dict[Any, Tensor] = {
            name: Tensor(number) for number, name in enumerate(program.graph.outputs)
        }
        views = tuple(
            _view(view, places[memory[view.root]] if isinstance(view.root, Value) else None)
            for view in program.shared.views.values()
        )
        places |= {place: Tensor(len(places) + number) for number, place in enumerate(program.shared.views)}
        of_views = {id(view): place for place, view in program.shared.views.items()}
        leaves = [
            places[of_views[id(one)] if isinstance(one, FoundView) else one]
            if is_one or isinstance(one, FoundView)
            else one
            for one, is_one in zip(taken, is_tensor, strict=True)
        ]
        found = pytree.tree_unflatten(leaves, program.out_spec)
        if self._spec is None:
            return result_tree(found), {}, views
        listed = [
            leaf if isinstance(leaf, Argument) else _stated(found[leaf], self._kinds.get(leaf))
            for leaf in self._leaves
        ]
        changed = {
            argument: {place: spread(found[name], gaps) for place, (name, gaps) in of.items()}
            for argument, of in self._changed.items()
        }
        result = result_tree(pytree.tree_unflatten(listed, self._spec))
        held = [of for one in listed if isinstance(one, Cache) for of in one.numbered().values()]
        held += [of for layers in changed.values() for of in layers.values()]
        if any(
            one is not None and one.place >= len(program.graph.outputs) for tensors in held for one in tensors
        ):
            raise _refusal("what a cache holds shares memory with another result")
        return result, changed, views


def _refusal(what: str) -> ImportFailure:
    return ImportFailure(
        f"{what}: what a caller writes there is to be seen in both, and the results of a "
        "program have memory of their own; return a clone() of it"
    )


def _memory(program: TorchProgram) -> dict[Value, str]:
    """Memory that results are views of -> the output that it is; one of its own where no result is all of it."""
    graph = program.graph
    found: dict[Value, str] = {}
    for view in program.shared.views.values():
        if isinstance(view.root, Value) and view.root not in found:
            known = None if view.at is None else program.outputs[view.at][1]
            if known is None or graph.outputs[known] is not view.root:
                known = next(
                    name
                    for name in map("memory {}".format, itertools.count(len(found)))
                    if name not in graph.outputs
                )
                graph.output(known, view.root)
            found[view.root] = known
    return found


def _view(view: FoundView, output: Tensor | None) -> View:
    """A view as calls make it. output: the memory that it lies in, of one of a result."""
    if output is not None:
        return View(output, view.steps)
    if view.kind == "argument":
        return View(Argument(str(view.root)), view.steps)
    name, dtype, shape = cast("tuple[str, str, tuple[int, ...]]", view.root)
    return View(Kept(name, dtype, shape), view.steps)


def _stated(leaf: Any, context: Context | None) -> Any:
    """A leaf of a result; a cache is a list of lists of tensors by now, one of two a list of two of them."""
    if context is None:
        return leaf
    of_two, kinds, gaps = context
    own, *cross = (
        tuple(spread(tensors, where) for tensors, where in zip(part, of, strict=True))
        for part, of in zip(leaf if of_two else (leaf,), gaps, strict=True)
    )
    return Cache(own, cross[0] if of_two else None, kinds)


@contextmanager
def _growing() -> Iterator[None]:
    """While it is open, layers of caches with a window grow: what they forget is left to whoever gets them.

    A cache that a call makes is given once to each of its layers, which see all of what they gave.
    """
    kind: Any = window_class()
    if kind is None:
        yield
        return

    def update(self: Any, keys: Any, values: Any, *_: object, **__: object) -> Any:
        self.cumulative_length += keys.shape[-2]
        return plain(self, keys, values)

    plain, before = kind.__mro__[1].update, kind.update
    kind.update = update
    try:
        yield
    finally:
        kind.update = before


@contextmanager
def traced_forward(
    module: nn.Module, given: Mapping[str, object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Iterator[TracedCall]:
    """While it is open, the module's forward takes these arguments alone; all others are what they are in `args` and
    `kwargs`.

    torch.export does not take dynamic shapes for a forward with **kwargs whose arguments are no tensors.
    """
    bound = [name for name, _ in arguments_of(module, args, kwargs)]
    if "forward" in vars(module):
        raise CompilerError(
            f"the forward of this {type(module).__name__} was replaced; restore the model first"
        )
    call = TracedCall()

    def forward(traced: nn.Module, /, **tensors: object) -> Any:
        own_args, own_kwargs = fresh((args, dict(kwargs)))
        values = {**dict(zip(bound, (*own_args, *own_kwargs.values()), strict=True)), **tensors}
        caches = {name: one for name, one in values.items() if is_cache(one)}
        before = {name: numbered(one) for name, one in caches.items()}
        for cache in caches.values():
            own_states(cache)  # a call writes into those that it is given
        positional = [values[name] for name in bound[: len(args)]]
        result = type(traced).forward(
            traced, *positional, **{name: values[name] for name in bound[len(args) :]}
        )
        return call.noted(result, caches, before)

    parameters = [inspect.Parameter("traced", inspect.Parameter.POSITIONAL_ONLY)]
    parameters += [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in given]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    object.__setattr__(module, "forward", MethodType(forward, module))  # that of a copy is the copy's
    try:
        with _growing():
            yield call
    finally:
        object.__delattr__(module, "forward")
