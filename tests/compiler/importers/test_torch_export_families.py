"""Families of models, small and random, imported and run on the oracle against PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch.export import Dim

from tests.compiler.importers.torch_programs import check
from tests.transformers_caches import CACHE, cache_of

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export's and transformers' own

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def ids(batch, length):
    return torch.randint(0, 50, (batch, length))


def padded(batch, length):
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[-1, :2] = 0
    return mask


def text_dims():
    return {0: Dim("batch"), 1: Dim("seq", max=64)}


def llama(**options):
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, use_cache=False, **options)
    return transformers.LlamaForCausalLM(config).eval()


def test_bert():
    model = transformers.BertModel(transformers.BertConfig(**SIZES)).eval()
    graph = check(model, (ids(2, 7), padded(2, 7))).graph
    assert list(graph.inputs) == ["input_ids", "attention_mask"]
    assert list(graph.outputs) == ["last_hidden_state", "pooler_output"]
    assert "encoder.layer.0.attention.self.query.weight" in graph.parameters


def test_bert_dynamic():
    model = transformers.BertModel(transformers.BertConfig(**SIZES)).eval()
    dims = text_dims()
    program = check(
        model,
        (ids(2, 7), padded(2, 7)),
        dynamic_shapes=(dims, dims),
        others=[((ids(3, 5), padded(3, 5)), {})],
    )
    assert {"batch", "seq"} <= set(program.graph.symbols)
    assert repr(program.graph.symbols["seq"].only_symbol) == "seq in 0..64"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_llama(dtype):
    check(llama().to(dtype), (ids(2, 7),))


def test_llama_dynamic():
    dims = text_dims()
    check(
        llama(),
        (ids(2, 7),),
        {"attention_mask": padded(2, 7)},
        dynamic_shapes={"input_ids": dims, "attention_mask": dims},
        others=[((ids(3, 9),), {"attention_mask": padded(3, 9)})],
    )


class Cached(nn.Module):
    """A language model with its cache as arguments and results."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, past, attention_mask):
        cache = transformers.DynamicCache()
        for layer, (key, value) in enumerate(past):
            cache.update(key, value, layer)
        found = self.model(
            input_ids=input_ids, attention_mask=attention_mask, **{CACHE: cache}, use_cache=True
        )
        return {
            "logits": found.logits,
            "present": [(one.keys, one.values) for one in cache_of(found).layers],
        }


def test_llama_with_cache():
    past = [(torch.randn(2, 2, 4, 8), torch.randn(2, 2, 4, 8))]
    graph = check(Cached(llama()), (ids(2, 1), past, padded(2, 5))).graph
    assert list(graph.inputs) == ["input_ids", "past.0.0", "past.0.1", "attention_mask"]
    assert list(graph.outputs) == ["logits", "present.0.0", "present.0.1"]


def test_llama_with_cache_dynamic():
    model = llama()
    model.set_attn_implementation("eager")
    dims = {0: Dim.AUTO, 2: Dim.AUTO}
    past, longer = ([(torch.randn(b, 2, n, 8), torch.randn(b, 2, n, 8))] for b, n in ((2, 4), (3, 6)))
    check(
        Cached(model),
        (ids(2, 1), past, padded(2, 5)),
        dynamic_shapes=({0: Dim.AUTO}, [(dims, dims)], {0: Dim.AUTO, 1: Dim.AUTO}),
        others=[((ids(3, 1), longer, padded(3, 7)), {})],
    )


@pytest.mark.parametrize("experts", ["grouped_mm", "batched_mm"])
def test_mixtral(experts):
    config = transformers.MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=4, use_cache=False)
    model = transformers.MixtralForCausalLM(config).eval()
    model.set_experts_implementation(experts)
    check(model, (ids(2, 5),))


def test_gpt2():
    config = transformers.GPT2Config(
        vocab_size=60,
        n_embd=32,
        n_layer=1,
        n_head=2,
        n_positions=64,
        use_cache=False,
        bos_token_id=1,
        eos_token_id=1,
    )
    graph = check(transformers.GPT2LMHeadModel(config).eval(), (ids(2, 7),)).graph
    assert not {"transformer.wte.weight", "lm_head.weight"} <= set(graph.parameters), "tied weights are one"


@pytest.mark.parametrize("dynamic", [False, True])
def test_vit(dynamic):
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=16,
        patch_size=8,
    )
    images = [torch.randn(batch, 3, 16, 16) for batch in (2, 3)]
    check(
        transformers.ViTModel(config).eval(),
        (images[0],),
        dynamic_shapes=({0: Dim("batch")},) if dynamic else None,
        others=[((images[1],), {})] if dynamic else [],
    )


@pytest.mark.parametrize("layer", ["basic", "bottleneck"])
def test_resnet(layer):
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1], layer_type=layer
    )
    check(
        transformers.ResNetModel(config).eval(),
        (torch.randn(2, 3, 32, 32),),
        dynamic_shapes=({0: Dim("batch")},),
        others=[((torch.randn(3, 3, 32, 32),), {})],
    )


class UNetBlock(nn.Module):
    """What diffusers' UNets are made of: residual block with a time embedding, attention, down and up."""

    def __init__(self, width=16):
        super().__init__()
        self.time = nn.Linear(8, width)
        self.into, self.body = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.down = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.norm, self.attention_norm = nn.GroupNorm(4, width), nn.GroupNorm(4, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up = nn.Conv2d(2 * width, 3, 3, padding=1)

    def forward(self, x, t):
        first = self.into(x)
        h = first + self.body(F.silu(self.norm(first))) + self.time(F.silu(t))[:, :, None, None]
        down = self.down(h)
        batch, width, rows, columns = down.shape
        flat = self.attention_norm(down).flatten(2).transpose(1, 2)
        parts = [one.reshape(batch, -1, 2, 8).transpose(1, 2) for one in self.qkv(flat).chunk(3, -1)]
        mixed = F.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(batch, -1, width)
        down = down + self.out(mixed).transpose(1, 2).reshape(batch, width, rows, columns)
        return {"sample": self.up(torch.cat([F.interpolate(down, scale_factor=2.0), h], 1))}


def test_unet_block():
    check(UNetBlock().eval(), (torch.randn(2, 3, 8, 8), torch.randn(2, 8)))


def test_unet_block_dynamic():
    size = {0: Dim("batch"), 2: 2 * Dim("rows", min=2, max=32), 3: 2 * Dim("columns", min=2, max=32)}
    graph = check(
        UNetBlock().eval(),
        (torch.randn(2, 3, 8, 8), torch.randn(2, 8)),
        dynamic_shapes=(size, {0: size[0]}),
        others=[((torch.randn(3, 3, 12, 4), torch.randn(3, 8)), {})],
    ).graph
    assert set(graph.symbols) == {"batch", "rows", "columns"}
