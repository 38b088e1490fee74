"""What a value is, as far as a program may depend on it: to compare it in another process, and at every call.

    fact(value)        all of it, as literals that a file can hold: equal facts, equal results
    contents(value)    what can change inside of the very same object, and how to ask whether it has

Values that a module's forward reads are what a program was compiled for beside its weights. A number is all there is to
say of itself; a list, a dict, an object, a closure or an array is what it holds.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import logging
import operator
import re
import struct
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import is_
from pathlib import PurePath
from typing import Any, NamedTuple

import torch

_PLAIN = (bool, int, float, str, bytes, type(None))
_SHOWN = (
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo, torch._ops.OpOverload,
    torch._ops.OpOverloadPacket, re.Pattern, PurePath, operator.itemgetter, operator.attrgetter,
    operator.methodcaller, complex, range, slice,
)  # fmt: skip
_STATELESS = (logging.Logger, type(threading.Lock()), type(threading.RLock()), types.ModuleType)
"""Of these nothing is compared but that they are what they are: no result of a forward depends on more."""
_MOST = 20_000
"""Values inside of one. What holds more counts as one that cannot be looked into."""


class Held(NamedTuple):
    """What a table of a module holds under a name: a module inside of it, a weight, what a forward reads."""

    holder: dict[str, Any]
    name: str
    value: Any
    """The very object; None where it holds nothing there."""


@dataclass(frozen=True, eq=False)
class CellHolds:
    """Whether a closure's cell, which is filled, holds the very object that it held."""

    cell: types.CellType
    value: object

    def __call__(self) -> bool:
        """Ask."""
        return is_filled(self.cell) and self.cell.cell_contents is self.value


OF_FUNCTIONS = (
    operator.attrgetter("__code__"),
    operator.attrgetter("__defaults__"),
    operator.attrgetter("__kwdefaults__"),
)
"""What of a function can be replaced, and makes it do another thing."""


class FunctionHolds:
    """Whether a function has the code and the defaults that it had. parts: these, in the order of OF_FUNCTIONS."""

    def __init__(self, function: types.FunctionType) -> None:
        self.function = function
        self.parts = [part(function) for part in OF_FUNCTIONS]

    def __call__(self) -> bool:
        """Ask."""
        return all(part(self.function) is one for part, one in zip(OF_FUNCTIONS, self.parts, strict=True))


@dataclass(frozen=True, eq=False)
class HasKeys:
    """Whether a dict has the very keys that it had, in the same order."""

    table: dict[str, Any]
    keys: tuple[object, ...]

    def __call__(self) -> bool:
        """Ask."""
        return _holds_each(self.table, self.keys)


class Contents(NamedTuple):
    """What may change inside of an object.

    held: entries of dicts. same: questions, each of which says whether an object holds what it held. tensors: those
    whose elements count, arrays of NumPy among them.
    """

    held: list[Held]
    same: list[Callable[[], bool]]
    tensors: list[torch.Tensor]

    def join(self, other: Contents) -> None:
        """Take those of another value as well."""
        self.held.extend(other.held)
        self.same.extend(other.same)
        self.tensors.extend(other.tensors)


def fact(value: object, inside: Mapping[int, str] = types.MappingProxyType({})) -> object:
    """A value as tables hold it: plain ones as they are, everything else by what tells it from others.

    inside: modules, weights and buffers that are told by their place, as what they hold is compared elsewhere.
    """
    return looked_into(value, inside)[0]


def same_fact(one: object, other: object) -> bool:
    """Whether two facts, or literals, are the same: of one class throughout (1 is not True), dicts in one order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return repr(one) == repr(other)  # -0.0 is not 0.0, and what is no number is itself
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(same_fact, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(map(repr, one)) == list(map(repr, other)) and all(
            map(same_fact, one.values(), other.values())
        )
    return one == other


def looked_into(
    value: object, inside: Mapping[int, str] = types.MappingProxyType({})
) -> tuple[object, str | None]:
    """The fact of a value, and the class of what of it cannot be looked into; None where all can."""
    facts = _Facts(inside)
    found = facts.of(value)
    return found, facts.hidden


class _Facts:
    """Facts of a value and of all that it holds. hidden: the class of the first that cannot be looked into."""

    def __init__(self, inside: Mapping[int, str]) -> None:
        self._inside = inside
        self._open: list[int] = []
        self._left = _MOST
        self.hidden: str | None = None

    def of(self, value: object) -> object:
        if type(value) in _PLAIN:
            return value
        if (place := self._inside.get(id(value))) is not None:
            return f"its {place}"
        if id(value) in self._open:
            return f"what holds it, {len(self._open) - self._open.index(id(value))} around"
        self._left -= 1
        if self._left < 0:
            return self.cannot(value)
        self._open.append(id(value))
        try:
            return _fact(value, self)
        finally:
            self._open.pop()

    def each(self, values: Iterable[object]) -> tuple[object, ...]:
        return tuple(map(self.of, values))

    def cannot(self, value: object) -> str:
        name = kind_of(type(value))
        self.hidden = self.hidden or name
        return f"a {name}"


@functools.singledispatch
def _fact(value: object, facts: _Facts) -> object:
    """The fact of a value by its class: here, of an object that holds attributes."""
    kind = type(value)
    if isinstance(value, _SHOWN):
        return str(value)
    if isinstance(value, _STATELESS):
        return f"a {kind_of(kind)}"
    if kind.__module__.partition(".")[0] == "numpy":
        return _fact_of_numpy(value, facts)
    if not _is_of_python(kind):
        member = _member_of_native_enum(value)
        return facts.cannot(value) if member is None else f"{kind_of(kind)}.{member}"
    return (f"a {kind_of(kind)}", {name: facts.of(one) for name, one in attributes(value)})


def _member_of_native_enum(value: object) -> str | None:
    """The name of a member of an enumeration that pybind11 made, such as SDPBackend; None of anything else."""
    members = getattr(type(value), "__members__", None)
    if not isinstance(members, dict):
        return None
    return next((name for name, one in members.items() if type(one) is type(value) and one == value), None)


def _fact_of_numpy(value: object, facts: _Facts) -> object:
    """Of an array, a scalar, a dtype or a function of NumPy, which need not be installed."""
    numpy = sys.modules["numpy"]
    if isinstance(value, numpy.ndarray):
        if value.dtype.hasobject:
            return ("array", value.shape, *facts.each(value.ravel()))
        return f"array {value.dtype}{list(value.shape)} {_digest(numpy.ascontiguousarray(value).tobytes())}"
    if isinstance(value, (numpy.generic, numpy.dtype, numpy.ufunc)):
        return f"{value!r} of {kind_of(type(value))}"
    return facts.cannot(value)


@_fact.register(tuple)
@_fact.register(list)
def _(value: Sequence[object], facts: _Facts) -> object:
    return facts.each(value)


@_fact.register(collections.deque)
def _(value: collections.deque[object], facts: _Facts) -> object:
    return ("deque", *facts.each(value))


@_fact.register(set)
@_fact.register(frozenset)
def _(value: set[object] | frozenset[object], facts: _Facts) -> object:
    return ("set", *sorted(map(repr, facts.each(value))))


@_fact.register(dict)
@_fact.register(types.MappingProxyType)
def _(value: Mapping[object, object], facts: _Facts) -> object:
    # What it holds itself: a class may import the rest when it is asked for items.
    is_ordered = isinstance(value, collections.OrderedDict)  # has an order beside that of the dict
    items = dict.items(value) if isinstance(value, dict) and not is_ordered else value.items()
    return {name if isinstance(name, str) else repr(facts.of(name)): facts.of(one) for name, one in items}


@_fact.register(int)
@_fact.register(float)
@_fact.register(str)
@_fact.register(bytes)
def _(value: float | str | bytes, _facts: _Facts) -> object:
    plain = next(of for of in (int, float, str, bytes) if isinstance(value, of))
    return (f"a {kind_of(type(value))}", plain.__repr__(value))


@_fact.register(Enum)
def _(value: Enum, _facts: _Facts) -> object:
    return f"{kind_of(type(value))}.{value.name}"


@_fact.register(torch.Tensor)
def _(value: torch.Tensor, _facts: _Facts) -> object:
    plain = value.detach().cpu().contiguous()
    data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return f"{plain.dtype}{list(plain.shape)} {_digest(data)}"


@_fact.register(type)
def _(value: type, _facts: _Facts) -> object:
    return kind_of(value)


@_fact.register(types.FunctionType)
def _(value: types.FunctionType, facts: _Facts) -> object:
    held = [cell.cell_contents for cell in value.__closure__ or () if is_filled(cell)]
    name = kind_of(value)
    if "<" in name:  # a lambda, or one within another function: others have the same name
        name = f"{name} {_digest(repr(code_text(value.__code__)).encode())}"
    own = (held, value.__defaults__, value.__kwdefaults__)
    return (name, *facts.each(own)) if held or any(own) else name


@_fact.register(types.MethodType)
def _(value: types.MethodType, facts: _Facts) -> object:
    return ("method", *facts.each((value.__func__, value.__self__)))


@_fact.register(types.BuiltinFunctionType)
@_fact.register(types.WrapperDescriptorType)
@_fact.register(types.MethodDescriptorType)
def _(value: types.BuiltinFunctionType, facts: _Facts) -> object:
    owner = getattr(value, "__self__", None)
    name = f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', value.__name__)}"
    return name if owner is None or isinstance(owner, (types.ModuleType, type)) else (name, facts.of(owner))


@_fact.register(functools.partial)
def _(value: functools.partial[object], facts: _Facts) -> object:
    return ("partial", *facts.each((value.func, value.args, value.keywords)))


@_fact.register(functools._lru_cache_wrapper)
def _(value: functools._lru_cache_wrapper[object], facts: _Facts) -> object:
    return facts.of(value.__wrapped__)


@_fact.register(weakref.ref)
def _(value: weakref.ref[object], facts: _Facts) -> object:
    return ("reference", facts.of(value()))


# -- what may change -------------------------------------------------------------------------------


def contents(value: object, inside: Mapping[int, str] = types.MappingProxyType({})) -> Contents:
    """What may change inside of a value while it is the same object. inside: as `fact` has it."""
    found = Contents([], [], [])
    seen: set[int] = set()
    waiting = [value]
    while waiting and len(seen) < _MOST:
        one = waiting.pop()
        if type(one) not in _PLAIN and id(one) not in inside and id(one) not in seen:
            seen.add(id(one))
            waiting += _inner(one, found)
    return found


@functools.singledispatch
def _inner(value: object, found: Contents) -> Iterable[object]:
    """What a value holds, after a note of how that is asked for: here, of an object that holds attributes."""
    if isinstance(value, (*_SHOWN, *_STATELESS)):
        return ()
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.ndarray):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it must not be written to: nobody does here
            with contextlib.suppress(TypeError, ValueError):  # of a type that PyTorch has not
                found.tensors.append(torch.from_numpy(value))
        return ()
    if not _is_of_python(type(value)):
        return ()
    table = getattr(value, "__dict__", None)
    own: Iterable[object] = ()
    if isinstance(table, dict):
        found.held.extend(Held(table, name, one) for name, one in table.items())
        found.same.append(HasKeys(table, tuple(table)))
        own = [*table.values()]
    slots = [
        (name, one) for name, one in attributes(value) if not isinstance(table, dict) or name not in table
    ]
    found.same.extend(functools.partial(_attribute_is, value, name, one) for name, one in slots)
    return [*own, *(one for _, one in slots)]


@_inner.register(tuple)
@_inner.register(frozenset)
def _(value: frozenset[object] | tuple[object, ...], _found: Contents) -> Iterable[object]:
    return value


@_inner.register(list)
@_inner.register(collections.deque)
def _(value: list[object] | collections.deque[object], found: Contents) -> Iterable[object]:
    found.same.append(functools.partial(_holds_each, value, tuple(value)))
    return [*value]


@_inner.register(set)
def _(value: set[object], found: Contents) -> Iterable[object]:
    found.same.append(functools.partial(_is_equal, value, frozenset(value)))
    return [*value]


@_inner.register(dict)
def _(value: dict[str, object], found: Contents) -> Iterable[object]:
    found.held.extend(Held(value, name, one) for name, one in dict.items(value))
    keys = HasKeys(value, tuple(name for name, _ in dict.items(value)))
    # One with an order beside that of the dict is asked for it.
    is_ordered = isinstance(value, collections.OrderedDict)
    found.same.append(functools.partial(_holds_each, value, tuple(value)) if is_ordered else keys)
    return [*dict.values(value)]


@_inner.register(torch.Tensor)
def _(value: torch.Tensor, found: Contents) -> Iterable[object]:
    found.tensors.append(value)
    return ()


@_inner.register(types.FunctionType)
def _(value: types.FunctionType, found: Contents) -> Iterable[object]:
    cells = [cell for cell in value.__closure__ or () if is_filled(cell)]
    found.same.extend(CellHolds(cell, cell.cell_contents) for cell in cells)
    return (*(cell.cell_contents for cell in cells), value.__defaults__, value.__kwdefaults__)


@_inner.register(types.MethodType)
def _(value: types.MethodType, _found: Contents) -> Iterable[object]:
    return (value.__func__, value.__self__)


@_inner.register(functools.partial)
def _(value: functools.partial[object], _found: Contents) -> Iterable[object]:
    return (value.func, value.args, value.keywords)


@_inner.register(functools._lru_cache_wrapper)
def _(value: functools._lru_cache_wrapper[object], _found: Contents) -> Iterable[object]:
    return (value.__wrapped__,)


@_inner.register(weakref.ref)
def _(value: weakref.ref[object], _found: Contents) -> Iterable[object]:
    return (value(),)


@_inner.register(type)
@_inner.register(Enum)
@_inner.register(int)
@_inner.register(float)
@_inner.register(str)
@_inner.register(bytes)
def _(_value: object, _found: Contents) -> Iterable[object]:
    return ()


def _holds_each(sequence: Collection[object], before: tuple[object, ...]) -> bool:
    return len(sequence) == len(before) and all(map(is_, sequence, before))


def _is_equal(value: object, before: object) -> bool:
    return bool(value == before)


def _attribute_is(value: object, name: str, before: object) -> bool:
    return getattr(value, name, None) is before


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def attributes(value: object) -> Iterator[tuple[str, object]]:
    """The attributes of an object of a class of Python's, those in slots among them."""
    if isinstance(table := getattr(value, "__dict__", None), dict):
        yield from sorted((str(name), one) for name, one in table.items())
    for base in type(value).__mro__:
        for name in _slots(base):
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def _is_of_python(kind: type) -> bool:
    """Whether all that objects of a class hold are attributes: it, and what it inherits from, is written in Python."""
    bases = [base for base in kind.__mro__ if base not in (object, types.SimpleNamespace)]
    slots = sum(map(len, map(_slots, bases)))
    size = types.SimpleNamespace.__basicsize__ + _WORD * (slots + 2)  # with a dict and weak references
    return all(base.__flags__ & _HEAP_TYPE for base in bases) and kind.__basicsize__ <= size


def _slots(base: type) -> tuple[str, ...]:
    names = base.__dict__.get("__slots__", ())
    return (names,) if isinstance(names, str) else tuple(names)


_HEAP_TYPE = 1 << 9
_WORD = struct.calcsize("P")


def places(module: torch.nn.Module) -> dict[int, str]:
    """The modules, weights and buffers inside of one, by identity: what `fact` is to tell by their place."""
    named = (module.named_modules, module.named_parameters, module.named_buffers)
    return {id(one): path for each in named for path, one in each()}


def step(value: object, name: str) -> object:
    """What a value has under a name; None without. Under "?name": whether it has an attribute of that name.

    An item of a plain dict or tuple; what a class itself holds, a static method as one; else an attribute.
    """
    if name.startswith("?"):
        return hasattr(value, name[1:])
    if type(value) is dict:
        return value.get(name)
    if type(value) is tuple:
        return value[int(name)] if name.isdecimal() and int(name) < len(value) else None
    if isinstance(value, type) and name in vars(value):
        return vars(value)[name]
    return getattr(value, name, None)


def is_computed(value: object, name: str) -> bool:
    """Whether an object answers for an attribute that neither it nor its class holds, but as a property."""
    if not _is_of_python(type(value)) or isinstance(value, (type, torch.nn.Module)) or name.startswith("__"):
        return False
    held = next((vars(base)[name] for base in type(value).__mro__ if name in vars(base)), None)
    return held is None or (isinstance(held, property) and held.fget is not None)


def at(value: object, path: str) -> object:
    """What is there under "eps", "config.hidden_act", or "__class__.forward.__globals__.SCALE"."""
    for name in path.split("."):
        value = step(value, name)
    return value


def code_text(code: types.CodeType) -> tuple[object, ...]:
    """What a function's code does, as values that every process writes alike."""
    constants = tuple(map(_constant, code.co_consts))
    return code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, constants


def _constant(value: object) -> object:
    if isinstance(value, types.CodeType):
        return code_text(value)
    if isinstance(value, tuple):
        return tuple(map(_constant, value))
    # The order of a set is that of its hashes, which differ.
    return ("set", *sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def is_filled(cell: types.CellType) -> bool:
    """Whether a cell of a closure holds something."""
    try:
        cell.cell_contents  # noqa: B018 (asks whether there is any)
    except ValueError:
        return False
    return True


def kind_of(one: type | types.FunctionType | types.BuiltinFunctionType) -> str:
    """The full name of a class or function."""
    return f"{one.__module__}.{one.__qualname__}"
