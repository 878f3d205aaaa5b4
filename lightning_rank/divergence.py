"""What is said of a training step that is not finite: which batch and queries, what was first not finite, what is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_rank.data.batches import RankingDataset

MOST_NAMED = 10
# Training steps on a device after which their losses are looked at, as that waits for all of them.
LOOK_EVERY = 50
Seen = tuple[int, int, Tensor, Mapping[str, Tensor]]
"""Epoch, batch, loss, and the batch's queries."""


def explain_divergence(
    what: str,
    batch: Mapping[str, Tensor],
    batch_idx: int,
    epoch: int,
    *,
    module: Any,
    trainer: Any,
    preds: Tensor | None = None,
) -> str:
    """The text of an error for a loss that is not finite.

    Args:
        what: what was found, a sentence.
        batch: as of ``RankingDataset``; ``features``, ``target`` and the layout may be gone by now.
        batch_idx, epoch: which one it is.
        module: what is trained.
        trainer: that of Lightning.
        preds: the scores, where they are known and looking at them is free.
    """
    names = _names(batch.get("query"), trainer)
    cause = "" if preds is None else f" {_cause(batch, preds, module, names)}"
    shown = ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
    queries = f" Queries of the batch, by id: {shown}." if names else ""
    kept = last_checkpoint(trainer)
    left = f"The last checkpoint is {kept}; go on from there, or" if kept else "No checkpoint was written yet; begin"
    return (
        f"Training stopped at batch {batch_idx} of epoch {epoch}: {what}{cause}{queries} {left} anew, with a lower learning rate, "
        "with gradient_clip_val, or without what is wrong with the data."
    )


def look(unseen: Sequence[Seen], *, module: Any, trainer: Any) -> None:
    """Raise ValueError if one of the losses on a device that nobody has looked at is not finite."""
    if not unseen:
        return
    losses = torch.stack([loss for _, _, loss, _ in unseen]).cpu()
    for finite, (epoch, batch_idx, loss, batch) in zip(losses.isfinite().tolist(), unseen, strict=True):
        if not finite:
            what = f"the loss is {loss.item()}, seen up to {len(unseen)} steps later; on the CPU it is seen at once."
            raise ValueError(explain_divergence(what, batch, batch_idx, epoch, module=module, trainer=trainer))


def bad_gradient(module: Any) -> str | None:
    """The name of the first weight whose gradient is not finite; None: all are. Waits for a device."""
    for name, weight in module.named_parameters():
        # A sum is the cheapest look at all values; it may itself overflow.
        if weight.grad is not None and not weight.grad.sum().isfinite() and not weight.grad.isfinite().all():
            return name
    return None


def last_checkpoint(trainer: Any) -> str | None:
    """The newest file that a checkpoint callback of the trainer wrote, or the one it started from; None: there is none."""
    paths = [trainer.ckpt_path]
    for callback in trainer.checkpoint_callbacks:
        paths += [getattr(callback, name, "") for name in ("last_model_path", "best_model_path")]
        paths += getattr(callback, "best_k_models", {})
    there = [str(path) for path in paths if path and Path(path).exists()]
    return max(there, key=lambda path: Path(path).stat().st_mtime, default=None)


def _names(query: Tensor | None, trainer: Any) -> list[str]:
    """The ids of the queries of a batch: their text where the dataset knows it."""
    if query is None:
        return []
    dataset = getattr(trainer.train_dataloader, "dataset", None)
    numbers = query.tolist()
    return [dataset.query_ids[i] for i in numbers] if isinstance(dataset, RankingDataset) else [str(i) for i in numbers]


def _cause(batch: Mapping[str, Tensor], preds: Tensor, module: Any, names: list[str]) -> str:
    """A sentence on what was first not finite: features, weights, scores, or the loss alone."""

    def place(finite: Tensor) -> str | None:
        query = _first_query(~finite, batch)
        return None if query is None else f"query {names[query]}" if names else f"query {query} of the batch"

    if where := place(batch["features"].isfinite().all(-1)):
        return f"The features of {where} are already not finite."
    bad = [name for name, weight in module.named_parameters() if not weight.isfinite().all()]
    if bad:
        return f"The features are finite, the weights are not since an earlier step: {', '.join(bad[:3])}."
    if where := place(preds.isfinite()):
        return (
            f"Features and weights are finite, the scores of {where} are not: the model has diverged, or divides by zero."
        )
    return "Features, weights and scores are finite; the loss alone is not."


def _first_query(bad: Tensor, batch: Mapping[str, Tensor]) -> int | None:
    """The first query with a bad item, by its place in the batch."""
    if "mask" in batch:
        bad = bad & batch["mask"]
    at = bad.nonzero()
    if not len(at):
        return None
    if "offsets" in batch:
        return int(torch.searchsorted(batch["offsets"], at[0, 0], right=True)) - 1
    return int(at[0, 0])
