"""Run the suite with the newest release of everything, and say what breaks and what the new pins are.

    make newest                     the whole suite
    make newest ARGS="tests/layers" a part of it

An environment is made without constraints.txt, as a user's `pip install` makes it today. The suite runs in it; the
tests that fail are listed, each with the first line of its error, and so are the releases that are not those of
constraints.txt.
The new constraints are left in build/constraints-newest.txt; where everything passes, that file takes the place of
constraints.txt. Exits 1 where a test fails.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
BUILT = ROOT / "build"

_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==(\S+)")
_OF_TORCH = re.compile(r"(nvidia|cuda)-")
"""torch names these releases itself, and each of its builds others."""
_RANGES = frozenset({"triton", "kernels-hub"})
"""triton: a range in constraints.txt, as each torch names the one that it works with."""


def canonical(name: str) -> str:
    """A distribution's name as an index has it: "Jinja2" and "jinja2" are one."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(text: str) -> dict[str, str]:
    """Canonical name -> release, of the lines `name==release`; other lines are left out."""
    found = (_PIN.fullmatch(line.strip()) for line in text.splitlines())
    return {canonical(pin[1]): pin[2] for pin in found if pin}


def renew(constraints: str, installed: dict[str, str]) -> str:
    """constraints.txt with the releases that are installed.

    Comments, ranges and pins of what is not installed here stay; what is new is added at the end.
    """
    lines, seen = [], set()
    for line in constraints.splitlines():
        pin = _PIN.fullmatch(line.strip())
        if pin is None:
            lines.append(line)
        else:
            seen.add(canonical(pin[1]))
            lines.append(f"{pin[1]}=={installed.get(canonical(pin[1]), pin[2])}")
    lines += [
        f"{name}=={release}"
        for name, release in sorted(installed.items())
        if name not in seen and name not in _RANGES and not _OF_TORCH.match(name)
    ]
    return "\n".join(lines) + "\n"


def changes(old: str, new: str) -> list[str]:
    """A line for each release that differs: "torch 2.13.0 -> 2.15.0"."""
    before, after = read_pins(old), read_pins(new)
    return [
        f"{name} {before.get(name, '(none)')} -> {release}"
        for name, release in after.items()
        if before.get(name) != release
    ]


def broken(report: Path) -> list[str]:
    """Of a JUnit report, a line for each test that failed: its name, and its error's first line."""
    found = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):  # noqa: S314  (written by pytest)
        for problem in (*case.findall("failure"), *case.findall("error")):
            first = (problem.get("message") or problem.text or "no message").strip().splitlines()[0]
            found.append(f"{case.get('classname')}::{case.get('name')}: {first}")
    return found


def install(environment: Path) -> Path:
    """Make the environment, or bring it up to date; returns its Python."""
    python = environment / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not python.exists():
        venv.create(environment, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--upgrade"]
    subprocess.run([*command, "--upgrade-strategy", "eager", "-e", ".[test,bench]"], cwd=ROOT, check=True)
    return python


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--environment", type=Path, default=ROOT / ".venvs" / "newest")
    arguments, for_pytest = parser.parse_known_args(argv)
    python = install(arguments.environment.absolute())
    BUILT.mkdir(exist_ok=True)
    report = BUILT / "newest.xml"
    report.unlink(missing_ok=True)
    options = [
        "-n",
        "auto",
        "--maxprocesses",
        "4",
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
        f"--junitxml={report}",
    ]
    tests = subprocess.run([python, "-m", "pytest", *options, *for_pytest], cwd=ROOT, check=False)
    freeze = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", "freeze", "--all", "--exclude-editable"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    old = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    installed = {name: release for name, release in read_pins(freeze).items() if name != "pip"}
    new = renew(old, installed)
    (BUILT / "constraints-newest.txt").write_text(new, encoding="utf-8")
    print("\n== releases that differ from constraints.txt (all in build/constraints-newest.txt)")
    print("\n".join(changes(old, new)) or "none")
    print(f"torch {installed.get('torch')} with triton {installed.get('triton', '(none)')}")
    print("\n== what breaks")
    failed = broken(report) if report.exists() else ["no report: pytest did not run to its end"]
    print("\n".join(failed) or "nothing")
    return 1 if failed or tests.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
