"""The Makefile and CONTRIBUTING.md say the same of what is tested, and name what there is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent.parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")


def variable(name: str) -> list[str]:
    found = re.search(rf"^{name} = (.*)$", MAKEFILE, re.MULTILINE)
    assert found is not None, f"the Makefile has no {name}"
    return found[1].split()


def test_the_tests_of_versions_exist():
    named = variable("TESTS_OF_VERSIONS")
    assert named and not [one for one in named if not (ROOT / one).exists()]


def test_releases_of_pytorch_are_those_of_the_table():
    rows = re.findall(
        r"^\| (\d+\.\d+\.\d+) \| \d+\.\d+\.\d+ \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    newest = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert newest is not None
    assert variable("RELEASES")[0] == "$(OLDEST)"
    made = [*variable("OLDEST"), *variable("RELEASES")[1:], newest[1]]
    assert sorted(rows, key=Version) == made
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"torch>={made[0].removesuffix('.0')}" in project["dependencies"]
