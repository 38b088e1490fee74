"""A page taken apart, for the tests; taking it apart fails where something in it could run or load."""

from __future__ import annotations

from html.parser import HTMLParser
from urllib.parse import urlsplit

from kernels_hub.server.web.pages import SCRIPT


class Page(HTMLParser):
    """A page taken apart; refuses what could run or load anything, but for the one script of the Hub's own."""

    ALLOWED = frozenset(
        "html head meta title link body a header div form input main nav h1 h2 h3 h4 h5 h6 p span ul ol li footer code "
        "pre section aside article dl dt dd table thead tbody tr th td colgroup col select option label button img time "
        "strong em blockquote hr br s details summary script".split()
    )

    def __init__(self, source: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.images: list[str] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.blocks: list[str] = []
        """The text of each block of code."""
        self._in_script = self._in_block = False
        self.feed(source)
        whole = source.lower().startswith("<!doctype html>")
        assert self.scripts == ([SCRIPT] if whole else [])
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.ALLOWED, f"<{tag}>"
        self._in_script = tag == "script"
        if tag == "pre":
            self._in_block = True
            self.blocks.append("")
        assert tag != "script" or not attrs, f"<script {attrs}>"
        for name, value in attrs:
            assert not name.startswith("on") and name not in ("style", "srcdoc", "formaction"), name
            if name in ("href", "src", "action"):
                parts = urlsplit(value or "")
                assert parts.scheme in ("", "http", "https", "mailto"), value
                assert parts.scheme or not (value or "").startswith(("//", "\\", "/\\")), value
                (self.images if name == "src" else self.links).append(value or "")
                assert tag in ("a", "form") or value.startswith("/"), f"{tag} loads {value}"

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False
        self._in_block = self._in_block and tag != "pre"

    def handle_data(self, data: str) -> None:
        if self._in_block:
            self.blocks[-1] += data
        (self.scripts if self._in_script else self.words).append(data)
