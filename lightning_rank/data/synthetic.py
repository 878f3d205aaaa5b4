"""Graded ranking data of a stated difficulty, whose best possible scorer is known."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_rank.conventions import check_number
from lightning_rank.data.batches import RankingDataset

# Utilities above these make grades 1, 2 and 3: of a standard normal variable about 31 %, 12 % and 3 %.
THRESHOLDS = (0.5, 1.2, 1.9)


class BayesOptimalScorer(nn.Module):
    """The utility that the features determine: no scorer can have a higher expected NDCG on ``make_ranking``'s data.

    A grade is an increasing function of this utility plus normal noise of its own. Of two items with different utilities, the
    better one is then at least as likely to have the higher grade as the other way round, whatever the other grades of the
    query are, so that swapping them into this order never lowers the expectation of DCG or of NDCG.

    Args:
        num_features: number of features.
        seed: the same seed gives the same utility.
    """

    weight: Tensor

    def __init__(self, num_features: int = 16, seed: int = 0) -> None:
        super().__init__()
        if isinstance(num_features, bool) or not isinstance(num_features, int) or num_features < 2:
            raise ValueError(f"`num_features` must be a whole number >= 2, got {num_features!r}.")
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(num_features, generator=generator)
        # Half of the variance is linear in the features, half lies in products of two, which a linear scorer cannot see.
        self.register_buffer("weight", weight / weight.norm() / 2**0.5)
        self.pairs = [(i, i + 1) for i in range(0, num_features - 1, 2)]
        self.scale = (2 * len(self.pairs)) ** -0.5

    def forward(self, features: Tensor) -> Tensor:
        """``[..., feature]`` -> ``[...]``, of mean 0 and variance 1 over standard normal features."""
        left, right = zip(*self.pairs, strict=True)
        products = features[..., list(left)] * features[..., list(right)]
        return features @ self.weight + self.scale * products.sum(-1)


def make_ranking(
    num_queries: int,
    *,
    min_items: int = 10,
    max_items: int = 40,
    num_features: int = 16,
    difficulty: float = 0.3,
    seed: int = 0,
    split: int = 0,
) -> RankingDataset:
    """Queries with standard normal features and grades 0..3.

    An item's utility is sqrt(1 - difficulty) times what the features determine (``BayesOptimalScorer``) plus sqrt(difficulty)
    times noise; thresholds make it a grade.

    Args:
        num_queries: how many.
        min_items, max_items: the range of list lengths, all equally likely.
        num_features: number of features.
        difficulty: share of the utility's variance that no scorer can know, in [0, 1).
        seed: of the utility and of the data.
        split: another number gives other queries with the same utility (training, validation, test).

    Raises:
        ValueError: a number is out of its range.

    Example:
        >>> data = make_ranking(100, seed=1)
        >>> len(data), data.num_features, data.grades.unique().tolist()
        (100, 16, [0.0, 1.0, 2.0, 3.0])
    """
    check_number("difficulty", difficulty, above=-1e-12, below=1)
    for name, value in (("num_queries", num_queries), ("min_items", min_items), ("max_items", max_items)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"`{name}` must be a whole number >= 1, got {value!r}.")
    if max_items < min_items:
        raise ValueError(f"`max_items` must not be below `min_items`, got {max_items} and {min_items}.")
    scorer = BayesOptimalScorer(num_features, seed)
    generator = torch.Generator().manual_seed(1 + 1_000_003 * seed + split)
    lengths = torch.randint(min_items, max_items + 1, (num_queries,), generator=generator)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    features = torch.randn(int(offsets[-1]), num_features, generator=generator)
    noise = torch.randn(len(features), generator=generator)
    utility = (1 - difficulty) ** 0.5 * scorer(features) + difficulty**0.5 * noise
    grades = torch.bucketize(utility, torch.tensor(THRESHOLDS)).float()
    return RankingDataset(features, grades, offsets, [f"{split}-{q}" for q in range(num_queries)])
