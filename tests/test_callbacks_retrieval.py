"""RetrievalMonitor: what it logs is what ranking every item of the catalogue gives, and errors say what the module lacks."""

from __future__ import annotations

from importlib import import_module

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from lightning_rank import RankingMetrics
from lightning_rank.functional import retrieval
from lightning_rank.pytorch_lightning import RankingMonitor, RetrievalMonitor
from tests.lightning_cases import trainer

NAMES = ["recall@5", "ndcg@10", "map@7", "mrr@10", "precision@3", "hit_rate@1", "err@4"]
USERS, ITEMS = 11, 60


class AnyTowers:
    """Embeddings that are looked up; the step returns what ``outputs`` makes of a batch of users."""

    def __init__(self, outputs, seed=0, whole=False):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.user = torch.nn.Parameter(torch.randn(USERS, 3, generator=generator))
        self.item = torch.nn.Parameter(torch.randn(ITEMS, 3, generator=generator))
        if whole:  # so that scores tie
            with torch.no_grad():
                self.user.round_()
                self.item.round_()
        self.outputs = outputs

    def item_embeddings(self):
        assert not torch.is_grad_enabled()
        assert not self.training
        return self.item

    def training_step(self, batch, batch_idx):
        return (self.user[batch] ** 2).sum()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        return {"query": self.user[batch], **self.outputs(batch)}

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Towers(AnyTowers, pl.LightningModule):
    pass


def draw(seed=0):
    """Relevant items and grades of each user, some none, and seen ones, some relevant too."""
    generator = torch.Generator().manual_seed(seed)
    relevant, grades, seen = [], [], []
    for user in range(USERS):
        drawn = torch.randperm(ITEMS, generator=generator).tolist()
        relevant.append(drawn[: user % 4])
        grades.append(torch.randint(1, 4, (user % 4,), generator=generator).tolist())
        seen.append(drawn[user % 4 : 12] + drawn[: user % 3 == 2])
    return relevant, grades, seen


def padded(rows):
    width = max(map(len, rows)) + 1
    return torch.tensor([row + [-1] * (width - len(row)) for row in rows])


def outputs_of(seed=0, flat=False, ids=False):
    relevant, grades, seen = draw(seed)

    def outputs(users):
        users = users.tolist()
        columns = {"relevant": relevant, "grade": grades, "seen": seen}
        rows = {name: [column[u] for u in users] for name, column in columns.items()}
        found = {"indexes": torch.tensor(users)} if ids else {}
        for name in ("relevant", "seen"):
            found |= (
                {f"{name}_offsets": torch.tensor([0, *map(len, rows[name])]).cumsum(0)}
                if flat
                else {f"{name}_mask": padded(rows[name]) >= 0}
            )
        lay_out = (lambda x: torch.tensor([i for row in x for i in row], dtype=torch.long)) if flat else padded
        return found | {name: lay_out(row) for name, row in rows.items()}

    return outputs


def brute(model, seed=0, names=NAMES, **conventions):
    """By ranking all items of each user that were not seen."""
    relevant, grades, seen = draw(seed)
    metrics = RankingMetrics(names, **conventions)
    scores = (model.user @ model.item.T).detach()
    for user in range(USERS):
        free = torch.ones(1, ITEMS, dtype=torch.bool)
        free[0, seen[user]] = False
        target = torch.zeros(1, ITEMS)
        target[0, relevant[user]] = torch.tensor(grades[user]).float()
        metrics.update(
            scores[user, None], target.masked_fill(~free, 0), mask=free, ideal=torch.tensor([[*grades[user], 0]]).float()
        )
    return {f"val/{name}": value.item() for name, value in metrics.compute().items()}


def loader(batch_size=4):
    return DataLoader(torch.arange(USERS), batch_size=batch_size)


def validated(monitor, model, loaders=None, made=None):
    made = made or trainer(monitor)
    made.validate(model, loaders or loader(), verbose=False)
    return {name: float(value) for name, value in made.callback_metrics.items()}


@pytest.mark.parametrize("flat", [False, True], ids=["padded", "flat"])
@pytest.mark.parametrize("whole", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("by_blocks", [False, True])
def test_values_are_those_of_ranking_the_whole_catalogue(flat, whole, by_blocks, monkeypatch):
    if by_blocks:
        monkeypatch.setattr(retrieval, "QUERIES", 2)
        monkeypatch.setattr(retrieval, "BLOCK", 64)
    for seed in range(3):
        model = Towers(outputs_of(seed, flat), seed, whole)
        logged = validated(RetrievalMonitor(NAMES), model)
        assert logged == pytest.approx(brute(model, seed), abs=1e-6)


def test_a_model_that_tells_no_items_apart_gets_what_random_order_gets():
    model = Towers(outputs_of())
    torch.nn.init.zeros_(model.item)
    logged = validated(RetrievalMonitor(["precision@3"], empty_target_action="skip"), model)
    relevant, _, seen = draw()
    expected = [
        len(set(found) - set(hidden)) / (ITEMS - len(set(hidden)))
        for found, hidden in zip(relevant, seen, strict=True)
        if found
    ]
    assert logged["val/precision@3"] == pytest.approx(sum(expected) / len(expected))


def test_conventions_and_counts():
    model = Towers(outputs_of())
    names = ["ndcg@10", "map@7"]
    options = {"gain": "linear", "empty_target_action": "skip"}
    logged = validated(RetrievalMonitor(names, num_queries=True, empty_queries=True, interval=0.9, **options), model)
    assert logged.pop("val/num_queries") == 8
    assert logged.pop("val/empty_queries") == 3
    assert logged.pop("val/ndcg@10/low") < logged["val/ndcg@10"] < logged.pop("val/ndcg@10/high")
    assert {name: logged[name] for name in ("val/ndcg@10", "val/map@7")} == pytest.approx(
        brute(model, names=names, **options)
    )


def test_one_relevant_item_for_each_query_and_renamed_outputs():
    model = Towers(lambda users: {"held_out": users + 3})
    logged = validated(RetrievalMonitor(["mrr@60"], keys={"relevant": "held_out"}, prefix=""), model)
    ranks = (model.user @ model.item.T).argsort(1, descending=True).argsort(1)[
        torch.arange(USERS), torch.arange(USERS) + 3
    ] + 1
    assert logged == pytest.approx({"mrr@60": (1 / ranks).mean().item()})


def test_an_id_that_comes_twice_counts_once_and_several_dataloaders_have_values_of_their_own():
    model = Towers(outputs_of(ids=True))
    repeated = DataLoader(torch.tensor([*range(USERS), 3, 3, 7]), batch_size=5)
    with pytest.warns(UserWarning, match="had an id that had come before"):
        logged = validated(RetrievalMonitor(["recall@5"]), model, [repeated, DataLoader(torch.arange(2))])
    assert logged["val/recall@5/dataloader_idx_0"] == pytest.approx(brute(model)["val/recall@5"])
    assert "val/recall@5/dataloader_idx_1" in logged


def test_items_are_embedded_anew_in_each_epoch_and_once():
    calls = []

    class Counted(Towers):
        def item_embeddings(self):
            calls.append(self.trainer.current_epoch)
            return super().item_embeddings()

    model = Counted(outputs_of())
    monitor = RetrievalMonitor(["recall@5"])
    made = trainer(monitor, max_epochs=3, num_sanity_val_steps=0)
    made.fit(model, loader(), loader())
    assert calls == [0, 1, 2]
    assert float(made.callback_metrics["val/recall@5"]) == pytest.approx(brute(model)["val/recall@5"])
    made.test(model, loader(), verbose=False)
    assert float(made.callback_metrics["test/recall@5"]) == pytest.approx(brute(model)["val/recall@5"])


def test_the_state_is_constant_without_ids():
    monitor = RetrievalMonitor(["recall@5"])
    validated(monitor, Towers(outputs_of()))
    assert sum(len(value) for value in monitor._metrics[0].metric_state.values() if isinstance(value, list)) == 0
    assert monitor._catalogue is None


def test_bfloat16_embeddings_are_scored_in_float32():
    model = Towers(outputs_of())
    made = trainer(RetrievalMonitor(NAMES), precision="bf16-true")
    made.validate(model, loader(), verbose=False)
    wanted = brute(model.float())  # the parameters are those of bfloat16
    assert {k: float(v) for k, v in made.callback_metrics.items()} == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("namespace", ["pytorch_lightning", "lightning"])
def test_each_namespace_has_it_as_a_callback_of_its_own(namespace):
    package = import_module("pytorch_lightning" if namespace == "pytorch_lightning" else "lightning.pytorch")
    cls = import_module(f"lightning_rank.{namespace}").RetrievalMonitor
    assert issubclass(cls, package.Callback)
    model = type("Towers", (AnyTowers, package.LightningModule), {})(outputs_of())
    made = package.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, callbacks=[cls(NAMES)])
    assert validated(None, model, made=made) == pytest.approx(brute(model), abs=1e-6)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (lambda u: {}, r"needs Towers\.validation_step to return .*the keys that came are 'query'\. Rename with"),
        (lambda u: {"relevant": u + ITEMS}, rf"batch 0: `relevant` must be rows of the {ITEMS} items"),
        (lambda u: {"relevant": u - ITEMS}, r"got -\d+\. Is it padding\? Give `relevant_mask`, False there\."),
        (lambda u: {"relevant": torch.zeros(len(u), 2).long()}, "item 0 came twice for query 0"),
        (lambda u: {"relevant": u, "grade": torch.ones(2)}, r"`grade` must be like `relevant`, \[4\], got \[2\]"),
        (lambda u: {"relevant": u, "query": torch.full((4, 3), torch.nan)}, "`query` must be finite: row 0 is not"),
        (lambda u: {"relevant": u, "query": torch.zeros(4, 2)}, "one size, got 3, but 2 for `query`"),
    ],
)
def test_errors_name_the_step_and_what_came(outputs, message):
    with pytest.raises(ValueError, match=message):
        validated(RetrievalMonitor(["recall@5"]), Towers(outputs))


def test_a_module_without_item_embeddings_is_told_how_to_give_them():
    with pytest.raises(ValueError, match=r"\[item, embedding\]: give the module a method or attribute 'catalogue'"):
        validated(RetrievalMonitor(["recall@5"], items="catalogue"), Towers(lambda u: {"relevant": u}))
    model = Towers(lambda u: {"relevant": u})
    model.item.data[2] = torch.inf
    with pytest.raises(ValueError, match=r"`Towers\.item_embeddings` must be finite: row 2"):
        validated(RetrievalMonitor(["recall@5"]), model)
    assert validated(RetrievalMonitor(["recall@60"], items="item"), Towers(lambda u: {"relevant": u})) == {
        "val/recall@60": 1
    }


def test_what_a_catalogue_cannot_tell_is_refused():
    with pytest.raises(ValueError, match="must have a cutoff, as in 'map@100'"):
        RetrievalMonitor(["map"])
    with pytest.raises(ValueError, match="cannot log fall_out"):
        RetrievalMonitor(["fall_out@10"])
    with pytest.raises(ValueError, match="says what the step calls query, relevant"):
        RetrievalMonitor(keys={"preds": "logits"})
    made = trainer(RetrievalMonitor(["ndcg@10"]), RankingMonitor(["ndcg@10"]))
    with pytest.raises(ValueError, match="would log val/ndcg@10"):
        made.validate(Towers(outputs_of()), loader(), verbose=False)
