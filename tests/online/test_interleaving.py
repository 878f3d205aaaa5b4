"""Team-draft interleaving: the list, the credit, the test of the outcome."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from lightning_rank.online import credit, interleaving_outcome, team_draft
from lightning_rank.stats import wilson

RANKINGS = st.lists(st.integers(0, 9), unique=True, max_size=8)


@given(RANKINGS, RANKINGS, st.none() | st.integers(0, 12), st.integers(0, 1000))
def test_each_pick_is_the_best_left_of_the_ranker_whose_turn_it_is(a, b, length, seed):
    documents, teams = team_draft(a, b, length=length, seed=seed)
    everything = set(a) | set(b)
    assert len(documents) == len(teams) == len(set(documents)) == min(len(everything), 99 if length is None else length)
    for i, (document, team) in enumerate(zip(documents, teams, strict=True)):
        left = {"a": [d for d in a if d not in documents[:i]], "b": [d for d in b if d not in documents[:i]]}
        assert left[team][0] == document
        other = "b" if team == "a" else "a"
        if left[other]:
            assert teams[:i].count(team) <= teams[:i].count(other)
    assert team_draft(a, b, length=length, seed=seed) == (documents, teams)


def test_the_coin_is_fair_and_so_is_a_random_clicker():
    """Two lists that balanced interleaving judges 2 : 1 for a clicker who does not read."""
    coin = random.Random(1)
    first, wins = Counter(), Counter()
    for _ in range(6000):
        shown = team_draft([2, 3, 1], [1, 2, 3], seed=coin)
        first[shown.teams[0]] += 1
        wins[credit(shown, [coin.choice(shown.documents)])] += 1
    assert binomtest(first["a"], 6000).pvalue > 1e-3
    assert wins["tie"] == 0
    assert binomtest(wins["a"], 6000).pvalue > 1e-3


def test_a_clicked_document_credits_its_team_once():
    shown = team_draft(["x", "y", "z", "v"], ["z", "x", "w", "v"], seed=3)
    team = dict(zip(*shown, strict=True))
    of_a, of_b = ([d for d in shown.documents if team[d] == name] for name in "ab")
    assert credit(shown, []) == "tie"
    assert credit(shown, of_a[:1]) == "a"
    assert credit(shown, [of_b[0], of_a[0], of_b[1]]) == "b"
    assert credit(shown, [of_a[0], of_a[0], of_b[0]]) == "tie"
    with pytest.raises(ValueError, match="in the list, got 'unknown'"):
        credit(shown, ["unknown"])


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 300))
def test_outcome_is_the_exact_binomial_test(wins_a, wins_b, ties):
    if not wins_a + wins_b + ties:
        return
    found = interleaving_outcome(wins_a, wins_b, ties)
    assert found.delta == pytest.approx((wins_b + ties / 2) / (wins_a + wins_b + ties) - 0.5, abs=1e-12)
    if wins_a + wins_b:
        assert found.pvalue == pytest.approx(binomtest(wins_b, wins_a + wins_b).pvalue, rel=1e-9)
        share = wilson(wins_b, wins_a + wins_b)
        assert (found.low, found.high) == (share.low, share.high)
    else:
        assert found.pvalue == 1


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: team_draft([1, 1], [2]), "once in the ranking a, got 1 twice"),
        (lambda: team_draft([1], [2, 3, 2]), "once in the ranking b, got 2 twice"),
        (lambda: team_draft([1], [2], length=-1), "`length`"),
        (lambda: interleaving_outcome(0, 0, 0), "must be an impression"),
        (lambda: interleaving_outcome(-1, 2), "`wins_a`"),
        (lambda: interleaving_outcome(1.5, 2), "`wins_a`"),
    ],
)
def test_bad_input_is_refused(act, message):
    with pytest.raises(ValueError, match=message):
        act()
