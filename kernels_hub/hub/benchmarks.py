"""Runs the benchmarks of a repository, on disk or on a Hub: its kernel is admitted first, as for any load."""

from __future__ import annotations

import functools
import platform
from dataclasses import dataclass
from pathlib import Path

from kernels_hub.errors import BenchmarkError, TrustError
from kernels_hub.hub.connection import Connection
from kernels_hub.hub.fetching import resolve_hub_kernel
from kernels_hub.hub.kernels import get_local_kernel
from kernels_hub.hub.locate import Request
from kernels_hub.repository.benchmark import FOLDER, Workload, digest, run, scripts
from kernels_hub.repository.system import System
from kernels_hub.repository.versions import VersionRequest
from kernels_hub.trust.decision import RemoteCode, preview
from kernels_hub.version import __version__


@dataclass(frozen=True)
class BenchmarkResult:
    """What `kernels-hub benchmark` prints and saves."""

    repository: str
    revision: str | None
    device: str
    script_sha256: str
    machine: dict[str, str]
    workloads: tuple[Workload, ...]


def run_benchmarks(
    repository: str,
    *,
    version: str | int | None = None,
    revision: str | None = None,
    backend: str | None = None,
    trust_remote_code: bool = False,
    iterations: int = 100,
    warmup: int = 10,
) -> BenchmarkResult:
    """Run all benchmarks of a repository: a folder, or a name on a Hub.

    Raises BenchmarkError where it has none, and what `get_kernel` raises; code of it runs only if that admits it.
    """
    folder = Path(repository)
    system = System.detect(backend)
    if folder.is_dir():
        found, commit = scripts(folder), None
        kernel = get_local_kernel(folder, backend=backend)
    else:
        request = Request(
            repository, VersionRequest.of(repository, version, revision), backend, None, trust_remote_code
        )
        resolved = resolve_hub_kernel(request)
        if resolved.repo_info is None:
            raise BenchmarkError(
                f"{repository} is served from a folder here: run its benchmarks by the folder's path"
            )
        commit = resolved.repo_info.revision
        _check_unsigned(resolved.repo_info.repo_id, commit, trust_remote_code=trust_remote_code)
        found = scripts(_fetched(resolved.repo_info.repo_id, commit))
        kernel = resolved.load()
    device = {"rocm": "cuda", "metal": "mps"}.get(system.backend, system.backend)
    rows = [row for one in found for row in run(one, kernel, device, iterations=iterations, warmup=warmup)]
    return BenchmarkResult(repository, commit, device, digest(found), _machine(device), tuple(rows))


def _check_unsigned(repo_id: str, commit: str, *, trust_remote_code: bool) -> None:
    """Raise TrustError where the policy wants code of this repository signed: signatures cover variants alone."""
    candidate = RemoteCode(repo_id, "kernel", commit, Connection().endpoint, trust_remote_code)
    if preview(candidate).signature_keys:
        raise TrustError(
            f"the trust policy wants code of {repo_id} signed, and benchmark scripts carry no signature: download "
            "them, read them, and run them from a folder"
        )


def _fetched(repo_id: str, commit: str) -> Path:
    """A snapshot with the benchmark scripts of a commit."""
    hub = Connection()
    for repo_type in ("kernel", "model"):
        what = f"fetch the benchmarks of {repo_id}"

        def ask(one: Connection, repo_type: str = repo_type, what: str = what) -> str:
            download = functools.partial(
                one.api.snapshot_download,
                repo_id,
                repo_type=repo_type,
                revision=commit,
                allow_patterns=[f"{FOLDER}/*"],
            )
            return str(one.ask(what, download))

        try:
            return Path(hub.anywhere(what, ask))
        except FileNotFoundError:
            continue
    raise BenchmarkError(f"{repo_id}@{commit[:12]} has no {FOLDER}/")


def _machine(device: str) -> dict[str, str]:
    import torch

    found = {
        "os": f"{platform.system()} {platform.release()}", "cpu": platform.processor() or platform.machine(),
        "threads": str(torch.get_num_threads()), "torch": torch.__version__, "kernels_hub": __version__,
    }  # fmt: skip
    if device == "cuda":
        found["gpu"] = torch.cuda.get_device_name(0)
    return found
