"""`import_torch`: traces a module with torch.export and brings the program into the IR.

    graph = import_torch(module, (x,))
    graph = import_torch(model, (), {"input_ids": ids}, dynamic_shapes={"input_ids": {0: Dim("batch")}})

Each op is built by its handler in `aten_ops`. Where one has none, or writes to memory that others may see, the program
is decomposed first, to core ATen and what has a form of its own here (`KEPT`). Parameters and buffers are parameters
of the graph under their names, views of the module's memory. Inputs are named by argument and pytree path
("past.0.key"), outputs likewise. Dynamic dims are symbols with the range that torch.export found; sizes computed from
them need no ops at all. Complex tensors are pairs of real ones, but for inputs, weights and outputs. `torch.cond` and
`torch.while_loop` are ops with regions.

Where a gradient ends (detach, no_grad, the padding row of an embedding) is an op of the graph, `stop_gradient`; so is,
with the reason, where it cannot be told (a torch.autograd.Function, a hook, a write behind autograd's back):
`differentiate` keeps to these, and compiling leaves them out. A program traced with strict=True tells nothing of it.

Everything that is not supported is listed at once, in one ImportFailure. Nothing of torch is imported before
a module is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.importers.decided_sizes import decided
from kernels_hub.compiler.importers.exporting_answers import not_exporting
from kernels_hub.compiler.importers.torch_aliases import Shared, shared_results
from kernels_hub.compiler.importers.torch_direct import writes
from kernels_hub.compiler.importers.torch_importer import Importer, Mutations, Notes
from kernels_hub.compiler.importers.torch_program import TorchProgram, output_names
from kernels_hub.compiler.importers.torch_sizes import input_symbols
from kernels_hub.compiler.importers.torch_trace import decomposed, paths_of, trace
from kernels_hub.compiler.ir.graph import Graph

if TYPE_CHECKING:
    import torch


def import_torch(
    module: torch.nn.Module,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    dynamic_shapes: object = None,
    strict: bool = False,
    mutations: Mutations = "refuse",
    name: str | None = None,
) -> Graph:
    """The graph of a module's forward on such arguments.

    module: in the mode (train, eval) that it is to run in; it is not changed. args, kwargs: examples, which give
    dtypes, shapes, and the values of everything that is no tensor. dynamic_shapes, strict: as torch.export takes
    them. mutations: what to do of buffers and inputs that a call changes: refuse, or return their new values as
    further outputs ("mutated.<name>").

    Raises ImportFailure with every op that is not supported, or with why torch.export cannot trace the module.

    >>> graph = import_torch(nn.Linear(4, 2), (torch.ones(3, 4),))
    >>> [str(of) for of in graph.signature()[1]]
    ['float32[3, 2]']
    """
    return import_torch_program(
        module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=strict, mutations=mutations, name=name
    ).graph


def import_torch_program(
    module: torch.nn.Module,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    dynamic_shapes: object = None,
    strict: bool = False,
    mutations: Mutations = "refuse",
    name: str | None = None,
    assertions: bool = False,
    may_fix: bool = False,
    complex_in_pairs: bool = False,
) -> TorchProgram:
    """As `import_torch`, with how arguments and results map to the graph's inputs and outputs.

    assertions: the caller looks at the output of that name, see `data_assertions`; where not, a program with any is
    refused. may_fix: a size that is free and has no name may be that of the example alone, see `Sizes.guard`.
    complex_in_pairs: see `Importer`.
    """
    traced = partial(
        _program,
        module,
        args,
        kwargs or {},
        dynamic_shapes=dynamic_shapes,
        strict=strict,
        mutations=mutations,
        name=name,
        assertions=assertions,
        may_fix=may_fix,
        complex_in_pairs=complex_in_pairs,
    )
    if strict:  # Dynamo answers what the forward asks
        return traced()
    with not_exporting() as answers:
        try:
            return traced()
        except ImportFailure:
            if not answers.as_in_eager:
                raise
    return traced()


def _program(
    module: torch.nn.Module,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    dynamic_shapes: object,
    strict: bool,
    mutations: Mutations,
    name: str | None,
    assertions: bool,
    may_fix: bool,
    complex_in_pairs: bool,
) -> TorchProgram:
    title = name or type(module).__name__
    with decided() as asked:
        program, asks = trace(module, tuple(args), dict(kwargs), dynamic_shapes, strict=strict)
    notes = Notes.of(module, program, strict=strict)
    paths = paths_of(module, args, kwargs)
    names = input_symbols(module, args, kwargs, dynamic_shapes)
    shared = _shared(program, paths)
    written = writes(program)
    options: dict[str, Any] = {
        "shared": shared, "tells_assertions": assertions, "may_fix": may_fix, "complex_in_pairs": complex_in_pairs,
        "layout_is_compared": assertions and asks.layout,
    }  # fmt: skip
    if written is not None:
        with suppress(ImportFailure):  # what is refused is told of the decomposed program
            direct = Importer(Graph(title), program, mutations, notes, written, **options)
            return replace(direct.run(paths, names, asked), asks=asks)
    importer = Importer(Graph(title), decomposed(program, type(module).__name__), mutations, notes, **options)
    return replace(importer.run(paths, names, asked), asks=asks)


def _shared(program: torch.export.ExportedProgram, paths: Sequence[str]) -> Shared:
    from torch.utils import _pytree as pytree

    users = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    count = sum(spec.kind.name == "USER_OUTPUT" for spec in program.graph_signature.output_specs)
    tree = pytree.tree_unflatten(list(range(count)), program.call_spec.out_spec)
    names = output_names(pytree.tree_flatten_with_path(tree)[0])
    return shared_results(program, dict(zip(users, paths, strict=True)), names)


def import_exported(
    program: torch.export.ExportedProgram, *, mutations: Mutations = "refuse", name: str = "exported"
) -> TorchProgram:
    """A program that torch.export made before. Inputs and sizes have the names that it has for them (x, s0).

    What the module says to autograd it does not tell, so its graph cannot be differentiated. Raises ImportFailure with
    every op that is not supported.
    """
    reason = "it was exported before, which does not tell what the module says to autograd"
    kinds = {spec.arg.name: spec.kind.name for spec in program.graph_signature.input_specs}
    placeholders = program.graph.find_nodes(op="placeholder")
    paths = [node.name for node in placeholders if kinds[node.name] == "USER_INPUT"]
    notes, written = Notes({}, reason), writes(program)
    if written is not None:
        with suppress(ImportFailure):  # what is refused is told of the decomposed program
            return Importer(Graph(name), program, mutations, notes, written).run(paths, {})
    simple = decomposed(program, "the exported program")
    return Importer(Graph(name), simple, mutations, notes).run(paths, {})
