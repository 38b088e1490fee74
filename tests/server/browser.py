"""A real browser for the tests of the Hub's pages: Chromium of the system, driven by Playwright, checked by axe-core."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator, Page, Request

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(
    CHROMIUM is None or find_spec("playwright") is None,
    reason="needs chromium (apt-get install chromium) and playwright (pip install playwright)",
)
WIDTHS = {1280: 900, 400: 800}
"""Width -> height of the windows, in CSS pixels."""
SCHEMES = ("light", "dark")
_SERIOUS = ("serious", "critical")


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-quic"]
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def window(
    browser: Browser, endpoint: str, width: int = 1280, scheme: str = "light", *, expected: str = ""
) -> Iterator[Page]:
    """A page of a session of its own; what it says on the console, or cannot load, fails the test.

    expected: what stands in an error that is meant to be.
    """
    context: BrowserContext = browser.new_context(
        base_url=endpoint, viewport={"width": width, "height": WIDTHS[width]}, color_scheme=scheme
    )
    problems: list[str] = []
    try:
        context.grant_permissions(["clipboard-read", "clipboard-write"], origin=endpoint)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("requestfailed", lambda request: problems.extend(_failure(request)))
        yield page
    finally:
        context.close()
    unexpected = [text for text in problems if not expected or expected not in text]
    assert not unexpected, unexpected


def _failure(request: Request) -> list[str]:
    # What a page still loads when it is left, its icon for one, is broken off by the browser itself.
    return [] if request.failure == "net::ERR_ABORTED" else [f"{request.url} {request.failure}"]


def follow(link: Locator) -> None:
    """Click on a link, or a button that sends a form, and wait until the page behind it is there.

    A click alone does not wait: what is read next may be the old page, and going elsewhere breaks off its answer.
    """
    with link.page.expect_navigation():
        link.click()


@cache
def _axe() -> str:
    return (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")


def serious(page: Page) -> list[str]:
    """What axe-core finds on a page that is serious or critical: rule, why, and the elements."""
    page.evaluate(_axe())
    found = page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
    return [
        f"{item['id']} ({item['impact']}): {item['help']}: {json.dumps([n['html'][:200] for n in item['nodes']][:3])}"
        for item in found
        if item["impact"] in _SERIOUS
    ]


def overflow(page: Page) -> int:
    """By how many pixels a page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
