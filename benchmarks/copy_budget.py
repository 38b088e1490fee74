"""Models of normal size under the default mapping, with all copies of weights and with few: `python -m
benchmarks.copy_budget`.

Each model runs eager (twice: the control), kernelized without a budget and with `copy_budget`, and with the mapping
`compiled`, each in a process of its own, in float32 with random weights. Beside the speed: what copies hold, what is
left of the gain with the budget, and the default mapping's speed by that of `compiled`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.harness import Worker, arguments, compare, table, write

BUDGET = 0.25
"""Of the parameters' bytes."""
PEERS = ("eager", "control", "default", "budget", "compiled")


def _bert(transformers: Any, torch: Any) -> tuple[Any, dict[str, Any]]:
    model = transformers.BertModel(transformers.BertConfig())
    return model, {"input_ids": torch.randint(1, 9999, (4, 128))}


def _llama(transformers: Any, torch: Any) -> tuple[Any, dict[str, Any]]:
    config = transformers.LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16,
        num_key_value_heads=8, vocab_size=8000,
    )  # fmt: skip
    tokens = torch.randint(1, 7999, (4, 512))
    return transformers.LlamaModel(config), {"input_ids": tokens, "use_cache": False}


def _vit(transformers: Any, torch: Any) -> tuple[Any, dict[str, Any]]:
    return transformers.ViTModel(transformers.ViTConfig()), {"pixel_values": torch.randn(1, 3, 224, 224)}


def _whisper(transformers: Any, torch: Any) -> tuple[Any, dict[str, Any]]:
    config = transformers.WhisperConfig(
        d_model=512, encoder_layers=6, decoder_layers=1, encoder_attention_heads=8, decoder_attention_heads=8,
        encoder_ffn_dim=2048,
    )  # fmt: skip
    return transformers.WhisperModel(config).encoder, {"input_features": torch.randn(1, 80, 3000)}


def _convnext(transformers: Any, torch: Any) -> tuple[Any, dict[str, Any]]:
    model = transformers.ConvNextModel(transformers.ConvNextConfig())
    return model, {"pixel_values": torch.randn(1, 3, 224, 224)}


MODELS: dict[str, Callable[[Any, Any], tuple[Any, dict[str, Any]]]] = {
    "bert_base": _bert,
    "llama": _llama,
    "vit_base": _vit,
    "whisper_encoder": _whisper,
    "convnext_tiny": _convnext,
}


def run(model: str, peer: str) -> Any:
    """A step that runs a model once, and what its copies hold."""
    import torch
    import transformers

    from kernels_hub import (
        Mode,
        kernelize,
        load_kernel_mapping,
        report,
        use_kernel_mapping,
        wait_until_compiled,
    )

    torch.manual_seed(0)
    built, inputs = MODELS[model](transformers, torch)
    built.eval()
    if peer not in ("eager", "control"):
        mapping = load_kernel_mapping("compiled" if peer == "compiled" else "default")
        budget = BUDGET if peer == "budget" else None
        with use_kernel_mapping(mapping, inherit_mapping=False):
            kernelize(built, mode=Mode.INFERENCE, wait=True, copy_budget=budget)
    with torch.inference_mode():
        built(**inputs)
        wait_until_compiled(built)
        built(**inputs)
    rows = report(built)
    info = {"swapped": len(rows.swapped), "copies_mib": round(rows.packed_nbytes / 2**20, 1)}
    info["parameters_mib"] = round(sum(one.nbytes for one in built.parameters()) / 2**20, 1)

    def step() -> None:
        with torch.inference_mode():
            built(**inputs)

    return step, info


def main() -> None:
    from kernels_hub.calibration.processor import processor_name

    parser = arguments(__doc__ or "")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for model in options.models:
        workers = [
            Worker(peer, "benchmarks.copy_budget:run", {"model": model, "peer": peer}, options.threads)
            for peer in PEERS
        ]
        found = compare(workers, rounds=options.rounds)
        speed = {peer: round(found.speedup(peer, "eager"), 3) for peer in PEERS[1:]}
        results[model] = {
            **found.to_dict(),
            "speedup_over_eager": speed,
            "gain_left": round((speed["budget"] - 1) / (speed["default"] - 1), 3),
            "default_by_compiled": round(found.speedup("default", "compiled"), 3),
        }
        print(model, speed, flush=True)
    rows = [
        (
            model,
            *(f"{of['speedup_over_eager'][peer]:.2f}" for peer in PEERS[1:]),
            f"{of['gain_left']:.2f}",
            f"{of['default_by_compiled']:.2f}",
        )
        for model, of in results.items()
    ]
    print(table(("model", *PEERS[1:], "gain left", "default / compiled"), rows))
    if options.write:
        print(write("copy-budget", {"budget": BUDGET, "models": results}, processor_name()))


if __name__ == "__main__":
    main()
