"""The YAML of a README, whatever somebody wrote there."""

from __future__ import annotations

import json

import pytest

from kernels_hub.server.card import card_data, card_problems

BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]"


@pytest.mark.parametrize(
    "content, expected",
    [
        ("# no yaml", {}),
        ("---\nlicense: mit\ntags: [a, b]\n---\n# x", {"license": "mit", "tags": ["a", "b"]}),
        ("---\r\nlicense: mit\r\n---\r\n", {"license": "mit"}),
        ("---\nday: 2026-11-21\n1: one\nnot: .nan\n---", {"day": "2026-11-21", "1": "one", "not": None}),
        ("---\n\n---\n", {}),
    ],
)
def test_fields(content: str, expected: dict):
    assert card_data(content) == expected and card_problems(content) == []
    json.dumps(card_data(content), allow_nan=False)


@pytest.mark.parametrize(
    "block, words",
    [
        ("key: [", "does not parse"),
        ("- a\n- b", "not a mapping"),
        ("just text", "not a mapping"),
        ("x: !!python/object/apply:os.system [ls]", "does not parse"),
        (BOMB, "aliases"),
        ("a: " + "x" * 70_000, "larger than"),
        ("a: " + "[" * 60_000, "nested more than"),
        ("- " * 30_000, "nested more than"),
        ("a: 2026-99-99", "does not parse"),
    ],
)
def test_problems(block: str, words: str):
    content = f"---\n{block}\n---\n# x"
    (problem,) = card_problems(content)
    assert words in problem and card_data(content) == {}
