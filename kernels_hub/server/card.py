"""The YAML at the head of a README."""

from __future__ import annotations

import re
from typing import Any

import yaml  # type: ignore[import-untyped]

_BLOCK = re.compile(r"\A\s*---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_MAX_BLOCK = 256 * 1024


def card_data(content: str) -> dict[str, Any]:
    """The fields of a README's YAML; nothing where there is none, or none that parses."""
    match = _BLOCK.match(content)
    if match is None or len(match[1]) > _MAX_BLOCK:
        return {}
    try:
        document = yaml.safe_load(match[1])
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def card_problems(content: str) -> list[str]:
    """What is wrong with a README's YAML."""
    match = _BLOCK.match(content)
    if match is None:
        return []
    if len(match[1]) > _MAX_BLOCK:
        return [f"the YAML at the head is larger than {_MAX_BLOCK} bytes"]
    try:
        document = yaml.safe_load(match[1])
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return [f"the YAML at the head does not parse: {str(error)[:500]}"]
    return [] if document is None or isinstance(document, dict) else ["the YAML at the head is not a mapping"]
