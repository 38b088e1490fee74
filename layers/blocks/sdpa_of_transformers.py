"""Whether an attention block of transformers calls PyTorch's scaled_dot_product_attention, and what nobody asks it for.

transformers chooses the function by the block's configuration, and records what blocks return by hooks that it puts on
them at the first call that asks for outputs, and leaves there.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

OTHER_ARGUMENTS = ("is_causal", "position_bias", "cache", "softcap")
"""Arguments of a block that change what transformers' function for "sdpa" computes."""

_SDPA = "transformers.integrations.sdpa_attention"
_RECORDS = "output_capturing_hook"
"""The hook by which transformers records outputs, and weights where it is asked to."""


def calls_sdpa(config: Any) -> bool:
    """Whether blocks of a configuration attend by transformers' own function for "sdpa"."""
    if config._attn_implementation != "sdpa":
        return False
    if torch.compiler.is_compiling():
        return True
    # Somebody may have put another function in its place.
    functions = sys.modules["transformers.modeling_utils"].ALL_ATTENTION_FUNCTIONS
    function = functions["sdpa"]
    return bool(function.__module__ == _SDPA and function.__name__ == "sdpa_attention_forward")


def has_no_hooks_but_records(block: Any) -> bool:
    """Whether a block's forward hooks are those by which transformers records outputs."""
    return all(getattr(hook, "__name__", "") == _RECORDS for hook in block._forward_hooks.values())


def records_weights() -> bool:
    """Whether transformers records attentions in this thread just now."""
    capturing = sys.modules.get("transformers.utils.output_capturing")
    collected = None if capturing is None else capturing._active_collector.get()
    return bool(collected and any("attentions" in name for name in collected))
