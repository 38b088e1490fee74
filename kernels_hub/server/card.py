"""The YAML at the head of a README: read in one place, within limits, once for each content.

The text is bounded in bytes, depth, nodes and seconds before anything is built of it, and has no aliases, so that
what is built is no larger than what was sent. One card is read at a time in a process, however many ask, as they
would hold up everything else, and as long a pause follows; what was read is kept by the SHA-256 of its text.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import yaml  # type: ignore[import-untyped]

MOST_BYTES = 64 * 1024
"""Bytes of the YAML that are read."""
MOST_DEPTH = 32
MOST_NODES = 4000
MOST_SECONDS = 0.5
_MOST_NUMBER = 300
_KEPT = 2048
_KEPT_BYTES = 4 << 20
_OPENING = re.compile(r"[\s\ufeff]{0,1000}---[ \t]*\r?\n")
_CLOSING = re.compile(r"^---[ \t]*\r?$", re.MULTILINE)
# What PyYAML's constructors raise for values that are not of the type that their tag says.
_WRONG_VALUES = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
# libyaml's, where PyYAML was built with it: ten times as fast.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]  # an untyped base
    """A safe loader that leaves numbers of many digits as the text that they are."""

    def construct_yaml_int(self, node: Any) -> object:
        text = self.construct_scalar(node)
        return text if len(text) > _MOST_NUMBER else super().construct_yaml_int(node)

    def construct_yaml_float(self, node: Any) -> object:
        text = self.construct_scalar(node)
        return text if len(text) > _MOST_NUMBER else super().construct_yaml_float(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)


@dataclass(frozen=True)
class Card:
    """What the head of a README says: its fields, as JSON has them, or what is wrong with it."""

    data: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


_cards: OrderedDict[bytes, tuple[Card, int]] = OrderedDict()
_guard, _reading = threading.Lock(), threading.Lock()
_kept_bytes = 0


def read_card(content: str) -> Card:
    """The card of a README: empty where it has no YAML. Safe from several threads."""
    opening = _OPENING.match(content)
    if opening is None:
        return Card()
    # No further than what is read at all: a README may be a MiB.
    closing = _CLOSING.search(content, opening.end(), opening.end() + MOST_BYTES + 8)
    if closing is None:
        if len(content) - opening.end() <= MOST_BYTES:
            return Card()
        return Card(problems=(f"the YAML at the head is larger than {MOST_BYTES} bytes",))
    block = content[opening.end() : closing.start()].encode("utf-8", "replace")
    key = hashlib.sha256(block).digest()
    if (known := _known(key)) is None:
        with _reading:
            if (known := _known(key)) is None:
                start = time.monotonic()
                known = _keep(key, _read(block), len(block))
                # Half of the time at most goes to cards, whoever sends how many: everybody else has the rest.
                time.sleep(min(time.monotonic() - start, MOST_SECONDS))
    return known


def card_data(content: str) -> dict[str, Any]:
    """The fields of a README's YAML, as JSON has them; nothing where there is none, or none that parses."""
    return read_card(content).data


def card_problems(content: str) -> list[str]:
    """What is wrong with a README's YAML."""
    return list(read_card(content).problems)


def _known(key: bytes) -> Card | None:
    with _guard:
        if (item := _cards.get(key)) is None:
            return None
        _cards.move_to_end(key)
        return item[0]


def _keep(key: bytes, card: Card, size: int) -> Card:
    global _kept_bytes  # noqa: PLW0603 -- of the process, as the cards are
    with _guard:
        _cards[key] = card, size
        _kept_bytes += size
        while len(_cards) > _KEPT or _kept_bytes > _KEPT_BYTES:
            _kept_bytes -= _cards.popitem(last=False)[1][1]
    return card


def _read(block: bytes) -> Card:
    if len(block) > MOST_BYTES:
        return Card(problems=(f"the YAML at the head is larger than {MOST_BYTES} bytes",))
    try:
        if problem := _expensive(block):
            return Card(problems=(problem,))
        document = yaml.load(block, Loader=_Loader)  # noqa: S506 -- a safe loader
        if document is not None and not isinstance(document, dict):
            return Card(problems=("the YAML at the head is not a mapping",))
        # YAML has dates, keys and numbers that JSON has not.
        # Encoded, as not every loader refuses half a surrogate pair, which no page or answer could hold.
        text = json.dumps(document or {}, default=str, skipkeys=True, ensure_ascii=False).encode()
        return Card(json.loads(text, parse_constant=lambda _: None))
    except (yaml.YAMLError, *_WRONG_VALUES) as error:
        reason = " ".join(str(error).encode("utf-8", "replace").decode().split())[:500]
        if "maximum nesting depth" in reason:  # PyYAML's own, from 6.0.4 on, which its scanner meets first
            return Card(problems=(_TOO_DEEP,))
        return Card(problems=(f"the YAML at the head does not parse: {reason}",))


_TOO_DEEP = f"the YAML at the head is nested more than {MOST_DEPTH} deep"


def _expensive(block: bytes) -> str | None:
    """What makes a small text large or slow to read. Events cost no stack, however deep they are."""
    depth = nodes = 0
    end = time.monotonic() + MOST_SECONDS
    for event in yaml.parse(block, Loader=_Base):
        if isinstance(event, yaml.AliasEvent):
            return "the YAML at the head has aliases; write what they stand for"
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        nodes += isinstance(event, yaml.NodeEvent)
        if depth > MOST_DEPTH:
            return _TOO_DEEP
        if nodes > MOST_NODES:
            return f"the YAML at the head has more than {MOST_NODES} values"
        if time.monotonic() > end:
            return f"the YAML at the head takes more than {MOST_SECONDS} s to read"
    return None
