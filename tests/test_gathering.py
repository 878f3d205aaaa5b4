"""Batches ranked together are batches ranked one by one."""

from __future__ import annotations

import pytest
import torch

from lightning_rank.functional.ranking import BLOCK
from lightning_rank.gathering import MOST_HELD, Gathered
from lightning_rank.metrics import RankingMetrics

NAMES = ["ndcg@10", "ndcg", "map@5", "mrr", "bpref", "auc"]


def padded(seed: int, queries: int, width: int, *, mask: bool = True, ids: bool = False, dtype=torch.float32) -> dict:
    generator = torch.Generator().manual_seed(seed)
    batch = {
        "preds": torch.randint(-9, 9, (queries, width), generator=generator).to(dtype),  # with ties
        "target": torch.randint(0, 4, (queries, width), generator=generator),
    }
    if mask:
        batch["mask"] = torch.rand(queries, width, generator=generator) < 0.8
        batch["preds"][~batch["mask"]] = torch.nan
    if ids:
        batch["indexes"] = torch.randint(0, 50, (queries,), generator=generator)
    return batch


def jagged(seed: int, queries: int, width: int, *, ids: bool = False) -> dict:
    batch = padded(seed, queries, width, ids=ids)
    mask = batch.pop("mask")
    batch |= {name: batch[name][mask] for name in ("preds", "target")}
    return batch | {"offsets": torch.cat([torch.zeros(1, dtype=torch.long), mask.sum(1).cumsum(0)])}


STREAMS = {
    "padded": [padded(i, 5 + i, 8 + i) for i in range(12)],
    "widths far apart": [padded(i, 20, (3, 300, 4, 90)[i % 4]) for i in range(12)],
    "without padding": [padded(i, 6, 9 if i < 5 else 7, mask=False) for i in range(9)],
    "jagged": [jagged(i, 4 + i, 9) for i in range(12)],
    "ids": [padded(i, 6, 9, ids=True) for i in range(9)] + [jagged(i, 6, 9, ids=True) for i in range(9)],
    "flat with ids": [{**padded(i, 1, 40, mask=False), "indexes": None} for i in range(4)],
    "mixed": [
        padded(0, 5, 8), jagged(1, 5, 8), padded(2, 5, 8, dtype=torch.float64), padded(3, 0, 8), padded(4, 5, 8), jagged(5, 0, 3),
    ],
    "larger than a bound": [padded(i, 300, 150) for i in range(4)] + [padded(9, 900, 90)],
}  # fmt: skip
for flat in STREAMS["flat with ids"]:
    flat |= {name: flat[name][0] for name in ("preds", "target")}
    flat["indexes"] = torch.arange(40) // 7


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("options", [{}, {"empty_target_action": "skip"}, {"per_query": True}], ids=str)
def test_the_values_are_those_of_one_by_one(stream, options):
    together, single = RankingMetrics(NAMES, **options), RankingMetrics(NAMES, **options)
    gathered = Gathered(together)
    for number, batch in enumerate(STREAMS[stream]):
        single.update(**batch)
        mine = {name: value.clone() for name, value in batch.items()}
        gathered.update(mine, number)
        for value in mine.values():
            value.zero_()  # what the step does with its tensors later does not matter
        assert gathered._items <= MOST_HELD
    gathered.flush()
    assert together.num_queries == single.num_queries
    assert together.num_empty == single.num_empty
    assert together.num_repeated == single.num_repeated
    for name, value in single.compute().items():
        torch.testing.assert_close(together.compute()[name], value, rtol=1e-6, atol=1e-7)
    if options.get("per_query"):
        for mine, other in zip(together.query_values(), single.query_values(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-7, equal_nan=True)


def test_small_batches_of_a_kind_are_ranked_together_up_to_a_bound(monkeypatch):
    ranked: list[int] = []
    rows = RankingMetrics._rows
    monkeypatch.setattr(
        RankingMetrics, "_rows", lambda self, ranking: ranked.append(ranking.grade.numel()) or rows(self, ranking)
    )
    gathered = Gathered(RankingMetrics(["mrr"]))
    in_a_block = (2 * BLOCK - 1) // (64 * 100)
    for i in range(3 * in_a_block):
        gathered.update(padded(i, 64, 100), i)
    gathered.flush()
    assert ranked == 3 * [in_a_block * 64 * 100]
    gathered.flush()
    assert len(ranked) == 3


def test_no_more_than_a_bound_is_held(monkeypatch):
    monkeypatch.setattr("lightning_rank.gathering.MOST_HELD", 1000)
    metrics = RankingMetrics(["mrr"])
    gathered = Gathered(metrics)
    seen = []
    for i in range(10):
        gathered.update(padded(i, 10, 30), i)
        seen.append(metrics.counts[0].item())
    assert seen == [0, 0, 0, 40, 40, 40, 40, 80, 80, 80]


@pytest.mark.parametrize("at", [0, 3, 7])
@pytest.mark.parametrize("make", [padded, jagged])
def test_an_error_names_its_batch_and_query_and_those_before_it_count(at, make):
    batches = [make(i, 4, 6) for i in range(8)]
    place = 0 if make is jagged else tuple(batches[at]["mask"].nonzero()[0].tolist())
    batches[at]["preds"][place] = torch.nan
    metrics = RankingMetrics(["mrr"])
    gathered = Gathered(metrics)

    def all_of_them() -> None:
        for number, batch in enumerate(batches):
            gathered.update(batch, number)
        gathered.flush()

    with pytest.raises(ValueError, match=rf"^batch {at}: `preds` must not be NaN, got 1 NaN in query 0; 1 of 4 queries"):
        all_of_them()
    assert metrics.counts[0].item() == 4 * at
    wrong = {**padded(0, 4, 6), "target": torch.zeros(4, 5)}
    with pytest.raises(ValueError, match=r"^batch 9: `target` must have the shape of `preds`"):
        gathered.update(wrong, 9)


def test_putting_together_does_not_wait_for_a_device(monkeypatch):
    came = []
    monkeypatch.setattr(RankingMetrics, "update", lambda self, **inputs: came.append(inputs))
    gathered = Gathered(RankingMetrics(["mrr"]))
    with torch._subclasses.fake_tensor.FakeTensorMode():
        for number in range(3):
            preds = torch.zeros(4, 5 + number, device="cuda")
            mask = torch.ones_like(preds, dtype=torch.bool)
            gathered.update({"preds": preds, "target": torch.zeros_like(preds), "mask": mask}, number)
        for number in range(3):
            offsets = torch.zeros(3, dtype=torch.long, device="cuda")
            preds = torch.zeros(6, device="cuda")
            gathered.update({"preds": preds, "target": torch.zeros_like(preds), "offsets": offsets}, number)
        gathered.flush()
    assert [tuple(inputs["preds"].shape) for inputs in came] == [(12, 7), (18,)]
    assert [tuple(inputs.get("offsets", inputs["preds"]).shape) for inputs in came] == [(12, 7), (7,)]
    assert all(value.device.type == "cuda" for inputs in came for value in inputs.values())
