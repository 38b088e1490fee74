"""Background compilation: engines that need no compiler serve calls until the chosen plan is ready."""

from __future__ import annotations

import atexit
import ctypes
import math
import threading
import time
from dataclasses import replace
from typing import Protocol, Self, TypeVar

from kernels_hub.compiler.engines.engine import Note
from kernels_hub.compiler.errors import CompilerError, EngineError
from kernels_hub.compiler.importers.module_call import ModuleCall
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.uncollected import uncollected
from kernels_hub.compiler.plan.plan import Plan
from kernels_hub.compiler.plan.selection import LOGGER
from kernels_hub.compiler.settings import Settings
from kernels_hub.cxx_compiler import BESIDE, kill_compilers, process_ends


class Adopting(Protocol):
    """An executable, as far as a compilation in the background knows it."""

    name: str
    compilation: Compilation | None

    @property
    def plan(self) -> Plan:
        """The plan that runs."""

    @classmethod
    def of(
        cls, graph: Graph, settings: Settings, module: ModuleCall | None = None, *, rewrite: bool = False
    ) -> Self:
        """Compile a graph, rewritten first or as it is."""

    def adopt(self, other: Self, /) -> None:
        """Run the plans of another executable of the same graph from now on."""

    def plans_changed(self) -> None:
        """Plans have joined."""


E = TypeVar("E", bound=Adopting)


_HEAD_START_S = 1.0
_NICENESS = 4
"""Of the compilers. What serves meanwhile takes a few times as long as what they make, so they have more of the
processor than those beside a kernelized model: on two busy cores calls take 1.4 times as long, and 3 times at 0."""
_EXIT_S = 5.0
"""How long the end of the process waits for threads that compile."""


def stand_in(settings: Settings) -> Settings:
    """Settings of what serves calls meanwhile."""
    only = replace(
        settings.only,
        exclude_notes=settings.only.exclude_notes | {Note.NEEDS_COMPILER},
        exclude_engines=settings.only.exclude_engines | {"bytecode"},  # schedules graphs, and packs weights
        knobs={**settings.only.knobs, "library": {**settings.only.knobs.get("library", {}), "pack": False}},
    )
    return replace(settings, only=only, rank="default", wait=True)


class Compilation:
    """A thread that compiles a graph and gives an executable the plan that it makes.

    finished: set when it has ended, one way or the other. error: why the executable keeps its first plan.
    """

    def __init__(self, run: Adopting, graph: Graph, settings: Settings, *, rewrite: bool) -> None:
        self.finished = threading.Event()
        self.served = threading.Event()
        """Set once a call was served: until then, for a second at most, nothing takes time from it."""
        self.adopted = False
        """Whether the executable runs what was compiled."""
        self.error: CompilerError | None = None
        work = threading.Thread(
            target=self._work,
            args=(run, graph, replace(settings, wait=True), rewrite),
            name="kernels_hub-compile",
            daemon=True,
        )
        _THREADS[:] = [thread for thread in _THREADS if thread.is_alive()]
        work.start()
        _THREADS.append(work)

    def _work(self, run: E, graph: Graph, settings: Settings, rewrite: bool) -> None:
        self.served.wait(_HEAD_START_S)
        BESIDE.set(_NICENESS)
        try:
            run.adopt(type(run).of(graph, settings, rewrite=rewrite))
            self.adopted = True
            run.plans_changed()
        except CompilerError as error:
            self.error = error
            LOGGER.warning("graph %s stays on %s: %s", run.name, run.plan.engines, error)
        except RuntimeError:
            if not process_ends():  # else it is a pool's, which starts nothing any more
                raise
        finally:
            self.finished.set()


_THREADS: list[threading.Thread] = []
"""Threads that compile. CPython drops its own reference before a thread has let go of its `threading.local` values."""


@atexit.register
def _end_compilations() -> None:
    """Have the threads that compile end before the interpreter does, without a word.

    A thread that is left is ended by CPython wherever it next takes the lock of the interpreter, by unwinding its
    stack. Where that is within C++ that may not throw, as in destructors of PyTorch's and ONNX's objects, the process
    aborts. So a thread that is done is waited for while it lets go of what it has, and one that is not is told to end.
    """
    kill_compilers()
    deadline = time.monotonic() + _EXIT_S
    for thread in [one for one in _THREADS if one.is_alive()]:
        _raise_in(thread)
        thread.join(max(0.0, deadline - time.monotonic()))


def _raise_in(thread: threading.Thread) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
    )


_LONG = 1 << 21
"""Elements of attention's scores from which it is rewritten first: what is recognised as attention never makes them."""


def has_long_scores(graph: Graph) -> bool:
    """Whether a softmax has so many elements, whatever the open sizes are, that rewriting the graph pays at once."""
    return any(
        node.op.name == "softmax"
        and math.prod(dim if isinstance(dim, int) else 1 for dim in node.results[0].shape) >= _LONG
        for node in graph.live()
    )


def begin(
    graph: Graph, settings: Settings, module: ModuleCall | None, make: type[E], *, rewrite: bool = False
) -> E | None:
    """An executable that runs now, and the compiled plan later; None where no engine runs without a compiler.

    rewrite: the graph before it is compiled; what runs meanwhile is the graph as it is.
    """
    try:
        with uncollected():
            run = make.of(graph, stand_in(settings), module)
    except EngineError:
        return None
    run.compilation = Compilation(run, graph, settings, rewrite=rewrite)
    return run
