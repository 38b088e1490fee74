"""`OpenedExecutable`: an ONNX file whose plans another process compiled, from the cache of opened files.

It runs the plans that are kept (`opened`), and imports and compiles the model where a call comes that none of them is
right for, or where something besides a call is asked of it. `keep_plans` has a model's plans kept as they are made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from kernels_hub.compiler.engines.engine import Signature
from kernels_hub.compiler.errors import CompilerError, PlanError
from kernels_hub.compiler.executable import Executable
from kernels_hub.compiler.ir.binding import bind_shapes
from kernels_hub.compiler.ir.op import TensorType
from kernels_hub.compiler.ir.types import Array
from kernels_hub.compiler.opened import Calls, Entry, OpenedFile, drop, keep
from kernels_hub.compiler.plan.arguments import given_array, shapes_of
from kernels_hub.compiler.plan.plan import Plan
from kernels_hub.compiler.plan.program import SegmentError
from kernels_hub.compiler.runtime.newest import Newest
from kernels_hub.compiler.settings import Settings

if TYPE_CHECKING:
    import os

    from kernels_hub.compiler.plan.profiling import Profile
    from kernels_hub.compiler.plan.rates import Rates
    from kernels_hub.compiler.specialised import Compiled

_MOST_CALLS = 256
"""Kinds of calls of which it is remembered what runs them."""


class _Kept:
    """An entry, and its plan once a call has wanted it."""

    def __init__(self, entry: Entry) -> None:
        self.entry, self.calls = entry, entry.calls
        self.plan: Plan | None = None

    def is_for(self, shapes: Sequence[tuple[int, ...]], values: Mapping[str, Array]) -> bool:
        """Whether it is right for a call."""
        for name, value in self.calls.values.items():
            if not np.array_equal(values[name], value):
                return False
        try:
            bind_shapes(self.calls.inputs, shapes)
        except CompilerError:
            return False
        return True


class OpenedExecutable(Executable):
    """See the module. signature: as that of the executable that `compile` makes of the file without the cache."""

    def __init__(
        self, opened: OpenedFile, kept: Sequence[Entry], settings: Settings, make: Callable[[], Executable]
    ) -> None:
        """make: compiles the file."""
        super().__init__(kept[0].declared, settings, None)
        self.name = kept[0].name
        self._opened, self._compile = opened, make
        self._kept = [_Kept(entry) for entry in kept]
        names = list(self.signature.inputs)
        self._wanted = [
            index for index, name in enumerate(names) if any(name in one.calls.values for one in self._kept)
        ]
        self._calls: Newest[tuple[object, ...], _Kept | None] = Newest(_MOST_CALLS)
        self._compiled: Executable | None = None
        self._shapes: tuple[tuple[int, ...], ...] | None = None
        self._compile_lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<OpenedExecutable {self.name}: {len(self._kept)} plans of an earlier process>"

    def __getattr__(self, name: str) -> Any:
        """What executables of the model's kind have besides."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.compiled(), name)

    @property
    def plan(self) -> Plan:
        """The plan that ran last. Raises PlanError where none did, and the model is compiled for each call's shapes."""
        return self._last if self._last is not None else self.compiled().plan

    def compiled(self) -> Executable:
        """The model, compiled by this process. Raises PlanError where the file is another one by now."""
        with self._compile_lock:
            if self._compiled is None:
                if not self._opened.is_unchanged():
                    raise PlanError(
                        f"{self._opened.path} is not the file any more that was opened, and it has to be read for this "
                        "call; open it again"
                    )
                self._compiled = self._compile()
            return self._compiled

    def execute(self, inputs: Mapping[str, object] | Sequence[object], **more: object) -> dict[str, object]:
        """The outputs by name: see `Plan.execute`."""
        listed = self._merge((), dict(inputs)) if isinstance(inputs, Mapping) else tuple(inputs)
        found = self._for(cast("Sequence[torch.Tensor | Array]", listed))
        if found is not None:
            try:
                return found[0].execute(
                    [listed[place] for place in found[1].takes], **cast("dict[str, Any]", more)
                )
            except SegmentError as error:
                self._give_up(error)
        compiled = self.compiled()
        results = compiled.execute(listed, **more)
        self.signature = compiled.signature
        return results

    def wait(self, timeout: float | None = None) -> bool:
        """As `Executable.wait`, of what this process compiles."""
        return self._compiled is None or self._compiled.wait(timeout)

    def profile(
        self, *inputs: object, repeats: int = 10, rates: Rates | None = None, **named: object
    ) -> Profile:
        """As `Executable.profile`: the model is compiled for it."""
        return self.compiled().profile(*self._merge(inputs, named), repeats=repeats, rates=rates)

    def save(self, path: str | os.PathLike[str]) -> None:
        """As `Executable.save`: the model is compiled for it, for the shapes of the last call if it has no others."""
        compiled = self.compiled()
        if self._shapes is not None:
            compiled.prepare(self._examples(self._shapes))
        compiled.save(path)

    def _run_plan(self, inputs: tuple[torch.Tensor | Array, ...]) -> object:
        found = self._for(inputs)
        if found is not None:
            plan, calls = found
            try:
                return plan(*[inputs[place] for place in calls.takes])
            except SegmentError as error:
                self._give_up(error)
        compiled = self.compiled()
        results = compiled(*inputs)
        self.signature = compiled.signature
        return results

    def _for(self, inputs: Sequence[torch.Tensor | Array]) -> tuple[Plan, Calls] | None:
        """What runs a call, of what is kept."""
        shapes = shapes_of(inputs, self.signature.inputs, f"model {self.name}")
        values = [given_array(inputs[index]) for index in self._wanted]
        key = (shapes, *[value.tobytes() for value in values])
        try:
            kept = self._calls[key]
        except KeyError:
            kept = self._calls[key] = self._find(shapes, values)
        if kept is None or kept.plan is None:
            return None
        if kept.plan is not self._last:
            self._last, self._shapes = kept.plan, shapes
            self.signature = Signature(self.signature.inputs, kept.calls.results)
        return kept.plan, kept.calls

    def _find(self, shapes: Sequence[tuple[int, ...]], values: Sequence[Array]) -> _Kept | None:
        names = list(self.signature.inputs)
        named = {names[index]: value for index, value in zip(self._wanted, values, strict=True)}
        with self._lock:
            for kept in list(self._kept):
                if not kept.is_for(shapes, named):
                    continue
                try:
                    kept.plan = kept.plan or kept.entry.load(self.settings.device)
                except (CompilerError, OSError) as error:
                    drop(kept.entry.path, error)
                    self._kept.remove(kept)
                    continue
                return kept
        return None

    def _give_up(self, error: SegmentError) -> None:
        """A plan failed: raise the error where memory ran out; else what this process compiles takes its calls."""
        if error.memory:
            raise error
        with self._lock:
            self._kept, self._last = [], None
            self._calls.clear()

    def _examples(self, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
        """Inputs of these shapes, and of the values that the last plan was compiled for."""
        last = next((kept.calls.values for kept in self._kept if kept.plan is self._last), {})
        return [
            last[name] if name in last else np.zeros(shape, of.dtype.numpy)
            for (name, of), shape in zip(self.signature.inputs.items(), shapes, strict=True)
        ]


def keep_plans(opened: OpenedFile, run: Executable) -> Executable:
    """Have the plans of an executable kept as they are made; the executable."""
    declared, done = run.signature, set[int]()

    def store(made: Executable, calls: Calls) -> None:
        """calls: those that the executable is right for, whatever the shapes of its inputs are."""
        for shapes, plan in made.each_plan():
            if id(plan) in done:
                continue
            done.add(id(plan))
            inputs = dict(calls.inputs)
            if shapes is not None:
                names = list(inputs)
                for place, shape in zip(calls.takes, shapes, strict=True):
                    inputs[names[place]] = TensorType(inputs[names[place]].dtype, shape)
            keep(opened, plan, Calls(inputs, calls.values, calls.takes, plan.signature.outputs), declared)

    def keep_all(made: Executable) -> None:
        takes = tuple(range(len(declared.inputs)))
        store(made, Calls(declared.inputs, {}, takes, declared.outputs))

    when_specialised = getattr(run, "when_specialised", None)  # most models do without that module
    if when_specialised is None:
        run.when_compiled(keep_all)
        return run

    def keep_variant(compiled: Compiled) -> None:
        variant = compiled.variant
        calls = Calls(variant.inputs, variant.values, compiled.takes, compiled.run.signature.outputs)
        compiled.run.when_compiled(lambda made: store(made, calls))

    when_specialised(keep_variant)
    return run
