"""Building repositories: what is written, and that Hugging Face's client loads it."""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from kernels._rust import Digest as PeerDigest
from kernels._rust import DigestAlgorithm
from kernels._rust import Metadata as PeerMetadata

from kernels_hub.errors import BuildError, MetadataError, NoVariantError, RepositoryNotFoundError
from kernels_hub.repository.build import build_repository
from kernels_hub.repository.bundled import bundled_folder, bundled_names, bundled_repository
from kernels_hub.repository.digest import list_files
from kernels_hub.repository.load import import_kernel
from kernels_hub.repository.local import local_variant
from kernels_hub.repository.metadata import read_metadata
from kernels_hub.repository.system import System
from tests.warm_process import run_script

SHARED = "../shared"
MANIFEST = f"""
[kernel]
name = "fused-scale"
version = "1.2.3"
license = "MIT"
summary = "multiplies"
layers = ["Scale"]

[backends.cpu]
sources = ["package", "cpu", "{SHARED}"]

[backends.cuda]
sources = ["package", "triton", "{SHARED}"]
python-depends = ["triton", "einops"]
archs = ["9.0"]
"""

FILES = {
    "kernel.toml": MANIFEST,
    "package/__init__.py": "from . import layers\nfrom .kernels import NAME\n",
    "package/layers.py": textwrap.dedent(
        """
        import torch
        from .shared import FACTOR

        class Scale(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * FACTOR
        """
    ),
    "cpu/kernels.py": "from pathlib import Path\nNAME = Path(__file__).with_name('name.txt').read_text()\n",
    "cpu/name.txt": "cpu",
    "triton/kernels.py": "NAME = 'triton'\n",
}


@pytest.fixture
def source(tmp_path: Path, write_files) -> Path:
    write_files(tmp_path / "shared", {"shared.py": "FACTOR = 3\n"})
    return write_files(tmp_path / "scale", FILES)


def _tree(folder: Path) -> dict[str, bytes]:
    return {inside: path.read_bytes() for inside, path in list_files(folder).items()}


def test_builds_every_backend(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert build_repository(source, out) == [out / "build" / "torch-cpu", out / "build" / "torch-cuda"]
    assert sorted(_tree(out)) == [
        *(f"build/torch-cpu/{name}" for name in ("__init__.py", "kernels.py", "layers.py", "metadata.json")),
        "build/torch-cpu/name.txt",
        "build/torch-cpu/shared.py",
        *(f"build/torch-cuda/{name}" for name in ("__init__.py", "kernels.py", "layers.py", "metadata.json")),
        "build/torch-cuda/shared.py",
    ]
    assert (out / "build" / "torch-cpu").stat().st_mode & 0o777 == tmp_path.joinpath(
        "scale"
    ).stat().st_mode & 0o777


def test_metadata(source: Path, tmp_path: Path) -> None:
    _, folder = build_repository(source, tmp_path / "out")
    metadata = read_metadata(folder)
    assert (metadata.name, metadata.version, metadata.release) == ("fused-scale", 1, "1.2.3")
    assert (metadata.license, metadata.summary, metadata.layers) == ("MIT", "multiplies", ("Scale",))
    assert (metadata.backend, metadata.archs) == ("cuda", ("9.0",))
    assert metadata.python_depends == ("einops", "triton")
    assert metadata.id is not None
    assert metadata.id.startswith("fused_scale_cuda_")
    assert metadata.id.isidentifier()


def test_hugging_face_agrees_on_metadata_and_digests(source: Path, tmp_path: Path) -> None:
    for folder in build_repository(source, tmp_path / "out"):
        theirs = PeerMetadata.read_from_file(folder / "metadata.json")
        assert str(theirs.name) == "fused-scale"
        assert "triton" not in theirs.python_depends  # their client refuses what its table lacks
        assert theirs.digest is not None
        theirs.digest.validate(PeerDigest.hash_variant(DigestAlgorithm.SHA256, folder))


def test_same_input_same_bytes(source: Path, tmp_path: Path) -> None:
    build_repository(source, tmp_path / "one")
    (source / "package" / "__pycache__").mkdir()
    (source / "package" / "__pycache__" / "x.pyc").write_bytes(b"")
    build_repository(source, tmp_path / "two", ["cuda", "cpu", "cpu"])
    assert _tree(tmp_path / "one") == _tree(tmp_path / "two")


CHANGES = {
    "content": ("package/layers.py", "import torch", "import torch  # edited"),
    "version": ("kernel.toml", "1.2.3", "1.2.4"),
    "name": ("kernel.toml", "fused-scale", "other-scale"),
    "shared": ("../shared/shared.py", "3", "4"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_id_is_unique(source: Path, tmp_path: Path, change: str) -> None:
    def ids() -> set[str]:
        return {read_metadata(folder).id or "" for folder in build_repository(source, tmp_path / "out")}

    before = ids()
    assert len(before) == 2
    file, old, new = CHANGES[change]
    path = source / file
    path.write_text(path.read_text().replace(old, new))
    assert not before & ids()


def test_a_build_replaces_the_former_one(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build_repository(source, out)
    (out / "build" / "torch-cpu" / "stale.py").write_text("")
    (source / "cpu" / "name.txt").write_text("new")
    build_repository(source, out, ["cpu"])
    assert not (out / "build" / "torch-cpu" / "stale.py").exists()
    assert (out / "build" / "torch-cpu" / "name.txt").read_text() == "new"
    assert sorted(path.name for path in (out / "build").iterdir()) == ["torch-cpu", "torch-cuda"]


def test_a_failed_build_changes_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    build_repository(source, out)
    before = _tree(out)
    (source / "cpu" / "name.txt").write_text("new")
    (source / "triton" / "metadata.json").write_text("{}")  # the second backend fails
    with pytest.raises(MetadataError, match="is written by the build"):
        build_repository(source, out)
    assert _tree(out) == before
    (source / "triton" / "metadata.json").unlink()
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if Path(target).parent == out / "build" and "-former-" not in self.parent.name:
            raise PermissionError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(PermissionError):
        build_repository(source, out)
    monkeypatch.undo()
    assert _tree(out) == before
    assert sorted(path.name for path in (out / "build").iterdir()) == ["torch-cpu", "torch-cuda"]


def test_universal(source: Path, tmp_path: Path) -> None:
    (source / "kernel.toml").write_text(MANIFEST.replace("backends.cpu", "backends.universal"))
    (folder,) = build_repository(source, tmp_path / "out", ["cpu"])
    assert folder.name == "torch-universal"
    assert local_variant(tmp_path / "out", System.detect()).variant == "torch-universal"


REFUSED = {
    "name": (
        "kernel.toml",
        MANIFEST.replace("fused-scale", "fused_scale"),
        "name 'fused_scale' cannot be published",
    ),
    "capital": ("kernel.toml", MANIFEST.replace("fused-scale", "Scale"), "name 'Scale' cannot be published"),
    "metadata": ("package/metadata.json", "{}", "is written by the build; remove it"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(source: Path, tmp_path: Path, case: str) -> None:
    file, text, problem = REFUSED[case]
    (source / file).write_text(text)
    with pytest.raises(MetadataError) as caught:
        build_repository(source, tmp_path / "out")
    assert problem in str(caught.value)


def test_missing_parts(source: Path, tmp_path: Path) -> None:
    with pytest.raises(NoVariantError, match="has no backend 'rocm'; it has cpu, cuda"):
        build_repository(source, tmp_path / "out", ["rocm"])
    with pytest.raises(RepositoryNotFoundError):
        build_repository(tmp_path, tmp_path / "out")
    (source / "package" / "__init__.py").unlink()
    with pytest.raises(MetadataError, match=r"no __init__\.py in any source folder"):
        build_repository(source, tmp_path / "out")


def test_a_built_kernel_loads_here(source: Path, tmp_path: Path, linux_cpu: System) -> None:
    import torch

    build_repository(source, tmp_path / "out")
    built = import_kernel(local_variant(tmp_path / "out", linux_cpu, "fused-scale"))
    in_place = import_kernel(local_variant(source, linux_cpu))
    assert built is not in_place
    assert built.NAME == in_place.NAME == "cpu"
    assert built.layers.Scale()(torch.ones(2)).tolist() == [3.0, 3.0]


def test_triton_dependency_is_checked_here(source: Path, tmp_path: Path, linux_cpu: System) -> None:
    """It is not among the dependencies that Hugging Face's client reads, and is read all the same."""
    build_repository(source, tmp_path / "out")
    kernel = local_variant(tmp_path / "out", replace(linux_cpu, backend="cuda"))
    assert kernel.metadata is not None
    assert "triton" in kernel.metadata.python_depends


# -- Hugging Face's client --------------------------------------------------------------------------

LOAD_WITH_BOTH = """
import json, sys
from pathlib import Path
import torch
from kernels import get_local_kernel
from kernels_hub.repository.load import import_kernel
from kernels_hub.repository.local import local_variant
from kernels_hub.repository.system import System

torch.manual_seed(0)
x = torch.randn(5, 74)

def run(layer):
    try:
        return layer()(x)
    except (AttributeError, TypeError):  # needs the state of the module that it replaces
        return None

found = {}
for path in map(Path, sys.argv[1:]):
    files = local_variant(path, System.detect("cpu"))
    theirs, ours = get_local_kernel(path, backend="cpu").layers, import_kernel(files).layers
    for name in files.metadata.layers:
        their_layer, our_layer = getattr(theirs, name), getattr(ours, name)
        assert their_layer is not our_layer
        their_result, our_result = run(their_layer), run(our_layer)
        found[name] = None if our_result is None else torch.equal(their_result, our_result)
print(json.dumps(found))
"""


def _load_with_both(*repositories: Path) -> dict[str, bool | None]:
    """Layer -> whether both clients' give the same bits; None for a layer that needs a module's state."""
    done = run_script(LOAD_WITH_BOTH, *map(str, repositories))
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, bool | None] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_hugging_face_loads_a_build(source: Path, tmp_path: Path) -> None:
    build_repository(source, tmp_path / "out")
    assert _load_with_both(tmp_path / "out") == {"Scale": True}


def test_hugging_face_loads_the_bundled_repositories(tmp_path: Path) -> None:
    for name in bundled_names():
        build_repository(bundled_folder() / name, tmp_path / name)
    found = _load_with_both(*(tmp_path / name for name in bundled_names()))
    assert found["SiluAndMul"] is True
    assert False not in found.values()
    assert found.keys() == {layer for name in bundled_names() for layer in bundled_repository(name).layers}


# -- variants with compiled code ------------------------------------------------------------------------------

ARCH = "torch-stable-abi211-cpu-x86_64-linux"
NATIVE = '[backends.cpu]\nvariants = {{ "{}" = ["{}"] }}'


def with_variants(source: Path, name: str = ARCH, folder: str = "native") -> None:
    (source / "native").mkdir(exist_ok=True)
    (source / "native" / "tables.bin").write_bytes(b"\1\2\3")
    manifest = source / "kernel.toml"
    manifest.write_text(manifest.read_text().replace("[backends.cpu]", NATIVE.format(name, folder)))


def test_a_variant_with_compiled_code_is_built_beside(
    source: Path, tmp_path: Path, linux_cpu: System
) -> None:
    """Of all of the backend's files and more, with a name of its own; it is the one that is taken."""
    with_variants(source)
    folders = build_repository(source, tmp_path / "out", check=True)
    assert [one.name for one in folders] == ["torch-cpu", ARCH, "torch-cuda"]
    plain, native = (_tree(one) for one in folders[:2])
    assert native.keys() - plain.keys() == {"tables.bin"}
    names = [read_metadata(one) for one in folders[:2]]
    assert names[0].id != names[1].id and names[1].backend == "cpu"
    assert local_variant(tmp_path / "out", linux_cpu).variant == ARCH
    assert local_variant(source, linux_cpu).variant == "torch-cpu"


@pytest.mark.parametrize(
    ("name", "folder", "expected"),
    [
        ("torch-cpu", "native", "'variants' names torch-cpu; expected one for a CPU and an OS"),
        ("torch213-cu130-x86_64-linux", "native", "of the backend cpu, such as torch-stable-abi211-cpu"),
        ("nonsense", "native", "'nonsense' does not name a variant"),
        (ARCH, "elsewhere", "source folder .*elsewhere does not exist"),
        (ARCH, "cpu", r"lays .*kernels\.py over .*kernels\.py"),
    ],
)
def test_variants_that_cannot_be(source: Path, tmp_path: Path, name: str, folder: str, expected: str) -> None:
    with_variants(source, name, folder)
    with pytest.raises(MetadataError, match=expected):
        build_repository(source, tmp_path / "out")
    assert not any((tmp_path / "out").rglob("*.py"))


def test_gpu_binaries_may_lie_in_noarch_variants(source: Path, tmp_path: Path) -> None:
    """They run on no CPU; code for a CPU may not."""
    elf = b"\x7fELF\2\1\1" + bytes(9) + b"\2\0"
    for place, machine in enumerate((190, 224)):
        (source / "triton" / f"k{place}.bin").write_bytes(elf + machine.to_bytes(2, "little"))
    build_repository(source, tmp_path / "out", ["cuda"], check=False)
    (source / "triton" / "host.bin").write_bytes(elf + (62).to_bytes(2, "little"))
    with pytest.raises(BuildError, match=r"host\.bin: is compiled code, and torch-cuda promises") as caught:
        build_repository(source, tmp_path / "out", ["cuda"], check=True)
    assert "k0.bin" not in str(caught.value)
