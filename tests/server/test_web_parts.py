"""The parts of the pages that need no server: cards, source, diffs. Random input against simple oracles."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_hub.server.web.card import CARD_LIMIT, CardPlace, render_card
from kernels_hub.server.web.diff import LINES_LIMIT, TreeChange, compare_texts, compare_trees, side_by_side
from kernels_hub.server.web.pages import Pages, with_query
from kernels_hub.server.web.source import HIGHLIGHT_LIMIT, decode_text, highlight_block, highlight_file
from tests.server.harmless_page import Page

PLACE = CardPlace("/a/b/blob/v1", "/a/b/picture/v1")
lines = st.lists(st.sampled_from(["one", "two", "three", "", "four", "  five"]), max_size=40)
hostile = st.lists(
    st.sampled_from(
        ["[a](", ")", "![", "](", "<", ">", '"', "'", "javascript:", "JAVASCRIPT&#58;", "data:text/html,", "x", "\n", "\n\n", "`",
         "```", "| a |\n|-|\n", "<script>", "</pre>", "onerror=", "//evil", "\\", "&#x6A;", "#", "- ", "> ", "http://e/", "\t", "\u202e"]
    ),
    max_size=30,
).map("".join)  # fmt: skip


@given(lines, lines)
def test_a_diff_turns_the_old_text_into_the_new_one(old, new):
    rows = compare_texts("\n".join(old), "\n".join(new))
    before = dict(enumerate("\n".join(old).removesuffix("\n").split("\n") if "\n".join(old) else [], 1))
    after = dict(enumerate("\n".join(new).removesuffix("\n").split("\n") if "\n".join(new) else [], 1))
    shown_old = {row.old: row.text for row in rows if row.old}
    shown_new = {row.new: row.text for row in rows if row.new}
    assert shown_old.items() <= before.items()
    assert shown_new.items() <= after.items()
    # What is not shown is equal, in order; with what is shown, that makes the new text.
    hidden_old = [text for number, text in before.items() if number not in shown_old]
    hidden_new = [text for number, text in after.items() if number not in shown_new]
    assert hidden_old == hidden_new
    kept = [row for row in rows if row.kind == "same"]
    assert all(before[row.old] == after[row.new] for row in kept)
    removed = {row.old for row in rows if row.kind == "removed"}
    added = {row.new for row in rows if row.kind == "added"}
    assert [text for number, text in before.items() if number not in removed] == [
        text for number, text in after.items() if number not in added
    ]


@given(lines, lines)
def test_two_columns_hold_what_one_column_holds(old, new):
    rows = compare_texts("\n".join(old), "\n".join(new))
    pairs = list(side_by_side(rows))
    left = [pair.old for pair in pairs if pair.old and pair.old.kind != "added"]
    right = [pair.new for pair in pairs if pair.new and pair.new.kind != "removed"]
    assert left == [row for row in rows if row.kind != "added"]
    assert right == [row for row in rows if row.kind != "removed"]


def test_a_hunk_names_its_lines():
    rows = compare_texts(
        "\n".join(map(str, range(20))), "\n".join(map(str, [*range(10), "new", *range(10, 20)]))
    )
    assert [(row.kind, row.old, row.new, row.text) for row in rows] == [
        ("gap", None, None, "@@ -8,6 +8,7 @@"),
        ("same", 8, 8, "7"),
        ("same", 9, 9, "8"),
        ("same", 10, 10, "9"),
        ("added", None, 11, "new"),
        ("same", 11, 12, "10"),
        ("same", 12, 13, "11"),
        ("same", 13, 14, "12"),
    ]


def test_what_is_too_much_to_compare_is_not():
    assert compare_texts("x\n" * (LINES_LIMIT + 1), "") is None
    first, second = ("\n".join(f"{side}{i}" for i in range(5000)) for side in "ab")
    assert compare_texts(first, second) is None
    assert len(compare_texts(first, first + "\nmore")) == 5


def test_trees():
    assert compare_trees({"a": "1", "b": "1", "c": "1"}, {"b": "2", "c": "1", "d": "1"}) == [
        TreeChange("a", "removed"),
        TreeChange("b", "changed"),
        TreeChange("d", "added"),
    ]


@given(hostile)
@settings(max_examples=300)
def test_no_card_makes_anything_that_runs_or_loads_from_elsewhere(text):
    page = Page(str(render_card(text, PLACE)))
    assert all(image.startswith("/a/b/picture/v1/") for image in page.images)


@pytest.mark.parametrize(
    "markdown, expected",
    [
        ("[a](x/../y.py#L3)", "/a/b/blob/v1/y.py#L3"),
        ("[a](/y.py)", "/a/b/blob/v1/y.py"),
        ("[a](../../../y)", "/a/b/blob/v1/y"),
        ("[a](<a b.md>)", "/a/b/blob/v1/a%20b.md"),
        ("[a](#part)", "#part"),
        ("[a](https://x.y/z?q=1)", "https://x.y/z?q=1"),
        ("[a](mailto:a@b.c)", "mailto:a@b.c"),
        ("[a](ftp://x)", None),
        ("[a](//x.y)", None),
    ],
)
def test_where_links_lead(markdown, expected):
    assert Page(str(render_card(markdown, PLACE))).links == ([expected] if expected else [])


def test_images_from_elsewhere_become_links():
    page = Page(
        str(
            render_card(
                "![logo](https://x.y/l.png) ![own](img/l.png) ![data](data:image/png;base64,AA)", PLACE
            )
        )
    )
    assert page.images == ["/a/b/picture/v1/img/l.png"]
    assert page.links == ["https://x.y/l.png"]
    assert page.text == "logo data"


def test_a_long_card_is_shown_as_text():
    card = str(render_card("*a* " * CARD_LIMIT, PLACE))
    assert card.startswith('<pre class="plain">*a* *a*') and len(card) < 2 * CARD_LIMIT


@given(
    st.text(alphabet="ab<>&\"'\n \tdef(): #é\u2028\x0b", max_size=300),
    st.sampled_from(["x.py", "x.cu", "x.json", "x.txt", "x"]),
)
def test_highlighted_lines_are_the_lines_of_the_file(text, name):
    shown = [html.unescape(re.sub(r"<[^>]*>", "", str(line))) for line in highlight_file(name, text)]
    assert shown == text.removesuffix("\n").split("\n")


def test_python_is_highlighted_and_long_files_are_not():
    assert '<span class="k">def</span>' in str(highlight_file("x.py", "def f(): pass\n")[0])
    assert '<span class="k">def</span>' in str(highlight_block("def f(): pass", "py"))
    assert "span" not in str(highlight_block("def f(): pass", "unknown"))
    assert "span" not in "".join(
        map(str, highlight_file("x.py", "def f(): pass\n" * (HIGHLIGHT_LIMIT // 10)))
    )


@pytest.mark.parametrize(
    "content, text",
    [
        (b"a\r\nb", "a\nb"),
        (b"\xef\xbb\xbfa", "a"),
        (b"a\0b", None),
        (b"\xff\xfe", None),
        ("é".encode(), "é"),
        (b"", ""),
    ],
)
def test_what_is_text(content, text):
    assert decode_text(content) == text


def test_templates_refuse_what_is_not_given():
    with pytest.raises(Exception, match="'heading' is undefined"):
        Pages()._environment.get_template("refused.html").render(
            endpoint="http://x", user=None, form_key="", message=""
        )


def test_queries():
    assert with_query("/x", q="a b&c", page=None, empty="") == "/x?q=a+b%26c"
    assert with_query("/x") == "/x"


@pytest.mark.parametrize(
    "source",
    [
        "<script>1</script>", "<iframe>", "<p onclick='x'>", "<a href='javascript:x'>", "<img src='https://x.y/z'>",
        "<img src='//x.y/z'>", "<a href='//x.y'>", "<p style='x'>", "<svg>", "<form action='data:x'>",
    ],
)  # fmt: skip
def test_the_check_itself_finds_what_runs_or_loads(source):
    with pytest.raises(AssertionError):
        Page(source)
