"""Whether every kind of model that transformers has computes the same with kernels: `python -m benchmarks.every_model`.

The zoo has 48 kinds that were chosen; this takes all that are registered, hundreds, in a configuration that is made
small by rules: two layers, 64 wide, 512 tokens of vocabulary. Where the rules make none that runs, fewer of them are
tried; what no set of rules makes is left out, and said with its error. Every kernel of the mapping is used, whatever it
gains.

Each model has a process of its own, forked after the imports. Compared with eager are its outputs for one input, for a
smaller one of another batch, and six tokens that it writes where it can. A model that does not repeat its own outputs
(random masks and noise) cannot be judged, and is listed. In 16 bits (--dtype) both are compared with the weights in
float32: with kernels a model may be off by twice what it is without, and it may write other tokens.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.harness import arguments, in_a_process, table, write, written_today
from benchmarks.zoo_breadth import difference, tensors

_TOLERANCE = 1e-4
_LEAST_OF_16_BITS = 4e-3
"""What is right in any case there: half a step of bfloat16, which rounds a result as it is written down."""
_NEW_TOKENS = 6
_MOST_PARAMETERS = 120e6

_LAYERS = dict.fromkeys(
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers",
     "num_decoder_layers"), 2
)  # fmt: skip
_VOCABULARY = {"vocab_size": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_WIDTHS = {
    **dict.fromkeys(("hidden_size", "d_model", "embed_dim", "n_embd", "dim", "embedding_size", "projection_dim"), 64),
    **dict.fromkeys(
        ("hidden_dim", "intermediate_size", "ffn_dim", "d_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim"), 128
    ),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 64),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
         "decoder_attention_heads"), 4
    ),
    "num_key_value_heads": 2,
}  # fmt: skip
_SIZES = {
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 256),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("n_shared_experts", "first_k_dense_replace", "n_group", "topk_group"), 1),
    "num_experts_per_tok": 2,
    "sliding_window": 16,
    "image_size": 64,
    "patch_size": 16,
    "kv_lora_rank": 16,
    "q_lora_rank": 32,
    "mamba_d_state": 8,
    "mamba_d_head": 16,
    "mamba_n_heads": 8,
    "num_codebooks": 2,
}
_HEADS = {"head_dim": 16, "d_kv": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
_RULES: tuple[Mapping[str, int], ...] = (
    {**_LAYERS, **_VOCABULARY, **_WIDTHS, **_SIZES, **_HEADS},
    {**_LAYERS, **_VOCABULARY, **_WIDTHS, **_SIZES},
    {**_LAYERS, **_VOCABULARY, "hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 128},
    {**_LAYERS, **_VOCABULARY},
)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", nargs="*", metavar="KIND", help="these alone, as in llama bert")
    parser.add_argument("--mapping", default="default", help="default, compiled or a path")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--seconds", type=float, default=120.0, help="that a model may take")
    options = parser.parse_args()
    os.environ.update(KERNELS_HUB_CALIBRATION="ignore", KERNELS_HUB_JIT="wait", KERNELS_HUB_JIT_TRIAL="off")
    warnings.simplefilter("ignore")
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    import kernels_hub  # noqa: F401  (before the forks)

    transformers.logging.set_verbosity_error()
    name = f"every-model-{options.mapping}" + ("" if options.dtype == "float32" else f"-{options.dtype}")
    kinds: dict[str, Any] = written_today(name).get("kinds", {}) if options.write else {}
    for kind in (one for one in options.only or sorted(CONFIG_MAPPING) if one not in kinds):
        what = (kind, options.mapping, options.threads, options.dtype)
        kinds[kind] = in_a_process(_compared, what, options.seconds, start="fork")
        if "skipped" not in kinds[kind]:
            print(f"{kind}: {kinds[kind]}", flush=True)
        if options.write:
            write(name, {"threads": options.threads, "summary": _summary(kinds), "kinds": kinds})
    print(table(("kinds of model", "are"), [(str(len(of)), what) for what, of in _summary(kinds).items()]))
    print(json.dumps({what: of for what, of in _summary(kinds).items() if what in _NAMED}, indent=1))


_NAMED = ("wrong", "failed", "random")


def _summary(kinds: Mapping[str, Any]) -> dict[str, list[str]]:
    """Kinds by what was found."""
    found: dict[str, list[str]] = {what: [] for what in ("right", *_NAMED, "skipped")}
    for kind, said in kinds.items():
        found[_verdict(said)].append(kind)
    return found


def _verdict(said: Mapping[str, Any]) -> str:
    if "skipped" in said or "failed" in said:
        return "skipped" if "skipped" in said else "failed"
    if said["repeated"] > _TOLERANCE:
        return "random"
    if "own" in said:
        return "right" if said["error"] <= max(2 * said["own"], _LEAST_OF_16_BITS) else "wrong"
    return "right" if said["error"] <= _TOLERANCE and said["equal"] else "wrong"


def _compared(kind: str, mapping: str, threads: int, dtype: str) -> dict[str, Any]:
    """What differs, of a kind that could be made; {"skipped": why}."""
    import torch

    from kernels_hub import Mode, kernelize, load_kernel_mapping, report, use_kernel_mapping

    torch.set_num_threads(threads)
    reasons = []
    for rules in _RULES:
        try:
            model, given = _made(kind, rules, getattr(torch, dtype))
            with torch.inference_mode():
                expected, repeated = tensors(model(**given)), tensors(model(**given))
        except Exception as error:  # noqa: BLE001 - transformers' own, of a configuration that nobody wrote
            reasons.append(f"{type(error).__name__}: {error}"[:120])
            continue
        break
    else:
        return {"skipped": reasons}
    calls = list(_calls(model, given))
    with torch.inference_mode():
        own = wanted = [tensors(call(model)) for call in calls]
        if dtype != "float32":
            exact = copy.deepcopy(model).float()
            wanted = [tensors(call(exact)) for call in _calls(exact, _cast(given, torch.float32))]
    with use_kernel_mapping(load_kernel_mapping(mapping), inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, wait=True)
    differences = []
    with torch.inference_mode():
        for call, right in zip(calls, wanted, strict=True):
            differences += [difference(tensors(call(model)), right) for _ in range(2)]
    in_16_bits = {"own": max(map(_error, own, wanted))} if dtype != "float32" else {}
    return {
        "class": type(model).__name__,
        "repeated": difference(repeated, expected)["error"],
        "error": max(one["error"] for one in differences),
        "equal": all(one["tokens"] for one in differences),
        "swapped": sum(row.swapped for row in report(model).rows),
        **in_16_bits,
    }


def _error(actual: list[Any], expected: list[Any]) -> float:
    return float(difference(actual, expected)["error"])


def _cast(given: Mapping[str, Any], dtype: Any) -> dict[str, Any]:
    return {name: one.to(dtype) if one.is_floating_point() else one for name, one in given.items()}


def _calls(model: Any, given: Mapping[str, Any]) -> Iterator[Any]:
    """With what it takes; of a model that takes ids alone also a batch of one with fewer tokens, and writing."""
    import torch

    yield lambda model: model(**given)
    if any(value.dtype != torch.int64 for value in given.values()):
        return
    fewer = {name: value[:1, :-2].contiguous() for name, value in given.items()}
    yield lambda model: model(**fewer)
    if "input_ids" in given and hasattr(model, "generate") and model.can_generate():
        yield lambda model: model.generate(**fewer, max_new_tokens=_NEW_TOKENS, do_sample=False)


def _made(kind: str, rules: Mapping[str, int], dtype: Any) -> tuple[Any, dict[str, Any]]:
    """A model and what it takes. Raises what transformers raises, ValueError."""
    import torch
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    cls: Any = CONFIG_MAPPING[kind]
    default = cls()
    config = cls(
        **{name: value for name, value in rules.items() if type(getattr(default, name, None)) is int}
    )
    _make_small(config, rules, default)
    made_by: Any = next(
        (one[cls] for one in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING) if cls in one), None
    )
    if made_by is None:
        raise ValueError("no model has this configuration")
    made_by = made_by[0] if isinstance(made_by, (list, tuple)) else made_by
    with torch.device("meta"):
        size = sum(weight.numel() for weight in made_by(config).parameters())
    if size > _MOST_PARAMETERS:
        raise ValueError(f"{size:,} parameters")
    torch.manual_seed(0)
    model = made_by(config).eval().to(dtype)
    return model, _cast(_given(model, config), dtype)


def _make_small(config: Any, rules: Mapping[str, int], default: Any, depth: int = 0) -> None:
    """The same of the configurations within, and of lists that go by layers: each kind of layer once, at least."""
    from transformers import PretrainedConfig

    kinds = list(dict.fromkeys(getattr(default, "layer_types", None) or ()))
    if kinds and getattr(config, "num_hidden_layers", 0) == _LAYERS["num_hidden_layers"]:
        config.num_hidden_layers = max(config.num_hidden_layers, len(kinds))
        config.layer_types = (kinds * config.num_hidden_layers)[: config.num_hidden_layers]
    for attribute, part in list(vars(config).items()):
        if not isinstance(part, PretrainedConfig) or depth > 2:
            continue
        for name, value in rules.items():
            if type(getattr(part, name, None)) is int:
                setattr(part, name, value)
        _make_small(part, rules, getattr(default, attribute, None), depth + 1)


def _given(model: Any, config: Any) -> dict[str, Any]:
    """Inputs by the names that its forward has."""
    import torch

    torch.manual_seed(1)
    names, main = inspect.signature(model.forward).parameters, model.main_input_name
    parts = [config, *(getattr(config, name, None) for name in ("text_config", "vision_config"))]

    def stated(name: str, otherwise: int) -> int:
        found = next((value for part in parts if (value := getattr(part, name, None))), otherwise)
        return int(found[0] if isinstance(found, (list, tuple)) else found)

    def ids(tokens: int) -> Any:
        return torch.randint(3, min(stated("vocab_size", 100), 500), (2, tokens))

    if main == "input_values":
        return {main: torch.randn(2, 4000)}
    if main == "input_features":
        frames = 2 * stated("max_source_positions", 50)
        return {main: torch.randn(2, stated("num_mel_bins", 80), frames)}
    given: dict[str, Any] = {"input_ids": ids(9)} if "input_ids" in names else {}
    if main == "pixel_values" or "clip" in config.model_type or not given:
        side = stated("image_size", 64)
        given["pixel_values"] = torch.randn(2, stated("num_channels", 3), side, side)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in names:
        given["decoder_input_ids"] = ids(5)
    return given


if __name__ == "__main__":
    main()
