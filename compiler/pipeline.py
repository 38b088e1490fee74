"""`compile`: a graph, an ONNX file or a module in, something to call out.

    run = compile(graph)                               on the best device there is
    run = compile("model.onnx", "cpu", dims={"batch": 8})
    run = compile("model.onnx", shapes={"image": (1, 3, 640, 640)}, values={"rate": 16000})
    run = compile((module, (x,)), "cuda")
    run = compile("model.pt2")                         a program that torch.export.save wrote
    y = run(x)                                         torch tensors, NumPy arrays, DLPack
    run.save("model.khplan"); load_executable("model.khplan")

The graph is rewritten, divided among engines (`selection`), and compiled. Where the preferred engines take symbolic
sizes there is one plan for all shapes; else there is one for each set of shapes, made when they first come, and the
newest few are kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from kernels_hub.compiler.bounded import BoundedExecutable
from kernels_hub.compiler.engines.devices import find_device
from kernels_hub.compiler.engines.engine import Device, KnobValue, Note
from kernels_hub.compiler.engines.registry import name_of
from kernels_hub.compiler.errors import (
    CompilerError,
    DimError,
    ImportFailure,
    ShapeError,
)
from kernels_hub.compiler.executable import Executable
from kernels_hub.compiler.importers.module_call import ModuleCall
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.transform import bind
from kernels_hub.compiler.ir.uncollected import uncollected
from kernels_hub.compiler.opened import entries, opened_file
from kernels_hub.compiler.plan.benchmarks import benchmark
from kernels_hub.compiler.plan.followed_weights import Followed, frozen
from kernels_hub.compiler.plan.heuristics import Heuristic
from kernels_hub.compiler.plan.selection import (
    Filter,
)
from kernels_hub.compiler.reopened import OpenedExecutable, keep_plans
from kernels_hub.compiler.settings import Settings

if TYPE_CHECKING:
    from kernels_hub.compiler.importers.onnx_file import OnnxSource
    from kernels_hub.compiler.importers.onnx_inputs import Shapes, Size


def compile(  # noqa: A001  (the verb that everybody looks for)
    source: Any,
    device: str | Device | torch.device = "best",
    *,
    engines: Sequence[str | int] | str | None = None,
    exclude_engines: Iterable[str | int] = (),
    exclude_notes: Iterable[Note] = (),
    knobs: Mapping[str | int, Mapping[str, KnobValue]] | None = None,
    workspace_limit: int | None = None,
    isolated: bool = False,
    heuristic: Heuristic | str = "default",
    rewrite: bool = True,
    dims: Any = None,
    shapes: Shapes | None = None,
    values: Mapping[str, object] | None = None,
    max_shapes: int = 8,
    cache: str | os.PathLike[str] | None = None,
    weights: Literal["frozen", "followed"] = "frozen",
    wait: bool | None = None,
) -> Executable:
    """Something to call that computes the outputs of `source`.

    source: a Graph; an ONNX file (path, bytes or ModelProto); (module, args) or (module, args, kwargs), traced by
    torch.export; or a program that torch.export made before, as it is or the path of its file (.pt2), which is read
    as data: nothing in it runs. device: "best", "cpu", "cuda:0" … engines: names or
    ids (`engine_id`) of those that may be used, all by default; exclude_engines: of those that may not.
    exclude_notes: nothing that an engine says this of. knobs: engine -> {knob: value}, of those that
    `check_support` lists. workspace_limit: bytes of scratch memory that a call may take; an engine that wants more
    is left out. isolated: plugins run in child processes at every call, so that one that crashes or hangs costs the
    call and nothing else. heuristic: "default", "benchmark" (measure what applies, keep the fastest), a plugin's
    name, or a function. rewrite: simplify and fuse first.
    dims: sizes of symbols (ONNX: of named axes; a module: `dynamic_shapes`, as torch.export takes them).
    shapes, values: of inputs of an ONNX file, as `import_onnx` takes them; an input with a value is none of the result.
    max_shapes: where plans are made for each set of shapes, how many are kept. cache: folder in which "benchmark"
    remembers what was fastest; by default, in that of KERNELS_HUB_CACHE.

    weights: "frozen" takes a copy of the weights as they are now; whatever is written to them later has no effect, on
    any engine and for shapes that are compiled later, too. That is the default, as for ONNX files and what `save`
    writes: the result is a function of its inputs, outlives its source, and compares nothing at its calls. "followed",
    of a module, computes with the weights that the module has at each call, and is made again where they are others:
    at once where PyTorch counts the change, within 16 calls or 2 s of calls, whichever is later, where it does not
    (`weight.data[5] = 3.0`), at once after `refresh()`. See docs/weights.md.

    wait: False returns as soon as anything runs. Engines that need no compiler serve calls while the plan that was
    asked for is built in a thread, and it takes over when it is there (`Executable.wait`); results may then differ in
    their last bits. `profile` and `save` wait for it. Where no such engine takes the graph, and with weights that are
    followed, it is waited for. None is False for ONNX files, which open at once, where all engines may be used and
    nothing is measured (`heuristic`) or limited (`workspace_limit`); else it is True.

    What a call returns is new memory, also where the module returns an argument or a view. No gradient flows through.

    A forward that asks its arguments for more than what they hold (strides, `requires_grad`, whether two are the same)
    was answered of the example's; calls of which it would be answered otherwise raise PlanError.

    Raises ImportFailure for what cannot be imported, EngineError with every engine's reason where none takes it.

    >>> gelu = compile((nn.GELU(), (torch.ones(1, 4),)), "cpu", engines=["library"])
    >>> gelu(torch.zeros(1, 4))
    tensor([[0., 0., 0., 0.]])
    """
    if weights not in ("frozen", "followed"):
        raise CompilerError(f'weights is "frozen" or "followed", not {weights!r}')
    if knobs and benchmark(heuristic) is not None:
        raise CompilerError(f"heuristic={heuristic!r} tries the knobs itself: give these, or that")
    listed = (engines,) if isinstance(engines, (str, int)) else engines
    only = Filter(
        None if listed is None else tuple(map(name_of, listed)),
        frozenset(exclude_notes),
        workspace_limit,
        frozenset(map(name_of, exclude_engines)),
        {name_of(engine): dict(values) for engine, values in (knobs or {}).items()},
        isolated,
    )
    source = _of_file(source)
    if wait is None:
        free = listed is None and workspace_limit is None and benchmark(heuristic) is None
        wait = not (_is_onnx(source) and free)
    wait = wait or weights == "followed"
    settings = Settings(find_device(device), only, heuristic, max_shapes, cache, wait)
    _begin(source, settings)
    if _is_onnx(source):
        if weights == "followed":
            raise CompilerError(_FOLLOWED.format(type(source).__name__))
        return _OnnxRequest(source, settings, dims, shapes, values, rewrite).executable()
    if shapes or values:
        option = "shapes" if shapes else "values"
        raise CompilerError(
            f"{option} are of an ONNX file's inputs; {type(source).__name__} takes dims alone"
        )
    graph, module = _imported(source, dims, settings.device)
    followed = None
    if weights == "followed":
        if module is None or not isinstance(source, tuple):
            raise CompilerError(_FOLLOWED.format(type(source).__name__))
        followed = Followed(source[0], graph, lambda: _imported(source, dims, settings.device)[0])
        graph = followed.graph()
    else:
        graph = frozen(graph)
    return Executable.of(graph, settings, module, followed, rewrite=rewrite)


def _of_file(source: object) -> object:
    """A program that torch.export.save wrote, read from its path; anything else as it is."""
    if not isinstance(source, (str, os.PathLike)):
        return source
    from kernels_hub.compiler.importers.torch_archive import is_torch_archive

    path = Path(source)
    if not is_torch_archive(path):
        return source
    from kernels_hub.compiler.importers.torch_file import read_program

    return read_program(path)


def _is_onnx(source: Any) -> bool:
    return isinstance(source, (str, os.PathLike, bytes)) or hasattr(source, "SerializeToString")


@dataclass(frozen=True)
class _OnnxRequest:
    """An ONNX file, and how it is to be compiled."""

    source: OnnxSource
    settings: Settings
    dims: Mapping[str, Size] | None
    shapes: Shapes | None
    values: Mapping[str, object] | None
    rewrite: bool

    def executable(self) -> Executable:
        """As an earlier process compiled it, or compiled now."""
        with uncollected():
            return self._executable()

    def _executable(self) -> Executable:
        opened = opened_file(
            self.source, self.settings, self.dims, self.shapes, self.values, rewrite=self.rewrite
        )
        if opened is None:
            return self._compiled()
        if kept := entries(opened):
            return OpenedExecutable(opened, kept, self.settings, lambda: keep_plans(opened, self._compiled()))
        return keep_plans(opened, self._compiled())

    def _compiled(self) -> Executable:
        """For all calls, or where that cannot be, for what calls bring."""
        from kernels_hub.compiler.importers.onnx import import_onnx
        from kernels_hub.compiler.importers.onnx_file import read_onnx

        source = self.source
        try:
            source = read_onnx(source)
            graph = import_onnx(source, dims=self.dims, shapes=self.shapes, values=self.values, by_value=True)
            run = BoundedExecutable.of(graph, self.settings, rewrite=self.rewrite)
        except (ImportFailure, ShapeError, DimError) as error:
            from kernels_hub.compiler.importers.onnx_variants import OnnxVariants
            from kernels_hub.compiler.specialised import specialised

            try:
                variants = OnnxVariants(source, self.dims, self.shapes, self.values)
            except CompilerError:  # inputs that are no tensors
                raise error from None
            return specialised(variants, self.settings, error, rewrite=self.rewrite)
        if isinstance(run, BoundedExecutable):
            run.beyond = self._specialised
        return run

    def _specialised(self) -> Executable:
        """For what calls bring. Raises CompilerError for inputs that are no tensors, OSError for a missing file."""
        from kernels_hub.compiler.importers.onnx_variants import OnnxVariants
        from kernels_hub.compiler.specialised import SpecialisedExecutable

        variants = OnnxVariants(self.source, self.dims, self.shapes, self.values)
        return SpecialisedExecutable(variants, self.settings, rewrite=self.rewrite)


_FOLLOWED = 'weights="followed" needs a module, as in compile((module, args)): weights of a {} are frozen'


def _begin(source: Any, settings: Settings) -> None:
    """Start what takes long, and needs no graph."""
    only, is_module = settings.only, isinstance(source, tuple) and source
    if not is_module or not isinstance(source[0], torch.nn.Module) or settings.device.type != "cpu":
        return
    if (only.engines is None or "cpp" in only.engines) and Note.NEEDS_COMPILER not in only.exclude_notes:
        from kernels_hub.compiler.engines.cpp import begin_for

        begin_for(source[0])


def _imported(source: Any, dims: Any, device: Device) -> tuple[Graph, ModuleCall | None]:
    if isinstance(source, Graph):
        unknown = [name for name in dims or () if name not in source.symbols]
        if unknown:
            known = ", ".join(source.symbols) or "none"
            raise DimError(f"graph {source.name} has no symbols {', '.join(unknown)}; it has {known}")
        return (bind(source, dims) if dims else source), None
    if isinstance(source, tuple) and source and isinstance(source[0], torch.nn.Module):
        from kernels_hub.compiler.importers.padded_encoders import encoders_without_gradients
        from kernels_hub.compiler.importers.recurrent_calls import recurrent_layers_whole
        from kernels_hub.compiler.importers.torch_export import import_torch_program

        module, *rest = source
        args = rest[0] if rest else ()
        kwargs = rest[1] if len(rest) > 1 else {}
        with recurrent_layers_whole(device.type == "cpu"), encoders_without_gradients():
            program = import_torch_program(module, args, kwargs, dynamic_shapes=dims)
        return program.graph, ModuleCall(program, args, kwargs, module.forward)
    if isinstance(source, torch.export.ExportedProgram):
        from kernels_hub.compiler.importers.torch_export import import_exported

        if dims:
            raise CompilerError(
                "an exported program has the sizes that it was exported with; give dims to torch.export.export, "
                "as dynamic_shapes"
            )
        program = import_exported(source)
        return program.graph, ModuleCall.of_exported(program, source)
    if isinstance(source, torch.nn.Module):
        raise CompilerError(f"{type(source).__name__} needs example arguments: give (module, args)")
    raise CompilerError(
        "compile takes a Graph, an ONNX file, (module, args), an exported program or its file, not a "
        f"{type(source).__name__}"
    )
