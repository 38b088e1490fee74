"""Shortens error messages about shapes: replaces long size arithmetic by the names in it."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LONG = 24
"""Characters of arithmetic on sizes that are still shown."""
_GROUP = re.compile(r"\([\w\s\"'+\-*/,().$#]*\)")
_NAME = re.compile(r"\"[^\"]*\"|[A-Za-z_$][\w.$]*")
_FUNCTIONS = frozenset({"min", "max", "mod"})


def shortened(text: str) -> str:
    """2*(((("h" + 1)//2 + 1)//2 + 1)//2 + 1) as 2*(… "h" …), wherever that stands in a message."""
    return _GROUP.sub(lambda found: _short(found.group()), text)


def _short(group: str) -> str:
    """Balanced groups of parentheses in a piece of text, those of long arithmetic replaced."""
    parts: list[str] = []
    depth = start = 0
    for index, letter in enumerate(group):
        if letter == "(":
            if not depth:
                parts.append(group[start:index])
                start = index
            depth += 1
        elif letter == ")" and depth:
            depth -= 1
            if not depth:
                parts.append(_replaced(group[start : index + 1]))
                start = index + 1
    return "".join([*parts, group[start:]])


def _replaced(group: str) -> str:
    if len(group) <= _LONG or "//" not in group:
        return group
    return f"(… {', '.join(_names(group))} …)"


def _names(text: str) -> Iterable[str]:
    return dict.fromkeys(name for name in _NAME.findall(text) if name not in _FUNCTIONS)
