"""`SpecialisedExecutable`: an ONNX model that is compiled for what its calls show, where it cannot be for all calls.

`compile` gives one where the model cannot be imported before sizes or values of inputs are known. The first call
compiles; calls that what was assumed then holds for run the same plans, others compile again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernels_hub.compiler.engines.engine import Signature
from kernels_hub.compiler.errors import CompilerError, ImportFailure, OnnxImportError, PlanError, Unsupported
from kernels_hub.compiler.executable import Executable
from kernels_hub.compiler.importers.onnx_variants import OnnxVariants, Variant
from kernels_hub.compiler.ir.binding import bind_shapes
from kernels_hub.compiler.ir.types import Array
from kernels_hub.compiler.plan.arguments import given_array, shapes_of
from kernels_hub.compiler.plan.selection import LOGGER
from kernels_hub.compiler.runtime.newest import Newest
from kernels_hub.compiler.settings import Settings

if TYPE_CHECKING:
    import os

    from kernels_hub.compiler.plan.plan import Plan
    from kernels_hub.compiler.plan.profiling import Profile
    from kernels_hub.compiler.plan.rates import Rates

_MOST_CALLS = 256
"""Kinds of calls of which it is remembered what runs them."""
_PROBES = (64, 1)
"""Sizes that are tried where none is known: even, and large enough for most windows; and what can be squeezed."""


def specialised(
    variants: OnnxVariants, settings: Settings, error: CompilerError, *, rewrite: bool
) -> SpecialisedExecutable:
    """An executable for a model that could not be compiled for all calls. Raises `error` where no call would help."""
    names = error.wanted if isinstance(error, OnnxImportError) else ()
    if not (variants.is_open or names) or _stays(error, variants):
        raise error
    variants.wanted.update(dict.fromkeys(names))
    LOGGER.info("%s is compiled for the sizes and values that calls bring, since: %s", variants.name, error)
    return SpecialisedExecutable(variants, settings, rewrite=rewrite)


def _stays(error: CompilerError, variants: OnnxVariants) -> bool:
    """Whether part of what is wrong has nothing to do with sizes: it reads the same when these are numbers."""
    if not isinstance(error, OnnxImportError):
        return isinstance(error, ImportFailure)
    still = {_cause(unsupported) for unsupported in error.unsupported if not unsupported.waits}
    if not still or variants.probe_multiples(error):
        return False
    for size in _PROBES:
        probed = variants.probe(size)
        if probed is None:
            return False
        still &= {_cause(unsupported) for unsupported in probed.unsupported}
    return bool(still)


def _cause(unsupported: Unsupported) -> tuple[str, str]:
    """A node and why it could not be imported, whatever the shapes of its operands are."""
    return unsupported.node, re.sub(r"\[[^\]]*\]", "[]", unsupported.reason)


@dataclass
class Compiled:
    """A variant, compiled. takes: which inputs of the model the graph takes, in order."""

    variant: Variant
    run: Executable
    takes: tuple[int, ...]


class SpecialisedExecutable(Executable):
    """See the module. signature: of its outputs, as the last call knew them; none before the first.

    No more than `max_shapes` variants are kept.
    """

    def __init__(self, variants: OnnxVariants, settings: Settings, *, rewrite: bool = True) -> None:
        super().__init__(Signature(dict(variants.inputs), {}), settings, None, rewrite=rewrite)
        self.source, self.name = variants, variants.name
        self._compiled: list[Compiled] = []
        self._calls: Newest[Any, Compiled] = Newest(_MOST_CALLS)
        self._current: Compiled | None = None
        self._when_specialised: Callable[[Compiled], object] | None = None

    def __repr__(self) -> str:
        return f"<SpecialisedExecutable {self.name}: {len(self._compiled)} variants>"

    @property
    def variants(self) -> tuple[Executable, ...]:
        """Those that were compiled for the calls so far."""
        return tuple(compiled.run for compiled in self._compiled)

    @property
    def last(self) -> Executable:
        """What ran last. Raises PlanError before the first call."""
        if self._current is None:
            raise PlanError(f"model {self.name} is compiled for what its calls show; call it first")
        return self._current.run

    @property
    def plan(self) -> Plan:
        """The plan that ran last. Raises PlanError before the first call."""
        return self.last.plan

    def execute(self, inputs: Mapping[str, Any] | Sequence[Any], **more: Any) -> dict[str, Any]:
        """The outputs by name: see `Plan.execute`."""
        listed = self._merge((), dict(inputs)) if isinstance(inputs, Mapping) else tuple(inputs)
        compiled = self._for(listed)
        return compiled.run.execute([listed[position] for position in compiled.takes], **more)

    def profile(self, *inputs: Any, repeats: int = 10, rates: Rates | None = None, **named: Any) -> Profile:
        """Seconds, bytes and FLOPs of each step: see `Executable.profile`."""
        listed = self._merge(inputs, named)
        compiled = self._for(listed)
        return compiled.run.profile(
            *[listed[position] for position in compiled.takes], repeats=repeats, rates=rates
        )

    def when_specialised(self, act: Callable[[Compiled], object]) -> None:
        """Have something done with each variant that joins."""
        self._when_specialised = act

    def prepare(self, inputs: Sequence[Any]) -> None:
        """Have a variant for inputs like these, and its plan; they are not computed with."""
        compiled = self._for(tuple(inputs))
        compiled.run.prepare([inputs[place] for place in compiled.takes])

    def wait(self, timeout: float | None = None) -> bool:
        """As `Executable.wait`, for all variants; timeout: for each."""
        return all(compiled.run.wait(timeout) for compiled in self._compiled)

    def save(self, path: str | os.PathLike[str]) -> None:
        """As `Executable.save`, of the one variant there is. Raises PlanError unless it is right for all its shapes."""
        if len(self._compiled) != 1 or self._compiled[0].variant.values:
            raise PlanError(
                f"model {self.name} has {len(self._compiled)} variants, each for some calls, and a file holds one for "
                "all: bind sizes or values (compile(…, dims=…, values=…)) and save that"
            )
        self._compiled[0].run.save(path)

    # -- variants

    def _run(self, inputs: tuple[Any, ...]) -> Any:
        compiled = self._for(inputs)
        return compiled.run(*[inputs[position] for position in compiled.takes])

    def _for(self, inputs: tuple[Any, ...]) -> Compiled:
        """What runs a call, compiled if it is of a new kind."""
        shapes = shapes_of(inputs, self.source.inputs, f"model {self.name}")
        input_names = self.source.wanted
        values = {
            name: given_array(one)
            for name, one in zip(self.source.inputs, inputs, strict=True)
            if name in input_names
        }
        key = (shapes, *[value.tobytes() for value in values.values()])
        compiled = self._calls.get(key)
        if compiled is None:
            with self._lock:
                compiled = self._find(shapes, values) or self._compile(shapes, inputs)
                self._calls[key] = compiled
        if compiled is not self._current:
            self._current = compiled
            self.signature = Signature(self.signature.inputs, compiled.run.signature.outputs)
        self.candidates = compiled.run.candidates
        return compiled

    def _find(self, shapes: Sequence[tuple[int, ...]], values: Mapping[str, Array]) -> Compiled | None:
        return next(
            (compiled for compiled in reversed(self._compiled) if compiled.variant.takes(shapes, values)),
            None,
        )

    def _compile(self, shapes: Sequence[tuple[int, ...]], inputs: Sequence[Any]) -> Compiled:
        names = tuple(self.source.inputs)
        failed: CompilerError | None = None
        for variant in self._variants(shapes, dict(zip(names, inputs, strict=True))):
            try:
                bind_shapes(variant.inputs, shapes, f"model {self.name}: input")
                run = Executable.of(variant.graph, self.settings, rewrite=self._rewrite)
            except CompilerError as error:
                failed = error
                continue
            takes = tuple(index for index, name in enumerate(names) if name in variant.graph.inputs)
            compiled = Compiled(variant, run, takes)
            self._calls.clear()  # a value may be looked at from now on
            self._compiled.append(compiled)
            if self._when_specialised is not None:
                self._when_specialised(compiled)
            if len(self._compiled) > max(1, self.settings.max_shapes):
                self._compiled.pop(0)
                self.evicted += 1
            return compiled
        assert failed is not None
        raise failed

    def _variants(self, shapes: Sequence[tuple[int, ...]], inputs: Mapping[str, Any]) -> Iterator[Variant]:
        return self.source.of(shapes, {name: given_array(array) for name, array in inputs.items()})
