"""An executor over Ray: workers are actors, on this machine or on those of a cluster. Needs the extra `distributed`.

    with RayExecutor("10.0.0.1:6379") as executor:     # a cluster that runs; None: one of its own, on this machine
        fan_out(candidates, evaluator, executor, journal=journal)

An actor that dies, or whose machine is lost (which is looked up while it works), fails its one task with a
WorkerLostError, and another takes its place where the cluster has room for one; until then the others do its work. A
worker with other versions of torch or of this library is refused: its results would be those of another question. The
cluster of its own listens on 127.0.0.1 alone, wants a token that it makes up, has no dashboard, reports no usage, and
ends with the executor.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import logging
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

from kernels_hub.compiler.errors import EngineError, MissingDependencyError
from kernels_hub.compiler.runtime.toolchain import usable_cpus
from kernels_hub.compiler.search.workers import WorkerExecutor, WorkerLostError, place, work

START_S = 120.0
"""Seconds that a worker may take to start: the cluster may be busy, or add a machine."""

_TICK_S = 0.2
_LOOK_S = 5.0
"""Between two looks whether a worker's machine is still there: Ray has been seen to wait for one that was lost."""
_SHORT = 30
"""Longest folder that sockets of a cluster are put in: their names may have no more than 107 bytes."""
_STORE_BYTES = 80 << 20
"""What goes through Ray's shared memory here is small."""
_LOCAL: Mapping[str, str] = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # a cluster of one machine: all of it listens on 127.0.0.1
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_raylet_start_wait_time_s": str(int(START_S)),
}
"""Read by Ray when it is imported, and by its processes."""


class RayExecutor(WorkerExecutor):
    """See the module.

    address: "host:port" of a cluster, "auto" for the one that this machine is of, None or "local" for one of its own.
    max_workers: by default, as many as the cluster has room for. cpus, gpus: what each worker takes of it.

    Raises MissingDependencyError without Ray, and EngineError where there is no such cluster. A connection that this
    process has already is used, and left open.
    """

    def __init__(
        self, address: str | None = None, max_workers: int | None = None, *, cpus: float = 1, gpus: float = 0
    ) -> None:
        local = address in {None, "local"}
        self._ray = _import_ray(local=local)
        self._temporary: str | None = None
        self._ours = not self._ray.is_initialized()
        if self._ours:
            with contextlib.ExitStack() as undone:
                undone.callback(self._leave)
                self._begin(max_workers, cpus, gpus) if local else self._join(str(address))
                undone.pop_all()
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0}
        self._actor = self._ray.remote(**options)(Actor)
        super().__init__(self._worker, max_workers or self._room(cpus, gpus))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `concurrent.futures`. A cluster of its own ends; workers in another one do."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        for future in list(self._running):
            self.abandon(future)
        self._leave()

    def _worker(self) -> _RayWorker:
        return _RayWorker(self._ray, self._actor, lambda: self.closed)

    def _begin(self, max_workers: int | None, cpus: float, gpus: float) -> None:
        count = max_workers or max(1, int(usable_cpus() / max(cpus, 1)))
        home = tempfile.gettempdir()
        self._temporary = tempfile.mkdtemp(prefix="kh-", dir=home if len(home) <= _SHORT else "/tmp")  # noqa: S108
        try:
            self._ray.init(
                num_cpus=max(1, count * cpus),
                num_gpus=count * gpus,
                include_dashboard=False,
                object_store_memory=_STORE_BYTES,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address="127.0.0.1",
                _temp_dir=self._temporary,
            )
        except Exception as error:
            raise EngineError(f"Ray does not start on this machine: {_first(error)}") from error

    def _join(self, address: str) -> None:
        try:
            self._ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:
            raise EngineError(
                f"no Ray cluster can be joined at {address!r}: {_first(error)}; start one with `ray start --head`, "
                "or leave the address out for one on this machine"
            ) from error

    def _room(self, cpus: float, gpus: float) -> int:
        there = self._ray.cluster_resources()
        most = [int(there.get(name, 0) / of) for name, of in (("CPU", cpus), ("GPU", gpus)) if of]
        if not (count := min(most, default=1)):
            self._leave()
            raise EngineError(f"the Ray cluster has no room for a worker of {cpus:g} CPUs and {gpus:g} GPUs")
        return count

    def _leave(self) -> None:
        if self._ours:
            self._ray.shutdown()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


class Actor:
    """A worker, in the process that Ray gives it."""

    def introduce(self, threads: str | None) -> str:
        """Where it is, and what its results depend on, as JSON. threads: OMP_NUM_THREADS of who asks."""
        os.dup2(2, 1)
        os.environ.pop(
            "OMP_NUM_THREADS", None
        )  # Ray's, by the CPUs of an actor; what is measured has the machine
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = threads
        node = importlib.import_module("ray").get_runtime_context().get_node_id()
        return json.dumps({"where": place(), "node": node, "versions": versions()})

    def run(self, task: bytes) -> bytes:
        """See `work`."""
        return work(task)


def versions() -> dict[str, str]:
    """Of what decides the results."""
    found = {}
    for name in ("kernels-hub", "torch", "triton"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


class _RayWorker:
    """An actor, as `WorkerExecutor` takes it."""

    def __init__(self, ray: Any, actor: Any, is_over: Callable[[], bool]) -> None:
        self._ray = ray
        self._actor = actor.remote()
        answer, end = (
            self._actor.introduce.remote(os.environ.get("OMP_NUM_THREADS")),
            time.monotonic() + START_S,
        )
        try:
            while not ray.wait([answer], timeout=_TICK_S)[0]:
                if is_over() or time.monotonic() > end:
                    raise TimeoutError(f"the cluster had no room for it in {START_S:g} s")
            told = json.loads(ray.get(answer))
        except Exception as error:
            self.kill()
            raise WorkerLostError(f"a worker could not be started: {_first(error)}") from error
        self.where, self._node = str(told["where"]), told["node"]
        if (theirs := told["versions"]) != (ours := versions()):
            self.kill()
            raise WorkerLostError(
                f"the worker {self.where} has {theirs}, and this process {ours}: install the same"
            )

    def run(self, task: bytes) -> bytes:
        """See `Worker`."""
        try:
            answer = self._actor.run.remote(task)
            while not self._ray.wait([answer], timeout=_LOOK_S)[0]:
                if not any(one["NodeID"] == self._node and one["Alive"] for one in self._ray.nodes()):
                    raise ConnectionError("its machine left the cluster")
            done: bytes = self._ray.get(answer, timeout=START_S)
        except Exception as error:
            raise WorkerLostError(f"its worker {self.where} was lost: {_first(error)}") from error
        return done

    def kill(self) -> None:
        """See `Worker`."""
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)

    def close(self) -> None:
        """See `Worker`."""
        self.kill()


def _import_ray(*, local: bool) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if local and "ray" not in sys.modules:
        for name, value in _LOCAL.items():
            os.environ.setdefault(name, value)
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise MissingDependencyError(
            "tuning on Ray needs the package ray: pip install 'kernels-hub[distributed]'"
        ) from error
    if local and not ray.is_initialized() and _LOCAL.keys() - os.environ.keys():
        raise EngineError(
            "ray was imported before, so a cluster that starts now would listen on all addresses: call ray.init "
            "yourself, and that cluster is used, or import ray later"
        )
    return ray


def _first(error: BaseException) -> str:
    """The first line of what Ray says."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
