"""Ways to damage an input: bytes of any format, and values inside a JSON-like tree.

Each takes the input and a `random.Random`, and returns a damaged copy. Some leave the input valid, as a parser must
be tested on what it accepts, too.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

# Strings that have broken parsers, paths, sources, terminals and pages.
HOSTILE_TEXTS: tuple[str, ...] = (
    "", " ", ".", "..", "../x", "../../../../../etc/x", "/etc/x", "a/../../x", "a//b", "C:\\x", "\\\\host\\x", "~/x",
    ".git/config", "CON", "a\0b", "a\nb", "a\r\nb", "*/", "/*", "??/", "??/\n", "\\", "\\\n", "//", '"', "'", "`", "${x}",
    '"""', "'''", "\u2028", "\u2029", "\x85", "\x0b", "\x1b[31m", "\x1b]0;x\x07", "\x9b31m", "\u202e", "\u2066", "\ufeff",
    "<script>alert(1)</script>", "]]>", "-->", "&amp;", "%2e%2e%2f", "%00", "NaN", "0", "-1", "1e999", "0x10", "true",
    "\u0660", "a" * 65_536, "\U0001f600", "e\u0301", "x;import os", "__import__('os')", "\ud800",
)  # fmt: skip

HOSTILE_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**40, 0.5, -0.0, 1e308, [], {}, [[]], {"": None},
)  # fmt: skip


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    """Flip, drop, repeat, cut or insert a few bytes, at a few places; now and then leave all as it is."""
    out = bytearray(data)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 4))):
        at = chance.randrange(len(out) + 1)
        span = chance.choice((1, 1, 2, 4, 16))
        match chance.randrange(6):
            case 0 if at < len(out):
                out[at] ^= 1 << chance.randrange(8)
            case 1:
                del out[at : at + span]
            case 2:
                out[at:at] = out[at : at + span]
            case 3:
                del out[at:]
            case 4:
                out[at:at] = bytes(chance.randrange(256) for _ in range(span))
            case _:
                out[at : at + span] = chance.choice((b"\0", b"\xff", b"\n", b"\x7f")) * min(
                    span, len(out) - at
                )
    return bytes(out)


def mutate_tree(tree: Any, chance: random.Random, values: Sequence[Any] = HOSTILE_VALUES) -> Any:
    """A copy of a JSON-like tree with a value replaced, a key dropped, renamed or added, or a list changed."""
    copied = copy.deepcopy(tree)
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        places = [place for place in _places(copied) if place]
        if not places:
            return copied
        *path, last = chance.choice(places)
        holder = copied
        for step in path:
            holder = holder[step]
        match chance.randrange(6):
            case 0:
                holder[last] = copy.deepcopy(chance.choice(values))
            case 1:
                holder[last] = chance.choice(HOSTILE_TEXTS)
            case 2:
                del holder[last]
            case 3 if isinstance(holder, dict):
                holder[chance.choice(HOSTILE_TEXTS)] = copy.deepcopy(holder[last])
            case 4 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[last]))
            case _:
                if isinstance(holder[last], str):
                    text = holder[last]
                    at = chance.randrange(len(text) + 1)
                    holder[last] = text[:at] + chance.choice(HOSTILE_TEXTS) + text[at:]
                else:
                    holder[last] = copy.deepcopy(chance.choice(values))
    return copied


def mutate_json(data: bytes, chance: random.Random) -> bytes:
    """Damage a JSON document: mostly its values, at times its bytes."""
    if chance.random() < 0.3:
        return mutate_bytes(data, chance)
    return json.dumps(mutate_tree(json.loads(data), chance), ensure_ascii=chance.random() < 0.5).encode(
        "utf-8", "surrogatepass"
    )


def either(*mutations: Callable[[bytes, random.Random], bytes]) -> Callable[[bytes, random.Random], bytes]:
    """One of several mutations, drawn anew for each variant."""
    return lambda data, chance: chance.choice(mutations)(data, chance)


def _places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a tree, itself included."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(place for key, child in children for place in _places(child, (*path, key)))]
