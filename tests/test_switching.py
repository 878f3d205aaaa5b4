"""The same code with torchmetrics' classes and with ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torchmetrics.retrieval as theirs

import lightning_rank.metrics as ours
from lightning_rank.functional.metrics import METRICS

PAIRS = [
    (theirs.RetrievalNormalizedDCG, ours.NDCG),
    (theirs.RetrievalMAP, ours.MAP),
    (theirs.RetrievalMRR, ours.MRR),
    (theirs.RetrievalPrecision, ours.Precision),
    (theirs.RetrievalRecall, ours.Recall),
    (theirs.RetrievalHitRate, ours.HitRate),
    (theirs.RetrievalRPrecision, ours.RPrecision),
    (theirs.RetrievalFallOut, ours.FallOut),
    (theirs.RetrievalAUROC, ours.AUC),
]


def run(metric: torch.nn.Module) -> float:
    """Three updates with the items of 20 queries mixed: positive, untied scores and binary grades."""
    generator = torch.Generator().manual_seed(0)
    preds = (torch.randperm(400, generator=generator) + 1) / 400
    target = (torch.rand(400, generator=generator) < 0.3).long()
    indexes = torch.randint(0, 20, (400,), generator=generator)
    for part in range(0, 400, 150):
        metric.update(preds[part : part + 150], target[part : part + 150], indexes[part : part + 150])
    return metric.compute().item()


CASES = [(*pair, top_k) for pair in PAIRS for top_k in (None, 5) if top_k is None or METRICS[pair[1].name].takes_top_k]


@pytest.mark.parametrize(("their_class", "our_class", "top_k"), CASES)
def test_one_import_switches(their_class, our_class, top_k):
    cut = {} if top_k is None else {"top_k": top_k}
    assert run(our_class(**cut, convention="torchmetrics")) == pytest.approx(run(their_class(**cut)), abs=1e-6)


def test_every_class_of_torchmetrics_is_in_the_table():
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    names = {name for name in theirs.__all__ if name.startswith("Retrieval")}
    assert len(names) > 8
    assert not [name for name in names if f"`{name}`" not in readme]
