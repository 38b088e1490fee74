"""The layer of this repository. `self` is the block whose forward it replaces.

The block's children are not called, so they must be what they were: plain modules, without hooks, that nothing watches.
Otherwise, in training, and for all but float32, the children are called one after the other, as the block itself does.
"""

from __future__ import annotations

from torch import Tensor, nn

from .kernels import block
from .parts import called_in_turn, parts_of


class ConvNextBlock(nn.Module):
    """x + scale * second(activation(first(norm(convolution(x))))): the block of ConvNeXt, of DINOv3's too.

    features (N, C, H, W); the convolution has a filter for each channel, the norm and the linear layers work on the
    channels of each pixel. The result is channels_last, in which the next block is fastest.
    Sources: arXiv 2201.03545; transformers/models/convnext/modeling_convnext.py.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, features: Tensor) -> Tensor:
        parts = parts_of(self)
        result = block(features, parts)
        return called_in_turn(features, parts) if result is None else result
