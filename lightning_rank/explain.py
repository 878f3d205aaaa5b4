"""One query's ranking, position by position: how each rank earns its part of a metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_rank import functional
from lightning_rank.conventions import Gain, check_gain, check_number, check_top_k, discount, gains_of
from lightning_rank.lists import arrange, check_grades, check_scores


class Position(NamedTuple):
    """A rank of the list and what it earns.

    Attributes:
        rank: from 1.
        item: index of the item in the input.
        score: its score.
        grade: its grade, at least 0.
        tied: the score is that of a neighbour, so that the rank is one of several equally right ones.
        gain: of the grade.
        discount: 1 / log2(rank + 1); 0 beyond the cutoff.
        contribution: gain times discount.
        dcg: the sum of the contributions so far.
        ideal_grade: the grade that the ideal order has here.
        ideal_dcg: DCG of the ideal order so far.
        precision: relevant items so far / rank, at a relevant rank; None elsewhere.
        reciprocal_rank: 1 / rank at the first relevant rank; None elsewhere.
    """

    rank: int
    item: int
    score: float
    grade: float
    tied: bool
    gain: float
    discount: float
    contribution: float
    dcg: float
    ideal_grade: float
    ideal_dcg: float
    precision: float | None
    reciprocal_rank: float | None


@dataclass(frozen=True)
class Explanation:
    """The positions of one ranking, and its metrics; prints as a table.

    Attributes:
        positions: from rank 1 on; tied items in the order of the input.
        values: DCG, ideal DCG, NDCG, average precision and reciprocal rank; where scores are tied, the mean over all orders of
            the tied items, as metrics have it by default, and not the sums of the positions shown.
        top_k: the cutoff.
        gain: the gain.
        min_relevance: the grade from which an item is relevant.
    """

    positions: tuple[Position, ...]
    values: dict[str, float]
    top_k: int | None
    gain: Gain
    min_relevance: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "positions": [position._asdict() for position in self.positions],
            "values": dict(self.values),
            "top_k": self.top_k,
            "gain": self.gain if isinstance(self.gain, str) else repr(self.gain),
            "min_relevance": self.min_relevance,
        }

    def __str__(self) -> str:
        header = ("rank", "item", "score", "grade", "gain", "discount", "adds", "DCG", "ideal", "precision", "RR")
        rows = [
            (
                f"{p.rank}{'=' if p.tied else ''}",
                str(p.item),
                f"{p.score:.4g}",
                f"{p.grade:g}",
                f"{p.gain:g}",
                f"{p.discount:.4f}",
                f"{p.contribution:.4f}",
                f"{p.dcg:.4f}",
                f"{p.ideal_dcg:.4f}",
                "" if p.precision is None else f"{p.precision:.4f}",
                "" if p.reciprocal_rank is None else f"{p.reciprocal_rank:.4f}",
            )
            for p in self.positions
        ]
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        cells = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in (header, *rows)]
        lines = ["  ".join(row).rstrip() for row in cells]
        if any(p.tied for p in self.positions):
            lines.append(
                "= has the score of a neighbour: its rank is one of several, and the values below are means over all."
            )
        lines.append("  ".join(f"{name} {value:.4f}" for name, value in self.values.items()))
        return "\n".join(lines)


def explain(
    preds: Tensor,
    target: Tensor,
    *,
    top_k: int | None = None,
    gain: Gain = "exp2",
    min_relevance: float = 1,
    mask: Tensor | None = None,
) -> Explanation:
    """How the ranking of one query earns its DCG, NDCG, average precision and reciprocal rank.

    Args:
        preds: scores of one query, ``[item]`` (or ``[1, item]`` with ``mask``).
        target: grades like ``preds``.
        top_k: the cutoff; positions beyond it are listed and earn nothing.
        gain: as for ``NDCG``.
        min_relevance: the grade from which an item is relevant.
        mask: bool like ``[1, item]`` ``preds``, False is padding.

    Raises:
        ValueError: more than one query, shapes that do not fit, a NaN score or grade, a bad option.

    Example:
        >>> import torch
        >>> print(explain(torch.tensor([0.9, 0.7, 0.3]), torch.tensor([1, 0, 2])))
        rank  item  score  grade  gain  discount    adds     DCG   ideal  precision      RR
           1     0    0.9      1     1    1.0000  1.0000  1.0000  3.0000     1.0000  1.0000
           2     1    0.7      0     0    0.6309  0.0000  1.0000  3.6309
           3     2    0.3      2     3    0.5000  1.5000  2.5000  3.6309     0.6667
        dcg 2.5000  ideal_dcg 3.6309  ndcg 0.6885  map 0.8333  mrr 1.0000
    """
    check_top_k(top_k)
    check_gain(gain)
    check_number("min_relevance", min_relevance, above=0)
    lists, scores, grades, _ = arrange(preds, target, mask=mask)
    if lists.num_queries != 1:
        raise ValueError(f"explain shows one query, got {lists.num_queries}: give one row.")
    check_scores(lists, scores)
    check_grades(lists, grades)
    items = lists.valid.expand(preds.shape).reshape(-1).nonzero()[:, 0].cpu()
    scores, grades = scores.reshape(-1).cpu()[items], grades.reshape(-1).cpu()[items].double().clamp(min=0)
    order = torch.sort(scores, descending=True, stable=True).indices
    scores, grades, items = scores[order], grades[order], items[order]

    ranks = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    within = ranks <= (len(scores) if top_k is None else top_k)
    discounts = discount(ranks) * within
    gains = gains_of(grades, gain)
    ideal = grades.sort(descending=True).values
    relevant = grades >= min_relevance
    found = relevant.cumsum(0)
    same = scores[1:] == scores[:-1]
    tied = torch.nn.functional.pad(same, (1, 0)) | torch.nn.functional.pad(same, (0, 1))
    dcg, ideal_dcg = (gains * discounts).cumsum(0), (gains_of(ideal, gain) * discounts).cumsum(0)
    positions = tuple(
        Position(
            rank=i + 1,
            item=int(items[i]),
            score=float(scores[i]),
            grade=float(grades[i]),
            tied=bool(tied[i]),
            gain=float(gains[i]),
            discount=float(discounts[i]),
            contribution=float(gains[i] * discounts[i]),
            dcg=float(dcg[i]),
            ideal_grade=float(ideal[i]),
            ideal_dcg=float(ideal_dcg[i]),
            precision=int(found[i]) / (i + 1) if relevant[i] and within[i] else None,
            reciprocal_rank=1 / (i + 1) if relevant[i] and found[i] == 1 and within[i] else None,
        )
        for i in range(len(scores))
    )
    values = {
        "dcg": functional.dcg(scores, grades, top_k, gain=gain).item(),
        "ideal_dcg": float(ideal_dcg[-1]) if len(scores) else 0.0,
        "ndcg": functional.ndcg(scores, grades, top_k, gain=gain).item(),
        "map": functional.average_precision(scores, grades, top_k, min_relevance=min_relevance).item(),
        "mrr": functional.reciprocal_rank(scores, grades, top_k, min_relevance=min_relevance).item(),
    }
    return Explanation(positions, values, top_k, gain, min_relevance)
