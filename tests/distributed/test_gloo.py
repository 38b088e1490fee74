"""DDP, FSDP2 and tensor-parallel models in two gloo processes: right numbers, or left alone with the reason.

Each scenario runs `tests/distributed/scenarios.py` under torchrun's own launcher on loopback and
compares with the same model on one process.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
import torch.distributed

from tests.combinations import first
from tests.warm_process import StartedScript

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="needs torch.distributed with gloo",
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(scenario: str, tmp_path: Path) -> list[dict[str, object]]:
    port = str(free_port())
    processes = [
        StartedScript(
            "import runpy; runpy.run_module('tests.distributed.scenarios', run_name='__main__')",
            scenario,
            str(tmp_path / f"{rank}.json"),
            cwd=ROOT,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(2)
    ]
    for done in [process.communicate(timeout=180) for process in processes]:
        assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize(
    ("scenario", "swapped", "left_alone"),
    first(
        1,
        [
            ("fsdp2_training", True, "DTensor"),
            ("ddp_training", True, None),
            ("tensor_parallel", True, "DTensor"),
            ("fully_shard_after_kernelize", True, None),
            ("fsdp2_inference", True, "DTensor"),
            ("ddp_inference", True, None),
        ],
    ),
)
def test_scenario(scenario: str, swapped: bool, left_alone: str | None, tmp_path: Path) -> None:
    for result in run(scenario, tmp_path):
        assert result["error"] < 1e-4, result  # type: ignore[operator]
        assert bool(result["swapped"]) is swapped, result
        reasons = " ".join(str(reason) for reason in result["reasons"])  # type: ignore[attr-defined]
        if left_alone is not None:
            assert left_alone in reasons, result
