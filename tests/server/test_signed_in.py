"""Signing in on the pages: what a session shows and makes, and that no other site can use it."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from kernels_hub.server.sessions import COOKIE
from tests import hub_databases
from tests.running_hub import RunningHub, start_hub
from tests.server.harmless_page import Page


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with start_hub(tmp_path_factory.mktemp("signed_in") / "root") as running:
        running.organisation("acme", "ada")
        headers = {"Authorization": f"Bearer {running.token('ada')}"}
        for name, private in (("open", False), ("secret", True), ("other", True)):
            body = {"name": name, "organization": "acme", "type": "kernel", "private": private}
            httpx.post(f"{running.endpoint}/api/repos/create", headers=headers, json=body).raise_for_status()
            httpx.post(
                f"{running.endpoint}/api/kernels/acme/{name}/commit/main",
                headers=headers,
                content=f'{{"key":"header","value":{{"summary":"x"}}}}\n{{"key":"file","value":{{"path":"README.md","content":"# The {name} one"}}}}',
            ).raise_for_status()
        running.token("eve")
        yield running


class Browser:
    """What a browser does: keeps cookies, says where a form comes from."""

    def __init__(self, hub: RunningHub) -> None:
        self.client = httpx.Client(base_url=hub.endpoint, headers={"Origin": hub.endpoint})

    def get(self, path: str, status: int = 200) -> Page:
        answer = self.client.get(path)
        assert answer.status_code == status, answer.text[:500]
        return Page(answer.text)

    def post(
        self, path: str, status: int = 303, *, headers: dict[str, str] | None = None, **fields: str
    ) -> httpx.Response:
        answer = self.client.post(path, data=fields, headers=headers)
        assert answer.status_code == status, answer.text[:2000]
        return answer

    def form_key(self) -> str:
        found = re.search(r'name="form_key" value="([0-9a-f]{64})"', self.client.get("/").text)
        assert found is not None
        return found[1]


@pytest.fixture
def browser(hub: RunningHub) -> Iterator[Callable[..., Browser]]:
    opened: list[Browser] = []

    def signed_in(user: str | None = "ada", role: str = "write", **options: str) -> Browser:
        browser = Browser(hub)
        opened.append(browser)
        if user is not None:
            browser.post("/login", token=hub.token(user, role, **options))
        return browser

    yield signed_in
    for one in opened:
        one.client.close()


def test_signing_in_shows_what_is_ones_own_and_nothing_else(hub, browser):
    page = browser().get("/")
    assert "/kernels/acme/secret" in page.links and "private" in page.text and "ada" in page.text
    assert "The secret one" in browser().get("/kernels/acme/secret").text
    for stranger in (browser(None), browser("eve")):
        assert "secret" not in stranger.get("/").text
        stranger.get("/kernels/acme/secret", 404)
        stranger.get("/kernels/acme/secret/tree/main", 404)
    scoped = browser("ada", repository="acme/secret")
    assert "/kernels/acme/other" not in scoped.get("/").links
    scoped.get("/kernels/acme/other", 404)
    assert "/kernels/acme/secret" in scoped.get("/").links


def test_files_are_downloaded_signed_in_and_the_api_does_not_look_at_the_cookie(browser):
    client = browser().client
    assert client.get("/kernels/acme/secret/resolve/main/README.md").text == "# The secret one"
    assert browser(None).client.get("/kernels/acme/secret/resolve/main/README.md").status_code == 401
    assert client.get("/api/kernels/acme/secret").status_code == 401
    assert client.get("/api/whoami-v2").status_code == 401
    made = client.post("/api/repos/create", json={"name": "made", "organization": "acme", "type": "kernel"})
    assert made.status_code == 401


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(hub, browser):
    answer = browser(None).post("/login", token=hub.token("ada"))
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=") and "HttpOnly" in cookie and "samesite=lax" in cookie.lower()
    assert "no-store" in browser().client.get("/").headers["cache-control"]
    assert browser().client.get("/").headers["referrer-policy"] == "same-origin"
    secret = cookie.split("=", 1)[1].split(";")[0]
    with hub.administer() as opened:
        assert not hub_databases.holds(opened, secret), "only its digest is stored"
        assert hub_databases.holds(opened, hashlib.sha256(secret.encode()).hexdigest())


def test_over_tls_no_other_host_or_page_without_it_can_give_a_session_or_send_a_form(tmp_path: Path):
    with (
        start_hub(tmp_path / "hub", trusted_proxies="127.0.0.1") as hub,
        httpx.Client(base_url=hub.endpoint, headers={"X-Forwarded-Proto": "https"}) as client,
    ):
        host, fields = hub.endpoint.removeprefix("http://"), {"token": hub.token("ada")}
        assert client.post("/login", data=fields, headers={"Origin": f"http://{host}"}).status_code == 403
        answer = client.post("/login", data=fields, headers={"Origin": f"https://{host}"})
        cookie = answer.headers["set-cookie"]
        name, secret = cookie.split(";")[0].split("=")
        assert answer.status_code == 303 and name == f"__Host-{COOKIE}"
        parts = [part.strip() for part in cookie.split(";")]
        assert {"Secure", "Path=/"} <= set(parts) and "domain" not in cookie.lower()

        def seen(**cookies: str) -> str:
            text = "; ".join(f"{name}={value}" for name, value in cookies.items())
            return httpx.get(hub.endpoint, headers={"X-Forwarded-Proto": "https", "Cookie": text}).text

        assert "Sign out" in seen(**{name: secret})
        assert "Sign in" in seen(**{COOKIE: secret}), "which another host of the domain may have set"


def test_a_cookie_is_worth_nothing_after_signing_out_revoking_or_its_time(hub, browser):
    mine = browser()
    secret = mine.client.cookies[COOKIE]
    mine.post("/logout", form_key=mine.form_key())
    replayed = browser(None)
    replayed.client.cookies.set(COOKIE, secret)
    assert "Sign in" in replayed.get("/").text

    with hub.administer() as opened:
        token, row = opened.accounts.new_token("ada", "write")
        mine = browser(None)
        mine.post("/login", token=token)
        assert "Sign out" in mine.get("/").text
        opened.accounts.remove_token(row.id)
        assert "Sign in" in mine.get("/").text
        assert opened.database.row("SELECT 1 FROM sessions WHERE token = ?", row.id) is None

        mine = browser()
        opened.database.change("UPDATE sessions SET expires = ?", time.time() - 1)
        assert "Sign in" in mine.get("/").text


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "ftp://{host}"},
        {"Origin": "http://evil.example/{host}"},
        {"Origin": "{endpoint}/"},
    ],
)
def test_a_form_from_another_site_is_refused(hub, browser, headers):
    mine = browser()
    host = hub.endpoint.removeprefix("http://")
    headers = {name: value.format(host=host, endpoint=hub.endpoint) for name, value in headers.items()}
    key = mine.form_key()
    answer = mine.post("/settings/tokens", 403, headers=headers, form_key=key, action="create", role="read")
    assert "was not sent by a page of" in answer.text
    mine.post("/login", 403, headers=headers, token="hf_x")


def test_a_form_without_the_sessions_key_or_its_origin_is_refused(hub, browser):
    mine, other = browser(), browser()
    before = mine.client.get("/settings/tokens").text.count("Revoke</button>")
    for key in ("", "0" * 64, other.form_key()):
        answer = mine.post("/settings/tokens", 403, form_key=key, action="create", role="read")
        assert "not of your session" in answer.text
    answer = httpx.post(
        f"{hub.endpoint}/settings/tokens",
        cookies=mine.client.cookies,
        data={"form_key": mine.form_key(), "action": "create", "role": "read"},
    )
    assert answer.status_code == 403
    assert mine.client.get("/settings/tokens").text.count("Revoke</button>") == before


def test_a_token_is_made_used_and_revoked(hub, browser):
    mine = browser()
    page = mine.post(
        "/settings/tokens", 200, form_key=mine.form_key(), action="create", role="write", days="7"
    ).text
    found = re.search(r"<code>(hf_[A-Za-z0-9]{40})</code>", page)
    assert found is not None
    headers = {"Authorization": f"Bearer {found[1]}"}
    assert httpx.get(f"{hub.endpoint}/api/whoami-v2", headers=headers).json()["name"] == "ada"
    assert found[1] not in mine.client.get("/settings/tokens").text, "shown once"
    identifier = httpx.get(f"{hub.endpoint}/api/whoami-v2", headers=headers).json()["auth"]["accessToken"][
        "displayName"
    ]
    mine.post("/settings/tokens", form_key=mine.form_key(), action="revoke", id=identifier)
    assert httpx.get(f"{hub.endpoint}/api/whoami-v2", headers=headers).status_code == 401
    with hub.administer() as opened:
        actions = [(record.action, record.subject) for record in opened.audit.records()]
    assert ("token.new", identifier) in actions and ("token.remove", identifier) in actions


def test_a_session_gives_nobody_more_than_its_token(hub, browser):
    reader, scoped = browser("ada", "read"), browser("ada", repository="acme/secret")
    reader.post("/settings/tokens", 403, form_key=reader.form_key(), action="create", role="write")
    scoped.post(
        "/settings/tokens",
        403,
        form_key=scoped.form_key(),
        action="create",
        role="read",
        repository="acme/other",
    )
    with hub.administer() as opened:
        secret, short = opened.accounts.new_token("ada", "write", expires=time.time() + 600)
        mine = browser(None)
        mine.post("/login", token=secret)
        mine.post(
            "/settings/tokens", 200, form_key=mine.form_key(), action="create", role="read", days="3000"
        )
        newest = opened.accounts.tokens("ada")[-1]
        assert newest.expires == short.expires
        (foreign,) = opened.accounts.tokens("eve")
        mine.post("/settings/tokens", 404, form_key=mine.form_key(), action="revoke", id=foreign.id)
        reader.post("/settings/tokens", 403, form_key=reader.form_key(), action="revoke", id=newest.id)
        assert {foreign.id, newest.id} <= {token.id for token in opened.accounts.tokens()}


@pytest.mark.parametrize(
    "following, leads",
    [
        ("/kernels/acme/secret?revision=main", "/kernels/acme/secret?revision=main"),
        ("//evil.example/x", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("/a\r\nSet-Cookie: x=1", "/"),
        ("", "/"),
    ],
)
def test_signing_in_leads_to_pages_of_this_server(hub, browser, following, leads):
    answer = browser(None).post("/login", token=hub.token("ada"), next=following)
    assert answer.headers["location"] == leads


@pytest.mark.parametrize(
    "fields, status, words",
    [
        ({"action": "create", "role": "root"}, 400, "role is read or write"),
        ({"action": "create", "role": "read", "days": "-1"}, 400, "valid for 1 to 3650 days"),
        ({"action": "create", "role": "read", "repository": "../x"}, 400, "expected org/name"),
        ({"action": "erase"}, 400, "action is create or revoke"),
        ({"action": "revoke", "id": "0"}, 404, ""),
        ({"action": "x" * 9000}, 413, "at most 8192 bytes"),
    ],
)
def test_bad_forms_are_refused(browser, fields, status, words):
    mine = browser()
    assert words in mine.post("/settings/tokens", status, form_key=mine.form_key(), **fields).text


def test_guessing_tokens_is_limited_and_a_closed_hub_leads_to_the_form(tmp_path: Path):
    limits = {"max_bad_tokens_per_minute": 3}
    with start_hub(tmp_path / "root", limits=limits, require_token=True) as closed:
        browser = Browser(closed)
        answer = browser.client.get("/kernels/acme/x")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Fkernels%2Facme%2Fx")
        assert browser.client.get("/api/kernels").status_code == 401
        assert "Sign in" in browser.get("/login").text
        browser.post("/login", token=closed.token("ada"))
        assert "No repository yet" in browser.get("/").text
        stranger = Browser(closed)
        statuses = [stranger.client.post("/login", data={"token": f"hf_{n}"}).status_code for n in range(5)]
        assert statuses[:3] == [403, 403, 403] and statuses[-1] == 429
        for one in (browser, stranger):
            one.client.close()
