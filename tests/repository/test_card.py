"""The card: front matter that a Hub accepts, tables that are right, nothing made up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard

from kernels_hub.errors import MetadataError
from kernels_hub.repository.bundled import bundled_folder
from kernels_hub.repository.card import CardInput, read_benchmarks, write_card
from kernels_hub.repository.interface import read_interface

RESULT = {
    "machine": {"device": "cpu", "cpu": "A | B", "versions": {"torch": "2.13.0", "triton": "3.6"}},
    "threads": 2,
    "cases": {
        "SiLU 1x512, float32": {
            "median_ms": {"eager": 0.5, "kernels_hub": 0.123456},
            "speedup_over_eager": {"kernels_hub": 4.05},
            "errors": {"max_abs_error": 1.2e-7},
        },
        "GELU": {"median_ms": {"eager": 1}, "errors": {}},
    },
}


@pytest.fixture(scope="module")
def activation():
    return read_interface(bundled_folder() / "activation")


def _card(interface, **given) -> str:
    return write_card(interface, CardInput("org/activation", "1.2.0", **given))


def _front(card: str) -> dict:
    return yaml.safe_load(card.split("---")[1])


def test_front_matter(activation):
    card = _card(activation)
    assert _front(card) == {
        "library_name": "kernels",
        "license": "apache-2.0",
        "tags": ["kernel", "kernels-hub", "cpu", "cuda", "rocm"],
    }
    data = ModelCard(card).data  # as Hugging Face parses it
    assert (data.license, data.library_name) == ("apache-2.0", "kernels")


def test_layers_and_variants(activation):
    card = _card(activation, dtypes=("float32", "bfloat16"))
    assert "# activation\n" in card
    row = next(line for line in card.splitlines() if line.startswith("| `SiLU`"))
    assert row.split(" | ")[1:5] == ["`forward(input)`", "cpu, cuda, rocm", "yes", "yes"]
    assert "| `gelu(input, approximate='none')` |" in card
    assert "| `torch-cuda` | cuda | any | triton |" in card
    assert "dtypes: float32, bfloat16." in card
    assert "## Licence\n\nApache-2.0" in card
    assert "## Speed" not in card
    assert "## Errors" not in card
    for line in card.splitlines():
        if line.startswith("| `"):
            assert line.replace("\\|", "").count("|") in (3, 7), line


def test_use_names_a_version(activation):
    card = _card(activation)
    assert 'LayerRepository("org/activation", layer_name="SiLU", version=">=1.2.0,<2")' in card
    assert 'get_kernel("org/activation", version=1)' in card
    below_one = write_card(activation, CardInput("org/activation", "0.3.1"))
    assert 'version=">=0.3.1,<0.4"' in below_one


def test_tables_of_the_benchmark(activation, tmp_path: Path):
    (tmp_path / "benchmark.json").write_text(json.dumps(RESULT))
    card = _card(activation, benchmarks=read_benchmarks(tmp_path))
    assert "Medians on cpu, A &#124; B, torch 2.13.0, triton 3.6, 2 threads." in card
    assert "| SiLU 1x512, float32 | 0.5 | 0.1235 | 4.05 |" in card
    assert "| GELU | 1 | - | - |" in card
    assert "| case | max abs error |\n| --- | --- |\n| SiLU 1x512, float32 | 1.2e-07 |\n" in card


def test_the_authors_readme(activation):
    readme = "---\nlicense: mit\ntags: [fast, kernel]\nlanguage: en\n---\n# My title\n\nMy words: a < b.\n"
    card = _card(activation, readme=readme)
    front = _front(card)
    assert front["license"] == "apache-2.0"  # kernel.toml decides
    assert front["tags"] == ["kernel", "kernels-hub", "cpu", "cuda", "rocm", "fast"]
    assert front["language"] == "en"
    assert "\n# My title\n" in card
    assert "\nMy words: a < b.\n" in card
    assert card.count("---\n") == 2


@pytest.mark.parametrize(
    ("spdx", "expected"),
    [
        ("MIT", {"license": "mit"}),
        ("GPL-3.0-or-later", {"license": "gpl-3.0"}),
        ("LicenseRef-Mine", {"license": "other", "license_name": "LicenseRef-Mine"}),
        (None, {"license": "other"}),
    ],
)
def test_licences_as_the_hub_spells_them(activation, spdx: str | None, expected: dict):
    front = _front(_card(replace(activation, license=spdx)))
    assert {key: value for key, value in front.items() if key.startswith("license")} == expected


def test_equal_input_equal_text(activation):
    assert _card(activation) == _card(read_interface(bundled_folder() / "activation"))


@pytest.mark.parametrize("readme", ["---\na: [\n---\n", "---\n- a\n---\n", "---\nnever closed\n"])
def test_a_broken_readme(activation, readme: str):
    with pytest.raises(MetadataError, match=r"README\.md of org/activation: its front matter"):
        _card(activation, readme=readme)


@pytest.mark.parametrize("text", ["{", "[]", '{"cases": 3}', '{"cases": {"a": 1}}', "{}"])
def test_a_broken_benchmark(text: str, tmp_path: Path):
    (tmp_path / "benchmark-cpu.json").write_text(text)
    with pytest.raises(MetadataError, match=r"benchmark-cpu\.json is not the result of a benchmark"):
        read_benchmarks(tmp_path)


def test_the_release_is_the_one_that_is_published(activation):
    """Not the one that `kernels-hub compile` wrote its README for."""
    readme = "# gate\n\nA layer. Written by `kernels-hub compile`, release 0.1.0.\n\nOf release 0.1.0 of something else."
    card = _card(activation, readme=readme)
    assert "Written by `kernels-hub compile`.\n" in card and "Release 1.2.0 of the kernel" in card
    assert card.count("0.1.0") == 1
