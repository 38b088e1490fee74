"""Model families of transformers, compiled, against eager PyTorch: `python -m benchmarks.families`.

Small configurations with random weights, in float32 or (--dtype) narrower: this asks how broadly `compile` serves, not
how fast one model can be made. Each model has its largest difference from eager beside the speed, and the seconds
that `compile` takes with empty caches.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from typing import Any

from benchmarks.harness import Worker, arguments, compare, table, write

TOKENS = (2, 64)
IMAGE = (1, 3, 224, 224)
_SIZES = {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 512}
_TEXT = {**_SIZES, "vocab_size": 1000}
_GROUPED = {**_TEXT, "num_key_value_heads": 2}
_T5 = {"d_model": 256, "d_kv": 64, "d_ff": 512, "num_layers": 3, "num_heads": 4, "vocab_size": 1000}

FAMILIES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    # name: (model, config, its arguments, the argument of forward)
    "bert": ("BertModel", "BertConfig", _TEXT, "input_ids"),
    "clip_text": ("CLIPTextModel", "CLIPTextConfig", _TEXT, "input_ids"),
    "convnext": ("ConvNextModel", "ConvNextConfig",
                 {"hidden_sizes": [32, 64, 128, 256], "depths": [2] * 4}, "pixel_values"),
    "deberta_v2": ("DebertaV2Model", "DebertaV2Config", _TEXT, "input_ids"),
    "distilbert": ("DistilBertModel", "DistilBertConfig",
                   {"dim": 256, "n_layers": 3, "n_heads": 4, "hidden_dim": 512, "vocab_size": 1000}, "input_ids"),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**_GROUPED, "head_dim": 64}, "input_ids"),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config",
             {"n_embd": 256, "n_layer": 3, "n_head": 4, "vocab_size": 1000}, "input_ids"),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _TEXT, "input_ids"),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _GROUPED, "input_ids"),
    "mamba": ("MambaForCausalLM", "MambaConfig",
              {"hidden_size": 256, "num_hidden_layers": 2, "vocab_size": 1000}, "input_ids"),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**_GROUPED, "num_local_experts": 4}, "input_ids"),
    "mobilenet_v2": ("MobileNetV2Model", "MobileNetV2Config", {}, "pixel_values"),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", {**_TEXT, "num_key_value_heads": 4, "pad_token_id": 0}, "input_ids"),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", {**_GROUPED, "pad_token_id": 0}, "input_ids"),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**_GROUPED, "head_dim": 64}, "input_ids"),
    "regnet": ("RegNetModel", "RegNetConfig", {}, "pixel_values"),
    "resnet18": ("ResNetModel", "ResNetConfig",
                 {"layer_type": "basic", "depths": [2] * 4, "hidden_sizes": [64, 128, 256, 512]}, "pixel_values"),
    "roberta": ("RobertaModel", "RobertaConfig", _TEXT, "input_ids"),
    "segformer": ("SegformerModel", "SegformerConfig", {}, "pixel_values"),
    "swin": ("SwinModel", "SwinConfig", {"embed_dim": 48, "depths": [2, 2], "num_heads": [3, 6]}, "pixel_values"),
    "t5_encoder": ("T5EncoderModel", "T5Config", _T5, "input_ids"),
    "vit": ("ViTModel", "ViTConfig", _SIZES, "pixel_values"),
}  # fmt: skip


def built(name: str, dtype: str) -> tuple[Any, tuple[Any, ...]]:
    """A module whose forward takes one tensor and returns one, and the tensor."""
    import torch
    import transformers

    model, config, given, argument = FAMILIES[name]
    torch.manual_seed(0)
    inner = getattr(transformers, model)(getattr(transformers, config)(**given)).eval()

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first: torch.Tensor = self.model(**{argument: x})[0]
            return first

    x = torch.randint(0, 1000, TOKENS) if argument == "input_ids" else torch.randn(IMAGE)
    plain = Plain().to(getattr(torch, dtype))
    return plain, (x if argument == "input_ids" else x.to(getattr(torch, dtype)),)


def run(family: str, peer: str, dtype: str) -> tuple[Callable[[], Any], dict[str, Any]]:
    """A step that runs a model once: `peer` is "eager" or "kernels_hub"."""
    import time

    import torch

    from kernels_hub import compiler

    module, args = built(family, dtype)
    with torch.inference_mode():
        expected = module(*args)
    if peer == "eager":

        def eager() -> None:
            with torch.inference_mode():
                module(*args)

        return eager, {"max_magnitude": float(expected.abs().max())}
    started = time.perf_counter()
    compiled = compiler.compile((module, args), "cpu")
    seconds = time.perf_counter() - started
    difference = float((compiled(*args) - expected).abs().max())
    engines = list(dict.fromkeys(compiled.plan.engines))
    return lambda: compiled(*args), {
        "max_difference": difference,
        "engines": engines,
        "compile_s": round(seconds, 2),
    }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    options = parser.parse_args()
    rows, results, ratios = [], {}, []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["KERNELS_HUB_CACHE"] = cache
        for family in options.families:
            workers = [
                Worker(
                    peer,
                    "benchmarks.families:run",
                    {"family": family, "peer": peer, "dtype": options.dtype},
                    options.threads,
                )
                for peer in ("eager", "kernels_hub")
            ]
            found = compare(workers, rounds=options.rounds, seconds=0.2)
            ratio, told = found.speedup("kernels_hub", "eager"), found.info["kernels_hub"]
            ratios.append(ratio)
            results[family] = {**found.to_dict(), "speedup_over_eager": round(ratio, 3)}
            rows.append(
                (
                    family,
                    f"{found.median('eager') * 1e3:.2f}",
                    f"{found.median('kernels_hub') * 1e3:.2f}",
                    f"{ratio:.2f}",
                    f"{told['max_difference']:.1e}",
                    f"{found.info['eager']['max_magnitude']:.2g}",
                    ", ".join(told["engines"]),
                    f"{told['compile_s']:.1f}",
                )
            )
            print(*rows[-1], flush=True)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    heads = (
        "family",
        "eager ms",
        "compiled ms",
        "ratio",
        "largest difference",
        "of",
        "engines",
        "compiled in s",
    )
    print(table(heads, rows))
    print(f"geometric mean of {len(ratios)}: {mean:.2f}; least {min(ratios):.2f}")
    if options.write:
        summary = {"dtype": options.dtype, "geometric_mean": round(mean, 3), "least": round(min(ratios), 3)}
        print(
            write(
                f"families-{options.dtype}",
                {"threads": options.threads, "summary": summary, "families": results},
            )
        )


if __name__ == "__main__":
    main()
