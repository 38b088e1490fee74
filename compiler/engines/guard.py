"""Calls into engines, which may be anybody's code: whatever goes wrong becomes an answer or an error that names it.

    checked(engine, graph, device)            never raises: an engine that throws declines, with that as its reason
    compiled(engine, graph, device, knobs)    EngineError that names the engine and the graph
    loaded(engine, payload, device)           EngineError or PlanError that names the engine

Plans that come from here are `GuardedPlan`s: what goes wrong in them is an EngineError with both names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kernels_hub.compiler.engines.engine import (
    CompiledPlan,
    Decline,
    Device,
    Engine,
    KnobValue,
    Signature,
    StepProfile,
    Support,
)
from kernels_hub.compiler.errors import DimError, EngineError, EvaluateError, PlanError, ShapeError
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.cxx_compiler import process_ends

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


def checked(engine: Engine, graph: Graph, device: Device) -> Support | Decline:
    """The engine's answer; a Decline where it throws, or answers with anything else."""
    try:
        answer: Any = engine.check(graph, device)
    except Exception as error:  # noqa: BLE001  (a plugin may raise anything)
        return Decline(f"engine {engine.name} threw at check: {one_line(error)}")
    except SystemExit as error:
        if process_ends():
            raise
        return Decline(f"engine {engine.name} wanted to end the process at check ({one_line(error)})")
    if isinstance(answer, Decline):
        values = frozenset(value for value in answer.values if isinstance(value, int))
        return Decline(str(answer.reason) or f"engine {engine.name} gave no reason", values)
    if isinstance(answer, Support):
        return answer
    return Decline(
        f"engine {engine.name} answered check with a {type(answer).__name__}, no Support or Decline"
    )


def compiled(
    engine: Engine, graph: Graph, device: Device, knobs: Mapping[str, KnobValue] | None = None
) -> GuardedPlan:
    """The engine's plan. Raises EngineError (or what of it the engine raised) where it gives none."""
    what = f"engine {engine.name} took graph {graph.name} on {device} and then failed to compile it"
    return GuardedPlan(
        _plan(lambda: engine.compile(graph, device, dict(knobs or {})), engine, what), graph.name
    )


def loaded(engine: Engine, payload: bytes, device: Device, graph: str = "") -> GuardedPlan:
    """A plan that this engine wrote. Raises PlanError where it is damaged, EngineError where the engine fails."""
    what = f"engine {engine.name} failed to load a plan for {device}"
    return GuardedPlan(_plan(lambda: engine.load(payload, device), engine, what), graph)


def with_native_code(
    engine: Engine, payload: bytes, code: bytes, device: Device, graph: str = ""
) -> GuardedPlan:
    """As `loaded`, with built code that the caller trusts, by an engine that has `load_native`."""
    what = f"engine {engine.name} failed to load native code for {device}"
    load: Any = engine.load_native  # type: ignore[attr-defined]
    return GuardedPlan(_plan(lambda: load(payload, code, device), engine, what), graph)


def _plan(make: Callable[[], Any], engine: Engine, what: str) -> CompiledPlan:
    plan = guarded(make, what)
    methods = ("workspace_size", "execute", "serialize", "profile")
    lacking = [name for name in methods if not callable(getattr(plan, name, None))]
    if not isinstance(getattr(plan, "signature", None), Signature):
        lacking.insert(0, "signature")
    if lacking:
        raise EngineError(f"{what}: it gave a {type(plan).__name__}, which lacks {', '.join(lacking)}")
    if getattr(plan, "engine", None) != engine.name:
        raise EngineError(f"{what}: its plan says that it is of engine {getattr(plan, 'engine', None)!r}")
    return plan  # type: ignore[no-any-return]


class GuardedPlan:
    """A plan whose errors name engine and graph."""

    __slots__ = ("_compute", "_what", "engine", "plan", "signature")

    def __init__(self, plan: CompiledPlan, graph: str) -> None:
        self.plan, self.engine, self.signature = plan, plan.engine, plan.signature
        self._what = f"engine {plan.engine} failed" + (f" at graph {graph}" if graph else "")
        self._compute: Any = getattr(plan, "compute", None) if getattr(plan, "computes", True) else None

    @property
    def computes(self) -> bool:
        """Whether `compute` is there."""
        return self._compute is not None

    def workspace_size(self, sizes: Mapping[str, int]) -> int:
        """See `CompiledPlan`."""
        return guarded(lambda: self.plan.workspace_size(sizes), self._what)

    def execute(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None = None,
        stream: int | None = None,
    ) -> None:
        """See `CompiledPlan`."""
        guarded(lambda: self.plan.execute(inputs, outputs, workspace, stream), self._what)

    def compute(
        self, inputs: Sequence[torch.Tensor], workspace: torch.Tensor | None = None, stream: int | None = None
    ) -> list[torch.Tensor]:
        """Outputs that the plan allocates itself. Raises EngineError where it cannot (see `computes`)."""
        if self._compute is None:
            raise EngineError(f"{self._what}: its plans do not allocate outputs; give some to execute")
        return guarded(lambda: list(self._compute(inputs, workspace, stream)), self._what)

    def serialize(self) -> bytes:
        """See `CompiledPlan`."""
        payload: Any = guarded(self.plan.serialize, f"{self._what} to serialize its plan")
        if not isinstance(payload, bytes):
            raise EngineError(
                f"{self._what}: it serialized its plan to a {type(payload).__name__}, not to bytes"
            )
        return payload

    def profile(self, inputs: Sequence[torch.Tensor], repeats: int = 10) -> list[StepProfile]:
        """See `CompiledPlan`."""
        return guarded(lambda: self.plan.profile(inputs, repeats), self._what)


def guarded(call: Callable[[], T], what: str) -> T:
    """What a call gives. Errors about what the caller brought pass; all others become EngineError("what: …")."""
    try:
        return call()
    except (PlanError, EvaluateError, ShapeError, DimError):
        raise
    except EngineError as error:
        if str(error).startswith(what):
            raise
        raise type(error)(f"{what}: {error}") from error
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and process_ends():
            raise
        raise EngineError(f"{what}: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """An error in one line: its type and what it says."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001  (an error whose __str__ fails)
        text = "(its message cannot be shown)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
