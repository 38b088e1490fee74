"""The pages of a running Hub: what they show, what they hide, and that nothing in them runs."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
from urllib.parse import quote

import httpx
import pytest

from kernels_hub.server.web.pages import SCRIPT
from tests.running_hub import RunningHub, start_hub
from tests.server.harmless_page import Page

CARD = """---
license: apache-2.0
---
# Fast norms

Rows are **normalized** in one pass, see [the source](build/torch-cpu/layers.py#L2) and <https://example.com>.

| layer | error |
|---|---:|
| `RMSNorm` | 1e-6 |

```python
def forward(self, x): return x
```
"""
LAYERS = "import torch\n\n\nclass RMSNorm(torch.nn.Module):\n    eps = 1e-6\n"
EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(1)><b>"
EVIL_CARD = f"""---
license: {json.dumps(EVIL)}
---
{EVIL}

<script>document.title = "owned"</script>
<iframe src="javascript:alert(1)"></iframe>

[one](javascript:alert(1)) [two](JaVaScRiPt:alert(1)) [three](data:text/html;base64,PHNjcmlwdD4=) [four](//evil.example/x)
[five](&#x6A;avascript:alert(1)) [six](vbscript:x) [seven]( javascript:alert(1) ) <javascript:alert(1)>
[eight](\\\\evil.example) [nine](../../../../etc/passwd) [ten](x" onmouseover="alert(1)) [eleven](/\\evil.example)

![spy](https://evil.example/spy.png) ![svg](data:image/svg+xml;base64,PHN2Zz4=) ![in](img/a.png "x\\" onerror=\\"alert(1)")

```"><script>alert(1)</script>
code</code></pre><script>alert(1)</script>
```

| {"a | " * 300}
|{"---|" * 301}
{("| " + "x | " * 300 + chr(10)) * 100}
"""


def operation(path: str, content: str | bytes) -> dict:
    data = content.encode() if isinstance(content, str) else content
    return {
        "key": "file",
        "value": {"path": path, "encoding": "base64", "content": base64.b64encode(data).decode()},
    }


class Author:
    """Somebody who publishes, over the API."""

    def __init__(self, hub: RunningHub) -> None:
        self.hub = hub
        self.headers = {"Authorization": f"Bearer {hub.token('ada')}"}

    def post(self, path: str, document: object = None, *, content: bytes | None = None) -> httpx.Response:
        arguments = {"json": document} if content is None else {"content": content}
        answer = httpx.post(self.hub.endpoint + path, headers=self.headers, **arguments)
        assert answer.status_code == 200, answer.text
        return answer

    def repository(self, kind: str, name: str, **options: object) -> None:
        self.post("/api/repos/create", {"name": name, "organization": "ada", "type": kind, **options})

    def commit(self, kind: str, name: str, files: dict[str, str | bytes]) -> None:
        lines = [
            {"key": "header", "value": {"summary": "files"}},
            *(operation(*item) for item in files.items()),
        ]
        body = "\n".join(map(json.dumps, lines)).encode()
        self.post(f"/api/{kind}s/ada/{name}/commit/main", content=body)

    def tag(self, kind: str, name: str, tag: str) -> None:
        self.post(f"/api/{kind}s/ada/{name}/tag/main", {"tag": tag})


def metadata(release: str, **more: object) -> str:
    extension = {
        "release": release,
        "summary": "Norms over rows",
        "layers": ["RMSNorm"],
        "functions": ["rms_norm"],
    }
    return json.dumps(
        {
            "name": "norms",
            "license": "Apache-2.0",
            "backend": {"type": "cpu"},
            "kernels-hub": {**extension, **more},
        }
    )


def publish(hub: RunningHub) -> None:
    author = Author(hub)
    author.repository("kernel", "norms")
    files = {
        "README.md": CARD,
        "build/torch-cpu/layers.py": LAYERS,
        "build/torch-cpu/metadata.json": metadata("1.9.0"),
    }
    files |= {
        "build/torch-cpu/metadata.json.ed25519": "{}",
        "data.bin": b"\0\1\2",
        "folder/a b#c%d.txt": "odd name\n",
    }
    author.commit("kernel", "norms", files)
    author.tag("kernel", "norms", "v1.9.0")
    changed = LAYERS.replace("1e-6", "1e-5") + "\n\nclass More(RMSNorm):\n    pass\n"
    author.commit(
        "kernel", "norms", {"build/torch-cpu/layers.py": changed, "data.bin": b"\0\1\3", "new.txt": "new\n"}
    )
    author.tag("kernel", "norms", "v1.10.0")
    author.tag("kernel", "norms", "v2.0.0rc1")
    author.post("/api/kernels/ada/norms/branch/feature%2Fone", {})
    author.commit("kernel", "norms", {"yanked.json": json.dumps({"1.9.0": "wrong in float16"})})
    author.repository("model", "notes")
    author.commit("model", "notes", {"README.md": "# Notes\n"})
    author.repository("model", "empty")
    author.repository("model", "secret", private=True)
    author.commit("model", "secret", {"README.md": "# secret words\n"})
    author.repository("model", "gated")
    author.commit("model", "gated", {"README.md": "# gated words\n"})
    with hub.administer() as opened:
        opened.repositories.set_gated(opened.repositories.find("model", "ada", "gated"), "manual")
    author.repository("kernel", "evil")
    bad = metadata(EVIL, summary=EVIL, layers=[EVIL, 3, None], functions=EVIL)
    evil = {
        "README.md": EVIL_CARD,
        "build/torch-cpu/metadata.json": bad,
        "build/x/metadata.json": "[" * 100_000,
    }
    evil |= {
        "source.py": f"# {EVIL}\nx = '{EVIL}'\n",
        "a&b'c.txt": EVIL,
        "yanked.json": json.dumps({"1.0.0": EVIL}),
    }
    author.commit("kernel", "evil", evil)
    author.tag("kernel", "evil", "v1.0.0")
    author.commit("kernel", "evil", {"source.py": f"# {EVIL}{EVIL}\n</table></pre>{EVIL}\n"})
    author.tag("kernel", "evil", "v1.1.0")
    author.post("/api/kernels/ada/evil/tag/main", {"tag": "<script>alert('1')</script>\"&"})


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with start_hub(tmp_path_factory.mktemp("web") / "root") as running:
        publish(running)
        yield running


def get(hub: RunningHub, path: str, status: int = 200, **arguments: object) -> Page:
    answer = httpx.get(hub.endpoint + path, **arguments)
    assert answer.status_code == status, answer.text[:500]
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert answer.headers["content-security-policy"] == (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'self'; img-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    )
    assert answer.headers["x-content-type-options"] == "nosniff"
    return Page(answer.text)


NORMS = "/kernels/ada/norms"


def test_the_list_shows_public_repositories_newest_first(hub):
    page = get(hub, "/")
    order = [link for link in page.links if link in ("/ada/notes", NORMS, "/kernels/ada/evil", "/ada/empty")]
    assert order == ["/kernels/ada/evil", "/ada/empty", "/ada/notes", NORMS]
    assert "Norms over rows v1.10.0 1 layer 1 variant Apache-2.0" in page.text
    assert "secret" not in page.text and "gated" not in page.text


@pytest.mark.parametrize(
    "query, found",
    [
        ("norm", [NORMS]),
        ("RMSNorm rows", [NORMS]),
        ("ada/notes", ["/ada/notes"]),
        ("secret", []),
        (EVIL, ["/kernels/ada/evil"]),
    ],
)
def test_search(hub, query, found):
    page = get(hub, "/?q=" + quote(query))
    assert [link for link in page.links if link.count("/") >= 2 and "static" not in link] == found


def test_a_repository_page_tells_its_newest_release(hub):
    page = get(hub, NORMS)
    for words in (
        "Fast norms", "Rows are normalized in one pass", "v2.0.0rc1", "v1.10.0", "v1.9.0 yanked", "RMSNorm", "rms_norm",
        "torch-cpu", "Ed25519 signature", "Apache-2.0",
    ):  # fmt: skip
        assert words in page.text, words
    layer, function, download = page.blocks[:3]
    assert 'LayerRepository("ada/norms", layer_name="RMSNorm", version="==1.10.0")' in layer
    assert 'get_kernel("ada/norms", version="==1.10.0")' in function
    assert "kernels-hub download 'ada/norms@==1.10.0'" in download
    assert all(hub.endpoint in block for block in (layer, function, download))
    page.text = page.text[page.text.index("Versions v2") :]
    assert page.text.index("v2.0.0rc1") < page.text.index("v1.10.0") < page.text.index("v1.9.0")
    assert "license:" not in page.text, "the card's YAML is not shown"
    assert f"{NORMS}/blob/v1.10.0/build/torch-cpu/layers.py#L2" in page.links
    assert f"{NORMS}/compare?from=v1.9.0&to=v1.10.0" in page.links


def test_another_version_and_why_it_was_yanked(hub):
    page = get(hub, f"{NORMS}?revision=v1.9.0")
    assert "v1.9.0 was yanked. wrong in float16" in page.text
    assert 'version="==1.9.0"' in page.blocks[0]


def test_a_repository_without_commits_or_card(hub):
    assert "No release yet" in get(hub, "/ada/empty").text


def test_files_and_source(hub):
    page = get(hub, f"{NORMS}/tree/v1.10.0")
    assert [word for word in page.text.split() if word in ("build/", "folder/", "README.md", "data.bin", "new.txt")] == [
        "build/", "folder/", "README.md", "data.bin", "new.txt",
    ]  # fmt: skip
    odd = f"{NORMS}/blob/v1.10.0/folder/a%20b%23c%25d.txt"
    assert odd in get(hub, f"{NORMS}/tree/v1.10.0/folder").links
    assert "odd name" in get(hub, odd).text
    source = httpx.get(f"{hub.endpoint}{NORMS}/blob/v1.10.0/build/torch-cpu/layers.py").text
    assert '<span class="k">class</span>' in source
    shown = re.findall(r"<pre>(.*)</pre>", source)
    lines = [html.unescape(re.sub(r"<[^>]*>", "", line)) for line in shown]
    raw = httpx.get(f"{hub.endpoint}{NORMS}/resolve/v1.10.0/build/torch-cpu/layers.py").text
    assert lines == raw.removesuffix("\n").split("\n")
    assert "This file is not text" in get(hub, f"{NORMS}/blob/v1.10.0/data.bin").text


def test_pictures_of_a_card_are_shown_and_run_nothing(hub):
    author = Author(hub)
    author.repository("kernel", "drawn")
    picture = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    author.commit(
        "kernel", "drawn", {"README.md": "![The graph](graph.svg)", "graph.svg": picture, "a.html": "<b>"}
    )
    address = "/kernels/ada/drawn/picture/main/graph.svg"
    assert address in get(hub, "/kernels/ada/drawn").images
    answer = httpx.get(hub.endpoint + address)
    assert (answer.content, answer.headers["content-type"]) == (picture, "image/svg+xml")
    assert (
        answer.headers["content-security-policy"] == "default-src 'none'; style-src 'unsafe-inline'; sandbox"
    )
    assert answer.headers["x-content-type-options"] == "nosniff"
    for other in ("a.html", "README.md", "none.svg"):
        get(hub, f"/kernels/ada/drawn/picture/main/{other}", 404)


def test_addresses_lead_to_each_other(hub):
    def leads(path: str) -> str:
        answer = httpx.get(hub.endpoint + path)
        assert answer.status_code == 303
        return answer.headers["location"]

    assert leads(f"{NORMS}/blob/v1.9.0/build") == f"{NORMS}/tree/v1.9.0/build"
    assert leads(f"{NORMS}/tree/v1.9.0/README.md") == f"{NORMS}/blob/v1.9.0/README.md"
    commit = httpx.get(f"{hub.endpoint}/api{NORMS}/revision/v1.10.0").json()["sha"]
    before = httpx.get(f"{hub.endpoint}/api{NORMS}/revision/v1.9.0").json()["sha"]
    assert leads(f"{NORMS}/commit/{commit}") == f"{NORMS}/compare?from={before}&to={commit}"
    assert leads(f"{NORMS}/goto") == f"{NORMS}/tree/v1.10.0"
    assert leads(f"{NORMS}/goto?revision=v1.9.0&path=README.md") == f"{NORMS}/blob/v1.9.0/README.md"
    assert leads(f"{NORMS}/goto?revision=v1.9.0&path=new.txt") == f"{NORMS}/tree/v1.9.0"
    assert leads(f"{NORMS}/goto?revision=v1.9.0&path=//evil.example") == f"{NORMS}/tree/v1.9.0"


def test_every_link_of_every_page_leads_somewhere(hub):
    seen, waiting = set(), ["/"]
    with httpx.Client(base_url=hub.endpoint, follow_redirects=True) as client:
        while waiting:
            path = waiting.pop()
            answer = client.get(path)
            assert answer.status_code == 200, path
            seen.add(path)
            if answer.headers["content-type"].startswith("text/html"):
                page = Page(answer.text)
                local = {link.split("#")[0] for link in (*page.links, *page.images) if link.startswith("/")}
                fresh = local - seen - set(waiting)
                waiting += sorted(link for link in fresh if not link.startswith("/kernels/ada/evil"))
    assert len(seen) > 40


def test_commits(hub):
    page = get(hub, f"{NORMS}/commits/main")
    assert page.text.count("files ada") == 3
    assert sum("/commit/" in link for link in page.links) == 4
    first = [link for link in page.links if "/commit/" in link][-1]
    assert httpx.get(hub.endpoint + first).headers["location"].startswith(f"{NORMS}/tree/")


def test_layers_lead_to_their_source(hub):
    page = get(hub, NORMS)
    assert f"{NORMS}/blob/v1.10.0/build/torch-cpu/layers.py#L4" in page.links


def test_a_diff_in_one_column_and_in_two(hub):
    page = get(hub, f"{NORMS}/compare?from=v1.9.0&to=v1.10.0")
    assert "3 files differ" in page.text
    assert "build/torch-cpu/layers.py changed +5 −1" in page.text
    assert "5 − eps = 1e-6 5 + eps = 1e-5" in page.text
    assert "data.bin changed" in page.text and "This file is not text." in page.text
    assert "new.txt added +1 −0" in page.text
    assert "1e-6" in get(hub, f"{NORMS}/compare").text, "the newest release against the one before"
    split = get(hub, f"{NORMS}/compare?from=v1.9.0&to=v1.10.0&view=split&path=build/torch-cpu/layers.py")
    assert "1 file differs" in split.text
    assert "5 eps = 1e-6 5 eps = 1e-5" in split.text
    same = get(hub, f"{NORMS}/compare?from=v1.9.0&to=v1.9.0")
    assert "v1.9.0 and v1.9.0 hold the same files" in same.text


@pytest.mark.parametrize(
    "path",
    [
        "/ada/secret", "/ada/secret/tree/main", "/ada/secret/blob/main/README.md", "/ada/secret/compare", "/ada/gated",
        "/ada/gated/blob/main/README.md", "/ada/none", "/none/none", "/ada/norms", f"{NORMS}?revision=none",
        f"{NORMS}/tree/none", f"{NORMS}/blob/v1.9.0/none", f"{NORMS}/blob/v1.9.0/..%2F..%2Fsecret", f"{NORMS}/compare?from=x",
        f"{NORMS}/goto?revision=x", f"{NORMS}/tree/v1.9.0/build/%2E%2E/%2E%2E", "/kernels/norms", "/static/..%2Fpages.py", "/static/nothing",
    ],
)  # fmt: skip
def test_what_is_not_there_or_not_public_is_not_found(hub, path):
    for headers in ({}, {"Authorization": f"Bearer {hub.token('eve')}"}):
        # As the API tells those who have a token.
        restricted = bool(headers) and path.startswith("/ada/gated")
        page = get(hub, path, 403 if restricted else 404, headers=headers)
        assert ("ask its owners for it" if restricted else "There is no such page here") in page.text
        assert "words" not in page.text


def test_a_number_that_is_none(hub):
    assert "page must be a whole number" in get(hub, "/?page=x", 400).text
    assert get(hub, "/?page=99999").text == get(hub, "/?page=1").text


def test_the_list_goes_on_where_the_page_before_ended(tmp_path):
    with start_hub(tmp_path / "root") as hub:
        hub.token("ada")

        def make(*names: str) -> None:
            with hub.administer() as opened:
                for name in names:
                    opened.changes.create("kernel", "ada", name, private=False, author="ada")

        def rows(page: Page) -> list[str]:
            return [link for link in page.links if link.startswith("/kernels/ada/")]

        make(*(f"k{number:02}" for number in range(65)))
        first = get(hub, "/?q=ada")
        (following,) = (link for link in first.links if "page=2" in link)
        before = rows(get(hub, "/?q=ada&page=2"))
        make("late")
        assert "publisher" in str(first.links) and "66 repositories" in get(hub, "/?q=ada").text
        # By its link, a page begins after the last row that was seen; by its number, where the count says.
        second = get(hub, following)
        assert rows(second) == before and rows(get(hub, "/?q=ada&page=2"))[1:] == before[:-1]
        (following,) = (link for link in second.links if "page=3" in link)
        assert rows(first) + before + rows(get(hub, following)) == [
            f"/kernels/ada/k{number:02}" for number in reversed(range(65))
        ]
        assert "cursor" in get(hub, "/?q=ada&page=2&after=x", 400).text
        assert "cursor" in get(hub, following.replace("page=3", "page=2&sort=name"), 400).text
        assert rows(get(hub, following.replace("page=3", "page=1")))[0] == "/kernels/ada/late"


def test_head_has_the_headers_and_no_body(hub):
    for path in ("/", NORMS, "/static/style.css"):
        answer = httpx.head(hub.endpoint + path)
        assert (answer.status_code, answer.content) == (200, b"")
        assert "content-security-policy" in answer.headers
    assert httpx.post(hub.endpoint + NORMS).status_code == 405


def test_static_files(hub):
    links = re.findall(r'(/static/[^"]+)"', httpx.get(hub.endpoint + "/").text)
    assert {link.split("?")[0] for link in links} == {"/static/style.css", "/static/icon.svg"}
    for link in links:
        answer = httpx.get(hub.endpoint + link)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert "http" not in answer.text.replace("http://www.w3.org/2000/svg", ""), (
            "nothing is loaded from elsewhere"
        )
    assert "immutable" not in httpx.get(hub.endpoint + "/static/style.css").headers["cache-control"]


EVIL_TAG = quote("<script>alert('1')</script>\"&", safe="")
EVIL_PAGES = [
    "/",
    "/?q=" + quote(EVIL),
    "/kernels/ada/evil",
    "/kernels/ada/evil?revision=v1.0.0",
    "/kernels/ada/evil?revision=" + EVIL_TAG,
    f"/kernels/ada/evil/tree/{EVIL_TAG}",
    f"/kernels/ada/evil/blob/{EVIL_TAG}/source.py",
    "/kernels/ada/evil/blob/main/a%26b%27c.txt",
    "/kernels/ada/evil/blob/main/README.md",
    "/kernels/ada/evil/compare?from=v1.0.0&to=" + EVIL_TAG,
    "/kernels/ada/evil/compare?from=v1.0.0&to=v1.1.0&view=split",
    "/kernels/ada/evil/commits/" + EVIL_TAG,
]


@pytest.mark.parametrize("path", EVIL_PAGES)
def test_a_hostile_repository_is_harmless(hub, path):
    page = get(hub, path)
    assert {image.split("?")[0] for image in page.images} <= {
        "/static/icon.svg",
        "/kernels/ada/evil/picture/v1.1.0/img/a.png",
        "/kernels/ada/evil/picture/v1.0.0/img/a.png",
        f"/kernels/ada/evil/picture/{EVIL_TAG}/img/a.png",
    }
    assert "alert(1)" in page.text, "it is shown as what it is: text"


def test_refusals_of_hostile_addresses_are_escaped(hub):
    page = get(hub, "/?page=" + quote(EVIL), 400)
    assert "whole number" in page.text
    get(hub, f"/{quote(EVIL, safe='')}/x", 404)


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (apt-get install chromium)")
def test_a_browser_reads_the_pages(hub, tmp_path):
    def dump(path: str) -> str:
        done = subprocess.run(
            [
                CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                f"--user-data-dir={tmp_path}", "--enable-logging=stderr", "--dump-dom", hub.endpoint + path,
            ],
            capture_output=True, text=True, timeout=60, env={**os.environ, "HOME": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        assert "CONSOLE" not in done.stderr, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return done.stdout

    before = len(hub.requests())
    page = Page(dump(NORMS))
    assert "Fast norms" in page.text and "v1.10.0" in page.text
    loaded = {request.path: request.status for request in hub.requests()[before:]}
    assert loaded[NORMS] == loaded["/static/style.css"] == 200
    # The browser's parser has the last word on what is text: no script, no title of the card's choice.
    evil = dump("/kernels/ada/evil")
    assert "<title>ada/evil · Kernels Hub</title>" in evil
    Page(evil)
