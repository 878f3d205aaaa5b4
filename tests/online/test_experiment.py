"""Assignment, sums by user over days and shards, comparisons of arms, lift by day, novelty."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from functools import reduce
from operator import or_

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from lightning_rank.online import BounceRate, ClickThroughRate, Experiment, Signals, assign, novelty
from lightning_rank.stats import adjust, cuped, ratio_of_means, two_proportions, welch
from tests.online.logs import row

FIELDS = ("value_a", "value_b", "difference", "se", "statistic", "pvalue", "low", "high", "relative", "relative_low")


@given(st.text(min_size=1), st.text(), st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any))
def test_assignment_is_by_the_first_bytes_of_sha_256(unit, experiment, weights):
    bits = hashlib.sha256((experiment + "\x1f" + unit).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    ends = np.cumsum(weights)
    expected = next(i for i, end in enumerate(ends.tolist()) if end * 2**64 > int(bits, 16) * int(ends[-1]))
    assert assign(unit, experiment, weights) == expected
    assert assign(unit, experiment, {f"arm{i}": w / 8 for i, w in enumerate(weights)}) == f"arm{expected}"
    assert weights[expected] > 0


def test_arms_get_their_shares_and_experiments_are_unrelated():
    n, weights = 20_000, {"old": 0.7, "new": 0.2, "other": 0.1}
    pairs = Counter((assign(i, "one", weights), assign(i, "two", weights)) for i in range(n))
    first = Counter()
    for (arm, _), count in pairs.items():
        first[arm] += count
    assert scipy_stats.chisquare([first[arm] for arm in weights], [w * n for w in weights.values()]).pvalue > 1e-4
    table = [[pairs[a, b] for b in weights] for a in weights]
    assert scipy_stats.chi2_contingency(table).pvalue > 1e-4


def test_a_number_and_its_text_are_one_unit():
    weights = [1] * 1000
    assert (
        assign(7, "e", weights)
        == assign("7", "e", weights)
        == assign(7.0, "e", weights)
        == assign(np.int64(7), "e", weights)
    )


@pytest.mark.parametrize("weights", [[], [0, 0], [1, -1], {"a": math.nan}, {"a": "1"}])
def test_bad_weights_are_refused(weights):
    with pytest.raises(ValueError, match="`weights` must be"):
        assign("u", "e", weights)


@pytest.mark.parametrize("unit", [None, "", math.nan])
def test_a_unit_without_an_id_is_refused(unit):
    with pytest.raises(ValueError, match="must have an id"):
        assign(unit, "e", [1, 1])


VALUES = st.integers(0, 5)
ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6), VALUES, VALUES), min_size=2, max_size=25)


def updated(arms, rows):
    """An experiment with a row per user and day; users of the arms are different."""
    made = Experiment(list(arms))
    for arm in arms:
        own = [r for a, r in rows if a == arm]
        if own:
            user, day, clicks, more = (list(column) for column in zip(*own, strict=True))
            shown = [c + m for c, m in zip(clicks, more, strict=True)]
            made.update(arm, [f"{arm}{u}" for u in user], day=day, clicks=clicks, shown=shown)
    return made


def sums_of(rows):
    users = defaultdict(lambda: [0.0, 0.0])
    for user, _, clicks, more in rows:
        users[user][0] += clicks
        users[user][1] += clicks + more
    return np.array(list(users.values())).T


def assert_fields(result, expected, fields=FIELDS):
    for field in fields:
        np.testing.assert_allclose(getattr(result, field), getattr(expected, field), rtol=1e-9, atol=1e-12, err_msg=field)


@given(ROWS, ROWS, st.data())
def test_days_and_shards_add_up_to_users(old, new, data):
    """Tests of arms are those of ``stats`` on the sums by user, however the rows were split and joined."""
    arms = {"old": sums_of(old), "new": sums_of(new)}
    assume(all(table.shape[1] >= 2 and table[1].sum() > 0 for table in arms.values()))
    rows = [("old", r) for r in old] + [("new", r) for r in new]
    part = data.draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
    shards = [updated(arms, [r for r, p in zip(rows, part, strict=True) if p == i]) for i in range(3)]
    before = [shard.users() for shard in shards]
    experiment = reduce(or_, data.draw(st.permutations(shards)))
    assert [shard.users() for shard in shards] == before, "operands stay as they are"
    assert experiment.users() == {arm: table.shape[1] for arm, table in arms.items()}
    assert_fields(experiment.evaluate("clicks")["new"], welch(arms["old"][0], arms["new"][0]))
    expected = ratio_of_means(*arms["old"], *arms["new"])
    assert_fields(experiment.evaluate("clicks", "shown")["new"], expected)
    result = experiment.evaluate("clicks", covariate="shown", alternative="greater", alpha=0.1)["new"]
    expected = cuped(*arms["old"], *arms["new"], alternative="greater", alpha=0.1)
    assert_fields(result, expected, (*FIELDS, "variance_reduction"))


def test_users_without_ids_are_the_same():
    generator = np.random.default_rng(1)
    with_ids, without = Experiment(["a", "b"]), Experiment(["a", "b"])
    for arm in ("a", "b"):
        for shard in range(3):
            clicks = generator.poisson(2, 50) + 1e9
            with_ids.update(arm, [f"{arm}{shard}-{i}" for i in range(50)], clicks=clicks, shown=clicks + 1)
            without.update(arm, clicks=clicks, shown=clicks + 1)
    assert without.users() == with_ids.users() == {"a": 150, "b": 150}
    for metric in (("clicks",), ("clicks", "shown")):
        result, expected = (e.evaluate(*metric)["b"] for e in (without, with_ids))
        for field in ("difference", "se", "pvalue"):
            # Floats near 1e9 are 1.2e-7 apart, which is what the means of the shards can be off by.
            np.testing.assert_allclose(getattr(result, field), getattr(expected, field), rtol=5e-6)


def test_one_user_at_a_time():
    one, all_at_once = Experiment(["a", "b"]), Experiment(["a", "b"])
    for arm, clicks in (("a", [1, 0, 2]), ("b", [3, 1, 0])):
        all_at_once.update(arm, [f"{arm}{i}" for i in range(3)], clicks=clicks)
        for i, value in enumerate(clicks):
            one.update(arm, f"{arm}{i}", clicks=value)
    assert one.evaluate("clicks") == all_at_once.evaluate("clicks")


def test_proportions_and_correction_over_arms():
    experiment = Experiment({"old": 2, "new": 1, "other": 1})
    counts = {"old": (20, 200), "new": (22, 100), "other": (14, 100)}
    for arm, (successes, n) in counts.items():
        experiment.update(arm, [f"{arm}{i}" for i in range(n)], clicked=[1] * successes + [0] * (n - successes))
    results = experiment.evaluate("clicked", kind="proportion", adjust="bonferroni")
    for arm in ("new", "other"):
        expected = two_proportions(*counts["old"], *counts[arm])
        assert_fields(results[arm], expected, ("difference", "statistic", "pvalue", "low", "high", "relative"))
    corrected = adjust([r.pvalue for r in results.values()], "bonferroni")
    assert [r.adjusted for r in results.values()] == corrected.tolist()
    assert not experiment.sample_ratio().mismatch
    assert experiment.sample_ratio().expected == {"old": 200, "new": 100, "other": 100}


def test_the_control_may_be_named():
    experiment = Experiment(["new", "old"], control="old")
    assert experiment.arms == ["old", "new"]
    for arm, value in (("new", [3, 3, 4]), ("old", [1, 2, 1])):
        experiment.update(arm, clicks=value)
    assert experiment.evaluate("clicks")["new"].difference == pytest.approx(2)


def test_no_variance_has_a_stated_result():
    experiment = Experiment(["a", "b"])
    for arm in ("a", "b"):
        experiment.update(arm, clicks=[2] * 5, shown=[4] * 5, clicked=[1] * 5)
    for metric in (("clicks", None, None), ("clicks", "shown", None), ("clicked", None, "proportion")):
        result = experiment.evaluate(*metric[:2], kind=metric[2])["b"]
        assert (result.difference, result.statistic, result.pvalue) == (0, 0, 1)
        assert result.low <= 0 <= result.high
        assert "nan" not in str(result)


def test_an_update_after_a_look_counts():
    experiment = two_arms(clicks=[1, 2, 3])
    assert experiment.evaluate("clicks")["b"].difference == 0
    experiment.update("b", ["b0", "b9"], clicks=[4, 5])
    result = experiment.evaluate("clicks")["b"]
    assert (result.value_b, result.n_b) == (15 / 4, 4)
    assert experiment.users() == {"a": 3, "b": 4}


def test_a_unit_in_two_arms_is_refused_or_left_out():
    for mixed in ("refuse", "exclude"):
        experiment = Experiment(["a", "b"], mixed=mixed)
        experiment.update("a", ["x", "y", "z"], clicks=[1, 2, 3])
        experiment.update("b", ["u", "v", "z"], clicks=[4, 6, 99])
        assert experiment.mixed_units() == 1
        if mixed == "refuse":
            with pytest.raises(ValueError, match=r"1 are in several, such as 'z'"):
                experiment.evaluate("clicks")
        else:
            assert experiment.users() == {"a": 2, "b": 2}
            assert experiment.evaluate("clicks")["b"].difference == 3.5


def two_arms(**columns):
    experiment = Experiment(["a", "b"])
    for arm in ("a", "b"):
        experiment.update(arm, [f"{arm}{i}" for i in range(3)], **columns)
    return experiment


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: Experiment("ab"), "sequence of names"),
        (lambda: Experiment(["a"]), "two or more different names"),
        (lambda: Experiment(["a", "a"]), "two or more different names"),
        (lambda: Experiment({"a": 1, "b": 0}), "above 0"),
        (lambda: Experiment({"a": 1, "b": -1}), "above 0"),
        (lambda: Experiment(["a", "b"], control="c"), r"one of \['a', 'b'\], got 'c'"),
        (lambda: Experiment(["a", "b"], mixed="keep"), "'refuse', 'exclude'"),
        (lambda: Experiment(["a", "b"]).update("c", clicks=[1]), "got 'c'"),
        (lambda: Experiment(["a", "b"]).update("a"), "at least one column"),
        (
            lambda: Experiment(["a", "b"]).update("a", clicks=[1, math.nan]),
            "`clicks` must be finite, got nan at position 1",
        ),
        (lambda: Experiment(["a", "b"]).update("a", ["x"], clicks=[1, 2]), "1 ids for 2 entries"),
        (lambda: Experiment(["a", "b"]).update("a", clicks=[1, 2], shown=[1]), "of one length"),
        (lambda: Experiment(["a", "b"]).update("a", [None], clicks=[1]), "must have an id"),
        (lambda: Experiment(["a", "b"]).update("a", clicks=[1], day=1), "must come with `unit`"),
        (lambda: Experiment(["a", "b"]).update("a", ["x"], clicks=[1], day=[1, 2]), "2 for 1"),
        (lambda: Experiment(["a", "b"]).update("a", ["x"], clicks=[1], day=0.5), "whole numbers"),
        (lambda: two_arms(clicks=[1, 2, 3]).update("a", ["x"], shown=[1]), "`clicks`, got `shown`"),
        (lambda: two_arms(clicks=[1, 2, 3]).evaluate("click"), "there is no 'click'"),
        (lambda: two_arms(clicks=[1, 2, 3]).evaluate("clicks", adjust="none"), "method"),
        (lambda: two_arms(clicks=[1, 2, 3]).evaluate("clicks", kind="rate"), "'proportion'"),
        (lambda: two_arms(clicks=[1, 2, 0]).evaluate("clicks", kind="proportion"), "a user has 2 clicks"),
        (
            lambda: two_arms(clicks=[1, 1, 0], n=[2, 2, 2]).evaluate("clicks", "n", kind="proportion"),
            "the user as the unit",
        ),
        (lambda: two_arms(clicks=[1, 1, 0], n=[2, 2, 2]).evaluate("clicks", "n", covariate="n"), "without `denominator`"),
        (lambda: two_arms(clicks=[1, 1, 0], n=[2, -1, 2]).evaluate("clicks", "n"), "at least 0, got -1"),
        (lambda: two_arms(clicks=[1, 1, 0]) | two_arms(shown=[1, 1, 0]), "same columns"),
        (lambda: Experiment(["a", "b"]) | Experiment({"a": 1, "b": 2}), "same arms, weights and control"),
        (lambda: two_arms(clicks=[1, 1, 0]).lift_by_day("clicks"), "`unit` and `day`"),
        (lambda: two_arms(clicks=[1, 1, 0]).lift_by_day("clicks", since="birth"), "'start', 'exposure'"),
    ],
)
def test_bad_input_is_refused(act, message):
    with pytest.raises(ValueError, match=message):
        act()


@pytest.mark.parametrize("users", [0, 1])
def test_an_arm_with_too_few_users_is_refused(users):
    experiment = Experiment(["a", "b"])
    experiment.update("a", [1, 2, 3], clicks=[1, 2, 3])
    experiment.update("b", [f"b{i}" for i in range(users)], clicks=[1.0] * users)
    with pytest.raises(ValueError, match=f"'b' must have at least 2 users, got {users}"):
        experiment.evaluate("clicks")


def daily(generator, days=10, users=60):
    """Rows of users who come on some days, the first of them at any."""
    rows = []
    for arm in ("old", "new"):
        for user in range(users):
            first = int(generator.integers(0, 3))
            for day in range(days):
                if day == first or (day > first and generator.random() < 0.7):
                    rows.append((arm, (user, day, int(generator.poisson(2)), int(generator.poisson(3)))))
    return rows


@pytest.mark.parametrize("since", ["start", "exposure"])
@pytest.mark.parametrize("cumulative", [False, True])
def test_lift_by_day_is_that_of_the_users_of_the_day(since, cumulative):
    rows = daily(np.random.default_rng(5))
    experiment = updated(["old", "new"], rows)
    assert experiment.days() == list(range(10))
    first = {}
    for arm, (user, day, *_) in rows:
        first[arm, user] = min(day, first.get((arm, user), day))
    found = experiment.lift_by_day("clicks", "shown", since=since, cumulative=cumulative)
    assert len(found) == 10
    for today, result in enumerate(found):
        tables = []
        for arm in ("old", "new"):
            own = [(r, r[1] - (first[arm, r[0]] if since == "exposure" else 0)) for a, r in rows if a == arm]
            tables.append(sums_of([r for r, day in own if day == today or (cumulative and day < today)]))
        assert_fields(result, ratio_of_means(*tables[0], *tables[1]))
    if cumulative:
        assert_fields(found[-1], experiment.evaluate("clicks", "shown")["new"])


def test_a_day_without_users_is_named():
    rows = [("old", (u, d, 1, 1)) for u in range(3) for d in (0, 2)] + [
        ("new", (u, d, 1, 1)) for u in range(3) for d in range(3)
    ]
    with pytest.raises(ValueError, match="'old' must have 2 users on day 1, got 0"):
        updated(["old", "new"], rows).lift_by_day("clicks")


@given(st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=3, max_size=30))
def test_novelty_is_the_slope_of_least_squares(lifts):
    found = novelty(lifts)
    if len(set(lifts)) == 1:
        assert (found.slope, found.pvalue, found.decaying) == (0, 1, False)
        return
    expected = scipy_stats.linregress(np.arange(1, len(lifts) + 1), lifts)
    np.testing.assert_allclose(found.slope, expected.slope, atol=1e-12)
    if 1e-6 < abs(expected.rvalue) < 1 - 1e-6:
        np.testing.assert_allclose(found.pvalue, expected.pvalue, rtol=1e-6)
    np.testing.assert_allclose([found.first_week, found.last_week], [np.mean(lifts[:7]), np.mean(lifts[-7:])], atol=1e-12)


@pytest.mark.parametrize("lifts", [[0.1, 0.2], [0.1, math.nan, 0.2]])
def test_novelty_of_too_little_is_refused(lifts):
    with pytest.raises(ValueError, match="`lifts` must"):
        novelty(lifts)


def test_signals_become_columns_by_user():
    rows = []
    for arm, users in (("old", ("ann", "bob")), ("new", ("eve", "joe", "kim"))):
        for i, user in enumerate(users):
            where = {"user": user, "arm": arm, "search": "q"}
            rows.append(row(timestamp=0, event="search", query="x", **where))
            rows += [row(timestamp=1, event="impression", document=f"d{p}", position=p, **where) for p in range(1, 4)]
            rows += [row(timestamp=2, event="click", document=f"d{p}", position=p, **where) for p in range(1, i + 1)]
    signals = Signals({"ctr": ClickThroughRate(), "ctr_per_user": ClickThroughRate("user"), "bounce": BounceRate()})
    signals.update(rows)
    experiment = Experiment(["old", "new"])
    experiment.update_from(signals)
    result = experiment.evaluate("ctr_sum", "ctr_n")["new"]
    assert (result.value_a, result.value_b, result.n_b) == (pytest.approx(1 / 6), pytest.approx(1 / 3), 3)
    by_arm = signals.by_arm()
    for name in signals.signals:
        result = experiment.evaluate(f"{name}_sum", f"{name}_n")["new"]
        assert result.value_b == pytest.approx(by_arm["new"][name].value)
    with pytest.raises(ValueError, match="got 'new' too"):
        Experiment(["old", "other"]).update_from(signals)
    with pytest.raises(ValueError, match="got 'other'"):
        Experiment(["old", "new", "other"]).update_from(signals)
