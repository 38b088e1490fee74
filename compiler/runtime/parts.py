"""The records that table.py is written in."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .sizes import Bound, SymbolicDim

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """In a tree of arguments or results: the input, or output, of that number."""

    place: int


@dataclass(frozen=True)
class Values:
    """In a tree of arguments: a tensor of whole numbers that has to have these very values."""

    dtype: str
    shape: Shape
    values: tuple[int, ...]


Held = tuple[Tensor | None, ...]
"""What a layer of a cache holds: see `caches.Held`."""


@dataclass(frozen=True)
class Record:
    """In a tree of results: an instance of a class that is made of named fields. kind: "module:class"."""

    kind: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Cache:
    """A key-value cache. held: by each layer, as `caches.held_by` gives it; keys and values, mostly.

    cross: the same of cross attention, in a cache of two; None: it is another cache. kinds: as `caches.kinds_of` gives
    them; of an argument, states alone.
    """

    held: tuple[Held, ...]
    cross: tuple[Held, ...] | None = None
    kinds: tuple[int | tuple[str, int] | None, ...] = ()

    def numbered(self) -> dict[int, Held]:
        """What layers hold by their numbers, as `caches.numbered` has it."""
        return {
            **{layer: held for layer, held in enumerate(self.held) if held},
            **{~layer: held for layer, held in enumerate(self.cross or ()) if held},
        }


@dataclass(frozen=True)
class Argument:
    """In a tree of results: the very object that is given as that argument, or under that path of one."""

    name: str


@dataclass(frozen=True)
class Kept:
    """A parameter or buffer of the module, which a result is, or is a view of."""

    name: str
    dtype: str
    shape: Shape


@dataclass(frozen=True)
class View:
    """A tensor of the result in memory that something else has, too: made by view operations once a call is done.

    of: an output, an argument, or a weight. steps: ATen overloads ("select.int"), or "getitem", and their arguments
    after the tensor; sizes may be symbolic, a dtype is "torch.int32". "no_grad select.int": where gradients are off.
    """

    of: Tensor | Argument | Kept
    steps: tuple[tuple[str, tuple[object, ...]], ...]


@dataclass(frozen=True)
class Input:
    """A tensor that a call brings. buffer: its place among the program's buffers."""

    name: str
    dtype: str
    shape: tuple[int | SymbolicDim, ...]
    buffer: int


@dataclass(frozen=True)
class Weight:
    """A parameter or buffer of the module. packed: whether the program copies it, so that it must be watched.

    aliases: other names under which the module that was compiled had the same tensor.
    """

    name: str
    dtype: str
    shape: Shape
    buffer: int
    packed: bool
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Output:
    """A tensor that a call makes."""

    name: str
    dtype: str
    buffer: int


@dataclass(frozen=True)
class Scratch:
    """Buffers that share one place in the arena, from the first kernel that writes it to the last that reads it."""

    buffers: tuple[int, ...]
    first: int
    last: int


@dataclass(frozen=True)
class Module:
    """The module that was compiled, or one inside of it, and what of it the result depends on.

    kind: its class. forward: a digest of its forward's source, "" where the class is PyTorch's, or there is none.
    facts: attributes that its forward reads ("eps", "config.hidden_act") -> their values.
    functions: where functions and methods are that it comes to; none may do another thing than when its class was met.
    """

    path: str
    kind: str
    forward: str
    facts: Mapping[str, Any]
    functions: tuple[str, ...] = ()
    met: dict[tuple[type, str], Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Those functions, by class and place."""


@dataclass(frozen=True)
class Table:
    """All that is known of the program but its text."""

    layer: str
    source: str
    """The program's file."""
    arguments: Mapping[str, Any]
    """Argument -> what it was in the example: a Tensor, a literal, a Cache, or tuples, lists and dicts of those."""
    positional: tuple[str, ...]
    """Arguments that the original forward takes by position, in order."""
    starred: str
    """The name of *args, "" where there is none."""
    named: str
    """The name of **kwargs."""
    result: Any
    """A tree with a Tensor for each output, or part of it."""
    changed: Mapping[str, Mapping[int, Held]]
    """Argument -> layer of the cache that it is -> outputs that it holds after a call."""
    assertions: int | None
    """The output, a 0-d bool, that tells whether what the forward asserts of data holds."""
    inputs: tuple[Input, ...]
    weights: tuple[Weight, ...]
    constants: Mapping[int, str]
    """Buffer -> its name in `constants_file`."""
    constants_file: str
    prepared: Mapping[int, int]
    """Buffer -> bytes, of what the program makes of weights alone."""
    outputs: tuple[Output, ...]
    scratch: tuple[Scratch, ...]
    buffers: int
    dtypes: tuple[str, ...]
    """Of each buffer, for programs that take tensors; () for those that take addresses."""
    packed: int
    symbols: tuple[str, ...]
    """Names of the sizes that the program is given, in order."""
    sources: tuple[str, ...]
    """Files of the runtime that are compiled with it."""
    messages: tuple[str, ...]
    modules: tuple[Module, ...]
    bounds: Mapping[str, Bound]
    """Of every symbol in the shapes of inputs."""
    output_shapes: Callable[[Mapping[str, int]], tuple[Shape, ...]]
    scratch_bytes: Callable[[Mapping[str, int]], tuple[int, ...]]
    views: tuple[View, ...] = ()
    """Tensors of the result by the numbers that follow those of the outputs."""

    @functools.cached_property
    def returns_arguments(self) -> bool:
        """Whether a part of the result is what a call was given."""
        return _holds_argument(self.result)


def _holds_argument(tree: object) -> bool:
    if isinstance(tree, Record):
        tree = tree.fields
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (tuple, list)) else ()
    return isinstance(tree, Argument) or any(map(_holds_argument, inner))
