"""The YAML at the head of a README."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml  # type: ignore[import-untyped]

_BLOCK = re.compile(r"\A\s*---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_MAX_BLOCK = 64 * 1024
_MAX_DEPTH = 32
_OPENING = (
    *(yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken),
    *(yaml.BlockSequenceStartToken, yaml.BlockMappingStartToken),
)
_CLOSING = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)


def card_data(content: str) -> dict[str, Any]:
    """The fields of a README's YAML, as JSON has them; nothing where there is none, or none that parses."""
    match = _BLOCK.match(content)
    if match is None or _problems(match[1]):
        return {}
    # YAML has dates, keys and numbers that JSON has not.
    text = json.dumps(yaml.safe_load(match[1]) or {}, default=str, skipkeys=True)
    document: dict[str, Any] = json.loads(text, parse_constant=lambda _: None)
    return document


def card_problems(content: str) -> list[str]:
    """What is wrong with a README's YAML."""
    match = _BLOCK.match(content)
    return [] if match is None else _problems(match[1])


def _problems(block: str) -> list[str]:
    if len(block) > _MAX_BLOCK:
        return [f"the YAML at the head is larger than {_MAX_BLOCK} characters"]
    try:
        if problem := _expensive(block):
            return [problem]
        document = yaml.safe_load(block)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return [f"the YAML at the head does not parse: {str(error)[:500]}"]
    return [] if document is None or isinstance(document, dict) else ["the YAML at the head is not a mapping"]


def _expensive(block: str) -> str | None:
    """What makes a small text large or slow to read."""
    depth = 0
    for token in yaml.scan(block):
        if isinstance(token, yaml.AliasToken):
            return "the YAML at the head has aliases; write what they stand for"
        depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
        if depth > _MAX_DEPTH:
            return f"the YAML at the head is nested more than {_MAX_DEPTH} deep"
    return None
