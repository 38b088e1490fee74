"""Each escaped type does what it says, for any text."""

from __future__ import annotations

import ast
import json
import pickle
import tomllib
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from kernels_hub.errors import HubError, MetadataError, RepositoryNotFoundError
from kernels_hub.escaping import (
    LONGEST,
    CommentText,
    DocstringText,
    HtmlText,
    Identifier,
    MarkdownText,
    TerminalText,
    code_block,
    code_span,
    json_text,
    markdown_table,
    python_string,
    terminal_lines,
    toml_string,
    yaml_text,
)
from tests.fuzz.mutations import HOSTILE_TEXTS

ANY = st.one_of(
    st.text(st.characters()),
    st.text(st.sampled_from("\n\r\\?/*'\"`|<>&#_-=~[]()!:@$\0\x1b\x85\u2028\u202e{} ab1.")),
    st.sampled_from(HOSTILE_TEXTS),
    st.lists(st.sampled_from(HOSTILE_TEXTS), max_size=4).map("".join),
)
MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


class Page(HTMLParser):
    """The text of a page, and its tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.tags = "", []
        self.feed(text)
        self.close()

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, attrs))


@given(ANY)
def test_comments(text: str):
    found = CommentText(text)
    assert found.isprintable() and len(found) <= LONGEST
    assert not any(one in found for one in ("\\", "*/", "/*", "??"))
    assert CommentText(found) == found
    docstring = DocstringText(text)
    assert DocstringText(docstring) == docstring
    tree = ast.parse(f'"""{docstring}."""\nx = 1  # {found}\ny = 2\n')
    assert len(tree.body) == 3 and ast.get_docstring(tree, clean=False) == f"{docstring}."


@given(ANY)
def test_identifiers(text: str):
    found = Identifier(text)
    assert f"a{found}".isidentifier() and found.isascii() and 0 < len(found) <= 64
    assert Identifier(found) == found


@given(ANY)
def test_terminals(text: str):
    assert TerminalText(text).isprintable()
    assert TerminalText(TerminalText(text)) == TerminalText(text)
    assert all(line.isprintable() for line in terminal_lines(text).split("\n"))
    if text.isprintable():
        assert TerminalText(text) == text


@given(ANY)
def test_html(text: str):
    found = HtmlText(text)
    assert HtmlText(found) is not None and HtmlText(found) == found
    shown = "".join(one if one.isprintable() else "\ufffd" for one in text)
    page = Page(f"<p title=\"{found}\" class='{found}'>{found}</p>")
    assert page.tags == [("p", [("title", shown), ("class", shown)])]
    assert page.text == shown
    (root,) = ElementTree.fromstring(f'<svg><g a="{found}">{found}</g></svg>')
    assert (root.get("a"), root.text or "") == (shown, shown)


@given(ANY, ANY)
def test_markdown(text: str, other: str):
    shown = Page(MARKDOWN.render(f"# {MarkdownText(text)}\n\nA {MarkdownText(text)} b {code_span(other)}.\n"))
    assert {tag for tag, _ in shown.tags} <= {"h1", "p", "code"}
    assert not any(attrs for _, attrs in shown.tags)
    table = Page(MARKDOWN.render(markdown_table(("one", text), [(text, code_span(other)), (other, text)])))
    tags = [tag for tag, _ in table.tags]
    assert (tags.count("tr"), tags.count("th"), tags.count("td")) == (3, 2, 4)
    assert set(tags) <= {"table", "thead", "tbody", "tr", "th", "td", "code"}


@given(ANY)
def test_code_blocks_of_markdown(text: str):
    page = Page(MARKDOWN.render(f"Before.\n\n{code_block(text, 'python')}\n\nAfter.\n"))
    assert [tag for tag, _ in page.tags] == ["p", "pre", "code", "p"]


@given(ANY)
def test_literals(text: str):
    assert ast.literal_eval(python_string(text)) == text
    assert json.loads(json_text({"a": [text]}, indent=2)) == {"a": [text]}
    assert json_text(text).isprintable()
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if whole == text:
        assert tomllib.loads(f"a = {toml_string(text)}") == {"a": text}
        assert yaml.safe_load(f"a: {yaml_text(text)}") == {"a": text}
    assert toml_string(text).isprintable() and yaml_text(text).isprintable()


@pytest.mark.parametrize(
    "text", ["LlamaMLP (mlp of Llama), compiled to 3 kernels", "a-b 1.5", "max(x, 0)^2: it"]
)
def test_what_is_harmless_stays_as_it_is(text: str):
    assert CommentText(text) == DocstringText(text) == TerminalText(text) == MarkdownText(text) == text
    assert code_span(text) == f"`{text}`"


@given(ANY)
def test_messages_of_errors(text: str):
    for kind in (MetadataError, RepositoryNotFoundError, HubError):
        error = kind(f"{text} is wrong\n\tin two lines")
        assert all(line.isprintable() for line in str(error).replace("\t", " ").split("\n"))
        assert error.args == (f"{text} is wrong\n\tin two lines",)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
