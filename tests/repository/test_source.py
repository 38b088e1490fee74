"""kernel.toml: what it may say, and every way to get it wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

import kernels_hub
from kernels_hub.errors import DeviceError, MetadataError, NoVariantError, RepositoryNotFoundError
from kernels_hub.repository.build import build_repository
from kernels_hub.repository.load import import_kernel
from kernels_hub.repository.metadata import Metadata
from kernels_hub.repository.source import SHARED, is_source_repository, read_source_repository

ROOT = Path(__file__).resolve().parents[2]

MANIFEST = """
[kernel]
name = "scale"
version = "1.2.3"
license = "Apache-2.0"
summary = "multiplies"
layers = ["Scale"]
functions = ["scale"]

[backends.cpu]
sources = ["package", "cpu"]

[backends.cuda]
sources = ["package", "triton"]
python-depends = ["triton"]
archs = ["9.0"]
"""

FILES = {
    "kernel.toml": MANIFEST,
    "package/__init__.py": "from .kernels import NAME\n",
    "package/.ipynb_checkpoints/__init__-checkpoint.py": "",
    "package/.DS_Store": "",
    "cpu/kernels.py": "NAME = 'cpu'\n",
    "cpu/native/scale.cpp": "// C++\n",
    "triton/kernels.py": "NAME = 'triton'\n",
}


@pytest.fixture
def scale(tmp_path: Path, write_files) -> Path:
    return write_files(tmp_path / "scale", FILES)


def test_read(scale: Path) -> None:
    assert is_source_repository(scale)
    repository = read_source_repository(scale)
    assert (repository.name, repository.version, repository.license) == ("scale", "1.2.3", "Apache-2.0")
    assert (repository.layers, repository.functions) == (("Scale",), ("scale",))
    cuda = repository.backend("cuda")
    assert (cuda.python_depends, cuda.archs) == (("triton",), ("9.0",))
    assert list(repository.backend("cpu").files()) == ["__init__.py", "kernels.py", "native/scale.cpp"]


def test_variant(scale: Path) -> None:
    kernel = read_source_repository(scale).variant("cuda")
    assert (kernel.name, kernel.variant) == ("scale", "torch-cuda")
    assert kernel.folders == (scale / "package", scale / "triton")
    assert kernel.metadata == Metadata(
        "scale",
        version=1,
        license="Apache-2.0",
        python_depends=("triton",),
        backend="cuda",
        archs=("9.0",),
        release="1.2.3",
        summary="multiplies",
        layers=("Scale",),
        functions=("scale",),
    )
    assert import_kernel(read_source_repository(scale).variant("cpu")).NAME == "cpu"


def test_shared_modules_go_along_byte_for_byte(scale: Path, tmp_path: Path) -> None:
    manifest = scale / "kernel.toml"
    manifest.write_text(
        MANIFEST.replace(
            '"cpu"]', '"cpu"]\nshared = ["files.py", "cxx_compiler.py", "triton_launches.py"]', 1
        )
    )
    (scale / "package" / "__init__.py").write_text(
        "from .files import cache_folder\nfrom .cxx_compiler import find_compiler\n"
    )
    assert import_kernel(read_source_repository(scale).variant("cpu")).cache_folder("x").name == "x"
    build_repository(scale, tmp_path, ["cpu"])
    for name in SHARED:
        built = (tmp_path / "build" / "torch-cpu" / name).read_bytes()
        assert built == (Path(kernels_hub.__file__).parent / name).read_bytes()


def test_every_bundled_layer_that_builds_carries_the_one_compiler_lookup() -> None:
    building = [
        backend for manifest in (ROOT / "layers").glob("*/kernel.toml")
        for backend in read_source_repository(manifest.parent).backends.values()
        if "native.py" in backend.files()
    ]  # fmt: skip
    assert len(building) >= 10
    assert {backend.shared for backend in building} == {("files.py", "cxx_compiler.py")}


def test_every_bundled_layer_with_triton_kernels_starts_them_in_one_way() -> None:
    backends = [
        backend for manifest in (ROOT / "layers").glob("*/kernel.toml")
        for name, backend in read_source_repository(manifest.parent).backends.items()
        if name in ("cuda", "rocm")
    ]  # fmt: skip
    assert len(backends) >= 20
    assert {backend.shared for backend in backends} == {("triton_launches.py",)}


def test_aliases_and_universal(scale: Path) -> None:
    (scale / "kernel.toml").write_text(MANIFEST.replace("backends.cpu", "backends.metal"))
    repository = read_source_repository(scale)
    assert repository.variant("mps").variant == repository.variant("metal").variant == "torch-metal"
    (scale / "kernel.toml").write_text(MANIFEST.replace("backends.cpu", "backends.universal"))
    repository = read_source_repository(scale)
    assert [repository.variant(b).variant for b in ("cpu", "xpu", "cuda")] == [
        "torch-universal",
        "torch-universal",
        "torch-cuda",
    ]


def test_missing_backend(scale: Path) -> None:
    repository = read_source_repository(scale)
    with pytest.raises(NoVariantError, match="has no backend 'rocm'; it has cpu, cuda"):
        repository.variant("rocm")
    with pytest.raises(DeviceError, match="unknown backend 'vulkan'"):
        repository.variant("vulkan")


def test_a_name_in_two_folders(scale: Path) -> None:
    (scale / "package" / "kernels.py").write_text("")
    with pytest.raises(MetadataError, match="may occur in one of its source folders only"):
        read_source_repository(scale).variant("cpu")


def test_missing_manifest(tmp_path: Path) -> None:
    assert not is_source_repository(tmp_path)
    with pytest.raises(RepositoryNotFoundError, match=r"no kernel\.toml"):
        read_source_repository(tmp_path)


WRONG = {
    "not toml": ("= 3", "is not TOML"),
    "no kernel": ("[backends.cpu]\nsources = ['package']", "table [kernel] is missing"),
    "no backends": (MANIFEST.partition("[backends")[0], "table [backends] is missing"),
    "no name": (MANIFEST.replace('name = "scale"', ""), "'name' must be a string, got None"),
    "name": (MANIFEST.replace('"scale"\nv', "3\nv"), "'name' must be a string, got 3"),
    "version": (
        MANIFEST.replace("1.2.3", "one"),
        "'version' must read major.minor.patch, as in '0.1.0', got 'one'",
    ),
    "short version": (MANIFEST.replace("1.2.3", "1.2"), "'version' must read major.minor.patch"),
    "layers": (MANIFEST.replace('["Scale"]', '"Scale"'), "'layers' must be an array of strings, got 'Scale'"),
    "functions": (MANIFEST.replace('["scale"]', "[1]"), "'functions' must be an array of strings, got [1]"),
    "kernel key": (
        MANIFEST.replace("summary", "description"),
        "unknown key 'description'; known keys: dtypes, functions",
    ),
    "backend key": (MANIFEST.replace("archs", "arch"), "[backends.cuda]: unknown key 'arch'"),
    "backend": (
        MANIFEST.replace("backends.cuda", "backends.cude"),
        "[backends.cude]: unknown backend; known: cpu, cuda",
    ),
    "backend value": (
        MANIFEST + "[backends]\nrocm = 3",
        "[backends.rocm]: expected a table with the key 'sources'",
    ),
    "no sources": (
        MANIFEST.replace('sources = ["package", "cpu"]', ""),
        "'sources' must name at least one folder",
    ),
    "missing folder": (MANIFEST.replace('"triton"]\npy', '"tritonn"]\npy'), "tritonn does not exist"),
    "shared": (
        MANIFEST.replace('"cpu"]', '"cpu"]\nshared = ["errors.py"]', 1),
        "'shared' names 'errors.py'; expected modules of kernels_hub that layers may carry: files.py, cxx_compiler.py",
    ),
    "kernel-depends": (
        MANIFEST.replace("[kernel]", "[kernel]\nkernel-depends = 'org/name'", 1),
        "'kernel-depends' must be an array of tables such as { repo-id = 'org/name', version = 1 }, got 'org/name'",
    ),
    "kernel-depends without a version": (
        MANIFEST.replace("[kernel]", "[kernel]\nkernel-depends = [{ repo-id = 'org/name' }]", 1),
        "got {'repo-id': 'org/name'} in it",
    ),
    "kernel-depends with both": (
        MANIFEST.replace(
            "[kernel]", "[kernel]\nkernel-depends = [{ repo-id = 'o/n', version = 1, revision = 'x' }]", 1
        ),
        "'revision': 'x'} in it",
    ),
    "extra table": (MANIFEST + "[extra]\n", "unknown key 'extra'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_manifests(scale: Path, case: str) -> None:
    text, problem = WRONG[case]
    (scale / "kernel.toml").write_text(text)
    with pytest.raises(MetadataError) as caught:
        read_source_repository(scale)
    assert str(scale / "kernel.toml") in str(caught.value)
    assert problem in str(caught.value)


def test_manifest_that_is_not_text(scale: Path) -> None:
    (scale / "kernel.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(MetadataError, match="is not TOML"):
        read_source_repository(scale)
