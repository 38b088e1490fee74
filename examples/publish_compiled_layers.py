"""Compile layers, publish them to a Hub of one's own, and use them by version in another process.

Run with `python examples/publish_compiled_layers.py`. A Llama MLP and a BERT layer are compiled from modules, MiniLM
with its real weights from an ONNX file; each is published as v1.0.0. A fresh process with empty caches kernelizes
models with them by ">=1.0,<2"; Hugging Face's `kernels` client loads them as well. Everything is in one temporary
folder, and nothing leaves this machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels_hub.cli import demo_published
from kernels_hub.cli.demo_published import Used


@dataclass(frozen=True)
class PublishingFigures:
    """All of one run of the example."""

    used: tuple[Used, ...]
    with_kernels: dict[str, float]
    """Layer -> error, with Hugging Face's client."""


def main(arguments: Sequence[str] = ()) -> PublishingFigures:
    parser = argparse.ArgumentParser(description="Compile layers, publish them, use them by version.")
    parser.add_argument("--layers", type=int, default=6, help="of MiniLM's six")
    parser.add_argument("--hidden", type=int, default=256, help="the width of the Llama and the BERT")
    options = parser.parse_args(arguments)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def said(what: str, started: float) -> None:
            print(f"{what}: {time.perf_counter() - started:.1f} s", flush=True)

        # Who owns the models: `kernels-hub compile` does the same from the command line.
        started = time.perf_counter()
        mlp = demo_published.llama_mlp(folder, hidden=options.hidden)
        said("compiled a Llama MLP, from a module", started)
        started = time.perf_counter()
        layer = demo_published.bert_layer(folder, hidden=options.hidden)
        said("compiled a BERT layer, from a module", started)
        started = time.perf_counter()
        encoder = demo_published.minilm_encoder(folder, layers=options.layers)
        said("compiled MiniLM, from an ONNX file", started)
        layers = (mlp, layer, encoder)

        with demo_published.served(folder) as environment:
            for one in layers:
                started = time.perf_counter()
                demo_published.publish(one, environment)
                said(f"published {one.repository} {demo_published.VERSION}", started)

            # Who uses them, elsewhere: a version specifier is all there is to know.
            used = demo_published.use(layers, environment, folder / "ours")
            theirs = demo_published.use_with_kernels(layers, environment, folder / "theirs")

    for row in demo_published.table(used, theirs):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, (10, 22, 7, 13, 12, 0), strict=True)))
    return PublishingFigures(tuple(used), theirs)


if __name__ == "__main__":
    main(sys.argv[1:])
