"""`kernels-hub demo`: three models before and after kernelize, an ONNX file rewritten, compiled layers published."""

from __future__ import annotations

import copy
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kernels_hub.files import cache_folder

if TYPE_CHECKING:
    from rich.console import Console

    from kernels_hub.cli.demo_onnx import OnnxFigures
    from kernels_hub.cli.demo_page import Results


@dataclass(frozen=True)
class Comparison:
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
    """Run the demo, printing as it goes; returns its comparison as JSON-ready data.

    folder: where the ONNX file and the pages are kept; None: the pages alone, in the folder `demo` of the cache, in
        place of those of the run before. Ends with the path of a page (HTML) of the results.
    """
    from rich.console import Console

    from kernels_hub.cli.demo_models import llama, resnet
    from kernels_hub.cli.demo_onnx import summary
    from kernels_hub.cli.demo_page import write_page
    from kernels_hub.cli.demo_published import compiled_published_and_used

    console = Console()
    results: list[Comparison] = []
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
    for comparison in results:
        console.print(
            f"{comparison.model}: {comparison.before_ms:.1f} ms -> {comparison.after_ms:.1f} ms, "
            f"[bold]{comparison.ratio:.2f} times as fast[/bold]; largest error {comparison.max_error:.1e} "
            f"where outputs reach {comparison.max_magnitude:.2g}"
        )
    for line in summary(rewritten):
        console.print(f"MiniLM as ONNX: {line}", highlight=False, soft_wrap=True, markup=False)
    for row in published[1:]:
        console.print(
            " ".join(map(": ".join, zip(published[0], row, strict=True))), highlight=False, soft_wrap=True
        )
    found = {
        "models": [vars(comparison) for comparison in results],
        "similarities": similarities,
        "onnx": rewritten.as_json(),
        "published": [dict(zip(published[0], row, strict=True)) for row in published[1:]],
    }
    page = write_page(cast("Results", found), folder or cache_folder("demo"))
    console.print(f"all of it as a page: {page}", highlight=False, soft_wrap=True, markup=False)
    return found


def _onnx(console: Console, folder: Path | None) -> OnnxFigures:
    from kernels_hub.cli.demo_onnx import onnx_before_and_after

    if folder is None:
        folder = cache_folder("demo")
        folder.mkdir(parents=True, exist_ok=True)
        comparison = onnx_before_and_after(console, folder)
        (folder / "minilm.onnx").unlink()  # 90 MB
    else:
        folder.mkdir(parents=True, exist_ok=True)
        comparison = onnx_before_and_after(console, folder)
    return comparison


def _minilm() -> Any:
    from kernels_hub.cli.demo_models import minilm

    return minilm()


def _sentences(console: Console) -> list[dict[str, Any]]:
    """Embed real sentences with and without kernels: the same neighbours, the same similarities."""
    import torch

    from kernels_hub import Mode, kernelize, wait_until_compiled
    from kernels_hub.cli.demo_models import SENTENCES, embeddings, sentences

    model, inputs = sentences()
    with torch.inference_mode():
        before = embeddings(model, inputs)
        embeddings(kernelize(model, mode=Mode.INFERENCE), inputs)
        with console.status("building the kernels' C++, once a machine …"):
            wait_until_compiled(model)
        after = embeddings(model, inputs)
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


def _before_and_after(
    console: Console, title: str, model: Any, inputs: dict[str, Any], pairs: int
) -> Comparison:
    import torch

    from kernels_hub import Mode, kernelize, report, wait_until_compiled
    from kernels_hub.cli.demo_timing import paired

    with torch.inference_mode():
        original = copy.deepcopy(model)
        with console.status("kernelizing for inference on the CPU …"):
            kernelize(model, mode=Mode.INFERENCE)
        rows = report(model)
        console.print(str(rows), highlight=False, soft_wrap=True)
        with console.status("building the kernels' C++, once a machine …"):
            model(**inputs)  # by its originals, where something has to be built
            wait_until_compiled(model)
        expected, found = original(**inputs)[0], model(**inputs)[0]
        with console.status(f"timing {pairs} pairs …"):
            before, after, ratio = paired(lambda: original(**inputs), lambda: model(**inputs), pairs)
    comparison = Comparison(
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
        f"{comparison.before_ms:.1f} ms before, {comparison.after_ms:.1f} ms after: {ratio:.2f} times as fast; "
        f"largest error {comparison.max_error:.1e}"
    )
    return comparison
