"""A callback that stops the training of any LightningModule before a loss or gradient that is not finite changes a weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lightning_rank.conventions import values_are_free
from lightning_rank.divergence import LOOK_EVERY, Seen, bad_gradient, explain_divergence, look


class TerminateOnNaNMixin:
    """Stops training at a loss or gradient that is NaN or infinite, before it changes a weight or reaches a checkpoint.

    For a LightningModule of one's own, with any loss; ``RankingModule`` does it by itself. The error names the batch, its queries,
    and the checkpoint to go on from; so does that of a loss here for scores that are NaN. On a device losses alone are looked at,
    every 50 steps and before each validation and checkpoint, so that no step waits.

    Args:
        query: the key of the numbers or ids of the queries, ``[query]``, in a batch that is a mapping; they are named where the
            batch has it, by their text where the dataset is a ``RankingDataset``.

    Raises:
        ValueError: (in training) a loss or gradient is not finite.

    Example:
        >>> import pytorch_lightning as pl
        >>> from lightning_rank.pytorch_lightning import TerminateOnNaN
        >>> trainer = pl.Trainer(callbacks=[TerminateOnNaN()], accelerator="cpu", logger=False, enable_checkpointing=False)
    """

    def __init__(self, query: str = "query") -> None:
        super().__init__()
        self.query = query
        self._batch: dict[str, Tensor] = {}
        self._batch_idx, self._on_device = 0, False
        self._unseen: list[Seen] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        ids = batch.get(self.query) if isinstance(batch, Mapping) else None
        self._batch, self._batch_idx = {} if ids is None else {"query": ids}, batch_idx

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        self._on_device = not values_are_free(loss)
        if self._on_device:
            self._unseen.append((trainer.current_epoch, self._batch_idx, loss.detach(), self._batch))
            if len(self._unseen) == LOOK_EVERY:
                self._look(trainer, pl_module)
        elif not loss.isfinite().all():
            raise ValueError(self._explain(f"the loss is {loss.item()}.", trainer, pl_module))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if self._on_device or getattr(trainer.precision_plugin, "scaler", None) is not None:  # which leaves such steps out
            return
        if (name := bad_gradient(pl_module)) is not None:
            raise ValueError(self._explain(f"the loss is finite, the gradient of {name} is not.", trainer, pl_module))

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._look(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._look(trainer, pl_module)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self._look(trainer, pl_module)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        # What a loss here says of scores in a training step, where only the trainer knows the batch and the checkpoint.
        if trainer.training and isinstance(exception, ValueError) and str(exception).startswith("`preds` must not be NaN"):
            exception.args = (self._explain(str(exception), trainer, pl_module),)

    def _explain(self, what: str, trainer: Any, pl_module: Any) -> str:
        epoch = trainer.current_epoch
        return explain_divergence(what, self._batch, self._batch_idx, epoch, module=pl_module, trainer=trainer)

    def _look(self, trainer: Any, pl_module: Any) -> None:
        unseen, self._unseen = self._unseen, []
        look(unseen, module=pl_module, trainer=trainer)
