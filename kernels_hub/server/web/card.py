"""README.md as HTML: CommonMark and tables, with raw HTML shown as text and links checked.

Images from elsewhere are not loaded (they would tell a third party who reads what): they become
links. Links inside the repository lead to its pages.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.common.utils import unescapeAll
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup, escape

from kernels_hub.server.web.source import highlight_block

CARD_LIMIT = 128 * 1024
"""Characters of a card that are rendered; a longer one is shown as text."""

_SCHEMES = frozenset({"http", "https", "mailto"})
_NESTING = 20
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CardPlace:
    """Where a card's relative links lead."""

    pages: str
    """Address before a file's path: its page."""
    pictures: str
    """Address before a picture's path: the picture, as a browser shows it."""


def without_front_matter(text: str) -> str:
    """The card without the YAML at its top."""
    text = text.replace("\r\n", "\n").removeprefix("\ufeff")
    match = _FRONT_MATTER.match(text)
    return text if match is None else text[match.end() :]


@lru_cache(maxsize=16)
def render_card(text: str, place: CardPlace) -> Markup:
    """The card's HTML, safe to put into a page."""
    body = without_front_matter(text)
    if len(body) > CARD_LIMIT:
        return Markup('<pre class="plain">{}</pre>').format(body[:CARD_LIMIT])
    tokens = _MARKDOWN.parse(body)
    _rewrite(tokens, place)
    # markdown-it escapes text and attributes; raw HTML is off, so it is text.
    return Markup(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}))  # noqa: S704


def _rewrite(tokens: Sequence[Token], place: CardPlace) -> None:
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            # The page has its own h1.
            token.tag = f"h{min(int(token.tag[1]) + 1, 6)}"
        if token.type in ("th_open", "td_open") and (style := token.attrs.pop("style", None)):
            # The policy of the pages allows no styles but the sheet's.
            token.attrSet("class", str(style).removeprefix("text-align:"))
        if token.type == "table_open":
            # It scrolls to the side: with keys, too.
            token.attrSet("tabindex", "0")
        if token.type == "link_open":
            _rewrite_link(token, place)
        if token.type == "image":
            _rewrite_image(token, place)
        if token.children:
            _rewrite(token.children, place)


def _rewrite_link(token: Token, place: CardPlace) -> None:
    target = _resolve(str(token.attrGet("href") or ""), place.pages)
    if target is None:
        token.attrs.pop("href", None)
        return
    token.attrSet("href", target)
    if urlsplit(target).netloc:
        token.attrSet("rel", "nofollow noopener noreferrer")


def _rewrite_image(token: Token, place: CardPlace) -> None:
    address = str(token.attrGet("src") or "")
    target = _resolve(address, place.pictures)
    outside = target is None or bool(urlsplit(target).netloc)
    label = "".join(child.content for child in token.children or ()) or "image"
    if not outside and target is not None:
        token.attrSet("src", target)
        token.attrSet("loading", "lazy")
        return
    token.type, token.children = "html_inline", None
    if target is None:
        token.content = str(escape(label))
    else:
        token.content = str(
            Markup('<a href="{}" rel="nofollow noopener noreferrer" class="image">{}</a>').format(
                target, label
            )
        )


def _resolve(address: str, base: str) -> str | None:
    """Where a link leads: an allowed scheme, or a file of the repository; None for anything else."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return None
    if parts.scheme or parts.netloc or address.startswith(("//", "\\")):
        return address if parts.scheme.lower() in _SCHEMES else None
    if not parts.path:
        return address if address.startswith("#") else None
    path = posixpath.normpath("/" + unquote(parts.path)).lstrip("/")
    if not path or "\\" in path:
        return None
    fragment = f"#{quote(unquote(parts.fragment))}" if parts.fragment else ""
    return f"{base}/{quote(path)}{fragment}"


def _code(
    _renderer: RendererHTML, tokens: Sequence[Token], index: int, _options: OptionsDict, _env: EnvType
) -> str:
    """A block of code: it scrolls to the side, with keys too, and can be copied."""
    token = tokens[index]
    language = unescapeAll(token.info) if token.type == "fence" else ""
    return str(
        Markup(
            '<div class="copied" data-copy="this code"><pre tabindex="0"><code>{}</code></pre></div>\n'
        ).format(highlight_block(token.content, language))
    )


_MARKDOWN = MarkdownIt("commonmark", {"html": False, "linkify": False, "maxNesting": _NESTING}).enable(
    ["table", "strikethrough"]
)
for _rule in ("fence", "code_block"):
    _MARKDOWN.add_render_rule(_rule, _code)
