"""Every row of the table of derivatives against finite differences in float64."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_hub.compiler.autodiff.rules import DERIVATIVES, FLAT, add_derivative
from kernels_hub.compiler.autodiff.rules.pointwise import derivative
from kernels_hub.compiler.errors import TypeRuleError
from kernels_hub.compiler.ir.ops import OPS
from tests.compiler.autodiff.gradcheck import assert_gradient, gradcheck
from tests.compiler.autodiff.rule_cases import ROWS, Case, floats


@pytest.mark.parametrize("case", ROWS, ids=lambda case: case.id)
def test_a_row(case: Case):
    both = gradcheck(case.graph(), case.inputs())
    assert both.backward.nodes


def test_every_row_has_a_case():
    """A row with no case is not known to be right; a case of no row tests nothing."""
    assert {case.row for case in ROWS} == set(DERIVATIVES)
    for case in ROWS:
        assert case.row in {node.op.name for node in case.graph().nodes}, case.id


def test_rows_are_of_the_op_table():
    assert set(DERIVATIVES) | FLAT <= set(OPS)
    assert not set(DERIVATIVES) & FLAT
    assert all(row.doc and row.op == name for name, row in DERIVATIVES.items())


def test_a_row_is_entered_once():
    with pytest.raises(TypeRuleError, match="'exp' has a derivative already"):
        add_derivative(derivative("exp", "another", lambda terms: terms.g))
    with pytest.raises(TypeRuleError, match="no op is called 'nothing'"):
        add_derivative(derivative("nothing", "of no op", lambda terms: terms.g))


def test_what_is_wrong_is_found():
    """The comparison that all of this rests on rejects what is slightly off."""
    right = floats(3, 4)
    assert_gradient("x", right, right)
    for wrong in (right * (1 + 1e-5), right.T, np.where(right > 1, np.nan, right)):
        with pytest.raises(AssertionError):
            assert_gradient("x", wrong, right)
