"""`compile`: a graph, an ONNX file or a module in, something to call out.

    run = compile(graph)                               on the best device there is
    run = compile("model.onnx", "cpu", dims={"batch": 8})
    run = compile((module, (x,)), "cuda")
    y = run(x)                                         torch tensors, NumPy arrays, DLPack
    run.save("model.khplan"); load_executable("model.khplan")

The graph is rewritten, divided among engines (`selection`), and compiled. Where the preferred engines take symbolic
sizes there is one plan for all shapes; else there is one for each set of shapes, made when they first come, and the
newest few are kept.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Literal

import torch

from kernels_hub.compiler import traced
from kernels_hub.compiler.arguments import array_of, is_array
from kernels_hub.compiler.binding import bind_shapes
from kernels_hub.compiler.container import AGAIN, Bytes, read_container, write_container
from kernels_hub.compiler.devices import find_device
from kernels_hub.compiler.engines.engine import Device, Note, Outcome, Signature
from kernels_hub.compiler.errors import CompilerError, DimError, EngineError, PlanError
from kernels_hub.compiler.followed import Followed, frozen
from kernels_hub.compiler.heuristics import Heuristic, middling
from kernels_hub.compiler.ir.dims import dim_symbols
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.transform import bind
from kernels_hub.compiler.ir.types import Array
from kernels_hub.compiler.module_call import ModuleCall
from kernels_hub.compiler.plan import Plan
from kernels_hub.compiler.plan_file import MadeHeader, check_made, plan_in, read_bytes, versions
from kernels_hub.compiler.program import SegmentError
from kernels_hub.compiler.selection import (
    LOGGER,
    Candidate,
    Filter,
    choose,
    create_plans,
    report_failure,
    signature_of,
)
from kernels_hub.compiler.tuning import benchmark, tune
from kernels_hub.compiler.tuning_database import TuningDatabase

if TYPE_CHECKING:
    from kernels_hub.compiler.profiling import Profile
    from kernels_hub.compiler.rates import Rates


@dataclass(frozen=True)
class Settings:
    """What `compile` was asked for. max_shapes: how many specialised plans are kept. cache: where tuning is kept."""

    device: Device
    only: Filter = field(default_factory=Filter)
    rank: Heuristic | str = "default"
    max_shapes: int = 8
    cache: str | os.PathLike[str] | None = None


def compile(  # noqa: A001  (the verb that everybody looks for)
    source: Any,
    device: str | Device | torch.device = "best",
    *,
    engines: Sequence[str] | None = None,
    exclude_notes: Iterable[Note] = (),
    workspace_limit: int | None = None,
    heuristic: Heuristic | str = "default",
    rewrite: bool = True,
    dims: Any = None,
    max_shapes: int = 8,
    cache: str | os.PathLike[str] | None = None,
    weights: Literal["frozen", "followed"] = "frozen",
) -> Executable:
    """Something to call that computes the outputs of `source`.

    source: a Graph; an ONNX file (path, bytes or ModelProto); or (module, args) or (module, args, kwargs), traced by
    torch.export. device: "best", "cpu", "cuda:0" … engines: names of those that may be used, all by default.
    exclude_notes: nothing that an engine says this of. workspace_limit: bytes. heuristic: "default", "benchmark"
    (measure what applies, keep the fastest), a plugin's name, or a function. rewrite: simplify and fuse first.
    dims: sizes of symbols (ONNX: of named axes; a module: `dynamic_shapes`, as torch.export takes them).
    max_shapes: where plans are made for each set of shapes, how many are kept. cache: folder in which "benchmark"
    remembers what was fastest; by default, in that of KERNELS_HUB_CACHE.

    weights: "frozen" takes a copy of the weights as they are now; whatever is written to them later has no effect, on
    any engine and for shapes that are compiled later, too. That is the default, as for ONNX files and what `save`
    writes: the result is a function of its inputs, outlives its source, and compares nothing at its calls. "followed",
    of a module, computes with the weights that the module has at each call, and is made again where they are others:
    at once where PyTorch counts the change, within 16 calls or 2 s of calls, whichever is later, where it does not
    (`weight.data[5] = 3.0`), at once after `refresh()`. See docs/weights.md.

    Raises ImportFailure for what cannot be imported, EngineError with every engine's reason where none takes it.
    """
    if weights not in ("frozen", "followed"):
        raise CompilerError(f'weights is "frozen" or "followed", not {weights!r}')
    names = None if engines is None else (engines,) if isinstance(engines, str) else tuple(engines)
    only = Filter(names, frozenset(exclude_notes), workspace_limit)
    settings = Settings(find_device(device), only, heuristic, max_shapes, cache)
    _begin(source, settings)
    graph, module = _imported(source, dims)
    followed = None
    if weights == "followed":
        if module is None:
            raise CompilerError(
                'weights="followed" needs a module, as in compile((module, args)): weights of a '
                f"{type(source).__name__} are frozen"
            )
        followed = Followed(source[0], graph, lambda: _imported(source, dims)[0])
        graph = followed.graph()
    elif module is not None or isinstance(source, Graph):  # those of a file do not change
        graph = frozen(graph)
    return Executable.of(graph, settings, module, followed, rewrite=rewrite)


def _simplified(graph: Graph) -> Graph:
    from kernels_hub.compiler.rewrite.pipeline import rewrite

    return rewrite(graph).graph


def _begin(source: Any, settings: Settings) -> None:
    """Start what takes long, and needs no graph."""
    only, is_module = settings.only, isinstance(source, tuple) and source
    if not is_module or not isinstance(source[0], torch.nn.Module) or settings.device.type != "cpu":
        return
    if (only.engines is None or "cpp" in only.engines) and Note.NEEDS_COMPILER not in only.exclude_notes:
        from kernels_hub.compiler.engines.cpp import begin_for

        begin_for(source[0])


def _imported(source: Any, dims: Any) -> tuple[Graph, ModuleCall | None]:
    if isinstance(source, Graph):
        unknown = [name for name in dims or () if name not in source.symbols]
        if unknown:
            known = ", ".join(source.symbols) or "none"
            raise DimError(f"graph {source.name} has no symbols {', '.join(unknown)}; it has {known}")
        return (bind(source, dims) if dims else source), None
    if isinstance(source, tuple) and source and isinstance(source[0], torch.nn.Module):
        from kernels_hub.compiler.importers.torch_export import import_torch_program

        module, *rest = source
        args = rest[0] if rest else ()
        kwargs = rest[1] if len(rest) > 1 else {}
        program = import_torch_program(module, args, kwargs, dynamic_shapes=dims)
        return program.graph, ModuleCall(program, args, kwargs)
    if isinstance(source, torch.nn.Module):
        raise CompilerError(f"{type(source).__name__} needs example arguments: give (module, args)")
    if isinstance(source, (str, os.PathLike, bytes)) or hasattr(source, "SerializeToString"):
        from kernels_hub.compiler.importers.onnx import import_onnx

        return import_onnx(source, dims=dims), None
    raise CompilerError(
        f"compile takes a Graph, an ONNX file, or (module, args), not {type(source).__name__}"
    )


class Executable:
    """What `compile` gives. Call it with inputs in order or by name; the arguments of the module, if it was one.

    plan: of the last call, or the only one. candidates: what became of each engine. evicted: how many plans for
    shapes were dropped again. Safe to be called by several threads.
    """

    def __init__(
        self,
        signature: Signature,
        settings: Settings,
        graph: Graph | None,
        module: ModuleCall | None = None,
        followed: Followed | None = None,
        *,
        rewrite: bool = True,
    ) -> None:
        self._followed, self._rewrite = followed, rewrite
        self.signature, self.settings, self.graph = signature, settings, graph
        self.name = graph.name if graph is not None else ""
        self.candidates: list[Outcome] = []
        self.evicted = 0
        self._module = module
        self._without: set[str] = set()
        self._plan: Plan | None = None
        """The one for all shapes."""
        self._plans: OrderedDict[tuple[tuple[int, ...], ...], Plan] = OrderedDict()
        """Those for one set of shapes each."""
        self._last: Plan | None = None
        self._lock = threading.RLock()
        self._number = traced.enter(self)

    @classmethod
    def of(
        cls,
        graph: Graph,
        settings: Settings,
        module: ModuleCall | None = None,
        followed: Followed | None = None,
        *,
        rewrite: bool = False,
    ) -> Executable:
        """Of a graph. Raises EngineError where no engine takes it."""
        graph = _simplified(graph) if rewrite else graph
        made = cls(signature_of(graph), settings, graph, module, followed, rewrite=rewrite)
        if not made._specialises(graph):
            made._plan = made._choose(graph)
        return made

    def __repr__(self) -> str:
        return f"<Executable {self.name}: {self._plan or f'{len(self._plans)} plans, one a set of shapes'}>"

    @property
    def plan(self) -> Plan:
        """The plan that runs, or that ran last. Raises PlanError where none was made yet: shapes have to come first."""
        found = self._plan or self._last
        if found is None:
            raise PlanError(f"graph {self.name} is compiled for each set of shapes; call it first")
        return found

    @property
    def plans(self) -> Mapping[tuple[tuple[int, ...], ...], Plan]:
        """Shapes of the inputs -> the plan made for them; empty where one plan serves all."""
        return dict(self._plans)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The output, a tuple of the outputs, or what the module returns. Raises as `Plan.execute` does."""
        module = self._module
        if module is None:
            return self._run(self._merge(inputs, named) if named else inputs)
        if module.is_plain and not named and len(inputs) == module.count:
            return self._run(inputs)
        return module.result(self._run(module.inputs(inputs, named)))

    def _run(self, inputs: tuple[Any, ...]) -> Any:
        if torch.compiler.is_compiling():
            results = traced.run(self._number, inputs)
            return results[0] if len(results) == 1 else tuple(results)
        followed = self._followed
        if followed is None:
            return self._run_plan(inputs)
        self._follow()
        begin = perf_counter_ns()
        results = self._run_plan(inputs)
        followed.took(perf_counter_ns() - begin)
        return results

    def _run_plan(self, inputs: tuple[Any, ...]) -> Any:
        plan = self._plan
        if plan is None:
            plan = self._plan_for(inputs)
        try:
            return plan(*inputs)
        except SegmentError as error:
            return self._again(error, plan, inputs)

    def execute(self, inputs: Mapping[str, Any] | Sequence[Any], **more: Any) -> dict[str, Any]:
        """The outputs by name: see `Plan.execute`. Inputs are those of the graph, also where it was a module."""
        if isinstance(inputs, Mapping):
            inputs = self._merge((), dict(inputs))
        self._follow()
        begin = perf_counter_ns()
        plan = self._plan or self._plan_for(inputs)
        try:
            results = plan.execute(inputs, **more)
        except SegmentError as error:
            self._again(error, plan, inputs)
            results = (self._plan or self._plan_for(inputs)).execute(inputs, **more)
        if self._followed is not None:
            self._followed.took(perf_counter_ns() - begin)
        return results

    def refresh(self) -> None:
        """Of one that follows its module: compare all weights now, and take those that are there."""
        self._follow(whole=True)

    def _follow(self, *, whole: bool = False) -> None:
        """Be made again where weights that are followed are others."""
        followed = self._followed
        if followed is None or followed.holds(whole=whole):
            return
        with self._lock:
            graph = followed.graph()
            if signature_of(graph) != self.signature:
                raise CompilerError(
                    f"graph {self.name}: the module that it follows has other outputs now: {signature_of(graph)}, "
                    f"not {self.signature}; compile it again"
                )
            self.graph = graph = _simplified(graph) if self._rewrite else graph
            if self._plan is not None:
                self._plan = self._choose(graph)
            self._plans.clear()
            self._last = None

    def arrays(self, inputs: Mapping[str, Any] | Sequence[Any]) -> dict[str, Array]:
        """As `execute`, with NumPy arrays for results, whatever the inputs are."""
        results = self.execute(inputs)
        dtypes = {name: of.dtype for name, of in self.signature.outputs.items()}
        return {name: one if is_array(one) else array_of(one, dtypes[name]) for name, one in results.items()}

    def profile(self, *inputs: Any, repeats: int = 10, rates: Rates | None = None, **named: Any) -> Profile:
        """Seconds, bytes and FLOPs of each step, on inputs of the graph: see `profiling`."""
        self._follow()
        listed = self._merge(inputs, named)
        return (self._plan or self._plan_for(listed)).profile(listed, repeats, rates=rates)

    # -- plans

    def _specialises(self, graph: Graph) -> bool:
        """Whether plans for single sets of shapes are worth it: engines take more then, or are to be measured."""
        if not dim_symbols(dim for value in graph.inputs.values() for dim in value.shape):
            return False
        settings = self.settings
        if benchmark(settings.rank) is not None:
            return True
        symbolic: Candidate | None = None
        with suppress(EngineError):
            symbolic = create_plans(graph, settings.device, only=settings.only, rank=settings.rank)[0]
        if symbolic is not None and len(symbolic.engines) == 1 and symbolic.preferred:
            return False
        try:
            example = bind(graph, middling(graph))
            special = create_plans(example, settings.device, only=settings.only, rank=settings.rank)[0]
        except (EngineError, DimError):
            return False
        return symbolic is None or special.seconds < 0.8 * symbolic.seconds

    def _choose(self, graph: Graph) -> Plan:
        outcomes: list[Outcome] = []
        try:
            return self._make(graph, outcomes, self._without)
        finally:
            self.candidates = [*self.candidates, *(one for one in outcomes if one not in self.candidates)]

    def _make(self, graph: Graph, outcomes: list[Outcome], without: set[str]) -> Plan:
        settings = self.settings
        if (by := benchmark(settings.rank)) is not None:
            database = TuningDatabase(settings.cache)
            return tune(graph, settings.device, settings.only, outcomes, without, by=by, database=database)
        return choose(graph, settings.device, settings.only, settings.rank, outcomes, without)

    def _plan_for(self, inputs: Sequence[Any]) -> Plan:
        """The plan for the shapes of inputs, made if they are new."""
        try:
            shapes = tuple([tuple(one.shape) for one in inputs])
        except AttributeError as error:
            raise PlanError(f"graph {self.name}: inputs are tensors or arrays: {error}") from error
        if len(shapes) != len(self.signature.inputs):
            names = ", ".join(map(repr, self.signature.inputs))
            raise PlanError(
                f"graph {self.name} takes {len(self.signature.inputs)} inputs ({names}), got {len(shapes)}"
            )
        plan = self._plans.get(shapes)
        if plan is None:
            if self.graph is None:
                there = "; ".join(str([list(shape) for shape in one]) for one in self._plans)
                raise PlanError(
                    f"graph {self.name} was saved with plans for the shapes {there}, not for "
                    f"{[list(one) for one in shapes]}; compile it again, and call it with these before it is saved"
                )
            sizes = bind_shapes(self.signature.inputs, shapes, f"graph {self.name}: input")
            with self._lock:
                plan = self._plans.get(shapes) or self._specialise(shapes, sizes)
        with suppress(KeyError):  # another thread may have dropped it
            self._plans.move_to_end(shapes)
        self._last = plan
        return plan

    def _specialise(self, shapes: tuple[tuple[int, ...], ...], sizes: Mapping[str, int]) -> Plan:
        assert self.graph is not None
        self._plans[shapes] = plan = self._choose(bind(self.graph, sizes))
        while len(self._plans) > max(1, self.settings.max_shapes):
            dropped, _ = self._plans.popitem(last=False)
            if not self.evicted:
                LOGGER.warning(
                    "graph %s: more than %d sets of shapes; the plan for %s is dropped, and made again when they come "
                    "(compile(…, max_shapes=…) keeps more)", self.name, self.settings.max_shapes, list(dropped),
                )  # fmt: skip
            self.evicted += 1
        return plan

    def _again(self, error: SegmentError, failed: Plan, inputs: Sequence[Any]) -> Any:
        """Run on the next engine that can do it, which takes over; else raise what the first one raised.

        What is wrong with the inputs is told by whichever engine finds words for it, and blamed on none.
        """
        if error.memory or self.settings.only.engines is not None or self.graph is None:
            raise error
        with self._lock:
            shapes = next((one for one, plan in self._plans.items() if plan is failed), None)
            if failed is not self._plan and shapes is None:  # another thread was here before
                return (self._plan or self._plan_for(inputs))(*inputs)
            graph = self.graph
            if shapes is not None:
                graph = bind(graph, bind_shapes(self.signature.inputs, shapes))
            errors = [error]
            while True:
                without = self._without | {one.engine for one in errors}
                try:
                    plan = self._make(graph, [], without)
                except EngineError as nobody:
                    raise error from nobody
                try:
                    results = plan(*inputs)
                except SegmentError as another:
                    errors.append(another)
                    continue
                break
            self._without = without
            for one in errors:
                report_failure(one, graph, self.candidates)
            if shapes is None:
                self._plan = plan
            else:
                self._plans[shapes] = self._last = plan
            return results

    # -- arguments

    def _merge(self, inputs: Sequence[Any], named: dict[str, Any]) -> tuple[Any, ...]:
        names = list(self.signature.inputs)
        given = {**dict(zip(names, inputs, strict=False)), **named}
        unknown = [name for name in named if name not in names]
        twice = [name for name in names[: len(inputs)] if name in named]
        missing = [name for name in names if name not in given]
        if unknown or twice or missing or len(inputs) > len(names):
            raise PlanError(
                f"graph {self.name} has the inputs {names}; missing are {missing}, unknown {unknown}, twice {twice}"
            )
        return tuple([given[name] for name in names])

    # -- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all plans to a file, whole or not at all. Raises PlanError where there is none yet, OSError.

        Weights are written as they are now, and are frozen in what `load_executable` gives.
        """
        self._follow(whole=True)
        plans = [self._plan] if self._plan is not None else list(self._plans.values())
        if not plans:
            raise PlanError(
                f"graph {self.name} is compiled for each set of shapes; call it before it is saved"
            )
        header = {
            "kind": "executable",
            "graph": self.name,
            "versions": versions(),
            "device": {"type": self.settings.device.type, "arch": self.settings.device.arch},
            "shapes": None if self._plan is not None else list(self._plans),
        }
        data = write_container(
            header, {f"plan {number}": one.serialize() for number, one in enumerate(plans)}
        )
        target = Path(path)
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


class _ExecutableHeader(MadeHeader, frozen=True, kw_only=True):
    """The header of an executable. shapes: those of the inputs, for each plan; None of one plan for all shapes."""

    shapes: tuple[tuple[tuple[Bytes, ...], ...], ...] | None


def load_executable(
    source: str | os.PathLike[str] | bytes, device: str | Device | torch.device | None = None
) -> Executable:
    """What `Executable.save` wrote; it takes the graph's inputs in order or by name, and runs at once.

    Raises PlanError for a file that is not there, damaged, or for another device or version.
    """
    data, what = read_bytes(source)
    container = read_container(data, what)
    place = check_made(container, "executable", device)
    header = container.header(_ExecutableHeader)
    plans = [
        plan_in(read_container(part, f"{what}, {name}"), f"{what}, {name}", place)
        for name, part in container.sections.items()
    ]
    if len(plans) != (1 if header.shapes is None else len(set(header.shapes))) or not plans:
        raise PlanError(f"{what} holds {len(plans)} plans, and shapes for another number; {AGAIN}")
    made = Executable(plans[0].signature, Settings(place), None)
    made.name = header.graph
    if header.shapes is None:
        made._plan = plans[0]
    else:
        made._plans.update(zip(header.shapes, plans, strict=True))
    return made
