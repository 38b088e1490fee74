"""What distinguishes one cross-entropy from another: a small record that every backend takes."""

from __future__ import annotations

from typing import NamedTuple


class LossForm(NamedTuple):
    """The loss of a row of logits x (V,) with class t, computed in float32:

        y     softcap tanh(x / softcap), or x where softcap is 0
        lse   log(sum(exp(y)))
        loss  (1 - label_smoothing) (lse - y[t]) + label_smoothing (lse - mean(y)) + z_loss lse²

    and 0 where t is `ignore_index`. Its gradient, with p = exp(y - lse) and [c = t] 1 at the class:

        dy    p (1 + 2 z_loss lse) - (1 - label_smoothing) [c = t] - label_smoothing / V
        dx    dy (1 - (y / softcap)²)
    """

    ignore_index: int = -100
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    softcap: float = 0.0
