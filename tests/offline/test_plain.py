"""Measures from judged documents alone: the same as from whole rankings by PyTorch, and without loading it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_rank.data.runs import Judgements, Run
from lightning_rank.functional.metrics import METRICS
from lightning_rank.offline import evaluate as module
from lightning_rank.offline.evaluate import evaluate
from lightning_rank.offline.plain import PLAIN, PlainRanking
from tests.offline.test_evaluate import CASES, unjudged_is_fine

ALL = "all_trec official judged judged@3 " + " ".join(
    name if k is None else f"{name}@{k}"
    for name, spec in PLAIN.items()
    for k in ((None, 1, 3) if spec.takes_top_k else (None,))
)


def test_the_rows_are_those_of_all_metrics():
    told = ("name", "options", "bounded", "higher_is_better", "takes_top_k")
    for name, spec in PLAIN.items():
        assert [getattr(spec, x) for x in told] == [getattr(METRICS[name], x) for x in told]
        assert spec.function.__name__ == METRICS[name].function.__name__
    assert METRICS.keys() - PLAIN.keys() == {"err", "auc"}


@unjudged_is_fine
@given(
    case=CASES,
    convention=st.sampled_from([None, "trec_eval", "beir", "lightgbm", "torchmetrics"]),
    ties=st.sampled_from(["stable", "average", "optimistic", "pessimistic"]),
    gain=st.sampled_from(["exp2", "linear"]),
    depth=st.sampled_from([None, 1, 3]),
    min_relevance=st.sampled_from([1, 2]),
    missing=st.sampled_from(["zero", "skip"]),
)
def test_values_are_those_of_whole_rankings(case, convention, ties, gain, depth, min_relevance, missing):
    judgements, run = Judgements.from_dict(case[0]), Run.from_dict(case[1])
    # Those of trec_eval that need an order take no other ties.
    measures = (
        ALL if ties == "stable" else " ".join(name for name in ALL.split() if "all_trec" not in name and name != "official")
    )
    options = {
        "convention": convention, "ties": ties, "gain": gain, "depth": depth, "min_relevance": min_relevance, "missing": missing,
        "empty_target_action": "neg",
    }  # fmt: skip
    assert_same(judgements, run, measures, **options)


def assert_same(judgements: Judgements, run: Run, measures: str, **options: Any) -> None:
    found = evaluate(judgements, run, measures, **options)
    with mock.patch.object(module._Rankings, "plain", return_value=None):
        expected = evaluate(judgements, run, measures, **options)
    assert found.values.keys() == expected.values.keys()
    for name, values in expected.values.items():
        np.testing.assert_allclose(found.values[name], values, rtol=1e-12, atol=1e-15, err_msg=name)
    assert (found.query_ids, found.conventions) == (expected.query_ids, expected.conventions)
    np.testing.assert_allclose(found.counts, expected.counts, rtol=1e-12)


@pytest.mark.parametrize("convention", ["trec_eval", "xgboost", "kaggle"])
def test_values_of_many_queries_are_those_of_whole_rankings(convention):
    generator = np.random.default_rng(0)
    judged, ranked = {}, {}
    for query in range(200):
        size = query % 20 + 1
        documents, grades = generator.choice(40, size), generator.choice([-1, 0, 0, 1, 2, 3], size)
        judged[query] = dict(zip(documents.tolist(), grades.tolist(), strict=True))
        documents, scores = generator.choice(40, 30), generator.choice(20, 30)
        ranked[query + 5] = dict(zip(documents.tolist(), scores.tolist(), strict=True))
    assert_same(Judgements.from_dict(judged), Run.from_dict(ranked), ALL, convention=convention, min_relevance=1)


def test_only_ties_with_a_judged_document_need_whole_rankings():
    judgements = Judgements.from_dict({"q": {"a": 1, "b": 0}})

    def plain(scores: dict[str, float], ties: str = "average") -> PlainRanking | None:
        rankings = evaluate(judgements, Run.from_dict({"q": scores}), "mrr", ties=ties).rankings
        assert rankings is not None
        return rankings.plain()

    assert plain({"a": 1.0, "c": 0.5, "d": 0.5, "b": 0.1}) is not None
    for tied in ({"a": 1.0, "c": 1.0}, {"c": 1.0, "a": 1.0}, {"d": 2.0, "c": 1.0, "b": 1.0}):
        assert plain(tied) is None
        assert plain(tied, ties="stable") is not None


@pytest.mark.parametrize(
    ("args", "loads"),
    [
        ("--metrics official ndcg@10 judged@10 --convention trec_eval --missing skip", False),
        ("--per-query {folder}/values.csv", False),
        ("--format json --ties average --gain linear", False),
        ("--metrics err", True),
        ("--ties average --run {folder}/tied.txt", True),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_the_command_loads_torch_only_where_it_must(command, args, loads, tmp_path):
    (tmp_path / "qrels.txt").write_text("q 0 a 1\nr 0 b 1\n")
    (tmp_path / "run.txt").write_text("q Q0 a 1 2 t\nr Q0 a 1 2 t\nr Q0 b 2 1 t\n")
    (tmp_path / "tied.txt").write_text("q Q0 a 1 2 t\nr Q0 a 1 2 t\nr Q0 b 2 2 t\n")
    if command == "compare":
        args = args.replace("official", "map")
    given = f"{command} --qrels {tmp_path}/qrels.txt --run a={tmp_path}/run.txt --run b={tmp_path}/run.txt {args}"
    code = (
        "import sys; from lightning_rank.cli import main; "
        f"status = main({given.format(folder=tmp_path).split()}); print('torch' in sys.modules); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(loads)
