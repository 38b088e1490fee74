"""Blocks of timm and torchvision, which are not installed here: classes with the forwards that the mapping proves."""

from __future__ import annotations

import copy
import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kernels_hub import Mode, kernelize, load_kernel_mapping, report, use_kernel_mapping
from tests.tolerances import assert_close
from tests.vision_look_alikes import importable, timm, torchvision

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

WIDTH, HEADS, WIDE = 48, 3, 80


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Path]:
    with importable(tmp_path):
        yield tmp_path


def block_of_timm(folder: Path, *, scales: bool = False, fused: bool = True) -> nn.Module:
    kind = timm(folder)
    block, attention, mlp = (
        kind(),
        *(
            getattr(importlib.import_module(f"timm.layers.{name}"), cls)()
            for name, cls in (("attention", "Attention"), ("mlp", "Mlp"))
        ),
    )
    attention.num_heads, attention.head_dim, attention.attn_dim = HEADS, WIDTH // HEADS, WIDTH
    attention.scale, attention.fused_attn, attention.gate = attention.head_dim**-0.5, fused, None
    attention.qkv, attention.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
    attention.q_norm, attention.k_norm, attention.norm = nn.Identity(), nn.Identity(), nn.Identity()
    attention.attn_drop, attention.proj_drop = nn.Dropout(0.0), nn.Dropout(0.0)
    mlp.fc1, mlp.fc2, mlp.act = nn.Linear(WIDTH, WIDE), nn.Linear(WIDE, WIDTH), nn.GELU()
    mlp.drop1, mlp.drop2, mlp.norm = nn.Dropout(0.0), nn.Dropout(0.0), nn.Identity()
    block.norm1, block.norm2, block.attn, block.mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), attention, mlp
    block.drop_path1, block.drop_path2 = nn.Identity(), nn.Identity()
    block.ls1, block.ls2 = nn.Identity(), nn.Identity()
    if scales:
        for name in ("ls1", "ls2"):
            scale = importlib.import_module("timm.layers.scale").LayerScale()
            scale.inplace, scale.gamma = False, nn.Parameter(torch.ones(WIDTH))
            setattr(block, name, scale)
    return block


def block_of_torchvision(folder: Path) -> nn.Module:
    module = torchvision(folder)
    block: Any = module.EncoderBlock()
    block.ln_1, block.ln_2, block.dropout = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.Dropout(0.0)
    block.self_attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    block.mlp = module.MLPBlock(
        nn.Linear(WIDTH, WIDE), nn.GELU(), nn.Dropout(0.0), nn.Linear(WIDE, WIDTH), nn.Dropout(0.0)
    )
    return block


def with_weights(block: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in block.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(-1, 1)
    return block.eval()


def swapped(model: nn.Module) -> list[str | None]:
    with use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, wait=True)
    return [row.layer_name for row in report(model).swapped]


@pytest.mark.parametrize("scales", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_timm(written: Path, scales: bool, fused: bool) -> None:
    block = with_weights(block_of_timm(written, scales=scales, fused=fused))
    original, x = copy.deepcopy(block), torch.randn(2, 9, WIDTH)
    assert swapped(block) == ["JoinedEncoderLayer"]
    with torch.inference_mode():
        for mask in (None, torch.rand(2, 1, 9, 9) < 0.7):
            if mask is not None and not fused:
                continue
            if mask is not None:
                mask |= torch.eye(9, dtype=torch.bool)
            assert not block(x, mask).equal(original(x, mask))
            assert_close(block(x, mask), original(x, mask), factor=16)
        if fused:
            assert_close(block(x, None, True), original(x, None, True), factor=16)
            with pytest.raises(RuntimeError):
                block(x, torch.ones(9, 9, dtype=torch.bool), True)


def test_what_timm_puts_between_keeps_the_block(written: Path) -> None:
    block = with_weights(block_of_timm(written))
    block.attn.q_norm = nn.LayerNorm(WIDTH // HEADS)
    assert "JoinedEncoderLayer" not in swapped(block)
    block = with_weights(block_of_timm(written))
    assert swapped(block) == ["JoinedEncoderLayer"]
    block.attn.k_norm = nn.LayerNorm(WIDTH // HEADS)  # afterwards
    x = torch.randn(2, 9, WIDTH)
    with torch.inference_mode():
        assert block(x).equal(type(block).forward(block, x))


def test_torchvision(written: Path) -> None:
    block = with_weights(block_of_torchvision(written))
    original, x = copy.deepcopy(block), torch.randn(2, 9, WIDTH)
    assert swapped(block) == ["MultiheadEncoderLayer"]
    with torch.inference_mode():
        assert not block(x).equal(original(x))
        assert_close(block(x), original(x), factor=16)
        block.mlp.append(nn.Linear(WIDTH, WIDTH))  # afterwards
        assert block(x).equal(type(block).forward(block, x))
