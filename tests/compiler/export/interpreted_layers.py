"""Emitted Triton under Triton's interpreter: run as a program, with TRITON_INTERPRET=1 and folders of emitted layers.

python -m tests.compiler.export.interpreted_layers mlp=… normed=… bert=… onnx=…
"""

from __future__ import annotations

import contextlib
import copy
import logging
import sys
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernels_hub import get_local_kernel
from tests.compiler.export.emitted_layers import bert, gated_mlp, normed, token_ids
from tests.tolerances import assert_close


class Emitted:
    """A layer's CUDA variant, run on the CPU."""

    def __init__(self, folder: str, name: str) -> None:
        self.kernel = get_local_kernel(folder, backend="cuda")
        self.forward = getattr(self.kernel.layers, name).forward
        self.program = self.kernel.program.LAYER

    @torch.no_grad()
    def compare(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        """The program ran, and gave what the class's forward gives in float64."""

        def wide(one: Any) -> Any:
            return one.double() if isinstance(one, torch.Tensor) and one.is_floating_point() else one

        doubled = pytree.tree_map(wide, (args, kwargs))
        expected = copy.deepcopy(module).double()(*doubled[0], **doubled[1])
        actual = self.forward(module, *args, **kwargs)
        assert not self.program.fallbacks, self.program.fallbacks
        for one, other in zip(*map(pytree.tree_leaves, (actual, expected)), strict=True):
            if isinstance(other, torch.Tensor):
                assert_close(one, other, dtype=one.dtype, factor=4)


def mlp(folder: str) -> None:
    """Sizes, strides, weights that change, threads; calls that it was not compiled for."""
    layer, module = Emitted(folder, "GatedMLP"), gated_mlp().module
    for shape in ((2, 5, 64), (1, 1, 64), (3, 33, 64), (0, 4, 64)):
        layer.compare(module, torch.randn(shape))
    layer.compare(module, torch.randn(4, 3, 64).transpose(0, 1))
    with torch.no_grad():
        module.down_proj.weight.mul_(2)
        module.gate_proj.weight.data += 0.25
    module.up_proj.weight = nn.Parameter(torch.randn(96, 64))
    layer.compare(module, torch.randn(2, 3, 64))

    wrong: list[int] = []

    def work(length: int) -> None:
        x = torch.randn(1, length, 64)
        with torch.no_grad():
            for _ in range(3):
                if not torch.allclose(layer.forward(module, x), module(x), atol=1e-5):
                    wrong.append(length)

    threads = [threading.Thread(target=work, args=(length,)) for length in (1, 9)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong and not layer.program.fallbacks

    x = torch.randn(2, 5, 64)
    assert layer.forward(module, x).requires_grad, "the original runs where a gradient is asked for"
    for change, reason in (
        (lambda: layer.forward(module, x[0]), "x, compiled for [batch, length, 64], got [5, 64]"),
        (lambda: layer.forward(copy.deepcopy(module).half(), x.half()), "float16, it was compiled for"),
        (
            lambda: layer.forward(module, x.to("meta")),
            "x is on meta, it was compiled for Triton's interpreter",
        ),
    ):
        layer.program.fallbacks.clear()
        with torch.no_grad(), contextlib.suppress(RuntimeError):  # the original's, of a tensor without data
            change()
        assert any(reason in one for one in layer.program.fallbacks.values()), (
            reason,
            layer.program.fallbacks,
        )
    layer.program.fallbacks.clear()
    with torch.no_grad(), torch.autocast("cpu"):
        layer.forward(module, x)
    assert "torch.autocast is on, which the program does not follow" in layer.program.fallbacks.values()


def dtypes(folder: str) -> None:
    """Each program serves weights of its dtype."""
    layer = Emitted(folder, "GatedMLP")
    for dtype in (torch.float32, torch.bfloat16):
        layer.compare(gated_mlp().module.to(dtype), torch.randn(2, 5, 64).to(dtype))


def everything(folder: str) -> None:
    """Folded norms that follow, tied weights, a buffer, nested arguments."""
    layer, module = Emitted(folder, "Normed"), normed().module.eval()
    for rows in (4, 1, 9):
        layer.compare(module, torch.randn(rows, 48), (torch.randn(rows, 48), torch.randn(48)), double=True)
    with torch.no_grad():
        module.norm.running_var.mul_(3)
        module.shift.add_(1)
    layer.compare(module, torch.randn(2, 48), (torch.randn(2, 48), torch.randn(48)), double=True)


def attention(folder: str) -> None:
    """A layer of a model."""
    from transformers.models.bert.modeling_bert import BertLayer

    layer, model = Emitted(folder, "BertLayer"), bert()
    ids = token_ids(2, 9)
    with torch.no_grad():
        expected = model(ids).last_hidden_state
        for one in model.modules():
            if isinstance(one, BertLayer):
                one.forward = layer.forward.__get__(one)
        assert_close(model(ids).last_hidden_state, expected, factor=4)
    assert not layer.program.fallbacks


def onnx(folder: str) -> None:
    """On its own; an index out of range is an error."""
    kernel = get_local_kernel(folder, backend="cuda")
    model, ids = kernel.load(), torch.randint(0, 40, (2, 9))
    on_cpu = get_local_kernel(folder, backend="cpu").load()
    assert_close(model(ids)["last"], on_cpu(ids)["last"], dtype=torch.float32, factor=4)
    with pytest.raises(IndexError, match="Encoder: "):
        model(torch.full((1, 3), 40))


def main(arguments: list[str]) -> None:
    """Run the named ones."""
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    for one in arguments:
        name, _, folder = one.partition("=")
        globals()[name](folder)
        print(name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
