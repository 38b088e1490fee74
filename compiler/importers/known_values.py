"""What a forward asks tensors for in Python, answered as in the example while torch.export traces it.

    for t, h, w in grid_thw.tolist(): …         small tensors of whole numbers, arguments and buffers, are what they are
    torch.repeat_interleave(x, counts)          in the example, and so is what is computed of them, and of numbers alone
    if is_global.any(): …                       a question about masks that are not small is answered as in the example

A trace has no values: torch.export gives up where a size or a branch depends on some. A program that is traced with
known values is of these alone. Its caller compares the arguments in `KnownValues.asked` at each call; buffers and
answers are asserted by the program itself, see `data_assertions`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from kernels_hub.compiler.errors import ImportFailure

_WHOLE = (torch.int32, torch.int64)
_MOST_IN_A_ROW, _COLUMNS, _ROWS, _OF_BUFFERS = 64, (2, 3, 4), 64, 16
_MOST = 1 << 18
"""Elements of what is computed of known values."""

_TENSOR: Any = torch.Tensor
_ITEM, _BOOL, _GET, _SET = _TENSOR.item, _TENSOR.__bool__, _TENSOR.__getitem__, _TENSOR.__setitem__
_READS = frozenset({
    _ITEM, _BOOL, _TENSOR.tolist, _TENSOR.__int__, _TENSOR.__float__, _TENSOR.__index__, _TENSOR.numpy, torch.equal,
    _TENSOR.equal, _TENSOR.__contains__,
})  # fmt: skip
"""What makes a number of Python's of a tensor."""
_OF_DATA = frozenset({
    torch.repeat_interleave, _TENSOR.repeat_interleave, torch.nonzero, _TENSOR.nonzero, torch.argwhere,
    _TENSOR.argwhere, torch.masked_select, _TENSOR.masked_select, torch.unique, _TENSOR.unique,
    torch.unique_consecutive, _TENSOR.unique_consecutive,
})  # fmt: skip
"""What makes as many elements as data tell."""
_FACTORIES = frozenset({torch.arange, torch.tensor, torch.linspace, torch.zeros, torch.ones, torch.full})
_LIKE = frozenset({
    torch.zeros_like, torch.ones_like, torch.full_like, _TENSOR.new_zeros, _TENSOR.new_ones, _TENSOR.new_full,
    _TENSOR.new_tensor,
})  # fmt: skip
_TAKE_SIZES = frozenset({
    "pad", "split", "split_with_sizes", "tensor_split", "chunk", "view", "reshape", "expand", "repeat", "narrow",
    "new_zeros", "new_ones", "new_full", "new_empty", "interpolate", "unflatten", "select", "roll", "repeat_interleave",
})  # fmt: skip
"""Functions that take whole numbers beside the tensor, which tensors may stand for."""
_WRITING = frozenset({"__setitem__", *(f"__i{name}__" for name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"
))})  # fmt: skip

_Function = Callable[..., Any]
_Arguments = Sequence[Any]
_Keywords = dict[str, Any]
_Given = Mapping[str, Any]
Place = tuple[str, int, int]
"""File, line, and how many questions were asked there before."""


def is_small(value: object) -> bool:
    """Whether an argument may be known: a row of whole numbers, or a table of two to four columns as grids are."""
    if type(value) is not torch.Tensor or value.dtype not in _WHOLE or value.is_meta:
        return False
    if value.dim() == 2:
        return value.shape[1] in _COLUMNS and value.shape[0] <= _ROWS
    return value.dim() < 2 and value.numel() <= _MOST_IN_A_ROW


class KnownValues:
    """What may be known while a module is traced.

    arguments: name -> tensor, the very objects that the forward is given. answers: as `Recording` noted them.
    """

    def __init__(
        self, module: nn.Module, arguments: Mapping[str, torch.Tensor], answers: Mapping[Place, bool]
    ) -> None:
        self.arguments, self.answers = dict(arguments), dict(answers)
        self.asked: set[str] = set()
        """Names of the arguments whose values the program is of."""
        self._module = module
        self._buffers = {
            path: buffer.detach().clone()
            for path, buffer in module.named_buffers()
            if buffer.dtype in _WHOLE and buffer.dim() < 2 and buffer.numel() <= _OF_BUFFERS
        }

    @contextmanager
    def within_forward(self) -> Iterator[None]:
        """Open while the forward is traced, its parameters and buffers being fake ones by now."""
        mode = _Answering(self)
        replaced: list[tuple[dict[str, Any], str, torch.Tensor, torch.Tensor]] = []
        for path, real in self._buffers.items():
            owner, _, name = path.rpartition(".")
            table = self._module.get_submodule(owner)._buffers
            if (fake := table.get(name)) is not None:
                replaced.append((table, name, fake, real))
                table[name] = real
                mode.knows(real, f"buffer {path}")
        try:
            with mode:
                yield
            for _, _, fake, known_buffer in replaced:
                if mode.touched(known_buffer):
                    torch._assert_async(torch.eq(fake, known_buffer).all())
        finally:
            for table, name, fake, _ in replaced:
                table[name] = fake


_KNOWN: ContextVar[KnownValues | None] = ContextVar("values that are known to a trace", default=None)


@contextmanager
def known(values: KnownValues | None) -> Iterator[None]:
    """While it is open, forwards are traced with these."""
    token = _KNOWN.set(values)
    try:
        yield
    finally:
        _KNOWN.reset(token)


@contextmanager
def within_forward() -> Iterator[None]:
    """Open while a forward is traced; does nothing where nothing is known."""
    values = _KNOWN.get()
    if values is None:
        yield
        return
    with values.within_forward():
        yield


class Recording(TorchFunctionMode):
    """Notes what a forward that runs asks of tensors. asks: whether anything; answers: to questions for a bool.

    Questions about floats that the call is given, or that come of them or of parameters, have no answer that would hold
    for the next call: none is noted. What comes of masks, counts and numbers of the code has one, floats included.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asks = False
        self.answers: dict[Place, bool] = {}
        self._places = _Places()
        self._of_masks: MutableMapping[torch.Tensor, bool] = WeakIdKeyDictionary()
        """Tensors that the forward made -> whether no float that it was given had a part in them."""

    def __torch_function__(
        self, func: _Function, types: object, args: _Arguments = (), kwargs: _Given | None = None
    ) -> object:
        del types
        found = func(*args, **(kwargs or {}))
        self.asks = self.asks or func in _READS or func in _OF_DATA or (func == _GET and _has_mask(args[1]))
        self.asks = self.asks or _takes_numbers(func, args, kwargs or {})
        given = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        of_masks = all(map(self._is_of_masks, given))
        if _is_question(func, args):
            place = self._places.next(sys._getframe(1))
            if of_masks:
                self.answers[place] = bool(found)
        made = [one for one in pytree.tree_leaves(found) if isinstance(one, torch.Tensor)]
        if given and _writes(func, kwargs or {}):
            made.append(given[0])
        self._of_masks.update((one, of_masks) for one in made)
        return found

    def _is_of_masks(self, tensor: torch.Tensor) -> bool:
        known = self._of_masks.get(tensor)
        return not (tensor.is_floating_point() or tensor.is_complex()) if known is None else known


class _Places:
    """Numbers the questions that are asked at each line."""

    def __init__(self) -> None:
        self._asked: Counter[tuple[str, int]] = Counter()

    def next(self, frame: FrameType) -> Place:
        """The place of a question that is asked from a frame."""
        at = frame.f_code.co_filename, frame.f_lineno
        self._asked[at] += 1
        return (*at, self._asked[at])


def _is_question(func: object, args: _Arguments) -> bool:
    """Whether a tensor is asked for a bool."""
    return func == _BOOL or (func == _ITEM and args[0].dtype is torch.bool)


def _takes_numbers(func: object, args: _Arguments, kwargs: _Given) -> bool:
    """Whether tensors stand for whole numbers among sizes, padding, or the ends of a slice."""
    if func == _GET:
        several = args[1] if isinstance(args[1], tuple) else (args[1],)
        slices = [one for one in several if isinstance(one, slice)]
        given: object = [(one.start, one.stop, one.step) for one in slices]
    elif getattr(func, "__name__", "") in _TAKE_SIZES:
        given = args[1:], kwargs
    else:
        given = (args, kwargs) if func in _FACTORIES else ()
    leaves = pytree.tree_leaves(given)
    return any(isinstance(one, torch.Tensor) and one.dim() == 0 and one.dtype in _WHOLE for one in leaves)


def _has_mask(index: object) -> bool:
    several = index if isinstance(index, (tuple, list)) else (index,)
    return any(isinstance(one, torch.Tensor) and one.dtype is torch.bool for one in several)


class _Answering(TorchFunctionMode):
    """Computes what depends on known values alone, outside of the trace, and answers for them."""

    def __init__(self, values: KnownValues) -> None:
        super().__init__()
        self._values, self._places = values, _Places()
        self._known: dict[int, tuple[torch.Tensor, frozenset[str]]] = {}
        """By identity, which is a tensor's as long as it lives: what is known, and of which values it is made."""
        self._touched: set[int] = set()
        self._given = {id(one) for one in values.arguments.values()}
        for name, tensor in values.arguments.items():
            self.knows(tensor, name)

    def knows(self, tensor: torch.Tensor, *origins: str) -> None:
        """Have a tensor be known."""
        self._known[id(tensor)] = tensor, frozenset(origins)

    def touched(self, tensor: torch.Tensor) -> bool:
        """Whether anything was done with what is known."""
        return id(tensor) in self._touched

    def __torch_function__(
        self, func: _Function, types: object, args: _Arguments = (), kwargs: _Given | None = None
    ) -> object:
        del types
        kwargs = dict(kwargs or {})
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
        are_known = [self._is_known(one) for one in tensors]
        self._touched.update(id(one) for one, is_one in zip(tensors, are_known, strict=True) if is_one)
        has_symbols = any(isinstance(one, (torch.SymInt, torch.SymFloat, torch.SymBool)) for one in leaves)
        if all(are_known) and not has_symbols and (tensors or func in _FACTORIES):
            return self._computed(func, args, kwargs, tensors)
        if func in _LIKE and not has_symbols and all(type(size) is int for size in tensors[0].shape):
            return self._made_like(func, args, kwargs)
        if any(are_known):
            self._refuse_writes(func, args, kwargs)
            args, kwargs = self._with_numbers(func, args, kwargs)
        elif _is_question(func, args):
            return self._answer(func, args, kwargs)
        return func(*args, **kwargs)

    def _is_known(self, tensor: torch.Tensor) -> bool:
        if id(tensor) in self._known:
            return True
        if type(tensor) is torch.Tensor and is_small(tensor):
            self.knows(tensor)  # an attribute of a module, which is a constant in any case
            return True
        return False

    def _origins(self, tensors: Iterable[torch.Tensor]) -> frozenset[str]:
        return frozenset().union(*(self._known[id(one)][1] for one in tensors))

    def _ask(self, tensors: Iterable[torch.Tensor]) -> None:
        self._values.asked |= self._origins(tensors) & self._values.arguments.keys()

    def _computed(
        self, func: _Function, args: _Arguments, kwargs: _Keywords, tensors: Sequence[torch.Tensor]
    ) -> object:
        if _writes(func, kwargs) and any(id(one) in self._given for one in tensors):
            raise ImportFailure(
                "the forward writes to an argument, or a buffer, whose values decide what it does"
            )
        with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
            found = func(*args, **kwargs)
        made = [one for one in pytree.tree_leaves(found) if isinstance(one, torch.Tensor)]
        if func in _READS or func in _OF_DATA or (func == _GET and _has_mask(args[1])):
            self._ask(tensors)
        if any(one.numel() > _MOST for one in made):
            return func(*args, **kwargs)
        origins = self._origins(tensors)
        for one in made:
            self.knows(one, *(origins | (self._known[id(one)][1] if id(one) in self._known else frozenset())))
        return found

    def _made_like(self, func: _Function, args: _Arguments, kwargs: _Keywords) -> object:
        like = args[0]
        if like.numel() > _MOST or any(
            isinstance(one, FakeTensor) for one in pytree.tree_leaves((args[1:], kwargs))
        ):
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
            stand_in = torch.empty(tuple(like.shape), dtype=like.dtype)
            found = func(stand_in, *args[1:], **kwargs)
        self.knows(found)
        return found

    def _refuse_writes(self, func: _Function, args: _Arguments, kwargs: _Given) -> None:
        target = args[0] if args else None
        if _writes(func, kwargs) and isinstance(target, torch.Tensor) and self._is_known(target):
            raise ImportFailure("the forward writes what it computes into a tensor of known values")

    def _with_numbers(
        self, func: _Function, args: _Arguments, kwargs: _Keywords
    ) -> tuple[_Arguments, _Keywords]:
        """The arguments with numbers for known tensors where numbers are meant, and places for a known mask."""
        name = getattr(func, "__name__", "")
        if func in (_GET, _SET):
            return (args[0], self._index(args[1]), *args[2:]), kwargs
        if name in _TAKE_SIZES:
            if name == "repeat_interleave" and "output_size" not in kwargs and len(args) > 1:
                repeats = args[1]
                if isinstance(repeats, torch.Tensor) and self._is_known(repeats) and repeats.dim() == 1:
                    kwargs["output_size"] = self._number(repeats.sum)
                    self._ask([repeats])
                    return args, kwargs
            return (args[0], *map(self._numbers, args[1:])), {
                key: self._numbers(one) for key, one in kwargs.items()
            }
        if func in _FACTORIES:
            return [*map(self._numbers, args)], {key: self._numbers(one) for key, one in kwargs.items()}
        return args, kwargs

    def _numbers(self, value: object) -> object:
        if isinstance(value, (tuple, list)):
            return type(value)(map(self._numbers, value))
        if isinstance(value, slice):
            return slice(*map(self._numbers, (value.start, value.stop, value.step)))
        if (
            isinstance(value, torch.Tensor)
            and value.dim() == 0
            and value.dtype in _WHOLE
            and self._is_known(value)
        ):
            self._ask([value])
            return self._number(value.item)
        return value

    def _index(self, index: object) -> object:
        several = index if isinstance(index, tuple) else (index,)
        found: list[Any] = []
        for one in several:
            if (
                isinstance(one, torch.Tensor)
                and one.dtype is torch.bool
                and one.dim()
                and self._is_known(one)
            ):
                self._ask([one])
                with torch._C.DisableTorchFunction(), _disable_current_modes():
                    places = one.nonzero(as_tuple=True)
                for place in places:
                    self.knows(place, *self._known[id(one)][1])
                found += places
            else:
                found.append(self._numbers(one) if not isinstance(one, list) else one)
        return tuple(found) if isinstance(index, tuple) or len(found) > 1 else found[0]

    def _number(self, asked: Callable[[], float | torch.Tensor]) -> int:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return int(asked())

    def _answer(self, func: _Function, args: _Arguments, kwargs: _Keywords) -> object:
        answer = self._values.answers.get(self._places.next(sys._getframe(2)))
        if answer is None:
            return func(*args, **kwargs)
        asked = args[0].reshape(())
        holds = asked if asked.dtype is torch.bool else asked.ne(0)
        torch._assert_async(holds if answer else holds.logical_not())
        return answer


def _writes(func: _Function, kwargs: _Given) -> bool:
    name = getattr(func, "__name__", "")
    return (
        name in _WRITING or kwargs.get("out") is not None or (name.endswith("_") and not name.endswith("__"))
    )
