"""Runs against a baseline: tests against scipy, counts, the queries behind a difference, agreement, displays, refusals."""

from __future__ import annotations

import json
import math
import re
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lightning_rank.data.runs import Judgements, Run
from lightning_rank.offline.compare import Comparison, compare
from lightning_rank.offline.evaluate import evaluate
from lightning_rank.stats import kendall_tau, rank_biased_overlap


def case(seed: int = 0, queries: int = 12) -> tuple[Judgements, Run, Run, Run]:
    """Judgements of some documents, and three runs that find them ever better."""
    generator = np.random.default_rng(seed)
    judged: dict = {f"q{i}": {f"d{j}": int(generator.integers(0, 4)) for j in range(6)} for i in range(queries)}
    runs = []
    for skill in (0.0, 0.5, 1.5):
        scores = {
            query: {f"d{j}": skill * grades.get(f"d{j}", 0) + float(generator.normal()) for j in range(9)}
            for query, grades in judged.items()
        }
        runs.append(Run.from_dict(scores))
    return (Judgements.from_dict(judged), *runs)


def compared(measures: str = "ndcg@3 mrr", **options: object) -> Comparison:
    judged, old, new, best = case()
    return compare(judged, {"old": old, "new": new, "best": best}, measures, **options)


def test_means_difference_interval_and_p_are_those_of_the_paired_t_test():
    judged, old, new, best = case()
    result = compare(judged, {"old": old, "new": new, "best": best}, "ndcg@3 mrr")
    pvalues = []
    for (name, run), measure in product({"new": new, "best": best}.items(), ("ndcg@3", "mrr")):
        a, b = (evaluate(judged, x, measure).values[measure] for x in (old, run))
        expected = stats.ttest_rel(b, a)
        found = result[measure, name]
        assert found.result.value_a == pytest.approx(a.mean())
        assert found.result.value_b == pytest.approx(b.mean())
        assert found.result.pvalue == pytest.approx(expected.pvalue, rel=1e-9)
        interval = expected.confidence_interval(0.95)
        assert (found.result.low, found.result.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
        assert (found.wins, found.losses) == (int((b > a + 1e-9).sum()), int((b < a - 1e-9).sum()))
        assert found.result.ties == 12 - found.wins - found.losses
        pvalues.append(expected.pvalue)
    # Holm: the smallest times 4, the next times 3, never falling.
    order = np.argsort(pvalues)
    holm = np.minimum(np.maximum.accumulate(np.array(pvalues)[order] * [4, 3, 2, 1]), 1)
    assert [result.differences[i].pvalue for i in order] == pytest.approx(holm, rel=1e-9)
    assert [(d.measure, d.candidate) for d in result.differences] == [
        ("ndcg@3", "new"), ("mrr", "new"), ("ndcg@3", "best"), ("mrr", "best"),
    ]  # fmt: skip
    assert result["mrr"] is result["mrr", "new"]
    assert result.baseline == "old"


@pytest.mark.parametrize("test", ["t", "randomization", "bootstrap", "wilcoxon"])
def test_a_seed_gives_the_same_twice_and_identical_runs_have_p_1(test):
    results = [compared(test=test, seed=7, resamples=99) for _ in range(2)]
    assert results[0].to_dict() == results[1].to_dict()
    judged, old, *_ = case()
    same = compare(judged, {"a": old, "b": old}, "ndcg@3 mrr", test=test, resamples=99)
    assert [(d.pvalue, d.result.pvalue, d.result.difference, d.wins, d.losses) for d in same.differences] == [
        (1, 1, 0, 0, 0)
    ] * 2
    assert same.worst() == same.best() == []
    assert same.agreements[0].rbo == pytest.approx(1, abs=1e-12)
    assert same.agreements[0].tau == pytest.approx(1, abs=1e-12)


def test_p_is_never_0():
    judged = Judgements.from_dict({f"q{i}": {"a": 1} for i in range(400)})
    old = Run.from_dict({f"q{i}": {"a": 1.0, "b": 2.0} for i in range(400)})
    new = Run.from_dict({f"q{i}": {"a": 3.0 if i % 20 else 1.0, "b": 2.0} for i in range(400)})
    for test in ("t", "randomization", "bootstrap", "wilcoxon"):
        assert 0 < compare(judged, {"old": old, "new": new}, "mrr", test=test, resamples=99)["mrr"].pvalue < 0.05


def test_queries_are_joined_by_id_and_missing_ones_count_as_asked():
    judged = Judgements.from_dict({"q1": {"a": 1}, "q2": {"a": 1}, "q3": {"a": 1}, "q4": {"a": 1}})
    good, bad = {"a": 2.0, "b": 1.0}, {"a": 1.0, "b": 2.0}
    old = Run.from_dict({"q1": bad, "q2": good, "q3": bad}, name="old")
    new = Run.from_dict({"q3": good, "q1": good, "q4": good}, name="new")
    zero = compare(judged, [old, new], "mrr")["mrr"]
    assert (zero.wins, zero.losses, zero.result.n) == (3, 1, 4)
    assert zero.result.difference == pytest.approx((0.5 - 1 + 0.5 + 1) / 4)
    skip = compare(judged, [old, new], "mrr", missing="skip")
    assert (skip["mrr"].wins, skip["mrr"].losses, skip["mrr"].result.n, skip["mrr"].result.dropped) == (2, 0, 2, 2)
    assert "2 queries have a value in one run only, and were left out" in str(skip)
    # Over q1 and q3, of which both runs have the same two documents the other way round.
    swapped = rank_biased_overlap(["b", "a"], ["a", "b"])
    assert skip.agreements[0].rbo == pytest.approx(swapped)
    assert compare(judged, [old, new], "mrr").agreements[0].rbo == pytest.approx(swapped / 2)


def test_the_queries_that_lost_most_with_both_rankings():
    judged = Judgements.from_dict({"q1": {"a": 1, "b": 0}, "q2": {"a": 1}, "q3": {"c": 2}})
    old = Run.from_dict({"q1": {"a": 9, "b": 8}, "q2": {"a": 9, "x": 8, "y": 7}, "q3": {"z": 9, "c": 8}}, name="old")
    new = Run.from_dict({"q1": {"b": 9, "a": 8}, "q2": {"x": 9, "y": 8, "a": 7}, "q3": {"c": 9}}, name="new")
    result = compare(judged, [old, new], "mrr")
    worst = result.worst(5)
    assert [(c.query, c.baseline, c.candidate) for c in worst] == [("q2", 1, 1 / 3), ("q1", 1, 0.5)]
    assert worst[0].before == [("a", 1), ("x", None), ("y", None)]
    assert worst[0].after == [("x", None), ("y", None), ("a", 1)]
    assert worst[0].difference == pytest.approx(-2 / 3)
    assert [c.query for c in result.best()] == ["q3"]
    assert [c.query for c in result.worst(1)] == ["q2"]
    assert result.worst(1, shown=2)[0].after == [("x", None), ("y", None)]
    assert str(worst[1]).splitlines() == [
        "query q1: mrr 1.0000 -> 0.5000 (-0.5000)",
        "rank  baseline  grade  candidate  grade",
        "----  --------  -----  ---------  -----",
        "1            a      1          b      0",
        "2            b      0          a      1",
    ]
    assert result["mrr"].unjudged_wins == (1, 0)
    assert result["mrr"].unjudged_losses == (1, 1)


def test_a_measure_of_which_less_is_better_wins_by_falling():
    judged = Judgements.from_dict({"q1": {"a": 1, "b": 0}, "q2": {"a": 1, "b": 0}})
    old = Run.from_dict({"q1": {"x": 2, "a": 1}, "q2": {"a": 2}}, name="old")
    new = Run.from_dict({"q1": {"a": 2}, "q2": {"a": 2}}, name="new")
    result = compare(judged, [old, new], "unj@5")
    assert (result["unj@5"].wins, result["unj@5"].losses) == (1, 0)
    assert [c.query for c in result.best()] == ["q1"]
    assert result.worst() == []


RANKINGS = st.dictionaries(
    st.sampled_from(["q1", "q2", "q3"]),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3), min_size=1),
    min_size=1,
)


@pytest.mark.filterwarnings("ignore:No document that the run")
@given(RANKINGS, RANKINGS)
def test_agreement_is_the_mean_over_judged_queries(a, b):
    judged = Judgements.from_dict({query: {"a": 1} for query in ("q1", "q2", "q3")})
    result = compare(judged, {"a": Run.from_dict(a), "b": Run.from_dict(b)}, "mrr")
    pairs = [(a.get(query, {}), b.get(query, {})) for query in judged.query_ids]
    overlaps = [rank_biased_overlap(x, y) for x, y in pairs if x or y]
    taus = [tau for x, y in pairs if not math.isnan(tau := kendall_tau(x, y))]
    agreement = result.agreements[0]
    assert agreement.rbo == pytest.approx(np.mean(overlaps), abs=1e-12)
    assert agreement.tau == pytest.approx(np.mean(taus) if taus else math.nan, abs=1e-12, nan_ok=True)


def test_agreement_looks_at_the_first_documents():
    judged = Judgements.from_dict({"q": {"a": 1}, "r": {"a": 1}})
    lists = [{"q": {c: -i for i, c in enumerate(order)}, "r": {"a": 1}} for order in ("abcdef", "abfedc")]
    result = compare(judged, dict(zip("xy", map(Run.from_dict, lists), strict=True)), "mrr", overlap_depth=2, overlap_p=0.5)
    assert result.agreements[0].rbo == pytest.approx(1)
    assert result.agreements[0].tau == 1


def test_options_of_evaluate_reach_it():
    judged, old, new, _ = case()
    runs = {"old": old, "new": new}
    result = compare(judged, runs, "map rbp", depth=2, p=0.5, convention="trec_eval")
    for name, run in runs.items():
        alone = evaluate(judged, run, "map rbp", depth=2, p=0.5, convention="trec_eval")
        assert result.evaluations[name].summary == alone.summary


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("randomization", "of the mean difference by t; p of the paired randomization test, corrected over 2 comparisons; seed 5"),
        ("wilcoxon", "interval of the mean difference by t; p of the paired wilcoxon test, corrected over 2 comparisons\n"),
        ("bootstrap", "interval of the mean difference by BCa bootstrap; p of the paired bootstrap test, corrected over 2 "),
    ],
)  # fmt: skip
def test_it_says_by_which_method_the_interval_is(test, words):
    assert words in str(compared("mrr", test=test, seed=5, resamples=99))


# Displays -------------------------------------------------------------------------------------------------------------


def test_it_prints_a_table_with_what_must_be_known():
    text = str(compared())
    header, rule, *rows = text.splitlines()[1:7]
    assert text.splitlines()[0] == "new and best against old"
    assert "the first k (the measure's cutoff; 10 for mrr, which has none)" in text
    assert header.split("  ")[0] == "measure"
    assert len(rule) == len(header)
    assert [row.split("  ")[0].strip() for row in rows] == ["new: ndcg@3", "new: mrr", "best: ndcg@3", "best: mrr"]
    for words in ("95 % interval of the mean difference by t;", "paired t test, corrected over 4 comparisons\n",
                  "p (holm)", "rank-biased overlap",
                  "Kendall's tau", "old: judged@3", "12 queries", "convention lightning_rank, gain exp2"):  # fmt: skip
        assert words in text


def test_other_forms_and_tables():
    result = compared(correction="bonferroni")
    assert result.text("markdown").startswith("| measure | baseline |")
    latex = result.text("latex")
    assert latex.count(r"\\") == 5
    table = "".join(line for line in latex.splitlines() if not line.startswith("%"))
    d = result["mrr", "new"]
    assert r"{:.2f} $\to$ {:.2f}".format(*d.unjudged_wins) in table
    assert f"{d.result.low:+.4f}".replace("-", "$-$") in table
    assert "->" not in table
    assert not re.search(r"[^$]-\d", table)
    plain = json.loads(result.text("json"))
    assert plain["baseline"] == "old"
    assert plain["differences"][3]["test"]["pvalue"] == pytest.approx(result["mrr", "best"].result.pvalue)
    assert "pvalue" not in plain["differences"][3], "of two only one is corrected, which the name says"
    assert plain["differences"][3]["pvalue"] == pytest.approx(min(1, 4 * result["mrr", "best"].result.pvalue))
    assert list(plain["runs"]) == ["old", "new", "best"]
    frame = result.to_pandas()
    assert frame["measure"].tolist() == ["ndcg@3", "mrr"] * 2
    assert frame["difference"].tolist() == pytest.approx((frame["value"] - frame["baseline"]).tolist())
    assert frame.to_dict("records") == result.to_polars().to_dicts()
    html = compare(case()[0], {"<i>": case()[1], "b": case()[2]}, "mrr")._repr_html_()
    assert "b against &lt;i&gt;" in html
    assert "<i>" not in html


def test_a_plot_has_a_bar_for_each_query_from_the_largest_down(tmp_path):
    result = compared()
    figure = result.plot("mrr", "best")
    heights = [bar.get_height() for bar in figure.axes[0].containers[0]]
    old, best = (result.evaluations[name].values["mrr"] for name in ("old", "best"))
    assert heights == pytest.approx(sorted(best - old, reverse=True))
    of = result["mrr", "best"]
    assert f"{of.wins} won, {of.result.ties} tied, {of.losses} lost" in figure.axes[0].get_xlabel()
    assert figure.axes[0].lines[0].get_ydata()[0] == of.result.difference
    figure.savefig(tmp_path / "x.png")
    panels = result.plot().axes
    assert [axes.get_title().partition(",")[0] for axes in panels] == ["ndcg@3: new - old", "ndcg@3: best - old"]
    drawn = [bar.get_height() for bar in panels[1].containers[0]]
    best, old = (result.evaluations[name].values["ndcg@3"] for name in ("best", "old"))
    assert drawn == pytest.approx(sorted(best - old, reverse=True))


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"measures": "gm_map"}, "gm_map is no mean over queries"),
        ({"measures": "num_ret map"}, "num_ret is no mean over queries"),
        ({"measures": "mapp"}, "Unknown measure 'mapp'.*map"),
        ({"test": "z"}, "`test`.*randomization.*got 'z'"),
        ({"correction": "tukey"}, "tukey"),
        ({"alpha": 2}, "`alpha` must be a finite number above 0 and below 1, got 2"),
        ({"depth": 0}, "0"),
        ({"overlap_depth": 0}, "0"),
        ({"overlap_p": 1}, "`overlap_p`"),
        ({"resamples": 0, "test": "bootstrap"}, "`resamples`"),
    ],
)
def test_options_that_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        compared(**{"measures": "mrr"} | options)


def test_runs_that_are_refused():
    judged, old, new, _ = case()
    with pytest.raises(ValueError, match="names of their own, got '', ''"):
        compare(judged, [old, new])
    with pytest.raises(TypeError, match=r"`runs` must be Run, got dict: Run\.from_dict makes one"):
        compare(judged, {"old": old, "new": {"q1": {"a": 1}}})
    with pytest.raises(
        ValueError, match=r"At least 2 queries are needed to compare .* mrr has a value of both 'a' and 'b' for 1"
    ):
        compare(Judgements.from_dict({"q1": {"d1": 1}}), {"a": old, "b": new}, "mrr")
    with pytest.raises(ValueError, match="a baseline and at least one other run, got 1"):
        compare(judged, {"old": old})
    with pytest.raises(KeyError, match=r"'ndcg@10' was not compared; there is ndcg@3 of new, mrr of new"):
        compared()["ndcg@10"]
    with pytest.raises(ValueError, match=r"The run 'x' and the judgements have no query in common"):
        compare(judged, {"old": old, "x": Run.from_dict({"z": {"a": 1}})})
