"""The models of `benchmarks.zoo`: 48 classes of transformers from small configurations, and 20 families of timm.

Weights are random; those of timm have the sizes of their names, and ten classes. Text models are 256 wide with three
layers; images are 128 x 128 in patches of 16, so that about 64 tokens come of them. A form is a call of a model:
"4x64" and "1x7" are batches of 4 and 1 (of 64 and 7 tokens, of images, or of audio), "generate" writes 16 tokens after
a prompt of 7.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

FORMS = {"4x64": (4, 64), "1x7": (1, 7)}
GENERATE = "generate"
NEW_TOKENS = 16
PROMPT = (1, 7)

_VOCABULARY = 1000
_SIZES = {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 512}
_TEXT = {**_SIZES, "vocab_size": _VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GROUPED = {**_TEXT, "num_key_value_heads": 2}
_WIDE_HEADS = {**_GROUPED, "head_dim": 64}
_T5 = {"d_model": 256, "d_kv": 64, "d_ff": 512, "num_layers": 3, "num_heads": 4, "vocab_size": _VOCABULARY,
       "decoder_start_token_id": 0}  # fmt: skip
_IMAGE = {"image_size": 128, "patch_size": 16}
_VISION = {**_SIZES, **_IMAGE}
_BART = {"d_model": 256, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512, "vocab_size": _VOCABULARY,
         "max_position_embeddings": 128}  # fmt: skip
_TWO_TOWERS = {"text_config": {**_TEXT, "max_position_embeddings": 64}, "vision_config": _VISION}
_RESIDUAL = {"backbone_config": None, "use_timm_backbone": False, "use_pretrained_backbone": False}


@dataclass(frozen=True)
class Zoo:
    """A class of transformers, its configuration, and what its forward takes."""

    model: str
    config: str
    given: dict[str, Any] = field(default_factory=dict)
    takes: str = "text"
    generates: bool = False


def _decoder(model: str, config: str, given: dict[str, Any]) -> Zoo:
    return Zoo(model, config, given, "text", generates=True)


ZOO: dict[str, Zoo] = {
    "bert": Zoo("BertModel", "BertConfig", _TEXT),
    "distilbert": Zoo("DistilBertModel", "DistilBertConfig",
                      {"dim": 256, "n_layers": 3, "n_heads": 4, "hidden_dim": 512, "vocab_size": _VOCABULARY}),
    "roberta": Zoo("RobertaModel", "RobertaConfig", _TEXT),
    "deberta_v2": Zoo("DebertaV2Model", "DebertaV2Config", _TEXT),
    "modernbert": Zoo("ModernBertModel", "ModernBertConfig", {**_TEXT, "cls_token_id": 1, "sep_token_id": 2}),
    "electra": Zoo("ElectraModel", "ElectraConfig", {**_TEXT, "embedding_size": 128}),
    "albert": Zoo("AlbertModel", "AlbertConfig", {**_TEXT, "embedding_size": 128}),
    "mpnet": Zoo("MPNetModel", "MPNetConfig", _TEXT),
    "gpt2": _decoder("GPT2LMHeadModel", "GPT2Config",
                     {"n_embd": 256, "n_layer": 3, "n_head": 4, "vocab_size": _VOCABULARY, "bos_token_id": 1,
                      "eos_token_id": 2}),
    "gpt_neox": _decoder("GPTNeoXForCausalLM", "GPTNeoXConfig", _TEXT),
    "llama": _decoder("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "qwen2": _decoder("Qwen2ForCausalLM", "Qwen2Config", _GROUPED),
    "qwen3": _decoder("Qwen3ForCausalLM", "Qwen3Config", _WIDE_HEADS),
    "gemma2": _decoder("Gemma2ForCausalLM", "Gemma2Config", _WIDE_HEADS),
    "gemma3": _decoder("Gemma3ForCausalLM", "Gemma3TextConfig", _WIDE_HEADS),
    "phi": _decoder("PhiForCausalLM", "PhiConfig", _TEXT),
    "phi3": _decoder("Phi3ForCausalLM", "Phi3Config", _GROUPED),
    "mistral": _decoder("MistralForCausalLM", "MistralConfig", _GROUPED),
    "mixtral": _decoder("MixtralForCausalLM", "MixtralConfig", {**_GROUPED, "num_local_experts": 4}),
    "olmo2": _decoder("Olmo2ForCausalLM", "Olmo2Config", {**_TEXT, "num_key_value_heads": 4}),
    "falcon": _decoder("FalconForCausalLM", "FalconConfig",
                       {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
                        "vocab_size": _VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}),
    "bloom": _decoder("BloomForCausalLM", "BloomConfig",
                      {"hidden_size": 256, "n_layer": 3, "n_head": 4, "vocab_size": _VOCABULARY}),
    "opt": _decoder("OPTForCausalLM", "OPTConfig",
                    {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 512,
                     "word_embed_proj_dim": 256, "vocab_size": _VOCABULARY}),
    "cohere2": _decoder("Cohere2ForCausalLM", "Cohere2Config", _GROUPED),
    "gpt_oss": _decoder("GptOssForCausalLM", "GptOssConfig", {**_WIDE_HEADS, "num_local_experts": 4}),
    "mamba": _decoder("MambaForCausalLM", "MambaConfig",
                      {"hidden_size": 256, "num_hidden_layers": 2, "vocab_size": _VOCABULARY}),
    "recurrent_gemma": _decoder("RecurrentGemmaForCausalLM", "RecurrentGemmaConfig",
                                {**_GROUPED, "lru_width": 256, "attention_window_size": 64}),
    "rwkv": Zoo("RwkvForCausalLM", "RwkvConfig",
                {"hidden_size": 256, "num_hidden_layers": 3, "vocab_size": _VOCABULARY, "attention_hidden_size": 256}),
    "qwen3_next": _decoder("Qwen3NextForCausalLM", "Qwen3NextConfig",
                           {**_WIDE_HEADS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
                            "shared_expert_intermediate_size": 128, "linear_num_value_heads": 4,
                            "linear_num_key_heads": 2, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
                            "layer_types": ["linear_attention", "linear_attention", "full_attention"]}),
    "t5": Zoo("T5ForConditionalGeneration", "T5Config", _T5, "text_to_text", generates=True),
    "flan_t5": Zoo("T5ForConditionalGeneration", "T5Config",
                   {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, "text_to_text",
                   generates=True),
    "bart": Zoo("BartForConditionalGeneration", "BartConfig", _BART, "text_to_text", generates=True),
    "whisper": Zoo("WhisperForConditionalGeneration", "WhisperConfig",
                   {**_BART, "max_source_positions": 64, "max_target_positions": 128, "pad_token_id": 0,
                    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "begin_suppress_tokens": None,
                    "suppress_tokens": None}, "mel"),
    "clip": Zoo("CLIPModel", "CLIPConfig", _TWO_TOWERS, "image_and_text"),
    "siglip": Zoo("SiglipModel", "SiglipConfig", _TWO_TOWERS, "image_and_text"),
    "vit": Zoo("ViTModel", "ViTConfig", _VISION, "image"),
    "dinov2": Zoo("Dinov2Model", "Dinov2Config", _VISION, "image"),
    "swin": Zoo("SwinModel", "SwinConfig",
                {"image_size": 128, "embed_dim": 48, "depths": [2, 2, 2], "num_heads": [3, 6, 12], "window_size": 4},
                "image"),
    "convnext": Zoo("ConvNextModel", "ConvNextConfig",
                    {"hidden_sizes": [32, 64, 128, 256], "depths": [2, 2, 4, 2]}, "image"),
    "resnet": Zoo("ResNetModel", "ResNetConfig",
                  {"layer_type": "basic", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512]}, "image"),
    "mobilenet_v2": Zoo("MobileNetV2Model", "MobileNetV2Config", {}, "image"),
    "segformer": Zoo("SegformerModel", "SegformerConfig", {}, "image"),
    "detr": Zoo("DetrModel", "DetrConfig",
                {**_BART, "num_queries": 20, **_RESIDUAL}, "image"),
    "yolos": Zoo("YolosModel", "YolosConfig", {**_SIZES, "image_size": [128, 128], "num_detection_tokens": 16},
                  "image"),
    "wav2vec2": Zoo("Wav2Vec2Model", "Wav2Vec2Config", {**_TEXT, "num_conv_pos_embedding_groups": 16}, "audio"),
    "llava": Zoo("LlavaForConditionalGeneration", "LlavaConfig",
                 {"text_config": _GROUPED, "vision_config": _VISION, "image_token_index": 999,
                  "vision_feature_layer": -1}, "image_in_text"),
    "xlm_roberta": Zoo("XLMRobertaModel", "XLMRobertaConfig", _TEXT),
    "encoder_decoder": Zoo("EncoderDecoderModel", "EncoderDecoderConfig", {}, "text_to_text"),
}  # fmt: skip


TIMM = (
    "resnet18", "vgg11", "densenet121", "efficientnet_b0", "mobilenetv3_large_100", "convnext_atto",
    "vit_tiny_patch16_224", "deit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "mixer_s32_224",
    "resmlp_12_224", "regnetx_002", "ghostnet_100", "repvgg_a0", "poolformer_s12", "edgenext_xx_small", "levit_128s",
    "cait_xxs24_224", "inception_v3", "dpn48b",
)  # fmt: skip
"""A model of each of 20 families of timm."""

_TIMM_SIZES = {"inception_v3": 299}
_TIMM_SIZE, _TIMM_CLASSES = 224, 10


def build(name: str) -> Any:
    """A model in eval mode; the same weights in every process."""
    import torch

    if name in TIMM:
        import timm

        torch.manual_seed(0)
        return timm.create_model(name, num_classes=_TIMM_CLASSES).eval()
    transformers: Any = importlib.import_module("transformers")
    one = ZOO[name]
    torch.manual_seed(0)
    if name == "encoder_decoder":
        encoder = transformers.BertConfig(**_TEXT)
        decoder = transformers.BertConfig(**_TEXT, is_decoder=True, add_cross_attention=True)
        config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
        config.decoder_start_token_id, config.pad_token_id = 1, 0
    elif name == "llava":
        text = transformers.LlamaConfig(**one.given["text_config"])
        vision = transformers.CLIPVisionConfig(**one.given["vision_config"])
        rest = {key: value for key, value in one.given.items() if not key.endswith("_config")}
        config = transformers.LlavaConfig(text_config=text, vision_config=vision, **rest)
    elif name == "detr":
        backbone = transformers.ResNetConfig(**ZOO["resnet"].given, out_features=["stage4"])
        config = transformers.DetrConfig(**{**one.given, "backbone_config": backbone})
    else:
        config = getattr(transformers, one.config)(**one.given)
    return getattr(transformers, one.model)(config).eval()


def inputs(name: str, form: str) -> dict[str, Any]:
    """The arguments of a call in a form, by name."""
    import torch

    batch, length = PROMPT if form == GENERATE else FORMS[form]
    generator = torch.Generator().manual_seed(1)

    def tokens() -> Any:
        return torch.randint(3, _VOCABULARY - 1, (batch, length), generator=generator)

    def numbers(*shape: int) -> Any:
        return torch.randn(batch, *shape, generator=generator)

    if name in TIMM:
        size = _TIMM_SIZES.get(name, _TIMM_SIZE)
        return {"x": numbers(3, size, size)}
    kinds: dict[str, Callable[[], dict[str, Any]]] = {
        "text": lambda: {"input_ids": tokens()},
        "text_to_text": lambda: {
            "input_ids": tokens(),
            **({} if form == GENERATE else {"decoder_input_ids": tokens()}),
        },
        "image": lambda: {"pixel_values": numbers(3, 128, 128)},
        "image_and_text": lambda: {"input_ids": tokens(), "pixel_values": numbers(3, 128, 128)},
        "image_in_text": lambda: {
            "input_ids": torch.cat([torch.full((batch, 64), 999), tokens()], 1),
            "pixel_values": numbers(3, 128, 128),
        },
        "mel": lambda: {"input_features": numbers(80, 128), "decoder_input_ids": tokens()},
        "audio": lambda: {"input_values": numbers(20_000)},
    }
    return kinds[ZOO[name].takes]()


def forms(name: str) -> list[str]:
    """The forms in which a model is called."""
    if name in TIMM:
        return list(FORMS)
    return [*FORMS, *([GENERATE] if ZOO[name].generates else [])]
