"""Corrected p-values: against statsmodels, and laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from lightning_rank.stats import adjust

NAMES = {"bonferroni": "bonferroni", "holm": "holm", "hochberg": "simes-hochberg", "bh": "fdr_bh", "by": "fdr_by"}
PVALUES = st.lists(st.floats(0, 1) | st.sampled_from((0.0, 0.01, 0.05, 1.0)), min_size=1, max_size=9)
every_method = pytest.mark.parametrize("method", NAMES)


@every_method
@given(PVALUES)
def test_corrections_are_those_of_statsmodels(method, pvalues):
    np.testing.assert_allclose(adjust(pvalues, method), multipletests(pvalues, method=NAMES[method])[1], rtol=1e-12)


@every_method
@given(PVALUES, st.randoms(use_true_random=False))
def test_order_is_kept_and_does_not_matter(method, pvalues, random):
    order = random.sample(range(len(pvalues)), len(pvalues))
    shuffled = adjust([pvalues[i] for i in order], method)
    assert shuffled.tolist() == [adjust(pvalues, method)[i] for i in order]


@every_method
@given(PVALUES)
def test_corrections_raise_and_keep_the_order_of_evidence(method, pvalues):
    corrected = adjust(pvalues, method)
    assert (corrected >= np.array(pvalues)).all()
    assert (corrected <= 1).all()
    assert (np.diff(corrected[np.argsort(pvalues)]) >= 0).all()


@every_method
@given(PVALUES, st.integers(0, 9))
def test_nan_stays_and_is_not_counted(method, pvalues, place):
    place = min(place, len(pvalues))
    corrected = adjust([*pvalues[:place], math.nan, *pvalues[place:]], method)
    assert math.isnan(corrected[place])
    assert np.delete(corrected, place).tolist() == adjust(pvalues, method).tolist()


@given(PVALUES)
def test_stricter_methods_give_larger_values(pvalues):
    by_method = {method: adjust(pvalues, method) for method in NAMES}
    for weak, strong in (("bh", "hochberg"), ("hochberg", "holm"), ("holm", "bonferroni"), ("bh", "by")):
        assert (by_method[weak] <= by_method[strong] + 1e-15).all()


def test_a_table_is_one_family():
    table = [[0.01, 0.04], [0.03, 0.005]]
    assert adjust(table).tolist() == adjust(np.ravel(table)).reshape(2, 2).tolist()
    assert adjust([]).tolist() == []
    assert np.isnan(adjust([math.nan])).all()


def test_what_is_given_is_not_changed():
    given_values = np.array([0.04, 0.01])
    adjust(given_values)
    assert given_values.tolist() == [0.04, 0.01]


@pytest.mark.parametrize(
    ("pvalues", "method", "message"),
    [
        ([0.1, 1.2], "holm", r"`pvalues` must be within \[0, 1\], got 1.2"),
        ([-0.1], "holm", r"`pvalues` must be within \[0, 1\], got -0.1"),
        ([0.1], "tukey", "`method` must be one of 'holm', 'bonferroni'"),
        (["x"], "holm", "`pvalues` must be a sequence of numbers"),
        (0.1, "holm", "`pvalues` must be a sequence of numbers"),
    ],
)
def test_bad_pvalues(pvalues, method, message):
    with pytest.raises(ValueError, match=message):
        adjust(pvalues, method)
