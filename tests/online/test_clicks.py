"""Propensities from swaps and from a click model, and the targets that clicks become."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_rank.online import PositionBasedModel, click_targets, swap_propensities

TRUE = np.array([1.0, 0.6, 0.45, 0.3])


def swapped(generator, n=40_000):
    """Impressions of results on pages where position 1 is swapped with another by a coin."""
    other = generator.integers(2, 5, n)
    attracts = generator.beta(2, 3, (n, 2))
    coin = generator.random(n) < 0.5
    columns = []
    for result in range(2):
        position = np.where(coin == bool(result), 1, other)
        clicked = generator.random(n) < TRUE[position - 1] * attracts[:, result]
        columns.append((np.ones(n, int), other, position, clicked, np.arange(n) // 2))
    return [np.concatenate(column) for column in zip(*columns, strict=True)]


def test_swaps_find_the_propensities():
    first, second, position, clicked, user = swapped(np.random.default_rng(0))
    found = swap_propensities(first, second, position, clicked, unit=user)
    assert found.propensity[0] == found.low[0] == found.high[0] == 1
    # Five standard errors, which the intervals have two of.
    reach = (np.log(found.high) - np.log(found.low)) / 2 * 5 / 1.96
    assert (np.abs(np.log(found.propensity) - np.log(TRUE)) <= reach + 1e-12).all()
    assert (reach < 0.2).all()


def test_intervals_of_swaps_cover():
    covered = 0
    for seed in range(200):
        *columns, user = swapped(np.random.default_rng(seed), 600)
        found = swap_propensities(*columns, unit=user)
        covered += int(found.low[1] <= TRUE[1] <= found.high[1])
    # 95 % of 200, and four standard deviations.
    assert 190 - 12 <= covered <= 200


def test_pairs_are_chained():
    # 1-2 and 2-3 swapped, 1-3 never: rates 0.8 : 0.4 and 0.5 : 0.25.
    def pair(i, j, rates, n=1000):
        return [(i, j, p, int(k < rate * n)) for p, rate in zip((i, j), rates, strict=True) for k in range(n)]

    columns = zip(*pair(1, 2, (0.8, 0.4)), *pair(2, 3, (0.5, 0.25)), strict=True)
    found = swap_propensities(*columns)
    np.testing.assert_allclose(found.propensity, [1, 0.5, 0.25], rtol=1e-12)
    # Delta method: Var ln(rate ratio) = sum of (1 - p) / (n p), added over the chain.
    variance = np.cumsum([0, 0.2 / 800 + 0.6 / 400, 0.5 / 500 + 0.75 / 250])
    np.testing.assert_allclose(
        np.log(found.high), np.log([1, 0.5, 0.25]) + 1.959963984540054 * np.sqrt(variance), rtol=1e-9
    )


def test_click_model_by_hand():
    """θ = γ(b) = x and γ(a) = 1 maximise the likelihood where 4x² + x = 2."""
    rows = (["q"] * 8, list("abab") * 2, [1, 2, 2, 1] * 2, [1, 0, 1, 1, 1, 1, 0, 0])
    model = PositionBasedModel(iterations=5000, tolerance=1e-14).fit(*rows)
    x = (math.sqrt(33) - 1) / 8
    np.testing.assert_allclose(model.propensities.propensity, [1, x], rtol=1e-5)
    assert model.attractiveness[("q", "a")] == pytest.approx(1, rel=1e-5)
    assert model.attractiveness[("q", "b")] == pytest.approx(x, rel=1e-5)


def test_click_model_finds_the_propensities_and_never_gets_less_likely():
    generator = np.random.default_rng(3)
    attracts = generator.uniform(0.1, 0.9, (50, 4))
    query, position = np.repeat(np.arange(50), 4 * 400), np.tile(np.arange(1, 5), 50 * 400)
    document = np.concatenate([generator.permutation(4) for _ in range(50 * 400)])
    clicked = generator.random(len(query)) < TRUE[position - 1] * attracts[query, document]
    model = PositionBasedModel(iterations=2000).fit(query, document, position, clicked)
    np.testing.assert_allclose(model.propensities.propensity, TRUE, atol=0.02)
    assert (np.diff(model.log_likelihood) >= -1e-12).all()
    assert np.corrcoef([model.attractiveness[q, d] for q in range(50) for d in range(4)], attracts.ravel())[0, 1] > 0.95


IMPRESSIONS = st.lists(
    st.tuples(st.sampled_from("qr"), st.sampled_from("abc"), st.integers(1, 3), st.booleans()), min_size=1
)


@given(IMPRESSIONS, st.floats(1, 5))
def test_targets_are_the_weighted_clicks_per_impression(rows, max_weight):
    propensities = {1: 1.0, 2: 0.5, 3: 0.125}
    found = click_targets(*zip(*rows, strict=True), propensities, max_weight=max_weight)
    pairs = list(dict.fromkeys((q, d) for q, d, _, _ in rows))
    assert list(zip(found.query, found.document, strict=True)) == pairs
    for i, pair in enumerate(pairs):
        own = [(p, c) for q, d, p, c in rows if (q, d) == pair]
        weights = [min(1 / propensities[p], max_weight) for p, c in own if c]
        assert found.impressions[i] == len(own)
        assert found.target[i] == bool(weights)
        assert found.relevance[i] == pytest.approx(sum(weights) / len(own))
        assert found.weight[i] == (pytest.approx(sum(weights) / len(own)) if weights else 1)
    weights = np.array([min(1 / propensities[p], max_weight) for _, _, p, c in rows if c])
    assert found.clicks == len(weights)
    assert found.effective_sample_size == pytest.approx(weights.sum() ** 2 / (weights**2).sum() if len(weights) else 0)
    assert found.clipped == sum(1 / propensities[p] > max_weight for _, _, p, c in rows if c)


def test_raw_clicks_weigh_one():
    found = click_targets(["q"] * 3, ["a", "a", "b"], [1, 2, 2], [1, 1, 0])
    assert found.relevance.tolist() == [1, 0]
    assert found.effective_sample_size == found.clicks == 2


def test_inverse_propensities_are_unbiased():
    """The mean target of a result does not depend on where the old ranker put it."""
    generator = np.random.default_rng(5)
    n = 200_000
    for place in (1, 4):
        clicked = generator.random(n) < TRUE[place - 1] * 0.4
        found = click_targets(["q"] * n, ["d"] * n, [place] * n, clicked, dict(enumerate(TRUE, 1)))
        assert found.relevance[0] == pytest.approx(0.4, abs=0.02)


ONE = {"query": ["q"], "document": ["d"], "position": [1], "clicked": [1]}


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: swap_propensities([], [], [], []), "must be an impression"),
        (lambda: swap_propensities([1], [1], [1], [1]), "two different positions"),
        (lambda: swap_propensities([1], [2], [3], [1]), "two different positions"),
        (lambda: swap_propensities([0], [2], [2], [1]), "`first` must be whole numbers from 1"),
        (lambda: swap_propensities([1, 1], [2, 2], [1, 2], [1, 0]), "none at 2 of the pair"),
        (lambda: swap_propensities([2, 2], [3, 3], [2, 3], [1, 1]), "joined to the first"),
        (lambda: swap_propensities([1], [2], [1], [2]), "0 or 1"),
        (lambda: swap_propensities([1, 1], [2, 2], [1, 2], [1, 1], unit=[1]), "1 for 2"),
        (lambda: PositionBasedModel(iterations=0), "`iterations`"),
        (lambda: PositionBasedModel(smoothing=-1), "at least 0"),
        (lambda: PositionBasedModel().fit(["q"], ["d"], [1], [0]), "must be a click"),
        (lambda: PositionBasedModel().fit(["q"] * 2, ["a", "b"], [1, 2], [1, 1]), r"Positions \[2\] must be comparable"),
        (lambda: PositionBasedModel().fit(["q"], ["a"], [2], [1]), "shown at position 1"),
        (lambda: click_targets([], [], [], []), "must be an impression"),
        (lambda: click_targets(**{**ONE, "document": []}), "one length"),
        (lambda: click_targets(**ONE, propensities={2: 1.0}), "1 is missing"),
        (lambda: click_targets(**ONE, propensities={1: 0.0}), "above 0"),
        (lambda: click_targets(**ONE, max_weight=0.5), "at least 1"),
        (lambda: click_targets(**{**ONE, "position": [0]}), "from 1"),
        (lambda: click_targets(**{**ONE, "clicked": [0.5]}), "0 or 1"),
    ],
)
def test_bad_input_is_refused(act, message):
    with pytest.raises(ValueError, match=message):
        act()


def test_propensities_end_where_they_were_estimated():
    found = swap_propensities([1, 1], [2, 2], [1, 2], [1, 1])
    assert found.at([2, 1]).tolist() == [1, 1]
    with pytest.raises(ValueError, match="at most 2"):
        found.at([3])
    with pytest.raises(ValueError, match="at most 2"):
        click_targets(["q"], ["d"], [3], [1], found)
