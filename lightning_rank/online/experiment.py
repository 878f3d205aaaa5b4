"""Experiments with users split into arms: assignment, sums by user, comparison with the control, lift by day."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lightning_rank.stats import (
    Moments,
    SampleRatio,
    adjust,
    cuped_from_moments,
    ratio_from_moments,
    sample_ratio,
    two_proportions,
    welch_from_moments,
)
from lightning_rank.stats.checks import check_choice, column, is_number, listed, number, same_length
from lightning_rank.stats.distributions import p_of
from lightning_rank.stats.results import Result, show, show_interval, show_lift, show_p

if TYPE_CHECKING:
    from lightning_rank.online.signals import Signals


def assign(unit: Any, experiment: str, weights: Mapping[Any, float] | Sequence[float]) -> Any:
    """The arm of a user in an experiment: the same for ever, whoever asks, and unrelated to that in other experiments.

    The first 8 bytes of SHA-256 of ``f"{experiment}\\x1f{unit}"`` (UTF-8), big-endian, divided by 2^64, fall into the share of an
    arm.

    Args:
        unit: id of the user; the number 7 and the text "7" are one user.
        experiment: name of the experiment, the salt.
        weights: planned weight by arm, or a sequence of weights; any sum. An arm of weight 0 gets nobody.

    Returns:
        The name of the arm; of a sequence the index.

    Raises:
        ValueError: no weight, or a negative one; no unit.

    Example:
        >>> assign("user-1", "ranker-v2", {"control": 0.5, "treatment": 0.5})
        'control'
    """
    arms: Sequence[Any] = list(weights) if isinstance(weights, Mapping) else range(len(weights))
    shares = [Fraction(w) for w in _weights(weights.values() if isinstance(weights, Mapping) else weights)]
    digest = hashlib.sha256(f"{experiment}\x1f{_unit(unit)}".encode()).digest()
    place = Fraction(int.from_bytes(digest[:8], "big"), 2**64) * sum(shares)
    reached = Fraction(0)
    for name, share in zip(arms, shares, strict=True):
        reached += share
        if reached > place:
            return name
    raise AssertionError("the shares sum to more than any place")


def _unit(unit: Any) -> str:
    if unit is None or (isinstance(unit, float) and math.isnan(unit)) or unit == "":
        raise ValueError(f"A unit must have an id, got {unit!r}.")
    return str(int(unit)) if isinstance(unit, float) and unit == int(unit) else str(unit)


def _weights(weights: Any) -> list[float]:
    checked = [number("weights", weight) for weight in weights]
    if any(weight < 0 for weight in checked) or not sum(checked):
        raise ValueError(f"`weights` must be at least 0, and one above it, got {checked}.")
    return checked


def same_shares(a: Mapping[Any, float], b: Mapping[Any, float]) -> bool:
    """Whether two mappings from arms to weights split the users alike, whatever the weights sum to."""
    total_a, total_b = sum(a.values()), sum(b.values())
    return a.keys() == b.keys() and all(math.isclose(a[arm] / total_a, b[arm] / total_b) for arm in a)


@dataclass(frozen=True)
class Comparison(Result):
    """An arm against the control, b - a.

    Attributes:
        arm: the arm b.
        metric: what was compared.
        value_a, value_b: of the control and of the arm.
        n_a, n_b: users.
        difference: b - a.
        se: its standard error.
        statistic, pvalue: of the test; of proportions z.
        adjusted: p corrected over all arms.
        low, high: interval of the difference.
        relative, relative_low, relative_high: the lift b / a - 1 and its interval.
        variance_reduction: by the covariate; NaN without one.
        alternative, alpha: of the test and the intervals.
    """

    arm: Any
    metric: str
    value_a: float
    value_b: float
    n_a: int
    n_b: int
    difference: float
    se: float
    statistic: float
    pvalue: float
    adjusted: float
    low: float
    high: float
    relative: float
    relative_low: float
    relative_high: float
    variance_reduction: float
    alternative: str
    alpha: float

    def __str__(self) -> str:
        adjusted = f", adjusted {self.adjusted:.3g}" if self.adjusted != self.pvalue else ""
        return (
            f"{self.metric}, {self.arm}: {show(self.value_a)} -> {show(self.value_b)}: {show(self.difference, True)} "
            f"{show_interval(self.low, self.high, self.alpha)}, "
            f"{show_lift(self.relative, self.relative_low, self.relative_high)}, {show_p(self.pvalue)}{adjusted}"
        )


class _Block(NamedTuple):
    """Rows of users with ids: texts, days or None, [row, column]."""

    unit: np.ndarray
    day: np.ndarray | None
    table: np.ndarray


class _Users(NamedTuple):
    """One row per user: ids, [user, column]."""

    unit: np.ndarray
    table: np.ndarray


class Experiment:
    """The sums by user of the arms of an experiment, and the tests of every arm against the control.

    The user is randomised, so the user is the unit of every test. ``a | b`` joins days, shards and processes.

    Args:
        arms: names of two or more arms with equal weights, or a mapping from names to planned weights. The first is the control.
        control: the control, where it is not the first.
        mixed: what to do with a user in two arms: ``"refuse"`` or ``"exclude"``; ``mixed_units()`` has their number.

    Raises:
        ValueError: fewer than two arms, a weight that is not positive.

    Example:
        >>> experiment = Experiment(["old", "new"])
        >>> experiment.update("old", clicks=[1, 0, 2, 1], impressions=[4, 3, 5, 4])
        >>> experiment.update("new", clicks=[2, 1, 2, 2], impressions=[4, 4, 5, 3])
        >>> print(experiment.evaluate("clicks", "impressions")["new"])
        clicks / impressions, new: 0.25 -> 0.4375: +0.1875 [-0.07785, +0.4528] at 95 %, lift +75 % [-30.3, +339], p = 0.135
    """

    def __init__(self, arms: Mapping[Any, float] | Sequence[Any], *, control: Any = None, mixed: str = "refuse") -> None:
        if isinstance(arms, str):
            raise ValueError(f"`arms` must be a sequence of names, got the text {arms!r}.")
        weights = arms if isinstance(arms, Mapping) else dict.fromkeys(arms, 1.0)
        if len(weights) < 2 or (not isinstance(arms, Mapping) and len(weights) < len(arms)):
            raise ValueError(f"`arms` must be two or more different names, got {list(arms)}.")
        self.weights = {name: number(f"weight of {name!r}", weight, above=0) for name, weight in weights.items()}
        if control is not None and control not in self.weights:
            raise ValueError(f"`control` must be one of {list(self.weights)}, got {control!r}.")
        check_choice("mixed", mixed, ("refuse", "exclude"))
        self.control = next(iter(self.weights)) if control is None else control
        self._mixed = mixed
        self._columns: tuple[str, ...] | None = None
        self._blocks: dict[Any, list[_Block]] = {name: [] for name in self.weights}
        # Of users without ids the moments are enough, with the range and whether all is 0 or 1.
        self._moments: dict[Any, list[Moments]] = {name: [] for name in self.weights}
        self._lowest: dict[str, float] = {}
        self._not_0_or_1: dict[str, float] = {}
        self._joined: tuple[set[str], dict[Any, _Users]] | None = None  # until the next update

    @property
    def arms(self) -> list[Any]:
        """Control first."""
        return [self.control, *(name for name in self.weights if name != self.control)]

    def update(self, arm: Any, unit: Any = None, *, day: Any = None, **columns: Any) -> None:
        """Adds users of an arm, an entry each.

        Args:
            arm: the arm they are in.
            unit: their ids. The numbers of a user add up over updates, days and shards. Without ids every entry is another user.
            day: the day of each entry as a whole number, or one for all; needs ``unit``. For ``lift_by_day``.
            columns: numbers by name, such as ``clicks=[...]``, or one number for one user; the same names in every update. What
                does not add up, such as a covariate from before the test, stands in one entry of its user and 0 in the others.

        Raises:
            ValueError: an unknown arm, lengths or names that differ, a value that is not finite.
        """
        self._joined = None
        if arm not in self.weights:
            raise ValueError(f"`arm` must be one of {list(self.weights)}, got {arm!r}.")
        if not columns:
            raise ValueError("`update` must be given at least one column, such as clicks=[...].")
        names = tuple(sorted(columns))
        if self._columns is not None and names != self._columns:
            raise ValueError(f"Every update must have the columns {listed(self._columns)}, got {listed(names)}.")
        vectors = {name: column(name, [v] if is_number(v) else v, least=0) for name, v in columns.items()}
        same_length(**vectors)
        table = np.stack([vectors[name] for name in names], axis=1)
        n = len(table)
        if unit is None:
            if day is not None:
                raise ValueError("`day` must come with `unit`, so that a user of two days stays one user.")
            self._moments[arm].append(Moments.of(*table.T))
            if n:
                for name, vector in vectors.items():
                    self._lowest[name] = min(self._lowest.get(name, math.inf), float(vector.min()))
                    others = vector[(vector != 0) & (vector != 1)]
                    if len(others):
                        self._not_0_or_1.setdefault(name, float(others[0]))
        else:
            ids = [unit] if isinstance(unit, (str, bytes)) or not hasattr(unit, "__len__") else unit
            texts = np.array([_unit(one) for one in ids], dtype=object)
            if len(texts) != n:
                raise ValueError(f"`unit` must have an id per entry, got {len(texts)} ids for {n} entries.")
            self._blocks[arm].append(_Block(texts, None if day is None else _days(day, n), table))
        self._columns = names

    def update_from(self, signals: Signals, *, mixed: str = "refuse") -> None:
        """Adds the users of a log: of each signal the columns ``<name>_sum`` and ``<name>_n``, whose ratio it is.

        With ``Signals(by_day=True)`` their days too, without signals whose days do not add up (``ctr_per_user``).

        Raises:
            ValueError: an arm of the experiment that the log lacks, or one in the log that is not in the experiment.
        """
        unknown = [arm for arm in signals.arms() if arm not in self.weights]
        if unknown:
            raise ValueError(f"The log must have the arms {list(self.weights)}, got {unknown[0]!r} too.")
        for arm in self.weights:
            columns = user_table(signals, arm, mixed=mixed)
            self.update(arm, unit=columns.pop("unit"), day=columns.pop("day", None), **columns)

    def __or__(self, other: Experiment) -> Experiment:
        if not isinstance(other, Experiment):
            return NotImplemented
        if not same_shares(self.weights, other.weights) or (self.control, self._mixed) != (other.control, other._mixed):
            raise ValueError("Experiments with the same arms, weights and control can be merged.")
        if self._columns and other._columns and self._columns != other._columns:
            raise ValueError(f"Both must have the same columns, got {listed(self._columns)} and {listed(other._columns)}.")
        made = Experiment(self.weights, control=self.control, mixed=self._mixed)
        made._columns = self._columns or other._columns
        for arm in made.weights:
            made._blocks[arm] = self._blocks[arm] + other._blocks[arm]
            made._moments[arm] = self._moments[arm] + other._moments[arm]
        made._lowest = {
            name: min(self._lowest.get(name, math.inf), other._lowest.get(name, math.inf))
            for name in {**self._lowest, **other._lowest}
        }
        made._not_0_or_1 = {**other._not_0_or_1, **self._not_0_or_1}
        return made

    def users(self) -> dict[Any, int]:
        """Users per arm."""
        ids = self._users()
        return {arm: len(ids[arm].unit) + sum(m.n for m in self._moments[arm]) for arm in self.arms}

    def mixed_units(self) -> int:
        """Units that are in two arms or more."""
        return len(self._join()[0])

    def sample_ratio(self, *, alpha: float = 0.001) -> SampleRatio:
        """Users per arm against the planned weights; look at it before anything else."""
        return sample_ratio(self.users(), self.weights, alpha=alpha)

    def evaluate(
        self,
        numerator: str,
        denominator: str | None = None,
        *,
        covariate: str | None = None,
        kind: str | None = None,
        alternative: str = "two-sided",
        alpha: float = 0.05,
        adjust: str = "holm",
    ) -> dict[Any, Comparison]:
        """Every arm against the control, by arm.

        Args:
            numerator: a column: its mean per user is compared (Welch).
            denominator: a column: the ratio of the sums is compared (delta method).
            covariate: a column from before the test, whose part is taken out (CUPED).
            kind: ``"proportion"``: the column is 0 or 1 per user (pooled z, Newcombe).
            alternative: ``"two-sided"``, ``"greater"`` or ``"less"``.
            alpha: 1 - the level of the intervals.
            adjust: the correction of p over the arms; see ``stats.adjust``.

        Raises:
            ValueError: an unknown column, an arm with fewer than two users, a unit in two arms, a proportion that is not 0 or 1 per
                user, a negative denominator.
        """
        options = {"alternative": alternative, "alpha": alpha}
        self._check(numerator, denominator, covariate, kind)
        found = self._users()
        results = {}
        names = [name for name in (numerator, denominator, covariate) if name is not None]
        arms = {arm: self._moments_of(arm, found[arm], names) for arm in self.arms}
        for arm in self.arms:
            if arms[arm].n < 2:
                raise ValueError(f"The arm {arm!r} must have at least 2 users, got {arms[arm].n}.")
        for arm in self.arms[1:]:
            results[arm] = _compare(arm, arms[self.control], arms[arm], denominator, covariate, kind, names, options)
        return _adjusted(results, adjust)

    def lift_by_day(
        self,
        numerator: str,
        denominator: str | None = None,
        *,
        arm: Any = None,
        since: str = "start",
        cumulative: bool = False,
        alpha: float = 0.05,
    ) -> list[Comparison]:
        """An arm against the control on each day, for ``novelty`` (``[c.difference for c in …]``) and curves.

        Args:
            numerator, denominator: as in ``evaluate``.
            arm: the arm; none: the first but the control.
            since: ``"start"``, by day; ``"exposure"``, by days since the user was first seen, which separates novelty from the
                calendar.
            cumulative: all days up to each.
            alpha: 1 - the level of the intervals.

        Raises:
            ValueError: users without day, a day on which an arm has fewer than two users.
        """
        check_choice("since", since, ("start", "exposure"))
        self._check(numerator, denominator, None, None)
        arm = self.arms[1] if arm is None else arm
        names = [name for name in (numerator, denominator) if name is not None]
        places = self._places(names)
        self._users()  # refuses units in several arms
        twice = self._join()[0]
        rows = {}
        for name in (self.control, arm):
            blocks = self._blocks[name]
            if any(block.day is None for block in blocks) or self._moments[name] or not blocks:
                raise ValueError("Every update must have `unit` and `day` to see lifts by day.")
            unit = np.concatenate([block.unit for block in blocks])
            day = np.concatenate([block.day for block in blocks if block.day is not None])
            table = np.concatenate([block.table for block in blocks])[:, places]
            if twice:
                kept = np.array([one not in twice for one in unit.tolist()], dtype=bool)
                unit, day, table = unit[kept], day[kept], table[kept]
            if since == "exposure":
                ids, inverse = _distinct(unit)
                first = np.full(len(ids), np.iinfo(np.int64).max)
                np.minimum.at(first, inverse, day)
                day = day - first[inverse]
            rows[name] = unit, day, table
        last = max(int(day.max()) for _, day, _ in rows.values())
        start = min(int(day.min()) for _, day, _ in rows.values())
        results = []
        for today in range(start, last + 1):
            moments = []
            for name in (self.control, arm):
                unit, day, table = rows[name]
                chosen = day <= today if cumulative else day == today
                users = _by_user(unit[chosen], table[chosen])
                if len(users.unit) < 2:
                    raise ValueError(f"The arm {name!r} must have 2 users on day {today}, got {len(users.unit)}.")
                moments.append(Moments.of(*users.table.T))
            options = {"alternative": "two-sided", "alpha": alpha}
            results.append(_compare(arm, moments[0], moments[1], denominator, None, None, names, options))
        return results

    def days(self) -> list[int]:
        """The days that were seen, sorted."""
        found = [block.day for blocks in self._blocks.values() for block in blocks if block.day is not None]
        return sorted({int(day) for days in found for day in np.unique(days)})

    def _places(self, names: Sequence[str]) -> list[int]:
        return [(self._columns or ()).index(name) for name in names]

    def _check(self, numerator: str, denominator: str | None, covariate: str | None, kind: str | None) -> None:
        for name in (numerator, denominator, covariate):
            if name is not None and name not in (self._columns or ()):
                raise ValueError(
                    f"A metric must be of columns that were given: there is no {name!r}, but {self._columns or ()}."
                )
        if kind is not None:
            check_choice("kind", kind, ("proportion",))
            if denominator is not None:
                raise ValueError(
                    f"kind='proportion' must have no denominator: a test that takes every one of {denominator!r} for "
                    "independent is wrong where users were split, and finds differences where there are none. "
                    f"evaluate({numerator!r}, {denominator!r}) takes the user as the unit (delta method)."
                )
        if covariate is not None and (denominator is not None or kind is not None):
            raise ValueError("`covariate` must come with a mean per user, without `denominator` and `kind`.")

    def _join(self) -> tuple[set[str], dict[Any, _Users]]:
        """Units that are in several arms, and the users of each arm without them."""
        if self._joined is None:
            width = len(self._columns or ())
            users = {arm: _Users(np.zeros(0, dtype=object), np.zeros((0, width))) for arm in self._blocks}
            for arm, blocks in self._blocks.items():
                if blocks:
                    users[arm] = _by_user(
                        np.concatenate([b.unit for b in blocks]), np.concatenate([b.table for b in blocks])
                    )
            arms_of = Counter(unit for found in users.values() for unit in found.unit.tolist())
            twice = {unit for unit, n in arms_of.items() if n > 1}
            for arm, found in users.items():
                kept = np.array([unit not in twice for unit in found.unit.tolist()], dtype=bool)
                users[arm] = _Users(found.unit[kept], found.table[kept])
            self._joined = twice, users
        return self._joined

    def _users(self) -> dict[Any, _Users]:
        twice, users = self._join()
        if twice and self._mixed == "refuse":
            raise ValueError(
                f"A unit must be in one arm, but {len(twice):,} are in several, such as {min(twice)!r}. Find out why; "
                "Experiment(…, mixed='exclude') leaves them out."
            )
        return users

    def _moments_of(self, arm: Any, users: _Users, names: Sequence[str]) -> _Numbers:
        places = self._places(names)
        table = users.table[:, places]
        total = Moments.of(*table.T)
        for part in self._moments[arm]:
            total = total | Moments(part.n, part.mean[places], part.scatter[np.ix_(places, places)])
        lowest, others = {}, {}
        for i, name in enumerate(names):
            values = table[:, i]
            lowest[name] = min(float(values.min(initial=math.inf)), self._lowest.get(name, math.inf))
            bad = values[(values != 0) & (values != 1)]
            if len(bad) or name in self._not_0_or_1:
                others[name] = float(bad[0]) if len(bad) else self._not_0_or_1[name]
        return _Numbers(total.n, total.mean, total.scatter, lowest, others)


def user_table(signals: Signals, arm: str, *, mixed: str = "refuse") -> dict[str, Any]:
    """``unit``, and of each signal ``<name>_sum`` and ``<name>_n``, for every user of an arm in a log.

    Of signals by day there is a row per user and day, ``day`` counts from 1970, and signals whose days do not add up are left out.
    """
    names = [name for name, signal in signals.signals.items() if signal.adds_up or not signals.by_day]
    columns: dict[str, list[Any]] = {"unit": [], "day": []}
    columns |= {f"{name}_{suffix}": [] for name in names for suffix in ("sum", "n")}
    for day, table in signals.tables(arm, mixed=mixed).items():
        users = list(dict.fromkeys(table["user"].to_list()))
        place = {user: i for i, user in enumerate(users)}
        columns["unit"] += users
        columns["day"] += [day] * len(users)
        for name in names:
            units = signals[name]._units(table)
            rows = [place[user] for user in units.unit]
            for suffix, values in (("sum", units.numerator), ("n", units.denominator)):
                column = np.zeros(len(users))
                column[rows] = values
                columns[f"{name}_{suffix}"].append(column)
    if not signals.by_day:
        del columns["day"]
    return {
        name: column if name in ("unit", "day") else np.concatenate([np.zeros(0), *column])
        for name, column in columns.items()
    }


@dataclass(frozen=True, eq=False)
class _Numbers(Moments):
    """Moments, with the lowest value of each column and one that is neither 0 nor 1."""

    lowest: Mapping[str, float]
    not_0_or_1: Mapping[str, float]


def _compare(
    arm: Any,
    a: Moments,
    b: Moments,
    denominator: str | None,
    covariate: str | None,
    kind: str | None,
    names: Sequence[str],
    options: Mapping[str, Any],
) -> Comparison:
    metric = f"{names[0]} / {denominator}" if denominator else f"{names[0]} given {covariate}" if covariate else names[0]
    reduction = math.nan
    found: Any
    if kind == "proportion":
        for moments in (a, b):
            if others := getattr(moments, "not_0_or_1", {}):
                raise ValueError(
                    f"kind='proportion' must have 0 or 1 per user, but a user has {others[names[0]]:g} {names[0]}. Say whether "
                    "the user did it at all, or compare means per user or a ratio."
                )
        successes = [round(m.n * float(m.mean[0])) for m in (a, b)]
        found = two_proportions(successes[0], a.n, successes[1], b.n, **options)
        se = math.sqrt(sum(p * (1 - p) / m.n for p, m in ((found.value_a, a), (found.value_b, b))))
    elif denominator is not None:
        for moments in (a, b):
            lowest = getattr(moments, "lowest", {}).get(denominator, 0)
            if lowest < 0:
                raise ValueError(f"The denominator {denominator!r} must be at least 0, got {lowest:g}.")
        found = ratio_from_moments(a, b, **options)
        se = found.se
    elif covariate is not None:
        found = cuped_from_moments(a, b, **options)
        se, reduction = found.se, found.variance_reduction
    else:
        variances = [float(m.covariance()[0, 0]) for m in (a, b)]
        found = welch_from_moments(float(a.mean[0]), variances[0], a.n, float(b.mean[0]), variances[1], b.n, **options)
        se = found.se
    return Comparison(
        arm, metric, found.value_a, found.value_b, a.n, b.n, found.difference, se, found.statistic, found.pvalue, found.pvalue,
        found.low, found.high, found.relative, found.relative_low, found.relative_high, reduction, found.alternative, found.alpha,
    )  # fmt: skip


def _adjusted(results: Mapping[Any, Comparison], method: str) -> dict[Any, Comparison]:
    corrected = adjust([result.pvalue for result in results.values()], method=method)
    return {
        key: Comparison(**{**vars(result), "adjusted": float(p)})
        for (key, result), p in zip(results.items(), corrected, strict=True)
    }


def _distinct(unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct ids, sorted, and the place of each."""
    ids = sorted(set(unit.tolist()))
    place = {one: i for i, one in enumerate(ids)}
    return np.array(ids, dtype=object), np.array([place[one] for one in unit.tolist()], dtype=np.int64)


def _by_user(unit: np.ndarray, table: np.ndarray) -> _Users:
    ids, inverse = _distinct(unit)
    sums = [np.bincount(inverse, weights=values, minlength=len(ids)) for values in table.T]
    return _Users(ids, np.stack(sums, axis=1) if len(ids) else np.zeros((0, table.shape[1])))


def _days(day: Any, n: int) -> np.ndarray:
    days = (
        np.broadcast_to(column("day", [day] if is_number(day) else day), n)
        if is_number(day)
        else column("day", day, least=0)
    )
    if len(days) != n:
        raise ValueError(f"`day` must have an entry per user, got {len(days)} for {n}.")
    if (days != np.floor(days)).any():
        raise ValueError("`day` must be whole numbers.")
    return days.astype(np.int64)


@dataclass(frozen=True)
class Novelty(Result):
    """How a lift changes from day to day.

    Attributes:
        slope: change of the lift per day, by least squares.
        pvalue: of no change.
        overall: mean of the lifts.
        first_week, last_week: means of the first and last seven.
        decaying: the lift is positive and falls, ``pvalue < alpha``.
        alpha: the level.
    """

    slope: float
    pvalue: float
    overall: float
    first_week: float
    last_week: float
    decaying: bool
    alpha: float

    def __str__(self) -> str:
        return (
            f"lift {show(self.overall, True)}, last week {show(self.last_week, True)}, {show(self.slope, True)} a day, "
            f"{show_p(self.pvalue)}{': it decays' if self.decaying else ''}"
        )


def novelty(lifts: Any, *, alpha: float = 0.05) -> Novelty:
    """Whether a lift fades: its slope over the days, and the last week against all.

    Args:
        lifts: one a day, in order; by days since the user's first exposure is better than by calendar day.
        alpha: level of the test of the slope.

    Raises:
        ValueError: fewer than three days, a lift that is not finite.

    Example:
        >>> print(novelty([0.012, 0.010, 0.009, 0.007, 0.006, 0.004, 0.003]))
        lift +0.007286, last week +0.007286, -0.0015 a day, p = 1.28e-06: it decays
    """
    y = column("lifts", lifts)
    alpha = number("alpha", alpha, above=0, below=1)
    n = len(y)
    if n < 3:
        raise ValueError(f"`lifts` must have at least three days, got {n}.")
    x = np.arange(1, n + 1) - (n + 1) / 2
    overall = float(y.mean())
    distance = y - y[0]
    distance = distance - distance.mean()
    spread = float(x @ x)
    slope = float(x @ distance) / spread
    rest = distance - slope * x
    left = float(rest @ rest)
    # What is left of a straight line, or of no change at all, is rounding.
    if left <= 1e-24 * max(float(distance @ distance), float(y @ y) * 1e-6):
        pvalue = 0.0 if slope and abs(slope) * n > 1e-12 * abs(overall) else 1.0
    else:
        pvalue = p_of(slope / math.sqrt(left / (n - 2) / spread), "two-sided", n - 2)
    first, last = float(y[:7].mean()), float(y[-7:].mean())
    return Novelty(slope, pvalue, overall, first, last, bool(slope < 0 and pvalue < alpha and overall > 0), alpha)
