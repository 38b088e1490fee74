"""A program that torch.export made before becomes the source of a layer that stands alone, with its weights."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch.export.graph_signature import ConstantArgument
from torch.utils import _pytree as pytree

from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.export.peer import Peer
from kernels_hub.compiler.export.results import result_tree
from kernels_hub.compiler.export.source import Source, identifiers
from kernels_hub.compiler.importers.torch_export import import_exported
from kernels_hub.compiler.importers.torch_program import TorchProgram
from kernels_hub.compiler.runtime.parts import Tensor

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def from_exported(exported: ExportedProgram, name: str) -> Source:
    """The source of a layer that is called as the module was. Raises ImportFailure with all that cannot be imported."""
    program = import_exported(exported, name=name)
    graph = program.graph
    if not graph.outputs:
        raise ImportFailure("it computes nothing: its result is what it is given")
    places = {path: Tensor(index) for index, path in enumerate(graph.inputs)}
    args, kwargs = pytree.tree_unflatten(_leaves(exported, program, places), program.in_spec)
    names = _names(exported, len(args), kwargs)
    kinds = inspect.Parameter
    parameters = [kinds(one, kinds.POSITIONAL_OR_KEYWORD) for one in names]
    parameters += [kinds(one, kinds.KEYWORD_ONLY) for one in kwargs]
    given = zip((*names, *kwargs), (*args, *kwargs.values()), strict=True)
    outputs = {output: Tensor(index) for index, output in enumerate(graph.outputs)}
    made = [outputs[one] if kind == "output" else one for kind, one in program.outputs]
    arrays = dict(graph.weights)
    graph.weights.clear()
    arguments = {argument: _argument_tree(value, argument) for argument, value in given}
    result = result_tree(pytree.tree_unflatten(made, program.out_spec))
    source = Source(graph, inspect.Signature(parameters), arguments, result, arrays=arrays)
    return dataclasses.replace(source, peer=_peer(exported, program, source))


def _leaves(exported: ExportedProgram, program: TorchProgram, places: Mapping[str, Tensor]) -> list[object]:
    specs = [spec for spec in exported.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    return [
        spec.arg.value if isinstance(spec.arg, ConstantArgument) else places[path]
        for spec, path in zip(specs, program.inputs, strict=True)
    ]


def _names(exported: ExportedProgram, count: int, kwargs: Mapping[str, object]) -> list[str]:
    """Of the arguments that are given by position."""
    signature = exported.module_call_graph[0].signature
    known = list((signature.forward_arg_names if signature else None) or ())[:count]
    names = identifiers([*kwargs, *known, *(f"argument_{index}" for index in range(len(known), count))])
    return names[len(kwargs) :]


def _argument_tree(value: object, path: str) -> object:
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        made = [_argument_tree(one, f"{path}.{index}") for index, one in enumerate(value)]
        return made if isinstance(value, list) else tuple(made)
    if isinstance(value, dict) and type(value) is dict:
        return {key: _argument_tree(one, f"{path}.{key}") for key, one in value.items()}
    if isinstance(value, (Tensor, bool, int, float, str, type(None))):
        return value
    raise ImportFailure(
        f"argument {path} is a {type(value).__name__}; a layer is compiled of an exported program that takes tensors, "
        "literals, tuples, lists and dicts"
    )


def _peer(exported: ExportedProgram, program: TorchProgram, source: Source) -> Peer:
    """PyTorch's own run of the program."""
    module = exported.module()
    names = [name for kind, name in program.outputs if kind == "output"]
    kinds = [kind for kind, _ in program.outputs]

    def call(given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        args, kwargs = source.call_of(given)
        with torch.no_grad():
            leaves = pytree.tree_leaves(module(*args, **kwargs), is_leaf=lambda one: one is None)
        found = [leaf for leaf, kind in zip(leaves, kinds, strict=True) if kind == "output"]
        by_name = dict(zip(names, found, strict=True))
        return [by_name[name] for name in program.graph.outputs]

    return Peer("the exported program", call)
