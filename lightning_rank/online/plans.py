"""A plan made before the experiment, and an evaluation that holds itself to it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lightning_rank.online.experiment import Comparison, Experiment, Novelty, novelty, same_shares
from lightning_rank.stats import (
    AlwaysValid,
    SampleRatio,
    adjust,
    always_valid,
    duration,
    group_sequential_bounds,
    power_proportions,
)
from lightning_rank.stats.checks import check_alternative, check_choice, number, probability, whole
from lightning_rank.stats.corrections import METHODS
from lightning_rank.stats.distributions import critical, special
from lightning_rank.stats.results import Result, show

SEQUENTIAL = ("none", "always-valid", "pocock", "obrien-fleming")


@dataclass(frozen=True)
class Measure:
    """What is measured: columns of the experiment.

    Attributes:
        numerator: a column, compared by its mean per user.
        denominator: a column; the ratio of the sums is compared.
        covariate: a column from before the experiment (CUPED).
        kind: ``"proportion"``: the column is 0 or 1 per user.
        margin: of a guardrail, the harm that is accepted.
        lower_is_better: whether a rise is harm.
    """

    numerator: str
    denominator: str | None = None
    covariate: str | None = None
    kind: str | None = None
    margin: float | None = None
    lower_is_better: bool = False

    @property
    def metric(self) -> str:
        """What is compared, in words: ``"clicks / searches"``."""
        return f"{self.numerator} / {self.denominator}" if self.denominator else self.numerator


@dataclass(frozen=True)
class ExperimentPlan(Result):
    """What an experiment will test, with how many users, for how long, fixed beforehand.

    Attributes:
        arms: planned weight by arm, the control first.
        primary: what decides.
        guardrails, secondary: by name.
        effect: the absolute difference of the primary that is to be found.
        alpha, power, alternative: of the test of the primary.
        adjust: the correction over arms.
        sequential: ``"none"`` (one look, at the end), ``"always-valid"``, ``"pocock"`` or ``"obrien-fleming"``.
        looks: planned looks of the latter two.
        tau: of the always-valid test.
        n_smallest: users of the smallest arm at the end, rounded up as in each arm; ``n_total``: of all.
        days: whole weeks; None where nobody said how many users come a day.
    """

    arms: Mapping[str, float]
    primary: Measure
    guardrails: Mapping[str, Measure]
    secondary: Mapping[str, Measure]
    effect: float
    alpha: float
    power: float
    alternative: str
    adjust: str
    sequential: str
    looks: int
    tau: float | None
    n_smallest: int
    n_total: int
    days: int | None

    def __str__(self) -> str:
        time = "" if self.days is None else f", {self.days} days"
        looks = "" if self.sequential == "none" else f", {self.sequential}"
        return (
            f"{self.n_total:,} users ({self.n_smallest:,} in the smallest of {len(self.arms)} arms){time}, to find "
            f"{show(self.effect, True)} (absolute) in {self.primary.metric} with power {show(self.power)} at "
            f"{show(self.alpha)}{looks}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python values, ready for JSON."""
        return asdict(self)

    def save(self, path: str | Path) -> None:
        """Writes JSON, to be kept with the experiment."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> ExperimentPlan:
        """A plan that was saved.

        Raises:
            ValueError: the file holds something else.
        """
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
            values["primary"] = Measure(**values["primary"])
            for name in ("guardrails", "secondary"):
                values[name] = {key: Measure(**measure) for key, measure in values[name].items()}
            return cls(**values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} must hold a plan that `save` wrote: {error!r}.") from error


def plan(
    arms: Mapping[str, float] | Sequence[str],
    primary: str | Mapping[str, Any] | Measure,
    *,
    effect: float,
    baseline: float | None = None,
    sd: float | None = None,
    guardrails: Mapping[str, Any] | None = None,
    secondary: Mapping[str, Any] | None = None,
    alpha: float = 0.05,
    power: float = 0.8,
    alternative: str = "two-sided",
    adjust: str = "holm",
    sequential: str = "none",
    looks: int = 1,
    tau: float | None = None,
    eligible_per_day: float | None = None,
) -> ExperimentPlan:
    """How many users and days an experiment needs.

    With several treatments the level is divided by their number, which is enough for every correction. A sequential test needs
    more users than one look; what is added is enough, and a little too much for ``"pocock"``.

    Args:
        arms: two or more names (equal weights) or a mapping to weights, the control first.
        primary: a column, or a ``Measure`` (or a mapping of its fields). It decides.
        effect: the absolute difference that is to be found; negative where a fall is.
        baseline: rate of the control, for ``kind="proportion"``.
        sd: standard deviation per user otherwise; for a ratio that of (y - R·x) / mean of x, with a covariate after it is taken
            out.
        guardrails: by name a ``Measure`` or its fields, each with a margin.
        secondary: the same, without a margin; they are one family and corrected together.
        alpha, power, alternative: of the test of the primary.
        adjust: the correction over arms.
        sequential: ``"none"``, ``"always-valid"`` (look whenever you like), ``"pocock"`` or ``"obrien-fleming"`` (at ``looks``
            equal steps).
        looks: planned looks.
        tau: scale of the always-valid test; none: the effect.
        eligible_per_day: new users a day.

    Raises:
        ValueError: an option out of range, a guardrail without a margin, neither baseline nor sd.

    Example:
        >>> clicked = Measure("clicked", kind="proportion")
        >>> print(plan(["old", "new"], clicked, baseline=0.05, effect=0.01, eligible_per_day=1500))
        16,316 users (8,158 in the smallest of 2 arms), 14 days, to find +0.01 (absolute) in clicked with power 0.8 at 0.05
    """
    weights = Experiment(arms).weights
    primary = _measure("primary", primary)
    rails = {name: _measure(f"guardrail {name}", measure) for name, measure in (guardrails or {}).items()}
    for name, rail in rails.items():
        if rail.margin is None:
            raise ValueError(f"The guardrail {name!r} must have a margin: the largest harm that would be accepted.")
        number(f"margin of {name}", rail.margin, above=0)
    others = {name: _measure(f"secondary {name}", measure) for name, measure in (secondary or {}).items()}
    alpha, power = probability("alpha", alpha), probability("power", power)
    check_alternative(alternative)
    check_choice("adjust", adjust, METHODS)
    check_choice("sequential", sequential, SEQUENTIAL)
    looks = whole("looks", looks, least=1)
    if sequential in ("pocock", "obrien-fleming") and (looks < 2 or alternative != "two-sided"):
        raise ValueError(
            f"sequential={sequential!r} must have two looks or more and a two-sided test, got {looks} look(s)."
        )
    effect = number("effect", effect)
    if not effect or (alternative == "greater" and effect < 0) or (alternative == "less" and effect > 0):
        raise ValueError(
            f"`effect` must be in the direction of the alternative {alternative!r}, and not 0, got {effect:g}."
        )
    level = alpha / (len(weights) - 1)
    tau = abs(effect) if tau is None else number("tau", tau, above=0)
    if primary.kind == "proportion":
        if baseline is None:
            raise ValueError("`baseline`, the rate of the control, must be given for a proportion.")
        rates = probability("baseline", baseline), probability("baseline + effect", baseline + effect)
        spread = [rate * (1 - rate) for rate in rates]
    else:
        rates = None
        if sd is None:
            raise ValueError("`sd`, the standard deviation per user, must be given for a mean or a ratio.")
        spread = [number("sd", sd, above=0) ** 2] * 2
    names = list(weights)
    total_weight = sum(weights.values())
    shares = [weights[name] / total_weight for name in names]

    def enough(total: int) -> bool:
        # The control against the smallest treatment, which has the least power.
        n_a, n_b = total * shares[0], total * min(shares[1:])
        if n_a < 2 or n_b < 2:
            return False
        if sequential == "none" and rates is not None:
            return (
                power_proportions(*rates, math.floor(n_a), math.floor(n_b), alpha=level, alternative=alternative) >= power
            )
        variance = spread[0] / n_a + spread[1] / n_b
        error, reach = math.sqrt(variance), float(special().ndtri(power))
        if sequential == "always-valid":
            bound = always_valid(0.0, variance, tau=tau, alpha=level).high
        elif sequential == "none":
            bound = critical(level, alternative) * error
        else:
            bound = float(group_sequential_bounds(looks, level, sequential).z[-1]) * error
        return bool(abs(effect) >= bound + reach * error)

    high = 4
    while not enough(high):
        high *= 2
        if high > 2**50:
            raise ValueError(f"No number of users finds the effect {effect:g}.")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    # An arm has whole users; what is above a whole number by rounding only is that number.
    users = [math.ceil(high * share * (1 - 1e-12)) for share in shares]
    n_total = sum(users)
    days = None if eligible_per_day is None else duration(n_total, eligible_per_day).days
    return ExperimentPlan(
        weights, primary, rails, others, effect, alpha, power, alternative, adjust, sequential, looks,
        tau if sequential == "always-valid" else None, min(users), n_total, days,
    )  # fmt: skip


def read_yaml(path: str | Path) -> dict[str, Any]:
    """A mapping from a YAML (or JSON) file, in which 1e-3 is a number; YAML itself takes it for a text.

    Raises:
        ValueError: the file is no YAML, or holds something else than a mapping.
    """
    import yaml

    def with_numbers(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: with_numbers(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [with_numbers(entry) for entry in value]
        return float(value) if isinstance(value, str) and re.fullmatch(r"[-+]?\d+e[-+]?\d+", value.lower()) else value

    try:
        loaded = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} must be YAML: {error}") from error
    if not isinstance(loaded, Mapping):
        raise ValueError(f"{path} must hold a mapping of options, got {type(loaded).__name__}.")
    return with_numbers(loaded)


def plan_from_file(path: str | Path) -> ExperimentPlan:
    """A plan from a YAML file with the arguments of ``plan``.

    Raises:
        ValueError: an unknown argument; see ``plan``.
    """
    options = read_yaml(path)
    known = [name for name in plan.__annotations__ if name != "return"]
    for name in options:
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            raise ValueError(f"A plan must have known arguments, got {name!r}. Known: {', '.join(near or known)}.")
    missing = [name for name in ("arms", "primary", "effect") if name not in options]
    if missing:
        raise ValueError(f"A plan must have {missing[0]!r}.")
    return plan(**options)


@dataclass(frozen=True)
class ExperimentReport(Result):
    """An experiment held to its plan.

    Attributes:
        plan: the plan.
        sample_ratio: users per arm against the planned weights. It comes first: a mismatch makes all else meaningless.
        users: per arm.
        mixed_users: users in two arms, who are left out.
        days: how long it ran; None: nobody said.
        deviations: in what it is not what was planned.
        primary: by treatment, with p corrected over them.
        sequential: by treatment, what is safe under peeking; empty by a plan of one look.
        guardrails: by treatment and name.
        secondary: by treatment and name, with p corrected over all of them together.
        novelty: by treatment, of the lift on each day (in the direction that is good); empty where a day lacks users, or users lack
            their day.
        novelty_by_exposure: the same by days since a user was first seen, which tells it from the calendar.
    """

    plan: ExperimentPlan
    sample_ratio: SampleRatio
    users: Mapping[str, int]
    mixed_users: int
    days: float | None
    deviations: tuple[str, ...]
    primary: Mapping[str, Comparison]
    sequential: Mapping[str, AlwaysValid]
    guardrails: Mapping[str, Mapping[str, Comparison]]
    secondary: Mapping[str, Mapping[str, Comparison]]
    novelty: Mapping[str, Novelty]
    novelty_by_exposure: Mapping[str, Novelty]

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the numbers cannot be taken at their word; empty: they can."""
        found = [str(self.sample_ratio)] if self.sample_ratio.mismatch else []
        if self.days is None:
            found.append("it is not known how many days the experiment ran")
        elif self.days < 7:
            found.append(f"{self.days:g} days are less than a week")
        elif self.days % 7:
            found.append(f"{self.days:g} days are not whole weeks: weekends count too much or too little")
        return (*found, *self.deviations)

    @property
    def valid(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    def evidence(self, arm: str) -> dict[str, Any]:
        """What ``Gate.decide`` takes of the experiment for one treatment.

        p is the corrected, or the sequential one; novelty the one by exposure where that decays, else that by day.
        """
        found = self.primary[arm]
        low, high, pvalue = found.low, found.high, found.adjusted
        if arm in self.sequential:
            low, high, pvalue = (getattr(self.sequential[arm], name) for name in ("low", "high", "pvalue"))
        difference = found.difference
        fading = self.novelty_by_exposure.get(arm)
        if self.plan.primary.lower_is_better:
            # The gate asks for more; of what should fall, less is more.
            low, high, difference = -high, -low, -difference
        return {
            "online": SimpleNamespace(difference=difference, low=low, high=high, pvalue=pvalue),
            "guardrails": self.guardrails[arm],
            "sample_ratio": self.sample_ratio,
            "days": self.days,
            "n": min(self.users.values()),
            "novelty": fading if fading is not None and fading.decaying else self.novelty.get(arm),
            "deviations": self.deviations,
        }

    def gate_options(self) -> dict[str, Any]:
        """What the plan says of the rules of a ``Gate``: margins, which way is harm, level and planned users."""
        rails = self.plan.guardrails
        return {
            "margins": {name: rail.margin for name, rail in rails.items()},
            "lower_is_better": [name for name, rail in rails.items() if rail.lower_is_better],
            "alpha": self.plan.alpha,
            "planned_n": self.plan.n_smallest if self.plan.sequential == "none" else None,
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python values, and by treatment what the gate takes (``evidence``, and ``gate_options``)."""
        plain: dict[str, Any] = {
            "plan": self.plan.to_dict(),
            "sample_ratio": self.sample_ratio.to_dict(),
            "users": dict(self.users),
            "mixed_users": self.mixed_users,
            "days": self.days,
            "deviations": list(self.deviations),
            "problems": list(self.problems),
        }
        for name in ("primary", "sequential", "novelty", "novelty_by_exposure"):
            plain[name] = {arm: result.to_dict() for arm, result in getattr(self, name).items()}
        for name in ("guardrails", "secondary"):
            plain[name] = {
                arm: {key: result.to_dict() for key, result in results.items()}
                for arm, results in getattr(self, name).items()
            }
        plain["evidence"] = {arm: plain_evidence(self.evidence(arm)) for arm in self.primary}
        plain["gate_options"] = self.gate_options()
        return plain

    def __str__(self) -> str:
        lines = [str(self.sample_ratio), f"users: {', '.join(f'{arm} {n:,}' for arm, n in self.users.items())}"]
        if self.mixed_users:
            lines.append(f"{self.mixed_users:,} users were in two arms and are left out")
        lines += [f"PROBLEM: {problem}" for problem in self.problems]
        for arm, result in self.primary.items():
            lines.append(str(result))
            if arm in self.sequential:
                lines.append(f"  under peeking: {self.sequential[arm]}")
            if arm in self.novelty:
                lines.append(f"  novelty: {self.novelty[arm]}")
            if arm in self.novelty_by_exposure:
                lines.append(f"  novelty by days since the first exposure: {self.novelty_by_exposure[arm]}")
            for name, rail in self.guardrails[arm].items():
                lines.append(f"  guardrail {name} (margin {show(self.plan.guardrails[name].margin or 0)}): {rail}")
            lines += [f"  {name}: {other}" for name, other in self.secondary[arm].items()]
        return "\n".join(lines)


def evaluate_plan(
    plan: ExperimentPlan, experiment: Experiment, *, days: float | None = None, look: int | None = None
) -> ExperimentReport:
    """The experiment by its plan: the sample ratio first, then whether it is over, then the primary, guardrails and the rest.

    Args:
        plan: what was fixed beforehand.
        experiment: the sums by user.
        days: how long it ran; none: from the days of the users, where they were given.
        look: which of the planned looks this is, for ``"pocock"`` and ``"obrien-fleming"``.

    Raises:
        ValueError: other arms than planned, a metric that the data lack, an arm with fewer than two users.
    """
    if not same_shares(experiment.weights, plan.arms) or experiment.arms[0] != next(iter(plan.arms)):
        raise ValueError(f"The experiment must have the planned arms {dict(plan.arms)}, got {experiment.weights}.")
    seen = experiment.days()
    if days is None and seen:
        days = seen[-1] - seen[0] + 1
    ratio = experiment.sample_ratio()
    users = experiment.users()
    deviations = []
    if len(seen) and len(seen) < seen[-1] - seen[0] + 1:
        deviations.append(f"only {len(seen)} of {seen[-1] - seen[0] + 1} days have users")
    if plan.sequential == "none":
        if plan.days is not None and days is not None and days < plan.days:
            deviations.append(f"{days:g} of the planned {plan.days} days: a look before the end needs a sequential plan")
        if min(users.values()) < plan.n_smallest:
            deviations.append(f"{min(users.values()):,} users in the smallest arm, {plan.n_smallest:,} are planned")

    options = {"alternative": plan.alternative, "alpha": plan.alpha, "adjust": plan.adjust}
    primary = _evaluated(experiment, plan.primary, options)
    guardrails: dict[str, dict[str, Comparison]] = {arm: {} for arm in primary}
    secondary: dict[str, dict[str, Comparison]] = {arm: {} for arm in primary}
    two_sided = {"alternative": "two-sided", "alpha": plan.alpha, "adjust": plan.adjust}
    for kept, measures in ((guardrails, plan.guardrails), (secondary, plan.secondary)):
        for name, measure in measures.items():
            for arm, result in _evaluated(experiment, measure, two_sided).items():
                kept[arm][name] = result
    sequential = {}
    if plan.sequential != "none":
        sequential = {arm: _under_peeking(plan, result, look, len(primary)) for arm, result in primary.items()}
    fading: dict[str, dict[str, Novelty]] = {"start": {}, "exposure": {}}
    sign = -1 if plan.primary.lower_is_better else 1
    if len(seen) >= 3 and plan.primary.covariate is None:
        for since, found in fading.items():
            for arm in primary:
                with suppress(ValueError):  # a day on which an arm has fewer than two users
                    daily = experiment.lift_by_day(plan.primary.numerator, plan.primary.denominator, arm=arm, since=since)
                    found[arm] = novelty([sign * one.difference for one in daily], alpha=plan.alpha)
    return ExperimentReport(
        plan,
        ratio,
        users,
        experiment.mixed_units(),
        days,
        tuple(deviations),
        primary,
        sequential,
        guardrails,
        _as_family(secondary, plan.adjust),
        fading["start"],
        fading["exposure"],
    )


def evaluate_files(
    plan_path: str | Path,
    *data: str | Path,
    days: float | None = None,
    look: int | None = None,
    mixed: str = "refuse",
    columns: Mapping[str, str] | None = None,
) -> ExperimentReport:
    """``evaluate_plan`` of a saved plan (JSON) and of files (CSV or Parquet) with a row per user, or per user and day.

    Columns: ``arm``, ``unit`` (or ``user``), ``day`` (a whole number or a date) where there is one, and those of the plan. The
    rows of a user add up, also those of a covariate: have it in one of them and 0 in the others.

    Args:
        plan_path: the plan; ``data``: the files.
        days, look: see ``evaluate_plan``.
        mixed: users in two arms are an error (``"refuse"``) or left out (``"exclude"``).
        columns: what ``arm``, ``unit`` and ``day`` are called in the files, where it is something else.

    Raises:
        ValueError: a column that is missing; see ``evaluate_plan``.
    """
    from lightning_rank.online.events import load_polars

    pl = load_polars()
    plan = ExperimentPlan.load(plan_path)
    measures = [plan.primary, *plan.guardrails.values(), *plan.secondary.values()]
    fields = [name for m in measures for name in (m.numerator, m.denominator, m.covariate) if name is not None]
    fields = list(dict.fromkeys(fields))
    called = dict(columns or {})
    for role in called:
        check_choice("columns", role, ("arm", "unit", "day"))
    arms, days_of = called.get("arm", "arm"), called.get("day", "day")
    experiment = Experiment(plan.arms, mixed=mixed)
    for path in data:
        try:
            rows = pl.read_parquet(path) if Path(path).suffix == ".parquet" else pl.read_csv(path, try_parse_dates=True)
        except pl.exceptions.PolarsError as error:
            raise ValueError(f"{path} must be CSV or Parquet: {error}.") from error
        unit = called.get("unit") or next((name for name in ("unit", "user") if name in rows.columns), "unit")
        asked = (arms, unit, *([days_of] if "day" in called else []), *fields)
        if missing := [name for name in asked if name not in rows.columns]:
            hint = (
                " Say which one it is by `columns`, --arm-column or --unit-column." if missing[0] in ("arm", "unit") else ""
            )
            raise ValueError(f"{path} must have the column {missing[0]!r}, got {', '.join(rows.columns)}.{hint}")
        if days_of in rows.columns and rows[days_of].dtype.is_temporal():
            rows = rows.with_columns(pl.col(days_of).cast(pl.Date).to_physical().cast(pl.Int64))
        for (arm,), part in rows.partition_by(arms, as_dict=True).items():
            day = part[days_of].to_numpy() if days_of in part.columns else None
            experiment.update(arm, part[unit].to_list(), day=day, **{name: part[name].to_numpy() for name in fields})
    return evaluate_plan(plan, experiment, days=days, look=look)


def plain_evidence(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Evidence as plain Python values."""

    def plain(value: Any) -> Any:
        if isinstance(value, Result):
            return value.to_dict()
        if isinstance(value, Mapping):
            return {key: plain(entry) for key, entry in value.items()}
        return vars(value) if isinstance(value, SimpleNamespace) else value

    return {name: plain(value) for name, value in evidence.items()}


def _measure(name: str, measure: Any) -> Measure:
    if isinstance(measure, Measure):
        return measure
    if isinstance(measure, str):
        return Measure(measure)
    if not isinstance(measure, Mapping) or "numerator" not in measure:
        raise ValueError(f"`{name}` must be a column or a mapping with 'numerator', got {measure!r}.")
    if unknown := [key for key in measure if key not in Measure.__annotations__]:
        raise ValueError(f"`{name}` must have the fields {', '.join(Measure.__annotations__)}, got {unknown[0]!r}.")
    return Measure(**measure)


def _evaluated(experiment: Experiment, measure: Measure, options: Mapping[str, Any]) -> dict[str, Comparison]:
    return experiment.evaluate(
        measure.numerator, measure.denominator, covariate=measure.covariate, kind=measure.kind, **options
    )


def _under_peeking(plan: ExperimentPlan, result: Comparison, look: int | None, arms: int) -> AlwaysValid:
    level = plan.alpha / arms
    if result.se == 0:
        # Nobody differs, so that no number of looks can mislead.
        p = 1.0 if result.difference == 0 else 0.0
        return AlwaysValid(math.nan, p, result.difference, result.difference, plan.tau or math.nan, plan.alpha)
    if plan.sequential == "always-valid":
        assert plan.tau is not None
        found = always_valid(result.difference, result.se**2, tau=plan.tau, alpha=level)
        return AlwaysValid(
            found.likelihood_ratio, min(1.0, found.pvalue * arms), found.low, found.high, found.tau, plan.alpha
        )
    if look is None or not 1 <= whole("look", look) <= plan.looks:
        raise ValueError(f"`look` must be one of the planned looks 1 to {plan.looks}, got {look!r}.")
    bounds = group_sequential_bounds(plan.looks, level, plan.sequential)
    z, nominal = float(bounds.z[look - 1]), float(bounds.nominal[look - 1])
    # p on the scale of the whole test: below alpha where |z| is above the bound of this look.
    pvalue = min(1.0, result.pvalue * plan.alpha / nominal)
    reach = z * result.se
    return AlwaysValid(math.nan, pvalue, result.difference - reach, result.difference + reach, math.nan, plan.alpha)


def _as_family(results: Mapping[str, Mapping[str, Comparison]], method: str) -> dict[str, dict[str, Comparison]]:
    """With p corrected over all arms and metrics together."""
    flat = [(arm, name, result) for arm, named in results.items() for name, result in named.items()]
    family: dict[str, dict[str, Comparison]] = {arm: {} for arm in results}
    if flat:
        corrected = adjust([result.pvalue for _, _, result in flat], method=method)
        for (arm, name, result), p in zip(flat, corrected, strict=True):
            family[arm][name] = Comparison(**{**vars(result), "adjusted": float(p)})
    return family
