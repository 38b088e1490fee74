"""Documents from outside become records, or one clear error."""

from __future__ import annotations

import pytest

from kernels_hub.errors import KernelsHubError, LockError, MetadataError
from kernels_hub.parsing import (
    CommitId,
    Name,
    RelativePath,
    RepositoryId,
    Sha256,
    Struct,
    convert,
    parse_json,
    parse_toml,
)
from tests.fuzz import harness
from tests.fuzz.mutations import mutate_json


class Row(Struct, frozen=True):
    path: RelativePath
    sha256: Sha256
    size: int = 0


class Document(Struct, frozen=True):
    repository: RepositoryId
    commit: CommitId
    rows: list[Row]
    name: Name | None = None


GOOD = b'{"repository": "a/b", "commit": "%s", "rows": [{"path": "x/y", "sha256": "%s"}], "more": 1}' % (
    b"0" * 40,
    b"a" * 64,
)


def test_a_document_becomes_a_record() -> None:
    document = parse_json(GOOD, Document, where="x.json")
    assert document.rows[0].path == "x/y"
    assert isinstance(document.rows[0].path, RelativePath)
    assert (
        parse_toml(b'repository = "a/b"\ncommit = "%s"\nrows = []' % (b"0" * 40), Document, where="x").rows
        == []
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "x.json"),
        (b"\xff", "x.json"),
        (b"[]", "Expected `object`, got `array`"),
        (b"[" * 100_000, "x.json"),
        (GOOD.replace(b"x/y", b"../y"), r"has the part '\.\.'.*\$\.rows\[0\]\.path|\$\.rows\[0\]\.path.*"),
        (GOOD.replace(b"a" * 64, b"a" * 63), r"\$\.rows\[0\]\.sha256"),
        (GOOD.replace(b"a" * 64, b"a" * 63 + b"\\n"), r"\$\.rows\[0\]\.sha256"),
        (GOOD.replace(b"0" * 40, b"0" * 40 + b"\\n"), r"\$\.commit"),
        (GOOD.replace(b"a/b", b"a/b/c"), r"\$\.repository"),
        (GOOD.replace(b"x/y", b"\\ud800"), "x.json"),
    ],
)
def test_anything_else_is_one_error_that_names_the_place(data: bytes, message: str) -> None:
    for unique in (False, True):
        with pytest.raises(LockError, match=message) as raised:
            parse_json(data, Document, where="x.json", error=LockError, advice="do this", unique_keys=unique)
        assert str(raised.value).startswith("x.json: ")
        assert str(raised.value).endswith("; do this")
        assert len(str(raised.value)) < 400 and str(raised.value).isprintable()


def test_repeated_keys_and_long_documents() -> None:
    twice = GOOD.replace(b'"more": 1', b'"commit": "%s"' % (b"1" * 40))
    assert parse_json(twice, Document, where="x").commit == "1" * 40
    with pytest.raises(MetadataError, match="stands twice"):
        parse_json(twice, Document, where="x", unique_keys=True)
    with pytest.raises(MetadataError, match="at most 10 are read"):
        parse_json(GOOD, Document, where="x", most_bytes=10)
    with pytest.raises(MetadataError, match="commit"):
        convert({"repository": "a/b", "commit": 1, "rows": []}, Document, where="x")


def test_variants_raise_nothing_else() -> None:
    harness.run(
        "json",
        [GOOD],
        mutate_json,
        lambda data: parse_json(data, Document, where="x"),
        (KernelsHubError,),
        count=2000,
    )
