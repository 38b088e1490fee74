"""Addresses of object stores: what is taken, what is refused and in what words."""

from __future__ import annotations

import pytest

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.objects.address import S3Address
from kernels_hub.server.objects.store import checked, new_upload, upload_began

TAKEN = {
    "s3://bucket": S3Address("bucket", addressing="virtual"),
    "s3://bucket/a/b.c/": S3Address("bucket", "a/b.c", addressing="virtual"),
    "s3://b-1.x/p?endpoint=http://127.0.0.1:9000&region=eu-1": S3Address(
        "b-1.x", "p", "http://127.0.0.1:9000", "eu-1"
    ),
    "s3://bucket?endpoint=https://[::1]:9/&addressing=virtual&direct=no&public=https://s3.example.org&timeout=5": (
        S3Address("bucket", "", "https://[::1]:9", None, "https://s3.example.org", "virtual", False, 5)
    ),
}


@pytest.mark.parametrize("text", TAKEN)
def test_taken(text: str):
    address = S3Address.parse(text)
    assert address == TAKEN[text] == S3Address.parse(str(address))
    assert address.place == text.partition("?")[0].rstrip("/")


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "S3-compatible store"),
        ("/srv/objects", "S3-compatible store"),
        ("https://bucket/x", "S3-compatible store"),
        ("s3://", "cannot name a bucket"),
        ("s3://Bucket", "cannot name a bucket"),
        ("s3://a..b", "cannot name a bucket"),
        ("s3://bucket:80/x", "cannot name a bucket"),
        ("s3://key:secret@bucket/x", "must not hold credentials"),
        ("s3://bucket/../x", "is no prefix"),
        ("s3://bucket/a//b", "is no prefix"),
        ("s3://bucket/%2e%2e", "is no prefix"),
        ("s3://bucket/a b", "is no prefix"),
        ("s3://bucket#x", "unknown or given twice"),
        ("s3://bucket?secret=x", "'secret' that is unknown"),
        ("s3://bucket?region=a&region=b", "given twice"),
        ("s3://bucket?region=a/b", "is no region"),
        ("s3://bucket?endpoint=ftp://x", "endpoint takes http"),
        ("s3://bucket?endpoint=http://", "endpoint takes http"),
        ("s3://bucket?endpoint=http://key:secret@host", "endpoint takes http"),
        ("s3://bucket?endpoint=http://host/path", "endpoint takes http"),
        ("s3://bucket?endpoint=http://host:x", "endpoint takes http"),
        ("s3://bucket?public=host", "public takes http"),
        ("s3://bucket?addressing=dns", "path or virtual"),
        ("s3://bucket?direct=maybe", "yes or no"),
        ("s3://bucket?timeout=0", "1 to 9999 seconds"),
    ],
)
def test_refused(text: str, words: str):
    with pytest.raises(KernelsHubError, match=words) as refused:
        S3Address.parse(text)
    assert "secret@" not in str(refused.value)


@pytest.mark.parametrize(
    "repository, oid",
    [
        ("..", "0" * 64),
        ("0" * 32, "../" + "0" * 61),
        ("0" * 32, "0" * 63),
        ("A" * 32, "0" * 64),
        ("0" * 32, "0" * 64 + "\n"),
    ],
)
def test_nothing_else_is_part_of_a_key(repository: str, oid: str):
    checked("0" * 32, "0" * 64)
    with pytest.raises(ValueError, match="do not name an object"):
        checked(repository, oid)


def test_an_upload_says_when_it_began(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.5)
    one, two = new_upload(), new_upload()
    assert one != two and upload_began(one) == upload_began(two) == 1_800_000_000
    checked(one)
