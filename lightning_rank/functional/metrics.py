"""One function per metric: from a ``Ranking`` to one value per query. The table at the foot lists them all.

A value is NaN for a query that has none (no relevant item); what a mean makes of that is decided where means are taken.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightning_rank import entries
from lightning_rank.conventions import Gain, options_of, sum_dtype, value_dtype, values_are_free
from lightning_rank.entries import MetricSpec, check_options
from lightning_rank.functional.ranking import Ranking, rank


def dcg(ranking: Ranking, top_k: int | None = None, *, gain: Gain = "exp2") -> Tensor:
    """Discounted cumulative gain: the sum of gain / log2(rank + 1).

    Returns:
        [query] >= 0; NaN for a query with no grade above 0.

    Source: Jarvelin and Kekalainen, "Cumulated gain-based evaluation of IR techniques", TOIS 2002; gain 2^g - 1: Burges et al.,
    "Learning to rank using gradient descent", ICML 2005.
    """
    has_value = ranking.judged.top_grade() > 0
    _mark_beyond_table(ranking, gain)
    value = ranking.sum(ranking.discounted_gain(gain), top_k)
    return torch.where(has_value, value, torch.nan)


def ndcg(ranking: Ranking, top_k: int | None = None, *, gain: Gain = "exp2") -> Tensor:
    """DCG divided by the DCG of the ideal order of all judged items, both cut at ``top_k``.

    Returns:
        [query] in [0, 1]; NaN for a query with no grade above 0.

    Source: Jarvelin and Kekalainen, "Cumulated gain-based evaluation of IR techniques", TOIS 2002.
    """
    _mark_beyond_table(ranking, gain)
    best = ranking.judged.ideal_dcg(top_k, gain, scaled=True)
    has_value = (ranking.judged.top_grade() > 0) & (best > 0)
    value = ranking.sum(ranking.discounted_gain(gain, scaled=True), top_k)
    return torch.where(has_value, value / torch.where(has_value, best, 1.0), torch.nan)


def _mark_beyond_table(ranking: Ranking, gain: Gain) -> None:
    if not isinstance(gain, str) and not callable(gain) and not values_are_free(ranking.grade):
        ranking.mark_beyond(ranking.judged.beyond(gain))


def average_precision(
    ranking: Ranking, top_k: int | None = None, *, min_relevance: float = 1, denominator: str = "relevant"
) -> Tensor:
    """Mean precision at the ranks of the relevant items; an item that is missing, or below the cutoff, adds 0.

    ``denominator`` divides by all relevant items (``"relevant"``), by no more of them than fit (``"cutoff"``, min(R, k)), or by
    those found (``"hits"``, 0 where none is).

    Returns:
        [query] in [0, 1]; NaN for a query with no relevant item.

    Source: Buckley and Voorhees, "Retrieval system evaluation", in TREC: Experiment and Evaluation, 2005.
    """
    total = ranking.judged.num_relevant(min_relevance)
    precisions = ranking.expected_precision(min_relevance)
    if denominator == "hits":
        value = _average_precision_by_hits(ranking, top_k, min_relevance, precisions)
    else:
        divisor = total if denominator == "relevant" or top_k is None else total.clamp(max=top_k)
        value = ranking.sum(precisions, top_k) / divisor.clamp(min=1)
    return torch.where(ranking.judged.has_relevant(min_relevance), value, torch.nan)


def _average_precision_by_hits(ranking: Ranking, top_k: int | None, min_relevance: float, precisions: Tensor) -> Tensor:
    """Precisions over the number of hits, which is random where the cutoff splits tied items."""
    chance = ranking.chance(min_relevance)
    if ranking.ties is None or top_k is None:
        hits = ranking.sum(ranking.relevant(min_relevance), top_k)
        return ranking.sum(precisions, top_k) / hits.clamp(min=1)
    lists, exact = ranking.lists, sum_dtype(chance.device)
    chance, precisions, ranks = chance.to(exact), precisions.to(exact), ranking.rank.to(exact)
    size, place = ranking.tie_size().to(exact), ranking.tie_place().to(exact)
    start = lists.position - place  # ranks above the tied items
    split = (start < top_k) & (start + size > top_k)
    whole = start + size <= top_k
    sure_hits = lists.sum(chance * whole).round()
    sure = lists.sum(precisions * whole)
    # Of the n tied items that the cutoff splits, r are relevant and m fit. h of those m are relevant with the hypergeometric
    # P(h); the tied rank j stands for h = j.
    first = split & (place == 0)
    n, r = lists.sum(size * first), lists.sum(chance * size * first).round()
    m = lists.sum((split & (lists.position < top_k)).to(exact))
    reciprocal = (split & (lists.position < top_k)).to(exact) / ranks
    s1, s2 = lists.sum(reciprocal), lists.sum(reciprocal * place)
    least, most = (m - (n - r)).clamp(min=0), torch.minimum(r, m)
    n_, r_, m_, least_, most_ = (lists.spread(x) for x in (n, r, m, least, most))
    h = place + 1
    step = split & (h > least_) & (h <= most_)
    ratio = (r_ - h + 1) * (m_ - h + 1) / (h * (n_ - r_ - m_ + h))
    log_chance = lists.cumsum(torch.log(torch.where(step, ratio, 1.0)))
    # log P relative to the smallest possible h, then to the likeliest, so that no exponential overflows.
    possible = split & (h >= least_) & (h <= most_)
    highest = lists.max(torch.where(possible, log_chance, 0.0)).clamp(min=0)
    weight = torch.where(possible, torch.exp(log_chance - lists.spread(highest)), 0.0)
    weight_of_none = torch.where(least == 0, torch.exp(-highest), 0.0)

    sure_, sure_hits_, s1_, s2_ = (lists.spread(x) for x in (sure, sure_hits, s1, s2))
    expected = sure_ + h / m_.clamp(min=1) * ((sure_hits_ + 1) * s1_ + (h - 1) / (m_ - 1).clamp(min=1) * s2_)
    total = lists.sum(weight * expected / (sure_hits_ + h)) + weight_of_none * sure / sure_hits.clamp(min=1)
    return total / (lists.sum(weight) + weight_of_none)


def reciprocal_rank(ranking: Ranking, top_k: int | None = None, *, min_relevance: float = 1) -> Tensor:
    """1 / rank of the first relevant item; 0 where none is within the cutoff.

    Returns:
        [query] in [0, 1]; NaN for a query with no relevant item.

    Source: Voorhees, "The TREC-8 Question Answering Track Report", 1999.
    """
    of_first = ranking.once(("reciprocal", min_relevance), lambda: ranking.chance_of_first(min_relevance) / ranking.rank)
    value = ranking.sum(of_first, top_k)
    return torch.where(ranking.judged.has_relevant(min_relevance), value, torch.nan)


def precision(ranking: Ranking, top_k: int | None = None, *, min_relevance: float = 1) -> Tensor:
    """Share of the first ``top_k`` ranks that hold a relevant item, also where the list is shorter than ``top_k``.

    Returns:
        [query] in [0, 1]; NaN for a query with no relevant item.

    Source: Buckley and Voorhees, "Retrieval system evaluation", in TREC: Experiment and Evaluation, 2005.
    """
    hits = ranking.sum(ranking.chance(min_relevance), top_k)
    value = hits / (ranking.length.clamp(min=1) if top_k is None else top_k)
    return torch.where(ranking.judged.has_relevant(min_relevance), value, torch.nan)


def recall(ranking: Ranking, top_k: int | None = None, *, min_relevance: float = 1) -> Tensor:
    """Share of all relevant items that stand within the cutoff.

    Returns:
        [query] in [0, 1]; NaN for a query with no relevant item.

    Source: Buckley and Voorhees, "Retrieval system evaluation", in TREC: Experiment and Evaluation, 2005.
    """
    total = ranking.judged.num_relevant(min_relevance)
    value = ranking.sum(ranking.chance(min_relevance), top_k) / total.clamp(min=1)
    return torch.where(ranking.judged.has_relevant(min_relevance), value, torch.nan)


def hit_rate(ranking: Ranking, top_k: int | None = None, *, min_relevance: float = 1) -> Tensor:
    """1 where a relevant item stands within the cutoff, else 0. Also known as success@k.

    Returns:
        [query] in [0, 1] (between 0 and 1 only by ties); NaN for a query with no relevant item.

    Source: the success measure of trec_eval.
    """
    value = ranking.sum(ranking.chance_of_first(min_relevance), top_k).clamp(max=1)
    return torch.where(ranking.judged.has_relevant(min_relevance), value, torch.nan)


def f1(ranking: Ranking, top_k: int | None = None, *, min_relevance: float = 1) -> Tensor:
    """Harmonic mean of precision and recall: 2 hits / (ranks that count + all relevant items).

    Returns:
        [query] in [0, 1]; NaN for a query with no relevant item.

    Source: van Rijsbergen, "Information Retrieval", 2nd edition, 1979.
    """
    total = ranking.judged.num_relevant(min_relevance)
    value = (
        2
        * ranking.sum(ranking.chance(min_relevance), top_k)
        / ((ranking.length if top_k is None else top_k) + total).clamp(min=1)
    )
    return torch.where(ranking.judged.has_relevant(min_relevance), value, torch.nan)


def r_precision(ranking: Ranking, *, min_relevance: float = 1) -> Tensor:
    """Precision at rank R, the number of relevant items: where precision and recall are equal.

    Returns:
        [query] in [0, 1]; NaN for a query with no relevant item.

    Source: Buckley and Voorhees, "Retrieval system evaluation", in TREC: Experiment and Evaluation, 2005.
    """
    total = ranking.judged.num_relevant(min_relevance)
    value = ranking.sum(ranking.chance(min_relevance) * ranking.within(total)) / total.clamp(min=1)
    return torch.where(ranking.judged.has_relevant(min_relevance), value, torch.nan)


def expected_reciprocal_rank(ranking: Ranking, top_k: int | None = None, *, max_grade: float = 4) -> Tensor:
    """Expected 1 / rank at which a user who reads down is satisfied, by an item of grade g with (2^g - 1) / 2^max_grade.

    Under ties it costs as many steps as the longest run of tied items.

    Returns:
        [query] in [0, 1); NaN for a query with no grade above 0. A grade above ``max_grade`` is an error on the CPU, NaN
        elsewhere.

    Source: Chapelle et al., "Expected reciprocal rank for graded relevance", CIKM 2009.
    """
    top = ranking.judged.top_grade()
    if values_are_free(top) and (top > max_grade).any():
        raise ValueError(
            f"ERR with max_grade={max_grade:g} got the grade {top.max().item():g}: `max_grade` is the best grade there is."
        )
    has_value = (top > 0) & (top <= max_grade)
    if not values_are_free(top):
        ranking.mark_beyond(top > max_grade)

    def stops_over_rank() -> Tensor:
        satisfied = torch.exp2(ranking.grade.clamp(max=max_grade) - max_grade) - 2.0**-max_grade
        return ranking.chance_to_stop(satisfied) / ranking.rank

    value = ranking.sum(ranking.once(("stops", max_grade), stops_over_rank), top_k)
    return torch.where(has_value, value, torch.nan)


def rank_biased_precision(
    ranking: Ranking, top_k: int | None = None, *, p: float = 0.8, min_relevance: float = 1
) -> Tensor:
    """Share of relevant items that a user sees who goes on to the next rank with probability ``p``; no residual is added.

    Returns:
        [query] in [0, 1]; NaN for a query with no relevant item.

    Source: Moffat and Zobel, "Rank-biased precision for measurement of retrieval effectiveness", TOIS 2008.
    """

    def seen_chance() -> Tensor:
        seen = (1 - p) * p ** (ranking.rank - 1).to(sum_dtype(ranking.grade.device))
        return ranking.chance(min_relevance) * seen.to(ranking.grade.dtype)

    value = ranking.sum(ranking.once(("seen", p, min_relevance), seen_chance), top_k)
    return torch.where(ranking.judged.has_relevant(min_relevance), value, torch.nan)


def bpref(ranking: Ranking, *, min_relevance: float = 1) -> Tensor:
    """How few judged items that are not relevant stand above the relevant ones; what nobody judged is left out.

    Returns:
        [query] in [0, 1]; NaN for a query with no relevant item.

    Source: Buckley and Voorhees, "Retrieval evaluation with incomplete information", SIGIR 2004, as trec_eval computes it.
    """
    lists = ranking.lists
    total, others = ranking.judged.num_relevant(min_relevance), ranking.judged.num_other(min_relevance)
    above, tied = ranking.others_above_and_tied(min_relevance, known=True)
    # Of the b others tied with a relevant item, 0..b stand above it, all equally likely; above R they count as R.
    limit = lists.spread(total)
    free = (limit - above).clamp(min=0).minimum(tied + 1)
    mean_above = (free * above + free * (free - 1) / 2 + (tied + 1 - free) * limit) / (tied + 1)
    penalty = mean_above / lists.spread(torch.minimum(others, total).clamp(min=1))
    value = ranking.sum(ranking.relevant(min_relevance) * (1 - penalty)) / total.clamp(min=1)
    return torch.where(ranking.judged.has_relevant(min_relevance), value, torch.nan)


def auc(ranking: Ranking, *, min_relevance: float = 1) -> Tensor:
    """Share of the pairs of a relevant and a not relevant item that stand in the right order; a tie is half a pair.

    Returns:
        [query] in [0, 1]; NaN for a query without such a pair.

    Source: Hanley and McNeil, "The meaning and use of the area under a receiver operating characteristic (ROC) curve", 1982.
    """
    above, tied = ranking.others_above_and_tied(min_relevance, known=False)
    relevant = ranking.relevant(min_relevance)
    others = ranking.sum(ranking.other(min_relevance, known=False))
    pairs = ranking.sum(relevant) * others
    below = ranking.lists.spread(others) - above - tied / 2
    return torch.where(pairs > 0, ranking.sum(relevant * below) / pairs.clamp(min=1), torch.nan)


def fall_out(ranking: Ranking, top_k: int | None = None, *, min_relevance: float = 1) -> Tensor:
    """Share of the items judged not relevant that stand within the cutoff; lower is better.

    Returns:
        [query] in [0, 1]; NaN for a query with no item judged not relevant.

    Source: van Rijsbergen, "Information Retrieval", 2nd edition, 1979.
    """
    others = ranking.judged.num_other(min_relevance)
    wrong = ranking.once(("wrong", min_relevance), lambda: ranking.mean_of_tied(ranking.other(min_relevance, known=True)))
    return torch.where(others > 0, ranking.sum(wrong, top_k) / others.clamp(min=1), torch.nan)


METRICS: dict[str, MetricSpec] = {
    spec.name: spec
    for spec in (
        MetricSpec("dcg", dcg, bounded=False, grows_with_k=True),
        MetricSpec("ndcg", ndcg, perfect_is_one=True),
        MetricSpec("map", average_precision, perfect_is_one=True),
        MetricSpec("mrr", reciprocal_rank, perfect_is_one=True, grows_with_k=True),
        MetricSpec("precision", precision, needs_cutoff=True),
        MetricSpec("recall", recall, perfect_is_one=True, grows_with_k=True, needs_cutoff=True),
        MetricSpec("hit_rate", hit_rate, perfect_is_one=True, grows_with_k=True, needs_cutoff=True),
        MetricSpec("f1", f1, needs_cutoff=True),
        MetricSpec("r_precision", r_precision, perfect_is_one=True),
        MetricSpec("err", expected_reciprocal_rank, grows_with_k=True, waits_for_flat_ties=True),
        MetricSpec("rbp", rank_biased_precision, grows_with_k=True),
        MetricSpec("bpref", bpref, perfect_is_one=True),
        MetricSpec("auc", auc, perfect_is_one=True),
        MetricSpec("fall_out", fall_out, grows_with_k=True, higher_is_better=False, needs_cutoff=True),
    )
}


def find_metric(name: str) -> MetricSpec:
    """The row of a metric by its short or its function's name."""
    return entries.find_metric(name, METRICS)


def parse_name(name: str) -> tuple[MetricSpec, int | None]:
    """``"ndcg@10"`` -> its row of the table and 10.

    Raises:
        ValueError: unknown metric, or a cutoff that is no whole number >= 1.
    """
    return entries.parse_name(name, METRICS)


def on_lists(spec: MetricSpec) -> Callable[..., Tensor]:
    """The public form of a metric: scores and grades in one of the layouts -> per-query values."""

    def metric(
        preds: Tensor,
        target: Tensor,
        top_k: int | None = None,
        *,
        mask: Tensor | None = None,
        indexes: Tensor | None = None,
        offsets: Tensor | None = None,
        judged: Tensor | None = None,
        ideal: Tensor | None = None,
        ideal_mask: Tensor | None = None,
        ties: str = "average",
        **options: Any,
    ) -> Tensor:
        spec.check_top_k(top_k)
        if strange := sorted([name for name in options if name not in spec.options]):
            raise TypeError(f"{metric.__name__}() has no option {', '.join(strange)}; it takes {', '.join(spec.options)}.")
        check_options(options)
        ranking = rank(
            preds, target, mask=mask, indexes=indexes, offsets=offsets, judged=judged, ideal=ideal,
            ideal_mask=ideal_mask, ties=ties, depth=top_k,
        )  # fmt: skip
        value = spec.values(ranking, top_k, options)
        if ranking.invalid is not None:
            value = value.masked_fill(ranking.invalid, torch.nan)
        return value.to(value_dtype(preds))

    shared = inspect.signature(metric)
    hidden = {"options"} if spec.takes_top_k else {"options", "top_k"}
    parameters = [p for p in shared.parameters.values() if p.name not in hidden]
    metric.__signature__ = shared.replace(parameters=parameters + options_of(spec.function))  # type: ignore[attr-defined]  # functions take any
    metric.__name__ = metric.__qualname__ = spec.function.__name__
    metric.__module__ = "lightning_rank.functional"
    own_doc = inspect.cleandoc(spec.function.__doc__ or "")
    metric.__doc__ = f"{own_doc}\n\n{_SHARED_DOC.replace('METRIC', metric.__name__)}"
    return metric


_SHARED_DOC = """Args:
    preds: scores ``[query, item]``, or flat ``[item]``; any real number, higher is better, -inf is last.
    target: grades like ``preds``; 0 or below is not relevant.
    top_k: the cutoff; None takes the whole list.
    mask: bool like 2-D ``preds``, False is padding.
    indexes: for flat ``preds`` the query id of each item, in any order; otherwise the id of each query.
    offsets: for flat ``preds``, ``[query + 1]``: query q is ``offsets[q]:offsets[q + 1]``.
    judged: bool like ``preds``; False is an item that nobody judged, and counts as not relevant.
    ideal: ``[query, M]`` grades of all judged items, where some were not retrieved; padded input only.
    ideal_mask: bool like ``ideal``, False is padding.
    ties: ``"average"`` is the expectation over all orders of tied items; ``"stable"`` keeps the input order,
        ``"optimistic"`` and ``"pessimistic"`` put the best, the worst of them first.

Values are float64 for float64 ``preds``, else float32; queries of flat ``indexes`` come in ascending id.

Raises:
    ValueError: shapes or options do not fit; a NaN score or grade (on a device, under ``vmap`` or ``compile``: NaN for that
        query instead).
    TypeError: a wrong dtype or an option that the metric has not.

Example:
    >>> import torch
    >>> from lightning_rank.functional import METRIC
    >>> value = METRIC(torch.tensor([0.9, 0.1, 0.4]), torch.tensor([0, 0, 1]))
    >>> value.shape
    torch.Size([1])"""


def tie_spread(
    name: str,
    preds: Tensor,
    target: Tensor,
    *,
    mask: Tensor | None = None,
    indexes: Tensor | None = None,
    offsets: Tensor | None = None,
    judged: Tensor | None = None,
    ideal: Tensor | None = None,
    ideal_mask: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """How much of a value is made of ties: the metric with tied items best first, minus that with them worst first.

    Args:
        name: a metric such as ``"ndcg@10"``.
        preds, target, mask, indexes, offsets, judged, ideal, ideal_mask: as for the metric.
        options: the metric's own, such as ``gain="linear"``.

    Returns:
        [query] >= 0 (for ``denominator="hits"`` it may be below), 0 where no tie matters; NaN where the metric is.

    Raises:
        ValueError: an unknown name, or as the metric.

    Example:
        >>> import torch
        >>> tie_spread("mrr", torch.tensor([[0.5, 0.5, 0.1]]), torch.tensor([[0, 1, 0]]))
        tensor([0.5000])
    """
    spec, top_k = parse_name(name)
    batch = {
        "mask": mask,
        "indexes": indexes,
        "offsets": offsets,
        "judged": judged,
        "ideal": ideal,
        "ideal_mask": ideal_mask,
    }
    if spec.takes_top_k:
        options["top_k"] = top_k
    metric = on_lists(spec)
    best, worst = (metric(preds, target, ties=ties, **batch, **options) for ties in ("optimistic", "pessimistic"))
    return (best - worst) * (1 if spec.higher_is_better else -1)
