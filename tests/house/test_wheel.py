"""What is installed: the distributions are built, and the wheel is used outside the checkout.

An editable install hides missing files, so the wheel goes into an environment of its own, which
finds everything else (torch, …) in the one that runs the tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info", "results")

pytestmark = pytest.mark.slow


def _run(command: Sequence[str | Path], cwd: Path) -> str:
    """Output of a command that must succeed, without this process's Python settings."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))
    }
    done = subprocess.run(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, built from a copy of the sources, and the wheel, built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    sources = folder / "sources"
    shutil.copytree(ROOT, sources, ignore=LEFT_OUT)
    # What a working copy may hold, and a distribution must not.
    for rubbish in (
        "layers/__pycache__/x.pyc",
        "layers/registration/__pycache__/x.pyc",
        "layers/x/build/y.py",
    ):
        (sources / rubbish).parent.mkdir(parents=True)
        (sources / rubbish).touch()
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, sources], cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    (found,) = distributions.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def wheel_files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def _sources(distributions: Path, folder: str) -> set[str]:
    """Every file of a folder of the sources, by its path inside, without the rubbish."""
    root = distributions / "sources" / folder
    files = {path.relative_to(root) for path in root.rglob("*") if path.is_file()}
    return {path.as_posix() for path in files if not {"__pycache__", "build"} & set(path.parts)}


@pytest.mark.parametrize(
    ("folder", "package"),
    [
        ("kernels_hub", "kernels_hub"),
        ("layers", "kernels_hub/layers"),
        ("mappings", "kernels_hub/mappings"),
        ("compiler", "kernels_hub/compiler"),
    ],
)
def test_every_file_is_in_the_wheel(folder: str, package: str, distributions: Path, wheel_files: set[str]):
    expected = {f"{package}/{path}" for path in _sources(distributions, folder)}
    assert expected
    assert expected - wheel_files == set()


def test_nothing_else_is_in_the_wheel(wheel_files: set[str]):
    tops = {PurePosixPath(path).parts[0] for path in wheel_files}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kernels_hub"}
    assert [path for path in wheel_files if "__pycache__" in path or path.endswith(".pyc")] == []
    assert [path for path in wheel_files if "/build/" in path or "/tests/" in path] == []
    assert "kernels_hub/py.typed" in wheel_files


def test_the_sdist_is_complete_and_free_of_tests(distributions: Path, wheel_files: set[str]):
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        files = {PurePosixPath(*PurePosixPath(name).parts[1:]).as_posix() for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "setup.py"} <= files
    assert {f"layers/{path}" for path in _sources(distributions, "layers")} <= files
    assert [path for path in files if path.startswith("tests") or "__pycache__" in path] == []


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    interpreter = folder / "bin" / "python"
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        interpreter,
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
    ]
    _run([*install, "--disable-pip-version-check", wheel], cwd=folder)
    # Behind the environment's own packages. Editable installs there stay inactive: this is one
    # folder more on sys.path, whose .pth files nobody reads.
    site = _run([interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], cwd=folder)
    (Path(site.strip()) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return interpreter


def test_the_wheel_is_what_is_imported(python: Path, tmp_path: Path):
    code = "import kernels_hub.layers, kernels_hub.mappings as m; print(kernels_hub.__file__, *m.__path__)"
    for place in _run([python, "-c", code], cwd=tmp_path).split():
        assert Path(place).is_relative_to(python.parent.parent)


def test_the_readmes_example_runs(python: Path, tmp_path: Path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert example is not None
    (tmp_path / "example.py").write_text(example[1])
    assert "3 LayerNorm no kernel is mapped" in _run([python, "example.py"], cwd=tmp_path)


def test_the_command_is_installed(python: Path, tmp_path: Path):
    program = python.parent / "kernels-hub"
    assert "explain" in _run([program, "--help"], cwd=tmp_path)
    code = "from kernels_hub.repository.bundled import bundled_folder; print(bundled_folder())"
    bundled = Path(_run([python, "-c", code], cwd=tmp_path).strip())
    for manifest in sorted(bundled.glob("*/kernel.toml")):
        assert f"name     {manifest.parent.name}" in _run([program, "info", manifest.parent], cwd=tmp_path)


def test_every_bundled_layer_loads(python: Path, tmp_path: Path):
    code = (
        "from kernels_hub import BundledLayerRepository\n"
        "from kernels_hub.repository.bundled import bundled_names, bundled_repository\n"
        "for name in bundled_names():\n"
        "    for layer in bundled_repository(name).layers:\n"
        "        print(BundledLayerRepository(name, layer_name=layer).load('cpu').__name__)\n"
    )
    assert _run([python, "-c", code], cwd=tmp_path).split()
