"""Type-check everything with mypy --strict, over a tree of symlinks in build/types/.

mypy reads neither setuptools' `package-dir` nor `kernel.toml`. So the tree lays things out as an
installation does, and each layer repository as the loader does:

    build/types/kernels_hub/…             links to kernels_hub/…
    build/types/kernels_hub/compiler      link to compiler/; mappings likewise
    build/types/variants/rotary_cpu/…     links to that variant's files, laid over one another
    build/types/benchmarks, examples, tools
    build/types/pages/own_layer.py        the Python blocks of README.md and of pages in docs/, one file each

So the public hints are checked as users meet them. Paths in mypy's output are those of the real files, but for
pages. Arguments are passed on to mypy.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "build" / "types"

INSTALLED = ("mappings", "compiler", "layers/__init__.py")
"""What pyproject.toml's `package-dir` puts into the package. Of layers/ that is only the package
itself: the repositories in it are packages of their own."""

PROGRAMS = ("benchmarks", "examples", "tools")
"""Top-level folders of scripts, checked beside the package."""

NOT_TYPED = frozenset(
    {
        "compile_and_publish",
        "compiler",
        "extending_the_compiler",
        "feature_table",
        "running_graphs",
        "ten_minutes",
        "weights",
    }
)
"""Pages whose examples index modules (a Tensor or a Module, to PyTorch's hints) or use one name for several types."""

_BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def make_tree(root: Path, tree: Path) -> list[str]:
    """Build the tree afresh; returns the names of the packages at its top, to be given to mypy."""
    if tree.exists():
        shutil.rmtree(tree)
    package = tree / "kernels_hub"
    package.mkdir(parents=True)
    for entry in sorted((root / "kernels_hub").iterdir()):
        _link(package / entry.name, entry)
    for name in INSTALLED:
        _link(package / name, root / name)
    names = ["kernels_hub", "variants"]
    (tree / "variants").mkdir()
    (tree / "variants" / "__init__.py").touch()
    for name, files in _variants(root / "layers"):
        for inside, file in files.items():
            _link(tree / "variants" / name / inside, file)
    for name in PROGRAMS:
        if any((root / name).glob("*.py")):
            _link(tree / name, root / name)
            names.append(name)
    pages = {page: python_blocks(page) for page in _pages(root)}
    if any(pages.values()):
        names.append("pages")
        (tree / "pages").mkdir()
        (tree / "pages" / "__init__.py").touch()
    for page, blocks in pages.items():
        if blocks:
            (tree / "pages" / f"{page.stem}.py").write_text("\n".join(blocks), encoding="utf-8")
    return names


def python_blocks(page: Path) -> list[str]:
    """The Python blocks of a page, in its order."""
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


def _pages(root: Path) -> Iterator[Path]:
    for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        if page.exists() and page.stem not in NOT_TYPED:
            yield page


def _variants(layers: Path) -> Iterator[tuple[str, dict[Path, Path]]]:
    """Package name -> its files, once for backends that consist of the same folders (cuda, rocm)."""
    for manifest in sorted(layers.glob("*/kernel.toml")):
        seen: set[tuple[str, ...]] = set()
        for backend, table in tomllib.loads(manifest.read_text(encoding="utf-8"))["backends"].items():
            sources = tuple(table["sources"])
            if sources in seen:
                continue
            seen.add(sources)
            folders = [(manifest.parent / source).resolve() for source in sources]
            files = {file.relative_to(folder): file for folder in folders for file in folder.rglob("*.py")}
            files |= {Path(name): layers.parent / "kernels_hub" / name for name in table.get("shared", ())}
            yield f"{manifest.parent.name}_{backend}".replace("-", "_"), files


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent))


def check(arguments: list[str]) -> int:
    """Run mypy over the tree; its exit status."""
    names = make_tree(ROOT, TREE)
    config = ROOT / "pyproject.toml"
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(config),
        "--cache-dir",
        str(ROOT / ".mypy_cache"),
    ]
    for name in names:
        command += ["-p", name]
    # Without a cache mypy takes over a minute on one core. A release that has no workers takes no notice of this.
    environment = {"MYPY_NUM_WORKERS": str(min(4, os.cpu_count() or 1)), **os.environ}
    if sys.stdout.isatty():
        environment["MYPY_FORCE_COLOR"] = "1"
    done = subprocess.run(
        [*command, *arguments], cwd=TREE, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    # A file that several variants share is reported once.
    for line in dict.fromkeys(map(_with_real_path, done.stdout.splitlines())):
        print(line)
    return done.returncode


def _with_real_path(line: str) -> str:
    path, colon, rest = line.partition(":")
    file = TREE / path
    if not colon or not file.is_file():
        return line
    return f"{file.resolve().relative_to(ROOT)}:{rest}"


if __name__ == "__main__":
    sys.exit(check(sys.argv[1:]))
