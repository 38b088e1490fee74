"""An older huggingface_hub, of its 1.x line, unmodified: model repositories up and down, kernels down."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running_hub import start_hub

VERSION = "1.29.0"
PROGRAM = """
import sys, pathlib
import huggingface_hub
from huggingface_hub import CommitOperationAdd, HfApi
assert huggingface_hub.__version__ == {version!r}
api = HfApi()
api.create_repo("ada/old", private=True)
large = bytes(range(256)) * 8192
done = api.create_commit(
    "ada/old",
    [CommitOperationAdd("a/small.txt", b"small"), CommitOperationAdd("large.bin", large)],
    commit_message="first",
    parent_commit=api.model_info("ada/old").sha,
)
api.create_tag("ada/old", tag="v1.0.0")
api.create_branch("ada/old", branch="v1")
pathlib.Path("folder").mkdir()
for number in range(5):
    pathlib.Path(f"folder/{{number}}.py").write_text(f"N = {{number}}")
api.upload_folder(repo_id="ada/old", folder_path="folder", path_in_repo="folder")
refs = api.list_repo_refs("ada/old")
assert {{tag.name: tag.target_commit for tag in refs.tags}} == {{"v1.0.0": done.oid}}
snapshot = pathlib.Path(api.snapshot_download("ada/old", cache_dir="cache"))
assert (snapshot / "large.bin").read_bytes() == large
assert (snapshot / "a" / "small.txt").read_bytes() == b"small"
assert len(list((snapshot / "folder").iterdir())) == 5
files = {{file.path for file in api.list_repo_tree("ada/old", recursive=True) if hasattr(file, "size")}}
assert {{"a/small.txt", "large.bin", "folder/4.py"}} <= files
kernel = api.hf_hub_download("ada/kernel", "build/x.py", repo_type="kernel", cache_dir="cache")
assert pathlib.Path(kernel).read_text() == "X = 1"
api.delete_repo("ada/old")
print("done")
"""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package alone, beside the environment's own: what it needs is there."""
    folder = tmp_path_factory.mktemp("older")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "--target", str(folder), f"huggingface_hub=={VERSION}"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        pytest.skip(f"huggingface_hub {VERSION} cannot be had here: {done.stderr.strip().splitlines()[-1:]}")
    return folder


@pytest.mark.parametrize("disable_xet", ["0", "1"])
def test_an_older_client(older: Path, tmp_path: Path, disable_xet: str) -> None:
    from huggingface_hub import HfApi

    with start_hub(tmp_path / "hub") as hub:
        api = HfApi(hub.endpoint, token=hub.token("ada"))
        api.create_repo("ada/kernel", repo_type="kernel")
        api.upload_file(
            path_or_fileobj=b"X = 1", path_in_repo="build/x.py", repo_id="ada/kernel", repo_type="kernel"
        )
        environment = {
            **os.environ,
            "PYTHONPATH": str(older),
            "HF_ENDPOINT": hub.endpoint,
            "HF_TOKEN": hub.token("ada"),
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_DISABLE_XET": disable_xet,
        }
        program = PROGRAM.format(version=VERSION)
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=180,
        )
    assert done.stdout.endswith("done\n"), done.stderr
