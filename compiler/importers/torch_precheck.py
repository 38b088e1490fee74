"""Finds the ops that no tracing turns into others and no handler imports, by running a module once.

    run a copy of the module on copies of the arguments  -> each op, the tensors that it takes, those that it makes
    backwards from the result                            -> the ops that something comes of
    of these, the families below that have no handler    -> why the module cannot be imported

That is one call of the module, without values where it would take long; torch.export takes seconds, or minutes, to come
to the same. What it does not find may be refused later all the same, since a module may take another way when it is
traced: only families are judged that the processor has no other form of.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.importers.aten_ops import handler_of
from kernels_hub.compiler.importers.brief_run import briefly
from kernels_hub.compiler.importers.torch_direct import name_of

if TYPE_CHECKING:
    from torch import nn

_FAMILIES = (
    "linalg_",
    "_linalg_",
    "cholesky",
    "lu_",
    "qr.",
    "svd",
    "geqrf",
    "histc",
    "unique_",
    "_unique",
)
"""Beginnings of names: factorizations, histograms, sets."""


def refuse_early(module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object], title: str) -> None:
    """Raise ImportFailure, with each op, where a call makes its result of ops that cannot be imported.

    module: runs as it is, without gradients; a copy of it does, which shares its parameters. args, kwargs: are copied.
    A call that raises, cannot be copied, or gives what cannot be taken apart, says nothing.
    """
    found = _unsupported(module, args, kwargs)
    if found:
        what = "1 thing is" if len(found) == 1 else f"{len(found)} things are"
        raise ImportFailure("\n  ".join((f"{title} cannot be imported: {what} not supported:", *found)))


def _unsupported(module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> list[str]:
    import torch
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import TorchDispatchMode

    calls: list[tuple[str, str, list[int], list[int]]] = []
    within: list[str] = [""]
    held: dict[int, torch.Tensor] = {}  # an identity is a tensor's as long as that lives

    def numbers(values: object) -> list[int]:
        tensors = [one for one in pytree.tree_leaves(values) if isinstance(one, torch.Tensor)]
        held.update((id(one), one) for one in tensors)
        return [id(one) for one in tensors]

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(
            self,
            func: Callable[..., object],
            types: object,
            args: tuple[object, ...] = (),
            kwargs: dict[str, object] | None = None,
        ) -> object:
            result = func(*args, **(kwargs or {}))
            calls.append((name_of(func), within[-1], numbers((args, kwargs)), numbers(result)))
            return result

    def prepare() -> Callable[[], set[int]]:
        """A call of a copy, which returns the tensors of the result."""
        for noted in (calls, held):
            noted.clear()
        within[1:] = []
        memo: dict[int, Any] = {id(one): one for one in module.parameters()}
        twin, given = copy.deepcopy(module, memo), copy.deepcopy((tuple(args), dict(kwargs)))
        for path, part in twin.named_modules():
            part.register_forward_pre_hook(lambda *_, path=path: within.append(path))
            part.register_forward_hook(lambda *_: within.__delitem__(-1), always_call=True)

        def call() -> set[int]:
            with torch.no_grad(), Noted():  # type: ignore[no-untyped-call]  # a base of torch's
                result = twin(*given[0], **given[1])
            return set(numbers(_tensors(result)))  # raises for a cache that is no pytree any more, for one

        return call

    def whole() -> set[int]:
        return prepare()()

    try:
        needed = briefly(prepare, whole)
    except Exception:  # noqa: BLE001 - of the module; who traces it is told
        return []
    refused: list[str] = []
    for name, path, taken, made in reversed(calls):
        written = name.partition(".")[0].endswith("_")
        if written or needed.intersection(made):
            needed.update(taken)
            if name.startswith(_FAMILIES) and handler_of(name) is None:
                refused.insert(0, f"aten.{name}: no handler; in {path or 'its forward'}")
    return refused


def _tensors(result: object) -> list[object]:
    """What a result holds, of classes that are no pytree as well."""
    from torch.utils import _pytree as pytree

    found: list[object] = []
    for leaf in pytree.tree_leaves(result, is_leaf=lambda one: not isinstance(one, (dict, list, tuple))):
        inner = (
            list(vars(leaf).values())
            if hasattr(leaf, "__dict__") and not hasattr(leaf, "untyped_storage")
            else []
        )
        found.extend(_tensors(inner) if inner else [leaf])
    return found
