"""What the weight guard costs: `python -m benchmarks.weight_guard`.

Calls of a BERT-like encoder (6 layers, 384 wide, 128 tokens) and of one token of a Llama with a cache (4 layers, 512
wide, 64 tokens before), on the default mapping and on `compiled`, in pairs, in turn:

    content    everything on against no comparison of what weights hold
    weights    everything on against no question about weights: neither what they hold nor what PyTorch counts of them
    all        everything on against no guard at all: nor are parts of modules, hooks and functions asked about
    control    everything on against everything on: what the difference of two equal things comes to

Each is the median of the differences of pairs, as a share of the median call, with the interval that holds the median
of such differences in 95% of resamples. What is timed is the processor time of the thread that calls, which other work
on the machine lengthens less than it does the time on the clock. Beside that, "inside" is the time on the clock that
passes in the guards of a call, as a share of that call: the median over calls, and the mean over the faster half; and
as microseconds, the median over the fastest quarter of calls, which says most where other work stretches calls.
"""

from __future__ import annotations

import gc
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest import mock

from benchmarks.harness import arguments, cache_argument, table, write

MODELS = ("bert", "llama token")
MAPPINGS = ("default", "compiled")
WAYS = ("content", "weights", "all", "control")
_BLOCK = 8
"""Calls that are timed together: what turns up at one of eight calls is in every block, and what other work does to the
machine meets both of a pair."""
_SHORT = 0.15
"""Of blocks that take less than so many seconds, more pairs are timed in proportion."""


def _call(model: str, mapping: str) -> Callable[[], Any]:
    import torch
    import transformers

    from kernels_hub import Mode, kernelize, load_kernel_mapping, report, use_kernel_mapping

    torch.manual_seed(0)
    inputs: dict[str, Any]
    if model == "bert":
        config = transformers.BertConfig(
            hidden_size=384, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=12
        )
        module: Any = transformers.BertModel(config).eval()
        inputs = {
            "input_ids": torch.randint(0, 30_000, (1, 128)),
            "attention_mask": torch.ones(1, 128, dtype=torch.int64),
        }
    else:
        llama = transformers.LlamaConfig(
            hidden_size=512,
            intermediate_size=1376,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=4,
        )
        module = transformers.LlamaForCausalLM(llama).eval()
        inputs = {"input_ids": torch.randint(0, 32_000, (1, 1))}
    with use_kernel_mapping(load_kernel_mapping(mapping), inherit_mapping=False):
        kernelize(module, mode=Mode.INFERENCE, wait=True)
    prompt = torch.randint(0, 32_000, (1, 64))

    def run() -> Any:
        with torch.inference_mode():
            if model == "bert":
                return module(**inputs)
            cache = transformers.DynamicCache(config=module.config)
            layer: Any
            for layer, (keys, values) in zip(cache.layers, filled, strict=True):
                layer.lazy_initialization(keys, values)
                layer.keys, layer.values = keys, values
            return module(**inputs, **{cache_argument(): cache}, use_cache=True)

    filled: list[Any] = []
    with torch.inference_mode():
        first = transformers.DynamicCache(config=module.config) if model != "bert" else None
        if first is not None:
            module(input_ids=prompt, **{cache_argument(): first}, use_cache=True)
            held: list[Any] = list(first.layers)
            filled = [(one.keys.clone(), one.values.clone()) for one in held]
    for _ in range(20):
        run()
    swapped = sum(row.swapped for row in report(module).rows)
    print(f"{model}, {mapping}: {swapped} modules on kernels")
    return run


class Guards:
    """All guards of the process, to be taken out and put back.

    Their classes are changed once, for all pairs: a class that changes makes CPython look all its attributes up anew,
    which is 70 us of a token's 3.6 ms.
    """

    def __init__(self) -> None:
        self._not_asked: tuple[type[Any], ...] = ()
        named = [one for one in gc.get_objects() if type(one).__name__ in {"WeightGuard", "ModuleGuard"}]
        self.contents = [(one, one.content) for one in named if one.content is not None]
        self.modules = [one for one in named if type(one).__name__ == "ModuleGuard"]
        self.kinds = list({type(one) for one in named})

    @staticmethod
    def _record(one: Any) -> Any:
        """What native code has of a guard."""
        return one._record if hasattr(one, "_record") else one._use

    @contextmanager
    def without_content(self) -> Iterator[None]:
        """Do not compare what weights hold."""
        for one, _ in self.contents:
            one.content = None
            self._record(one).guard = None
        yield
        for one, content in self.contents:
            one.content = content
            self._record(one).guard = content.address

    @contextmanager
    def without_weights(self) -> Iterator[None]:
        """Ask about modules alone, not about their weights."""
        records = [self._record(one) for one in self.modules]
        states = [record.state for record in records]
        self._not_asked = tuple(kind for kind in self.kinds if kind.__name__ == "WeightGuard")
        with self.without_content():
            for record in records:
                record.state = None
            yield
            for record, state in zip(records, states, strict=True):
                record.state = state
        self._not_asked = ()

    @contextmanager
    def without(self) -> Iterator[None]:
        """Do not ask anything."""
        self._not_asked = tuple(self.kinds)
        yield
        self._not_asked = ()

    @contextmanager
    def can_be_taken_out(self) -> Iterator[None]:
        """What `without` needs around it."""
        with ExitStack() as stack:
            for kind in self.kinds:

                def holds(*args: Any, kind: Any = kind, original: Any = kind.holds, **kwargs: Any) -> bool:
                    return kind in self._not_asked or bool(original(*args, **kwargs))

                stack.enter_context(mock.patch.object(kind, "holds", holds))
            yield

    @contextmanager
    def as_is(self) -> Iterator[None]:
        """Change nothing."""
        yield

    @property
    def mib(self) -> float:
        """What is compared."""
        compared: int = sum(one.record.bytes for _, one in self.contents if hasattr(one, "record"))
        return compared / 2**20


def _seconds(run: Callable[[], Any], block: int) -> float:
    begin = time.thread_time()
    for _ in range(block):
        run()
    return (time.thread_time() - begin) / block


def _inside(run: Callable[[], Any], guards: Guards, calls: int) -> tuple[float, float, float, float]:
    """Of calls, the median share that passes in guards, and the mean over the calls that are not disturbed.

    Then, of the fastest quarter of calls, the median microseconds in guards and milliseconds of a call.
    """
    spent = 0.0
    with ExitStack() as stack:
        for kind in guards.kinds:
            original = kind.holds

            def timed(*args: Any, original: Any = original, **kwargs: Any) -> bool:
                nonlocal spent
                begin = time.perf_counter()
                same: bool = original(*args, **kwargs)
                spent += time.perf_counter() - begin
                return same

            stack.enter_context(mock.patch.object(kind, "holds", timed))
        shares, times = [], []
        for _ in range(calls):
            spent = 0.0
            begin = time.perf_counter()
            run()
            took = time.perf_counter() - begin
            shares.append((took, spent))
            times.append(took)
    typical = statistics.median(times)
    quiet = [(took, inside) for took, inside in shares if took <= typical]
    mean = sum(inside for _, inside in quiet) / sum(took for took, _ in quiet)
    fastest = sorted(shares)[: max(1, calls // 4)]
    return (
        100 * statistics.median(inside / took for took, inside in shares),
        100 * mean,
        1e6 * statistics.median(inside for _, inside in fastest),
        1e3 * statistics.median(took for took, _ in fastest),
    )


def measure(model: str, mapping: str, pairs: int) -> dict[str, Any]:
    """Shares of a call, in percent."""
    run = _call(model, mapping)
    guards = Guards()
    ways = {
        "content": guards.without_content,
        "weights": guards.without_weights,
        "all": guards.without,
        "control": guards.as_is,
    }
    differences: dict[str, list[float]] = {name: [] for name in ways}
    calls: list[float] = []
    block_seconds = _BLOCK * min(_seconds(run, _BLOCK) for _ in range(5))
    with guards.can_be_taken_out():
        for pair in range(round(pairs * max(1.0, _SHORT / block_seconds))):
            for name, way in ways.items():
                times = {}
                for is_on in (True, False) if pair % 2 else (False, True):
                    with guards.as_is() if is_on else way():
                        run()
                        times[is_on] = _seconds(run, _BLOCK)
                differences[name].append(times[True] - times[False])
                calls.append(times[True])
    typical = statistics.median(calls)
    inside = _inside(run, guards, 4 * pairs)
    found: dict[str, Any] = {
        "inside": inside,
        "pairs": len(differences["all"]),
        "ms": 1e3 * typical,
        "compared_mib": guards.mib,
        "guards": len(guards.contents),
    }
    for name, of in differences.items():
        resampled = sorted(
            statistics.median(random.Random(seed).choices(of, k=len(of))) for seed in range(200)
        )
        found[name] = [100 * one / typical for one in (statistics.median(of), resampled[4], resampled[195])]
    return found


def processor() -> str:
    """Its name, what it multiplies by, and how many cores are there."""
    fields: dict[str, str] = {}
    with suppress(OSError, subprocess.SubprocessError):
        text = subprocess.run(["lscpu"], capture_output=True, text=True, check=True, timeout=30).stdout
        fields = {
            name.strip(): value.strip()
            for name, _, value in (line.partition(":") for line in text.splitlines())
        }
    flags = fields.get("Flags", "").split()
    units = [
        name
        for name, flag in (("AVX-512", "avx512f"), ("AMX", "amx_tile"), ("AVX2", "avx2"))
        if flag in flags
    ]
    return (
        f"{fields.get('Model name', 'unknown')}, {' and '.join(units[:2])}, {fields.get('CPU(s)', '?')} cores"
    )


def main() -> None:
    """Measure, print, and keep what was found."""
    import torch

    parser = arguments(str(__doc__))
    parser.add_argument("--pairs", type=int, default=110)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = {
        f"{model}, {mapping}": measure(model, mapping, options.pairs)
        for model in MODELS
        for mapping in MAPPINGS
    }
    rows = []
    for name, of in results.items():
        shares = (f"{mid:.2f} ({low:.2f} to {high:.2f})" for mid, low, high in (of[way] for way in WAYS))
        share, mean, microseconds, milliseconds = of["inside"]
        inside = f"{share:.2f}, mean {mean:.2f}; {microseconds:.0f} us of {milliseconds:.2f} ms"
        rows.append((name, f"{of['ms']:.2f}", f"{of['compared_mib']:.0f}", inside, *shares))
    print(table(("call", "ms", "MiB compared", "inside, %", *(f"{one}, %" for one in WAYS)), rows))
    if options.write:
        print(write("weight-guard", {"processor": processor(), "pairs": options.pairs, "calls": results}))


if __name__ == "__main__":
    main()
