"""Two rankers in one list: team-draft interleaving, who gets the clicks, and the test of the outcome."""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lightning_rank.stats.checks import whole
from lightning_rank.stats.proportions import wilson
from lightning_rank.stats.results import Result, show, show_p


class Interleaved(NamedTuple):
    """A list of two rankers.

    Attributes:
        documents: the list.
        teams: ``"a"`` or ``"b"`` per document: who picked it.
    """

    documents: list[Any]
    teams: list[str]


@dataclass(frozen=True)
class InterleavingOutcome(Result):
    """Which ranker won more impressions.

    Attributes:
        delta: (wins of b + half the ties) / all - 1/2; above 0: b is better.
        pvalue: exact binomial test on the impressions that were decided.
        wins_a, wins_b, ties: impressions.
        low, high: Wilson's interval of the share of b among the decided impressions; NaN without one.
    """

    delta: float
    pvalue: float
    wins_a: int
    wins_b: int
    ties: int
    low: float
    high: float

    def __str__(self) -> str:
        return f"delta {show(self.delta, True)}, {self.wins_a:,} : {self.wins_b:,} and {self.ties:,} ties, {show_p(self.pvalue)}"


def team_draft(
    a: Sequence[Hashable], b: Sequence[Hashable], *, length: int | None = None, seed: int | random.Random = 0
) -> Interleaved:
    """One list of two rankings: the ranker with fewer picks so far, a fair coin when equal, picks its best document not yet taken.

    Args:
        a: the ranking of the control, best first; ``b``: of the treatment.
        length: documents of the list; none: all.
        seed: of the coins; for several lists a ``random.Random``. Take a new seed for each impression.

    Raises:
        ValueError: a document twice in a ranking, a negative length.

    Source: Radlinski, Kurup and Joachims, "How Does Clickthrough Data Reflect Retrieval Quality?", CIKM 2008.

    Example:
        >>> team_draft(["x", "y", "z"], ["y", "w", "x"], length=3, seed=1)
        Interleaved(documents=['y', 'x', 'z'], teams=['b', 'a', 'a'])
    """
    rankings = {"a": list(a), "b": list(b)}
    for name, ranking in rankings.items():
        seen: set[Hashable] = set()
        for document in ranking:
            if document in seen:
                raise ValueError(f"A document must be once in the ranking {name}, got {document!r} twice.")
            seen.add(document)
    most = len(set(rankings["a"]) | set(rankings["b"]))
    length = most if length is None else min(whole("length", length), most)
    coin = seed if isinstance(seed, random.Random) else random.Random(seed)
    documents: list[Any] = []
    teams: list[str] = []
    taken: set[Hashable] = set()
    place = {"a": 0, "b": 0}
    picks = {"a": 0, "b": 0}
    while len(documents) < length:
        for name, ranking in rankings.items():
            while place[name] < len(ranking) and ranking[place[name]] in taken:
                place[name] += 1
        left = [name for name in rankings if place[name] < len(rankings[name])]
        if len(left) == 2:
            team = min(picks, key=picks.__getitem__) if picks["a"] != picks["b"] else "ab"[coin.random() < 0.5]
        else:
            team = left[0]
        document = rankings[team][place[team]]
        taken.add(document)
        documents.append(document)
        teams.append(team)
        picks[team] += 1
    return Interleaved(documents, teams)


def credit(interleaved: Interleaved, clicked: Iterable[Hashable]) -> str:
    """Who wins an impression, ``"a"``, ``"b"`` or ``"tie"``: each clicked document, once, credits the team that picked it.

    Raises:
        ValueError: a clicked document that is not in the list.
    """
    team_of = dict(zip(interleaved.documents, interleaved.teams, strict=True))
    credits = {"a": 0, "b": 0}
    for document in dict.fromkeys(clicked):
        if document not in team_of:
            raise ValueError(f"A clicked document must be in the list, got {document!r}.")
        credits[team_of[document]] += 1
    return "tie" if credits["a"] == credits["b"] else max(credits, key=credits.__getitem__)


def interleaving_outcome(wins_a: int, wins_b: int, ties: int = 0, *, alpha: float = 0.05) -> InterleavingOutcome:
    """Which ranker is better, from the impressions that each won.

    Args:
        wins_a, wins_b: impressions that a and b won. One per user, where users have several: impressions of a user are not
            independent.
        ties: undecided ones: half of each in delta, not in the test.
        alpha: 1 - the level of the interval.

    Raises:
        ValueError: a negative number, no impression at all.

    Example:
        >>> print(interleaving_outcome(100, 130, 270))
        delta +0.03, 100 : 130 and 270 ties, p = 0.0556
    """
    wins_a, wins_b, ties = whole("wins_a", wins_a), whole("wins_b", wins_b), whole("ties", ties)
    everything, decided = wins_a + wins_b + ties, wins_a + wins_b
    if not everything:
        raise ValueError("There must be an impression, got 0 wins and 0 ties.")
    delta = (wins_b - wins_a) / (2 * everything)
    low = high = math.nan
    if decided:
        share = wilson(wins_b, decided, alpha=alpha)
        low, high = share.low, share.high
    return InterleavingOutcome(delta, _sign_test(min(wins_a, wins_b), decided), wins_a, wins_b, ties, low, high)


def _sign_test(fewer: int, decided: int) -> float:
    """Twice the tail of a fair coin, at most 1."""
    if not decided:
        return 1.0
    from lightning_rank.stats.distributions import special

    return min(1.0, 2 * float(special().bdtr(fewer, decided, 0.5)))
