"""Kernelize a transformers model, look at what was done, and undo it.

Run with `python examples/kernelize_a_transformers_model.py`. The model is built from a config with
random weights; with real ones, use `AutoModel.from_pretrained("…")` instead: nothing else changes.
"""

from __future__ import annotations

import torch
from transformers import BertConfig, BertModel

from kernels_hub import Mode, explain, kernelize, report, restore


def main() -> float:
    torch.manual_seed(0)
    model = BertModel(
        BertConfig(hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=1024)
    ).eval()
    inputs = {"input_ids": torch.randint(0, 30522, (2, 64))}

    with torch.inference_mode():
        before = model(**inputs).last_hidden_state

        print("what would happen:")
        print(explain(model, mode=Mode.INFERENCE))

        # verify= runs original and kernel side by side on these inputs, layer by layer, first.
        kernelize(model, mode=Mode.INFERENCE, verify=inputs)
        after = model(**inputs).last_hidden_state
        error = float((before - after).abs().max())
        print(f"{len(report(model).swapped)} layers swapped, largest difference {error:.1e}")

        restore(model)
        assert torch.equal(model(**inputs).last_hidden_state, before)
    return error


if __name__ == "__main__":
    main()
