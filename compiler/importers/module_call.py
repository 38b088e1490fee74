"""Calls as a module takes them: its arguments become the inputs of the graph, the outputs what the module returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import ConstantArgument
from torch.utils import _pytree as pytree

from kernels_hub.compiler.errors import ImportFailure, PlanError
from kernels_hub.compiler.runtime.surroundings import are_apart, is_plain

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from kernels_hub.compiler.importers.torch_program import TorchProgram

_LAYOUT = (
    "its forward asks tensors for strides or gradients, or whether they are parameters, and is compiled for those that "
    "are contiguous, whole, require no gradient, and are no parameters"
)


class ModuleCall:
    """How a module that was traced on `args` and `kwargs` is called.

    Arguments that are no tensors are part of the graph: each call has to bring the same. So are answers that the
    forward got of its arguments beside what they hold (`asked_tensors`). Raises ImportFailure for an example that has
    others than calls may.
    """

    def __init__(
        self,
        program: TorchProgram,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        forward: Callable[..., object] | None = None,
    ) -> None:
        """forward: the module's, whose signature says what a name stands for, and which it takes by `**`."""
        self._program, self._name = program, program.graph.name
        leaves, self._spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        self._named, self._names = tuple(kwargs), frozenset(kwargs)
        self._taken = (
            None if forward is None else _Taken(inspect.signature(forward), len(args), tuple(kwargs))
        )
        self._in_order = [] if self._taken is None else self._taken.together
        self._takes = tuple(name in program.graph.inputs for name in program.inputs)
        self._fixed = [
            (index, name, leaf)
            for index, (name, leaf) in enumerate(zip(program.inputs, leaves, strict=True))
            if not isinstance(leaf, torch.Tensor)
        ]
        _, flat = pytree.tree_flatten((tuple(range(len(leaves))), {}))
        self.flat = self._spec == flat and program.inputs == tuple(program.graph.inputs)
        """Whether the arguments are the inputs of the graph, by position, and nothing else."""
        outputs = tuple(program.graph.outputs)
        self._places = [
            (outputs.index(one), None) if kind == "output" else (None, one) for kind, one in program.outputs
        ]
        one = object()
        self._single = len(outputs) == 1
        self._as_is = self._places == [(0, None)] and pytree.tree_unflatten([one], program.out_spec) is one
        self.count = len(leaves)
        self._asks_layout = program.asks is not None and program.asks.layout
        self._asks_identity = program.asks is not None and program.asks.identity
        if self._asks_layout and not all(map(is_plain, leaves)):
            raise ImportFailure(
                f"{self._name} cannot be imported: {_LAYOUT}; give an example of such tensors"
            )
        self.asks = self._asks_layout or self._asks_identity
        """Whether calls have to bring tensors of which the forward is told what it was told of the example's."""
        self.is_plain = self.flat and self._as_is and not self.asks
        """Whether a call by position is one of the plan, and its result the module's."""

    @classmethod
    def of_exported(cls, program: TorchProgram, exported: ExportedProgram) -> ModuleCall:
        """How a program that torch.export made before is called: as the module was."""
        specs = [spec for spec in exported.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
        leaves = [
            spec.arg.value if isinstance(spec.arg, ConstantArgument) else torch.empty(0) for spec in specs
        ]
        args, kwargs = pytree.tree_unflatten(leaves, program.in_spec)
        return cls(program, args, kwargs)

    def inputs(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The inputs of the graph.

        Raises PlanError for arguments of another structure, other fixed values, or of which the forward would be told
        something else.
        """
        if self.flat and not kwargs and len(args) == len(self._takes):
            self._check_asked(args)
            return args
        taken = self._taken
        if taken is not None and (len(args) != taken.count or kwargs.keys() != self._names):
            args, kwargs = taken.arranged(args, kwargs)
        if kwargs.keys() == self._names:
            if (given := [name for name in kwargs if name in self._in_order]) != self._in_order:
                raise PlanError(
                    f"graph {self._name} was traced with {', '.join(self._in_order)} in this order, which its forward "
                    f"takes by `**` and may tell from another; called with {', '.join(given)}"
                )
            kwargs = {name: kwargs[name] for name in self._named}
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._spec:
            raise PlanError(f"graph {self._name} was traced with arguments {self._spec}, called with {spec}")
        for place, name, value in self._fixed:
            given = leaves[place]
            if given is not value and (type(given) is not type(value) or given != value):
                raise PlanError(
                    f"graph {self._name}: the argument {name!r} was {value!r} when the module was traced, and is part "
                    f"of the graph; called with {given!r}: compile it with that"
                )
        self._check_asked(leaves)
        return tuple([leaf for leaf, taken in zip(leaves, self._takes, strict=True) if taken])

    def _check_asked(self, leaves: Sequence[object]) -> None:
        if self._asks_layout and not all(map(is_plain, leaves)):
            raise PlanError(f"graph {self._name}: {_LAYOUT}; give such, or call the module itself")
        if self._asks_identity and not are_apart(leaves):
            raise PlanError(
                f"graph {self._name}: its forward asks whether things are the same object, and is given a tensor twice "
                "or a parameter; give a copy, or call the module itself"
            )

    def result(self, found: Any) -> Any:
        """What the module returns, of what a plan does: an output, or a tuple of them."""
        if self._as_is:
            return found
        results = (found,) if self._single else found
        listed = [value if place is None else results[place] for place, value in self._places]
        return pytree.tree_unflatten(listed, self._program.out_spec)


class _Taken:
    """How a forward took the arguments of an example: the first `count` by position, others by name."""

    def __init__(self, signature: inspect.Signature, count: int, named: tuple[str, ...]) -> None:
        self.count = count
        self._signature, self._named = signature, named
        parameters = signature.parameters
        self._positional = [name for name, one in parameters.items() if one.kind in _BY_POSITION][:count]
        self._rest = next((name for name, one in parameters.items() if one.kind is _KEYWORDS), None)
        self.together = [] if self._rest is None else [name for name in named if name not in parameters]
        """The names that it took by `**`, of which it sees the order."""

    def arranged(
        self, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[object, ...], dict[str, Any]]:
        """Arguments as the example gave them, by position or by name; as they are where they are not the same ones.

        What one gives and the other leaves out is the same where it is the default.
        """
        wanted = [*self._positional, *self._named]
        try:
            given = dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError:
            return args, kwargs
        given |= given.pop(self._rest, {}) if self._rest is not None else {}
        defaults = {name: one.default for name, one in self._signature.parameters.items()}
        given = {
            name: value for name, value in given.items() if name in wanted or value is not defaults.get(name)
        }
        for name in wanted:
            if defaults.get(name, _NONE) is not _NONE:
                given.setdefault(name, defaults[name])
        if len(self._positional) != self.count or given.keys() != set(wanted):
            return args, kwargs
        by_name = [name for name in given if name in self.together]  # in the order of the call
        named = [*(name for name in self._named if name not in by_name), *by_name]
        return tuple(given[name] for name in self._positional), {name: given[name] for name in named}


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_KEYWORDS, _NONE = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.empty
