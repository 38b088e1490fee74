"""Pictures of the Hub's pages at 1280 and 400 pixels, light and dark: python -m tests.server.screenshots FOLDER"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.running_hub import start_hub
from tests.server.browser import CHROMIUM, SCHEMES, WIDTHS, chromium, follow, window
from tests.server.shown_hub import PAGES, fill


def take(folder: Path) -> list[Path]:
    """Write a picture of every page into a folder, whole from top to bottom; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = []
    with (
        tempfile.TemporaryDirectory() as home,
        start_hub(Path(home) / "root") as hub,
        chromium() as browser,
    ):
        fill(hub)
        token = hub.token("ada")
        for width in WIDTHS:
            for scheme in SCHEMES:
                with window(browser, hub.endpoint, width, scheme) as page:
                    for name, address in PAGES.items():
                        if name != "missing":  # which the browser reports on its console
                            page.goto(address)
                            taken.append(folder / f"{name}-{width}-{scheme}.png")
                            page.screenshot(path=taken[-1], full_page=True)
                    page.goto("/login?next=/settings/tokens")
                    page.get_by_label("Token").fill(token)
                    follow(page.get_by_role("button", name="Sign in"))
                    taken.append(folder / f"tokens-{width}-{scheme}.png")
                    page.screenshot(path=taken[-1], full_page=True)
    return taken


if __name__ == "__main__":
    if len(sys.argv) != 2 or CHROMIUM is None:
        sys.exit(f"{__doc__}; needs chromium")
    sys.stdout.write("".join(f"{path}\n" for path in take(Path(sys.argv[1]))))
