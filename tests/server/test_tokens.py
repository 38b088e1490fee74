"""Tokens by their ids: what was signed for a token is worth nothing once that is revoked or over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels_hub.server.hub import Hub


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(tmp_path / "root", create=True) as hub:
        hub.accounts.add_user("ada")
        yield hub


@pytest.mark.each_database
def test_a_token_is_known_by_its_id_until_it_is_revoked(hub: Hub):
    secret, token = hub.accounts.new_token("ada", "write", repository="ada/k")
    other = hub.accounts.new_token("ada", "read")[1]
    assert hub.accounts.token_by_id(token.id) == token == hub.accounts.authenticate(secret)
    assert hub.accounts.token_is_valid(token.id) and hub.accounts.token_is_valid(other.id)
    hub.accounts.remove_token(token.id)
    assert not hub.accounts.token_is_valid(token.id)
    assert hub.accounts.token_by_id(token.id) is None and hub.accounts.authenticate(secret) is None
    assert hub.accounts.token_is_valid(other.id), "another token of the user stays"


@pytest.mark.each_database
def test_other_processes_see_a_revocation_at_once(hub: Hub):
    token = hub.accounts.new_token("ada", "write")[1]
    assert hub.accounts.token_is_valid(token.id)
    with Hub(hub.layout.root) as administrator:
        administrator.accounts.remove_token(token.id)
    assert not hub.accounts.token_is_valid(token.id)


@pytest.mark.each_database
def test_a_token_of_a_removed_user_and_an_expired_one_are_invalid(hub: Hub):
    hub.accounts.add_user("bob")
    gone = hub.accounts.new_token("bob", "write")[1]
    hub.accounts.remove("bob", "user")
    over = hub.accounts.new_token("ada", "write", expires=time.time() - 1)[1]
    still = hub.accounts.new_token("ada", "write", expires=time.time() + 60)[1]
    assert [hub.accounts.token_is_valid(token.id) for token in (gone, over, still)] == [False, False, True]


@pytest.mark.each_database
@pytest.mark.parametrize("text", ["", "x", "\0", "' OR 1=1 --", "é" * 1000])
def test_text_that_is_no_id_is_no_token(hub: Hub, text: str):
    hub.accounts.new_token("ada", "write")
    assert not hub.accounts.token_is_valid(text)


@pytest.mark.sqlite
def test_the_lookup_reads_one_row_by_its_key(hub: Hub):
    plan = hub.database.rows("EXPLAIN QUERY PLAN SELECT * FROM tokens WHERE id = ?", "x")
    assert [row["detail"] for row in plan] == ["SEARCH tokens USING INDEX sqlite_autoindex_tokens_1 (id=?)"]
