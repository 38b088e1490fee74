"""A plan's call as one CUDA graph: the launches of all segments, recorded once and replayed as a whole.

For one set of shapes, and for small models, whose launches take longer than their kernels. A replay checks no bounds:
an index that data make too large is not told (see `Plan.execute`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from kernels_hub.compiler.engines.engine import Device, Signature
from kernels_hub.compiler.errors import EngineError, PlanError

_WARM_UP = 3
"""Calls before the capture: libraries and Triton set themselves up in the first ones."""


class Capturable(Protocol):
    """What can be captured: a Plan."""

    device: Device

    @property
    def name(self) -> str:
        """Of its graph."""

    @property
    def signature(self) -> Signature:
        """Its inputs and outputs."""

    @property
    def torch_device(self) -> torch.device:
        """Where it runs."""

    def run(self, inputs: Sequence[torch.Tensor], /) -> list[torch.Tensor]:
        """A call."""


class CapturedPlan:
    """What `Plan.capture` gives. Call it with tensors like those that it was captured with.

    Calls of several threads wait for each other: inputs and outputs of the graph have one place each.
    """

    def __init__(self, plan: Capturable, inputs: Sequence[torch.Tensor]) -> None:
        self.plan = plan
        self._lock = threading.Lock()
        self._inputs = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in inputs]
        self._graph = torch.cuda.CUDAGraph()
        device = plan.torch_device
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.device(device), torch.cuda.stream(stream), torch.no_grad():
            for _ in range(_WARM_UP):
                plan.run(self._inputs)
        torch.cuda.current_stream(device).wait_stream(stream)
        try:
            with torch.cuda.device(device), torch.no_grad(), torch.cuda.graph(self._graph):
                self._outputs: list[torch.Tensor] = plan.run(self._inputs)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise EngineError(
                f"graph {plan.name}: its call cannot be captured, an engine waits for the GPU or takes memory "
                f"in another way than PyTorch's: {reason}; call the plan itself"
            ) from error

    def __repr__(self) -> str:
        return f"<CapturedPlan {self.plan.name}: {', '.join(str(list(number.shape)) for number in self._inputs)}>"

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """The output, or a tuple of them, in memory of their own. Raises PlanError for other shapes or dtypes."""
        self._check(inputs)
        with self._lock:
            for number, tensor in zip(self._inputs, inputs, strict=True):
                number.copy_(tensor, non_blocking=True)
            self._graph.replay()
            results = [output.clone() for output in self._outputs]
        return results[0] if len(results) == 1 else tuple(results)

    def _check(self, inputs: Sequence[Any]) -> None:
        names = tuple(self.plan.signature.inputs)
        if len(inputs) != len(names):
            raise PlanError(
                f"graph {self.plan.name} takes the inputs {list(names)}, got {len(inputs)} values"
            )
        for name, number, one in zip(names, self._inputs, inputs, strict=True):
            found = (one.shape, one.dtype) if isinstance(one, torch.Tensor) else type(one).__name__
            if found != (number.shape, number.dtype):
                raise PlanError(
                    f"graph {self.plan.name}: input {name!r} was captured as {number.dtype}{list(number.shape)}, "
                    f"got {found if isinstance(found, str) else f'{found[1]}{list(found[0])}'}; capture it again"
                )


def capture(plan: Capturable, inputs: Sequence[Any]) -> CapturedPlan:
    """See `Plan.capture`."""
    if plan.device.type == "cpu":
        raise PlanError(
            f"graph {plan.name}: only calls on a GPU can be captured, its plan is for {plan.device}"
        )
    results = plan.run(inputs)  # checks the inputs
    if not all(isinstance(one, torch.Tensor) for one in (*inputs, *results)):
        raise PlanError(f"graph {plan.name}: a call is captured with tensors on {plan.device}")
    return CapturedPlan(plan, inputs)
