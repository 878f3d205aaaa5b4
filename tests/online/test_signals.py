"""Signals of a log against plain loops; pieces, files and merges in any order; bad rows."""

from __future__ import annotations

import math
from collections import Counter
from datetime import datetime, timezone
from functools import reduce
from operator import or_

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from lightning_rank.online import (
    Abandonment,
    BounceRate,
    ClickThroughRate,
    DwellTime,
    Experiment,
    MeanClickPosition,
    QuickBack,
    RequeryRate,
    Signals,
)
from lightning_rank.online.experiment import user_table
from lightning_rank.online.similarity import folded, similar
from tests.online.logs import COLUMNS, KINDS, Reference, edits, logs, reworded, row

RATES = ("ctr", "ctr_per_search", "abandonment", "quick_back", "bounce", "requery")


def of(rows, **options):
    signals = Signals(**options)
    if rows:
        signals.update(rows)
    return signals


def assert_same(found, expected):
    """Equal results, counts and units of two `Signals`."""
    assert found.counts() == expected.counts()
    assert found.arms() == expected.arms()
    pairs = [(found.compute(), expected.compute())]
    pairs += [(found.by_arm()[arm], expected.by_arm()[arm]) for arm in expected.arms()]
    for results, others in pairs:
        for name, result in results.items():
            for field, value in result.to_dict().items():
                np.testing.assert_allclose(value, others[name].to_dict()[field], rtol=1e-12, err_msg=f"{name}.{field}")
    for name in expected.signals:
        for arm in (None, *expected.arms()):
            a, b = found.units(name, arm), expected.units(name, arm)
            assert a.unit == b.unit
            np.testing.assert_allclose([a.numerator, a.denominator], [b.numerator, b.denominator], rtol=1e-12)


@given(logs())
def test_signals_are_those_of_plain_loops(rows):
    signals, reference = of(rows), Reference(rows)
    found = signals.compute()
    for name in (*RATES, "click_position"):
        units, expected = signals.units(name), reference.units(name)
        assert units.unit == [user for user, _, _ in expected]
        np.testing.assert_allclose(units.numerator, [y for _, y, _ in expected], rtol=1e-12)
        np.testing.assert_array_equal(units.denominator, [x for _, _, x in expected])
    for name in RATES:
        pairs = reference.units(name)
        top, bottom = sum(y for _, y, _ in pairs), sum(x for _, _, x in pairs)
        assert (found[name].numerator, found[name].denominator, found[name].users) == (top, bottom, len(pairs))
        np.testing.assert_allclose(found[name].value, top / bottom if bottom else math.nan)
    rates = [y / x for _, y, x in reference.units("ctr")]
    np.testing.assert_allclose(found["ctr_per_user"].value, np.mean(rates) if rates else math.nan)
    position = found["click_position"]
    assert position.clicks == len(reference.positions)
    assert position.searches == sum(x for _, _, x in reference.units("click_position"))
    np.testing.assert_allclose(
        [position.value, position.first],
        [np.mean(p) if p else math.nan for p in (reference.positions, reference.first_positions)],
    )
    dwell, times = found["dwell"], np.minimum(reference.dwell, 1800)
    assert (dwell.observed, dwell.censored) == (len(times), reference.censored)
    assert signals.units("dwell").numerator.sum() == pytest.approx(times.sum()), "without those whose end nobody saw"
    assert dwell.capped == sum(t > 1800 for t in reference.dwell)
    if len(times):
        expected = [np.median(times), np.mean(times), np.mean(np.log1p(times))]
        np.testing.assert_allclose([dwell.median, dwell.mean, dwell.log_mean], expected)
    answers = [rating for rating in reference.answers if rating is not None]
    csat = found["satisfaction"]
    assert (csat.satisfied, csat.total) == (sum(r >= 4 for r in answers), len(answers))
    if len(answers) < len(reference.answers):
        assert csat.response_rate == len(answers) / len(reference.answers)
    counts = signals.counts().to_dict()
    assert counts.pop("ignored_events") == Counter(r["event"] for r in rows if r["event"] not in KINDS)
    assert {k: v for k, v in counts.items() if v} == {k: v for k, v in reference.counts.items() if v}


@given(logs(), st.data())
def test_pieces_merge_to_the_whole(rows, data):
    """Any split into updates and objects, joined in any order, is one."""
    parts = data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    shards = [of([r for r, part in zip(rows, parts, strict=True) if part == i]) for i in range(3)]
    for r in (r for r, part in zip(rows, parts, strict=True) if part == 3):
        shards[0].update([r])
    before = shards[0].counts()
    merged = reduce(or_, data.draw(st.permutations(shards)))
    assert shards[0].counts() == before, "operands stay as they are"
    assert_same(merged, of(rows))


@given(logs(arms=False, early=False), st.booleans())
def test_whole_users_become_sums_at_once(rows, merge):
    users = sorted({r["user"] for r in rows})
    found = Signals()
    for user in users:
        own = Signals() if merge else found
        own.update([r for r in rows if r["user"] == user], whole_sessions=True)
        found = found | own if merge else own
    assert_same(found, of(rows))


@given(logs(), st.integers(0, 20_000), st.sampled_from([60, 1800]))
def test_days_add_up_to_the_whole(rows, before_midnight, gap):
    rows = [{**r, "timestamp": r["timestamp"] + 5 * 86_400 - before_midnight} for r in rows]
    half, whole = len(rows) // 2, of(rows, session_gap=gap)
    daily = of(rows[:half], session_gap=gap, by_day=True) | of(rows[half:], session_gap=gap, by_day=True)
    assert_same(daily, whole)
    for arm in whole.arms():
        totals, by_day = user_table(whole, arm), user_table(daily, arm)
        assert set(by_day["day"]) <= {4, 5}
        assert set(totals) - set(by_day) == {"ctr_per_user_sum", "ctr_per_user_n"}
        for name in set(by_day) - {"unit", "day"}:
            sums = Counter()
            for user, value in zip(by_day["unit"], by_day[name], strict=True):
                sums[user] += value
            assert sums == pytest.approx(dict(zip(totals["unit"], totals[name], strict=True))), name


def test_a_session_and_a_search_are_of_the_day_on_which_they_began():
    midnight = 100 * 86_400

    def event(seconds, kind, search, user="ann", arm="a"):
        at = {"user": user, "event": kind, "timestamp": midnight + seconds, "search": search, "arm": arm}
        return row(document="d", position=1, query=search, **at)

    signals = Signals({"ctr": ClickThroughRate(), "bounce": BounceRate()}, by_day=True)
    signals.update(
        [
            event(-600, "search", "q1"),
            event(600, "search", "q2"),  # of the same session
            event(9_000, "click", "q2"),  # of a later session, but of that search
            event(20_000, "search", "q3"),
            event(5, "search", "q1", "bob"),
            event(30_000, "search", "q1", "eve", "b"),
        ]
    )
    table = user_table(signals, "a")
    assert list(zip(table["unit"], table["day"], strict=True)) == [("ann", 99), ("ann", 100), ("bob", 100)]
    assert table["ctr_sum"].tolist() == [1, 0, 0]
    experiment = Experiment(["a", "b"])
    experiment.update_from(signals)
    assert experiment.days() == [99, 100]
    assert experiment.users() == {"a": 2, "b": 1}


def written(rows, path):
    frame = pl.DataFrame(rows, schema_overrides={"position": pl.Int64, "rating": pl.Float64}, infer_schema_length=None)
    if path.suffix == ".csv":
        frame.write_csv(path)
    elif path.suffix == ".jsonl":
        frame.write_ndjson(path)
    else:
        frame.write_parquet(path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@given(data=st.data())
def test_files_in_small_chunks_are_the_whole(tmp_path_factory, suffix, data):
    rows = data.draw(logs(sessions=False, arms=False, users=5))
    order = data.draw(st.sampled_from(("time", "any")))
    if order == "time":
        # Not quite sorted: each row is up to 300 s late.
        late = data.draw(st.lists(st.integers(0, 300), min_size=len(rows), max_size=len(rows)))
        rows = [
            r for _, _, r in sorted((r["timestamp"] + d, i, r) for i, (r, d) in enumerate(zip(rows, late, strict=True)))
        ]
    assume(rows)
    path = written(rows, tmp_path_factory.mktemp("log") / f"log{suffix}")
    found = Signals()
    found.read(path, order=order, idle=2000, chunk=data.draw(st.integers(1, 20)))
    assert_same(found, of(rows))


@pytest.mark.parametrize("order", ["time", "any"])
@given(data=st.data())
def test_days_merge_with_the_sessions_across_midnight(tmp_path_factory, order, data):
    rows = sorted(data.draw(logs(sessions=False, arms=False, early=False, users=5)), key=lambda r: r["timestamp"])
    midnight = data.draw(st.integers(0, 20_000))
    folder = tmp_path_factory.mktemp("days")
    days = []
    for i, day in enumerate(
        ([r for r in rows if r["timestamp"] < midnight], [r for r in rows if r["timestamp"] >= midnight])
    ):
        days.append(Signals())
        if day:
            days[-1].read(written(day, folder / f"{i}.parquet"), order=order, idle=2000, chunk=3, last=False)
    assert_same(days[1] | days[0], of(rows))


def test_a_log_that_is_not_sorted_is_refused_or_spread(tmp_path):
    rows = [row(timestamp=100_000 - 1000 * i, user=f"u{i}", event="search", search="q", query="x") for i in range(50)]
    path = written(rows, tmp_path / "log.parquet")
    with pytest.raises(ValueError, match=r"sorted by time.*order='any'"):
        Signals().read(path, idle=2000, chunk=5)
    found = Signals()
    found.read(path, order="any", idle=2000, chunk=5)
    assert_same(found, of(rows))


def test_files_that_are_no_tables_are_refused(tmp_path):
    (tmp_path / "empty.csv").touch()
    (tmp_path / "text.parquet").write_text("timestamp,user,event")
    for name in ("empty.csv", "text.parquet"):
        with pytest.raises(ValueError, match=f"{name} must be a table of events"):
            BounceRate().read(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        BounceRate().read(tmp_path / "none.csv")
    with pytest.raises(ValueError, match=r"log.xlsx must be a CSV"):
        Signals().read(tmp_path / "log.xlsx")


PAGE = {"search": "q", "document": "d1", "position": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timestamp": None}, "must have a `timestamp`, got 1"),
        ({"timestamp": math.nan}, "must have a `timestamp`, got 1"),
        ({"timestamp": 1.7e12}, "looks like milliseconds"),
        ({"timestamp": "yesterday"}, "must have a `timestamp`"),
        ({"user": None}, "must have a `user`"),
        ({"position": 0}, "count from 1, got 0"),
        ({"position": -3}, "count from 1, got -3"),
        ({"search": None}, "must name its `search`"),
        ({"document": None, "position": None}, "have neither"),
    ],
)
def test_bad_rows_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        of([row(timestamp=1, user="ann", event="click", **PAGE) | change]).compute()


@pytest.mark.parametrize("rating", [0, 5.5, -1, math.inf])
def test_ratings_off_the_scale_are_refused(rating):
    with pytest.raises(ValueError, match="scale 1 to 5"):
        of([row(timestamp=1, user="ann", event="survey", rating=rating)])


@pytest.mark.parametrize(
    ("signal", "lacks"),
    [
        (ClickThroughRate(), "search"),
        (MeanClickPosition(), "position"),
        (RequeryRate(), "query"),
        (Signals(), "query"),
    ],
)
def test_a_column_that_the_log_lacks_is_named(signal, lacks):
    events = {name: [] for name in COLUMNS if name != lacks}
    with pytest.raises(ValueError, match=f"has no column `{lacks}`"):
        signal.update(events)


@pytest.mark.parametrize("missing", ["timestamp", "user", "event"])
def test_columns_that_all_need(missing):
    with pytest.raises(ValueError, match=f"has no column `{missing}`"):
        BounceRate().update({name: [] for name in COLUMNS if name != missing})


def test_ignored_events_are_named():
    ctr = ClickThroughRate()
    kinds = ["Click", "impression", "Click", "scroll", None, "a", "b", "c"]
    ctr.update([row(timestamp=i, user="ann", event=kind, search="q", position=1) for i, kind in enumerate(kinds)])
    counts = ctr.counts()
    assert counts.ignored_events == {"Click": 2, "": 1, "a": 1, "b": 1, "c": 1, "scroll": 1}
    named = "7 ignored ('Click' 2, is it 'click'?; '' 1; 'a' 1; 'b' 1; 'c' 1; 1 more)"
    assert str(counts).startswith(f"8 rows, {named}")
    assert (ctr | ctr).counts().ignored_events["Click"] == 4


@pytest.mark.parametrize("events", ["log.csv", 3, [], [5, 4]])
def test_what_is_no_table_is_refused(events):
    with pytest.raises(ValueError, match=r"must (be a|have)"):
        BounceRate().update(events)


def test_nothing_seen_is_nan():
    signals = Signals()
    found = signals.compute()
    for name in (*RATES, "ctr_per_user"):
        assert math.isnan(found[name].value)
        assert (found[name].numerator, found[name].denominator, found[name].users) == (0, 0, 0)
    assert math.isnan(found["dwell"].median)
    assert math.isnan(found["click_position"].value)
    assert found["satisfaction"].total == 0
    assert signals.arms() == []
    assert signals.counts().rows == 0
    signals.update({name: [] for name in COLUMNS})
    assert signals.units("ctr").unit == []
    assert math.isnan(signals.compute()["ctr"].value)


def in_arm(arm, user, search="q"):
    return row(timestamp=1, user=user, event="click", arm=arm, search=search, document="d", position=1)


def test_users_in_two_arms_are_refused_left_out_or_kept():
    signals = of([in_arm("old", "ann"), in_arm("new", "ann"), in_arm("old", "bob"), in_arm("new", "eve")])
    assert signals.counts().mixed_users == 1
    with pytest.raises(ValueError, match=r"1 are in several, such as 'ann'"):
        signals.by_arm()
    users = {option: signals.by_arm(mixed=option)["old"]["ctr"].users for option in ("exclude", "keep")}
    assert users == {"exclude": 1, "keep": 2}
    assert signals.units("ctr", "new", mixed="exclude").unit == ["eve"]
    with pytest.raises(ValueError, match="'refuse', 'exclude', 'keep'"):
        signals.by_arm(mixed="drop")
    with pytest.raises(ValueError, match="got 'other': seen were"):
        signals.units("ctr", "other", mixed="keep")


def test_two_arms_by_days_are_found_after_a_merge():
    one, other = of([in_arm("old", "ann", "q1")]), of([in_arm("new", "ann", "q2")])
    assert one.counts().mixed_users == other.counts().mixed_users == 0
    assert (one | other).counts().mixed_users == 1


def test_signals_with_other_options_do_not_merge():
    with pytest.raises(ValueError, match="equal options"):
        QuickBack(30) | QuickBack(20)
    with pytest.raises(ValueError, match="equal options"):
        Signals() | Signals(session_gap=60)
    with pytest.raises(TypeError):
        QuickBack() | BounceRate()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClickThroughRate("page"), "'impression', 'search', 'user'"),
        (lambda: DwellTime(cap=0), "above 0"),
        (lambda: QuickBack(window=-1), "above 0"),
        (lambda: RequeryRate(rule="same"), "'similar', 'any'"),
        (lambda: Abandonment(session_gap=0), "above 0"),
        (lambda: BounceRate(clock_skew=-1), "at least 0"),
        (lambda: Signals({"ctr": 3}), "mapping from names to signals"),
        (lambda: Signals().units("ctrr"), "'ctr'.*got 'ctrr'"),
        (lambda: Signals().compute(alpha=5), "per cent"),
        (lambda: Signals().read("x.csv", order="random"), "'time', 'any'"),
    ],
)
def test_bad_options_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_times_are_read_in_every_form():
    """Seconds, ISO 8601 with or without zone, and dates with times are the same moments."""
    seconds = [1_700_000_000.0, 1_700_000_020.25]
    moments = [datetime.fromtimestamp(s, timezone.utc) for s in seconds]
    forms = {
        "seconds": seconds,
        "iso": [m.isoformat() for m in moments],
        "naive iso": [m.replace(tzinfo=None).isoformat() for m in moments],
        "datetime": moments,
        "datetime64": pl.Series(moments).cast(pl.Datetime("ns", "Asia/Tokyo")),
        "text of seconds": [str(s) for s in seconds],
    }
    for name, times in forms.items():
        dwell = DwellTime()
        dwell.update(
            {"timestamp": times, "user": ["a", "a"], "event": ["click"] * 2, "search": ["q"] * 2, "document": ["x", "y"]}
        )
        assert dwell.compute().mean == 20.25, name


def test_tables_of_every_kind_are_the_same():
    pandas = pytest.importorskip("pandas")
    rows = [
        row(timestamp=0, user=7, event="search", search="q", query="x"),
        row(timestamp=3, user=7, event="click", search="q", document=5, position=2),
        row(timestamp=9, user=8, event="survey", rating=4),
    ]
    columns = {name: [r[name] for r in rows] for name in COLUMNS}
    expected = of(rows)
    assert expected.units("ctr").unit == ["7"]
    for events in (columns, pl.DataFrame(columns, strict=False), pandas.DataFrame(columns)):
        assert_same(of_table(events), expected)


def of_table(events):
    signals = Signals()
    signals.update(events)
    return signals


TEXTS = st.text("ab c跑ß", max_size=6)


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=20))
@example([("ß", "SS"), ("", ""), ("a b", "b c"), ("abcd", "xycd"), ("abcd", "wxyd")])
def test_similarity_is_that_of_plain_loops(pairs):
    first, later = (folded(pl.Series([p[i] for p in pairs], dtype=pl.String)) for i in (0, 1))
    for is_similar, a, b in zip(similar(first, later), first, later, strict=True):
        if a != b:
            shares = len(set(a.split(" ")) & set(b.split(" "))) >= min(len(set(a.split(" "))), len(set(b.split(" ")))) / 2
            assert is_similar == (shares or edits(a, b) <= max(len(a), len(b)) / 2)
            if a and b:
                assert is_similar == reworded(a, b)
