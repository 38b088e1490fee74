"""The demo's ONNX file: MiniLM as PyTorch exports it, imported, rewritten, judged by the oracle, drawn on a page."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kernels_hub.cli.demo_models import Example, sentences

if TYPE_CHECKING:
    from rich.console import Console

    from kernels_hub.compiler.ir.graph import Graph

OPSET = 14
"""ONNX has LayerNormalization since opset 17 and Gelu since 20: here both arrive as the arithmetic that they are."""


@dataclass(frozen=True)
class OnnxFigures:
    """One ONNX file before and after the compiler's rewrites.

    Operations are nodes that the outputs need, but for constants and weights.
    """

    page: str
    file_operations: int
    before: int
    """Operations of the imported graph."""
    after: int
    """Operations of the rewritten one."""
    recognised: dict[str, int]
    """Name of a recognised part -> how often."""
    import_seconds: float
    rewrite_seconds: float
    rewriting_error: float
    """Largest absolute difference that rewriting makes to the oracle's outputs."""
    torch_error: float
    """Largest absolute difference between the rewritten graph's outputs and PyTorch's."""
    max_magnitude: float
    """Largest absolute value of PyTorch's outputs."""

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class _LastHiddenState(nn.Module):
    """A model with one output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.model(
            input_ids=input_ids, attention_mask=attention_mask
        ).last_hidden_state
        return hidden


def export(path: Path, example: Example) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Write an encoder as ONNX, batch and length left open; the module of the file, and the inputs that it takes.

    By the exporter that needs no package but onnx.
    """
    encoder, given = example
    encoder.set_attn_implementation("eager")  # the formula; others test each row of it for NaN
    model = _LastHiddenState(encoder).eval()  # the exporter puts all of a module back into its outermost mode
    inputs = {name: given[name] for name in ("input_ids", "attention_mask")}
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # about the exporter's age, and sizes that tracing fixes: none of ours
        torch.onnx.export(
            model, tuple(inputs.values()), str(path), dynamo=False, opset_version=OPSET,
            input_names=list(inputs), output_names=["last_hidden_state"],
            dynamic_axes={name: {0: "batch", 1: "length"} for name in (*inputs, "last_hidden_state")},
        )  # fmt: skip
    return model, inputs


def onnx_before_and_after(console: Console, folder: Path, example: Example | None = None) -> OnnxFigures:
    """Write minilm.onnx and its page into a folder; print and return what rewriting did.

    example: an encoder and its inputs, in place of MiniLM with its weights on real sentences.
    """
    from kernels_hub.compiler import evaluate
    from kernels_hub.compiler.importers.onnx import import_onnx
    from kernels_hub.compiler.importers.onnx_file import read_onnx
    from kernels_hub.compiler.rewrite.outline import composite
    from kernels_hub.compiler.rewrite.pipeline import rewrite
    from kernels_hub.compiler.viewing.view import to_html

    file, page = folder / "minilm.onnx", folder / "minilm.html"
    with console.status("exporting …"):
        model, inputs = export(file, example or sentences(2))
    with torch.inference_mode():
        expected = model(**inputs).numpy()
    start = time.perf_counter()
    graph = import_onnx(file)
    imported = time.perf_counter()
    rewritten = rewrite(graph)
    done = time.perf_counter()
    with console.status("the oracle evaluates both graphs …"):
        arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
        before, after = (evaluate(one, arrays)["last_hidden_state"] for one in (graph, rewritten.graph))
    batch, length = inputs["input_ids"].shape
    page.write_text(
        to_html(graph, rewritten.graph, sizes={"batch": batch, "length": length}), encoding="utf-8"
    )
    names = (composite(value) for node in rewritten.graph.nodes for value in node.results)
    figures = OnnxFigures(
        page=str(page),
        file_operations=sum(node.op_type != "Constant" for node in read_onnx(file).model.graph.node),
        before=_operations(graph),
        after=_operations(rewritten.graph),
        recognised=dict(Counter(name for name in names if name).most_common()),
        import_seconds=imported - start,
        rewrite_seconds=done - imported,
        rewriting_error=float(abs(before - after).max()),
        torch_error=float(abs(after - expected).max()),
        max_magnitude=float(abs(expected).max()),
    )
    console.print(str(rewritten), highlight=False, soft_wrap=True)
    for line in summary(figures):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    return figures


def _operations(graph: Graph) -> int:
    from kernels_hub.compiler.ir.op import Trait

    return sum(Trait.LEAF not in node.op.traits for node in graph.live())


def summary(figures: OnnxFigures) -> list[str]:
    """The figures as a person reads them."""
    parts = ", ".join(f"{count} {name}" for name, count in figures.recognised.items()) or "nothing"
    imported = f"{figures.before} imported in {figures.import_seconds:.1f} s"
    rewritten = f"{figures.after} rewritten in {figures.rewrite_seconds:.1f} s"
    return [
        f"{figures.file_operations} operations in the file, {imported}, {rewritten}",
        f"recognised: {parts}",
        f"largest difference that rewriting makes: {figures.rewriting_error:.1e}",
        f"largest difference from PyTorch: {figures.torch_error:.1e} where outputs reach {figures.max_magnitude:.2g}",
        f"both graphs, side by side: {figures.page}",
    ]
