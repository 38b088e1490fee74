"""From the built model to the first right output, each in a fresh process, in turn: `python -m benchmarks.cold_start`.

A 4-layer Llama (512 wide, 1 x 128 tokens, float32). Contenders: published layers, fetched from a Hub on loopback into
an empty cache and again from a full one (one layer for the whole model, and one for each decoder layer);
`torch.compile` with an empty and with a warm cache; an AOTInductor package that is there; `compile()` with an empty and
with a warm cache; eager. What a contender imports is part of its time; torch, transformers and the model are not. The
median of the rounds counts. Then one process of each runs on, in turn, for the steady speed; and pairs of new
processes, of what is published and of `compile()`: where its memory lies makes a difference of 2% to the same kernels.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bars import bars
from benchmarks.harness import Comparison, Worker, apart, arguments, compare, table, write

ROOT = Path(__file__).parents[1]
MODEL = "llama"
TOLERANCE = 1e-3
VERSION = ">=1.0,<2"
Call = Callable[[], Any]


@dataclass(frozen=True)
class Contender:
    """How it starts: `empty` names the caches that begin empty in every round; others keep theirs."""

    start: str
    empty: tuple[str, ...] = ()


CONTENDERS = {
    "eager": Contender("eager"),
    "published, empty cache": Contender("published", ("hub", "compiled")),
    "published": Contender("published"),
    "published layers, empty cache": Contender("published_layers", ("hub", "compiled")),
    "published layers": Contender("published_layers"),
    "torch.compile, empty cache": Contender("torch_compile", ("inductor",)),
    "torch.compile, warm cache": Contender("torch_compile"),
    "AOTInductor package": Contender("aotinductor"),
    "compile(), empty cache": Contender("compiled", ("compiled",)),
    "compile(), warm cache": Contender("compiled"),
}
PUBLISHED, OWN = "published", "compile(), warm cache"
"""The steady speed of the second is asked of the first."""
CACHES = {"hub": "HF_HUB_CACHE", "compiled": "KERNELS_HUB_CACHE", "inductor": "TORCHINDUCTOR_CACHE_DIR"}
"""Name -> the variable that says where it is."""

BARS = (
    ("torch.compile, empty cache", 1 / 20),
    ("torch.compile, warm cache", 1 / 4),
    ("AOTInductor package", 1.0),
)
"""Published layers, in an empty cache and in a full one, start in at most this part of a contender's time."""


# -- the contenders, each in a process of its own ---------------------------------------------------


def _eager(module: Any, args: Any, _: Path) -> Call:
    return lambda: module(*args)


def _torch_compile(module: Any, args: Any, folder: Path) -> Call:
    import torch

    return _eager(torch.compile(module), args, folder)


def _aotinductor(_: Any, args: Any, folder: Path) -> Call:
    import torch

    load: Any = torch._inductor.aoti_load_package
    return _eager(load(str(folder / "model.pt2")), args, folder)


def _compiled(module: Any, args: Any, _: Path) -> Call:
    from kernels_hub.compiler import compile as compile_

    compiled = compile_((module, args), "cpu")
    return lambda: compiled(*args)


def _published(module: Any, args: Any, _: Path) -> Call:
    return _kernelized(module, args, type(module), "Llama")


def _published_layers(module: Any, args: Any, _: Path) -> Call:
    return _kernelized(module, args, type(module.model.layers[0]), "LlamaLayer")


def _kernelized(module: Any, args: Any, cls: type, name: str) -> Call:
    from kernels_hub import (
        LayerRepository,
        Mode,
        kernelize,
        replace_kernel_forward_from_hub,
        use_kernel_mapping,
    )

    replace_kernel_forward_from_hub(cls, name)
    layer = LayerRepository(f"bench/{name.lower()}", layer_name=name, version=VERSION)
    with use_kernel_mapping({name: {"cpu": layer}}, inherit_mapping=False):
        kernelize(module, mode=Mode.INFERENCE, use_fallback=False)
    return lambda: module(*args)


START: dict[str, Callable[[Any, Any, Path], Call]] = {
    "eager": _eager,
    "published": _published,
    "published_layers": _published_layers,
    "torch_compile": _torch_compile,
    "aotinductor": _aotinductor,
    "compiled": _compiled,
}


def steady(start: str, folder: str) -> Call:
    """A step that calls a contender's model once, for `benchmarks.worker`."""
    import torch

    from benchmarks.compiler_models import model as built

    module, args = built(MODEL)
    with torch.inference_mode():
        call = START[start](module, args, Path(folder))

    def step() -> Any:
        with torch.inference_mode():
            return call()

    return step


def child(start: str, folder: str, threads: int) -> None:
    """Print the seconds to the first output, and its error."""
    import torch

    from benchmarks.compiler_models import model as built

    torch.set_num_threads(threads)
    module, args = built(MODEL)
    expected = torch.load(Path(folder) / "expected.pt")
    with torch.inference_mode():
        began = time.perf_counter()
        call = START[start](module, args, Path(folder))
        found = call()
        first = time.perf_counter() - began
        found = found[0] if isinstance(found, (tuple, list)) else found
        error = float((found - expected).abs().max())
        if not error <= TOLERANCE:
            raise SystemExit(f"{start}: the first output is off by {error}")
    print("@@" + json.dumps({"first_s": first, "error": error}))


# -- what is there before ---------------------------------------------------------------------------


def prepare(folder: Path, hub: dict[str, str], starts: set[str]) -> None:
    """Eager's output, and as far as contenders need them an AOTInductor package and two published repositories."""
    apart("benchmarks.cold_start:reference", str(folder))
    if "aotinductor" in starts:
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "packaging")}
        apart("benchmarks.cold_start:package", str(folder), environment=caches)
    if not starts & {"published", "published_layers"}:
        return
    apart(
        "benchmarks.cold_start:emit", str(folder), environment={"KERNELS_HUB_CACHE": str(folder / "emitting")}
    )
    for name in ("llama", "llamalayer"):
        command = [
            "-m",
            "kernels_hub",
            "publish",
            str(folder / name),
            "--repo",
            f"bench/{name}",
            "--version",
            "1.0.0",
        ]
        subprocess.run(
            [sys.executable, *command], check=True, stdout=subprocess.DEVNULL, env={**os.environ, **hub}
        )


def reference(folder: str) -> None:
    """Write what every contender's first output is compared with."""
    import torch

    from benchmarks.compiler_models import model as built

    module, args = built(MODEL)
    with torch.inference_mode():
        torch.save(module(*args), Path(folder) / "expected.pt")


def package(folder: str) -> None:
    """Write an AOTInductor package."""
    import torch

    from benchmarks.compiler_models import model as built

    module, args = built(MODEL)
    with torch.no_grad():
        program = torch.export.export(module, args)
        torch._inductor.aoti_compile_and_package(program, package_path=str(Path(folder) / "model.pt2"))


def emit(folder: str) -> None:
    """Write both layer repositories."""
    from benchmarks.compiler_models import model as built
    from kernels_hub.compiler.export.emit_layer import emit_layer

    module, args = built(MODEL)
    for name, submodule in (("Llama", None), ("LlamaLayer", "model.layers.0")):
        emit_layer(
            (module, args), layer_name=name, out=Path(folder) / name.lower(), submodule=submodule, name=name.lower(),
            prebuilt=True, triton=False, training=False, benchmark=False,
        )  # fmt: skip


@contextlib.contextmanager
def served(root: Path) -> Iterator[dict[str, str]]:
    """A Hub on loopback; the environment of who publishes there and who loads from it."""
    from kernels_hub.server.hub import Hub

    with Hub(root, create=True) as hub:
        hub.accounts.add_user("ada")
        hub.accounts.add_organisation("bench", "ada", trusted=True)
        token = hub.accounts.new_token("ada", "write")[0]
    command = [
        sys.executable,
        "-m",
        "kernels_hub",
        "serve",
        "--root",
        str(root),
        "--port",
        "0",
        "--no-access-log",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            announced = next(line for line in server.stdout if "http://" in line)
            endpoint = next(word for word in announced.split() if word.startswith("http://"))
            yield {"HF_ENDPOINT": endpoint, "HF_TOKEN": token, "XDG_CONFIG_HOME": str(root.parent / "config")}
        finally:
            server.terminate()


# -- rounds -----------------------------------------------------------------------------------------


def _environment(name: str, folder: Path, hub: dict[str, str], number: int) -> dict[str, str]:
    """Where a contender's caches are in a round: kept ones, and those that begin empty."""
    contender = CONTENDERS[name]
    kept = folder / "caches" / contender.start
    environment = {variable: str(kept / cache) for cache, variable in CACHES.items()}
    for cache in contender.empty:
        environment[CACHES[cache]] = str(folder / "empty" / f"{number}-{contender.start}" / cache)
    return {**hub, **environment, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "PYTHONWARNINGS": "ignore"}


def _round(name: str, folder: Path, hub: dict[str, str], number: int, threads: int) -> dict[str, float]:
    """One process of a contender."""
    # What is installed has its bytecode beside it: so shall what runs from a checkout.
    inherited = {one: value for one, value in os.environ.items() if one != "PYTHONDONTWRITEBYTECODE"}
    command = f"m.child({CONTENDERS[name].start!r}, {str(folder)!r}, {threads})"
    done = subprocess.run(
        [sys.executable, "-c", f"import benchmarks.cold_start as m; {command}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={
            **inherited, **_environment(name, folder, hub, number), "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
        },
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("@@")]
    if done.returncode or not lines:
        raise RuntimeError(f"{name} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(lines[-1][2:])
    return found


def measured(
    names: list[str], rounds: int, turns: int, pairs: int, threads: int
) -> tuple[dict[str, list[dict[str, float]]], Comparison, list[float]]:
    """Every round of every contender, and their steady speeds, in turn; kept caches are filled once before.

    Last: of each pair of processes, how long a published call takes, over one of `compile()`.
    """
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    kept = [name for name in names if not CONTENDERS[name].empty]
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        with served(folder / "hub") as hub:
            print("preparing: an AOTInductor package, two published layers …", flush=True)
            prepare(folder, hub, {CONTENDERS[name].start for name in names})
            for name in kept:
                _round(name, folder, hub, -1, threads)
            for number in range(rounds):
                for name in names if number % 2 == 0 else reversed(names):
                    found[name].append(_round(name, folder, hub, number, threads))
                    print(f"{number + 1}: {name}: {found[name][-1]['first_s']:.2f} s", flush=True)

            def steadily(*these: str) -> Comparison:
                case = "benchmarks.cold_start:steady"
                workers = [
                    Worker(
                        name,
                        case,
                        {"start": CONTENDERS[name].start, "folder": root},
                        threads,
                        _environment(name, folder, hub, -1),
                    )
                    for name in these
                ]
                return compare(workers, rounds=turns)

            calls, ratios = steadily(*kept), []
            if {PUBLISHED, OWN} <= set(kept):
                for number in range(pairs):
                    pair = (PUBLISHED, OWN) if number % 2 else (OWN, PUBLISHED)
                    ratios.append(1 / steadily(*pair).speedup(PUBLISHED, OWN))
                    print(f"pair {number + 1}: published / compile(): {ratios[-1]:.4f}", flush=True)
            return found, calls, ratios


def summary(first: dict[str, float], ratios: list[float]) -> list[dict[str, Any]]:
    """Each bar: what was measured, what is asked for, whether it is met."""
    rows = []
    for name in (f"{PUBLISHED}, empty cache", PUBLISHED):
        for other, most in BARS:
            if name in first and other in first:
                rows.append((f"first output: {name} / {other}", first[name] / first[other], most))
    if ratios:
        rows.append(("a call: published / compile()", statistics.median(ratios), 1.0))
    return [{"what": what, "ratio": ratio, "most": most, "met": ratio <= most} for what, ratio, most in rows]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.set_defaults(rounds=3)
    parser.add_argument("--turns", type=int, default=9, help="of steady calls of every contender")
    parser.add_argument("--contenders", nargs="*", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument(
        "--pairs", type=int, default=9, help="of processes of what is published and of compile()"
    )
    options = parser.parse_args()
    found, calls, ratios = measured(
        options.contenders, options.rounds, options.turns, options.pairs, options.threads
    )
    first = {name: statistics.median(one["first_s"] for one in rows) for name, rows in found.items()}
    error = {name: max(one["error"] for one in rows) for name, rows in found.items()}
    rows = [
        (
            name, f"{first[name]:.3f}", f"{calls.median(name) * 1e3:.3f}" if name in calls.times else "",
            f"{error[name]:.1e}",
        )
        for name in found
    ]  # fmt: skip
    print(table(("contender", "first output s", "a call ms", "error"), rows))
    judged = summary(first, ratios)
    for one in judged:
        met = "met" if one["met"] else "MISSED"
        print(f"{one['what']}: {one['ratio']:.3f}, asked for at most {one['most']:.3f}: {met}")
    if options.write:
        result = {
            "model": "Llama, 4 layers, 512 wide, 1 x 128 tokens, float32",
            "threads": options.threads,
            "first_s": first, "error": error, "bars": judged, "rounds": found, "steady": calls.to_dict(),
            "published_over_compile": ratios,
        }  # fmt: skip
        path = write("cold-start", result)
        title = f"Seconds from the built model to the first right output, {options.threads} threads"
        drawn = bars(title, {name: {"s": one} for name, one in first.items()}, ("s",))
        path.with_suffix(".svg").write_text(drawn, encoding="utf-8")
        print(os.fspath(path))


if __name__ == "__main__":
    main()
