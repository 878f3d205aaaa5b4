"""Each preset of ``convention=`` gives the number of its tool where tools disagree: graded labels, tied scores, queries without
a relevant item, cutoffs, more relevant items than the cutoff, lists shorter than it, negative scores.

A tool that pip installs computes the number itself; its tests are skipped where it is not installed. Light ones are
``pytrec-eval-terrier``, ``ir_measures``, ``lightgbm``, ``xgboost-cpu`` and, with ``--no-deps``, ``beir``; ``catboost`` is 100 MB.
Numbers of the others are recorded: from the tool, its documentation or its tests, or by hand from its formula, never from this
library.

What a tool does and its preset does not, because it is a fault, or another metric under the same name. Tests at the foot show
both numbers.

============  =============================================================  ===================================================
tool          what it does                                                   here
============  =============================================================  ===================================================
trec_eval     a grade below 0 is not judged: bpref does not see it           judged, not relevant; ``judged=False`` says so
trec_eval     scores are cut to float32, which makes ties                    ties are those of the dtype that was given
ir_measures   RR@k takes tied items by ascending id, all else descending     one order for all metrics
ir_measures   ERR and exp2 NDCG (gdeval) are rounded to 5 digits             not rounded
ranx          RBP multiplies by the grade and exceeds 1                      relevant or not
ranx          ties of more than 15 items in the order of the sort routine    input order
ranx          bpref is NaN where all are relevant, and wrong under ties      as trec_eval
scikit-learn  LRAP and average_precision_score take tied items as one rank   the mean over their orders
scikit-learn  label_ranking_loss counts a tied pair as wrong                 as half a pair, like roc_auc_score
scikit-learn  LRAP of a query without a relevant item is 1                   0, as its NDCG and AP
scikit-learn  ndcg_score raises for one document and for negative grades     defined; a negative grade is not relevant
scikit-learn  ``ignore_ties=True`` takes tied items in reversed input order  ``ties="stable"`` takes them in input order
torchmetrics  items with a score <= 0 are dropped                            only the order of the scores matters
torchmetrics  tied items in the order of the sort routine, but for NDCG      the mean over their orders in every metric
XGBoost       pre@k divides by min(k, n)                                     by k
XGBoost       a metric without cutoff is cut at 32                           the whole list
XGBoost       map and pre refuse graded labels                               ``min_relevance`` decides
XGBoost       auc counts pairs of equal grades as right                      leaves them out
XGBoost       scores are cut to float32, which makes ties                    ties are those of the dtype that was given
CatBoost      PrecisionAt divides by min(k, n)                               by k
CatBoost      QueryAUC counts a tied pair half, all else the worst order     one tie rule per report; give ``ties="average"``
TF-Ranking    P@k divides by min(k, n)                                       by k
Rax           P@k divides by min(k, n)                                       by k
Rax           an item with score -inf is not retrieved                       retrieved last; leave it out and give ``ideal``
Kaggle        apk counts a repeated prediction once                          remove repeats, or give them grade 0
Kaggle        ml_metrics 0.1.4 gives 1 to a query without a relevant item    0, as apk in the repository that it comes from
MS MARCO      a query without results counts 0                               so it does, given as an empty row with ``ideal``
BEIR          tied items by descending id, but MRR and accuracy as listed    one order for all metrics
BEIR          R_cap@k divides by min(R, k)                                   recall divides by R
BEIR          values are rounded to 5 digits                                 not rounded
============  =============================================================  ===================================================
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.metadata import version
from itertools import permutations
from math import inf, log2
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch

from lightning_rank import metric
from lightning_rank.conventions import PRESETS
from tests.conftest import Query, lay_out


def query(scores: Sequence[float], grades: Sequence[float]) -> Query:
    return {"preds": list(scores), "target": list(grades)}


QUERIES: dict[str, Query] = {
    "graded": query([8, 7, 6, 5, 4, 3, 2, 1], [3, 1, 2, 0, 3, 1, 2, 0]),
    "graded ties": query([0.8, 0.8, 0.6, 0.4, 0.4, 0.4, 0.2], [0, 1, 0, 3, 0, 1, 2]),
    "constant": query([0.5] * 5, [0, 2, 0, 1, 0]),
    "negative scores": query([-1, -2, -3], [1, 0, 1]),
    "signs and ties": query([-0.5, 0, 1, -0.5, -0.0], [2, 0, 1, 1, 3]),
    "short": query([1, 2], [2, 0]),
    "nothing relevant": query([3, 2, 1], [0, 0, 0]),
    "relevant below the cutoff": query([5, 4, 3, 2, 1], [0, 0, 0, 0, 2]),
    "more relevant than the cutoff": query([6, 5, 4, 3, 2, 1], [0, 1, 1, 1, 1, 2]),
    "one item": query([0.3], [1]),
    # Sorts that are stable only for short lists show here.
    "long ties": query([i * 7 % 5 for i in range(60)], [(i * i + i // 3) % 4 for i in range(60)]),
}


def where(condition: Callable[[Sequence[float], Sequence[float]], bool]) -> dict[str, Query]:
    """The queries whose scores and grades fulfil a condition."""
    return {name: q for name, q in QUERIES.items() if condition(q["preds"], q["target"])}


def untied(scores: Sequence[float], grades: Sequence[float]) -> bool:
    return len(set(scores)) == len(scores)


def has_pairs(scores: Sequence[float], grades: Sequence[float]) -> bool:
    return max(grades) > 0 >= min(grades)


def binary(queries: dict[str, Query]) -> dict[str, Query]:
    """The queries with relevance 0 or 1 for their grades."""
    return {name: query(q["preds"], [int(grade > 0) for grade in q["target"]]) for name, q in queries.items()}


def ours(convention: str, name: str, queries: Iterable[Query], **options: Any) -> float:
    """The mean over the queries under a preset."""
    ranking_metric = metric(name, convention=convention, **options)
    ranking_metric.update(**lay_out(list(queries), "padded"))
    return ranking_metric.compute().item()


# Tools that compute their own numbers ---------------------------------------------------------------------------------
# Each function gives a tool's value of metrics, by the tool's names for them, over some queries.

Numbers = dict[str, float]


def needs(module: str, package: str) -> Any:
    return pytest.importorskip(module, reason=f"the package `{package}` is not installed")


def flat(queries: Sequence[Query]) -> tuple[list[float], list[float], list[int]]:
    """Scores, grades, and the number of items of each query."""
    scores = [float(score) for q in queries for score in q["preds"]]
    grades = [grade for q in queries for grade in q["target"]]
    return scores, grades, [len(q["preds"]) for q in queries]


def identified(q: Query, column: str) -> dict[str, float]:
    """A column by document ids that descend in input order, which is how trec_eval takes tied documents."""
    return {f"d{999 - i}": value for i, value in enumerate(q[column])}


def runs_and_qrels(queries: Sequence[Query]) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    qrels = {str(number): identified(q, "target") for number, q in enumerate(queries, 1)}
    runs = {str(number): identified(q, "preds") for number, q in enumerate(queries, 1)}
    return qrels, {number: {i: float(score) for i, score in run.items()} for number, run in runs.items()}


def by_trec_eval(queries: Sequence[Query], names: Sequence[str], *, level: int = 1) -> Numbers:
    pytrec_eval = needs("pytrec_eval", "pytrec-eval-terrier")
    qrels, runs = runs_and_qrels(queries)
    measures = {re.sub(r"_(\d+)$", r".\1", name) for name in names}
    values = pytrec_eval.RelevanceEvaluator(qrels, measures, relevance_level=level).evaluate(runs).values()
    return {name: fmean(value[name] for value in values) for name in names}


def by_ir_measures(queries: Sequence[Query], names: Sequence[str]) -> Numbers:
    ir_measures = needs("ir_measures", "ir_measures")
    needs("pytrec_eval", "pytrec-eval-terrier")
    if any("ERR" in name or "exp" in name for name in names) and not shutil.which("perl"):
        pytest.skip("perl, which gdeval needs, is not installed")
    qrels, runs = runs_and_qrels(queries)
    measures = {ir_measures.parse_measure(name): name for name in names}
    return {measures[m]: value for m, value in ir_measures.calc_aggregate(list(measures), qrels, runs).items()}


def by_beir(queries: Sequence[Query], names: Sequence[str]) -> Numbers:
    needs("pytrec_eval", "pytrec-eval-terrier")
    evaluation = needs("beir.retrieval.evaluation", "beir").EvaluateRetrieval
    qrels, runs = runs_and_qrels(queries)
    values: Numbers = {}
    for table in evaluation.evaluate(qrels, runs, [1, 3, 5]):
        values |= table
    for custom in ("mrr", "accuracy"):
        values |= evaluation.evaluate_custom(qrels, runs, [1, 3, 5], custom)
    return values


def by_sklearn(queries: Sequence[Query], names: Sequence[str]) -> Numbers:
    from sklearn import metrics

    def value(name: str, scores: Sequence[float], grades: Sequence[float]) -> float:
        function, _, cutoff = name.partition("@")
        if function in ("ndcg_score", "dcg_score"):
            return getattr(metrics, function)([grades], [scores], k=int(cutoff) if cutoff else None)
        relevant = [int(grade > 0) for grade in grades]
        if function == "label_ranking_average_precision_score":
            return metrics.label_ranking_average_precision_score([relevant], [scores])
        return getattr(metrics, function)(relevant, scores)

    return {name: fmean(float(value(name, q["preds"], q["target"])) for q in queries) for name in names}


def by_torchmetrics(queries: Sequence[Query], names: Sequence[str], *, empty_target_action: str = "neg") -> Numbers:
    from torchmetrics import retrieval

    scores, grades, sizes = flat(queries)
    indexes = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    values = {}
    for name in names:
        cls, _, cutoff = name.partition("@")
        options = {"top_k": int(cutoff)} if cutoff else {}
        tool = getattr(retrieval, f"Retrieval{cls}")(empty_target_action=empty_target_action, **options)
        tool.update(torch.tensor(scores), torch.tensor(grades), indexes=indexes)
        values[name] = tool.compute().item()
    return values


def by_lightgbm(queries: Sequence[Query], names: Sequence[str], **parameters: Any) -> Numbers:
    lightgbm = needs("lightgbm", "lightgbm")
    scores, grades, sizes = flat(queries)
    # A booster without trees has the initial scores for its own.
    data = lightgbm.Dataset(
        np.zeros((len(scores), 1)),
        grades,
        group=sizes,
        init_score=scores,
        params={"verbose": -1, "feature_pre_filter": False},
    )
    cutoffs = sorted({int(name.partition("@")[2]) for name in names})
    booster = lightgbm.Booster(
        {"objective": "none", "metric": ["ndcg", "map"], "eval_at": cutoffs, "num_threads": 1, "verbose": -1, **parameters},
        data,
    )
    return {name: float(value) for _, name, value, _ in booster.eval_train()}


def by_xgboost(queries: Sequence[Query], names: Sequence[str], **parameters: Any) -> Numbers:
    xgboost = needs("xgboost", "xgboost-cpu")
    scores, grades, sizes = flat(queries)
    data = xgboost.DMatrix(np.zeros((len(scores), 1)), label=grades, base_margin=scores)
    data.set_group(sizes)
    # A booster without trees has the base margin for its scores.
    booster = xgboost.Booster({"objective": "rank:ndcg", "eval_metric": list(names), "nthread": 1, **parameters}, [data])
    pairs = (text.removeprefix("it-").split(":") for text in booster.eval(data, "it").split("\t")[1:])
    return {name: float(value) for name, value in pairs}


def by_catboost(queries: Sequence[Query], names: Sequence[str]) -> Numbers:
    utils = needs("catboost.utils", "catboost")
    scores, grades, sizes = flat(queries)
    group = np.repeat(np.arange(len(sizes)), sizes)
    return {name: utils.eval_metric([float(g) for g in grades], scores, name, group_id=group)[0] for name in names}


@dataclass(frozen=True, eq=False)
class Peer:
    """A tool, the preset that stands for it, and what is compared.

    Attributes:
        convention: the preset.
        evaluate: the tool's values of metrics over queries.
        names: our name of each metric -> the tool's.
        queries: those that the tool takes.
        options: given beside the preset.
        accuracy: of the tool's number.
        label: what is special, for the name of the test.
    """

    convention: str
    evaluate: Callable[[Sequence[Query], Sequence[str]], Numbers]
    names: dict[str, str]
    queries: dict[str, Query] = field(default_factory=lambda: QUERIES, repr=False)
    options: dict[str, Any] = field(default_factory=dict)
    accuracy: float = 1e-9
    label: str = ""

    @cached_property
    def numbers(self) -> dict[str, Numbers]:
        """The tool's values of each query, and of all together."""
        names = list(self.names.values())
        batches = {name: [q] for name, q in self.queries.items()} | {"all": list(self.queries.values())}
        return {name: self.evaluate(queries, names) for name, queries in batches.items()}


TREC_EVAL = {
    "map": "map",
    "map@3": "map_cut_3",
    "mrr": "recip_rank",
    "precision@3": "P_3",
    "precision@5": "P_5",
    "recall@3": "recall_3",
    "hit_rate@3": "success_3",
    "f1": "set_F",
    "r_precision": "Rprec",
    "bpref": "bpref",
}
BEIR = {"ndcg": "NDCG", "map": "MAP", "recall": "Recall", "precision": "P", "mrr": "MRR", "hit_rate": "Accuracy"}
UNTIED_POSITIVE = where(lambda scores, grades: untied(scores, grades) and min(scores) > 0)

PEERS = [
    Peer("trec_eval", by_trec_eval, {"ndcg": "ndcg", "ndcg@3": "ndcg_cut_3", "ndcg@5": "ndcg_cut_5", **TREC_EVAL}),
    Peer("trec_eval", partial(by_trec_eval, level=2), TREC_EVAL, options={"min_relevance": 2}, label="level 2"),
    Peer(
        "trec_eval",
        by_ir_measures,
        {
            "ndcg": "nDCG",
            "ndcg@3": "nDCG@3",
            "map@3": "AP@3",
            "mrr": "RR",
            "precision@3": "P@3",
            "recall@3": "R@3",
            "hit_rate@3": "Success@3",
            "r_precision": "Rprec",
            "bpref": "Bpref",
        },
        label="ir_measures",
    ),
    Peer(
        "trec_eval",
        by_ir_measures,
        {"map": "AP(rel=2)", "mrr": "RR(rel=2)", "precision@3": "P(rel=2)@3"},
        options={"min_relevance": 2},
        label="ir_measures level 2",
    ),
    Peer("trec_eval", by_ir_measures, {"err@3": "ERR@3"}, accuracy=1e-5, label="ir_measures"),
    Peer(
        "trec_eval",
        by_ir_measures,
        {"ndcg@3": "nDCG(dcg='exp-log2')@3"},
        options={"gain": "exp2"},
        accuracy=1e-5,
        label="ir_measures exp2",
    ),
    Peer("beir", by_beir, {f"{name}@{k}": f"{tool}@{k}" for name, tool in BEIR.items() for k in (1, 3, 5)}, accuracy=1e-5),
    Peer(
        "sklearn",
        by_sklearn,
        {"ndcg": "ndcg_score", "ndcg@3": "ndcg_score@3", "dcg": "dcg_score", "dcg@3": "dcg_score@3"},
        queries=where(lambda scores, grades: len(scores) > 1),
    ),
    Peer("sklearn", by_sklearn, {"auc": "roc_auc_score"}, queries=where(has_pairs)),
    Peer(
        "sklearn",
        by_sklearn,
        {"map": "label_ranking_average_precision_score"},
        queries=where(lambda scores, grades: untied(scores, grades) and max(grades) > 0),
    ),
    Peer(
        "torchmetrics",
        by_torchmetrics,
        {"ndcg": "NormalizedDCG", "ndcg@3": "NormalizedDCG@3"},
        accuracy=1e-6,
    ),
    Peer(
        "torchmetrics",
        by_torchmetrics,
        {
            "map": "MAP",
            "map@3": "MAP@3",
            "mrr@3": "MRR@3",
            "precision": "Precision",
            "precision@5": "Precision@5",
            "recall@3": "Recall@3",
            "hit_rate@3": "HitRate@3",
            "fall_out@3": "FallOut@3",
            "r_precision": "RPrecision",
            "auc": "AUROC",
        },
        queries=binary(UNTIED_POSITIVE),
        accuracy=1e-6,
        label="binary",
    ),
    Peer("lightgbm", by_lightgbm, {f"{name}@{k}": f"{name}@{k}" for name in ("ndcg", "map") for k in (1, 3, 5, 100)}),
    Peer(
        "lightgbm",
        partial(by_lightgbm, label_gain="0,1,5,7"),
        {"ndcg@3": "ndcg@3"},
        options={"gain": [0, 1, 5, 7]},
        label="label_gain",
    ),
    Peer("xgboost", by_xgboost, {f"ndcg@{k}": f"ndcg@{k}" for k in (1, 3, 5, 100)}),
    Peer(
        "xgboost",
        partial(by_xgboost, ndcg_exp_gain=False),
        {"ndcg@3": "ndcg@3"},
        options={"gain": "linear"},
        label="ndcg_exp_gain=False",
    ),
    Peer("xgboost", by_xgboost, {f"map@{k}": f"map@{k}" for k in (1, 3, 5, 100)}, queries=binary(QUERIES), label="binary"),
    Peer("xgboost", by_xgboost, {"ndcg@3": "ndcg@3-"}, options={"empty_target_action": "neg"}, label="minus"),
    Peer(
        "xgboost",
        by_xgboost,
        {"map@3": "map@3-"},
        queries=binary(QUERIES),
        options={"empty_target_action": "neg"},
        label="minus",
    ),
    Peer(
        "xgboost",
        by_xgboost,
        {"precision@1": "pre@1", "precision@3": "pre@3"},
        queries=binary(where(lambda scores, grades: len(scores) >= 3)),
        label="binary",
    ),
    Peer(
        "catboost",
        by_catboost,
        {
            "ndcg": "NDCG",
            "ndcg@3": "NDCG:top=3",
            "dcg@3": "DCG:top=3",
            "map": "MAP",
            "map@3": "MAP:top=3",
            "mrr": "MRR",
            "mrr@3": "MRR:top=3",
            "recall@3": "RecallAt:top=3",
        },
    ),
    Peer("catboost", by_catboost, {"ndcg@3": "NDCG:top=3;type=Exp"}, options={"gain": "exp2"}, label="type=Exp"),
    Peer(
        "catboost",
        by_catboost,
        {"precision@3": "PrecisionAt:top=3"},
        queries=where(lambda scores, grades: len(scores) >= 3),
    ),
]


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        pytest.param(peer, name, id="-".join(filter(None, (peer.convention, peer.label, name))))
        for peer in PEERS
        for name in peer.names
    ],
)
def test_preset_gives_the_number_of_its_tool(peer, name):
    theirs = {batch: numbers[peer.names[name]] for batch, numbers in peer.numbers.items()}
    batches = {batch: [q] for batch, q in peer.queries.items()} | {"all": list(peer.queries.values())}
    mine = {batch: ours(peer.convention, name, queries, **peer.options) for batch, queries in batches.items()}
    assert mine == pytest.approx(theirs, rel=peer.accuracy, abs=peer.accuracy)


@pytest.mark.parametrize("action", ["neg", "pos", "skip"])
def test_torchmetrics_empty_target_action(action):
    queries = list(binary(UNTIED_POSITIVE).values())
    theirs = by_torchmetrics(queries, ["MAP@3", "NormalizedDCG@3"], empty_target_action=action)
    mine = [ours("torchmetrics", name, queries, empty_target_action=action) for name in ("map@3", "ndcg@3")]
    assert mine == pytest.approx([theirs["MAP@3"], theirs["NormalizedDCG@3"]], rel=1e-6)


def test_trec_eval_with_documents_not_judged_and_not_retrieved():
    pytrec_eval = needs("pytrec_eval", "pytrec-eval-terrier")
    qrels = {"d9": 2, "d7": 0, "d5": 1, "d3": 0, "missing 3": 3, "missing 1": 1, "missing 0": 0}
    run = {"d9": 3.0, "d8": 4.0, "d7": 3.0, "d6": 2.0, "d5": 2.0, "d4": 1.0, "d3": 5.0}
    names = {
        "ndcg": "ndcg",
        "ndcg@3": "ndcg_cut_3",
        "map": "map",
        "bpref": "bpref",
        "r_precision": "Rprec",
        "recall@5": "recall_5",
    }
    measures = {"ndcg", "ndcg_cut.3", "map", "bpref", "Rprec", "recall.5"}
    theirs = pytrec_eval.RelevanceEvaluator({"q": qrels}, measures).evaluate({"q": run})["q"]
    for name, tool_name in names.items():
        ranking_metric = metric(name, convention="trec_eval")
        ranking_metric.update(
            torch.tensor([list(run.values())]).double(),
            torch.tensor([[qrels.get(document, 0) for document in run]]),
            judged=torch.tensor([[document in qrels for document in run]]),
            ideal=torch.tensor([list(qrels.values())]),
        )
        assert ranking_metric.compute().item() == pytest.approx(theirs[tool_name], rel=1e-9), name


# Recorded numbers -----------------------------------------------------------------------------------------------------

# tensorflow/ranking at 053cdcd, examples in the documentation of tfr.keras.metrics (float32), for one list and for two.
TFR_LIST = [query([3, 1, 2], [0, 1, 1])]
TFR_LISTS = [query([2, 1], [0, 1]), query([2, 5, 4], [1, 2, 0])]
# rax 0.4.0, metrics_test.py: two lists, and one whose three relevant items do not fit into two ranks.
RAX_LISTS = [query([0, 3, 1, 2], [0, 0, 1, 1]), query([1, 4, 3, 2], [2, 0, 0, 1])]
RAX_CUT = [query([0, 3, 1, 2], [1, 0, 1, 1])]
TIED_PAIR = [query([1, 1], [0, 1])]
NOTHING = [QUERIES["nothing relevant"]]
# ranx 0.3.21, which numba compiles for half a minute, has no preset of its own: computed once by it.
RANX = list(where(lambda scores, grades: len(scores) <= 15).values())

RECORDED = [
    ("trec_eval", "ndcg@3", RANX, 0.4834852884927063),
    ("trec_eval", "ndcg", RANX, 0.6452813814996182),
    ("trec_eval", "map@3", RANX, 0.38583333333333336),
    ("trec_eval", "map", RANX, 0.5980436507936508),
    ("trec_eval", "mrr@3", RANX, 0.6),
    ("trec_eval", "precision@3", RANX, 0.4333333333333333),
    ("trec_eval", "recall@3", RANX, 0.515),
    ("trec_eval", "hit_rate@3", RANX, 0.8),
    ("trec_eval", "f1@3", RANX, 0.42238095238095247),
    ("trec_eval", "r_precision", RANX, 0.4883333333333333),
    ("tf_ranking", "mrr", TFR_LIST, 0.5),
    ("tf_ranking", "hit_rate@1", TFR_LIST, 0.0),
    ("tf_ranking", "hit_rate@2", TFR_LIST, 1.0),
    ("tf_ranking", "precision@2", TFR_LIST, 0.5),
    ("tf_ranking", "recall@2", TFR_LIST, 0.5),
    ("tf_ranking", "map@2", TFR_LIST, 0.25),
    ("tf_ranking", "ndcg", TFR_LIST, 0.6934264),
    ("tf_ranking", "dcg", TFR_LIST, 1.1309297),
    ("tf_ranking", "mrr", TFR_LISTS, 0.75),
    ("tf_ranking", "hit_rate@1", TFR_LISTS, 0.5),
    ("tf_ranking", "precision@2", TFR_LISTS, 0.5),
    ("tf_ranking", "recall@2", TFR_LISTS, 0.75),
    ("tf_ranking", "map@2", TFR_LISTS, 0.5),
    ("tf_ranking", "ndcg", TFR_LISTS, 0.7974351),
    ("tf_ranking", "dcg", TFR_LISTS, 2.065465),
    # Its metrics_impl_test.py: graded relevance, and a cutoff above which one of two relevant items stands.
    ("tf_ranking", "map", [query([3, 4, 1, 2], [0, 2, 1, 3])], (1 + 2 / 3 + 3 / 4) / 3),
    ("tf_ranking", "map@1", [query([3, 2, 1], [1, 0, 2])], 1 / 2),
    # "Ties are broken randomly": each order of the pair half of the time.
    ("tf_ranking", "mrr", TIED_PAIR, (1 + 1 / 2) / 2),
    ("tf_ranking", "ndcg", TIED_PAIR, (1 + 1 / log2(3)) / 2),
    ("tf_ranking", "precision@1", TIED_PAIR, 1 / 2),
    # "For these cases, the TF-Ranking metrics will evaluate to 0", and such a list weighs as much as the mean of the others.
    ("tf_ranking", "ndcg", NOTHING + TFR_LIST, 0.6934264 / 2),
    ("tf_ranking", "map@2", NOTHING + TFR_LIST, 0.25 / 2),
    # The example of rax.ndcg_metric.
    ("rax", "ndcg", [query([2, 1, 3], [2, 0, 1])], 0.79670763),
    ("rax", "ndcg", [query([2, 1, 3], [2, 0, 1]), query([1, 0.5, 1.5], [0, 0, 1])], 0.8983538),
    ("rax", "mrr", RAX_LISTS, (1 / 2 + 1 / 3) / 2),
    ("rax", "recall@3", RAX_LISTS, (1 + 1 / 2) / 2),
    ("rax", "precision@3", RAX_LISTS, (2 / 3 + 1 / 3) / 2),
    ("rax", "map", RAX_LISTS, ((1 / 2 + 2 / 3) / 2 + (1 / 3 + 1 / 2) / 2) / 2),
    ("rax", "dcg", RAX_LISTS, (1 / log2(3) + 1 / log2(4) + 1 / log2(4) + 3 / log2(5)) / 2),
    (
        "rax",
        "ndcg",
        RAX_LISTS,
        ((1 / log2(3) + 1 / log2(4)) / (1 + 1 / log2(3)) + (1 / log2(4) + 3 / log2(5)) / (3 + 1 / log2(3))) / 2,
    ),
    ("rax", "mrr@3", RAX_CUT, 1 / 2),
    ("rax", "recall@3", RAX_CUT, 2 / 3),
    ("rax", "precision@3", RAX_CUT, 2 / 3),
    ("rax", "map@3", RAX_CUT, (1 / 2 + 2 / 3) / 3),
    ("rax", "ndcg@3", RAX_CUT, (1 / log2(3) + 1 / log2(4)) / (1 + 1 / log2(3) + 1 / log2(4))),
    ("rax", "mrr@1", RAX_CUT, 0.0),
    # ap_metric divides by all relevant items.
    ("rax", "map@2", RAX_CUT, (1 / 2) / 3),
    # Without a key "ties will retain the order of their appearance".
    ("rax", "mrr", TIED_PAIR, 1 / 2),
    ("rax", "ndcg", TIED_PAIR, 1 / log2(3)),
    ("rax", "mrr", [query([1, 1], [1, 0])], 1.0),
    ("rax", "ndcg", NOTHING, 0.0),
    ("rax", "map", NOTHING, 0.0),
]


@pytest.mark.parametrize(
    ("convention", "name", "queries", "expected"),
    [pytest.param(*row, id=f"{row[0]}-{row[1]}-{number}") for number, row in enumerate(RECORDED)],
)
def test_preset_gives_the_recorded_number(convention, name, queries, expected):
    assert ours(convention, name, queries) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def of_predictions(
    convention: str, name: str, actual: Sequence[Sequence[int]], predicted: Sequence[Sequence[int]]
) -> float:
    """The mean over queries given as the relevant items and a ranked list without scores, where a repeat is no hit."""
    width, widest = max(map(len, predicted)), max(map(len, actual))
    target, mask = torch.zeros(len(predicted), width), torch.zeros(len(predicted), width, dtype=torch.bool)
    ideal_mask = torch.zeros(len(actual), widest, dtype=torch.bool)
    for row, (relevant, ranked) in enumerate(zip(actual, predicted, strict=True)):
        for rank, item in enumerate(ranked):
            target[row, rank] = item in relevant and item not in ranked[:rank]
        mask[row, : len(ranked)] = True
        ideal_mask[row, : len(relevant)] = True
    ranking_metric = metric(name, convention=convention)
    # All scores are equal, so that the order is that of the list.
    ranking_metric.update(
        torch.zeros_like(target).double(), target, mask=mask, ideal=torch.ones(ideal_mask.shape), ideal_mask=ideal_mask
    )
    return ranking_metric.compute().item()


@pytest.mark.parametrize(
    ("k", "actual", "predicted", "expected"),
    [
        # test_average_precision.py of benhamner/Metrics, from which Kaggle's apk and mapk are taken.
        (2, [range(1, 6)], [[6, 4, 7, 1, 2]], 0.25),
        (5, [range(1, 6)], [[1, 1, 1, 1, 1]], 0.2),
        (20, [range(1, 100)], [[*range(1, 21), *range(200, 600)]], 1.0),
        (3, [range(1, 5)], [range(1, 5)], 1.0),
        (3, [[1, 3, 4], [1, 2, 4], [1, 3]], [range(1, 6)] * 3, 0.685185185185185),
        (5, [range(1, 6)] * 2, [[6, 4, 7, 1, 2], [1, 1, 1, 1, 1]], 0.26),
        (3, [[1, 3], [1, 2, 3], [1, 2, 3]], [range(1, 6), [1, 1, 1], [1, 2, 1]], 11 / 18),
        # apk (at a28d7ad) returns 0.0 where nothing is relevant, and where nothing is predicted: the mean of 1, 0 and 0.
        (3, [[1], [], [1, 3]], [[1, 2], [1, 2], []], 1 / 3),
    ],
)
def test_kaggle(k, actual, predicted, expected):
    assert of_predictions("kaggle", f"map@{k}", actual, predicted) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("actual", "predicted", "expected"),
    [
        # ms_marco_eval.py adds 1 / rank of the first relevant passage among the first 10 and divides by the queries of the
        # qrels file.
        ([[7]], [[5, 7, 6]], 1 / 2),
        ([[7, 6]], [[5, 7, 6]], 1 / 2),
        ([[10]], [range(1, 12)], 1 / 10),
        ([[11]], [range(1, 12)], 0.0),
        # Ranks 2 and 11, and a query that is not in the run.
        ([[2], [11], [3]], [[1, 2], range(1, 12), []], 1 / 6),
    ],
)
def test_msmarco(actual, predicted, expected):
    assert of_predictions("msmarco", "mrr@10", actual, predicted) == pytest.approx(expected, rel=1e-9)


def test_every_preset_is_tested():
    assert {peer.convention for peer in PEERS} | {row[0] for row in RECORDED} | {"kaggle", "msmarco"} == set(PRESETS)


# What presets leave out -----------------------------------------------------------------------------------------------


def test_trec_eval_takes_a_negative_grade_as_not_judged():
    q = query([3, 2, 1], [-1, 1, 0])
    assert by_trec_eval([q], ["bpref"])["bpref"] == 1.0
    assert ours("trec_eval", "bpref", [q]) == 0.0
    ranking_metric = metric("bpref", convention="trec_eval")
    ranking_metric.update(**lay_out([q | {"judged": [0, 1, 1]}], "padded", dtypes={"judged": torch.bool}))
    assert ranking_metric.compute() == 1.0


def test_float32_of_trec_eval_and_xgboost_makes_ties():
    q = query([20.0, 20.00000001], [0, 1])
    assert ours("trec_eval", "mrr", [q]) == ours("xgboost", "map@1", [q]) == 1.0
    low = metric("mrr", convention="trec_eval")
    low.update(**lay_out([q], "padded", dtypes={"preds": torch.float32}))
    assert low.compute() == 0.5
    assert by_trec_eval([q], ["recip_rank"])["recip_rank"] == 0.5
    assert by_xgboost([q], ["map@1"])["map@1"] == 0.0


def test_ir_measures_takes_tied_documents_in_both_orders():
    q = QUERIES["graded ties"]
    backwards = query(q["preds"][::-1], q["target"][::-1])
    theirs = by_ir_measures([q], ["RR", "RR@3"])
    assert theirs == {"RR": 0.5, "RR@3": 1.0}
    assert [ours("trec_eval", name, [q]) for name in ("mrr", "mrr@3")] == [0.5, 0.5]
    assert ours("trec_eval", "mrr@3", [backwards]) == 1.0


@pytest.mark.parametrize(
    ("name", "q", "ranx", "expected"),
    [
        ("rbp", query([2, 1], [3, 0]), 0.6, 0.2),
        # Four relevant items and three others, of which 1, 2, 3 and 3 stand above: (2/3 + 1/3)/4, as trec_eval has it.
        ("bpref", QUERIES["graded ties"], 0.0, 0.25),
        # Grades 0, 3, 0 on the first ranks, and 3 on all ideal ones, as trec_eval has it.
        ("ndcg@3", QUERIES["long ties"], 0.1973879406439102, (1 / log2(3)) / (1 + 1 / log2(3) + 1 / log2(4))),
    ],
)
def test_ranx(name, q, ranx, expected):
    value = ours("trec_eval", name, [q])
    assert value == pytest.approx(expected)
    assert value != pytest.approx(ranx, abs=0.05)


def test_sklearn_average_precision_takes_tied_items_as_one_rank():
    q = QUERIES["constant"]  # two of five relevant: precision 2/5 at the only threshold
    names = ["label_ranking_average_precision_score", "average_precision_score"]
    assert list(by_sklearn([q], names).values()) == pytest.approx([0.4, 0.4])
    # (2/5) (1/2) times the sum over ranks i of (1 + (i - 1)/4)/i: 0.1 (5 + 3 (1 + 1/2 + 1/3 + 1/4 + 1/5)) / 2
    assert ours("sklearn", "map", [q]) == pytest.approx(0.05 * (5 + 3 * (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5)))


def test_sklearn_ranking_loss_counts_a_tied_pair_as_wrong():
    from sklearn.metrics import label_ranking_loss

    q = QUERIES["constant"]
    assert 1 - label_ranking_loss([[int(g > 0) for g in q["target"]]], [q["preds"]]) == 0.0
    assert ours("sklearn", "auc", [q]) == by_sklearn([q], ["roc_auc_score"])["roc_auc_score"] == 0.5


@pytest.mark.filterwarnings("ignore:No positive class found")
def test_sklearn_without_a_relevant_item_has_two_answers():
    names = ["ndcg_score", "average_precision_score", "label_ranking_average_precision_score"]
    assert list(by_sklearn(NOTHING, names).values()) == [0.0, 0.0, 1.0]
    assert [ours("sklearn", name, NOTHING) for name in ("ndcg", "map")] == [0.0, 0.0]


@pytest.mark.skipif(version("scikit-learn").startswith("1.3."), reason="scikit-learn 1.3 takes them")
def test_sklearn_refuses_one_document_and_negative_grades():
    with pytest.raises(ValueError, match="more than 1 document"):
        by_sklearn([QUERIES["one item"]], ["ndcg_score"])
    assert ours("sklearn", "ndcg", [QUERIES["one item"]]) == 1.0
    with pytest.raises(ValueError, match="negative"):
        by_sklearn([query([2, 1], [1, -1])], ["ndcg_score"])
    assert ours("sklearn", "ndcg", [query([2, 1], [1, -1])]) == 1.0


def test_sklearn_ignore_ties_reverses_the_input_order():
    from sklearn.metrics import ndcg_score

    q = QUERIES["constant"]
    theirs = ndcg_score([q["target"]], [q["preds"]], k=3, ignore_ties=True)
    assert theirs == pytest.approx((1 / log2(3)) / (2 + 1 / log2(3)))
    assert ours("sklearn", "ndcg@3", [q], ties="stable") == pytest.approx((2 / log2(3)) / (2 + 1 / log2(3)))
    assert ours("sklearn", "ndcg@3", [query(q["preds"], q["target"][::-1])], ties="stable") == pytest.approx(theirs)


@pytest.mark.skipif(version("torchmetrics").startswith(("1.6.", "1.7.")), reason="torchmetrics drops them from 1.8 on")
def test_torchmetrics_drops_items_with_scores_up_to_0():
    q = QUERIES["negative scores"]
    names = {"map": "MAP", "mrr": "MRR", "precision@3": "Precision@3", "recall@3": "Recall@3"}
    assert set(by_torchmetrics([q], list(names.values())).values()) == {0.0}
    assert [ours("torchmetrics", name, [q]) for name in names] == pytest.approx([5 / 6, 1.0, 2 / 3, 1.0])


def test_torchmetrics_value_under_ties_depends_on_the_input_order():
    orders = [query([0.5] * 4, grades) for grades in sorted(set(permutations([1, 1, 0, 0])))]
    assert len({by_torchmetrics([q], ["MAP"])["MAP"] for q in orders}) > 1
    assert [ours("torchmetrics", "map", [q]) for q in orders] == pytest.approx([ours("torchmetrics", "map", orders)] * 6)


@pytest.mark.parametrize(
    ("convention", "evaluate", "tool_name"),
    [("xgboost", by_xgboost, "pre@3"), ("catboost", by_catboost, "PrecisionAt:top=3")],
)
def test_precision_of_a_short_list_is_divided_by_its_length(convention, evaluate, tool_name):
    q = query([1, 2], [1, 0])
    assert evaluate([q], [tool_name])[tool_name] == pytest.approx(1 / 2)
    assert ours(convention, "precision@3", [q]) == pytest.approx(1 / 3)


def test_precision_of_a_short_list_recorded():
    # metrics_impl_test.py of tensorflow_ranking: topn=6 of three items; precision_metric of rax divides by the retrieved items.
    tool = 2 / 3
    q = query([3, 2, 1], [1, 0, 1])
    assert ours("tf_ranking", "precision@6", [q]) == ours("rax", "precision@6", [q]) == pytest.approx(2 / 6)
    assert ours("tf_ranking", "precision", [q]) == ours("rax", "precision", [q]) == pytest.approx(tool)


def test_xgboost_without_cutoff_is_cut_at_32():
    graded, relevant = QUERIES["long ties"], binary(QUERIES)["long ties"]
    theirs = by_xgboost([graded], ["ndcg"]) | by_xgboost([relevant], ["map", "pre"])
    cut = [
        ours("xgboost", name, [q]) for name, q in (("ndcg@32", graded), ("map@32", relevant), ("precision@32", relevant))
    ]
    assert list(theirs.values()) == pytest.approx(cut)
    assert theirs["ndcg"] < ours("xgboost", "ndcg", [graded]) - 0.1
    assert ours("xgboost", "ndcg", [graded]) == pytest.approx(by_xgboost([graded], ["ndcg@60"])["ndcg@60"])


def test_xgboost_refuses_graded_labels_in_map():
    q = QUERIES["graded"]
    xgboost = needs("xgboost", "xgboost-cpu")
    with pytest.raises(xgboost.core.XGBoostError, match="binary"):
        by_xgboost([q], ["map@3"])
    assert ours("xgboost", "map@3", [q]) == pytest.approx(by_xgboost([binary(QUERIES)["graded"]], ["map@3"])["map@3"])


def test_xgboost_auc_counts_pairs_of_equal_grades():
    q = QUERIES["negative scores"]  # grades 1, 0, 1: one pair right, one wrong, one of equals
    assert by_xgboost([q], ["auc"])["auc"] == pytest.approx(2 / 3)
    assert ours("xgboost", "auc", [q]) == pytest.approx(1 / 2)


def test_catboost_auc_counts_a_tied_pair_half():
    q = binary(QUERIES)["constant"]
    assert by_catboost([q], ["QueryAUC", "MRR"]) == {"QueryAUC": 0.5, "MRR": 0.25}
    assert [ours("catboost", name, [q]) for name in ("auc", "mrr")] == [0.0, 0.25]
    assert ours("catboost", "auc", [q], ties="average") == 0.5


def test_rax_does_not_retrieve_a_score_of_minus_infinity():
    # metrics_test.py of rax.
    q = query([-inf, 5, 2, -inf, 1], [1, 0, 1, 0, 0])
    rax = {"mrr": 1 / 2, "precision": 1 / 3, "recall": 1 / 2, "map": 1 / 4, "ndcg": (1 / log2(3)) / (1 + 1 / log2(3))}
    stable = {  # ranks of the relevant items 2 and 4, of five
        "mrr": 1 / 2,
        "precision": 2 / 5,
        "recall": 1.0,
        "map": (1 / 2 + 2 / 4) / 2,
        "ndcg": (1 / log2(3) + 1 / log2(5)) / (1 + 1 / log2(3)),
    }
    assert {name: ours("rax", name, [q]) for name in stable} == pytest.approx(stable)
    scores, grades = torch.tensor([q["preds"]]).double(), torch.tensor([q["target"]])
    for name, expected in rax.items():
        ranking_metric = metric(name, convention="rax")
        ranking_metric.update(scores, grades, mask=scores > -inf, ideal=grades)
        assert ranking_metric.compute().item() == pytest.approx(expected), name


def test_beir_takes_tied_documents_in_both_orders():
    needs("pytrec_eval", "pytrec-eval-terrier")
    evaluation = needs("beir.retrieval.evaluation", "beir").EvaluateRetrieval
    qrels, runs = {"q": {"a": 1, "b": 0}}, {"q": {"a": 1.0, "b": 1.0}}
    assert evaluation.evaluate(qrels, runs, [1])[3] == {"P@1": 0.0}
    assert evaluation.evaluate_custom(qrels, runs, [1], "mrr") == {"MRR@1": 1.0}
    listed, by_id = query([1, 1], [1, 0]), query([1, 1], [0, 1])
    assert [ours("beir", name, [listed]) for name in ("precision@1", "mrr@1")] == [1.0, 1.0]
    assert [ours("beir", name, [by_id]) for name in ("precision@1", "mrr@1")] == [0.0, 0.0]


def test_beir_capped_recall_is_not_recall():
    needs("pytrec_eval", "pytrec-eval-terrier")
    evaluation = needs("beir.retrieval.evaluation", "beir").EvaluateRetrieval
    q = QUERIES["more relevant than the cutoff"]  # two of five relevant items within three ranks
    assert evaluation.evaluate_custom(*runs_and_qrels([q]), [3], "r_cap") == {"R_cap@3": 0.66667}
    assert ours("beir", "recall@3", [q]) == pytest.approx(2 / 5)
