"""A LightningModule from parts: a scorer, a ranking loss, an optimiser."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from lightning_rank.conventions import values_are_free
from lightning_rank.divergence import LOOK_EVERY, Seen, bad_gradient, explain_divergence, look
from lightning_rank.losses import RankingLoss
from lightning_rank.losses import loss as loss_of_name
from lightning_rank.models import MLPScorer


class RankingModuleMixin:
    """Trains any scorer on any ranking loss.

    Batches are dicts of ``features`` ``[query, item, feature]``, ``target`` ``[query, item]``, ``mask`` ``[query, item]`` where
    there is padding, and ``query`` ``[query]``, the number of each query, where they have one, as the data modules here make them;
    or jagged, ``features`` ``[item, feature]``, ``target`` ``[item]``, ``offsets`` ``[query + 1]`` and ``query``, for scorers that
    see one item at a time. Validation and test return what ``RankingMonitor`` reads.

    A loss or gradient that is NaN or infinite stops the training before it changes a weight, with the batch and its queries named,
    where looking is free (on the CPU). On a device losses alone are looked at, every 50 steps and before each validation and
    checkpoint, so that no step waits, and no checkpoint holds the weights that came of one.

    Args:
        scorer: a module from ``[query, item, feature]`` to ``[query, item]``; it gets ``mask`` too if its ``forward`` takes
            one. If it has ``fit_features``, as the scorers here, that is called with the training features before training.
        loss: a ranking loss, or the name of one, such as ``"approx_ndcg@10"``.
        optimizer: makes the optimiser from the parameters.
        lr_scheduler: makes a scheduler, stepped once an epoch, from the optimiser.
        monitor: the value that a ``ReduceLROnPlateau`` scheduler watches.

    Raises:
        ValueError: an unknown loss name; a batch of another form; features that do not fit the scorer; a loss or gradient that is
            not finite.

    Example:
        >>> import torch
        >>> from lightning_rank.pytorch_lightning import RankingModule
        >>> from lightning_rank.models import LinearScorer
        >>> module = RankingModule(LinearScorer(num_features=4), loss="approx_ndcg@10")
        >>> module(torch.randn(2, 3, 4)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        scorer: nn.Module | None = None,
        loss: RankingLoss | nn.Module | str = "approx_ndcg",
        optimizer: Callable[[Iterable], Optimizer] = torch.optim.Adam,
        lr_scheduler: Callable[[Optimizer], LRScheduler | ReduceLROnPlateau] | None = None,
        monitor: str = "val/ndcg@10",
    ) -> None:
        super().__init__()
        self.scorer = MLPScorer() if scorer is None else scorer
        self.loss = loss_of_name(loss) if isinstance(loss, str) else loss
        self.optimizer, self.lr_scheduler, self.monitor = optimizer, lr_scheduler, monitor
        self._takes_mask = "mask" in inspect.signature(self.scorer.forward).parameters
        self._step: tuple[dict[str, Tensor], int, Tensor] | None = (
            None  # batch, its number and scores, until the optimiser's step
        )
        self._unseen: list[Seen] = []  # losses on a device that nobody has looked at

    def setup(self, stage: str) -> None:
        datamodule = self.trainer.datamodule
        train_features = getattr(datamodule, "train_features", None)
        if stage == "fit" and train_features is not None and hasattr(self.scorer, "fit_features"):
            self.scorer.fit_features(train_features())
        if isinstance(self.loss, RankingLoss) and self.trainer.world_size > 1:
            self.loss.global_mean = True

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores ``[query, item]`` of features ``[query, item, feature]``."""
        scores = self.scorer(features, mask=mask) if self._takes_mask else self.scorer(features)
        if scores.shape != features.shape[:-1]:
            raise ValueError(
                f"The scorer, {type(self.scorer).__name__}, must return [query, item], here {list(features.shape[:-1])}, for "
                f"features {list(features.shape)}; it returned {list(scores.shape)}. A last axis of 1 goes with .squeeze(-1)."
            )
        return scores

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        preds, layout = self._scores(batch)
        try:
            loss = self.loss(preds, batch["target"], **layout)
        except ValueError as error:
            raise ValueError(self._explain(str(error), batch, batch_idx, preds)) from error
        if not values_are_free(loss):
            named = {name: batch[name] for name in ("query",) if name in batch}
            self._unseen.append((self.current_epoch, batch_idx, loss.detach(), named))
            if len(self._unseen) == LOOK_EVERY:
                self._look()
        elif not loss.isfinite():
            raise ValueError(self._explain(f"the loss is {loss.item()}.", batch, batch_idx, preds))
        else:
            self._step = batch, batch_idx, preds.detach()
        queries = _num_queries(batch)
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=queries, prog_bar=True, sync_dist=True)
        return loss

    def _explain(self, what: str, batch: dict[str, Tensor], batch_idx: int, preds: Tensor) -> str:
        return explain_divergence(
            what,
            batch,
            batch_idx,
            self.current_epoch,
            module=self,
            trainer=self.trainer,
            preds=preds.detach() if values_are_free(preds) else None,
        )

    def _look(self) -> None:
        unseen, self._unseen = self._unseen, []
        look(unseen, module=self, trainer=self.trainer)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        step, self._step = self._step, None
        if (
            step is None or getattr(self.trainer.precision_plugin, "scaler", None) is not None
        ):  # which leaves such steps out
            return
        if (name := bad_gradient(self)) is not None:
            raise ValueError(self._explain(f"the loss is finite, the gradient of {name} is not.", *step))

    def on_validation_start(self) -> None:
        self._look()

    def on_train_epoch_end(self) -> None:
        self._look()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._look()

    def _scores(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Scores, and the layout that they have."""
        if not isinstance(batch, Mapping) or "features" not in batch or "target" not in batch:
            came = f"the keys {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else f"a {type(batch).__name__}"
            raise ValueError(
                f"{type(self).__name__} needs batches that are dicts with 'features' and 'target', 'mask' or 'offsets' where "
                f"queries are padded or flat, and 'query' where they have numbers; got {came}."
            )
        if "offsets" not in batch:
            mask = batch.get("mask")
            return self(batch["features"], mask), {} if mask is None else {"mask": mask}
        if self._takes_mask:
            raise ValueError(
                f"{type(self.scorer).__name__} sees the items of a query together, so it needs padded batches with a mask: set "
                "layout='padded' in the data module."
            )
        return self(batch["features"]), {"offsets": batch["offsets"]}

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int, dataloader_idx: int = 0) -> dict[str, Tensor]:
        return self._evaluate(batch, "val/loss")

    def test_step(self, batch: dict[str, Tensor], batch_idx: int, dataloader_idx: int = 0) -> dict[str, Tensor]:
        return self._evaluate(batch, "test/loss")

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int, dataloader_idx: int = 0) -> dict[str, Tensor]:
        preds = self(batch["features"], batch.get("mask"))
        return {"preds": preds, **{name: batch[name] for name in ("mask", "query") if name in batch}}

    def _evaluate(self, batch: dict[str, Tensor], name: str) -> dict[str, Tensor]:
        preds, layout = self._scores(batch)
        outputs = {"preds": preds, "target": batch["target"], **layout}
        self.log(name, self.loss(preds, batch["target"], **layout), batch_size=_num_queries(batch), sync_dist=True)
        if "query" in batch:
            outputs["query"] = batch["query"]
        if "query" in batch and self.trainer.world_size > 1:
            # A distributed sampler repeats queries to even out the processes; by their ids they count once.
            outputs["indexes"] = batch["query"]
        return outputs

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(self.parameters())
        if self.lr_scheduler is None:
            return optimizer
        scheduler = self.lr_scheduler(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": self.monitor}}


def _num_queries(batch: Mapping[str, Tensor]) -> int:
    return len(batch["offsets"]) - 1 if "offsets" in batch else len(batch["target"])
