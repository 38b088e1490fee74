"""RMSNorm and LayerNorm: plain, with a residual added first, gated, zero-centred."""

from . import layers
from .functional import add_layer_norm, add_rms_norm, layer_norm, rms_norm, rms_norm_gated

__all__ = ["add_layer_norm", "add_rms_norm", "layer_norm", "layers", "rms_norm", "rms_norm_gated"]
