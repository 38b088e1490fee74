"""The documentation: pages do what they say, the site builds strictly and loads nothing from elsewhere."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import kernels_hub
from kernels_hub import compiler
from kernels_hub.compiler.runtime.toolchain import find_compiler
from tests.combinations import all_but
from tests.compiler.test_docs import run_page
from tools import documentation

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

COMPARED = {
    "index.md": 1,
    "transformers_model.md": 5,
    "own_layer.md": 5,
    "training.md": 2,
    "profiling.md": 2,
    "weights.md": 0,
    "provenance.md": 5,
    "feature_table.md": 21,
    "from_hf_kernels.md": 1,
    "from_torch_compile.md": 0,
    "from_onnx_runtime.md": 2,
    "from_kyanite_and_luminal.md": 7,
}
"""Page -> how many outputs it shows."""
ELSEWHERE = {
    "compiler.md", "extending_the_compiler.md", "running_graphs.md", "searching.md", "torch_compile.md",
    # the above: tests/compiler/test_docs.py
    "compile_and_publish.md", "ten_minutes.md",  # tests/compiler/export
    "tuning.md", "hub.md",  # tests/compiler/search, tests/hub
}  # fmt: skip


@pytest.fixture
def put_back() -> Iterator[None]:
    """Levels of loggers that a page sets, and what it replaces in transformers, are as before afterwards."""
    yield
    if (adapter := sys.modules.pop("kernels_hub.transformers", None)) is not None:
        adapter.uninstall()
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "kernels_hub":
            logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.usefixtures("put_back")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch.export's own
@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    "name", all_but(COMPARED, "feature_table.md", "from_kyanite_and_luminal.md", "provenance.md")
)
def test_a_page_does_what_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNELS_HUB_JIT", "off")  # nothing goes on compiling beside the tests that follow
    assert run_page(name, (DOCS / name).read_text(encoding="utf-8")) == COMPARED[name]


def _sections(page: str) -> dict[str, str]:
    """Anchor -> the text below a heading, to the next one."""
    outside = re.sub(r"^```.*?^```$", lambda found: re.sub(r"^#", " ", found[0], flags=re.MULTILINE), page,
                     flags=re.MULTILINE | re.DOTALL)  # fmt: skip
    found = list(re.finditer(r"^#+ (.+)$", outside, re.MULTILINE))
    ends = [*(one.start() for one in found[1:]), len(outside)]
    return {
        re.sub(r"[^a-z0-9 -]", "", one[1].lower()).replace(" ", "-"): outside[one.end() : end]
        for one, end in zip(found, ends, strict=True)
    }


def test_each_row_of_the_feature_table_has_an_example_that_runs():
    page = (DOCS / "feature_table.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+) \| (.+) \|$", page, re.MULTILINE)
    rows = [(row, link) for row, link in rows if row != "shown there"]
    assert len(rows) >= 60
    assert "partly" not in page
    for row, links in rows:
        targets = re.findall(r"\]\(([a-z_]*(?:\.md)?)#([a-z0-9-]+)\)", links)
        assert targets, f"{row}: no example"
        for name, anchor in targets:
            other = name or "feature_table.md"
            assert other in {*COMPARED, *ELSEWHERE}, f"{row}: nothing runs {other}"
            sections = _sections((DOCS / other).read_text(encoding="utf-8"))
            assert anchor in sections, f"{row}: {other} has no section {anchor}; it has {', '.join(sections)}"
            assert re.search(r"^```(python|console)$", sections[anchor], re.MULTILINE), (
                f"{row}: {anchor} runs nothing"
            )


def test_every_page_with_examples_is_run_by_a_test():
    with_examples = {
        path.name for path in DOCS.glob("*.md")
        if re.search(r"^```(python|console|text)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    }  # fmt: skip
    assert with_examples == {*COMPARED, *ELSEWHERE}


def test_messages_that_are_explained_exist():
    sources = [
        re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
        for folder in ("kernels_hub", "compiler", "layers")
        for path in (ROOT / folder).rglob("*.py")
    ]
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^### `(.+)`$", page, re.MULTILINE)
    assert len(messages) >= 14
    assert [one for one in messages if not any(one in source for source in sources)] == []


def test_every_public_name_and_command_is_in_the_reference():
    from kernels_hub.cli.app import app

    pages = documentation.generated_pages()
    reference = "".join(text for path, text in pages.items() if path.startswith("reference/"))
    assert reference.count("::: ") == len(kernels_hub._PUBLIC) + len(compiler._PUBLIC)
    commands = pages["reference/commands.md"]
    names = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert {"doctor", "kernelize"} & names == {"doctor"}
    assert [name for name in names if f"## kernels-hub {name.replace('_', '-')}\n" not in commands] == []
    assert "### kernels-hub hub user" in commands and "`--dry-run`" in commands


class _Loaded(HTMLParser):
    """Addresses that a browser loads with a page; links to follow are none."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag in {"script", "img", "iframe", "source"}:
            self.addresses += [named.get("src") or named.get("srcset") or ""]
        elif tag == "link" and named.get("rel") not in {"canonical", "next", "prev"}:
            self.addresses.append(named.get("href") or "")


def loaded(html: str) -> list[str]:
    parser = _Loaded()
    parser.feed(html)
    return [one for one in parser.addresses if re.match(r"(https?:)?//", one)]


def test_what_a_page_loads_is_found():
    page = '<link rel="stylesheet" href="//fonts.example/a"><script src="https://cdn.example/b"></script>'
    assert loaded(page + '<a href="https://example.org">x</a><img src="here.svg">') == [
        "//fonts.example/a", "https://cdn.example/b",
    ]  # fmt: skip


@pytest.mark.slow
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path):
    pytest.importorskip("mkdocs", reason="needs kernels-hub[docs]")
    shutil.rmtree(documentation.TREE, ignore_errors=True)  # as in a fresh clone
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        assert loaded(page.read_text(encoding="utf-8")) == [], page
    for style in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style
    text = (tmp_path / "site" / "reference" / "kernelize.html").read_text(encoding="utf-8")
    assert "in place" in text and "free_weights" in text
