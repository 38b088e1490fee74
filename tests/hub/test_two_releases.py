"""Two releases of a bundled layer, published by the command line and loaded by fresh processes: by
specifier, by integer version, by lock and offline, with this library's client and with Hugging Face's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from kernels_hub.repository.bundled import bundled_folder
from tests.combinations import first
from tests.running_hub import RunningHub
from tests.warm_process import run_script

REPOSITORY = "releases/activation"
ROOT = Path(__file__).resolve().parents[2]

OURS = """
import torch
from kernels_hub import get_kernel, get_locked_kernel
kernel = {load}
x = torch.linspace(-3, 3, 64)
class Plain(torch.nn.Module): pass
layer = kernel.layers.SiLU
if {compare}:
    torch.testing.assert_close(layer.forward(Plain(), x), torch.nn.functional.silu(x))
print(getattr(kernel, "RELEASE", "first"))
"""
THEIRS = OURS.replace("from kernels_hub", "import pathlib\nfrom kernels")


@dataclass
class Published:
    environment: dict[str, str]
    folder: Path

    def run(self, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            list(map(str, command)), cwd=self.folder, env={**self.environment, **environment},
            capture_output=True, text=True, timeout=180,
        )  # fmt: skip

    def cli(self, *arguments: str | Path) -> str:
        result = self.run(sys.executable, "-m", "kernels_hub", *arguments)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def load(self, program: str, load: str, **environment: str) -> str:
        # The peer's get_locked_kernel takes the variant that torch was built for, whatever is asked.
        compare = "backend" in load or program is OURS or torch.version.cuda is None
        script = program.format(load=load, compare=compare)
        result = run_script(script, cwd=self.folder, env={**self.environment, **environment}, timeout=180)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()


@pytest.fixture(scope="module")
def published(hub: RunningHub, tmp_path_factory: pytest.TempPathFactory) -> Published:
    folder = tmp_path_factory.mktemp("releases")
    hub.organisation("releases", "releaser")
    place = Published(
        {
            **os.environ,
            "HF_ENDPOINT": hub.endpoint,
            "HF_TOKEN": hub.token("releaser"),
            "HF_HUB_CACHE": str(folder / "cache"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "PYTHONPATH": str(ROOT),
        },
        folder,
    )
    layers = folder / "layers"
    shutil.copytree(bundled_folder(), layers, ignore=shutil.ignore_patterns("__pycache__", "build"))
    activation = layers / "activation"
    place.cli("publish", activation, "--repo", REPOSITORY, "--version", "0.1.0")
    manifest = activation / "kernel.toml"
    manifest.write_text(manifest.read_text().replace('version = "0.1.0"', 'version = "0.1.1"'))
    init = activation / "package" / "__init__.py"
    init.write_text(init.read_text() + '\nRELEASE = "second"\n')
    assert f"published {REPOSITORY} 0.1.1" in place.cli(
        "publish", activation, "--repo", REPOSITORY, "--version", "0.1.1"
    )
    (folder / "pyproject.toml").write_text(f'[tool.kernels-hub.dependencies]\n"{REPOSITORY}" = "==0.1.0"\n')
    place.cli("lock")
    place.cli("lock", "--hf-format", "-o", "peer.lock")
    return place


def kernel(**wanted: object) -> str:
    arguments = ", ".join(f"{key}={value!r}" for key, value in {**wanted, "backend": "cpu"}.items())
    return f"get_kernel({REPOSITORY!r}, {arguments}, trust_remote_code=True)"


CASES: dict[str, tuple[str, str, str]] = {
    "ours, a specifier": (OURS, kernel(version=">=0.1,<0.2"), "second"),
    "ours, a lock": (OURS, f"get_locked_kernel({REPOSITORY!r})", "first"),
    "theirs, an integer": (THEIRS, kernel(version=0), "second"),
    "theirs, our lock": (
        THEIRS,
        f"get_locked_kernel({REPOSITORY!r}, lockfile=pathlib.Path('peer.lock'), trust_remote_code=True)",
        "first",
    ),
    "theirs, a tag": (THEIRS, kernel(revision="v0.1.0"), "first"),
    "ours, an exact specifier": (OURS, kernel(version="==0.1.0"), "first"),
    "ours, an integer": (OURS, kernel(version=0), "second"),
}


@pytest.mark.parametrize(("case",), first(3, [(case,) for case in CASES]))
def test_a_fresh_process_loads(published: Published, case: str) -> None:
    program, load, release = CASES[case]
    cache = published.folder / f"cache-{list(CASES).index(case)}"
    assert published.load(program, load, HF_HUB_CACHE=str(cache)) == release
    if program is OURS:
        gone = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_CACHE": str(cache)}
        assert published.load(program, load, **gone) == release


def test_the_peer_offline_after_ours(published: Published) -> None:
    """By integer version, from the files that our client fetched by specifier."""
    cache = {"HF_HUB_CACHE": str(published.folder / "cache-shared")}
    assert published.load(OURS, kernel(version=">=0.1"), **cache) == "second"
    assert published.load(THEIRS, kernel(version=0), HF_HUB_OFFLINE="1", **cache) == "second"


def test_a_release_is_not_published_twice_with_other_content(published: Published) -> None:
    activation = published.folder / "layers" / "activation"
    init = activation / "package" / "__init__.py"
    text = init.read_text()
    try:
        init.write_text(text + "\nMORE = 1\n")
        result = published.run(
            sys.executable,
            "-m",
            "kernels_hub",
            "publish",
            activation,
            "--repo",
            REPOSITORY,
            "--version",
            "0.1.1",
        )
    finally:
        init.write_text(text)
    assert result.returncode == 1
    assert "0.1.1" in result.stderr and "Traceback" not in result.stderr
