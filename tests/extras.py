"""Processes that see only what an extra of this project installs, whatever else the environment has."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
_SITE = """
import sys
from importlib.machinery import PathFinder

REFUSED = {refused!r}


class Installed(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in REFUSED else PathFinder.find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Installed
"""


def only(folder: Path, *wanted: str) -> str:
    """A folder for PYTHONPATH: processes that have it import no module of packages that `wanted` do not need.

    wanted: requirements, such as "kernels-hub[demo]".
    """
    needed = _needed([Requirement(one) for one in wanted])
    owners = packages_distributions()
    refused = {
        top for top, names in owners.items() if not needed & {canonicalize_name(name) for name in names}
    }
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_SITE.format(refused=refused), encoding="utf-8")
    return str(folder)


def _needed(requirements: list[Requirement]) -> set[str]:
    """Names of the distributions that requirements come to, with those that they need."""
    found: set[tuple[str, str]] = set()
    while requirements:
        one = requirements.pop()
        name = canonicalize_name(one.name)
        for extra in ("", *one.extras):
            if (name, extra) not in found:
                found.add((name, extra))
                requirements += _of(name, extra)
    return {name for name, _ in found}


def _of(name: str, extra: str) -> list[Requirement]:
    """What a distribution needs for an extra, "" for none; of this project, as pyproject.toml has it."""
    if name == "kernels-hub":
        project = tomllib.loads(_PYPROJECT.read_text(encoding="utf-8"))["project"]
        own = project["optional-dependencies"][extra] if extra else project["dependencies"]
        return [Requirement(text) for text in own]
    try:
        found = [Requirement(text) for text in requires(name) or ()]
    except PackageNotFoundError:  # for another platform or Python
        return []
    return [one for one in found if one.marker is None or one.marker.evaluate({"extra": extra})]
