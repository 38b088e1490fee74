"""The YAML of a README, whatever somebody wrote there."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from types import SimpleNamespace

import pytest
import yaml

from kernels_hub.server import card as module
from kernels_hub.server.card import card_data, card_problems, read_card
from tests.fuzz.harness import budget
from tests.fuzz.mutations import HOSTILE_TEXTS, mutate_bytes

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
        ("a: !!int ''", "does not parse"),
        ("a: !!bool x", "does not parse"),
        ("a: !!float x", "does not parse"),
        ("a: !!timestamp x", "does not parse"),
        ("a:\n" + "- b\n" * 12_000, "more than 4000 values"),
        ("[" * 120_000, "larger than"),
        ("{a: " * 15_000, "nested more than"),
    ],
)
def test_problems(block: str, words: str):
    content = f"---\n{block}\n---\n# x"
    (problem,) = card_problems(content)
    assert words in problem and card_data(content) == {}


@pytest.mark.parametrize("block", [r'a: "\ud800"', r'"\udfff": 1', r'a: ["x", {b: "\ud800"}]'])
@pytest.mark.parametrize("loader", [module._Base, yaml.SafeLoader], ids=lambda loader: loader.__name__)
def test_half_a_pair_of_surrogates_is_refused_by_every_loader(loader, block, monkeypatch):
    """libyaml's refuses it; PyYAML's own, where there is no other, reads it."""
    monkeypatch.setattr(module, "_Base", loader)
    monkeypatch.setattr(module, "_Loader", loader)
    (problem,) = card_problems(f"---\n{block}\nloader: {loader.__name__}\n---\n")
    assert "does not parse" in problem


@pytest.mark.parametrize(
    "number", ["0x" + "f" * 60_000, "9" * 60_000, "1" + ":10" * 20_000, "1." + "9" * 60_000]
)
def test_numbers_of_many_digits_are_text(number: str):
    content = f"---\na: {number}\nlicense: mit\n---\n"
    assert card_problems(content) == [] and card_data(content) == {"a": number, "license": "mit"}


SLOW = [
    "a:\n" + "- b: 1\n" * 1900,
    "\n".join(f"k{n}: &a{n} {n}" for n in range(1990)),
    "!!set {" + "a," * 1900 + "}",
    "a: " + "x " * 32_000,
    'a: "' + "\\u0041" * 10_000 + '"',
    "#" * 65_000,
]


def test_no_card_takes_long_and_each_is_read_once(monkeypatch: pytest.MonkeyPatch):
    read, original = [], module._read
    monkeypatch.setattr(module, "_read", lambda block: read.append(block) or original(block))
    contents = [f"---\n{block}\n# {number}\n---\n" for number, block in enumerate(SLOW)]
    start = time.process_time()
    threads = [threading.Thread(target=read_card, args=(content,)) for content in contents * 5]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read) == len(SLOW)
    assert time.process_time() - start < 4, "0.2 s, on a machine with nothing else to do"


def test_a_card_that_takes_long_is_given_up(monkeypatch: pytest.MonkeyPatch):
    """A clock that goes on by a tenth of a second at each look: reading stops at half a second."""
    looks = itertools.count()
    monkeypatch.setattr(
        module, "time", SimpleNamespace(monotonic=lambda: next(looks) / 10, sleep=lambda _: None)
    )
    (problem,) = card_problems("---\n" + "a: [1, 2, 3]\n" * 100 + "---\n")
    assert "takes more than 0.5 s to read" in problem
    assert next(looks) < 20


def test_whoever_sends_cards_leaves_the_rest_half_of_the_time(monkeypatch: pytest.MonkeyPatch):
    """A pause as long as reading took, also for one that is refused; none for one that is known."""
    now, pauses = [0.0], []

    def read(block: bytes) -> module.Card:
        now[0] += 0.3
        return module.Card(problems=("wrong",))

    monkeypatch.setattr(module, "_read", read)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=pauses.append))
    for number in (1, 2, 2, 1):
        read_card(f"---\nnumber of this test: {number}\n---\n")
    assert pauses == [pytest.approx(0.3)] * 2


def test_any_card_is_read_or_refused():
    chance = random.Random(3)
    seeds = [
        b"license: mit\ntags: [a, b]\n", b"a: {b: [1, 2.5, ~, true]}\nday: 2026-01-02 03:04:05\n",
        b"model-index:\n- name: x\n  results:\n  - {task: {type: y}}\n", b"a: !!binary aGk=\nb: !!set {x, y}\nc: 0o17\n",
    ]  # fmt: skip
    for _ in range(budget(300, 20_000)):
        block = mutate_bytes(chance.choice(seeds), chance).decode("utf-8", "replace")
        if chance.random() < 0.3:
            at = chance.randrange(len(block) + 1)
            block = block[:at] + chance.choice(HOSTILE_TEXTS)[:1000] + block[at:]
        card = read_card(f"---\n{block}\n---\n")
        json.dumps(card.data, allow_nan=False)
        assert not (card.data and card.problems)
