"""Wheels with native code: an object of a slice of the sources, and what a wheel is made of."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import platform
import sys
import zipfile
from pathlib import Path

import pytest

from tools.wheels import __main__ as wheels
from tools.wheels import assemble, native, sbom

needs_zig = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None, reason="needs ziglang (extra wheels)"
)
needs_x86 = pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux", reason="Linux on x86-64"
)

REGIONS = """
#include <omp.h>
#include <stdint.h>
extern "C" int64_t regions(int64_t n, int64_t* out, int inside) {
  int64_t singles = 0, all = 0;
#pragma omp parallel if (inside)
  {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < n; ++i) out[i] = i;
#pragma omp single
    singles += 1;
#pragma omp for schedule(dynamic, 3)
    for (int64_t i = 0; i < n; ++i) out[i] += 10 * i;
#pragma omp barrier
#pragma omp for schedule(static, 2) nowait
    for (int64_t i = n - 1; i >= 0; --i) out[i] += 100 * i;
#pragma omp atomic
    all += 1;
  }
  return singles == 1 && all >= 1 && (inside || all == 1) ? all : -1;
}
"""


@pytest.mark.exhaustive
@needs_zig
@needs_x86
@pytest.mark.slow
def test_a_slice_is_built_loads_and_runs_its_regions(tmp_path: Path):
    """Builds in two folders give the same bytes; regions run on PyTorch's threads, and every turn of a loop once."""
    import torch

    least = native.Platform("x86_64", native.X86_64.levels[-1:])
    for name in ("one", "two"):
        source = tmp_path / f"sources-{name}" / "regions.cpp"
        source.parent.mkdir()
        source.write_text(REGIONS)
        units = [native.Unit(source, (source.parent,))]
        native.build(units, least, tmp_path / name)
    files = [sorted((tmp_path / name).iterdir()) for name in ("one", "two")]
    assert [one.read_bytes() for one in files[0]] == [one.read_bytes() for one in files[1]]
    index = json.loads((tmp_path / "one" / "index.json").read_text())
    assert index["units"] == {"regions.cpp": units[0].digest()}
    library = ctypes.CDLL(str(tmp_path / "one" / index["levels"][0]["file"]))
    if not library.kh_runs_here():
        pytest.skip("needs AVX2")
    assert library.kh_has_threads() == 1, "PyTorch has loaded a runtime"
    library.regions.argtypes, library.regions.restype = (
        (ctypes.c_int64, ctypes.c_void_p, ctypes.c_int),
        ctypes.c_int64,
    )
    for length in (0, 1, 2, 7, 1000):
        for inside in (0, 1):
            out = torch.full((max(length, 1),), -1, dtype=torch.int64)
            team = library.regions(length, out.data_ptr(), inside)
            assert team == (torch.get_num_threads() if inside else 1)
            assert torch.equal(out[:length], 111 * torch.arange(length))


@needs_zig
@needs_x86
@pytest.mark.exhaustive
def test_the_wheel_as_it_is_released(tmp_path: Path):
    native.build(native.units_of(native.ROOT), native.X86_64, tmp_path / "native")
    (tmp_path / "pure").mkdir()
    pure = wheels.build_pure(native.ROOT, tmp_path / "pure")
    wheel = wheels.finish(pure, tmp_path / "native", native.X86_64, tmp_path)[-1]
    assert list(wheels.problems_of(wheel, native.X86_64)) == []


@pytest.fixture
def pure(tmp_path: Path) -> Path:
    """A pure wheel, as setuptools writes one."""
    path = tmp_path / "kernels_hub-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("kernels_hub/__init__.py", "")
        archive.writestr(
            "kernels_hub-1.0.dist-info/METADATA",
            "Metadata-Version: 2.4\nName: kernels-hub\nVersion: 1.0\nRequires-Dist: torch>=2.11\n"
            'Requires-Dist: onnx; extra == "onnx"\n',
        )
        archive.writestr(
            "kernels_hub-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("kernels_hub-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    folder = tmp_path / "objects"
    folder.mkdir()
    (folder / "index.json").write_text("{}")
    (folder / "kernels-best.so").write_bytes(b"code")
    return folder


def test_a_wheel_with_native_code_is_for_a_platform_and_records_every_file(
    pure: Path, objects: Path, tmp_path: Path
):
    files = assemble.with_native(assemble.read_wheel(pure), objects, "manylinux_2_28_x86_64")
    document = sbom.sbom(
        "1.0", assemble.requirements_of(files), {"kernels_hub/prebuilt/kernels-best.so": "00"}, "zig 1", "2"
    )
    files = assemble.with_sbom(files, sbom.NAME, document)
    (tmp_path / "again").mkdir()
    wheel, again = (
        assemble.write_wheel(files, one, "manylinux_2_28_x86_64") for one in (tmp_path, tmp_path / "again")
    )
    assert wheel.read_bytes() == again.read_bytes()
    assert wheel.name == "kernels_hub-1.0-py3-none-manylinux_2_28_x86_64.whl"
    found = assemble.read_wheel(wheel)
    assert {"kernels_hub/prebuilt/index.json", "kernels_hub/prebuilt/kernels-best.so"} < found.keys()
    said = found["kernels_hub-1.0.dist-info/WHEEL"].decode().splitlines()
    assert said == ["Wheel-Version: 1.0", "Root-Is-Purelib: false", "Tag: py3-none-manylinux_2_28_x86_64"]
    recorded = {
        line.split(",")[0] for line in found["kernels_hub-1.0.dist-info/RECORD"].decode().splitlines()
    }
    assert recorded == found.keys()
    named = json.loads(found["kernels_hub-1.0.dist-info/sboms/kernels-hub.cdx.json"])
    names = {one["name"] for one in named["components"]}
    assert {"torch", "libc++", "kernels_hub/prebuilt/kernels-best.so"} <= names and "onnx" not in names


def test_a_file_that_changes_changes_the_wheel(pure: Path, objects: Path, tmp_path: Path):
    digests = set()
    for content in (b"code", b"other"):
        (objects / "kernels-best.so").write_bytes(content)
        files = assemble.with_native(assemble.read_wheel(pure), objects, "manylinux_2_28_x86_64")
        wheel = assemble.write_wheel(files, tmp_path, "manylinux_2_28_x86_64")
        digests.add(hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert len(digests) == 2


def test_without_zig_the_build_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(native.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(native.PrebuildError, match="pip install"):
        native.zig()


def test_every_source_of_the_layers_is_prebuilt():
    names = [unit.source.name for unit in native.units_of(native.ROOT)]
    assert len(names) == len(set(names)), "the index has them by their names"
    assert {"activation.cpp", "normalization.cpp", "weight_guard.cpp"} <= set(names)
