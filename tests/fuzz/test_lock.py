"""kernels.lock: what it says is what is pinned, or it is refused with the library's own error."""

from __future__ import annotations

import json
import random

from kernels_hub.contained_paths import relative_path_problem
from kernels_hub.errors import LockError
from kernels_hub.hub.lock import parse_lock
from kernels_hub.hub.locked_kernels import Dependency, Lock, LockedKernel
from kernels_hub.repository.versions import VersionRequest, is_commit
from tests.fuzz.harness import budget, run
from tests.fuzz.mutations import HOSTILE_TEXTS, mutate_json

A, B, SHA = "a" * 40, "b" * 40, "0" * 64
FILES = {"__init__.py": SHA, "native/x.so": "1" * 64}
SEEDS = [
    Lock(
        (
            LockedKernel(
                "org/one", "kernel", VersionRequest(">=1"), "v1.2.0", A, True, {"torch-cpu": FILES, "torch-cuda": FILES},
                (Dependency("org/two", VersionRequest(1)),),
            ),
            LockedKernel("org/two", "model", VersionRequest(1), "v1", B, False, {"torch-universal": FILES}),
        )
    ).to_json().encode(),
    Lock((LockedKernel("org/one", "kernel", VersionRequest(revision="main"), "main", A, True, {"torch-cpu": FILES}),))
    .to_json().encode(),
    Lock((LockedKernel("a/b", "kernel", VersionRequest(1), A, A, True, {}),)).to_peer_json().encode(),
]  # fmt: skip


def parse(data: bytes) -> Lock:
    lock = parse_lock(data)
    for kernel in lock.kernels:
        assert is_commit(kernel.commit)
        assert str(kernel)
        for file in kernel.tree().files.values():
            assert relative_path_problem(file.path) is None
            assert file.sha256 is not None and len(file.sha256) == 64
    return lock


def test_variants() -> None:
    run("lock", SEEDS, mutate_json, parse, (LockError,), count=budget())


def test_no_value_that_is_a_path_is_accepted_as_another() -> None:
    """Commits, digests, variants and paths are taken literally or not at all."""
    chance = random.Random(1)
    for _ in range(budget(200, 10_000)):
        document = json.loads(SEEDS[0])
        kernel = document["kernels"][0]
        hostile = chance.choice(HOSTILE_TEXTS)

        def damaged(text: str, hostile: str = hostile) -> str:
            at = chance.randrange(len(text) + 1)
            return chance.choice((hostile, text[:at] + hostile + text[at:], text.upper()))

        match chance.randrange(5):
            case 0:
                kernel["commit"] = damaged(A)
            case 1:
                kernel["variants"] = {damaged("torch-cpu"): FILES}
            case 2:
                kernel["variants"] = {"torch-cpu": {damaged("__init__.py"): SHA}}
            case 3:
                kernel["variants"] = {"torch-cpu": {"__init__.py": damaged("ab" * 32)}}
            case _:
                kernel["repository"] = damaged("org/one")
        try:
            lock = parse(json.dumps(document).encode())
        except LockError:
            continue
        (again,) = [
            one for one in json.loads(lock.to_json())["kernels"] if one["repository"] == kernel["repository"]
        ]
        assert again == kernel
