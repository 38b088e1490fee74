"""The operators. They have no gradients: where one is needed, `functional` calls PyTorch's functions."""

from __future__ import annotations

from . import kernels, reference
from .registration import define, implementations

max_pool2d = define(
    "max_pool2d(Tensor input, int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool ceil_mode) "
    "-> Tensor",
    implementations(kernels.DISPATCH_KEYS, kernels.max_pool2d, reference.max_pool2d),
    reference.max_pool2d,
)

avg_pool2d = define(
    "avg_pool2d(Tensor input, int[2] kernel_size, int[2] stride, int[2] padding, bool ceil_mode, "
    "bool count_include_pad, int? divisor_override) -> Tensor",
    implementations(kernels.DISPATCH_KEYS, kernels.avg_pool2d, reference.avg_pool2d),
    reference.avg_pool2d,
)
