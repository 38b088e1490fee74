"""`BoundedExecutable`: an ONNX model compiled for all sizes but a few, which are compiled for when a call brings them.

A graph for open sizes has bounds that its import found: h >= 3 where a pooling window of 3 is to find something to see.
ONNX Runtime answers for some sizes beyond them, by rules that hold for these alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from kernels_hub.compiler.errors import CompilerError, DimError
from kernels_hub.compiler.executable import Executable


class BoundedExecutable(Executable):
    """See the module. A call that neither the graph nor the model takes raises what the graph says of it."""

    beyond: Callable[[], Executable] | None = None
    """Makes what compiles the model for the sizes that calls bring."""
    _others: Executable | None = None

    def execute(self, inputs: Mapping[str, object] | Sequence[object], **more: object) -> dict[str, object]:
        """The outputs by name: see `Plan.execute`."""
        listed = self._merge((), dict(inputs)) if isinstance(inputs, Mapping) else tuple(inputs)
        try:
            return super().execute(listed, **cast("dict[str, Any]", more))
        except DimError as error:
            return self._beyond(error, listed).execute(listed, **more)

    def prepare(self, inputs: Sequence[object]) -> None:
        """Have a plan for inputs like these, which are not computed with."""
        try:
            super().prepare(inputs)
        except DimError as error:
            self._beyond(error, inputs)

    def wait(self, timeout: float | None = None) -> bool:
        """As `Executable.wait`; timeout: also for what is compiled for sizes beyond the bounds."""
        others = self._others
        return super().wait(timeout) and (others is None or others.wait(timeout))

    def _run_plan(self, inputs: tuple[object, ...]) -> object:
        try:
            return super()._run_plan(inputs)
        except DimError as error:
            return self._beyond(error, inputs)(*inputs)

    def _beyond(self, error: DimError, inputs: Sequence[object]) -> Executable:
        """What runs a call. Raises `error` where nothing does."""
        if self.beyond is None:
            raise error
        try:
            with self._lock:
                if self._others is None:
                    self._others = self.beyond()
            self._others.prepare(inputs)
        except CompilerError:
            raise error from None
        return self._others
