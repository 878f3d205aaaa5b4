"""Ranking losses as modules: what ``functional`` has, with options fixed and named for configuration files."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from lightning_rank import functional
from lightning_rank.conventions import check_choice, check_number, options_of
from lightning_rank.entries import one_cutoff
from lightning_rank.functional.losses import LOSSES, REDUCTIONS, check_options, find_loss


class RankingLoss(nn.Module):
    """One ranking loss. Use a named class (``ApproxNDCGLoss(temperature=0.1)``) or ``loss("approx_ndcg@10")``.

    Args:
        options: those of the loss.
        reduction: ``"mean"`` over the queries with signal, ``"sum"`` or ``"none"``.
        global_mean: divide by the number of queries with signal over all processes, so that DDP equals one process.

    Raises:
        ValueError: an option means nothing for this loss, or its value is impossible.
    """

    name: ClassVar[str] = ""

    def __init__(self, *, reduction: str = "mean", global_mean: bool = False, **options: Any) -> None:
        super().__init__()
        if not self.name:
            raise TypeError("RankingLoss has no loss of its own; use a named class, or loss('approx_ndcg').")
        spec = LOSSES[self.name]
        check_options(spec, options)
        check_choice("reduction", reduction, REDUCTIONS)
        self.options = spec.options | options
        self.reduction, self.global_mean = reduction, global_mean
        self._function = getattr(functional, f"{self.name}_loss")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # A signature that states the options of this loss, for help() and for configuration files.
        super().__init_subclass__(**kwargs)
        kinds = inspect.Parameter
        spec = LOSSES[cls.name]
        own = [p for p in spec.parameters if p.name in spec.options]
        own = [p.replace(kind=kinds.POSITIONAL_OR_KEYWORD) if p.name == "top_k" else p for p in own]
        signature = inspect.Signature([kinds("self", kinds.POSITIONAL_OR_KEYWORD), *own, *options_of(RankingLoss.__init__)])

        def __init__(self: RankingLoss, *args: Any, **options: Any) -> None:
            if unknown := options.keys() - signature.parameters:
                RankingLoss.__init__(self, **{name: options[name] for name in sorted(unknown)})  # raises, and says why
            RankingLoss.__init__(**signature.bind(self, *args, **options).arguments)

        __init__.__signature__ = signature  # type: ignore[attr-defined]  # functions take any
        __init__.__doc__ = RankingLoss.__doc__
        cls.__init__ = __init__  # type: ignore[method-assign]  # made for this class

    def forward(
        self,
        preds: Tensor,
        target: Tensor,
        mask: Tensor | None = None,
        indexes: Tensor | None = None,
        offsets: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        """The reduced value; see the function of the same name in ``lightning_rank.functional`` for shapes and errors."""
        return self._function(
            preds, target, mask, indexes, offsets,
            weight=weight, reduction=self.reduction, global_mean=self.global_mean, **self.options,
        )  # fmt: skip

    def extra_repr(self) -> str:
        unused = [name for name in ("gumbel_samples", "generator", "method") if not self.options.get(name)]
        shown = {**self.options, "reduction": self.reduction}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items() if name not in unused)


class ApproxNDCGLoss(RankingLoss):
    """1 - NDCG with smooth ranks, for graded relevance where the top matters: what you watch is what you optimise.

    Takes ``top_k``, ``gain``, ``temperature`` and ``gumbel_samples``. Scores that lie far apart need a larger temperature, or their
    gradients vanish: normalise scores, or begin with a pairwise loss.

    Example:
        >>> import torch
        >>> loss = ApproxNDCGLoss(temperature=0.5)
        >>> value = loss(torch.tensor([[2.0, 1.0, 0.5]]), torch.tensor([[3, 1, 0]]))
        >>> 0 < value.item() < 1
        True
    """

    name = "approx_ndcg"


class ApproxMRRLoss(RankingLoss):
    """1 - reciprocal rank with smooth ranks, where one right answer is enough: question answering, known-item search."""

    name = "approx_mrr"


class ApproxMAPLoss(RankingLoss):
    """1 - average precision with smooth ranks, where every relevant item should be found and grades are binary."""

    name = "approx_map"


class RankNetLoss(RankingLoss):
    """Logistic loss of the pairs in the wrong order: robust, never without a gradient; the one to begin with.

    All pairs of a query count alike, so that long lists weigh more; ``normalize_pairs`` takes the mean over pairs.
    """

    name = "ranknet"


class LambdaRankLoss(RankingLoss):
    """RankNet whose pairs weigh by how much NDCG changes when they are swapped: the strong default for NDCG, as in LambdaMART."""

    name = "lambdarank"


class LambdaLoss(RankingLoss):
    """The bounds of NDCG of the LambdaLoss framework, by ``scheme``: ``ndcg_loss2pp`` is the tightest."""

    name = "lambda"


class PairwiseHingeLoss(RankingLoss):
    """Margin loss of the pairs (ranking SVM): pairs apart by the margin are left in peace, which some noisy labels like."""

    name = "pairwise_hinge"


class SoftmaxLoss(RankingLoss):
    """Cross-entropy between gains and the softmax of the scores: fast, robust, never without a gradient. Takes ``gain``."""

    name = "softmax"


class ListNetLoss(RankingLoss):
    """Cross-entropy between the softmax of the grades and that of the scores: where the distances of grades mean something."""

    name = "listnet"


class UniqueSoftmaxLoss(RankingLoss):
    """Softmax of each item against those of lower grades only: items of one grade need not compete. For few, distinct grades."""

    name = "unique_softmax"


class ListMLELoss(RankingLoss):
    """Likelihood of the whole order of the grades (Plackett-Luce): where the order of all items matters, not only the top."""

    name = "listmle"


class PListMLELoss(RankingLoss):
    """ListMLE whose first places weigh exponentially more, for when the top matters after all."""

    name = "plistmle"


class XENDCGLoss(RankingLoss):
    """Cross-entropy with perturbed gains, a convex bound of NDCG: as fast as softmax, often better with graded relevance."""

    name = "xendcg"


class NeuralNDCGLoss(RankingLoss):
    """1 - NDCG of a smooth sort, closer to the metric than ApproxNDCG for a small temperature.

    Time and memory grow with the square of the list: for up to about a thousand items.
    """

    name = "neural_ndcg"


class PLRankLoss(RankingLoss):
    """1 - the expected NDCG of a stochastic ranking policy: for exploration, fairness of exposure, or scores used as a policy."""

    name = "plrank"


class OrdinalLoss(RankingLoss):
    """Ordinal regression on K logits an item: where the grade itself is wanted besides the order."""

    name = "ordinal"


class PointwiseBCELoss(RankingLoss):
    """Binary cross-entropy of each item: where scores must be probabilities, such as of a click. Targets lie in [0, 1]."""

    name = "pointwise_bce"


class PointwiseMSELoss(RankingLoss):
    """Squared error of each item: where scores must be grades, or the scores of a teacher."""

    name = "pointwise_mse"


class InBatchSoftmaxLoss(nn.Module):
    """Softmax of each query's own item among all items of the batch, of all processes too: to train two towers for retrieval.

    Args:
        temperature: above 0; well below 1 for normalised embeddings.
        reduction: ``"mean"`` over the rows of all processes, ``"sum"`` or ``"none"``.
        gather: False keeps to the items of this process.
    """

    def __init__(self, temperature: float = 1.0, *, reduction: str = "mean", gather: bool = True) -> None:
        super().__init__()
        check_number("temperature", temperature, above=0)
        check_choice("reduction", reduction, REDUCTIONS)
        self.temperature, self.reduction, self.gather = temperature, reduction, gather

    def forward(self, query: Tensor, item: Tensor, item_ids: Tensor | None = None, log_q: Tensor | None = None) -> Tensor:
        """The reduced value; see ``functional.in_batch_softmax_loss`` for shapes and errors."""
        return functional.in_batch_softmax_loss(
            query, item, item_ids=item_ids, log_q=log_q,
            temperature=self.temperature, reduction=self.reduction, gather=self.gather,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"temperature={self.temperature!r}, reduction={self.reduction!r}, gather={self.gather!r}"


class SmoothLoss(nn.Module):
    """Any metric of the table, or one of your own, as a loss: 1 - its value where ranks are smooth.

    Args:
        metric: a name such as ``"err@10"``, or a function of a ``Ranking``; see ``functional.smooth``.
        temperature: above 0; as it falls, the loss comes closer to the metric, and gradients vanish between far scores.
        reduction: ``"mean"`` over the queries with a value, ``"sum"`` or ``"none"``.
        global_mean: divide by the number of queries with a value over all processes, so that DDP equals one process.
        options: the metric's own, such as ``gain="linear"``.

    Example:
        >>> SmoothLoss("rbp", temperature=0.5, p=0.9)
        SmoothLoss('rbp', temperature=0.5, p=0.9, reduction='mean')
    """

    def __init__(
        self,
        metric: str | Callable[..., Tensor],
        *,
        temperature: float = 1.0,
        reduction: str = "mean",
        global_mean: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        check_choice("reduction", reduction, REDUCTIONS)
        self.metric, self.options = metric, {"temperature": temperature, **options}
        self.reduction, self.global_mean = reduction, global_mean
        self._function = functional.smooth(metric, **self.options)

    def __getstate__(self) -> dict[str, Any]:
        # A function made at run time cannot be pickled.
        return {name: value for name, value in vars(self).items() if name != "_function"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._function = functional.smooth(self.metric, **self.options)

    def forward(
        self,
        preds: Tensor,
        target: Tensor,
        mask: Tensor | None = None,
        indexes: Tensor | None = None,
        offsets: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        """The reduced value; shapes and errors are those of the other losses, but that a weight is one per query."""
        return self._function(
            preds, target, mask, indexes, offsets,
            weight=weight, reduction=self.reduction, global_mean=self.global_mean,
        )  # fmt: skip

    def extra_repr(self) -> str:
        options = {**self.options, "reduction": self.reduction}
        metric = repr(self.metric) if isinstance(self.metric, str) else getattr(self.metric, "__name__", "metric")
        return ", ".join([metric, *(f"{name}={value!r}" for name, value in options.items())])


NAMED_CLASSES: dict[str, type[RankingLoss]] = {
    cls.name: cls
    for cls in (
        ApproxNDCGLoss,
        ApproxMRRLoss,
        ApproxMAPLoss,
        RankNetLoss,
        LambdaRankLoss,
        LambdaLoss,
        PairwiseHingeLoss,
        SoftmaxLoss,
        ListNetLoss,
        UniqueSoftmaxLoss,
        ListMLELoss,
        PListMLELoss,
        XENDCGLoss,
        NeuralNDCGLoss,
        PLRankLoss,
        OrdinalLoss,
        PointwiseBCELoss,
        PointwiseMSELoss,
    )
}


def loss(name: str, **options: Any) -> RankingLoss:
    """The loss of a name, in any case: ``loss("approx_ndcg@10")`` is ``ApproxNDCGLoss(top_k=10)``.

    Raises:
        ValueError: unknown name (the error has the nearest known ones), impossible cutoff, two, or one that means nothing.

    Example:
        >>> loss("approx_ndcg@10", temperature=0.1)
        ApproxNDCGLoss(top_k=10, gain='exp2', temperature=0.1, reduction='mean')
    """
    if not isinstance(name, str):
        raise TypeError(f"A loss is named by text such as 'approx_ndcg@10', got {name!r}.")
    base, at, cutoff = name.partition("@")
    spec = find_loss(base.strip())
    if at:
        if not cutoff.isdecimal() or int(cutoff) < 1:
            raise ValueError(f"The cutoff in {name!r} must be a whole number >= 1, as in 'approx_ndcg@10'.")
        options["top_k"] = one_cutoff(name, int(cutoff), options)
    return NAMED_CLASSES[spec.name](**options)
