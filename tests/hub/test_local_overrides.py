"""LOCAL_KERNELS, on both kinds of systems."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels_hub.errors import MappingError
from kernels_hub.hub.local_overrides import local_override, parse_local_kernels

POSIX, WINDOWS = ":", ";"

PARSED = {
    ("a/b=/tmp/k", POSIX): {"a/b": "/tmp/k"},
    ("a/b=/tmp/k:c/d=rel/path", POSIX): {"a/b": "/tmp/k", "c/d": "rel/path"},
    ("a/b=/tmp/x=y:c/d=/z", POSIX): {"a/b": "/tmp/x=y", "c/d": "/z"},
    ("a/b=x:c/d=/y", POSIX): {"a/b": "x", "c/d": "/y"},
    (":a/b=/k:", POSIX): {"a/b": "/k"},
    (" a/b = /k : c/d = /l ", POSIX): {"a/b": "/k", "c/d": "/l"},
    ("a/b=/k:a/b=/k", POSIX): {"a/b": "/k"},
    ("a/b=/tmp/k;1:c/d=/l", POSIX): {"a/b": "/tmp/k;1", "c/d": "/l"},
    ("", POSIX): {},
    ("a/b=C:\\k:c/d=D:\\x", WINDOWS): {"a/b": "C:\\k", "c/d": "D:\\x"},
    ("a/b=C:\\k;c/d=D:\\x", WINDOWS): {"a/b": "C:\\k", "c/d": "D:\\x"},
    ("a/b=C:/k:c/d=d:/x;e/f=rel", WINDOWS): {"a/b": "C:/k", "c/d": "d:/x", "e/f": "rel"},
    ("a/b=\\\\server\\share:c/d=D:\\x;", WINDOWS): {"a/b": "\\\\server\\share", "c/d": "D:\\x"},
}


@pytest.mark.parametrize(("text", "pathsep"), PARSED)
def test_parse(text: str, pathsep: str) -> None:
    expected = PARSED[text, pathsep]
    assert parse_local_kernels(text, pathsep) == {repo_id: Path(path) for repo_id, path in expected.items()}


@pytest.mark.parametrize(
    "text", ["/tmp/k", "a/b", "a/b=", "=/tmp/k", "a/b=/k:/tmp/l", "a/b=/k:c/d", "a/b=/k:a/b=/l"]
)
def test_malformed(text: str) -> None:
    with pytest.raises(MappingError, match="LOCAL_KERNELS") as caught:
        parse_local_kernels(text, POSIX)
    assert isinstance(caught.value, ValueError)


def test_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert parse_local_kernels("h/h=~/kernels") == {"h/h": Path("/home/me/kernels")}


def test_the_environment_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_KERNELS", raising=False)
    assert local_override("a/b") is None
    monkeypatch.setenv("LOCAL_KERNELS", "a/b=/one")
    assert local_override("a/b") == Path("/one")
    assert local_override("c/d") is None
    monkeypatch.setenv("LOCAL_KERNELS", "a/b=/two")
    assert local_override("a/b") == Path("/two")
