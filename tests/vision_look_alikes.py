"""Modules named like timm's and torchvision's, which are not installed here, with the forwards that the mapping proves."""

from __future__ import annotations

import importlib
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from torch import nn

from kernels_hub.kernelization.mapping_file import _shipped_folder

CONTRACTS = tomllib.loads((_shipped_folder() / "vision.toml").read_text(encoding="utf-8"))["contract"]
IMPORTS = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


def forward_of(name: str) -> str:
    return textwrap.indent(CONTRACTS[name]["source"].strip(), "    ") + "\n"


def is_of_them(name: str) -> bool:
    return name.partition(".")[0] in ("timm", "torchvision")


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Modules of a folder are found first; what is imported of them is forgotten afterwards."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if is_of_them(name)}
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if is_of_them(name)]:
            del sys.modules[name]
        sys.modules.update(before)


def write(folder: Path, name: str, source: str) -> None:
    path = folder.joinpath(*name.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    for parent in path.relative_to(folder).parents[:-1]:
        (folder / parent / "__init__.py").touch()
    path.write_text(source)
    importlib.invalidate_caches()


def torchvision(folder: Path) -> ModuleType:
    """The module of torchvision's vision transformers."""
    name = "torchvision.models.vision_transformer"
    mlp = "class MLPBlock(nn.Sequential):\n    pass\n"
    write(folder, name, f"{IMPORTS}{mlp}class EncoderBlock(nn.Module):\n{forward_of('torchvision_block')}")
    return importlib.import_module(name)


def timm(folder: Path) -> type[nn.Module]:
    """The block of timm's vision transformers; what it is made of is in timm.layers."""
    write(
        folder,
        "timm.layers.attention",
        IMPORTS
        + "def maybe_add_mask(scores, mask=None): return scores if mask is None else scores + mask\n"
        + "def resolve_self_attn_mask(length, scores, mask, is_causal=False): return mask\n"
        + f"class Attention(nn.Module):\n{forward_of('timm_attention')}",
    )
    write(folder, "timm.layers.mlp", IMPORTS + f"class Mlp(nn.Module):\n{forward_of('timm_mlp')}")
    write(
        folder,
        "timm.layers.scale",
        IMPORTS + f"class LayerScale(nn.Module):\n{forward_of('timm_layer_scale')}",
    )
    write(
        folder,
        "timm.models.vision_transformer",
        IMPORTS + f"class Block(nn.Module):\n{forward_of('timm_block')}",
    )
    block: type[nn.Module] = importlib.import_module("timm.models.vision_transformer").Block
    return block
