"""HF `kernels` loads a bundled layer that was published to a Hub of one's own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from kernels_hub.repository.build import build_repository
from tests.running_hub import RunningHub
from tests.warm_process import run_script

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
import torch
from kernels import get_kernel, has_kernel

repo = sys.argv[1]
assert has_kernel(repo, version=1, backend="cpu")
kernel = get_kernel(repo, version=1, backend="cpu")
x = torch.randn(3, 16)
y = kernel.layers.SiluAndMul()(x)
left, right = x.chunk(2, -1)
assert torch.allclose(y, torch.nn.functional.silu(left) * right, atol=1e-6), y
print(kernel.__file__)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    build_repository(ROOT / "layers" / "activation", folder, ["cpu"])
    return folder


def load(server: RunningHub, repo: str, home: Path) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "HF_ENDPOINT": server.endpoint,
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
    }
    return run_script(PROGRAM, repo, env=env)


def test_a_published_layer_is_loaded(server: RunningHub, ada: HfApi, built: Path, tmp_path: Path):
    repo = ada.create_repo("acme/activation", repo_type="kernel").repo_id
    ada.create_branch(repo, branch="v1", repo_type="kernel")
    ada.upload_folder(repo_id=repo, folder_path=built, repo_type="kernel", revision="v1")
    done = load(server, repo, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "kernels--acme--activation" in done.stdout


def test_an_organisation_that_is_not_trusted(server: RunningHub, ada: HfApi, built: Path, tmp_path: Path):
    repo = ada.create_repo("plain/activation", repo_type="kernel").repo_id
    ada.create_branch(repo, branch="v1", repo_type="kernel")
    ada.upload_folder(repo_id=repo, folder_path=built, repo_type="kernel", revision="v1")
    done = load(server, repo, tmp_path)
    assert done.returncode != 0 and "is not from a trusted publisher" in done.stderr
