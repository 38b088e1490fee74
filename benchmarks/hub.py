"""What loading from a Hub costs, against HF `kernels` in the same run: `python -m benchmarks.hub`.

A bundled layer is published to a server on loopback. Then: a kernel that is loaded already, by a
specifier and by an integer version; a fresh process with a warm cache, online and offline; and sixteen
processes that want one cold kernel, with what the server saw of them.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import Worker, arguments, compare, table, write

ROOT = Path(__file__).parents[1]
REPOSITORY = "bench/activation"
PROCESSES = 16


def loaded(peer: str) -> Any:
    """A step that asks for a kernel that this process has."""
    library = importlib.import_module(peer)

    def step() -> None:
        library.get_kernel(REPOSITORY, version=1, trust_remote_code=True)

    step()
    return step, {}


def fresh(peer: str, offline: bool) -> Any:
    """A step that times a fresh process: import the library, after torch, and get a kernel."""
    program = (
        "import time, torch\n"
        "start = time.perf_counter()\n"
        f"from {peer} import get_kernel\n"
        f"get_kernel({REPOSITORY!r}, version=1, trust_remote_code=True)\n"
        "print(time.perf_counter() - start)\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": str(int(offline))}

    def step() -> float:
        run = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
        )
        return float(run.stdout.splitlines()[-1])

    return step, {}


def stampede(environment: dict[str, str], cache: Path) -> float:
    """Seconds until sixteen processes have one cold kernel."""
    program = (
        "from kernels_hub import get_kernel\n"
        f"get_kernel({REPOSITORY!r}, version='>=1', trust_remote_code=True)\n"
    )
    start = time.perf_counter()
    running = [
        subprocess.Popen([sys.executable, "-c", program], env={**environment, "HF_HUB_CACHE": str(cache)})
        for _ in range(PROCESSES)
    ]
    if any(process.wait() for process in running):
        raise RuntimeError("a process failed")
    return time.perf_counter() - start


def publish(endpoint: str, token: str, folder: Path) -> None:
    """Build the bundled activation layers for CPU, and put them there as v1.0.0."""
    from huggingface_hub import HfApi

    from kernels_hub.repository.build import build_repository
    from kernels_hub.repository.bundled import bundled_folder

    build_repository(bundled_folder() / "activation", folder, ["cpu"])
    api = HfApi(endpoint, token=token)
    api.create_repo(REPOSITORY, repo_type="kernel")
    api.upload_folder(repo_id=REPOSITORY, repo_type="kernel", folder_path=folder)
    api.create_tag(REPOSITORY, tag="v1.0.0", repo_type="kernel")
    api.create_branch(REPOSITORY, branch="v1", repo_type="kernel")


def main() -> None:
    from tests.running_hub import start_hub  # type: ignore[import-not-found]

    parser = arguments(__doc__ or "")
    parser.set_defaults(rounds=2)  # fresh processes take seconds each
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, start_hub(Path(folder) / "root") as hub:
        hub.organisation("bench", "bench-admin")
        publish(hub.endpoint, hub.token("bench-admin"), Path(folder) / "built")
        environment = {
            "HF_ENDPOINT": hub.endpoint,
            "HF_HUB_CACHE": str(Path(folder) / "cache"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "XDG_CONFIG_HOME": str(Path(folder) / "config"),
        }
        cases: dict[str, tuple[str, dict[str, Any]]] = {
            "loaded already": ("loaded", {}),
            "fresh process, warm cache": ("fresh", {"offline": False}),
            "fresh process, offline": ("fresh", {"offline": True}),
        }
        rows, results = [], {}
        for name, (case, extra) in cases.items():
            # The peer's offline load by version fails: it looks for every file of the repository.
            names = ("kernels_hub",) if extra.get("offline") else ("kernels_hub", "kernels")
            peers = {
                peer: {**environment, "HF_HUB_CACHE": str(Path(folder) / f"cache-{peer}")} for peer in names
            }
            comparison = compare(
                [
                    Worker(peer, f"benchmarks.hub:{case}", {"peer": peer, **extra}, options.threads, own)
                    for peer, own in peers.items()
                ],
                rounds=options.rounds,
                seconds=0.2,
            )
            ours = f"{comparison.median('kernels_hub') * 1e6:,.1f}"
            both = len(names) > 1
            theirs = f"{comparison.median('kernels') * 1e6:,.0f}" if both else "fails"
            ratio = f"{comparison.speedup('kernels_hub', 'kernels'):,.1f}" if both else ""
            rows.append((name, ours, theirs, ratio))
            results[name] = comparison.to_dict()
        print(table(("get_kernel", "kernels_hub us", "HF kernels us", "ratio"), rows))
        before = len(hub.requests())
        seconds = stampede({**os.environ, **environment}, Path(folder) / "cold")
        asked = [f"{r.method} {r.path}" for r in hub.requests()[before:]]
        downloads = [line for line in asked if line.startswith("GET") and "/resolve/" in line]
        together = {
            "processes": PROCESSES,
            "seconds": round(seconds, 2),
            "downloads": len(downloads),
            "different_files": len(set(downloads)),
            "other_requests": len(asked) - len(downloads),
        }
        print(f"{PROCESSES} processes, one cold kernel: {together}")
        if options.write:
            print(write("hub", {"cases": results, "stampede": together}))


if __name__ == "__main__":
    main()
