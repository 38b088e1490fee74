"""Writing token by token with transformers' `generate`, against eager: `python -m benchmarks.generation`.

Llamas of random weights write greedily: each token is a call with a cache that is one longer, so its shapes are new.
Peers: eager, the default mapping, `compiled`, and (with --compile) `torch.compile` over a static cache, as transformers
advises, each in a process of its own. What counts is the time per token after the prompt, and whether a peer writes
what eager writes.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness import Worker, arguments, compare, now, table, write

VOCABULARY = 32000


@dataclass(frozen=True)
class Case:
    """A Llama and its task. prompt, written: tokens."""

    layers: int
    width: int
    inner: int
    prompt: int
    written: int = 32


CASES = {
    "short": Case(layers=4, width=512, inner=1376, prompt=64),
    "long": Case(layers=4, width=512, inner=1376, prompt=1024),
    "deep": Case(layers=22, width=256, inner=688, prompt=64),
}
PEERS = ("eager", "kernels_hub", "compiled", "torch.compile")


def _model(case: Case) -> tuple[Any, Any]:
    """A model and a prompt."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=case.width, intermediate_size=case.inner, num_hidden_layers=case.layers, num_attention_heads=8,
        num_key_value_heads=4, vocab_size=VOCABULARY,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval(), torch.randint(0, VOCABULARY, (1, case.prompt))


class _Clock:
    """As a streamer of transformers: when each token came."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _: Any) -> None:
        self.times.append(now())

    def end(self) -> None:
        """All were written."""


def run(name: str, peer: str) -> Any:
    """A step that writes, and gives the seconds of a token; and what it wrote."""
    import torch

    from kernels_hub import Mode, kernelize, load_kernel_mapping, use_kernel_mapping

    case = CASES[name]
    model, prompt = _model(case)
    options: dict[str, Any] = {
        "max_new_tokens": case.written,
        "min_new_tokens": case.written,
        "do_sample": False,
    }
    os.environ["KERNELS_HUB_JIT"] = (
        "wait"  # for C++ as for graphs; paired_commits.py runs commits before `wait=`, too
    )
    if peer == "kernels_hub":
        kernelize(model, mode=Mode.INFERENCE)
    elif peer == "compiled":
        with use_kernel_mapping(load_kernel_mapping("compiled"), inherit_mapping=False):
            os.environ["KERNELS_HUB_JIT"] = (
                "wait"  # commits before `wait=` run here as well, see paired_commits.py
            )
            kernelize(model, mode=Mode.INFERENCE)
    elif peer == "torch.compile":
        model.forward = torch.compile(model.forward)
        options["cache_implementation"] = "static"

    def written(clock: _Clock) -> Any:
        with torch.inference_mode():
            return model.generate(prompt, streamer=clock, pad_token_id=0, **options)

    def step() -> float:
        clock = _Clock()
        written(clock)
        _, first, *_, last = clock.times  # the prompt, and the token that it gave, come first
        return (last - first) / (case.written - 1)

    return step, {"tokens": written(_Clock())[0, case.prompt :].tolist()}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--compile", action="store_true", help="torch.compile as a peer, too (slow to start)")
    options = parser.parse_args()
    peers = PEERS if options.compile else PEERS[:-1]
    results: dict[str, Any] = {}
    for name in options.cases:
        workers = [
            Worker(peer, "benchmarks.generation:run", {"name": name, "peer": peer}, options.threads)
            for peer in peers
        ]
        found = compare(workers, rounds=options.rounds)
        tokens = {peer: info["tokens"] for peer, info in found.info.items()}
        results[name] = {
            "case": asdict(CASES[name]),
            **found.to_dict(),
            "speedup_over_eager": {peer: round(found.speedup(peer, "eager"), 3) for peer in peers[1:]},
            "writes_the_same": {peer: tokens[peer] == tokens["eager"] for peer in peers[1:]},
        }
        print(name, results[name]["median_ms"], flush=True)
    print(table(("case", *(f"{peer} ms" for peer in peers), *(f"{peer}: gain" for peer in peers[1:])), [
        (name, *(f"{of['median_ms'][peer]:.2f}" for peer in peers),
         *(f"{one:.2f}" for one in of["speedup_over_eager"].values()))
        for name, of in results.items()
    ]))  # fmt: skip
    if options.write:
        print(write("generation", {"threads": options.threads, "cases": results}))


if __name__ == "__main__":
    main()
