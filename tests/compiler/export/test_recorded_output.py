"""What a forward says is noted, and said as it would have been."""

from __future__ import annotations

import contextlib
import threading
import warnings
from typing import Any

import pytest

from kernels_hub.compiler.export.recorded_output import spoken


def says(*more: Any, **named: Any) -> None:
    warnings.warn("a word", UserWarning, *more, **named)


@pytest.mark.parametrize(
    ("more", "named"), [((), {}), ((2,), {}), ((), {"stacklevel": 2}), ((), {"stacklevel": 1})]
)
def test_a_warning_is_of_the_place_of_which_it_is_without(
    more: tuple[Any, ...], named: dict[str, Any]
) -> None:
    places = []
    for noted in (contextlib.nullcontext([]), spoken()):
        with warnings.catch_warnings(record=True) as caught, noted as found:
            warnings.simplefilter("always")
            says(*more, **named)
        (one,) = caught
        places.append((one.filename, one.lineno))
    assert places[0] == places[1]
    assert len(found) == 1 and found[0].startswith("warns at test_recorded_output.py:")


def test_each_thread_has_its_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    begun, done = threading.Event(), threading.Event()
    theirs: list[list[str]] = []

    def other() -> None:
        with spoken() as found:
            theirs.append(found)
            begun.set()
            assert done.wait(10)
            print("other")

    plain = print
    with spoken() as ours:
        thread = threading.Thread(target=other)
        thread.start()
        assert begun.wait(10)
        print("ours")
    done.set()  # it ends after the one that began first
    thread.join(10)
    assert len(ours) == 1 and len(theirs[0]) == 1 and print is plain
    assert capsys.readouterr().out == "ours\nother\n"
