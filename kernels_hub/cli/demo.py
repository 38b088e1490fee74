"""`kernels-hub demo`: three models before and after kernelize, an ONNX file rewritten, compiled layers published."""

from __future__ import annotations

import copy
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernels_hub.cli.demo_onnx import OnnxFigures


@dataclass(frozen=True)
class Figures:
    """One model before and after `kernelize`. Times in milliseconds."""

    model: str
    before_ms: float
    after_ms: float
    ratio: float
    """Median of before / after over interleaved pairs; above 1, the kernels are faster."""
    max_error: float
    """Largest absolute difference of the outputs."""
    max_magnitude: float
    """Largest absolute value of the original's outputs."""
    packed_mib: float
    swapped: int
    modules: int


def demo(pairs: int = 15, folder: Path | None = None) -> dict[str, Any]:
    """Run the demo, printing as it goes; returns its figures as JSON-ready data.

    folder: where the ONNX file and its page are kept; None: the page alone, in a new temporary folder.
    """
    from rich.console import Console

    from kernels_hub.cli.demo_models import llama, resnet
    from kernels_hub.cli.demo_onnx import summary
    from kernels_hub.cli.demo_published import compiled_published_and_used

    console = Console()
    results: list[Figures] = []
    with console.status("loading MiniLM with its real weights …"):
        similarities = _sentences(console)
    for title, build in (
        ("MiniLM, 6 layers, 8 sentences of 128 tokens", _minilm),
        ("Llama from a config: 4 layers, 512 wide, 128 tokens", llama),
        ("ResNet-50 from a config, one image", resnet),
    ):
        console.rule(title)
        with console.status("building …"):
            model, inputs = build()
        results.append(_before_and_after(console, title, model, inputs, pairs))
    console.rule("MiniLM as an ONNX file, before and after the compiler's rewrites")
    rewritten = _onnx(console, folder)
    console.rule("layers compiled, published to a Hub on this machine, and used by version")
    with tempfile.TemporaryDirectory(prefix="kernels-hub-demo-") as place:
        published = compiled_published_and_used(console, Path(place))
    console.rule("summary")
    for figures in results:
        console.print(
            f"{figures.model}: {figures.before_ms:.1f} ms -> {figures.after_ms:.1f} ms, "
            f"[bold]{figures.ratio:.2f} times faster[/bold]; largest error {figures.max_error:.1e} "
            f"where outputs reach {figures.max_magnitude:.2g}"
        )
    for line in summary(rewritten):
        console.print(f"MiniLM as ONNX: {line}", highlight=False, soft_wrap=True, markup=False)
    for row in published[1:]:
        console.print(
            " ".join(map(": ".join, zip(published[0], row, strict=True))), highlight=False, soft_wrap=True
        )
    return {
        "models": [vars(figures) for figures in results],
        "similarities": similarities,
        "onnx": rewritten.as_json(),
        "published": [dict(zip(published[0], row, strict=True)) for row in published[1:]],
    }


def _onnx(console: Any, folder: Path | None) -> OnnxFigures:
    from kernels_hub.cli.demo_onnx import onnx_before_and_after

    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="kernels-hub-demo-"))
        figures = onnx_before_and_after(console, folder)
        (folder / "minilm.onnx").unlink()  # 90 MB
    else:
        folder.mkdir(parents=True, exist_ok=True)
        figures = onnx_before_and_after(console, folder)
    return figures


def _minilm() -> Any:
    from kernels_hub.cli.demo_models import minilm

    return minilm()


def _sentences(console: Any) -> list[dict[str, Any]]:
    """Embed real sentences with and without kernels: the same neighbours, the same similarities."""
    import torch

    from kernels_hub import Mode, kernelize
    from kernels_hub.cli.demo_models import SENTENCES, embeddings, sentences

    model, inputs = sentences()
    with torch.inference_mode():
        before = embeddings(model, inputs)
        after = embeddings(kernelize(model, mode=Mode.INFERENCE), inputs)
    pairs = []
    console.rule("MiniLM: similarities of sentences, original and kernelized")
    for first, second in ((0, 1), (2, 3), (4, 5), (0, 2)):
        original, kernelized = float(before[first] @ before[second]), float(after[first] @ after[second])
        console.print(
            f"{original:.6f}  {kernelized:.6f}  {SENTENCES[first]} | {SENTENCES[second]}", highlight=False
        )
        pairs.append(
            {
                "first": SENTENCES[first],
                "second": SENTENCES[second],
                "original": original,
                "kernelized": kernelized,
            }
        )
    console.print(f"largest error of an embedding's element: {(before - after).abs().max():.1e}")
    return pairs


def _before_and_after(console: Any, title: str, model: Any, inputs: dict[str, Any], pairs: int) -> Figures:
    import torch

    from kernels_hub import Mode, kernelize, report

    with torch.inference_mode():
        original = copy.deepcopy(model)
        with console.status("kernelizing for inference on the CPU …"):
            kernelize(model, mode=Mode.INFERENCE)
        rows = report(model)
        console.print(str(rows), highlight=False, soft_wrap=True)
        expected, found = original(**inputs)[0], model(**inputs)[0]
        with console.status(f"timing {pairs} pairs …"):
            before, after, ratio = _paired(lambda: original(**inputs), lambda: model(**inputs), pairs)
    figures = Figures(
        model=title,
        before_ms=before * 1e3,
        after_ms=after * 1e3,
        ratio=ratio,
        max_error=float((expected - found).abs().max()),
        max_magnitude=float(expected.abs().max()),
        packed_mib=rows.packed_nbytes / 2**20,
        swapped=len(rows.swapped),
        modules=len(rows),
    )
    console.print(
        f"{figures.before_ms:.1f} ms before, {figures.after_ms:.1f} ms after: {ratio:.2f} times faster; "
        f"largest error {figures.max_error:.1e}"
    )
    return figures


def _paired(first: Callable[[], Any], second: Callable[[], Any], pairs: int) -> tuple[float, float, float]:
    """Median seconds of both, and the median ratio first / second, over interleaved calls."""
    for _ in range(3):
        first(), second()
    times: list[tuple[float, float]] = []
    for _ in range(pairs):
        start = time.perf_counter()
        first()
        middle = time.perf_counter()
        second()
        times.append((middle - start, time.perf_counter() - middle))
    return (
        statistics.median(a for a, _ in times),
        statistics.median(b for _, b in times),
        statistics.median(a / b for a, b in times),
    )
