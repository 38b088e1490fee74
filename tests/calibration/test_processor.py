"""Processors, from texts in the format of /proc/cpuinfo."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels_hub.calibration import processor
from kernels_hub.calibration.processor import Processor, last_level_cache, read_processor, this_processor

ZEN4 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
flags\t\t: fpu avx2 fma avx512f avx512bw avx512vl avx512_bf16

processor\t: 1
vendor_id\t: Other
"""

CASES = {
    "zen 4": (ZEN4, Processor("amd", "25", "17", "avx512bf16"), "amd-25-17-avx512bf16"),
    "without bf16": (
        ZEN4.replace("avx512_bf16", ""),
        Processor("amd", "25", "17", "avx512"),
        "amd-25-17-avx512",
    ),
    "with amx": (
        ZEN4.replace("AuthenticAMD", "GenuineIntel").replace("avx512_bf16", "avx512_bf16 amx_tile amx_bf16"),
        Processor("intel", "25", "17", "amx"),
        "intel-25-17-amx",
    ),
    "arm": (
        "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd40\nFeatures\t: fp asimd sve\n",
        Processor("0x41", "8", "0xd40", "sve"),
        "0x41-8-0xd40-sve",
    ),
}


@pytest.mark.parametrize("text, processor, name", CASES.values(), ids=CASES)
def test_processors(text: str, processor: Processor, name: str):
    assert read_processor(text) == processor
    assert read_processor(text).name == name


@pytest.mark.parametrize("text", ["", "nothing here", "flags: \x00", "vendor_id: ../../x"])
def test_any_text_gives_a_name_that_a_file_can_have(text: str):
    name = read_processor(text).name
    assert name.replace("-", "").replace("_", "").isalnum()


def test_this_machine_has_one():
    assert this_processor() is this_processor()


def test_the_last_cache_is_the_largest_that_the_system_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for index, text in enumerate(("48K\n", "2048K\n", "36M\n", "many\n", "")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(text, encoding="ascii")
    monkeypatch.setattr(processor, "_CACHES", tmp_path)
    assert last_level_cache.__wrapped__() == 36 << 20
    monkeypatch.setattr(processor, "_CACHES", tmp_path / "none")
    assert last_level_cache.__wrapped__() == 32 << 20
