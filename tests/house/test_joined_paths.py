"""Paths from outside are joined to a folder by `kernels_hub.contained_paths` alone; every other join was read, and is listed.

A join is `folder / value`, `joinpath`, `os.path.join`, `with_name`; its value could be foreign unless it is written in
the source: a literal, or a constant of a module. The list of reviewed ones only shrinks: what is gone must leave it.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOOKED_AT = (
    "kernels_hub/hub",
    "kernels_hub/repository",
    "kernels_hub/trust",
    "compiler/runtime",
    "compiler/engines/container.py",
    "compiler/plan/file.py",
    "compiler/jit/store.py",
)
REVIEWED = Path(__file__).with_name("reviewed_joins.txt")
_JOINS = {"joinpath", "with_name", "join"}


def _is_written(node: ast.expr) -> bool:
    """Whether a value stands in the source: a literal, a CONSTANT, or text made of those."""
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            return name.isupper()
        case ast.Attribute(attr=name):
            return name.isupper()
        case ast.JoinedStr(values=parts):
            return all(
                _is_written(part.value if isinstance(part, ast.FormattedValue) else part) for part in parts
            )
        case ast.BinOp(left=left, right=right):
            return _is_written(left) and _is_written(right)
    return False


def _is_path(node: ast.expr) -> bool:
    """Whether the left side of a `/` can be a path: not where it is a number by the look of it."""
    return not isinstance(node, ast.Constant) and not (
        isinstance(node, ast.Call) and _called(node) in {"len", "sum"}
    )


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def joins(source: str) -> Iterator[tuple[str, str]]:
    """(function, the join as it stands) of every join with a value that is not written in the source."""
    scopes: list[tuple[ast.AST, str]] = [(ast.parse(source), "")]
    while scopes:
        scope, name = scopes.pop()
        stack = list(ast.iter_child_nodes(scope))
        while stack:
            node = stack.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                scopes.append((node, f"{name}.{node.name}".lstrip(".")))
                continue
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                if _is_path(node.left) and not _is_written(node.right):
                    yield name, ast.unparse(node)
            elif isinstance(node, ast.Call) and _joins_paths(node) and not all(map(_is_written, node.args)):
                yield name, ast.unparse(node)
            stack.extend(ast.iter_child_nodes(node))


def _joins_paths(node: ast.Call) -> bool:
    """Whether a call joins paths; `", ".join(…)` joins text."""
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in _JOINS:
        return False
    return node.func.attr != "join" or ast.unparse(node.func.value) == "os.path"


def found() -> Counter[str]:
    """Every join in what is looked at, as a line of the list."""
    counted: Counter[str] = Counter()
    for place in LOOKED_AT:
        path = ROOT / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for function, join in joins(file.read_text(encoding="utf-8")):
                counted[f"{file.relative_to(ROOT).as_posix()}: {function}: {join}"] += 1
    return counted


def test_every_join_was_reviewed() -> None:
    reviewed = Counter(
        line
        for line in REVIEWED.read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    )
    new, gone = found() - reviewed, reviewed - found()
    assert not new, (
        f"joined otherwise than by kernels_hub.contained_paths.inside, open_inside or replacing_inside: {sorted(new)}; "
        "where the value is not foreign, or checked before, have it reviewed"
    )
    assert not gone, f"these are gone: take them off {REVIEWED.name}, which only shrinks: {sorted(gone)}"


@pytest.mark.parametrize(
    "source",
    [
        "def f(row, folder):\n    return folder / row['blob']",
        "def f(row, folder):\n    return (folder / 'blobs').joinpath(row.blob)",
        "def f(row, folder):\n    return os.path.join(folder, row.blob)",
        "def f(row, folder):\n    return folder / f'{row.commit}.json'",
        "class A:\n    def f(self, name):\n        return self.path.with_name(name)",
    ],
)
def test_a_join_is_seen(source: str) -> None:
    assert len(list(joins(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "x = folder / 'build' / FILE",
        "x = ', '.join(names)",
        "x = folder / f'{METADATA_FILE}.ed25519'",
        "x = sum(a) / n",
    ],
)
def test_what_is_written_in_the_source_is_none(source: str) -> None:
    assert not list(joins(source))
