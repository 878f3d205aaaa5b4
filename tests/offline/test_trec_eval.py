"""The outputs that trec_eval's own tests expect, line by line; its files lie in a folder of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightning_rank.cli import main

FOLDER = Path(os.environ.get("LIGHTNING_RANK_DATA", ""), "trec_eval")

pytestmark = pytest.mark.skipif(
    not (os.environ.get("LIGHTNING_RANK_DATA") and FOLDER.is_dir()),
    reason="LIGHTNING_RANK_DATA does not name the folder that holds trec_eval/out.test",
)

# What is not computed here: sampled judgements (infAP), other variants of gain, rankings as text, cutoffs that are no whole number
# (its file asks for 23.4). Whole files that do not apply: z-scores (aqZ), preferences (prefs, qrels_prefs), several judges
# (qrels_jg).
ABSENT = {"infAP", "G", "ndcg_rel", "Rndcg", "relstring", "relstring_20", "ndcg_1=3,2=9,4=4.5", "ndcg_cut_23"}
PARAMETERS = [
    "iprec_at_recall..10,.20,.25,.75,.50", "P.5,7,3", "recall.20,2000", "Rprec_mult.5.0,0.2,0.35", "utility.2,-1,0,0",
    "11pt_avg..25,.5,.75", "ndcg_cut.10,20", "success.2,5,20",
]  # fmt: skip


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.split()[0] not in ABSENT]


@pytest.mark.parametrize(
    ("expected", "qrels", "run", "options"),
    [
        ("out.test", "qrels.test", "results.test", ["--metrics", "official"]),
        ("out.test", "qrels.test.with-comments", "results.test", ["--metrics", "official"]),
        ("out.comment.test", "qrels.comment.test", "results.comment.test", ["--metrics", "official"]),
        ("out.test.a", "qrels.test", "results.test", ["--metrics", "all_trec"]),
        ("out.test.aq", "qrels.test", "results.test", ["--metrics", "all_trec", "-q"]),
        ("out.test.aqc", "qrels.test", "results.trunc", ["--metrics", "all_trec", "-q"]),
        ("out.test.aqcM", "qrels.test", "results.trunc", ["--metrics", "all_trec", "-q", "-M100"]),
        ("out.test.aql", "qrels.rel_level", "results.test", ["--metrics", "all_trec", "-q", "-l2"]),
        ("out.test.meas_params", "qrels.test", "results.test", ["--metrics", *PARAMETERS, "-q"]),
    ],
)
def test_the_same_lines(expected, qrels, run, options, capsys):
    files = ["--qrels", str(FOLDER / qrels), "--run", str(FOLDER / run)]
    assert main(["evaluate", *files, *options, "--format", "trec_eval"]) == 0
    printed = lines_of(capsys.readouterr().out)
    if "official" not in options and "all_trec" not in options:
        # There the id of the run is a measure of these two sets alone; here it always heads the means.
        printed = [line for line in printed if not line.startswith("runid")]
    wanted = lines_of((FOLDER / expected).read_text())
    assert len(wanted) > 20
    assert printed == wanted
