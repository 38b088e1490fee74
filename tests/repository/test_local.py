"""Local folders of every form: what is found, what is chosen, and what is refused."""

from __future__ import annotations

import builtins
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kernels_hub.errors import MetadataError, NoVariantError, RepositoryNotFoundError
from kernels_hub.repository.digest import compute_digest, list_files
from kernels_hub.repository.load import KernelFiles, import_kernel
from kernels_hub.repository.local import local_variant, local_variants, read_variant
from kernels_hub.repository.metadata import Metadata
from kernels_hub.repository.system import System

RELU = Metadata("relu")
ARCH = "torch213-cpu-x86_64-linux"

MANIFEST = """
[kernel]
name = "from-source"
version = "1.2.3"
license = "MIT"
summary = "a kernel in source form"
layers = ["L"]
[backends.cpu]
sources = ["package", "cpu"]
[backends.cuda]
sources = ["package"]
"""


@pytest.fixture
def variant(tmp_path: Path, write_files):
    """Write a variant into `<tmp_path>/repo/build`, with metadata.json (digests included) unless None."""

    def make(name: str, files: dict[str, str] | None = None, metadata: Metadata | None = RELU) -> Path:
        default = {"__init__.py": f"NAME = {name!r}\nTEST = {tmp_path.name!r}\n"}
        folder = write_files(tmp_path / "repo" / "build" / name, default if files is None else files)
        if metadata is not None:
            document = replace(metadata, digest=compute_digest(list_files(folder))).to_json()
            (folder / "metadata.json").write_text(document)
        return folder

    return make


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return tmp_path / "repo"


@pytest.fixture
def source(tmp_path: Path, write_files) -> Path:
    return write_files(
        tmp_path / "source",
        {
            "kernel.toml": MANIFEST,
            "package/__init__.py": f"from .kernels import VALUE\nTEST = {tmp_path.name!r}\n",
            "cpu/kernels.py": "VALUE = 1\n",
        },
    )


def _imported_name(kernel: KernelFiles) -> str:
    return str(import_kernel(kernel).NAME)


# -- forms ------------------------------------------------------------------------------------------


def test_repository_build_and_variant_paths_agree(variant, repo: Path, linux_cpu: System) -> None:
    variant("torch-cpu")
    best = variant(ARCH)
    variant("torch-cuda")
    for path in (repo, repo / "build", best, str(repo), Path(os.path.relpath(repo))):
        kernel = local_variant(Path(path), linux_cpu)
        assert (kernel.name, kernel.variant, kernel.folders) == ("relu", ARCH, (best,))
    assert _imported_name(kernel) == ARCH
    assert local_variant(repo / "build" / "torch-cpu", linux_cpu).variant == "torch-cpu"


def test_a_relative_path_survives_a_change_of_directory(
    variant, repo: Path, linux_cpu: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant("torch-cpu")
    monkeypatch.chdir(repo)
    kernel = local_variant(Path(), linux_cpu)
    monkeypatch.chdir("/")
    assert _imported_name(kernel) == "torch-cpu"


@pytest.mark.parametrize("name", ["relu", "re-lu"])
def test_package_inside_the_variant(variant, repo: Path, linux_cpu: System, name: str) -> None:
    inside = name.replace("-", "_")
    folder = variant(
        "torch-cpu",
        {
            f"{inside}/__init__.py": f"from .ops import NAME\nX = {str(repo)!r}",
            f"{inside}/ops.py": "NAME = 'nested'",
            "other/__init__.py": "",
        },
        Metadata(name),
    )
    kernel = local_variant(repo, linux_cpu)
    assert kernel.folders == (folder / inside,)
    assert sorted(kernel.files) == ["__init__.py", "ops.py"]
    assert _imported_name(kernel) == "nested"


def test_package_at_the_top_comes_first(variant, repo: Path, linux_cpu: System) -> None:
    """Builds for old clients hold both; the inner one only hands on the outer."""
    folder = variant(
        "torch-cpu", {"__init__.py": f"NAME = {str(repo)!r}", "relu/__init__.py": "raise ImportError"}
    )
    assert local_variant(repo, linux_cpu).folders == (folder,)


def test_source_form(source: Path, linux_cpu: System) -> None:
    kernel = local_variant(source, linux_cpu)
    assert (kernel.name, kernel.variant) == ("from-source", "torch-cpu")
    assert kernel.folders == (source / "package", source / "cpu")
    assert kernel.metadata is not None
    assert (kernel.metadata.version, kernel.metadata.release) == (1, "1.2.3")
    assert import_kernel(kernel).VALUE == 1
    assert [str(d) for d in local_variants(source, linux_cpu)] == [
        "torch-cpu: compatible",
        "torch-cuda: it is for backend cuda, not cpu",
    ]


def test_built_variants_come_before_the_source(source: Path, variant, repo: Path, linux_cpu: System) -> None:
    variant("torch-cpu")
    shutil.copytree(repo / "build", source / "build")
    assert local_variant(source, linux_cpu).folders == (source / "build" / "torch-cpu",)


def test_a_build_folder_of_something_else_does_not_hide_the_source(source: Path, linux_cpu: System) -> None:
    (source / "build" / "temp.linux-x86_64-cpython-311").mkdir(parents=True)
    assert local_variant(source, linux_cpu).name == "from-source"


def test_a_variant_whose_metadata_cannot_be_read_is_no_choice(variant, repo: Path, linux_cpu: System) -> None:
    (variant("torch-cpu") / "metadata.json").write_text("{")
    variant("torch-universal")
    first, second = local_variants(repo, linux_cpu)
    assert str(first) == "torch-universal: compatible"
    assert "torch-cpu" in str(second) and "is not JSON" in str(second)


def test_a_package_in_a_folder_of_any_name(tmp_path: Path, write_files, linux_cpu: System) -> None:
    folder = write_files(tmp_path / "my_kernel", {"__init__.py": f"NAME = {tmp_path.name!r}"})
    kernel = local_variant(folder, linux_cpu)
    assert (kernel.name, kernel.variant) == ("my_kernel", "my_kernel")
    assert _imported_name(kernel) == tmp_path.name
    assert local_variants(folder, linux_cpu) == []


def test_a_repository_whose_name_looks_like_a_variant(variant, repo: Path, linux_cpu: System) -> None:
    variant("torch-cpu")
    renamed = repo.rename(repo.with_name("torch-tools"))
    (renamed / "package").mkdir()
    (renamed / "package" / "__init__.py").touch()
    assert local_variant(renamed, linux_cpu).variant == "torch-cpu"


def test_hub_snapshots_are_links(variant, repo: Path, linux_cpu: System, tmp_path: Path) -> None:
    """Files of a Hub cache are links into a folder of blobs with other names."""
    folder = variant(
        "torch-cpu", {"__init__.py": f"from .ops import NAME\nX = {str(repo)!r}", "ops.py": "NAME = 'ops'"}
    )
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for index, path in enumerate(list_files(folder).values()):
        blob = path.rename(blobs / str(index))
        path.symlink_to(blob)
    assert _imported_name(local_variant(repo, linux_cpu)) == "ops"


# -- names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "package_name", "expected"),
    [
        ({"__init__.py": ""}, None, "repo"),
        ({"__init__.py": ""}, "given", "given"),
        ({"inner/__init__.py": ""}, None, "inner"),
        ({"inner/__init__.py": ""}, "inner", "inner"),
        ({"one/__init__.py": "", "two/__init__.py": ""}, "two", "two"),
    ],
)
def test_name_without_metadata(
    variant, repo: Path, linux_cpu: System, files, package_name, expected: str
) -> None:
    variant("torch-cpu", files, metadata=None)
    kernel = local_variant(repo, linux_cpu, package_name)
    assert kernel.name == expected
    assert kernel.metadata == Metadata(expected)


def test_another_package(variant, repo: Path, source: Path, linux_cpu: System) -> None:
    variant("torch-cpu")
    assert local_variant(repo, linux_cpu, "relu").name == "relu"
    with pytest.raises(MetadataError, match=r"metadata\.json: names the kernel 'relu', expected 'gelu'"):
        local_variant(repo, linux_cpu, "gelu")
    assert local_variant(source, linux_cpu, "from_source").name == "from-source"
    with pytest.raises(MetadataError, match=r"kernel\.toml: names the kernel 'from-source', expected 'gelu'"):
        local_variant(source, linux_cpu, "gelu")


def test_metadata_contradicts_its_package(variant, repo: Path, linux_cpu: System) -> None:
    variant("torch-cpu", {"gelu/__init__.py": ""})
    with pytest.raises(MetadataError, match="names the kernel 'relu', expected 'gelu'"):
        local_variant(repo, linux_cpu)


# -- nothing usable ---------------------------------------------------------------------------------


def test_nothing_there(tmp_path: Path, linux_cpu: System) -> None:
    with pytest.raises(RepositoryNotFoundError, match="does not exist") as caught:
        local_variant(tmp_path / "nowhere", linux_cpu)
    assert isinstance(caught.value, FileNotFoundError)
    (tmp_path / "file").write_text("")
    with pytest.raises(RepositoryNotFoundError, match="is a file"):
        local_variant(tmp_path / "file", linux_cpu)
    with pytest.raises(
        RepositoryNotFoundError, match=r"expected build/<variant>/, kernel\.toml.*it holds no folders"
    ):
        local_variant(tmp_path, linux_cpu)
    (tmp_path / "docs").mkdir()
    with pytest.raises(RepositoryNotFoundError, match="it holds docs"):
        local_variants(tmp_path, linux_cpu)


def test_no_variant_fits(variant, repo: Path, linux_cpu: System) -> None:
    for name in ("torch-cuda", "torch212-cpu-x86_64-linux", "torch213-cpu-aarch64-linux", "torch-vulkan"):
        variant(name)
    (repo / "build" / "Release").mkdir()
    with pytest.raises(NoVariantError) as caught:
        local_variant(repo, linux_cpu)
    message = str(caught.value)
    assert str(repo) in message
    assert "cpu on x86_64-linux, torch 2.13" in message
    assert message.splitlines()[1:] == [
        "  Release: " + next(line for line in message.splitlines() if "Release" in line).partition(": ")[2],
        "  torch-cuda: it is for backend cuda, not cpu",
        "  torch-vulkan: it is for backend vulkan, not cpu",
        "  torch212-cpu-x86_64-linux: it is for torch 2.12, here is 2.13",
        "  torch213-cpu-aarch64-linux: it is for CPU aarch64, not x86_64",
    ]
    assert len(local_variants(repo, linux_cpu)) == 5


def test_a_variant_named_directly_is_judged_too(variant, linux_cpu: System) -> None:
    folder = variant("torch212-cpu-x86_64-linux")
    with pytest.raises(NoVariantError, match=r"torch 2\.12, here is 2\.13"):
        local_variant(folder, linux_cpu)
    assert read_variant(folder).name == "relu"


def test_only_folders_that_are_no_variants(repo: Path, linux_cpu: System) -> None:
    (repo / "build" / "Debug").mkdir(parents=True)
    with pytest.raises(NoVariantError, match="'Debug' does not name a variant"):
        local_variant(repo, linux_cpu)


def test_source_form_without_the_backend(source: Path, linux_cpu: System) -> None:
    system = replace(linux_cpu, backend="rocm")
    with pytest.raises(NoVariantError, match="torch-cpu: it is for backend cpu, not rocm"):
        local_variant(source, system)


@pytest.mark.parametrize("files", [{"layers.py": ""}, {"a/__init__.py": "", "b/__init__.py": ""}])
def test_a_variant_without_its_package(variant, repo: Path, linux_cpu: System, files) -> None:
    variant("torch-cpu", files)
    with pytest.raises(RepositoryNotFoundError, match=r"expected __init__\.py, or relu/__init__\.py"):
        local_variant(repo, linux_cpu)


# -- integrity --------------------------------------------------------------------------------------


def test_tampered_files_are_not_imported(
    variant, repo: Path, linux_cpu: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    monkeypatch.setattr(builtins, "kernel_log", ran, raising=False)
    folder = variant("torch-cpu", {"__init__.py": "from . import ops", "ops.py": ""})
    (folder / "ops.py").write_text("kernel_log.append(1)")
    with pytest.raises(MetadataError, match=r"ops\.py has sha256"):
        import_kernel(local_variant(repo, linux_cpu))
    assert not ran


def test_digests_cover_the_variant_around_a_nested_package(variant, repo: Path, linux_cpu: System) -> None:
    folder = variant("torch-cpu", {"relu/__init__.py": ""})
    (folder / "beside.py").write_text("")
    with pytest.raises(MetadataError, match=r"beside\.py is not listed"):
        local_variant(repo, linux_cpu)


def test_bytecode_that_python_left_is_no_violation(variant, repo: Path, linux_cpu: System) -> None:
    folder = variant("torch-cpu")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.cpython-311.pyc").write_bytes(b"")
    local_variant(repo, linux_cpu)


def test_broken_metadata(variant, repo: Path, linux_cpu: System) -> None:
    folder = variant("torch-cpu")
    (folder / "metadata.json").write_text(json.dumps({"name": "relu", "digest": 3}))
    with pytest.raises(MetadataError, match="key 'digest': expected an object, got 3"):
        local_variant(repo, linux_cpu)


# -- caching ----------------------------------------------------------------------------------------


def test_the_same_object_until_a_file_changes(variant, source: Path, repo: Path, linux_cpu: System) -> None:
    folder = variant("torch-cpu", metadata=None)
    for path, file in ((repo, folder / "__init__.py"), (source, source / "cpu" / "kernels.py")):
        first = local_variant(path, linux_cpu)
        assert local_variant(path, linux_cpu) is first
        digest = first.digest
        file.write_text("VALUE = NAME = 'edited'\n")
        second = local_variant(path, linux_cpu)
        assert second is not first
        assert second.digest != digest
    assert import_kernel(second).VALUE == "edited"


def test_a_changed_manifest_is_noticed(source: Path, linux_cpu: System) -> None:
    local_variant(source, linux_cpu)
    (source / "kernel.toml").write_text(MANIFEST.replace("1.2.3", "2.0.0"))
    kernel = local_variant(source, linux_cpu)
    assert kernel.metadata is not None
    assert kernel.metadata.release == "2.0.0"


def test_tampering_after_a_verified_load_is_noticed(variant, repo: Path, linux_cpu: System) -> None:
    folder = variant("torch-cpu")
    local_variant(repo, linux_cpu)
    (folder / "__init__.py").write_text("raise SystemExit")
    with pytest.raises(MetadataError, match="does not match the digest"):
        local_variant(repo, linux_cpu)


def test_a_second_look_reads_no_file(
    variant, repo: Path, linux_cpu: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant("torch-cpu")
    local_variant(repo, linux_cpu)
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail(f"{self} was read again"))
    local_variant(repo, linux_cpu)
