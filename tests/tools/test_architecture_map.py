"""docs/architecture.md is what the sources say, and the map finds imports that are planted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools import architecture_map
from tools.architecture_map import WalkStep, _reachable, architecture_page, room_arrows, transitive_reduction
from tools.import_graph import read_modules

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_up_to_date():
    written = (ROOT / architecture_map.PAGE).read_text(encoding="utf-8")
    assert architecture_page(ROOT) == written, "the sources have changed: run `make map`, and commit the page"


def test_links_of_the_page_lead_to_files():
    page = ROOT / architecture_map.PAGE
    links = re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    assert links and [link for link in links if not (page.parent / link).is_file()] == []


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Three rooms in miniature, loose files beside them, and a name that the package re-exports."""
    for name, text in {
        "kernels_hub/__init__.py": "from kernels_hub.hub.client import fetch\n",
        "kernels_hub/errors.py": "",
        "kernels_hub/hub/__init__.py": "",
        "kernels_hub/hub/client.py": "from kernels_hub.errors import KernelsHubError\n",
        "kernels_hub/cli/__init__.py": '"""The command.\n\nMore."""\n\n\ndef f():\n    from kernels_hub import fetch\n',
        "compiler/__init__.py": "",
        "compiler/errors.py": "from kernels_hub.errors import KernelsHubError\n",
        "compiler/pipeline.py": "from kernels_hub.compiler.ir.graph import Graph\n",
        "compiler/ir/graph.py": "from kernels_hub.compiler.errors import GraphError\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


ROOMS = ("kernels_hub/cli", "kernels_hub/hub", "compiler", "compiler/ir")


def test_arrows_follow_names_that_are_exported_again_and_leave_loose_files_out(project: Path):
    assert room_arrows(read_modules(project), ROOMS, project) == {
        "kernels_hub/cli": {"kernels_hub/hub"},
        "kernels_hub/hub": set(),
        "compiler": {"compiler/ir"},
        "compiler/ir": set(),
    }


def test_a_new_import_is_a_new_arrow(project: Path):
    (project / "compiler/ir/types.py").write_text("def f():\n    import kernels_hub.hub.client\n")
    assert room_arrows(read_modules(project), ROOMS, project)["compiler/ir"] == {"kernels_hub/hub"}


def test_reduction_keeps_what_no_other_path_says():
    assert transitive_reduction({"a": ["b", "c", "d"], "b": ["c"], "c": [], "d": []}) == {
        "a": {"b", "d"}, "b": {"c"}, "c": set(), "d": set(),
    }  # fmt: skip


def test_reduction_keeps_a_ring_and_one_arrow_to_what_is_below():
    ring = {"a": ["b", "d"], "b": ["c", "d"], "c": ["b"], "d": []}
    assert transitive_reduction(ring) == {"a": {"b"}, "b": {"c", "d"}, "c": {"b"}, "d": set()}


@given(st.dictionaries(st.sampled_from("abcdef"), st.sets(st.sampled_from("abcdef"))))
def test_reduction_keeps_what_can_be_reached(some: dict[str, set[str]]):
    arrows = {room: some.get(room, set()) - {room} for room in "abcdef"}
    reduced = transitive_reduction(arrows)
    assert all(reduced[room] <= arrows[room] for room in arrows)
    assert {room: _reachable(room, reduced) for room in arrows} == {
        room: _reachable(room, arrows) for room in arrows
    }


def test_a_room_without_a_sentence_is_an_error(project: Path):
    assert architecture_map._sentence("kernels_hub/cli", project) == "The command."
    with pytest.raises(ValueError, match="says what kernels_hub/hub/ is"):
        architecture_map._sentence("kernels_hub/hub", project)


def test_a_step_that_names_nothing_is_an_error(project: Path):
    (project / "kernels_hub/cli/__init__.py").write_text("def f():\n    pass\n")
    step = WalkStep("kernels_hub/cli/__init__.py", "f", "does it.")
    assert architecture_map._walk([step], project).startswith("1. `f` in [`kernels_hub/cli/__init__.py`]")
    with pytest.raises(ValueError, match="has no g"):
        architecture_map._walk([WalkStep(step.path, "g", "does it.")], project)
    with pytest.raises(ValueError, match=r"gone\.py has no f"):
        architecture_map._walk([WalkStep("gone.py", "f", "does it.")], project)
