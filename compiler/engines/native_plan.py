"""A loaded native program with its weights, as a plan of an engine: what a call of it is.

Knows neither graphs nor schedules: of a program that was compiled now (`cpp`) or before (`cpp_image`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from kernels_hub.compiler.engines.calls import CallLayout, Calls
from kernels_hub.compiler.engines.engine import Signature
from kernels_hub.compiler.errors import EvaluateError
from kernels_hub.compiler.ir.types import Array
from kernels_hub.compiler.runtime.arena import Arenas
from kernels_hub.compiler.runtime.binding import Binding
from kernels_hub.compiler.runtime.native import Loaded
from kernels_hub.compiler.runtime.native_program import NativeProgram

FLUSH_DENORMALS = os.environ.get("KERNELS_HUB_DENORMALS", "flush") != "keep"
"""Whether denormal floats count as 0 in kernels; KERNELS_HUB_DENORMALS=keep computes with them."""

_IS_CONTIGUOUS = torch.Tensor.is_contiguous


@dataclass
class PlacedWeights:
    """An address for each buffer of a program, then for each packed operand, 0 for what a call brings; what is there.

    held: number -> the array or tensor whose memory the address is of.
    """

    addresses: list[int]
    held: dict[int, torch.Tensor | Array] = field(default_factory=dict)

    def hold(self, where: int, what: torch.Tensor | Array) -> None:
        """Keep memory alive, and note its address."""
        self.held[where], self.addresses[where] = what, address(what)


def address(memory: torch.Tensor | Array) -> int:
    """Of an array or a tensor."""
    return int(memory.data_ptr() if isinstance(memory, torch.Tensor) else memory.ctypes.data)


class NativePlan:
    """A program that was loaded. messages: those of errors, by the number that a call returns, less one."""

    engine = "cpp"

    def __init__(
        self,
        signature: Signature,
        layout: CallLayout,
        messages: Sequence[str],
        native: Loaded,
        weights: PlacedWeights,
    ) -> None:
        self.signature, self.messages, self.weights = signature, tuple(messages), weights
        self._calls = Calls(layout, signature)
        tensors = (*layout.inputs, *layout.outputs)
        self._program = NativeProgram(native, weights.addresses, tensors, Arenas())
        native.configure(use_pool=False, flush_denormals=FLUSH_DENORMALS)

    @property
    def native(self) -> Loaded:
        """The library."""
        return self._program.native

    @property
    def layout(self) -> CallLayout:
        """What the program is called with."""
        return self._calls.layout

    def run_alone(self) -> None:
        """No other engine's threads run within a call: use threads that are asleep between calls."""
        self.native.configure(use_pool=True, flush_denormals=FLUSH_DENORMALS)

    def workspace_size(self, sizes: Mapping[str, int]) -> int:
        """Bytes of the arena."""
        return self._calls.workspace_size(sizes)

    def compute(
        self,
        inputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None = None,
        stream: int | None = None,  # noqa: ARG002  (the protocol's)
    ) -> list[torch.Tensor]:
        """The outputs, in memory of their own."""
        binding = self._calls.of(inputs)
        outputs = binding.new_outputs()
        self._run(binding, inputs, outputs, workspace)
        return outputs

    def execute(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None = None,
        stream: int | None = None,  # noqa: ARG002  (the protocol's)
    ) -> None:
        """See `CompiledPlan`. Raises EvaluateError for an index that is out of range."""
        self._run(self._calls.of(inputs), inputs, outputs, workspace)

    def _run(
        self,
        binding: Binding,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None,
    ) -> None:
        if not all(map(_IS_CONTIGUOUS, inputs)):
            inputs = [tensor.contiguous() for tensor in inputs]
        if code := self._program.run(binding, inputs, outputs, workspace):
            self._check(code)

    def _check(self, code: int) -> None:
        if code:
            raise EvaluateError(self.messages[code - 1])
