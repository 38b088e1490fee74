"""GPU binaries that come along: which one a launch takes, how its arguments are packed, what happens where none fits."""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels_hub import get_local_kernel
from kernels_hub.compiler.export.emit_layer import Emitted
from kernels_hub.compiler.runtime import binaries as module
from kernels_hub.compiler.runtime import knobs
from kernels_hub.compiler.runtime.binaries import (
    Binaries,
    Binary,
    find_binaries,
    parameter,
    read_index,
)
from kernels_hub.compiler.runtime.driver import CUDA, Driver, DriverError
from kernels_hub.compiler.runtime.knobs import nearest
from kernels_hub.compiler.runtime.launcher import Launcher
from kernels_hub.compiler.runtime.toolchain import find_compiler

FAKE = Path(__file__).with_name("fake_driver.cpp")

TILE = {"ROWS": 16, "COLUMNS": 64, "DEPTH": 32, "num_warps": 4, "num_stages": 2}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if (compiler := find_compiler()) is None:
        pytest.skip("needs a C++ compiler")
    path = tmp_path_factory.mktemp("driver") / "libfake.so"
    subprocess.run([compiler, "-shared", "-fPIC", str(FAKE), "-o", str(path)], check=True, timeout=60)
    return path


@pytest.fixture
def driver(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setenv("KERNELS_HUB_FAKE_DRIVER", str(tmp_path / "calls"))
    return Driver(replace(CUDA, library=str(library)))


def calls() -> list[str]:
    path = Path(os.environ["KERNELS_HUB_FAKE_DRIVER"])
    return path.read_text().splitlines() if path.exists() else []


def binary(folder: Path, sizes: str, parameters: tuple[str, ...], **changes: Any) -> Binary:
    data = f"fake {sizes}".encode()
    digest = hashlib.sha256(data).hexdigest()
    file = f"sm_90/{digest[:12]}-{len(parameters)}.cubin"
    path = folder / "binaries" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    found = Binary("k0_kernel", "k0_symbol", file, digest, dict(TILE), parameters, 1024, 4, 2)
    return replace(found, **changes)


def of(folder: Path, driver: Driver, *rows: Binary) -> Binaries:
    return Binaries(folder, rows, driver, lambda: (0, 0xABC), "Layer")


def test_arguments_are_packed(driver: Driver, tmp_path: Path):
    """Addresses, numbers of both widths, and two null addresses of scratch memory."""
    row = binary(tmp_path, "848888", ("*fp32", "i32", "i64", "*i64"))
    x, y = torch.zeros(4), torch.zeros(4, dtype=torch.int64)
    found = of(tmp_path, driver, row)
    assert found.launch("k0_kernel", (7, 2), (x, -5, 1 << 40, y), TILE)
    assert found.launch("k0_kernel", (1,), (x, 0, -1, y), TILE)
    start = "launch 20 grid {} block 128 1 1 shared 1024 stream abc extra 0 : "
    assert calls() == [
        "load",
        "function 10 k0_symbol",
        start.format("7 2 1") + f"{x.data_ptr()} -5 {1 << 40} {y.data_ptr()} 0 0",
        start.format("1 1 1") + f"{x.data_ptr()} 0 -1 {y.data_ptr()} 0 0",
    ]


def test_much_shared_memory_is_asked_for(driver: Driver, tmp_path: Path):
    found = of(tmp_path, driver, binary(tmp_path, "888", ("*fp32",), shared=100_000))
    assert found.launch("k0_kernel", (1,), (torch.zeros(4),), TILE)
    assert "attribute 20 8 100000" in calls()


@pytest.mark.parametrize(
    ("arguments", "constants"),
    [
        ((torch.zeros(4, dtype=torch.bfloat16), 16), TILE),
        ((torch.zeros(5)[1:], 16), TILE),
        ((torch.zeros(4), 1 << 31), TILE),
        ((torch.zeros(4), 17), TILE),
        ((torch.zeros(4),), TILE),
        ((torch.zeros(4), 16), {**TILE, "ROWS": 32}),
        ((torch.zeros(4), 16), {**TILE, "INDEX": "int64"}),
    ],
    ids=["dtype", "alignment", "too wide", "no multiple", "number", "tile", "index"],
)
def test_what_a_binary_does_not_serve(
    driver: Driver, tmp_path: Path, caplog: pytest.LogCaptureFixture, arguments: Any, constants: Any
):
    found = of(tmp_path, driver, binary(tmp_path, "8488", ("*fp32", "i32/16")))
    with caplog.at_level(logging.WARNING, "kernels_hub"):
        assert not found.launch("k0_kernel", (1,), arguments, constants)
        assert not found.launch("k0_kernel", (1,), arguments, constants)
    assert not calls() and caplog.text.count("Triton compiles it here") == 1
    assert found.launch("k0_kernel", (1,), (torch.zeros(4), 16), TILE)


def test_the_most_special_is_taken(driver: Driver, tmp_path: Path):
    general = binary(tmp_path, "8488", ("*fp32", "i32"), symbol="general")
    special = binary(tmp_path, "8488 ", ("*fp32", "i32/16"), symbol="special")
    found = of(tmp_path, driver, general, special)
    for number in (32, 33):
        assert found.launch("k0_kernel", (1,), (torch.zeros(4), number), TILE)
    assert [line.split()[-1] for line in calls() if line.startswith("function")] == ["special", "general"]


def damage(path: Path) -> None:
    path.write_bytes(b"fake 8488?")


@pytest.mark.parametrize(
    ("change", "grid", "reason"),
    [
        (damage, 1, "its digest differs"),
        (Path.unlink, 1, "No such file"),
        (None, 13, "cuLaunchKernel gave error 1"),
    ],
    ids=["damaged", "gone", "launch"],
)
def test_what_cannot_be_used(
    driver: Driver, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Any, grid: int, reason: str
):
    """It is said once, and Triton compiles the kernel from then on."""
    row = binary(tmp_path, "8488", ("*fp32", "i32"))
    found = of(tmp_path, driver, row)
    if change is not None:
        change(tmp_path / "binaries" / row.file)
    with caplog.at_level(logging.WARNING, "kernels_hub"):
        for _ in range(2):
            assert not found.launch("k0_kernel", (grid,), (torch.zeros(4), 1), TILE)
    (record,) = caplog.records
    assert reason in record.getMessage() and "Triton compiles it here" in record.getMessage()


def test_another_gpu(driver: Driver, tmp_path: Path):
    path = tmp_path / "other"
    path.write_bytes(b"of another GPU")
    with pytest.raises(DriverError, match="cuModuleLoadData gave error 209"):
        driver.load(path.read_bytes(), "k", 0)


def test_no_driver():
    with pytest.raises(DriverError, match=r"libnothing\.so"):
        Driver(replace(CUDA, library="libnothing.so"))


@pytest.mark.parametrize(
    ("wanted", "known", "expected"),
    [
        ({**TILE, "ROWS": 64}, [TILE, {**TILE, "ROWS": 32}], {**TILE, "ROWS": 32}),
        ({**TILE, "COLUMNS": 128}, [TILE], TILE),
        ({"ROWS": 4, "COLUMNS": 128, "num_warps": 2}, [{"ROWS": 1, "COLUMNS": 256, "num_warps": 2}], 0),
        ({"ROWS": 4, "COLUMNS": 128, "num_warps": 2}, [{"ROWS": 4, "COLUMNS": 64, "num_warps": 2}], None),
        (
            {"ROWS": 16, "COLUMNS": 64, "WIDTH": 64, "VALUES": 64},
            [{"ROWS": 32, "COLUMNS": 32, "WIDTH": 128, "VALUES": 64}],
            None,
        ),
        ({"BLOCK": 256, "num_warps": 1}, [{"BLOCK": 1024, "num_warps": 4}], 0),
        ({"BLOCK": 256, "num_warps": 1}, [], None),
    ],
    ids=["nearest", "columns of a product", "longer rows", "rows that do not fit", "widths", "block", "none"],
)
def test_a_tile_that_was_compiled_replaces_another(
    driver: Driver, tmp_path: Path, wanted: dict[str, int], known: list[dict[str, int]], expected: Any
):
    found = of(tmp_path, driver, *(binary(tmp_path, "8", (), constants=one) for one in known))
    answer = wanted if expected is None else known[0] if expected == 0 else expected
    assert found.tile("k0_kernel", wanted) == answer


def test_what_a_launch_is_compiled_for():
    assert parameter(torch.zeros(1, dtype=torch.bfloat16)) == "*bf16"
    assert [parameter(one) for one in (1, 5, 48, 1 << 31, -16)] == [
        "i32",
        "i32",
        "i32/16",
        "i64/16",
        "i32/16",
    ]


def test_an_architecture_without_binaries(mlp_dtypes: Emitted, caplog: pytest.LogCaptureFixture):
    table = mlp_dtypes.programs[0].triton
    assert table is not None

    class Table:
        source, layer = table.program_file, "GatedMLP"

    folder = mlp_dtypes.path / "triton"
    with caplog.at_level(logging.WARNING, "kernels_hub"):
        assert find_binaries(folder, Table, "sm_120") is None  # type: ignore[arg-type]
        assert find_binaries(folder.parent, Table, "sm_90") is None  # type: ignore[arg-type]
    (record,) = caplog.records
    assert "there are some for gfx942, sm_90, none for sm_120; Triton compiles" in record.getMessage()


def test_a_driver_that_is_not_here(mlp_dtypes: Emitted, caplog: pytest.LogCaptureFixture, monkeypatch: Any):
    monkeypatch.setattr(module, "CUDA", replace(CUDA, library="libnothing.so"))

    class Table:
        source, layer = "kernels_float32.py", "GatedMLP"

    with caplog.at_level(logging.WARNING, "kernels_hub"):
        assert find_binaries(mlp_dtypes.path / "triton", Table, "sm_90") is None  # type: ignore[arg-type]
    assert "libnothing.so" in caplog.text


# -- the table of knobs ---------------------------------------------------------------------------------------

KNOWN = ("sm_80", "sm_90", "sm_100", "gfx942", "avx512")


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("sm_90", "sm_90"), ("sm_86", "sm_80"), ("sm_103", "sm_100"), ("sm_120", "sm_100"), ("sm_75", "sm_80"),
        ("gfx950", "gfx942"), ("gfx90a", "gfx942"), ("gfx1100", "gfx942"), ("avx512", "avx512"), ("apple", None),
        ("", None),
    ],
)  # fmt: skip
def test_the_nearest_architecture(arch: str, expected: str | None):
    assert nearest(arch, KNOWN) == expected


def test_an_architecture_without_a_row(mlp: Emitted, caplog: pytest.LogCaptureFixture):
    """The nearest one's is used, which is said once; the C++ is built with the row of this machine's."""
    package = get_local_kernel(mlp.path, backend="cpu").__name__
    table = importlib.import_module(f"{package}.compiler.runtime.knobs")
    with caplog.at_level(logging.WARNING, "kernels_hub"):
        rows = [table.knobs_for(arch) for arch in ("sm_90", "gfx942", "sm_120", "sm_120", "apple")]
    assert [row.get("stages") for row in rows] == [3, 2, 3, 3, None]
    said = [record.getMessage().partition(" has ")[2] for record in caplog.records]
    assert said == [
        "no knobs for sm_120: those of sm_100 are used",
        "no knobs for apple: they follow from sizes",
    ]
    level = importlib.import_module(f"{package}.compiler.runtime.builder")._level()
    assert (
        list(level.flags) == json.loads((mlp.path / "call" / "knobs.json").read_text())[level.name]["flags"]
    )


@pytest.mark.parametrize("text", ["{", "[]", '{"sm_90": 3}'])
def test_a_table_that_cannot_be_read(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "knobs.json").write_text(text)
    with caplog.at_level(logging.WARNING, "kernels_hub"):
        assert knobs._read(tmp_path / "knobs.json") == {}
    assert "does not say what it should" in caplog.text


class Named:
    """As a kernel of Triton's."""

    @staticmethod
    def fn() -> None:
        """Nothing."""


def test_knobs_take_the_place_of_what_follows_from_sizes():
    kernels = {"fn": {"ROWS": 32, "num_warps": 8, "WIDTH": 7}}
    on = Launcher({"stages": 2, "block": 512, "product": [64, 64, 32], "kernels": kernels})
    assert (on.stages, on.block, on.product) == (2, 512, (64, 64, 32))
    assert on.tile(Named, {"ROWS": 16, "COLUMNS": 64}) == {"ROWS": 32, "COLUMNS": 64, "num_warps": 8}
    assert Launcher({}).tile(Named, {"BLOCK": 256}) == {"BLOCK": 256}


# -- what was compiled ----------------------------------------------------------------------------------------


def test_binaries_of_a_layer(mlp_dtypes: Emitted):
    """Of each program, for each architecture; none spills; each is listed with its digest."""
    assert mlp_dtypes.ahead and not any(one.resources.spills or one.reason for one in mlp_dtypes.ahead)
    folder = mlp_dtypes.path / "triton" / "binaries"
    for program in ("kernels_float32.py", "kernels_bfloat16.py"):
        rows = read_index(folder / "binaries.json", program)
        assert set(rows) == {"sm_90", "gfx942"}
        for arch, found in rows.items():
            assert {one.kernel for one in found} == {
                "k0_matmul_kernel",
                "k1_matmul_mul_kernel",
                "k2_matmul_kernel",
            }
            for one in found:
                data = (folder / one.file).read_bytes()
                assert hashlib.sha256(data).hexdigest() == one.sha256 and data[:4] == b"\x7fELF"
                assert one.file.startswith(arch) and one.trailing == 2
    card = (mlp_dtypes.path / "README.md").read_text()
    assert "GPU kernels come compiled; on other GPUs, Triton compiles them." in card
    assert not [
        words for words in ("at their first use", "Compiled ahead", "at its first use. Reg") if words in card
    ]
    assert "| kernels_bfloat16.py | gfx942 | `k2_matmul_kernel` | INDEX=int32, ROWS=" in card
    assert json.loads(json.dumps([asdict(one.binary) for one in mlp_dtypes.ahead if one.binary]))
