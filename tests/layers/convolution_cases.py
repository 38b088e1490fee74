"""The table of convolutions that both variants of `layers/convolution` are tested on."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Case(NamedTuple):
    """Arguments of a convolution: input (N, C, H, W), filters K, kernel (R, S)."""

    input: tuple[int, int, int, int]
    filters: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def geometry(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]:
        return self.stride, self.padding, self.dilation, self.groups

    def tensors(
        self, dtype: torch.dtype, device: str = "cpu", *, bias: bool = True
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Input, weight and bias, the same at every call."""
        generator = torch.Generator().manual_seed(0)
        channels = self.input[1] // self.groups
        scale = (channels * self.kernel[0] * self.kernel[1]) ** -0.5
        weight = torch.randn(self.filters, channels, *self.kernel, generator=generator) * scale
        x = torch.randn(self.input, generator=generator)
        b = torch.randn(self.filters, generator=generator)
        return x.to(device, dtype), weight.to(device, dtype), b.to(device, dtype) if bias else None

    def norm(self, dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A batch norm's weight, bias, running mean and running variance."""
        generator = torch.Generator().manual_seed(1)
        uniform = [torch.rand(self.filters, generator=generator) + 0.5 for _ in range(2)]
        normal = [torch.randn(self.filters, generator=generator) * 0.3 for _ in range(2)]
        return tuple(t.to(device, dtype) for t in (uniform[0], normal[0], normal[1], uniform[1]))  # type: ignore[return-value]


CASES = {
    "stem 7x7/2": Case((1, 3, 31, 33), 20, (7, 7), (2, 2), (3, 3)),
    "1x1": Case((2, 40, 9, 7), 33, (1, 1)),
    "1x1/2": Case((1, 32, 8, 9), 48, (1, 1), (2, 2)),
    "3x3": Case((2, 32, 7, 7), 64, (3, 3), (1, 1), (1, 1)),
    "3x3/2": Case((1, 16, 11, 10), 24, (3, 3), (2, 2), (1, 1)),
    "heavy 3x3": Case((1, 96, 3, 3), 128, (3, 3), (1, 1), (1, 1)),
    "depthwise": Case((1, 24, 9, 9), 24, (3, 3), (1, 1), (1, 1), (1, 1), 24),
    "two filters a channel": Case((1, 6, 8, 8), 12, (5, 3), (1, 2), (2, 1), (1, 1), 6),
    "groups": Case((2, 12, 7, 8), 20, (3, 3), (1, 1), (1, 1), (1, 1), 4),
    "dilated": Case((1, 8, 12, 13), 10, (3, 2), (1, 1), (2, 1), (2, 3)),
    "patches": Case((1, 3, 32, 32), 40, (16, 16), (16, 16)),
    "one pixel": Case((3, 17, 1, 1), 5, (1, 1)),
    "one channel": Case((2, 1, 6, 6), 1, (3, 3), (1, 1), (1, 1)),
    "one image row": Case((1, 5, 1, 20), 7, (1, 3), (1, 1), (0, 1)),
}

LAYOUTS = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "cropped": lambda x: torch.nn.functional.pad(x, (2, 1, 1, 2))[:, :, 1:-2, 2:-1],
    "cropped channels last": lambda x: torch.nn.functional.pad(x, (2, 1, 1, 2)).contiguous(
        memory_format=torch.channels_last
    )[:, :, 1:-2, 2:-1],
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
}
