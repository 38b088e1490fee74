"""Feed-forward blocks: gated, and plain."""

from . import layers
from .feed_forward import gated_mlp, joined_gated_mlp, mlp
from .kernels import weights

__all__ = ["gated_mlp", "joined_gated_mlp", "layers", "mlp", "weights"]
