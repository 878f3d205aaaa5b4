"""Slow references of the losses in float64: what each is by definition, for one query, by loops over items and pairs.

Independent of the library. A loss takes the scores as 0-dimensional tensors (so that autograd gives its gradient), grades and
item weights as floats, and returns its value and whether the query has signal.

* Item weights multiply what an item contributes: its gain, in DCG and in the ideal alike (ApproxNDCG, NeuralNDCG, PL-Rank); its
  term of a cross-entropy, of a pick (ListMLE), of a mean over items, whose divisor they join; the pair, by the weight of the
  better item (the first of the pair in ``ndcg_loss1``). Normalisers of pairs (the ideal DCG, the number of pairs) and of
  PListMLE know no weights, so that twice the weight is twice the loss. ApproxMAP and ApproxMRR: weighted mean and weighted
  maximum over the relevant items, normalised by the best there can be; the count of relevant items above stays a count.
* Signal is a property of grades and weights, never of scores: what carries it has a positive weight.
* Hard ranks of tied scores: the mean over all orders of the tied items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations, product

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from tests.reference import discount, gain_of

Numbers = Sequence[float]
Scores = list[Tensor]
F64 = torch.float64


def total(terms: Sequence[Tensor | float]) -> Tensor:
    return torch.stack([torch.as_tensor(term, dtype=F64) for term in terms]).sum() if terms else torch.zeros((), dtype=F64)


def log_sum_exp(terms: Sequence[Tensor]) -> Tensor:
    return torch.logsumexp(torch.stack(list(terms)), 0)


def log_softmax(scores: Scores) -> Scores:
    return [score - log_sum_exp(scores) for score in scores]


def phi(x: Tensor) -> Tensor:
    """log(1 + exp(-x))."""
    return -logsigmoid(x)


def gains_of(grades: Numbers, gain: str | Callable[[float], float], weights: Numbers | None = None) -> list[float]:
    return [gain_of(grade, gain) * weight for grade, weight in zip(grades, weights or [1.0] * len(grades), strict=True)]


def max_dcg(gains: Numbers, top_k: int | None) -> float:
    return sum(gain * discount(rank) for rank, gain in enumerate(sorted(gains, reverse=True)[:top_k], 1))


# Smooth ranks ---------------------------------------------------------------------------------------------------------


def soft_ranks(scores: Scores, temperature: float) -> Scores:
    return [
        1 + total([torch.sigmoid((other - score) / temperature) for j, other in enumerate(scores) if j != i])
        for i, score in enumerate(scores)
    ]


def soft_cuts(ranks: Scores, top_k: int | None) -> list[Tensor | float]:
    if top_k is None or top_k >= len(ranks):
        return [1.0] * len(ranks)
    return [torch.sigmoid(top_k + 0.5 - rank) for rank in ranks]


def approx_ndcg(scores, grades, weights, *, top_k=None, gain="exp2", temperature=1.0):
    gains = gains_of(grades, gain, weights)
    best = max_dcg(gains, top_k)
    if best <= 0:
        return None
    ranks = soft_ranks(scores, temperature)
    cuts = soft_cuts(ranks, top_k)
    return 1 - total([g * h / torch.log2(1 + r) for g, h, r in zip(gains, cuts, ranks, strict=True)]) / best


def approx_mrr(scores, grades, weights, *, top_k=None, temperature=1.0, min_relevance=1):
    relevant = [i for i, grade in enumerate(grades) if grade >= min_relevance and weights[i] > 0]
    if not relevant:
        return None
    ranks = soft_ranks(scores, temperature)
    cuts = soft_cuts(ranks, top_k)
    values = torch.stack([weights[i] * cuts[i] / ranks[i] for i in relevant])
    # Equal maxima share the gradient; sums that are added up in different orders are equal but for rounding.
    largest = values[values >= values.max() - 1e-12].mean()
    return 1 - largest / max(weights[i] for i in relevant)


def approx_map(scores, grades, weights, *, top_k=None, temperature=1.0, min_relevance=1):
    relevant = [i for i, grade in enumerate(grades) if grade >= min_relevance]
    best = sum(sorted((weights[i] for i in relevant), reverse=True)[:top_k])
    if best <= 0:
        return None
    ranks = soft_ranks(scores, temperature)
    cuts = soft_cuts(ranks, top_k)
    terms = []
    for i in relevant:
        above = total([torch.sigmoid((scores[j] - scores[i]) / temperature) for j in relevant if j != i])
        terms.append(weights[i] * cuts[i] * (1 + above) / ranks[i])
    return 1 - total(terms) / best


# Pairs ----------------------------------------------------------------------------------------------------------------


def hard_ranks(scores: Scores) -> list[range]:
    """The ranks that each item can have; all orders of tied items are equally likely."""
    values = [score.item() for score in scores]
    return [
        range(above + 1, above + sum(other == value for other in values) + 1)
        for value in values
        for above in [sum(other > value for other in values)]
    ]


def over_orders(first: range, second: range, top_k: int | None, function: Callable[[int, int], float]) -> float:
    """Mean over the orders of tied items of a function of the ranks of a pair, 0 where none is within the cutoff."""
    pairs = [(a, b) for a, b in product(first, second) if a != b]
    return sum(function(a, b) for a, b in pairs if top_k is None or min(a, b) <= top_k) / len(pairs)


def pairs_of(grades: Numbers) -> Iterator[tuple[int, int]]:
    yield from ((i, j) for i, j in product(range(len(grades)), repeat=2) if grades[i] > grades[j])


def has_pair(grades: Numbers, weights: Numbers) -> bool:
    return any(weights[i] > 0 for i, _ in pairs_of(grades))


def sum_over_pairs(scores, grades, weights, weight_of, term, *, pairs=None, top_k, normalize_pairs):
    """``weight_of(i, j, rank of i, rank of j)`` times ``term(score of i - score of j)``, summed over the kept pairs."""
    ranks = hard_ranks(scores)
    pairs = list(pairs_of(grades)) if pairs is None else pairs
    terms = [
        weights[i]
        * over_orders(ranks[i], ranks[j], top_k, lambda a, b, i=i, j=j: weight_of(i, j, a, b))
        * term(scores[i] - scores[j])
        for i, j in pairs
    ]
    kept = sum(over_orders(ranks[i], ranks[j], top_k, lambda a, b: 1.0) for i, j in pairs)
    return total(terms) / (kept if normalize_pairs else 1)


def ranknet(scores, grades, weights, *, top_k=None, sigma=1.0, normalize_pairs=False):
    if not has_pair(grades, weights):
        return None
    shared = {"top_k": top_k, "normalize_pairs": normalize_pairs}
    return sum_over_pairs(scores, grades, weights, lambda i, j, a, b: 1.0, lambda d: phi(sigma * d), **shared)


def pairwise_hinge(scores, grades, weights, *, top_k=None, margin=1.0, normalize_pairs=False):
    if not has_pair(grades, weights):
        return None
    shared = {"top_k": top_k, "normalize_pairs": normalize_pairs}
    return sum_over_pairs(scores, grades, weights, lambda i, j, a, b: 1.0, lambda d: torch.relu(margin - d), **shared)


def lambdarank(scores, grades, weights, *, top_k=None, gain="exp2", sigma=1.0, normalize_pairs=False):
    options = {"top_k": top_k, "gain": gain, "sigma": sigma, "normalize_pairs": normalize_pairs}
    return lambda_(scores, grades, weights, scheme="lambdarank", **options)


def lambda_(
    scores, grades, weights, *, top_k=None, gain="exp2", scheme="ndcg_loss2pp", mu=10.0, sigma=1.0, normalize_pairs=False
):
    gains = gains_of(grades, gain)
    best = max_dcg(gains, top_k)
    if best <= 0:
        return None

    def delta(a: int, b: int) -> float:
        return discount(abs(a - b)) - discount(abs(a - b) + 1)

    def change(a: int, b: int) -> float:
        return abs(discount(a) - discount(b))

    schemes = {
        "lambdarank": lambda i, j, a, b: (gains[i] - gains[j]) * change(a, b),
        "ndcg_loss1": lambda i, j, a, b: gains[i] * discount(a),
        "ndcg_loss2": lambda i, j, a, b: (gains[i] - gains[j]) * delta(a, b),
        "ndcg_loss2pp": lambda i, j, a, b: (gains[i] - gains[j]) * (change(a, b) + mu * delta(a, b)),
    }
    pairs = list(pairs_of(grades))
    if scheme == "ndcg_loss1":
        pairs = list(permutations(range(len(scores)), 2))
        if not pairs or not any(g * w > 0 for g, w in zip(gains, weights, strict=True)):
            return None
    elif not has_pair(grades, weights):
        return None
    value = sum_over_pairs(
        scores, grades, weights, schemes[scheme], lambda d: phi(sigma * d),
        pairs=pairs, top_k=top_k, normalize_pairs=normalize_pairs,
    )  # fmt: skip
    return value / best


# Distributions over the items -----------------------------------------------------------------------------------------


def cross_entropy(shares: Numbers, scores: Scores) -> Tensor:
    return -total([share * log_share for share, log_share in zip(shares, log_softmax(scores), strict=True) if share != 0])


def softmax(scores, grades, weights, *, gain="linear"):
    gains = gains_of(grades, gain, weights)
    return cross_entropy(gains, scores) if sum(gains) > 0 else None


def is_relevant_somewhere(grades: Numbers, weights: Numbers) -> bool:
    return any(grade > 0 and weight > 0 for grade, weight in zip(grades, weights, strict=True))


def listnet(scores, grades, weights):
    if not is_relevant_somewhere(grades, weights):
        return None
    wanted = [math.exp(grade - max(grades)) for grade in grades]
    return cross_entropy([w * share / sum(wanted) for w, share in zip(weights, wanted, strict=True)], scores)


def xendcg(scores, grades, weights, *, gamma):
    if not is_relevant_somewhere(grades, weights):
        return None
    wanted = [2.0**grade - noise for grade, noise in zip(grades, gamma, strict=True)]
    return cross_entropy([w * share / sum(wanted) for w, share in zip(weights, wanted, strict=True)], scores)


def unique_softmax(scores, grades, weights, *, gain="exp2"):
    gains = gains_of(grades, gain, weights)
    if sum(gains) <= 0:
        return None
    terms = []
    for g, grade, score in zip(gains, grades, scores, strict=True):
        lower = [other for other, other_grade in zip(scores, grades, strict=True) if other_grade < grade]
        terms.append(g * (log_sum_exp([score, *lower]) - score))
    return total(terms)


def picks(scores: Scores, grades: Numbers, weights: Numbers) -> list[Tensor]:
    """The terms of ListMLE by place: weight * (log of what is left to choose from - score), tied grades as Efron has them."""
    terms = []
    for grade in sorted(set(grades), reverse=True):
        group = [i for i, other in enumerate(grades) if other == grade]
        below = [score.exp() for score, other in zip(scores, grades, strict=True) if other < grade]
        weight = sum(weights[i] for i in group) / len(group)
        score = total([weights[i] * scores[i] for i in group]) / len(group)
        for taken in range(len(group)):
            left = total(below) + (1 - taken / len(group)) * total([scores[i].exp() for i in group])
            terms.append(weight * left.log() - score)
    return terms


def centred(scores: Scores) -> Scores:
    highest = max(score.item() for score in scores)
    return [score - highest for score in scores]


def listmle(scores, grades, weights, *, top_k=None):
    return total(picks(centred(scores), grades, weights)[:top_k]) if has_pair(grades, weights) else None


def plistmle(scores, grades, weights, *, top_k=None, normalize=True):
    if not has_pair(grades, weights):
        return None
    alphas = [2.0 ** (len(scores) - k) - 1 for k in range(1, len(scores) + 1)][:top_k]
    terms = picks(centred(scores), grades, weights)[:top_k]
    value = total([alpha * term for alpha, term in zip(alphas, terms, strict=True)])
    return value / sum(alphas) if normalize else value


# Permutations ---------------------------------------------------------------------------------------------------------


def neural_ndcg(
    scores, grades, weights, *, top_k=None, gain="exp2", temperature=1.0, sinkhorn_max_iter=None, sinkhorn_tol=None
):
    """With Sinkhorn run until it moves no more: the two options only say when an implementation may stop earlier."""
    gains = gains_of(grades, gain, weights)
    best = max_dcg(gains, top_k)
    if best <= 0:
        return None
    n = len(scores)
    s = torch.stack(scores)
    spread = (s.unsqueeze(0) - s.unsqueeze(1)).abs().sum(0)
    places = torch.arange(1, n + 1, dtype=F64).unsqueeze(1)
    log_p = torch.log_softmax(((n + 1 - 2 * places) * s - spread) / temperature, -1)
    with torch.no_grad():
        rows, columns, steps = torch.zeros(n, 1, dtype=F64), torch.zeros(1, n, dtype=F64), 0
        while steps < 3000:
            rows = -torch.logsumexp(log_p + columns, 1, keepdim=True)
            columns = -torch.logsumexp(log_p + rows, 0, keepdim=True)
            steps += 1
            if (torch.logsumexp(log_p + rows + columns, 1).exp() - 1).abs().max() < 1e-14:
                break
    # From the fixed point on with a graph: the derivative converges as the value did.
    for _ in range(2 * steps + 20 if s.requires_grad else 0):
        rows = -torch.logsumexp(log_p + columns, 1, keepdim=True)
        columns = -torch.logsumexp(log_p + rows, 0, keepdim=True)
    ranked = (log_p + rows + columns).exp() @ torch.tensor(gains, dtype=F64)
    return 1 - total([discount(k) * ranked[k - 1] for k in range(1, n + 1)[:top_k]]) / best


def plrank(scores, grades, weights, *, top_k=None, gain="exp2", num_samples=None):
    """The exact expectation over all orders of the items."""
    gains = gains_of(grades, gain, weights)
    best = max_dcg(gains, top_k)
    if best <= 0:
        return None
    orders = torch.tensor(list(permutations(range(len(scores)))))
    placed = torch.stack(scores)[orders]
    log_left = torch.logcumsumexp(placed.flip(-1), -1).flip(-1)
    probability = (placed - log_left).sum(-1).exp()
    cutoff = len(scores) if top_k is None else min(top_k, len(scores))
    discounts = torch.tensor([discount(k) for k in range(1, cutoff + 1)], dtype=F64)
    dcg = (torch.tensor(gains, dtype=F64)[orders[:, :cutoff]] * discounts).sum(-1)
    return 1 - (probability * dcg).sum() / best


def plrank_of_noise(scores, grades, weights=None, *, noise, top_k=None, gain="exp2"):
    """Value and gradient of PL-Rank-3 for given Gumbel noise, a list per sample, by loops over places; None without signal."""
    gains = gains_of(grades, gain, weights)
    best = max_dcg(gains, top_k)
    if best <= 0:
        return None
    values, gradient = [], [0.0] * len(scores)
    for sample in noise:
        perturbed = [score + extra for score, extra in zip(scores, sample, strict=True)]
        order = sorted(range(len(scores)), key=lambda i: -perturbed[i])
        places = range(len(order))
        discounts = [discount(p + 1) if top_k is None or p < top_k else 0.0 for p in places]
        reward = [discounts[p] * gains[order[p]] / best for p in places]
        left = [sum(math.exp(scores[i]) for i in order[p:]) for p in places]
        values.append(1 - sum(reward))
        for p, i in enumerate(order):
            risk = sum((gains[i] / best * discounts[q] - sum(reward[q:])) / left[q] for q in range(p + 1))
            gradient[i] -= (sum(reward[p + 1 :]) + math.exp(scores[i]) * risk) / len(noise)
    return sum(values) / len(noise), gradient


# Items by themselves --------------------------------------------------------------------------------------------------


def mean_over_items(terms: Sequence[Tensor], weights: Numbers) -> Tensor | None:
    if sum(weights) <= 0:
        return None
    return total([w * term for w, term in zip(weights, terms, strict=True)]) / sum(weights)


def ordinal(scores, grades, weights):
    """``scores``: K logits per item."""
    terms = [
        total([phi(logit) if grade >= k else phi(-logit) for k, logit in enumerate(logits, 1)])
        for logits, grade in zip(scores, grades, strict=True)
    ]
    return mean_over_items(terms, weights)


def pointwise_bce(scores, grades, weights):
    return mean_over_items([y * phi(s) + (1 - y) * phi(-s) for s, y in zip(scores, grades, strict=True)], weights)


def pointwise_mse(scores, grades, weights):
    return mean_over_items([(s - y) ** 2 for s, y in zip(scores, grades, strict=True)], weights)


def in_batch_softmax(
    query: Tensor, item: Tensor, *, temperature: float = 1.0, item_ids: Numbers | None = None, log_q: Numbers | None = None
) -> Tensor:
    """Per row."""
    values = []
    for i in range(len(query)):
        logits = [
            query[i] @ item[j] / temperature - (0.0 if log_q is None else log_q[j])
            for j in range(len(item))
            if j == i or item_ids is None or item_ids[j] != item_ids[i]
        ]
        own = query[i] @ item[i] / temperature - (0.0 if log_q is None else log_q[i])
        values.append(log_sum_exp(logits) - own)
    return torch.stack(values)


LOSS_REFERENCES = {
    "approx_ndcg": approx_ndcg,
    "approx_mrr": approx_mrr,
    "approx_map": approx_map,
    "ranknet": ranknet,
    "lambdarank": lambdarank,
    "lambda": lambda_,
    "pairwise_hinge": pairwise_hinge,
    "listnet": listnet,
    "softmax": softmax,
    "unique_softmax": unique_softmax,
    "listmle": listmle,
    "plistmle": plistmle,
    "xendcg": xendcg,
    "neural_ndcg": neural_ndcg,
    "plrank": plrank,
    "ordinal": ordinal,
    "pointwise_bce": pointwise_bce,
    "pointwise_mse": pointwise_mse,
}


def loss_with_gradient(
    name: str, scores: Numbers, grades: Numbers, weights: Numbers | None = None, *, gradient: bool = True, **options
) -> tuple[float, list, bool]:
    """The value of one query and its gradient, 0 without signal, and whether it has signal."""
    weights = [1.0] * len(scores) if weights is None else list(weights)
    leaf = torch.tensor(scores, dtype=F64).requires_grad_(gradient)
    value = LOSS_REFERENCES[name](list(leaf.unbind(0)), [max(grade, 0.0) for grade in grades], weights, **options)
    if value is None:
        return 0.0, torch.zeros_like(leaf).tolist(), False
    if gradient and value.requires_grad:
        value.backward()
    return value.item(), (torch.zeros_like(leaf) if leaf.grad is None else leaf.grad).tolist(), True


def loss_value(
    name: str, scores: Numbers, grades: Numbers, weights: Numbers | None = None, **options
) -> tuple[float, bool]:
    """The value of one query, 0 without signal, and whether it has signal."""
    value, _, signal = loss_with_gradient(name, scores, grades, weights, gradient=False, **options)
    return value, signal


def mean_over_signal(values: Sequence[tuple[float, bool]], weights: Numbers) -> float:
    """Weighted mean over the queries with signal; 0 where none has."""
    divisor = sum(weight for (_, signal), weight in zip(values, weights, strict=True) if signal)
    return sum(value * weight for (value, _), weight in zip(values, weights, strict=True)) / divisor if divisor else 0.0
