"""CSAT: answers by hand and from a log, who did not answer, merges, bad ratings."""

from __future__ import annotations

import math
from functools import reduce
from operator import or_

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_rank.online import Satisfaction
from lightning_rank.stats import wilson
from tests.online.logs import row

ANSWERS = st.lists(st.none() | st.just(math.nan) | st.integers(1, 5), max_size=12)


def of(ratings, *, invited=None, **options):
    made = Satisfaction(**options)
    made.update(ratings, invited=invited)
    return made


@given(st.lists(ANSWERS, min_size=1, max_size=4), st.data())
def test_batches_add_up(batches, data):
    found = reduce(
        or_, [of(batch, invited=len(batch) + i) for i, batch in data.draw(st.permutations(list(enumerate(batches))))]
    )
    answers = [a for batch in batches for a in batch if a is not None and not math.isnan(a)]
    result = found.compute(alpha=0.1)
    satisfied, asked = sum(a >= 4 for a in answers), sum(len(batch) + i for i, batch in enumerate(batches))
    assert (result.satisfied, result.total) == (satisfied, len(answers))
    if answers:
        expected = wilson(satisfied, len(answers), alpha=0.1)
        assert (result.value, result.low, result.high) == (expected.estimate, expected.low, expected.high)
        assert result.mean == pytest.approx(np.mean(answers))
    else:
        assert math.isnan(result.value)
        assert math.isnan(result.mean)
    if asked:
        assert result.response_rate == len(answers) / asked
        assert result.worst == satisfied / asked
        assert result.best == pytest.approx((satisfied + asked - len(answers)) / asked)


def test_non_response_is_warned_of():
    assert "only 30 % answered" in of([5, 5, 4], invited=10).compute().warning
    assert "from 30 to 100 %" in str(of([5, 5, 4], invited=10).compute())
    assert of([5, 5, 4], invited=4).compute().warning == ""
    assert "not known how many" in of([5, 4]).compute().warning
    assert of([]).compute().warning == "nobody answered"


def test_one_batch_of_unknown_size_makes_the_response_unknown():
    assert of([5, None]).compute().response_rate == 0.5
    assert math.isnan((of([5, None]) | of([4, 4])).compute().response_rate)
    assert (of([5, None]) | of([], invited=2)).compute().response_rate == 0.25


def log(*ratings):
    return [row(timestamp=i, user=f"u{i}", event="survey", rating=rating) for i, rating in enumerate(ratings)]


def test_ratings_of_a_log():
    found = Satisfaction()
    found.update_events(log(5, 4, None, 1))
    result = found.compute()
    assert (result.satisfied, result.total, result.response_rate) == (2, 3, 0.75)
    assert found.units().unit == ["u0", "u1", "u3"]
    yes_or_no = Satisfaction()
    yes_or_no.update_events(log(True, None, False, True))
    result = yes_or_no.compute()
    assert (result.satisfied, result.total) == (2, 3)
    assert math.isnan(result.mean)
    answers_alone = Satisfaction()
    answers_alone.update_events(log(5, 4))
    assert math.isnan(answers_alone.compute().response_rate), "nobody knows who was asked"


def test_other_scales():
    result = of([0, 7, 10, 9], scale=(0, 10), threshold=9).compute()
    assert (result.satisfied, result.total, result.mean) == (2, 4, 6.5)
    assert of([False, True, np.True_]).compute().satisfied == 2


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: of([6]), "scale 1 to 5, got 6"),
        (lambda: of([0.5]), "scale 1 to 5"),
        (lambda: of([math.inf]), "scale 1 to 5"),
        (lambda: of(["good"]), "got 'good'"),
        (lambda: of({"timestamp": [1], "rating": [5]}), "ratings alone, .* got a table, dict. .* `update_events`"),
        (lambda: of(pl.DataFrame({"rating": [5]})), "got a table, DataFrame"),
        (lambda: of([{"timestamp": 1, "rating": 5}]), "must be a number.* `update_events`"),
        (lambda: of([True, 4]), "not both"),
        (lambda: (of([True]) | of([4])).compute(), "not both"),
        (lambda: of([5, 5], invited=1), "`invited` must be at least"),
        (lambda: of([5], invited=-1), "`invited`"),
        (lambda: Satisfaction(threshold=6), "`threshold` must be on the scale"),
        (lambda: Satisfaction(scale=(5, 1)), "above 5"),
        (lambda: Satisfaction(scale=(0, 10), threshold=4) | Satisfaction(), "equal options"),
    ],
)
def test_bad_input_is_refused(act, message):
    with pytest.raises(ValueError, match=message):
        act()


def test_numbers_after_booleans_are_refused_and_leave_the_state():
    found = of([True, False])
    with pytest.raises(ValueError, match="not both"):
        found.update([4])
    assert found.compute().total == 2
