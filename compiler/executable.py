"""Executables: what `compile` gives. One plan for all shapes, or one for each set of shapes, the newest few kept."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch

from kernels_hub.compiler.background import Compilation, begin, has_long_scores
from kernels_hub.compiler.engines.container import AGAIN, Bytes, read_container, write_container
from kernels_hub.compiler.engines.engine import Device, Note, Outcome, Signature
from kernels_hub.compiler.errors import (
    CompilerError,
    EngineError,
    PlanError,
)
from kernels_hub.compiler.importers.module_call import ModuleCall
from kernels_hub.compiler.ir.binding import bind_shapes
from kernels_hub.compiler.ir.dims import dim_symbols
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.transform import bind
from kernels_hub.compiler.ir.types import Array
from kernels_hub.compiler.plan import custom_operator as traced
from kernels_hub.compiler.plan.arguments import array_of, is_array, shapes_of
from kernels_hub.compiler.plan.benchmarks import benchmark
from kernels_hub.compiler.plan.file import (
    MadeHeader,
    check_made,
    may_run_native_code,
    program_in,
    read_bytes,
    versions,
)
from kernels_hub.compiler.plan.followed_weights import Followed
from kernels_hub.compiler.plan.heuristics import middling
from kernels_hub.compiler.plan.plan import Plan
from kernels_hub.compiler.plan.program import SegmentError
from kernels_hub.compiler.plan.selection import (
    LOGGER,
    Candidate,
    choose,
    create_plans,
    report_failure,
    signature_of,
)
from kernels_hub.compiler.plan.tuning_database import TuningDatabase
from kernels_hub.compiler.settings import Settings
from kernels_hub.cxx_compiler import find_compiler
from kernels_hub.files import write_atomically

if TYPE_CHECKING:
    from kernels_hub.compiler.plan.profiling import Profile
    from kernels_hub.compiler.plan.rates import Rates


def _simplified(graph: Graph, settings: Settings) -> Graph:
    from kernels_hub.compiler.rewrite.pipeline import rewrite
    from kernels_hub.compiler.rewrite.rule import Options

    return rewrite(graph, options=Options(few_bits=_has_native_code(settings))).graph


def _has_native_code(settings: Settings) -> bool:
    """Whether the engine "cpp" may take what it has kernels for alone."""
    only = settings.only
    named = only.engines is None or "cpp" in only.engines
    allowed = "cpp" not in only.exclude_engines and Note.NEEDS_COMPILER not in only.exclude_notes
    return settings.device.type == "cpu" and named and allowed and find_compiler() is not None


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
        self.compilation: Compilation | None = None
        """What goes on in the background, or went on."""
        self._number = traced.enter(self)
        self._when_compiled: Callable[[Executable], object] | None = None

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
        """Of a graph. Raises EngineError where no engine takes it.

        What serves calls while the chosen plan is compiled runs the graph as it was imported, where an engine takes
        that and rewriting would not pay at once: it takes as long as all else before the first output.
        """
        later = rewrite and not settings.wait and not has_long_scores(graph)
        if later and (run := begin(graph, settings, module, cls, rewrite=True)) is not None:
            return run
        graph = _simplified(graph, settings) if rewrite else graph
        if not settings.wait and (run := begin(graph, settings, module, cls)) is not None:
            return run
        executable = cls(signature_of(graph), settings, graph, module, followed, rewrite=rewrite)
        if not executable._specialises(graph):
            executable._plan = executable._choose(graph)
        return executable

    def __repr__(self) -> str:
        return f"<Executable {self.name}: {self._plan or f'{len(self._plans)} plans, one a set of shapes'}>"

    @property
    def plan(self) -> Plan:
        """The plan that runs, or that ran last. Raises PlanError where none was made yet: shapes have to come first."""
        latest = self._plan or self._last
        if latest is None:
            raise PlanError(f"graph {self.name} is compiled for each set of shapes; call it first")
        return latest

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
            results = plan(*inputs)
        except SegmentError as error:
            results = self._again(error, plan, inputs)
        if self.compilation is not None:
            self.compilation.served.set()
        return results

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
        if self.compilation is not None:
            self.compilation.served.set()
        return results

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is compiled in the background; whether that is so. timeout: in seconds."""
        if self.compilation is None:
            return True
        self.compilation.served.set()
        return self.compilation.finished.wait(timeout)

    def when_compiled(self, act: Callable[[Executable], object]) -> None:
        """Have something done with this executable once nothing is compiled for it, and again when a plan joins."""
        self._when_compiled = act
        self.plans_changed()

    def plans_changed(self) -> None:
        """Plans have joined; does what `when_compiled` was given, unless these are there until others are compiled."""
        if self._when_compiled is not None and (self.compilation is None or self.compilation.adopted):
            self._when_compiled(self)

    def each_plan(self) -> list[tuple[tuple[tuple[int, ...], ...] | None, Plan]]:
        """The plans, each with the shapes of the inputs that it is for; None of one for all shapes."""
        if self._plan is not None:
            return [(None, self._plan)]
        return list(self._plans.items())

    def prepare(self, inputs: Sequence[Any]) -> None:
        """Have a plan for inputs like these, which are not computed with."""
        if self._plan is None:
            self._plan_for(inputs)

    def adopt(self, other: Executable) -> None:
        """Run the plans of another executable of the same graph from now on. Those for shapes seen so far are made."""
        if other._plan is None:
            known_shapes = list(self._plans) if self._plan is None else list(self._plan.shapes)
            for shapes in known_shapes[-self.settings.max_shapes :]:
                other._specialise(
                    shapes, bind_shapes(self.signature.inputs, shapes, f"graph {self.name}: input")
                )
        with self._lock:
            self.settings, self._without, self.candidates = other.settings, other._without, other.candidates
            self.graph = other.graph
            self._plans = other._plans  # before `_plan`: a call that finds no plan for all shapes looks there
            self._last = next(reversed(other._plans.values()), None)
            self._plan = other._plan

    def refresh(self) -> None:
        """Of one that follows its module: compare all weights now, and take those that are there."""
        self._follow(whole=True)

    def _follow(self, *, whole: bool = False) -> None:
        """Be made again where weights that are followed are others."""
        followed = self._followed
        if followed is None:
            return
        asked = followed.current
        if followed.holds(whole=whole):
            return
        with self._lock:
            if followed.current is not asked:  # another thread was here before
                return
            graph = followed.graph()
            if signature_of(graph) != self.signature:
                raise CompilerError(
                    f"graph {self.name}: the module that it follows has other outputs now: {signature_of(graph)}, "
                    f"not {self.signature}; compile it again"
                )
            self.graph = graph = _simplified(graph, self.settings) if self._rewrite else graph
            if self._plan is not None:
                self._plan = self._choose(graph)
            self._plans.clear()
            self._last = None
            followed.adopt()  # not before: where one of these fails, the next call fails as well

    def arrays(self, inputs: Mapping[str, Any] | Sequence[Any]) -> dict[str, Array]:
        """As `execute`, with NumPy arrays for results, whatever the inputs are."""
        results = self.execute(inputs)
        outputs = self.signature.outputs  # which a call may be what tells
        return {
            name: result if is_array(result) else array_of(result, outputs[name].dtype)
            for name, result in results.items()
        }

    def profile(self, *inputs: Any, repeats: int = 10, rates: Rates | None = None, **named: Any) -> Profile:
        """Seconds, bytes and FLOPs of each step, on inputs of the graph, once nothing is compiled: see `profiling`."""
        self.wait()
        self._follow()
        listed = self._merge(inputs, named)
        return (self._plan or self._plan_for(listed)).profile(listed, repeats, rates=rates)

    # -- plans

    def _specialises(self, graph: Graph) -> bool:
        """Whether plans for single sets of shapes are worth it: engines take more then, or are to be measured."""
        if not dim_symbols(dim for value in graph.inputs.values() for dim in value.shape):
            return False
        settings = self.settings
        if settings.only.workspace_limit is not None or benchmark(settings.rank) is not None:
            return True  # a workspace has a size, and a plan a time, where sizes are numbers
        symbolic: Candidate | None = None
        with suppress(EngineError):
            symbolic = create_plans(graph, settings.device, only=settings.only, rank=settings.rank)[0]
        if symbolic is not None and len(symbolic.engines) == 1 and symbolic.preferred:
            return False
        try:
            example = bind(graph, middling(graph))
            special = create_plans(example, settings.device, only=settings.only, rank=settings.rank)[0]
        except CompilerError:  # of sizes that the graph cannot have
            return False
        return symbolic is None or special.seconds < 0.8 * symbolic.seconds

    def _choose(self, graph: Graph) -> Plan:
        outcomes: list[Outcome] = []
        try:
            return self._make(graph, outcomes, self._without)
        finally:
            self.candidates = [
                *self.candidates,
                *(outcome for outcome in outcomes if outcome not in self.candidates),
            ]

    def _make(self, graph: Graph, outcomes: list[Outcome], without: set[str]) -> Plan:
        settings = self.settings
        if (by := benchmark(settings.rank)) is not None:
            from kernels_hub.compiler.plan.tuning import tune  # and the judge: opening a plan needs neither

            database = TuningDatabase(settings.cache)
            return tune(graph, settings.device, settings.only, outcomes, without, by=by, database=database)
        return choose(graph, settings.device, settings.only, settings.rank, outcomes, without)

    def _plan_for(self, inputs: Sequence[Any]) -> Plan:
        """The plan for the shapes of inputs, made if they are new."""
        shapes = shapes_of(inputs, self.signature.inputs, f"graph {self.name}")
        plan = self._plans.get(shapes)
        if plan is None:
            if self.graph is None:
                there = "; ".join(str([list(shape) for shape in plan]) for plan in self._plans)
                raise PlanError(
                    f"graph {self.name} was saved with plans for the shapes {there}, not for "
                    f"{[list(shape) for shape in shapes]}; compile it again, and call it with these before it is saved"
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
        self.plans_changed()
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
            shapes = next((of_plan for of_plan, plan in self._plans.items() if plan is failed), None)
            if failed is not self._plan and shapes is None:  # another thread was here before
                return (self._plan or self._plan_for(inputs))(*inputs)
            graph = self.graph
            if shapes is not None:
                graph = bind(graph, bind_shapes(self.signature.inputs, shapes))
            errors = [error]
            while True:
                without = self._without | {error.engine for error in errors}
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
            for failure in errors:
                report_failure(failure, graph, self.candidates)
            if shapes is None:
                self._plan = plan
            else:
                self._plans[shapes] = self._last = plan
            return results

    # -- arguments

    def _merge(self, inputs: Sequence[Any], named: dict[str, Any]) -> tuple[Any, ...]:
        if not inputs and named.keys() == self.signature.inputs.keys():
            return tuple([named[name] for name in self.signature.inputs])
        names = list(self.signature.inputs)
        merged = {**dict(zip(names, inputs, strict=False)), **named}
        unknown = [name for name in named if name not in names]
        twice = [name for name in names[: len(inputs)] if name in named]
        missing = [name for name in names if name not in merged]
        if unknown or twice or missing or len(inputs) > len(names):
            raise PlanError(
                f"graph {self.name} has the inputs {names}; missing are {missing}, unknown {unknown}, twice {twice}"
            )
        return tuple([merged[name] for name in names])

    # -- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all plans to a file, whole or not at all. Raises PlanError where there is none yet, OSError.

        So it does of a module that asks of tensors what the graph in the file does not, such as their strides. What is
        compiled in the background is waited for. Weights are written as they are now, and are frozen in what
        `load_executable` gives.
        """
        if self._module is not None and self._module.asks:
            raise PlanError(
                f"graph {self.name}: its forward asks of its arguments what they are beside what they hold, such as "
                "strides, or whether two are one; a file would run the graph for any: compile it where it is called"
            )
        self.wait()
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
            header, {f"plan {number}": plan.serialize() for number, plan in enumerate(plans)}
        )
        write_atomically(Path(path), data)


class _ExecutableHeader(MadeHeader, frozen=True, kw_only=True):
    """The header of an executable. shapes: those of the inputs, for each plan; None of one plan for all shapes."""

    shapes: tuple[tuple[tuple[Bytes, ...], ...], ...] | None


def load_executable(
    source: str | os.PathLike[str] | bytes,
    device: str | Device | torch.device | None = None,
    *,
    trust_native_code: bool | str = False,
) -> Executable:
    """What `Executable.save` wrote; it takes the graph's inputs in order or by name, and runs at once.

    trust_native_code: whether built code in it may run where nothing can be built (no C++ compiler): True, or the
    SHA-256 of the file that is trusted. Elsewhere code is built of the graphs, and that in the file is not looked at.

    Raises PlanError for a file that is not there, damaged, or for another device or version.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     compile((nn.GELU(), (torch.ones(1, 4),)), "cpu", engines=["library"]).save(f"{folder}/gelu.khplan")
    ...     gelu = load_executable(f"{folder}/gelu.khplan", "cpu")
    >>> gelu(torch.zeros(1, 4))
    tensor([[0., 0., 0., 0.]])
    """
    data, what = read_bytes(source, mapped=not isinstance(trust_native_code, str))
    trusted = may_run_native_code(data, what, trust_native_code)
    container = read_container(data, what)
    target = check_made(container, "executable", device)
    header = container.header(_ExecutableHeader)
    plans = [
        Plan(*program_in(read_container(part, f"{what}, {name}"), f"{what}, {name}", target, trusted=trusted))
        for name, part in container.sections.items()
    ]
    if len(plans) != (1 if header.shapes is None else len(set(header.shapes))) or not plans:
        raise PlanError(f"{what} holds {len(plans)} plans, and shapes for another number; {AGAIN}")
    executable = Executable(plans[0].signature, Settings(target), None)
    executable.name = header.graph
    if header.shapes is None:
        executable._plan = plans[0]
    else:
        executable._plans.update(zip(header.shapes, plans, strict=True))
    return executable
