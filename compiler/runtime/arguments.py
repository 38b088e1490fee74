"""Maps a call's Python arguments to the program's inputs, and its outputs to a result."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch.nn import Parameter

from .caches import held_by, is_cache, is_of_two, kinds_of, leave, new_cache, parts_of
from .errors import Misfit, ValueMisfit
from .facts import same_fact
from .parts import Argument, Cache, Held, Input, Record, Table, Tensor, Values

_PLAIN = frozenset({torch.Tensor, Parameter})
_DTYPE, _LAYOUT = attrgetter("dtype"), attrgetter("layout")
_IS_CONTIGUOUS, _IS_NEGATED = torch.Tensor.is_contiguous, torch.Tensor.is_neg


@dataclass(frozen=True)
class Place:
    """Where a program runs. holds: whether a tensor lies there. device: torch's name of its kind; name: in words."""

    holds: Callable[[torch.Tensor], bool]
    device: str
    name: str


class Inputs:
    """A program's inputs, among the arguments of calls. Loops over tensors run in C: a cache brings dozens."""

    def __init__(self, table: Table, place: Place) -> None:
        self._table, self._place = table, place
        self._arguments = tuple(table.arguments.items())
        self._dtypes = [dtype_of(parameter.dtype) for parameter in table.inputs]
        self._strided = [torch.strided] * len(table.inputs)
        self._complex = [place for place, dtype in enumerate(self._dtypes) if dtype.is_complex]

    def of(self, values: tuple[Any, ...]) -> list[torch.Tensor]:
        """The tensors of a call. values: of the arguments, in the order of the table.

        Raises Misfit where one is not what the program was compiled with: no tensor, of another dtype or device, or not
        the same literal.
        """
        tensors: list[Any] = [None] * len(self._dtypes)
        for (name, expected), argument in zip(self._arguments, values, strict=True):
            if type(expected) is Tensor:
                tensors[expected.place] = argument
            elif expected is not argument:
                _match(name, expected, argument, tensors)
        if not self._fit(tensors):
            for parameter, argument in zip(self._table.inputs, tensors, strict=True):
                _check(parameter, argument, self._place)
        for place in self._complex:
            tensors[place] = tensors[place].resolve_conj()
        if all(map(_IS_CONTIGUOUS, tensors)) and not any(map(_IS_NEGATED, tensors)):
            return tensors
        return [tensor.resolve_neg().contiguous() for tensor in tensors]

    def _fit(self, found: list[Any]) -> bool:
        return (
            _PLAIN.issuperset(map(type, found))
            and list(map(_DTYPE, found)) == self._dtypes
            and all(map(self._place.holds, found))
            and list(map(_LAYOUT, found)) == self._strided
        )


def returned(table: Table, values: Sequence[Any], outputs: list[torch.Tensor]) -> Any:
    """What a call returns; the caches among its values hold the outputs that are theirs.

    Raises Misfit where a class of it is not here; caches are as they were, then.
    """
    if not table.changed and not table.returns_arguments:
        return result_of(table.result, outputs)
    named: dict[str, Any] = values_by_name(table, values)
    result = result_of(table.result, outputs, named)
    for name, pairs in table.changed.items():
        leave(named[name], _filled(pairs, outputs))
    return result


def values_by_name(table: Table, values: Sequence[object]) -> dict[str, object]:
    """The arguments of a call by name, those of *args and **kwargs among them. values: in the order of the table."""
    named: dict[str, Any] = dict(zip(table.arguments, values, strict=True))
    if table.named:
        named |= named[table.named]
    if table.starred:
        named |= {f"{table.starred}_{place}": one for place, one in enumerate(named[table.starred])}
    return named


def result_of(tree: Any, outputs: list[torch.Tensor], values: Mapping[str, Any] | None = None) -> Any:
    """A tree with the outputs, and the values of arguments, in their places. Raises Misfit as `returned`."""
    if type(tree) is Tensor:
        return outputs[tree.place]
    if type(tree) is Record:
        fields = {name: result_of(field, outputs, values) for name, field in tree.fields.items()}
        return _class(tree.kind)(**fields)
    if type(tree) is Argument:
        return argument_at(values or {}, tree.name)
    if type(tree) is Cache:
        pairs = _filled(tree.numbered(), outputs)
        return new_cache(pairs, of_two=tree.cross is not None, kinds=tree.kinds)
    if isinstance(tree, tuple):
        return tuple(result_of(item, outputs, values) for item in tree)
    if isinstance(tree, list):
        return [result_of(item, outputs, values) for item in tree]
    if isinstance(tree, dict):
        return {name: result_of(item, outputs, values) for name, item in tree.items()}
    return tree


def argument_at(values: Mapping[str, object], path: str) -> object:
    """What a call was given under "past.0.key"."""
    name, *steps = path.split(".")
    value: Any = values[name]
    for one in steps:
        if isinstance(value, (tuple, list)) and one.isdecimal():
            value = value[int(one)]
        else:
            value = value[one] if type(value) is dict else getattr(value, one)
    return value


def _filled(
    held: Mapping[int, Held], outputs: list[torch.Tensor]
) -> dict[int, tuple[torch.Tensor | None, ...]]:
    return {
        position: tuple([None if one is None else outputs[one.place] for one in of])
        for position, of in held.items()
    }


def _match(path: str, expected: Any, given: Any, found: list[Any]) -> None:
    if type(expected) is Tensor:
        found[expected.place] = given
        return
    if type(expected) is Cache:
        _match_cache(path, expected, given, found)
        return
    if type(expected) is Values:
        _match_values(path, expected, given)
        return
    if type(expected) is Record:
        if type(given) is not _class(expected.kind):
            raise Misfit(
                f"argument {path}", f"{path} is {_shown(given)}, it was compiled with a {expected.kind}"
            )
        for name, field in expected.fields.items():
            _match(f"{path}.{name}", field, getattr(given, name, None), found)
        return
    same = type(given) is type(expected)
    if isinstance(expected, (tuple, list)) and same and len(given) == len(expected):
        for number, (item, part) in enumerate(zip(expected, given, strict=True)):
            _match(f"{path}.{number}", item, part, found)
    elif isinstance(expected, dict) and same and list(given) == list(expected):
        for key, item in expected.items():
            _match(f"{path}.{key}", item, given[key], found)
    elif not same or isinstance(expected, (tuple, list, dict)) or not same_fact(given, expected):
        raise Misfit(
            f"argument {path}", f"{path} is {_shown(given)}, it was compiled with {_shown(expected)}"
        )


def _match_values(path: str, expected: Values, given: object) -> None:
    if (
        not isinstance(given, torch.Tensor)
        or type(given) not in _PLAIN
        or given.dtype is not dtype_of(expected.dtype)
        or given.device.type != "cpu"
    ):
        raise Misfit(f"argument {path}", f"{path} is {_shown(given)}, it was compiled with {expected.dtype}")
    if tuple(given.shape) != expected.shape or tuple(given.flatten().tolist()) != expected.values:
        raise ValueMisfit(f"values {path}", f"{path} has other values than those that it was compiled for")


def _match_cache(path: str, expected: Cache, given: Any, found: list[Any]) -> None:
    of_two = expected.cross is not None
    held = held_by(given) if is_cache(given) and is_of_two(given) is of_two else None
    if held is not None and expected.kinds and kinds_of(given, states_alone=True) != expected.kinds:
        held = None
    places = expected.held if expected.cross is None else expected.held + expected.cross
    own = held if not of_two or held is None else held_by(parts_of(given)[0])
    if held is None or own is None or len(held) != len(places) or (of_two and len(own) != len(expected.held)):
        shown = "another kind of cache" if held is None else f"a cache of {len(held)} layers"
        shown = shown if is_cache(given) else _shown(given)
        compiled = f"a cache of {len(places)} layers" if places else "an empty cache"
        raise Misfit(f"argument {path}", f"{path} is {shown}, it was compiled with {compiled}")
    for layer, (ours, theirs) in enumerate(zip(places, held, strict=True)):
        if [one is None for one in ours] != [one is None for one in theirs]:
            raise Misfit(
                f"argument {path}", f"layer {layer} of {path} holds other things than it was compiled with"
            )
        for one, tensor in zip(ours, theirs, strict=True):
            if one is not None:
                found[one.place] = tensor


def _check(one: Input, given: Any, place: Place) -> None:
    if type(given) not in _PLAIN:
        raise Misfit(f"argument {one.name}", f"{one.name} is {_shown(given)}, it was compiled with a tensor")
    if given.dtype is not dtype_of(one.dtype):
        name = str(given.dtype).removeprefix("torch.")
        raise Misfit(f"dtype {name}", f"{one.name} is {name}, it was compiled for {one.dtype}")
    if not place.holds(given) or given.layout is not torch.strided:
        where = given.device if given.layout is torch.strided else given.layout
        raise Misfit(f"device {where}", f"{one.name} is on {where}, it was compiled for {place.name}")


@functools.cache
def _class(kind: str) -> Any:
    module, _, name = kind.partition(":")
    try:
        return functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise Misfit("result", f"its result was a {kind}, which is not here: {error}") from error


@functools.cache
def dtype_of(name: str) -> torch.dtype:
    """The torch dtype of a name."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    if isinstance(value, (tuple, list, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 40 else f"a {type(value).__name__}"
