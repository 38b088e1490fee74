"""A Hub of one's own, driven by unmodified huggingface_hub: `python -m benchmarks.server`.

100 files of 4 KiB in one commit; the snapshot of them cold, and warm (in the client's cache); a large
file up and down through LFS, with the growth of the server's memory (the largest resident set of its
process since it served the first request). Each client call runs in this process, whose imports are
done; medians of several rounds. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import write

GOALS = {
    "100 files up s": 0.2,
    "warm snapshot ms": 30.0,
    "server memory growth MiB": 32.0,
}


def seconds(work: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def peak_mib(process: int) -> float:
    """The largest resident set of a process so far."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("this system does not tell a process's largest resident set")


def measure(folder: Path, mib: int, rounds: int) -> dict[str, Any]:
    """Every figure."""
    from huggingface_hub import CommitOperationAdd, HfApi

    from tests.running_hub import start_hub  # type: ignore[import-not-found]

    large = folder / "large.bin"
    with large.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(1 << 20))
    small = [os.urandom(4096) for _ in range(100)]
    with start_hub(folder / "hub") as hub:
        api = HfApi(hub.endpoint, token=hub.token("ada"))
        uploads, cold, warm = [], [], []
        for number in range(rounds):
            name = f"ada/small{number}"
            api.create_repo(name, repo_type="kernel")
            files = [CommitOperationAdd(f"d{n % 5}/f{n}.py", data) for n, data in enumerate(small)]
            uploads.append(
                seconds(
                    lambda name=name, files=files: api.create_commit(  # type: ignore[misc]
                        name, files, commit_message="100 files", repo_type="kernel"
                    )
                )
            )
            cache = folder / f"cache{number}"

            def snapshot(name: str = name, cache: Path = cache) -> str:
                return api.snapshot_download(name, repo_type="kernel", cache_dir=cache)

            cold.append(seconds(snapshot))
            warm += [seconds(snapshot) for _ in range(5)]
        before = peak_mib(hub.process.pid)
        api.create_repo("ada/large", repo_type="kernel")
        up = seconds(
            lambda: api.upload_file(
                path_or_fileobj=large, path_in_repo="large.bin", repo_id="ada/large", repo_type="kernel"
            )
        )
        after_up = peak_mib(hub.process.pid)
        down = seconds(
            lambda: api.hf_hub_download(
                "ada/large", "large.bin", repo_type="kernel", cache_dir=folder / "large-cache"
            )
        )
        after_down = peak_mib(hub.process.pid)
    return {
        "100 files up s": round(statistics.median(uploads), 3),
        "cold snapshot s": round(statistics.median(cold), 3),
        "warm snapshot ms": round(statistics.median(warm) * 1e3, 1),
        "large file MiB": mib,
        "up MiB/s": round(mib / up, 1),
        "down MiB/s": round(mib / down, 1),
        "server memory MiB": round(before, 1),
        "server memory growth MiB": round(after_down - before, 1),
        "of which while uploading MiB": round(after_up - before, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=200, help="size of the large file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--xet", action="store_true", help="send the large file through Xet instead of LFS")
    parser.add_argument("--write", action="store_true", help="keep the figures under benchmarks/results/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Before huggingface_hub is imported, which reads them once.
        os.environ["HF_HOME"] = str(Path(folder) / "home")
        os.environ["HF_HUB_DISABLE_XET"] = "0" if options.xet else "1"
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
        os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"
        found = measure(Path(folder), options.mib, options.rounds)
    missed = [name for name, goal in GOALS.items() if found[name] >= goal]
    result = {"figures": found, "goals": GOALS, "missed": missed}
    print(json.dumps(result, indent=2))
    if options.write:
        write("hub-server", result)
    if missed:
        sys.exit(1)


if __name__ == "__main__":
    main()
