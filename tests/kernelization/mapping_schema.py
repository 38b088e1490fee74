"""mappings/schema.json as a checker."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import jsonschema

from kernels_hub.kernelization.mapping_file import _shipped_folder


@lru_cache(maxsize=1)
def _validator() -> Any:
    schema = json.loads((_shipped_folder() / "schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def schema_errors(document: dict[str, Any]) -> list[str]:
    """What the JSON Schema has against a parsed mapping file."""
    return [f"{error.json_path}: {error.message}" for error in _validator().iter_errors(document)]
