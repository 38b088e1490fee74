"""The layers of `layers/encoder` against transformers' in float64, and the calls that run a layer's own forward."""

from __future__ import annotations

import copy
import shutil
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from transformers import (
    AlbertConfig,
    BartConfig,
    BertConfig,
    BertModel,
    CLIPVisionConfig,
    Dinov2Config,
    DistilBertConfig,
    LayoutLMConfig,
    MPNetConfig,
    SiglipVisionConfig,
    ViTConfig,
    Wav2Vec2Config,
    WhisperConfig,
    YolosConfig,
)
from transformers.models.albert.modeling_albert import AlbertLayer
from transformers.models.bart.modeling_bart import BartEncoderLayer
from transformers.models.bert.modeling_bert import BertIntermediate, BertLayer
from transformers.models.clip.modeling_clip import CLIPEncoderLayer
from transformers.models.dinov2.modeling_dinov2 import Dinov2Layer
from transformers.models.distilbert.modeling_distilbert import TransformerBlock
from transformers.models.layoutlm.modeling_layoutlm import LayoutLMLayer
from transformers.models.mpnet.modeling_mpnet import MPNetLayer
from transformers.models.siglip.modeling_siglip import SiglipEncoderLayer
from transformers.models.vit.modeling_vit import ViTLayer
from transformers.models.wav2vec2.modeling_wav2vec2 import Wav2Vec2EncoderLayer
from transformers.models.whisper.modeling_whisper import WhisperEncoderLayer
from transformers.models.yolos.modeling_yolos import YolosLayer

from kernels_hub import Mode, explain, kernelize, load_kernel_mapping, report, restore, use_kernel_mapping
from kernels_hub.calibration.kinds import KINDS, read_shape, rows_of, shapes
from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.tolerances import assert_close

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

PACKAGE: ModuleType = import_kernel(source_variant(bundled_folder() / "encoder", "cpu"))
KERNELS: ModuleType = sys.modules[PACKAGE.__name__ + ".kernels"]
WIDTH, HEADS, WIDE = 48, 3, 80


class Family(NamedTuple):
    """A layer of transformers', and the layer that replaces its forward."""

    name: str
    build: Callable[..., nn.Module]
    config: type
    sizes: tuple[str, str, str] = ("hidden_size", "num_attention_heads", "intermediate_size")
    others: tuple[tuple[str, Any], ...] = ()

    def made(self, width: int = WIDTH, heads: int = HEADS, wide: int = WIDE, **more: Any) -> nn.Module:
        given = dict(zip(self.sizes, (width, heads, wide), strict=True)) | dict(self.others) | more
        config = self.config(**given)
        config._attn_implementation = "sdpa"
        return with_weights(self.build(config))

    @property
    def forward(self) -> Callable[..., Tensor]:
        found: Callable[..., Tensor] = getattr(PACKAGE.layers, self.name).forward
        return found


def with_weights(layer: nn.Module) -> nn.Module:
    """As after training: norms with a weight of 1, and scales of 1, would hide what is computed with them."""
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(-1, 1)
    return layer.eval()


_OF_BART = ("d_model", "encoder_attention_heads", "encoder_ffn_dim")
FAMILIES: dict[str, Family] = {
    "BERT": Family("BertEncoderLayer", BertLayer, BertConfig),
    "LayoutLM": Family("PostNormEncoderLayer", LayoutLMLayer, LayoutLMConfig),
    "ALBERT": Family("PostNormEncoderLayer", AlbertLayer, AlbertConfig),
    "DistilBERT": Family(
        "PostNormEncoderLayer", TransformerBlock, DistilBertConfig, ("dim", "n_heads", "hidden_dim")
    ),
    "BART": Family("PostNormEncoderLayer", BartEncoderLayer, BartConfig, _OF_BART),
    "Wav2Vec 2": Family("PostNormEncoderLayer", Wav2Vec2EncoderLayer, Wav2Vec2Config),
    "Whisper": Family("PreNormEncoderLayer", WhisperEncoderLayer, WhisperConfig, _OF_BART),
    "ViT": Family("PreNormEncoderLayer", ViTLayer, ViTConfig),
    "ViT without biases": Family(
        "PreNormEncoderLayer", ViTLayer, ViTConfig, others=(("qkv_bias", False),)
    ),
    "DINOv2": Family("PreNormEncoderLayer", Dinov2Layer, Dinov2Config, others=(("mlp_ratio", 2),)),
    "DINOv2 with stochastic depth": Family(
        "PreNormEncoderLayer", Dinov2Layer, Dinov2Config, others=(("drop_path_rate", 0.5),)
    ),
    "CLIP": Family("PreNormEncoderLayer", CLIPEncoderLayer, CLIPVisionConfig),
    "SigLIP": Family("PreNormEncoderLayer", SiglipEncoderLayer, SiglipVisionConfig),
    "YOLOS": Family("UnmaskedEncoderLayer", YolosLayer, YolosConfig),
}  # fmt: skip
BERT = FAMILIES["BERT"]
MPNET = Family("BiasedEncoderLayer", MPNetLayer, MPNetConfig)
UNMASKED = frozenset(name for name, family in FAMILIES.items() if family.name == "UnmaskedEncoderLayer")
MASKED = sorted(FAMILIES.keys() - UNMASKED)
SHAPES = ((1, 1), (1, 7), (3, 5), (2, 40), (1, 150))


def runs(family: Family, layer: nn.Module, x: Tensor, mask: Tensor | None = None, **kwargs: Any) -> bool:
    """Whether a call is one for the native code."""
    first = family.name in ("PreNormEncoderLayer", "UnmaskedEncoderLayer")
    return KERNELS.encode(layer, x, mask, kwargs, norms_first=first) is not None


def call(family: Family, layer: nn.Module, x: Tensor, mask: Tensor | None, **kwargs: Any) -> Tensor:
    masks = () if family.name == "UnmaskedEncoderLayer" else (mask,)
    return family.forward(layer, x, *masks, **kwargs)


def check(
    family: Family, layer: nn.Module, x: Tensor, mask: Tensor | None = None, factor: float = 16, **kwargs: Any
) -> Tensor:
    masks = () if family.name == "UnmaskedEncoderLayer" else (mask,)
    with torch.inference_mode():
        assert runs(family, layer, x, mask, **kwargs)
        found = call(family, layer, x, mask, **kwargs)
        wider = [each.double() if each is not None and each.is_floating_point() else each for each in masks]
        expected = copy.deepcopy(layer).double()(x.double(), *wider, **kwargs)
    assert found.shape == x.shape
    assert_close(found, expected.float(), factor=factor)
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_numbers(name: str, shape: tuple[int, int]) -> None:
    family = FAMILIES[name]
    layer, x = family.made(), torch.randn(*shape, WIDTH)
    for given_as in (x, x.mT.contiguous().mT):
        check(family, layer, given_as)


def masks_of(batch: int, length: int) -> dict[str, Tensor]:
    ends = torch.arange(length) < torch.randint(1, length + 1, (batch, 1, 1, 1))
    seen = torch.rand(batch, 1, length, length) < 0.5
    seen |= torch.eye(length, dtype=torch.bool)
    added = torch.randn(1, HEADS, length, length)
    return {
        "padding": ends,
        "expanded padding": ends.expand(batch, 1, length, length),
        "of queries": seen,
        "transposed": seen.mT,
        "added": added,
        "added to all": torch.randn(batch, 1, 1, length),
        "infinite": torch.zeros(1, 1, length, length).masked_fill(~seen[:1], -torch.inf),
        "of one key": torch.ones(batch, 1, length, 1, dtype=torch.bool),
    }


@pytest.mark.parametrize("kind", list(masks_of(1, 1)))
@pytest.mark.parametrize("name", MASKED)
def test_masks(name: str, kind: str) -> None:
    family = FAMILIES[name]
    layer = family.made()
    for batch, length in ((3, 9), (2, 70)):
        check(family, layer, torch.randn(batch, length, WIDTH), masks_of(batch, length)[kind])


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("is_masked", [False, True])
def test_biases_of_positions(has_bias: bool, is_masked: bool) -> None:
    layer, x = MPNET.made(), torch.randn(3, 9, WIDTH)
    hidden = ~masks_of(3, 9)["padding"]
    mask = torch.zeros(3, 1, 1, 9).masked_fill(hidden, torch.finfo(torch.float32).min) if is_masked else None
    bias = torch.randn(1, HEADS, 9, 9) if has_bias else None
    with torch.inference_mode():
        (found,) = MPNET.forward(layer, x, mask, bias)
        (expected,) = copy.deepcopy(layer).double()(
            x.double(), None if mask is None else mask.double(), None if bias is None else bias.double()
        )
        assert not found.equal(layer(x, mask, bias)[0])  # by the native code
        assert_close(found, expected.float(), factor=16)
        weights = MPNET.forward(layer, x, mask, bias, True)
        for one, other in zip(weights, layer(x, mask, bias, True), strict=True):
            assert one.equal(other)


def test_causal_where_it_is_asked_for_and_nothing_is_masked() -> None:
    layer, x = FAMILIES["CLIP"].made(), torch.randn(2, 11, WIDTH)
    every = check(FAMILIES["CLIP"], layer, x)
    causal = check(FAMILIES["CLIP"], layer, x, is_causal=True)
    assert not causal[:, :-1].allclose(every[:, :-1], atol=1e-3)
    mask = masks_of(2, 11)["padding"]
    assert check(FAMILIES["CLIP"], layer, x, mask, is_causal=True).equal(
        check(FAMILIES["CLIP"], layer, x, mask)
    )
    layer.self_attn.is_causal = True
    assert check(FAMILIES["CLIP"], layer, x).equal(causal)


@given(
    name=st.sampled_from(sorted(FAMILIES)), batch=st.integers(1, 3), length=st.integers(1, 40),
    heads=st.integers(1, 5), head_width=st.integers(1, 40), wide=st.integers(1, 130), seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_any_size(
    name: str, batch: int, length: int, heads: int, head_width: int, wide: int, seed: int
) -> None:
    torch.manual_seed(seed)
    family, width = FAMILIES[name], heads * head_width
    check(family, family.made(width, heads, wide), torch.randn(batch, length, width), factor=32)


@pytest.mark.parametrize(
    "activation", ["relu", "gelu", "gelu_pytorch_tanh", "quick_gelu", "silu", "gelu_new"]
)
def test_activations(activation: str) -> None:
    check(BERT, BERT.made(hidden_act=activation), torch.randn(2, 9, WIDTH))


def test_what_is_between_the_products_of_many_rows_is_made_in_parts() -> None:
    layer = BERT.made(wide=8000)
    check(BERT, layer, torch.randn(3, 150, WIDTH), factor=64)


def test_layers_without_norm_weights() -> None:
    family = FAMILIES["ViT"]
    layer = family.made()
    layer.layernorm_before = nn.LayerNorm(WIDTH, elementwise_affine=False)
    layer.layernorm_after = nn.LayerNorm(WIDTH, bias=False)
    check(family, layer, torch.randn(2, 9, WIDTH))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_sequence(value: float) -> None:
    layer, x = BERT.made(), torch.randn(3, 9, WIDTH)
    x[1, 4, 7] = value
    with torch.inference_mode():
        found = BERT.forward(layer, x)
        expected = BERT.forward(layer, x[[0, 2]])
    assert found[1].isnan().all()
    assert_close(found[[0, 2]], expected)


def test_a_mask_hides_what_is_not_finite_in_no_row_that_sees_it_not() -> None:
    """Of keys that no query sees nothing is read, as zeros times NaN would be NaN."""
    layer, x = BERT.made(), torch.randn(1, 9, WIDTH)
    mask = torch.arange(9) < 6
    expected = check(BERT, layer, x, mask.view(1, 1, 1, 9))
    x[0, 7] = torch.nan
    with torch.inference_mode():
        assert BERT.forward(layer, x, mask.view(1, 1, 1, 9))[0, :6].equal(expected[0, :6])


def hooked(layer: nn.Module) -> nn.Module:
    layer.intermediate.dense.register_forward_hook(lambda *_: None)
    return layer


def hooked_attention(layer: nn.Module) -> nn.Module:
    layer.attention.self.register_forward_hook(lambda *_: None)
    return layer


def replaced(layer: nn.Module) -> nn.Module:
    layer.output.dense = nn.Sequential(layer.output.dense)
    return layer


def parametrized(layer: nn.Module) -> nn.Module:
    parametrizations.weight_norm(layer.attention.self.query)
    return layer


def with_dropout(layer: nn.Module) -> nn.Module:
    layer.output.dropout.train()
    layer.output.dropout.p = 0.0
    return layer


def with_another_forward(layer: nn.Module) -> nn.Module:
    layer.intermediate.forward = lambda hidden: BertIntermediate.forward(layer.intermediate, hidden)
    return layer


def eager(layer: nn.Module) -> nn.Module:
    layer.attention.self.config._attn_implementation = "eager"
    return layer


def without_a_part(layer: nn.Module) -> nn.Module:
    layer.output.dense.bias = nn.Parameter(torch.randn(1))  # which PyTorch broadcasts
    return layer


OTHERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "a hook": hooked,
    "a hook on a block": hooked_attention,
    "another module": replaced,
    "a parametrization": parametrized,
    "a dropout in training": with_dropout,
    "a forward of its own": with_another_forward,
    "attention in Python": eager,
    "a bias of another length": without_a_part,
    "another norm": lambda one: setattr(one.output, "LayerNorm", nn.RMSNorm(WIDTH)) or one,
    "an unknown activation": lambda one: (
        setattr(one.intermediate, "intermediate_act_fn", nn.Hardtanh()) or one
    ),
    "float64": lambda one: one.double(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_layers_run_their_own_forward(name: str) -> None:
    layer = OTHERS[name](BERT.made())
    x = torch.randn(2, 9, WIDTH, dtype=next(layer.parameters()).dtype)
    with torch.inference_mode():
        assert not runs(BERT, layer, x)
        assert BERT.forward(layer, x).equal(BertLayer.forward(layer, x))


def test_layers_in_training_run_their_own_forward() -> None:
    layer, x = BERT.made(hidden_dropout_prob=0.5), torch.randn(2, 9, WIDTH)
    layer.train()
    with torch.no_grad():
        assert not runs(BERT, layer, x)
        torch.manual_seed(1)
        found = BERT.forward(layer, x)
        torch.manual_seed(1)
        assert found.equal(layer(x))


def test_a_class_whose_forward_somebody_replaced_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = BERT.made(), torch.randn(2, 9, WIDTH)
    monkeypatch.setattr(
        BertIntermediate, "forward", lambda self, hidden: torch.zeros(*hidden.shape[:2], WIDE)
    )
    with torch.inference_mode():
        assert not runs(BERT, layer, x)
        assert BERT.forward(layer, x).equal(layer(x))


ARGUMENTS: dict[str, dict[str, Any]] = {
    "a bias by positions": {"position_bias": torch.zeros(1, HEADS, 9, 9)},
    "weights": {"output_attentions": True},
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_calls_for_more_run_the_own_forward(name: str) -> None:
    layer, x = BERT.made(), torch.randn(2, 9, WIDTH)
    with torch.inference_mode():
        assert not runs(BERT, layer, x, **ARGUMENTS[name])
        assert BERT.forward(layer, x, **ARGUMENTS[name]).equal(layer(x, **ARGUMENTS[name]))


@pytest.mark.parametrize("mask", [torch.ones(2, 9), torch.zeros(2, 1, 1, 9, dtype=torch.float64)])
def test_other_masks_are_for_the_own_forward(mask: Tensor) -> None:
    layer, x = BERT.made(), torch.randn(2, 9, WIDTH)
    with torch.inference_mode():
        assert not runs(BERT, layer, x, mask)


def test_under_autocast_the_own_forward_runs() -> None:
    layer, x = BERT.made(), torch.randn(2, 9, WIDTH)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert not runs(BERT, layer, x)


def test_gradients_are_those_of_the_own_forward() -> None:
    layer, x = BERT.made(), torch.randn(2, 9, WIDTH, requires_grad=True)
    assert not runs(BERT, layer, x)
    leaves = (x, layer.output.dense.weight, layer.attention.self.key.bias)
    found = torch.autograd.grad(BERT.forward(layer, x).sum(), leaves)
    for one, other in zip(found, torch.autograd.grad(layer(x).sum(), leaves), strict=True):
        assert one.equal(other)


def test_it_compiles_whole() -> None:
    layer, x = BERT.made(), torch.randn(2, 9, WIDTH)

    def forward(x: Tensor) -> Tensor:
        return BERT.forward(layer, x)

    with torch.inference_mode():
        assert_close(torch.compile(forward, fullgraph=True, backend="eager")(x), layer(x))


@pytest.mark.parametrize("name", ["PreNormEncoderLayer", "PostNormEncoderLayer", "BiasedEncoderLayer"])
def test_a_layer_in_nobodys_place_says_so(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} runs in the place of the forward of an encoder's layer"):
        getattr(PACKAGE.layers, name)().eval()(torch.randn(2, 9, WIDTH))


def test_wrong_sizes_raise_what_the_own_forward_raises() -> None:
    with torch.inference_mode(), pytest.raises(RuntimeError):
        BERT.forward(BERT.made(), torch.randn(2, 9, WIDTH + 1))


def test_written_weights_are_seen() -> None:
    family = FAMILIES["DINOv2"]
    layer, x = family.made(), torch.randn(2, 9, WIDTH)
    with torch.inference_mode():
        before = check(family, layer, x)
        for name, parameter in layer.named_parameters():
            if name == "attention.k_proj.bias":  # which a softmax over keys does not see
                continue
            parameter.mul_(-1.5)
            after = check(family, layer, x)
            assert not after.equal(before), name
            before = after
    layer.mlp.fc1.weight = nn.Parameter(torch.randn_like(layer.mlp.fc1.weight))
    check(family, layer, x)


def test_what_is_held_is_told_and_let_go() -> None:
    weights, layer = PACKAGE.weights, BERT.made()
    assert weights.packed_nbytes(layer) == 0
    weights.prepare(layer)
    dense = 4 * (4 * WIDTH * WIDTH + 2 * WIDTH * WIDE)
    assert dense <= weights.packed_nbytes(layer) <= weights.most_nbytes(layer)
    layer.intermediate.dense.weight.data[3, 3] = 9.0  # not counted by PyTorch: found when all is compared
    weights.refresh(layer)
    check(BERT, layer, torch.randn(1, 8, WIDTH))
    weights.strict(layer, True)
    check(BERT, layer, torch.randn(1, 8, WIDTH))
    weights.release(layer)
    assert weights.packed_nbytes(layer) == 0


def bert(**more: Any) -> nn.Module:
    config = BertConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, intermediate_size=WIDE, num_hidden_layers=2, vocab_size=99, **more
    )  # fmt: skip
    model = BertModel(config)
    model.set_attn_implementation("sdpa")
    return model.eval()


IDS = torch.arange(18).view(2, 9)
PADDING = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])


def test_a_model_under_the_default_mapping() -> None:
    """Of which nothing inside of a layer has a kernel of its own; under torch.compile there is no such layer."""
    model = bert()
    original = copy.deepcopy(model)
    with torch.inference_mode(), use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, wait=True)
        rows = {row.path: row for row in report(model).rows}
        layer = rows["encoder.layer.1"]
        assert layer.layer_name == "BertEncoderLayer" and layer.swapped and layer.packed_nbytes > 0
        inside = [row for path, row in rows.items() if path.startswith("encoder.layer.1.")]
        assert not any(row.swapped for row in inside)
        idle = rows["encoder.layer.1.attention.self.query"]
        assert "its parent's kernel BertEncoderLayer computes it" in str(idle.reason)
        for given_mask in (None, PADDING):
            found, expected = model(IDS, given_mask), original(IDS, given_mask)
            assert_close(found.last_hidden_state, expected.last_hidden_state, factor=16)
        restore(model)
        assert model(IDS).last_hidden_state.equal(original(IDS).last_hidden_state)
        kernelize(model, mode=Mode.INFERENCE | Mode.TORCH_COMPILE)
        assert not {row.path: row for row in report(model).rows}["encoder.layer.1"].swapped


def test_outputs_are_recorded_and_kernels_run_again_after_it() -> None:
    """The hooks by which transformers records outputs stay on the blocks inside of a layer."""
    model = bert()
    original = copy.deepcopy(model)
    with torch.inference_mode(), use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, wait=True)
        found, expected = (each(IDS, output_hidden_states=True) for each in (model, original))
        for one, other in zip(found.hidden_states, expected.hidden_states, strict=True):
            assert_close(one, other, factor=16)
        for each in (model, original):
            each.set_attn_implementation("eager")
        found, expected = (each(IDS, output_attentions=True) for each in (model, original))
        for one, other in zip(found.attentions, expected.attentions, strict=True):
            assert_close(one, other, factor=16)
        model.set_attn_implementation("sdpa")
        assert model.encoder.layer[0].attention.self._forward_hooks
        assert runs(BERT, model.encoder.layer[0], torch.randn(2, 9, WIDTH))
        kernelize(restore(model), mode=Mode.INFERENCE)
        assert {row.path: row for row in report(model).rows}["encoder.layer.1"].swapped


def test_where_weights_are_to_be_held_once_the_kernels_inside_run() -> None:
    model = bert()
    original = copy.deepcopy(model)
    with torch.inference_mode(), use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, free_weights=True)
        rows = {row.path: row for row in report(model).rows}
        layer = rows["encoder.layer.1"]
        assert not layer.swapped and "which free_weights=True rules out" in str(layer.reason)
        assert rows["encoder.layer.1.intermediate"].swapped
        assert_close(model(IDS).last_hidden_state, original(IDS).last_hidden_state, factor=16)


NOT_TAGGED: dict[str, dict[str, Any]] = {
    "a decoder": {"is_decoder": True},
    "one that reads another encoder": {"is_decoder": True, "add_cross_attention": True},
    "one in chunks": {"chunk_size_feed_forward": 3},
}


@pytest.mark.parametrize("name", NOT_TAGGED)
def test_other_layers_of_the_class_have_no_kernel(name: str) -> None:
    with use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False):
        rows = {row.path: row for row in explain(bert(**NOT_TAGGED[name]), mode=Mode.INFERENCE).rows}
    assert not rows["encoder.layer.1"].swapped
    assert "this applies to" in str(rows["encoder.layer.1"].reason)


def test_a_hook_inside_keeps_the_layer() -> None:
    model = bert()
    hooked(model.encoder.layer[0])
    with use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False):
        rows = {row.path: row for row in explain(model, mode=Mode.INFERENCE).rows}
    assert "its intermediate.dense must run itself: it has hooks" in str(rows["encoder.layer.0"].reason)
    assert rows["encoder.layer.1"].swapped and rows["encoder.layer.0.output.dense"].swapped


def test_gradient_checkpointing_stays_around_the_kernel() -> None:
    model = bert()
    with use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, wait=True)
    model.activation_checkpointing_enable()
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model(IDS).last_hidden_state.sum().backward()
    found = model.encoder.layer[0].output.dense.weight.grad.clone()
    restore(model)
    model.zero_grad()
    model(IDS).last_hidden_state.sum().backward()
    assert_close(found, model.encoder.layer[0].output.dense.weight.grad)


def test_it_is_measured_as_the_layer_that_it_replaces() -> None:
    for name, family in FAMILIES.items():
        read = read_shape(family.name, family.made())
        assert read is not None
        wide = WIDE if not name.startswith("DINOv2") else WIDTH * dict(family.others).get("mlp_ratio", 4)
        assert (read[0].depth, read[0].columns, read[1]) == (WIDTH, wide, WIDTH)
    kind = KINDS["BertEncoderLayer"]
    for each in shapes("BertEncoderLayer", "float32"):
        assert rows_of(each)
    layer = kind.build("", 64, 128).eval()
    for args, kwargs in kind.example("", 64, 128, 16):
        with torch.inference_mode():
            assert not kwargs and runs(BERT, layer, args[0])
