"""The release checklist as code: `make release-check`. Every check runs, and every problem is listed.

    version      kernels_hub.__version__ is a final or pre-release version; CHANGELOG.md has its section, dated;
                 CITATION.cff names it
    interface    docs/api.txt is what the code is; since the last tag, the version was raised as far as it asks for
    build        sdist and wheel build; a second wheel has the same bytes; `twine check --strict` accepts both
    native       on x86-64, with the extra "wheels": native code builds twice to the same bytes, the wheel with it has
                 15 MB at most, and auditwheel names a manylinux tag
    python3.N    that wheel, or else the pure one, is installed into a fresh environment of each Python from 3.11 to
                 3.14 that is on PATH, its dependencies from the usual index, and the README's first example and
                 `kernels-hub doctor` run there
    hints        in the last of these environments, pyright finds no fault in the README's examples, as a user's editor
                 would show it

A Python that is missing is named, and is no problem. --reuse takes the dependencies of the environment that runs this,
for its own Python (nothing is downloaded), and leaves the others out.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from packaging.version import InvalidVersion, Version

from tools.api_surface import RECORDED, needed_bump, surface
from tools.check_types import python_blocks
from tools.wheels import __main__ as wheels
from tools.wheels import native

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def check_version(root: Path, version: str) -> Iterator[str]:
    """Problems of the version, the changelog and the citation."""
    try:
        if (parsed := Version(version)).is_devrelease or parsed.local:
            yield f"{version} is not a version to release"
    except InvalidVersion:
        yield f"{version!r} is not a version"
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        yield f"CHANGELOG.md has no section '## [{version}] - YYYY-MM-DD'"
    if re.search(r"^## \[Unreleased\]\n+(?=###|- )", changelog, re.MULTILINE):
        yield "CHANGELOG.md has changes under Unreleased"
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    if f"\nversion: {version}\n" not in citation:
        yield f"CITATION.cff does not say version: {version}"


def check_interface(version: str, before: tuple[str, list[str]] | None) -> Iterator[str]:
    """Problems of the public interface. before: the last release, and its api.txt."""
    now = surface()
    if RECORDED.read_text(encoding="utf-8").splitlines() != now:
        yield "docs/api.txt is not what the code is: make api"
    if before is not None:
        yield from problems_of_the_bump(before[0], version, needed_bump(before[1], now))


def problems_of_the_bump(old: str, new: str, needed: str) -> Iterator[str]:
    """A problem if the version was not raised as far as needed; below 1.0, a minor release may break."""
    if Version(new) <= Version(old):
        yield f"{new} is not above the last release, {old}"
        return
    places = {"major": 1 if Version(old).major else 2, "minor": 2, "patch": 3}[needed]
    if Version(new).release[:places] == Version(old).release[:places]:
        yield f"the interface changed since {old} so that a {needed} release is needed, and {new} is none"


def last_release(root: Path) -> tuple[str, list[str]] | None:
    """The newest tag v* and its api.txt; None where there is none."""
    tag = _output(["git", "describe", "--tags", "--abbrev=0", "--match", "v*"], root)
    recorded = tag and _output(["git", "show", f"{tag.strip()}:docs/api.txt"], root)
    return (tag.strip().removeprefix("v"), recorded.splitlines()) if tag and recorded else None


def _output(command: list[str], folder: Path) -> str | None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def _problem(command: list[str | Path], folder: Path, **settings: str) -> str | None:
    """What a command said if it failed."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    } | settings
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return None if done.returncode == 0 else f"{' '.join(map(str, command))}:\n{done.stdout[-2000:]}"


def check_build(root: Path, folder: Path) -> Iterator[str]:
    """Problems of sdist and wheel, which lie in the folder afterwards."""
    built: list[Path] = []
    for place in ("first", "second"):
        sources = folder / place
        shutil.copytree(root, sources, ignore=wheels.LEFT_OUT)
        out = folder if place == "first" else folder / "again"
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "build",
            "--no-isolation",
            "--outdir",
            out,
            sources,
        ]
        if problem := _problem(command, folder, SOURCE_DATE_EPOCH=wheels.EPOCH):
            yield problem
            return
        built += out.glob("*.whl")
    first, second = (hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in built)
    print(f"    {built[0].name}: {built[0].stat().st_size / 2**20:.2f} MiB, sha256 {first}")
    if first != second:
        yield "two builds of the wheel differ"
    files = [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]
    if problem := _problem([sys.executable, "-m", "twine", "check", "--strict", *files], folder):
        yield problem


def check_native(pure: Path, folder: Path) -> Iterator[str]:
    """Problems of the wheel with native code, which lies in the folder afterwards."""
    try:
        contents = []
        for place in ("native", "native-again"):
            native.build(native.units_of(ROOT), native.X86_64, folder / place)
            contents.append({one.name: one.read_bytes() for one in (folder / place).iterdir()})
        if contents[0] != contents[1]:
            yield "two builds of the native code differ"
        wheel = wheels.finish(pure, folder / "native", native.X86_64, folder)[-1]
        print(f"    {wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB")
        yield from wheels.problems_of(wheel, native.X86_64)
    except native.PrebuildError as error:
        yield str(error)


def check_python(wheel: Path, program: str, folder: Path, *, reuse: bool) -> Iterator[str]:
    """Problems of the wheel in a fresh environment of one Python."""
    if problem := _problem([program, "-m", "venv", folder], folder.parent):
        yield problem
        return
    python = folder / "bin" / "python"
    install: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if reuse:
        install += ["--no-deps", "--no-index"]
        place = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        folders = [one for one in sys.path if Path(one).name in {"site-packages", "dist-packages"}]
        (Path(place) / "dependencies.pth").write_text("\n".join(folders) + "\n", encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    (folder / "example.py").write_text(
        example[1] if example else "raise SystemExit('no example')", encoding="utf-8"
    )
    commands: tuple[list[str | Path], ...] = (
        [*install, wheel],
        [python, "example.py"],
        [folder / "bin" / "kernels-hub", "doctor"],
    )
    for command in commands:
        if problem := _problem(command, folder):
            yield problem
            return


def check_hints(environment: Path, folder: Path) -> Iterator[str]:
    """Faults that pyright finds in the README's examples, with the library as it is installed in the environment."""
    folder.mkdir()
    tool = folder / "environment"
    (folder / "pyrightconfig.json").write_text('{"include": ["README.py"]}', encoding="utf-8")
    (folder / "README.py").write_text("\n".join(python_blocks(ROOT / "README.md")), encoding="utf-8")
    python = str(environment / "bin")  # whose packages pyright looks at
    commands: tuple[list[str | Path], ...] = (
        [sys.executable, "-m", "venv", tool],
        [tool / "bin" / "python", "-m", "pip", "install", "--quiet", "pyright[nodejs]"],
        [tool / "bin" / "pyright"],
    )
    for command in commands:
        if problem := _problem(command, folder, PATH=os.pathsep.join([python, os.environ["PATH"]])):
            yield problem
            return


def main() -> None:
    """Run every check and list the problems."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--reuse", action="store_true", help="install nothing but the wheel, for this Python alone"
    )
    options = parser.parse_args()
    from kernels_hub.version import __version__

    problems = 0

    def told(name: str, check: Callable[[], Iterator[str]]) -> None:
        nonlocal problems
        print(f"== {name}", flush=True)
        for problem in check():
            problems += 1
            print(f"    {problem}", flush=True)

    with tempfile.TemporaryDirectory(prefix="kernels_hub-release-") as name:
        folder = Path(name)
        told("version", lambda: check_version(ROOT, __version__))
        told("interface", lambda: check_interface(__version__, last_release(ROOT)))
        told("build", lambda: check_build(ROOT, folder))
        pure = next(folder.glob("*-none-any.whl"), None)
        if pure is not None and platform.machine() == native.X86_64.machine and sys.platform == "linux":
            told("native", lambda: check_native(pure, folder))
        tried: Path | None = None
        for version in PYTHONS:
            own = version == f"{sys.version_info.major}.{sys.version_info.minor}"
            program = sys.executable if own else shutil.which(f"python{version}")
            if program and _output([program, "--version"], ROOT) is None:  # a name that stands for nothing
                program = None
            wheel = next(folder.glob("*-manylinux*.whl"), pure)
            if program is None or wheel is None or (options.reuse and not own):
                print(
                    f"== python{version}: not tried ({'no wheel' if wheel is None else 'not here, or left out'})"
                )
                continue
            tried = folder / f"python{version}"
            told(f"python{version}", partial(check_python, wheel, program, tried, reuse=options.reuse))
        if tried is not None and not options.reuse:
            told("hints", partial(check_hints, tried, folder / "hints"))
    print(f"{problems} problems" if problems else "ready to be released")
    sys.exit(problems > 0)


if __name__ == "__main__":
    main()
