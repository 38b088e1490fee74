"""Candidates and measurements as records: equal ones have one digest, JSON and pickle give them back."""

from __future__ import annotations

import json
import pickle

import pytest

from kernels_hub.compiler.search.candidate import Measured, SearchCandidate, SearchError

ONE = SearchCandidate("graph", {"split": 8, "apart": "1,2"}, "somehow", 1e-5)
ROW = Measured(ONE.digest, "slower", 2e-5, "timed", {"kernels": 3})


def test_a_digest_is_of_what_runs():
    assert ONE.digest == SearchCandidate("graph", {"apart": "1,2", "split": 8}, "elsewise", 2.0).digest
    others = [
        SearchCandidate("graph "),
        SearchCandidate("graph", {"split": 8}),
        SearchCandidate("graph", {"split": "8", "apart": "1,2"}),
    ]
    assert len({one.digest for one in (ONE, *others)}) == 4
    assert len(ONE.digest) == 32


@pytest.mark.parametrize("one", [ONE, ROW], ids=["candidate", "measured"])
def test_records_come_back(one):
    assert type(one).from_dict(json.loads(json.dumps(one.to_dict()))) == one
    assert pickle.loads(pickle.dumps(one)) == one
    assert len({one, pickle.loads(pickle.dumps(one))}) == 1


@pytest.mark.parametrize(
    "row", [{}, {"graph": "g"}, {"graph": "g", "choices": 3, "origin": "", "predicted": 0}]
)
def test_what_is_no_record_is_refused(row):
    with pytest.raises(SearchError, match="no candidate"):
        SearchCandidate.from_dict(row)
    with pytest.raises(SearchError, match="no measurement"):
        Measured.from_dict(row)


def test_what_is_no_choice_and_no_status_is_refused():
    with pytest.raises(SearchError, match="a choice is a name with"):
        SearchCandidate("graph", {"split": 1.5})  # type: ignore[dict-item]
    with pytest.raises(SearchError, match="a status is one of"):
        Measured("d", "best")  # type: ignore[arg-type]


def test_only_what_was_timed_ran():
    assert ROW.ran
    assert not Measured("d", "slower").ran
    assert not Measured("d", "wrong", None, "differs").ran
