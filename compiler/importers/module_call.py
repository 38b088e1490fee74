"""Calls as a module takes them: its arguments become the inputs of the graph, the outputs what the module returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import ConstantArgument
from torch.utils import _pytree as pytree

from kernels_hub.compiler.errors import PlanError

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from kernels_hub.compiler.importers.torch_export import TorchProgram


class ModuleCall:
    """How a module that was traced on `args` and `kwargs` is called.

    Arguments that are no tensors are part of the graph: each call has to bring the same.
    """

    def __init__(self, program: TorchProgram, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        self._program, self._name = program, program.graph.name
        leaves, self._spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        self._named = tuple(kwargs)
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
        self.is_plain = self.flat and self._as_is
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
        """The inputs of the graph. Raises PlanError for arguments of another structure, or other fixed values."""
        if self.flat and not kwargs and len(args) == len(self._takes):
            return args
        if kwargs.keys() == set(self._named):
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
        return tuple([leaf for leaf, taken in zip(leaves, self._takes, strict=True) if taken])

    def result(self, found: Any) -> Any:
        """What the module returns, of what a plan does: an output, or a tuple of them."""
        if self._as_is:
            return found
        results = (found,) if self._single else found
        listed = [value if place is None else results[place] for place, value in self._places]
        return pytree.tree_unflatten(listed, self._program.out_spec)
