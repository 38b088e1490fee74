"""What a release is held to: the recorded interface, the version, and the files around the code."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from kernels_hub.version import __version__
from tools import api_surface, release_check

ROOT = Path(__file__).resolve().parents[2]


def test_the_public_interface_is_the_recorded_one():
    recorded = api_surface.RECORDED.read_text(encoding="utf-8").splitlines()
    now = api_surface.surface()
    assert sorted(set(now) - set(recorded)) == [], "new: `make api` records it, and CHANGELOG.md says it"
    assert sorted(set(recorded) - set(now)) == [], "gone: see docs/deprecation.md"


def test_the_interface_has_arguments_methods_and_options():
    lines = api_surface.surface()
    assert any(line.startswith("kernels_hub.kernelize(model, *, mode, device=None,") for line in lines)
    assert "kernels-hub doctor --json" in lines and "kernels_hub.Report.to_dict(self)" in lines
    assert not [line for line in lines if " at 0x" in line or str(ROOT) in line]


@pytest.mark.parametrize(
    ("after", "bump"), [(["a", "b"], "patch"), (["a", "b", "c"], "minor"), (["a", "c"], "major")]
)
def test_which_bump_a_change_needs(after: list[str], bump: str):
    assert api_surface.needed_bump(["a", "b"], after) == bump


@pytest.mark.parametrize(
    ("old", "new", "needed", "allowed"),
    [
        ("1.2.3", "1.2.4", "patch", True), ("1.2.3", "1.2.4", "minor", False), ("1.2.3", "1.3.0", "minor", True),
        ("1.2.3", "1.3.0", "major", False), ("1.2.3", "2.0.0", "major", True), ("0.2.3", "0.3.0", "major", True),
        ("0.2.3", "0.2.4", "major", False), ("1.2.3", "1.2.3", "patch", False), ("1.2.3", "1.2.2", "patch", False),
    ],
)  # fmt: skip
def test_versions_that_are_raised_far_enough(old: str, new: str, needed: str, allowed: bool):
    assert (not list(release_check.problems_of_the_bump(old, new, needed))) == allowed


def test_what_a_version_lacks_is_listed(tmp_path: Path):
    shutil.copy(ROOT / "CITATION.cff", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\n### Added\n\n- x\n")
    assert len(list(release_check.check_version(tmp_path, __version__))) == 2
    (tmp_path / "CHANGELOG.md").write_text(
        f"# Changelog\n\n## [Unreleased]\n\n## [{__version__}] - 2026-12-01\n\n- x\n"
    )
    assert list(release_check.check_version(tmp_path, __version__)) == []
    assert len(list(release_check.check_version(tmp_path, "9.9.9"))) == 2
    assert any("not a version" in one for one in release_check.check_version(tmp_path, "1.0.0.dev1"))


def test_the_citation_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "title", "message", "authors"} <= citation.keys()
    assert (citation["version"], citation["license"]) == (__version__, "Apache-2.0")


def test_forms_and_hooks_name_what_there_is():
    for form in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        document = yaml.safe_load(form.read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= document.keys(), form
        assert all("attributes" in part for part in document["body"]), form
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    for hook in (one for repository in hooks["repos"] for one in repository["hooks"]):
        assert hook["language"] == "system"  # with the project's own environment, without a network
        program = hook["entry"].split()[1]
        assert program == "-m" or (ROOT / program).is_file()
