"""The Hub's pages in a real browser: readable and usable at two widths, light and dark, and the way of a publisher."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.combinations import every_value
from tests.running_hub import RunningHub, start_hub
from tests.server.browser import SCHEMES, WIDTHS, chromium, follow, needs_browser, overflow, serious, window
from tests.server.shown_hub import PAGES, fill

pytestmark = needs_browser
ROOT = Path(__file__).resolve().parents[2]
CLI = ("-c", "from kernels_hub.cli import main; main()")
MODEL = """
from torch import nn, relu
from kernels_hub import report, use_kernel_forward_from_hub

@use_kernel_forward_from_hub("SquaredReLU")
class SquaredReLU(nn.Module):
    def forward(self, x):
        return relu(x) ** 2

model = nn.Sequential(nn.Linear(8, 16), SquaredReLU())
"""
SWAPPED = """
row = next(row for row in report(model).swapped if row.path == "1")
print(row.repository, row.revision, row.variant)
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with start_hub(tmp_path_factory.mktemp("browser") / "root") as running:
        fill(running)
        yield running


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


def sign_in(page, token: str, following: str = "/settings/tokens") -> None:
    page.goto(f"/login?next={following}")
    page.get_by_label("Token").fill(token)
    follow(page.get_by_role("button", name="Sign in"))


@every_value(width=WIDTHS, scheme=SCHEMES)
def test_axe_finds_nothing_serious_and_no_page_is_wider_than_its_window(hub, browser, width, scheme):
    problems: list[str] = []

    def look(page, name: str) -> None:
        problems.extend(f"{name}: {found}" for found in serious(page))
        if wider := overflow(page):
            problems.append(f"{name}: wider than the window by {wider} pixels")

    with window(browser, hub.endpoint, width, scheme) as page:
        for name, address in PAGES.items():
            if name != "missing":  # which the browser reports on its console
                page.goto(address)
                page.locator("details").evaluate_all("nodes => nodes.forEach(node => { node.open = true; })")
                look(page, name)
        sign_in(page, hub.token("ada"))
        look(page, "tokens")
    assert problems == []


def test_axe_and_the_width_are_able_to_fail(browser, hub):
    with window(browser, hub.endpoint, 400) as page:
        page.goto("about:blank")  # the Hub's pages allow no such style
        page.set_content(
            '<html lang="en"><title>x</title><img src="data:,"><p style="color: #ccc; width: 900px">pale</p></html>'
        )
        found = serious(page)
        assert any(item.startswith("image-alt") for item in found), found
        assert any(item.startswith("color-contrast") for item in found), found
        assert overflow(page) > 400


def test_code_scrolls_and_diffs_break_on_a_phone(hub, browser):
    with window(browser, hub.endpoint, 400) as page:
        page.goto(PAGES["card"])
        scrolls = "node => node.scrollWidth > node.clientWidth && getComputedStyle(node).overflowX === 'auto'"
        assert page.locator("pre.usage").first.evaluate(scrolls)
        assert page.locator(".readme pre").last.evaluate(scrolls)
        page.goto(PAGES["source"])
        box = page.locator(".scroll")
        assert box.evaluate(scrolls)
        box.focus()
        page.keyboard.press("ArrowRight")
        for _ in range(100):
            if moved := page.evaluate("document.querySelector('.scroll').scrollLeft"):
                break
            page.wait_for_timeout(50)
        assert moved > 0
        for name in ("diff", "split"):
            page.goto(PAGES[name])
            boxes = page.locator(".scroll")
            assert boxes.count() == 2 and not any(item.evaluate(scrolls) for item in boxes.all())
            widths = page.locator(".diff pre").evaluate_all(
                "nodes => nodes.filter(node => node.offsetParent).map(node => node.getBoundingClientRect().right)"
            )
            assert max(widths) <= 400


def test_keys_reach_everything_and_the_content_first(hub, browser):
    with window(browser, hub.endpoint) as page:
        page.goto(PAGES["card"])
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        seen = set()
        for _ in range(80):
            seen.add(page.evaluate("document.activeElement.textContent.trim()"))
            page.keyboard.press("Tab")
        assert {
            "Sign in",
            "Versions",
            "Copy",
            "Kernelize a model",
            "Download it",
            "v1.0.0",
            "RMSNorm",
        } <= seen


def test_filters_orders_and_search_are_combined_and_taken_back(hub, browser):
    with window(browser, hub.endpoint) as page:
        page.goto("/")
        names = lambda: page.locator(".card h2 a").all_inner_texts()  # noqa: E731
        assert names() == ["ada/notes", "ada/norms"]
        follow(page.get_by_role("navigation", name="Order").get_by_role("link", name="Name"))
        assert names() == ["ada/norms", "ada/notes"]
        follow(page.get_by_role("navigation", name="Filters").get_by_role("link", name="mit"))
        assert names() == ["ada/notes"] and "sort=name" in page.url
        page.get_by_label("Search").fill("norms")
        with page.expect_navigation():
            page.get_by_label("Search").press("Enter")
        assert "Nothing public matches" in page.inner_text("main") and "licence=mit" in page.url
        follow(page.get_by_role("link", name="remove this filter"))
        assert names() == ["ada/norms"] and "sort=name" in page.url
    with window(browser, hub.endpoint, 400) as page:
        page.goto("/")
        filters = page.get_by_role("navigation", name="Filters")
        assert not filters.get_by_role("link", name="mit").is_visible()
        filters.locator("summary").click()
        follow(filters.get_by_role("link", name="cuda"))
        assert page.locator(".card h2 a").all_inner_texts() == ["ada/norms"]


@pytest.mark.parametrize("clipboard", [True, False])
def test_copy_buttons(hub, browser, clipboard):
    with window(browser, hub.endpoint) as page:
        if not clipboard:  # as on plain http, other than on localhost
            page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        page.goto(PAGES["card"])
        expected = page.locator("pre.usage").first.inner_text()
        page.get_by_role("button", name="Copy the lines to kernelize a model").click()
        said = page.get_by_role("status").filter(has_text="Copied the lines to kernelize a model")
        said.wait_for(state="attached")
        page.goto("/")
        page.get_by_label("Search").focus()
        page.keyboard.press("Control+V")
        pasted = page.get_by_label("Search").input_value()
        assert pasted.startswith(expected.replace("\n", " ")[:80])


def test_the_policy_runs_no_other_script(hub, browser):
    with window(browser, hub.endpoint, expected="violates the following Content Security Policy") as page:
        page.goto("/")
        blocked = page.evaluate(
            """() => new Promise(done => {
                document.addEventListener("securitypolicyviolation", event => done(event.violatedDirective));
                const script = document.createElement("script");
                script.textContent = "window.owned = true";
                document.body.append(script);
                setTimeout(() => done("ran"), 3000);
            })"""
        )
        assert blocked.startswith("script-src") and page.evaluate("window.owned") is None


def command(
    hub: RunningHub, home: Path, *arguments: str, token: str = ""
) -> subprocess.CompletedProcess[str]:
    """kernels-hub, or Python, as its user runs it."""
    environment = {
        **os.environ, "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": token, "HF_HOME": str(home / "hf"),
        "KERNELS_HUB_HOME": str(home / "kernels_hub"), "XDG_CONFIG_HOME": str(home / "config"),
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, env=environment, cwd=home
    )


def test_from_signing_in_to_revoking(hub, browser, tmp_path):
    """Sign in, make a token, publish with it, see the private repository, use it as its page says, revoke."""
    with window(browser, hub.endpoint) as page:
        page.goto("/")
        follow(page.get_by_role("link", name="Sign in"))
        page.get_by_label("Token").fill(hub.token("ada"))
        follow(page.get_by_role("button", name="Sign in"))
        assert "ada/secret" in page.inner_text("main")
        follow(page.get_by_role("navigation", name="Account").get_by_role("link", name="ada"))
        page.get_by_label("It may").select_option("write")
        page.get_by_label("Days until it ends").fill("7")
        follow(page.get_by_role("button", name="Make a token"))
        secret = page.locator(".notice code").inner_text()
        made = page.locator("tr", has_text="new").locator("code").first.inner_text()
        page.get_by_role("button", name="Copy the token").click()
        page.get_by_role("status").filter(has_text="Copied the token").wait_for(state="attached")
        assert page.evaluate("navigator.clipboard.readText()") == secret

        assert command(hub, tmp_path, *CLI, "init", "my-norm").returncode == 0
        publish = (*CLI, "publish", "my-norm", "--repo", "ada/my-norm", "--private", "--version")
        done = command(hub, tmp_path, *publish, "1.2.0", token=secret)
        assert done.returncode == 0, done.stderr

        page.goto("/?q=my-norm")
        follow(page.get_by_role("link", name="ada/my-norm"))
        assert "private" in page.inner_text("h1")
        usage = page.locator("pre.usage").first.inner_text()
        assert '"ada/my-norm"' in usage and 'version="==1.2.0"' in usage and hub.endpoint in usage
        assert command(hub, tmp_path, *CLI, "trust", "allow", "ada/my-norm").returncode == 0
        used = command(hub, tmp_path, "-c", f"{MODEL}{usage}{SWAPPED}", token=secret)
        assert (used.returncode, used.stdout) == (0, "ada/my-norm 1.2.0 torch-cpu\n"), used.stderr

        follow(page.get_by_role("link", name="Versions"))
        assert "v1.2.0" in page.locator("table").inner_text()

        with window(browser, hub.endpoint) as stranger:
            stranger.goto("/")
            assert "my-norm" not in stranger.inner_text("main")

        follow(page.get_by_role("navigation", name="Account").get_by_role("link", name="ada"))
        follow(page.get_by_role("button", name=f"Revoke {made}"))
        assert made not in page.inner_text("main")
        again = command(hub, tmp_path, *publish, "1.3.0", token=secret)
        assert again.returncode == 1 and "401" in again.stderr, again.stderr
        follow(page.get_by_role("button", name="Sign out"))
        page.goto("/?q=my-norm")
        assert "Nothing public matches" in page.inner_text("main")


@pytest.mark.exhaustive
def test_screenshots(tmp_path):
    subprocess.run([sys.executable, "-m", "tests.server.screenshots", str(tmp_path)], check=True, cwd=ROOT)
    taken = list(tmp_path.glob("*.png"))
    assert len(taken) == len(PAGES) * len(WIDTHS) * len(SCHEMES)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in taken)
