"""The cases of `python -m benchmarks.layers`: each loss against the module that it replaces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import BaseModelOutputWithPast

Case = tuple[str, Callable[[], nn.Module], tuple[Tensor, ...]]

# rows, classes; rows, hidden size, classes: a small model's step, and on a GPU one of 8 billion parameters.
ROWS = {"cpu": ((512, 32000), (2048, 1000)), "cuda": ((8192, 128256), (4096, 32000))}
HEADS = {"cpu": ((512, 512, 32000),), "cuda": ((8192, 4096, 128256), (4096, 2048, 32000))}


class Head(nn.Module):
    """A language model without layers: hidden states, in the place of tokens, to loss as in LlamaForCausalLM."""

    loss_type = "ForCausalLM"
    loss_function = LlamaForCausalLM.loss_function

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.config = LlamaConfig(vocab_size=classes, hidden_size=width, return_dict=False)
        self.lm_head = nn.Linear(width, classes, bias=False)

    def model(self, input_ids: Tensor, **_: object) -> BaseModelOutputWithPast:
        """The hidden states as they came."""
        return BaseModelOutputWithPast(last_hidden_state=input_ids)  # type: ignore[arg-type]

    def forward(self, input_ids: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        loss: Callable[..., Tensor] = self.loss_function
        logits = self.lm_head(input_ids)
        found = loss(logits=logits, labels=rest[-1], vocab_size=self.config.vocab_size)
        return (found,) if self.training else (found, logits)


def cases(device: str, dtype: torch.dtype) -> list[Case]:
    """(layer and shape, factory of the original module, example inputs) for each layer and shape."""
    found: list[Case] = []
    for rows, classes in ROWS[device]:
        logits = torch.randn(rows, classes, device=device, dtype=dtype)
        target = torch.randint(0, classes, (rows,), device=device)
        found.append((f"CrossEntropyLoss {rows}x{classes}", nn.CrossEntropyLoss, (logits, target)))
    for rows, width, classes in HEADS[device]:
        hidden = torch.randn(1, rows, width, device=device, dtype=dtype)
        labels = torch.randint(0, classes, (1, rows), device=device)
        inputs = (hidden, *4 * (labels,), labels)  # the model reads none of the four in between
        found.append((f"CausalLM {rows}x{width}x{classes}", partial(Head, width, classes), inputs))
    return found
