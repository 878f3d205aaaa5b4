"""A run against judgements: every metric by brute force, counts, names, displays, and what is refused."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from lightning_rank.data.runs import Judgements, Run
from lightning_rank.functional.metrics import METRICS
from lightning_rank.offline import text
from lightning_rank.offline.evaluate import evaluate
from lightning_rank.offline.measures import parse_measures
from tests import reference

# Of documents drawn at random often none is judged.
unjudged_is_fine = pytest.mark.filterwarnings("ignore:No document that the run")

QUERIES, DOCUMENTS = ["q1", "q2", "q3"], ["a", "b", "c", "d", "e", "f"]
GRADES = st.sampled_from([-1, 0, 0, 1, 1, 2, 3])
SCORES = st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 2.0])


def lists(values: st.SearchStrategy, queries: list[str]) -> st.SearchStrategy:
    """Documents with numbers for some queries, in any order."""
    documents = st.lists(st.tuples(st.sampled_from(DOCUMENTS), values), min_size=1, unique_by=lambda x: x[0])
    return st.dictionaries(st.sampled_from(queries), documents.map(dict), min_size=1)


CASES = st.tuples(lists(GRADES, QUERIES), lists(SCORES, [*QUERIES, "other"])).filter(lambda x: set(x[0]) & set(x[1]))


def expected(name: str, judged: dict, ranked: dict, k: int | None, ties: str, below_0: bool, **options: float) -> float:
    """The value of one query by the definition; NaN where it has none."""
    known = {d: g for d, g in judged.items() if g >= 0 or not below_0}
    return reference.metric_value(
        name, list(ranked.values()), [known.get(d, 0) for d in ranked], k, ties=ties,
        ideal=list(known.values()), known=[d in known for d in ranked], **options,
    )  # fmt: skip


@unjudged_is_fine
@pytest.mark.parametrize("name", METRICS)
@given(
    case=CASES, k=st.sampled_from([None, 1, 2, 4]), ties=st.sampled_from(["average", "stable", "optimistic", "pessimistic"])
)
def test_every_metric_is_its_definition(name, case, k, ties):
    judged, ranked = case
    k = k if METRICS[name].takes_top_k else None
    measure = name if k is None else f"{name}@{k}"
    result = evaluate(Judgements.from_dict(judged), Run.from_dict(ranked), measure, ties=ties, empty_target_action="skip")
    values = [expected(name, judged[query], ranked.get(query, {}), k, ties, below_0=False) for query in judged]
    assert result.query_ids == list(judged)
    assert result.values[measure] == pytest.approx(values, rel=1e-9, abs=1e-12, nan_ok=True)


OURS = {"map": "map", "Rprec": "r_precision", "recip_rank": "mrr", "bpref": "bpref", "P_2": "precision@2", "recall_2": "recall@2",
        "ndcg": "ndcg", "ndcg_cut_3": "ndcg@3", "map_cut_2": "map@2", "success_1": "hit_rate@1"}  # fmt: skip


@unjudged_is_fine
@given(case=CASES, level=st.sampled_from([1, 2]))
def test_trec_evals_measures_are_their_definition(case, level):
    judged, ranked = case
    run = {query: dict(sorted(documents.items(), reverse=True)) for query, documents in ranked.items()}
    result = evaluate(
        Judgements.from_dict(judged), Run.from_dict(ranked), [*OURS], convention="trec_eval", min_relevance=level
    )
    for trec_name, ours in OURS.items():
        name, _, k = ours.partition("@")
        options = {"gain": "linear"} if name == "ndcg" else {"min_relevance": level}
        values = [
            expected(name, judged[q], run.get(q, {}), int(k) if k else None, "stable", below_0=True, **options)
            for q in judged
        ]
        assert result.values[trec_name] == pytest.approx(np.nan_to_num(values), rel=1e-9, abs=1e-12), trec_name


@unjudged_is_fine
@given(case=CASES, depth=st.integers(1, 4))
def test_depth_cuts_after_the_sort(case, depth):
    judged, ranked = case
    cut = {}
    for query, documents in ranked.items():
        best_first = sorted(sorted(documents.items(), reverse=True), key=lambda x: -x[1])
        cut[query] = dict(best_first[:depth])
    names = "map ndcg bpref num_ret judged rbp"
    options = {"convention": "trec_eval"}
    whole = evaluate(Judgements.from_dict(judged), Run.from_dict(ranked), names, depth=depth, **options)
    short = evaluate(Judgements.from_dict(judged), Run.from_dict(cut), names, **options)
    for name in names.split():
        assert whole.values[name] == pytest.approx(short.values[name], abs=1e-12), name


JUDGED = {"q1": {"a": 1, "b": 0}, "q2": {"c": 2}, "q3": {"d": 0}, "q4": {"e": 1}}
RANKED = {"q2": {"c": 0.5, "x": 0.7}, "q1": {"b": 0.2, "a": 0.1}, "q3": {"y": 1.0}, "q9": {"a": 1.0}}


def example(names: str = "mrr", **options) -> object:
    return evaluate(Judgements.from_dict(JUDGED), Run.from_dict(RANKED, name="bm25"), names, **options)


def test_counts_stand_beside_the_values():
    result = example("mrr P_2 num_q num_ret num_rel num_rel_ret judged@2")
    assert result.per_query("mrr") == {"q1": 0.5, "q2": 0.5, "q3": 0.0, "q4": 0.0}
    assert {name: result[name].value for name in ("num_q", "num_ret", "num_rel", "num_rel_ret")} == {
        "num_q": 4, "num_ret": 5, "num_rel": 3, "num_rel_ret": 2,
    }  # fmt: skip
    counts = result.counts
    assert counts[:5] == (4, 1, 1, 1, 2)
    assert counts.judged_share == pytest.approx((1 + 0.5 + 0) / 3)
    assert counts.fully_judged == 1
    assert result.per_query("judged@2") == {"q1": 1, "q2": 0.5, "q3": 0, "q4": 0}


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({}, {"q1": 0.5, "q2": 0.5, "q3": 0.0, "q4": 0.0}),
        ({"missing": "skip"}, {"q1": 0.5, "q2": 0.5, "q3": 0.0}),
        ({"empty_target_action": "skip"}, {"q1": 0.5, "q2": 0.5, "q4": 0.0}),
        ({"empty_target_action": "pos"}, {"q1": 0.5, "q2": 0.5, "q3": 1.0, "q4": 0.0}),
        ({"min_relevance": 2}, {"q1": 0.0, "q2": 0.5, "q3": 0.0, "q4": 0.0}),
    ],
)
def test_missing_and_empty_queries(options, values):
    assert example(**options).per_query("mrr") == values


def test_the_interval_is_students():
    values = np.array([0.5, 0.5, 0.0, 0.0])
    low, high = student.interval(0.95, 3, values.mean(), values.std(ddof=1) / 2)
    estimate = example()["mrr"]
    # The core's quantile is an expansion, within 0.2 %.
    assert low < 0, "which no reciprocal rank is"
    assert (estimate.low, estimate.high - estimate.value) == pytest.approx((0, high - 0.25), rel=2e-3)
    twice = example("utility_2,0,0,0")["utility_2,0,0,0"]
    hits = np.array([1, 1, 0, 0])
    assert (twice.low, twice.high) == pytest.approx(
        student.interval(0.95, 3, 2 * hits.mean(), 2 * hits.std(ddof=1) / 2), rel=5e-3
    )
    assert twice.low < 0
    assert estimate.value == 0.25
    assert estimate.num_queries == 4
    assert math.isnan(example("num_ret")["num_ret"].low)


def test_a_geometric_mean_has_a_floor():
    assert example("gm_map")["gm_map"].value == pytest.approx((0.5 * 0.5 * 1e-5 * 1e-5) ** 0.25)


def test_rbp_is_graded_where_trec_eval_has_it_so():
    run = Run.from_dict({"q": {"a": 3.0, "b": 2.0}})
    judged = Judgements.from_dict({"q": {"a": 1, "b": 2}})
    assert evaluate(judged, run, "rbp", convention="trec_eval")["rbp"].value == pytest.approx(0.1 * (0.5 + 0.9))
    assert evaluate(judged, run, "rbp")["rbp"].value == pytest.approx(0.2 * 1.8)
    assert evaluate(judged, run, "rbp", p=0.5)["rbp"].value == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("a", "b"),
    [("ndcg@10", "ndcg_cut_10"), ("mrr", "recip_rank"), ("precision@5", "P_5"), ("r_precision", "Rprec"),
     ("recall@20", "recall_20"), ("hit_rate@1", "success_1"), ("map@5", "map_cut.5")],
)  # fmt: skip
def test_both_spellings_are_one_measure(a, b):
    (ours,), (theirs,) = parse_measures(a), parse_measures(b)
    assert (ours.metric, ours.top_k, ours.trec_name) == (theirs.metric, theirs.top_k, theirs.trec_name)


def test_lists_of_names():
    assert [m.name for m in parse_measures("P.5,10,ndcg@3 map")] == ["P_5", "P_10", "ndcg@3", "map"]
    assert [m.name for m in parse_measures(["map mrr", "map"])] == ["map", "mrr"]
    assert [m.name for m in parse_measures("utility.2,-1,0,0,11pt_avg..5,1 mrr")] == [
        "utility_2,-1,0,0",
        "11pt_avg_.5,1",
        "mrr",
    ]
    assert len(parse_measures("official")) == 29
    assert {m.name for m in parse_measures("official")} < {m.name for m in parse_measures("all_trec")}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ndgc@10", r"Unknown measure 'ndgc@10'.*ndcg"),
        ("P@10", r"Unknown measure 'P@10'\. Did you mean 'precision@10'\?"),
        ("R@100", r"Did you mean 'recall@100'\?"),
        ("AP", r"Did you mean 'map'\?"),
        ("ndcg_cut@10", r"Did you mean 'ndcg@10'\?"),
        ("ndcg_10", r"Did you mean 'ndcg@10'\?"),
        ("recip_rank_10", r"Did you mean 'mrr@10'\?"),
        ("hits@1", r"Did you mean 'hit_rate@1'\?"),
        ("recip_rnk", r"Unknown measure 'recip_rnk'.*recip_rank"),
        ("ndcg@0", r"0"),
        ("P_0", r"whole numbers >= 1"),
        ("P_2.5", r"whole numbers >= 1"),
        ("bpref@3", r"takes no cutoff"),
        ("", "at least one measure"),
        ("judged@0", r"Unknown measure"),
        ("utility_1,-1", r"takes four numbers.*got 'utility_1,-1'"),
        ("utility_1,-1,0,2", r"0 for all others"),
        ("11pt_avg_0.5,2", r"between 0 and 1"),
    ],
)
def test_names_that_are_none(name, words):
    with pytest.raises(ValueError, match=words):
        parse_measures(name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"missing": "drop"}, r"`missing`.*zero.*got 'drop'"),
        ({"missing": "error"}, r"1 of 4 judged queries are missing in the run 'bm25', for example 'q4'"),
        ({"gain": "linear"}, r"`gain` means nothing for mrr"),
        ({"ties": "none"}, r"`ties`"),
        ({"depth": 0}, r"0"),
        ({"level": 1}, r"`level`"),
        ({"convention": "trek"}, r"[Uu]nknown convention 'trek'.*trec_eval"),
        ({"empty_target_action": "error"}, r"1 of 4 queries have no relevant document"),
    ],
)
def test_options_that_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        example(**options)


def test_an_option_that_is_none():
    with pytest.raises(TypeError, match="no option 'gian'"):
        example(gian="linear")
    with pytest.raises(ValueError, match=r"The order of tied documents matters to 11pt_avg.*ties='stable'"):
        example("11pt_avg")
    with pytest.raises(KeyError, match=r"'map' was not computed; there is mrr"):
        example()["map"]


@pytest.mark.parametrize(
    ("judged", "words"),
    [
        ("x1", r"no query in common: 'q1' against 'x1'\.$"),
        (" q1", r"They differ only by blanks"),
        ("Q1", r"only by upper and lower case"),
    ],
)
def test_no_query_in_common(judged, words):
    with pytest.raises(ValueError, match=words):
        evaluate(Judgements.from_dict({judged: {"a": 1}}), Run.from_dict({"q1": {"a": 1}}))


@pytest.mark.parametrize("other", ["7.0", "007"])
def test_queries_that_are_numbers_on_one_side(other):
    with pytest.raises(ValueError, match="as text and number do"):
        evaluate(Judgements.from_dict({7: {"a": 1}}), Run.from_dict({other: {"a": 1}}))


@pytest.mark.parametrize(
    ("document", "hint"),
    [("b", r"\.$"), ("A", r"\. They differ only by upper"), ("a ", r"\. .* only by blanks"), ("x", r"\.$")],
)
def test_no_document_in_common_is_zero_with_a_warning(document, hint):
    judged, run = Judgements.from_dict({"q": {"a": 1}, "r": {"x": 1}}), Run.from_dict({"q": {document: 1}}, name="bm25")
    words = rf"the run 'bm25' retrieves is judged for its query: '{document}' against 'a', 'x'{hint}"
    with pytest.warns(UserWarning, match=words):
        result = evaluate(judged, run, "map ndcg@3 bpref auc judged")
    assert all(estimate.value == 0 for estimate in result.summary.values())


def test_the_conventions_in_force_are_told():
    told = example("ndcg@3 map mrr", convention="catboost").conventions
    assert told == {
        "convention": "catboost", "gain": "linear", "denominator": "cutoff", "min_relevance": "1", "ties": "pessimistic",
        "missing": "zero", "empty queries": "1 (ndcg@3) and 0 (map mrr)",
    }  # fmt: skip
    told = example("map", convention="trec_eval", depth=7, min_relevance=2).conventions
    assert (told["ties"], told["depth"], told["min_relevance"]) == ("by document id", "7", "2")
    assert example("map", ties="stable").conventions["ties"] == "in order of arrival"


# Displays -------------------------------------------------------------------------------------------------------------


def test_it_prints_as_a_table():
    assert str(example("mrr num_ret", level=0.9)).splitlines() == [
        "bm25",
        "measure   value     90 % interval  queries",
        "-------  ------  ----------------  -------",
        "mrr      0.2500  0.0000 to 0.5895        4",
        "num_ret       5                          4",
        "4 queries, 1 without a relevant document; 1 missing in the run (they count as 0); 1 queries of the run are not judged, "
        "and ignored",
        "judged@10 0.500: of the first 10 documents that share is judged; 1 queries have them all judged",
        "convention lightning_rank, min_relevance 1, empty queries 0, ties average, missing zero",
    ]


def test_plain_data_and_tables():
    result = example("mrr num_ret", empty_target_action="skip")
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain["run"] == "bm25"
    assert plain["measures"]["mrr"]["value"] == pytest.approx(1 / 3)
    assert plain["measures"]["num_ret"]["low"] is None
    assert plain["counts"]["missing"] == 1
    assert plain["conventions"]["ties"] == "average"
    assert result.to_polars().rows() == [
        ("bm25", "q1", 0.5, 2.0), ("bm25", "q2", 0.5, 2.0), ("bm25", "q3", None, 1.0), ("bm25", "q4", 0.0, 0.0)
    ]  # fmt: skip
    assert result.to_polars().schema == {"run": pl.String, "query": pl.String, "mrr": pl.Float64, "num_ret": pl.Float64}
    frame = result.to_pandas()
    assert frame.index.tolist() == ["q1", "q2", "q3", "q4"]
    assert frame["mrr"].mean() == pytest.approx(1 / 3)


def test_html_is_escaped():
    result = evaluate(Judgements.from_dict({"q": {"a": 1}}), Run.from_dict({"q": {"a": 1}}, name="<b>&"), "mrr")
    html = result._repr_html_()
    assert "<caption>&lt;b&gt;&amp;</caption>" in html
    assert "<b>" not in html
    assert "1.0000" in html
    assert "judged@10" in html


def test_a_plot_shows_means_and_intervals():
    result = example("mrr num_ret map")
    (axes,) = result.plot().axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["mrr", "map"]
    points = [container.lines[0].get_xdata()[0] for container in axes.containers]
    assert points == [result["mrr"].value, result["map"].value]
    ((left, right),) = axes.containers[0].lines[2][0].get_segments()
    assert (left[0], right[0]) == pytest.approx((result["mrr"].low, result["mrr"].high))
    with pytest.raises(ValueError, match="nothing to draw"):
        example("num_ret").plot()


@pytest.mark.parametrize(
    ("module", "words"), [("pandas", "pip install pandas"), ("matplotlib.figure", r"lightning-rank\[plot\]")]
)
def test_what_is_not_installed_is_named(module, words, monkeypatch):
    result = example()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=words):
        (result.to_pandas if module == "pandas" else result.plot)()


def test_polars_is_named_by_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ModuleNotFoundError, match=r"lightning-rank\[files\]"):
        Run.from_dict({"q": {"a": 1}})


def test_other_forms():
    results = [example("mrr num_ret", level=0.9)]
    markdown = text.evaluations(results, "markdown").splitlines()
    assert markdown[:4] == ["| measure | bm25 |", "| --- | ---: |", "| mrr | 0.2500 (0.0000–0.5895) |", "| num_ret | 5 |"]  # noqa: RUF001
    latex = text.evaluations(results, "latex")
    assert r"num\_ret & 5 \\" in latex
    assert r"\begin{tabular}{lr}" in latex
    assert json.loads(text.evaluations(results, "json"))[0]["counts"]["queries"] == 4
    lines = text.evaluations(results, "trec_eval", per_query=True).splitlines()
    assert lines[0].split("\t") == ["recip_rank".ljust(22), "q1", "0.5000"]
    assert lines[-2:] == ["recip_rank            \tall\t0.2500", "num_ret               \tall\t5"]
    two = evaluate(Judgements.from_dict(JUDGED), Run.from_dict(RANKED, name="a_b"), "mrr num_ret")
    assert text.evaluations([*results, two], "latex").count("&") == 6
    assert r"a\_b" in text.evaluations([two], "latex")


def test_an_unknown_measure_names_the_nearest_whatever_its_cutoff():
    with pytest.raises(ValueError, match=r"Unknown measure 'ndgc@10'\. Did you mean 'ndcg@10'"):
        evaluate(Judgements.from_dict({"q": {"a": 1}}), Run.from_dict({"q": {"a": 1.0}}), "ndgc@10")


@pytest.mark.parametrize(
    ("judgements", "run", "words"),
    [
        (
            Run.from_dict(RANKED),
            Judgements.from_dict(JUDGED),
            "`judgements` must be Judgements, got Run: the judgements come first",
        ),
        (JUDGED, Run.from_dict(RANKED), r"`judgements` must be Judgements, got dict: Judgements\.from_dict makes one"),
        (Judgements.from_dict(JUDGED), RANKED, r"`run` must be Run, got dict: Run\.from_dict makes one"),
        (Judgements.from_dict(JUDGED), None, "`run` must be Run, got NoneType"),
    ],
)
def test_other_objects_are_refused(judgements, run, words):
    with pytest.raises(TypeError, match=words):
        evaluate(judgements, run)


def test_names_in_capitals():
    assert list(example("NDCG@10 Map MRR P_5 Rprec").summary) == ["ndcg@10", "map", "mrr", "P_5", "Rprec"]
    with pytest.raises(ValueError, match=r"Unknown measure 'nDGC@20'\. Did you mean 'ndcg@20'"):
        example("nDGC@20")
