"""RankingModule, the data modules and PredictionWriter together."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader

from lightning_rank.losses import ApproxNDCGLoss, ListNetLoss
from lightning_rank.models import LinearScorer, MLPScorer, SelfAttentionScorer
from lightning_rank.pytorch_lightning import (
    LetorDataModule,
    PredictionWriter,
    RankingModule,
    RankingMonitor,
    SyntheticDataModule,
)
from tests.lightning_cases import Ranker, loader, trainer


def synthetic(**options: object) -> SyntheticDataModule:
    return SyntheticDataModule(**{"num_train": 60, "num_val": 20, "num_test": 20, "batch_size": 16, **options})


def test_training_raises_validation_ndcg_and_the_best_epoch_is_tested(tmp_path):
    torch.manual_seed(0)
    best = ModelCheckpoint(tmp_path, monitor="val/ndcg@10", mode="max")
    run = trainer(RankingMonitor(), best, max_epochs=8, enable_checkpointing=True)
    module = RankingModule(MLPScorer([16]), "approx_ndcg", optimizer=lambda p: torch.optim.Adam(p, lr=0.01))
    data = synthetic(num_train=200)
    (before,) = trainer(RankingMonitor()).validate(prepared(module, data), datamodule=data, verbose=False)
    run.fit(module, datamodule=data)
    assert best.best_model_score > before["val/ndcg@10"] + 0.15
    run.test(module, datamodule=data, ckpt_path="best", verbose=False)
    saved = torch.load(best.best_model_path, weights_only=True)["state_dict"]
    assert all(torch.equal(module.state_dict()[name], value) for name, value in saved.items())


def batches_of(data: list[dict[str, torch.Tensor]]) -> DataLoader:
    return DataLoader(data, batch_size=None)


def test_batches_without_mask_and_numbers_of_queries():
    full, bare = (RankingModule(LinearScorer(num_features=3), "softmax") for _ in range(2))
    bare.load_state_dict(full.state_dict())
    batches = [{"features": torch.randn(4, 5, 3), "target": torch.randint(0, 3, (4, 5))} for _ in range(3)]
    masked = [b | {"mask": torch.ones(4, 5, dtype=torch.bool), "query": torch.arange(4)} for b in batches]
    results = []
    for module, data in ((full, masked), (bare, batches)):
        run = trainer(RankingMonitor(), max_epochs=2)
        run.fit(module, batches_of(data), batches_of(data))
        results.append(run.callback_metrics)
        (predicted, *_) = run.predict(module, batches_of(data))
        assert predicted.keys() == {"preds", *data[0]} - {"features", "target"}
    assert results[0].keys() == results[1].keys()
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())


@pytest.mark.parametrize(
    ("batch", "came"),
    [
        ({"x": torch.randn(2, 3, 4), "target": torch.zeros(2, 3)}, "the keys 'x', 'target'"),
        ((torch.randn(2, 3, 4), torch.zeros(2, 3)), "a tuple"),
    ],
)
def test_a_batch_of_another_form_is_an_error_that_says_what_came(batch, came):
    module = RankingModule(LinearScorer(num_features=4), "softmax")
    with pytest.raises(ValueError, match=rf"^RankingModule needs batches that are dicts with 'features' .* got {came}\."):
        module.training_step(batch, 0)


def prepared(module: RankingModule, data: SyntheticDataModule) -> RankingModule:
    """A module that knows its features before a fit."""
    data.setup("fit")
    module.scorer.fit_features(data.train_features())
    return module


def test_a_seed_gives_the_same_numbers_twice():
    def weights() -> list[torch.Tensor]:
        torch.manual_seed(1)
        module = RankingModule(MLPScorer([8], dropout=0.2))
        trainer(max_epochs=2).fit(module, datamodule=synthetic())
        return list(module.parameters())

    assert all(torch.equal(one, two) for one, two in zip(weights(), weights(), strict=True))


def test_any_module_can_score_and_gets_the_mask_if_it_takes_one():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(16))
            self.masks = 0

        def forward(self, features, mask):
            self.masks += mask.dtype == torch.bool
            mean = (features * mask[..., None]).sum(1, keepdim=True) / mask.sum(1)[:, None, None]
            return (features - mean) @ self.weight

    module = RankingModule(Pooled(), ListNetLoss())
    trainer(RankingMonitor()).fit(module, datamodule=synthetic())
    assert module.scorer.masks > 0
    assert module.scorer.weight.abs().sum() > 0


def test_attention_gets_the_mask_in_training_and_wherever_scores_are_made():
    data = synthetic(num_train=20, min_items=1, max_items=9)
    module = RankingModule(SelfAttentionScorer(width=8, dropout=0.0))
    run = trainer(RankingMonitor())
    run.fit(module, datamodule=data)
    outputs = run.predict(module, datamodule=data)
    assert any(not batch["mask"].all() for batch in outputs)
    for batch in outputs:
        for query, scores, mask in zip(batch["query"].tolist(), batch["preds"], batch["mask"], strict=True):
            alone = module.scorer(data.splits["predict"][query]["features"])
            torch.testing.assert_close(scores[mask], alone, rtol=1e-4, atol=1e-5)


def test_schedulers_are_stepped_also_by_plateau():
    for make in (
        lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5),
        lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, mode="max", patience=0, threshold=10, factor=0.5),
    ):
        module = RankingModule(LinearScorer(), optimizer=lambda p: torch.optim.SGD(p, lr=1.0), lr_scheduler=make)
        run = trainer(RankingMonitor(), max_epochs=3)
        run.fit(module, datamodule=synthetic())
        assert run.optimizers[0].param_groups[0]["lr"] < 1.0


def test_resuming_gives_what_an_undisturbed_run_gives(tmp_path):
    def module() -> RankingModule:
        torch.manual_seed(5)
        return RankingModule(MLPScorer([8]))

    whole = module()
    trainer(max_epochs=4).fit(whole, datamodule=synthetic())
    half, rest = module(), module()
    first = trainer(max_epochs=2)
    first.fit(half, datamodule=synthetic())
    first.save_checkpoint(tmp_path / "half.ckpt")
    trainer(max_epochs=4).fit(rest, datamodule=synthetic(), ckpt_path=tmp_path / "half.ckpt")
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), rest.parameters(), strict=True))


def write_letor(path: Path, queries: int, num_features: int = 4, seed: int = 0) -> Path:
    generator = torch.Generator().manual_seed(seed)
    lines = []
    for query in range(queries):
        for item in range(int(torch.randint(2, 9, (1,), generator=generator))):
            x = torch.randn(num_features, generator=generator).tolist()
            grade = min(2, max(0, round(2 * x[0])))
            features = " ".join(f"{i}:{v:.4f}" for i, v in enumerate(x, 1))
            lines.append(f"{grade} qid:{seed}{query} {features} # d{query}-{item}\n")
    path.write_text("".join(lines))
    return path


@pytest.fixture
def fold(tmp_path):
    for seed, (name, queries) in enumerate((("train.txt", 30), ("vali.txt", 10), ("test.txt", 10))):
        write_letor(tmp_path / name, queries, seed=seed)
    return tmp_path


def test_a_folder_with_the_usual_names(fold):
    data = LetorDataModule(str(fold), batch_size=4)
    run = trainer(RankingMonitor(), max_epochs=2)
    module = RankingModule(LinearScorer(), optimizer=lambda p: torch.optim.Adam(p, lr=0.1))
    run.fit(module, datamodule=data)
    (result,) = run.test(module, datamodule=data, verbose=False)
    assert result["test/ndcg@10"] > 0.7
    assert {split: len(part) for split, part in data.splits.items()} == {"train": 30, "val": 10, "test": 10}


def test_folds_given_as_several_files(tmp_path):
    for i in range(1, 6):
        write_letor(tmp_path / f"S{i}.txt", 5, seed=i)
    data = LetorDataModule(str(tmp_path), train=["S1.txt", "S2.txt", "S3.txt"], val="S4.txt", test="S5.txt")
    data.setup("fit")
    data.setup("test")
    assert {split: len(part) for split, part in data.splits.items()} == {"train": 15, "val": 5, "test": 5}
    assert data.splits["train"].query_ids[0].startswith("1")
    assert data.splits["test"].query_ids[0].startswith("5")


def test_a_fold_without_a_test_file_trains_and_says_so_when_asked_to_test(fold):
    (fold / "test.txt").unlink()
    data = LetorDataModule(str(fold))
    module = RankingModule(LinearScorer())
    trainer().fit(module, datamodule=data)
    with pytest.raises(ValueError, match=r"no `test` file.*Give one"):
        trainer().test(module, datamodule=data)


def test_wrong_paths_and_numbers(fold):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        LetorDataModule(train=str(fold / "nowhere.txt")).setup("fit")
    with pytest.raises(ValueError, match="needs `root`, or files"):
        LetorDataModule()
    for name in ("batch_size", "max_items", "num_features"):
        with pytest.raises(ValueError, match=f"`{name}` must be a whole number >= 1, got 0"):
            LetorDataModule(str(fold), **{name: 0})


def test_long_lists_are_cut_in_training_only(fold):
    data = LetorDataModule(str(fold), max_items=3)
    data.setup("fit")
    assert max(batch["mask"].sum(1).max() for batch in data.train_dataloader()) == 3
    assert max(batch["mask"].sum(1).max() for batch in data.val_dataloader()) > 3


def test_files_with_fewer_features_than_the_training_data_are_widened_also_from_a_checkpoint(fold, tmp_path):
    write_letor(fold / "test.txt", 10, num_features=2, seed=9)
    module = RankingModule(LinearScorer())
    run = trainer()
    run.fit(module, datamodule=LetorDataModule(str(fold)))
    run.save_checkpoint(tmp_path / "model.ckpt")
    fresh = trainer(RankingMonitor())
    (result,) = fresh.test(
        RankingModule(LinearScorer()),
        datamodule=LetorDataModule(str(fold)),
        ckpt_path=tmp_path / "model.ckpt",
        verbose=False,
    )
    assert 0 < result["test/ndcg@10"] <= 1


def test_files_with_more_features_than_the_training_data_are_refused(fold):
    write_letor(fold / "vali.txt", 10, num_features=6, seed=9)
    with pytest.raises(ValueError, match=r"6 features, the model was made for 4.*num_features"):
        trainer().fit(RankingModule(LinearScorer()), datamodule=LetorDataModule(str(fold)))


def test_predictions_are_written_in_the_order_of_the_input_and_as_a_run(fold, tmp_path):
    # The lines of two queries, mixed: they are read as two lists, and the scores go back to their lines.
    lines = [f"0 qid:{'ab'[i % 2]} 1:{i} # doc{i}" for i in range(6)]
    (fold / "mixed.txt").write_text("\n".join(lines) + "\n")
    module = RankingModule(nn.Linear(1, 1, bias=False))
    module.scorer.weight.data.fill_(-2.0)
    module.forward = lambda features, mask=None: module.scorer(features).squeeze(-1)
    writer = PredictionWriter(run=str(tmp_path / "run.txt"), scores=str(tmp_path / "scores.txt"), tag="t")
    with pytest.warns(UserWarning, match="contiguous"):
        trainer(writer).predict(module, datamodule=LetorDataModule(predict=str(fold / "mixed.txt")))
    assert [float(x) for x in (tmp_path / "scores.txt").read_text().split()] == [0, -2, -4, -6, -8, -10]
    assert (tmp_path / "run.txt").read_text().splitlines() == [
        "a Q0 doc0 1 0 t",
        "a Q0 doc2 2 -4 t",
        "a Q0 doc4 3 -8 t",
        "b Q0 doc1 1 -2 t",
        "b Q0 doc3 2 -6 t",
        "b Q0 doc5 3 -10 t",
    ]
    with pytest.raises(FileExistsError, match=r"run\.txt exists"):
        trainer(writer).predict(module, datamodule=LetorDataModule(predict=str(fold / "mixed.txt")))


def test_unknown_loss_name():
    with pytest.raises(ValueError, match=r"Unknown loss 'aprox_ndcg'.*'approx_ndcg'"):
        RankingModule(LinearScorer(), loss="aprox_ndcg")


def test_options_of_the_loss_object_are_kept():
    module = RankingModule(LinearScorer(), ApproxNDCGLoss(top_k=5))
    assert module.loss.options["top_k"] == 5


def test_mixed_precision_trains_and_measures_in_single():
    module = RankingModule(loss="lambdarank")
    made = trainer(RankingMonitor(["ndcg@5"], advice=False), precision="bf16-mixed", max_epochs=2)
    made.fit(module, datamodule=synthetic())
    assert made.callback_metrics["val/ndcg@5"].dtype == torch.float32
    assert 0.3 < made.callback_metrics["val/ndcg@5"] <= 1
    assert all(parameter.dtype == torch.float32 and parameter.isfinite().all() for parameter in module.parameters())


def test_a_scorer_of_a_wrong_shape_is_named():
    module = RankingModule(nn.Linear(16, 1))
    with pytest.raises(ValueError, match=r"The scorer, Linear, must return \[query, item\].*\.squeeze\(-1\)"):
        trainer().fit(module, datamodule=synthetic())


def test_a_folder_of_gzip_files(fold):
    for path in list(fold.iterdir()):
        with gzip.open(f"{path}.gz", "wb") as file:
            file.write(path.read_bytes())
        path.unlink()
    data = LetorDataModule(str(fold))
    data.setup("fit")
    assert len(data.splits["train"]) == 30


def test_a_folder_without_the_usual_names_says_what_it_holds(tmp_path):
    write_letor(tmp_path / "S1.txt", 2)
    with pytest.raises(ValueError, match=r"no `train` file.*which holds S1\.txt.*Give one"):
        LetorDataModule(str(tmp_path)).setup("fit")
    with pytest.raises(FileNotFoundError, match="`root` must be a folder"):
        LetorDataModule(str(tmp_path / "nowhere"))


def test_predictions_of_other_data_are_refused_before_anything_is_scored(tmp_path):
    writer = PredictionWriter(scores=str(tmp_path / "scores.txt"))
    with pytest.raises(TypeError, match="needs one dataloader of a RankingDataset, got TensorDataset"):
        trainer(writer).predict(Ranker(), loader())
