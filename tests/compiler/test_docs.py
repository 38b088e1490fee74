"""The compiler's pages do what they say: every block is run as it is printed, and prints what the page prints.

On a page, a ```python block runs after those before it, in one namespace; a ```text block behind it is all that it
prints. A ```console block holds commands after `$`, each followed by what it prints. `…` stands for anything on
one line, and, where it is a line of its own, for any number of lines.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels_hub.cli import main
from kernels_hub.compiler.autodiff.rules import DERIVATIVES
from kernels_hub.compiler.dynamo.statistics import statistics
from kernels_hub.compiler.importers import onnx_node, onnx_ops
from kernels_hub.compiler.ir.ops import OPS
from tests.combinations import all_but

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {
    "compiler.md": 7, "extending_the_compiler.md": 7, "running_graphs.md": 7, "searching.md": 7, "torch_compile.md": 2,
}  # fmt: skip
"""Page -> how many outputs it shows, at least."""
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    found = [Block(one[1], one[2], page.count("\n", 0, one.start(2)) + 1) for one in FENCE.finditer(page)]
    assert page.count("```") == 2 * len(found), "a fence that is indented, or without a language, is not run"
    return found


def says(expected: str, actual: str) -> bool:
    """Whether a page that says `expected` means `actual`; spaces at ends of lines are nothing."""
    pattern = "".join(
        r"(?:.*\n)*" if line == "…" else re.escape(line.rstrip()).replace("…", ".*") + r"\n"
        for line in expected.splitlines()
    )
    return re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in actual.splitlines())) is not None


def run_command(command: str) -> str:
    program, *arguments = shlex.split(command)
    assert program == "kernels-hub"
    printed = StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit):
        main(arguments)
    return printed.getvalue()


def run_page(name: str, page: str) -> int:
    """Run all blocks; the number of those whose output was compared."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    printed, compared = "", 0

    def compare(expected: str, actual: str, line: int) -> None:
        nonlocal compared
        compared += 1
        assert says(expected, actual), f"{name}:{line} prints\n{actual}\nwhere the page says\n{expected}"

    def nothing_is_left(line: int) -> None:
        assert not printed, f"{name}:{line}: the block before prints what the page does not show:\n{printed}"

    for block in blocks(page):
        if block.kind == "text":
            compare(block.text, printed, block.line)
            printed = ""
            continue
        nothing_is_left(block.line)
        if block.kind == "console":
            for shown in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                command, _, expected = shown.partition("\n")
                compare(expected, run_command(command), block.line)
        else:
            assert block.kind == "python", f"{name}:{block.line}: nothing runs {block.kind}"
            output = StringIO()
            with redirect_stdout(output):
                exec(compile("\n" * (block.line - 1) + block.text, str(DOCS / name), "exec"), namespace)
            printed = output.getvalue()
    nothing_is_left(page.count("\n"))
    return compared


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder, no graphs traced before; ops and importers that a page adds are gone afterwards."""
    monkeypatch.chdir(tmp_path)
    statistics.clear()
    torch._dynamo.reset()  # what Dynamo learned of the sizes of a Sequential elsewhere
    onnx_ops.enter_domains(onnx_ops.DOMAINS)  # every importer that there is
    known = {op: list(versions) for op, versions in onnx_node._IMPORTERS.items()}
    monkeypatch.setattr(onnx_node, "_IMPORTERS", known)
    tables: tuple[dict[str, Any], ...] = (OPS, DERIVATIVES)
    rows = [dict(table) for table in tables]
    yield
    for table, known_rows in zip(tables, rows, strict=True):
        table.clear()
        table.update(known_rows)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch.export's own
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", all_but(PAGES, "searching.md"))
def test_a_page_does_what_it_says(name: str):
    assert run_page(name, (DOCS / name).read_text(encoding="utf-8")) >= PAGES[name]


def the_block(page: list[Block], part: str) -> str:
    (block,) = (block for block in page if block.kind == "python" and part in block.text)
    return f"\n{block.text}"


AS_PLACED = """
import sys
from kernels_hub import compiler
assert compiler.__file__.startswith(sys.argv[1]), compiler.__file__
from kernels_hub.compiler import Graph, import_onnx, rewrite, verify
from kernels_hub.compiler.ir.ops import FAMILIES, OPS

assert OPS["erfc"].doc and sum(len(family.ROWS) for family in FAMILIES) == len(OPS)
graph = Graph("case")
graph.output("y", 1.0 - graph.input("x", ("n",)).erf())
rewritten = rewrite(graph)
assert rewritten.fired["simplify"] == {"one_minus_erf": 1}, rewritten
assert [node.op.name for node in verify(rewritten.graph).nodes] == ["input", "erfc"]
assert rewrite(import_onnx("quick.onnx")).total["gelu_quick"] == 1

from kernels_hub.cli import main
main(["onnx", "explain-rule", "quick.onnx", "one_minus_erf"])
"""


def test_the_same_rows_in_the_files_that_the_page_names(tmp_path: Path):
    """The op, the rule and the importer, written into a copy of the compiler's sources, where the page says."""
    page = blocks((DOCS / "extending_the_compiler.md").read_text(encoding="utf-8"))
    (tmp_path / "kernels_hub").mkdir()
    for entry in (DOCS.parent / "kernels_hub").iterdir():
        if entry.name != "compiler":
            (tmp_path / "kernels_hub" / entry.name).symlink_to(entry)
    sources = tmp_path / "kernels_hub" / "compiler"
    shutil.copytree(DOCS.parent / "compiler", sources, ignore=shutil.ignore_patterns("__pycache__"))
    for file, text in {
        "ir/ops/pointwise.py": the_block(page, "ERFC = ") + "ROWS = (*ROWS, ERFC)\n",
        "rewrite/algebra.py": the_block(page, "ONE_MINUS_ERF = ") + "ALGEBRA = (*ALGEBRA, ONE_MINUS_ERF)\n",
        "importers/onnx_ops/elementwise.py": the_block(page, "@onnx_op("),
    }.items():
        with (sources / file).open("a", encoding="utf-8") as opened:
            opened.write(text)
    (tmp_path / "use.py").write_text(the_block(page, "onnx.save(") + AS_PLACED, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "use.py", str(sources)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("one_minus_erf (pass simplify, rounded): 1 - erf(x) -> erfc(x)\nno match")


BEFORE = "```python\nprint('a', 1)\nprint('b')\nprint('c')\n```\n"
TELLS = {
    "what it prints": ("```text\na 1\nb\nc\n```\n", True),
    "part of a line": ("```text\na …\nb\nc\n```\n", True),
    "any lines": ("```text\n…\nc\n```\n", True),
    "any lines at the end": ("```text\na 1\n…\n```\n", True),
    "no lines": ("```text\na 1\n…\nb\nc\n```\n", True),
    "another number": ("```text\na 2\nb\nc\n```\n", False),
    "a line too few": ("```text\na 1\nb\n```\n", False),
    "a line too many": ("```text\na 1\nb\nc\nd\n```\n", False),
    "a pattern that is none": ("```text\na .\nb\nc\n```\n", False),
    "lines, where a part of one may be missing": ("```text\na … c\n```\n", False),
    "the wrong end": ("```text\n…\nb\n```\n", False),
    "nothing": ("", False),
}


@pytest.mark.parametrize("told", TELLS)
def test_what_a_page_says_is_compared(told: str):
    text, agrees = TELLS[told]
    if agrees:
        assert run_page("page.md", BEFORE + text) == 1
    else:
        with pytest.raises(AssertionError, match=r"page\.md:\d+"):
            run_page("page.md", BEFORE + text)


def test_a_block_that_fails_names_its_line():
    with pytest.raises(ZeroDivisionError) as caught:
        run_page("page.md", "# Title\n\n```python\n1 / 0\n```\n")
    assert caught.traceback[-1].lineno + 1 == 4


@pytest.mark.parametrize("page", ["```python\npass\n", "  ```python\n  pass\n  ```\n", "```\npass\n```\n"])
def test_a_block_that_would_not_run_is_found(page: str):
    with pytest.raises(AssertionError, match="is not run"):
        blocks(page)
