"""Models of `benchmarks.field` that are exported when they are first asked for: architectures with random weights.

Both exporters of PyTorch, and skl2onnx. torchvision and skl2onnx are looked for in the folders of `--packages`, too:
`pip install --no-deps --target DIR torchvision pillow scikit-learn scipy joblib threadpoolctl skl2onnx`.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

Dynamic = Mapping[str, Mapping[int, str]]
Make = Callable[[Path], None]


def exported(
    build: Callable[[], nn.Module], example: tuple[torch.Tensor, ...], names: list[str], dynamic: Dynamic, *,
    dynamo: bool,
) -> Make:  # fmt: skip
    """What writes a module as ONNX, by the exporter that torch.export feeds (dynamo) or by the one that traces."""

    def make(path: Path) -> None:
        torch.manual_seed(0)
        module = build().eval()
        axes = {name: dict(of) for name, of in dynamic.items()}
        more: dict[str, Any] = {"dynamic_axes": axes}
        if dynamo:
            shapes = tuple(
                {axis: torch.export.Dim(size) for axis, size in axes.get(name, {}).items()} for name in names
            )
            more = {"dynamic_shapes": (shapes,) if isinstance(module, _Chosen) else shapes}
        with torch.no_grad():
            torch.onnx.export(
                module, example, str(path), input_names=names, dynamo=dynamo, external_data=False, **more
            )

    return make


class _Chosen(nn.Module):
    """A model of transformers by one output."""

    def __init__(self, model: nn.Module, output: str) -> None:
        super().__init__()
        self.model, self.output = model, output

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = getattr(self.model(*args), self.output)
        return found


def _transformer(model: str, config: str, output: str, **sizes: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        made = getattr(transformers, config)(**sizes, attn_implementation="eager")
        return _Chosen(getattr(transformers, model)(made), output)

    return build


def vision(name: str, **more: Any) -> Callable[[], nn.Module]:
    """A classifier or segmenter of torchvision."""

    def build() -> nn.Module:
        models = importlib.import_module("torchvision.models")
        if name.startswith("deeplab"):
            segmenter = models.segmentation.__dict__[name](weights=None, weights_backbone=None, **more)
            return _Segmenter(segmenter)
        built: nn.Module = models.__dict__[name](weights=None, **more)
        return built

    return build


class _Segmenter(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model(x)["out"]
        return found


class Recurrent(nn.Module):
    """Layers of LSTMs or GRUs, both ways, with a classifier a step."""

    def __init__(self, kind: type[nn.Module], features: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.stack = kind(features, hidden, layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.stack(x)[0])
        return found


class WaveNet(nn.Module):
    """Gated dilated convolutions with residuals and skips. Source: van den Oord et al., arXiv 1609.03499."""

    def __init__(self, channels: int = 64, layers: int = 10) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, channels, 1)
        self.gated = nn.ModuleList(
            nn.Conv1d(channels, 2 * channels, 2, dilation=2**place, padding=2**place)
            for place in range(layers)
        )
        self.mixed = nn.ModuleList(nn.Conv1d(channels, 2 * channels, 1) for _ in range(layers))
        self.last = nn.Sequential(
            nn.ReLU(), nn.Conv1d(channels, channels, 1), nn.ReLU(), nn.Conv1d(channels, 256, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        total = torch.zeros_like(x)
        for gated, mixed in zip(self.gated, self.mixed, strict=True):
            value, gate = gated(x)[..., : x.shape[-1]].chunk(2, 1)
            residual, skip = mixed(value.tanh() * gate.sigmoid()).chunk(2, 1)
            x, total = x + residual, total + skip
        found: torch.Tensor = self.last(total)
        return found


class UNet(nn.Module):
    """Four halvings, transposed convolutions up, and skips. Source: Ronneberger et al., arXiv 1505.04597."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        sizes = [3, *(width << place for place in range(5))]
        self.down = nn.ModuleList(_twice(a, b) for a, b in itertools.pairwise(sizes))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * a, a, 2, 2) for a in sizes[-2:0:-1])
        self.joined = nn.ModuleList(_twice(2 * a, a) for a in sizes[-2:0:-1])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept: list[torch.Tensor] = []
        for place, block in enumerate(self.down):
            x = block(x if place == 0 else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        kept.pop()
        for up, joined in zip(self.up, self.joined, strict=True):
            x = joined(torch.cat([kept.pop(), up(x)], 1))
        found: torch.Tensor = self.head(x)
        return found


def _twice(a: int, b: int) -> nn.Module:
    parts: list[nn.Module] = []
    for before in (a, b):
        parts += [nn.Conv2d(before, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*parts)


def pipeline(build: Callable[[Any], Any], features: int) -> Make:
    """What writes a pipeline of scikit-learn, fitted to two classes of random points, as ONNX. build: given sklearn."""

    def make(path: Path) -> None:
        import skl2onnx  # type: ignore[import-not-found,unused-ignore]

        random = np.random.default_rng(0)
        x = random.standard_normal((400, features)).astype(np.float32)
        y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype(np.int64)
        fitted = build(importlib.import_module).fit(x, y)
        options = {"zipmap": False} if hasattr(fitted, "predict_proba") else None
        model = skl2onnx.to_onnx(fitted, x[:1], target_opset={"": 18, "ai.onnx.ml": 3}, options=options)
        path.write_bytes(model.SerializeToString())

    return make


def forest(module: Callable[[str], Any]) -> Any:
    """Scaled features, then trees."""
    return module("sklearn.pipeline").make_pipeline(
        module("sklearn.preprocessing").StandardScaler(),
        module("sklearn.ensemble").RandomForestClassifier(100, max_depth=8, random_state=0),
    )


def machine(module: Callable[[str], Any]) -> Any:
    """Principal components, then support vectors."""
    return module("sklearn.pipeline").make_pipeline(
        module("sklearn.decomposition").PCA(16), module("sklearn.svm").SVC(probability=True, random_state=0)
    )


def perceptron(module: Callable[[str], Any]) -> Any:
    """Normalized rows, then two hidden layers."""
    return module("sklearn.pipeline").make_pipeline(
        module("sklearn.preprocessing").Normalizer(),
        module("sklearn.neural_network").MLPClassifier((128, 64), max_iter=20, random_state=0),
    )


class _Encoder(nn.Module):
    """Whisper's encoder, of the size tiny."""

    def __init__(self) -> None:
        super().__init__()
        import transformers

        config = transformers.WhisperConfig(
            d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536, decoder_layers=1,
            vocab_size=1000, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        )  # fmt: skip
        config._attn_implementation = "eager"
        self.encoder = transformers.WhisperModel(config).encoder

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.encoder(features).last_hidden_state
        return found


_IDS, _IMAGE = torch.ones(2, 12, dtype=torch.int64), torch.zeros(2, 3, 224, 224)
_TOKENS: Dynamic = {"ids": {0: "batch", 1: "length"}}
_IMAGES: Dynamic = {"image": {0: "batch"}}
_ALL: Dynamic = {"image": {0: "batch", 2: "height", 3: "width"}}


def _language(build: Callable[[], nn.Module], *, dynamo: bool) -> Make:
    return exported(build, (_IDS,), ["ids"], _TOKENS, dynamo=dynamo)


def _images(name: str, *, dynamo: bool, dynamic: Dynamic = _IMAGES, **more: Any) -> Make:
    return exported(vision(name, **more), (_IMAGE,), ["image"], dynamic, dynamo=dynamo)


MAKERS: dict[str, Make] = {
    "gpt2": _language(
        _transformer("GPT2LMHeadModel", "GPT2Config", "logits", n_layer=6, n_embd=384, n_head=6, vocab_size=8000,
                     use_cache=False), dynamo=True),
    "qwen3": _language(
        _transformer("Qwen3Model", "Qwen3Config", "last_hidden_state", num_hidden_layers=4, hidden_size=512,
                     intermediate_size=1536, num_attention_heads=8, num_key_value_heads=4, head_dim=64, vocab_size=8000,
                     use_cache=False), dynamo=True),
    "t5_encoder": _language(
        _transformer("T5EncoderModel", "T5Config", "last_hidden_state", d_model=384, d_kv=64, d_ff=1024, num_layers=6,
                     num_heads=6, vocab_size=8000), dynamo=True),
    "bert": _language(
        _transformer("BertModel", "BertConfig", "last_hidden_state", num_hidden_layers=6, hidden_size=384,
                     intermediate_size=1536, num_attention_heads=12, vocab_size=8000), dynamo=False),
    "whisper_encoder": exported(
        _Encoder, (torch.zeros(1, 80, 3000),), ["features"], {"features": {0: "batch"}}, dynamo=False),
    "mobilenet_v3": _images("mobilenet_v3_large", dynamo=False),
    "efficientnet": _images("efficientnet_b0", dynamo=True),
    "convnext": _images("convnext_tiny", dynamo=True),
    "swin": _images("swin_t", dynamo=False),
    "densenet": _images("densenet121", dynamo=False),
    "shufflenet": _images("shufflenet_v2_x1_0", dynamo=False),
    "regnet": _images("regnet_y_800mf", dynamo=True),
    "deeplab": _images("deeplabv3_mobilenet_v3_large", dynamo=False, dynamic=_ALL),
    "unet": exported(UNet, (torch.zeros(1, 3, 64, 64),), ["image"], _ALL, dynamo=False),
    "wavenet": exported(
        WaveNet, (torch.zeros(1, 1, 1000),), ["wave"], {"wave": {0: "batch", 2: "samples"}}, dynamo=True),
    "lstm": exported(
        lambda: Recurrent(nn.LSTM, 80, 256, 3), (torch.zeros(1, 50, 80),), ["x"], {"x": {0: "batch", 1: "time"}},
        dynamo=False),
    "gru": exported(
        lambda: Recurrent(nn.GRU, 80, 192, 2), (torch.zeros(1, 50, 80),), ["x"], {"x": {0: "batch", 1: "time"}},
        dynamo=False),
    "forest": pipeline(forest, 30),
    "support_vectors": pipeline(machine, 30),
    "perceptron": pipeline(perceptron, 30),
}  # fmt: skip
"""Name -> what writes its file."""
