"""The release gate: evidence from offline evaluation, experiment and guardrails in; ship, hold, reject or invalid out.

What cannot be told never ships. The rules are in ``Gate``; every rule that was looked at is in the decision, with its numbers.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lightning_rank.online.plans import read_yaml
from lightning_rank.stats.checks import number, probability, whole
from lightning_rank.stats.results import Result, jsonable, show, show_p

EXIT_CODES = {"ship": 0, "pass": 0, "hold": 10, "reject": 11, "invalid": 12}
"""By outcome; far from the 1 and 2 of a crash and a usage error, which must not look like a verdict."""

_SEVERITY = ("invalid", "reject", "hold", "pass")
_SAME = 1e-12
_EVIDENCE = ("offline", "online", "guardrails", "sample_ratio", "days", "n", "novelty", "deviations")


@dataclass(frozen=True)
class Check:
    """One rule of the gate, applied.

    Attributes:
        name: what was looked at, such as ``"offline"`` or ``"guardrail latency"``.
        verdict: ``"pass"``, ``"hold"``, ``"reject"`` or ``"invalid"``.
        reason: why, with the numbers.
        numbers: the numbers by name.
    """

    name: str
    verdict: str
    reason: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.verdict:7} {self.name}: {self.reason}"


@dataclass(frozen=True)
class GateDecision(Result):
    """What a gate decided.

    Attributes:
        outcome: ``"ship"``, ``"hold"``, ``"reject"`` or ``"invalid"``; of ``Gate.screen`` ``"pass"``, ``"hold"`` or ``"reject"``.
        reasons: the reasons of the checks that decided; those of all checks where all passed.
        checks: every check.
        options: the options of the gate.
    """

    outcome: str
    reasons: tuple[str, ...]
    checks: tuple[Check, ...]
    options: Mapping[str, Any]

    @property
    def exit_code(self) -> int:
        """0 ship (or pass), 10 hold, 11 reject, 12 invalid."""
        return EXIT_CODES[self.outcome]

    def __str__(self) -> str:
        return "\n".join([self.outcome.upper(), *(f"  {check}" for check in self.checks)])

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python values, ready for JSON but for NaN and infinite numbers, which ``to_json`` writes as text."""
        checks = [
            {"name": check.name, "verdict": check.verdict, "reason": check.reason, "numbers": dict(check.numbers)}
            for check in self.checks
        ]
        return {
            "outcome": self.outcome,
            "exit_code": self.exit_code,
            "reasons": list(self.reasons),
            "checks": checks,
            "options": dict(self.options),
        }

    def to_json(self) -> str:
        """JSON; a number that JSON does not know is the text ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``."""
        return json.dumps(jsonable(self.to_dict()), indent=2, allow_nan=False)

    def to_markdown(self) -> str:
        """A heading and a table with a row per check, for a comment on a pull request."""
        rows = [f"| {check.name} | {check.verdict} | {check.reason} |".replace("\n", " ") for check in self.checks]
        options = ", ".join(f"{name} {value}" for name, value in self.options.items())
        lines = [f"## Release gate: {self.outcome}", "", "| check | verdict | why |", "| --- | --- | --- |", *rows]
        return "\n".join([*lines, "", f"Rules: {options}", ""])

    def to_html(self) -> str:
        """A page of its own, without anything from elsewhere."""
        colour = {"pass": "#1a7f37", "ship": "#1a7f37", "hold": "#9a6700", "reject": "#cf222e", "invalid": "#6e7781"}
        rows = "".join(
            f"<tr><td>{html.escape(check.name)}</td>"
            f'<td style="color:{colour[check.verdict]}"><b>{check.verdict}</b></td><td>{html.escape(check.reason)}</td></tr>'
            for check in self.checks
        )
        options = "".join(f"<li>{html.escape(f'{name}: {value}')}</li>" for name, value in self.options.items())
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width,initial-scale=1"><title>Release gate</title><style>'
            ":root{color-scheme:light dark}"
            "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
            "table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #d0d7de;padding:.4rem;text-align:left}"
            f'</style></head><body><h1>Release gate: <span style="color:{colour[self.outcome]}">{self.outcome}</span></h1>'
            f"<table><tr><th>check</th><th>verdict</th><th>why</th></tr>{rows}</table><h2>Rules</h2><ul>{options}</ul>"
            "</body></html>\n"
        )


class Gate:
    """Rules that say whether a new ranker ships.

    The first line that applies decides:

    =========  ==============================================================================================================
    invalid    a needed number is NaN; the sample ratio's p is below ``srm_alpha``; too few days, or not whole weeks; the
               smallest arm is below ``planned_n``; another deviation from the plan
    reject     harm is shown: ``offline.high < -tolerance``, ``online.high < 0``, or a guardrail's interval beyond its margin
    hold       it is not shown that: ``offline.low > -tolerance``; online p < ``alpha``, low > 0 and difference > ``epsilon``;
               each guardrail's bound is within its margin; the lift does not decay to ``epsilon``; or evidence is missing
    ship       otherwise
    =========  ==============================================================================================================

    "Not significantly worse" is not "not worse": a guardrail passes by its bound against the margin. Comparisons are strict,
    and what differs by rounding is equal.

    Args:
        epsilon: the online difference that the new ranker must exceed.
        tolerance: the offline loss that is accepted.
        margins: by the name of each guardrail, the harm that is accepted, above 0.
        lower_is_better: names of the guardrails where a rise is harm, such as a bounce rate.
        alpha: level of the online test.
        srm_alpha: level of the sample ratio check.
        min_days: days that an experiment runs at least.
        whole_weeks: whether it must be whole weeks.
        planned_n: users that the smallest arm must have, from the plan.

    Raises:
        ValueError: a negative option, a margin that is not above 0, a name in ``lower_is_better`` that has no margin.

    Example:
        >>> from lightning_rank.stats import paired, two_proportions, sample_ratio
        >>> gate = Gate(epsilon=0.002, tolerance=0.01)
        >>> offline = paired([0.5, 0.6, 0.7, 0.4, 0.6], [0.55, 0.66, 0.74, 0.46, 0.65])
        >>> online = two_proportions(2000, 40_000, 2300, 40_000)
        >>> gate.decide(offline=offline, online=online, sample_ratio=sample_ratio([40_000, 40_000]), days=14).outcome
        'ship'
    """

    def __init__(
        self,
        *,
        epsilon: float = 0.0,
        tolerance: float = 0.0,
        margins: Mapping[str, float] | None = None,
        lower_is_better: Collection[str] = (),
        alpha: float = 0.05,
        srm_alpha: float = 0.001,
        min_days: int = 7,
        whole_weeks: bool = True,
        planned_n: int | None = None,
    ) -> None:
        self.epsilon = _at_least_0("epsilon", epsilon)
        self.tolerance = _at_least_0("tolerance", tolerance)
        if margins is not None and not isinstance(margins, Mapping):
            raise ValueError(f"`margins` must be a mapping from guardrails to margins, got {type(margins).__name__}.")
        advice = "It is the largest harm that would be accepted."
        self.margins = {
            name: number(f"margins[{name!r}]", m, above=0, advice=advice) for name, m in (margins or {}).items()
        }
        if isinstance(lower_is_better, str):
            raise ValueError(f"`lower_is_better` must be a list of names, got the text {lower_is_better!r}.")
        self.lower_is_better = tuple(lower_is_better)
        for name in self.lower_is_better:
            if name not in self.margins:
                raise ValueError(
                    f"`lower_is_better` must name guardrails of `margins`, got {name!r}: {list(self.margins)}."
                )
        self.alpha = probability("alpha", alpha)
        self.srm_alpha = probability("srm_alpha", srm_alpha)
        self.min_days = whole("min_days", min_days)
        if not isinstance(whole_weeks, bool):
            raise ValueError(f"`whole_weeks` must be true or false, got {whole_weeks!r}.")
        self.whole_weeks = whole_weeks
        self.planned_n = None if planned_n is None else whole("planned_n", planned_n, least=1)

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | str | Path) -> Gate:
        """A gate from a mapping of options or from a YAML (or JSON) file of them.

        Raises:
            ValueError: an unknown option, or one out of range.
        """
        options = dict(config if isinstance(config, Mapping) else read_yaml(config))
        options.pop("evidence", None)
        known = cls().options()
        for name in options:
            if name not in known:
                near = get_close_matches(str(name), known, n=1)
                hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}."
                raise ValueError(f"A gate's configuration must have known options only, got {name!r}. {hint}")
        return cls(**options)

    def options(self) -> dict[str, Any]:
        """The options in force, as ``from_config`` takes them."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}

    def __repr__(self) -> str:
        return f"Gate({', '.join(f'{name}={value!r}' for name, value in self.options().items())})"

    def decide(
        self,
        *,
        offline: Any = None,
        online: Any = None,
        guardrails: Mapping[str, Any] | None = None,
        sample_ratio: Any = None,
        days: float | None = None,
        n: int | None = None,
        novelty: Any = None,
        deviations: Sequence[str] = (),
    ) -> GateDecision:
        """Ship, hold, reject or invalid.

        Args:
            offline: the new ranker against the old one offline: anything with ``low`` and ``high``, as ``stats.paired`` gives.
            online: the primary metric of the experiment: ``difference``, ``low``, ``high`` and ``pvalue``.
            guardrails: by name, anything with ``low`` and ``high``.
            sample_ratio: what ``stats.sample_ratio`` gives: ``pvalue``.
            days: how long the experiment ran.
            n: users of the smallest arm.
            novelty: what ``online.novelty`` gives: ``decaying`` and ``last_week``.
            deviations: in what the experiment was not run as planned; any makes it invalid. ``online.evaluate_plan`` finds them.

        Raises:
            ValueError: a guardrail without a margin, evidence without a field that is needed.
        """
        guardrails = guardrails or {}
        for name in guardrails:
            if name not in self.margins:
                raise ValueError(f"The guardrail {name!r} must have a margin: `margins` has {list(self.margins)}.")
        checks = [self._sample_ratio(sample_ratio), self._days(days)]
        if self.planned_n is not None or n is not None:
            checks.append(self._users(n))
        checks += [self._offline(offline), self._online(online)]
        checks += [self._guardrail(name, guardrails.get(name)) for name in self.margins]
        if novelty is not None:
            checks.append(self._novelty(novelty))
        if deviations:
            if isinstance(deviations, str):
                raise ValueError(f"`deviations` must be a list of texts, got the text {deviations!r}.")
            checks.append(Check("plan", "invalid", "; ".join(deviations)))
        return self._decision(checks, "ship")

    def screen(self, offline: Any) -> GateDecision:
        """The offline half: whether the new ranker is good enough for an experiment.

        Returns:
            ``"pass"``, not worse than the tolerance by the interval; ``"reject"``, worse than that; ``"hold"``, cannot tell.

        Raises:
            ValueError: evidence without a field that is needed.
        """
        check = self._offline(offline)
        if check.verdict == "invalid":
            check = Check(check.name, "hold", check.reason, check.numbers)
        return self._decision([check], "pass")

    def _decision(self, checks: list[Check], otherwise: str) -> GateDecision:
        worst = min((check.verdict for check in checks), key=_SEVERITY.index)
        reasons = tuple(f"{check.name}: {check.reason}" for check in checks if check.verdict == worst)
        return GateDecision(otherwise if worst == "pass" else worst, reasons, tuple(checks), self.options())

    def _sample_ratio(self, evidence: Any) -> Check:
        name = "sample ratio"
        if evidence is None:
            return _missing(name)
        numbers = _numbers(name, evidence, "pvalue")
        if undefined := _undefined(name, numbers):
            return undefined
        p = numbers["pvalue"]
        if _below(p, self.srm_alpha):
            reason = (
                f"{show_p(p)} < {show(self.srm_alpha)}: the arms did not get the planned users; no number can be trusted"
            )
            return Check(name, "invalid", reason, numbers)
        return Check(name, "pass", f"{show_p(p)}, not below {show(self.srm_alpha)}: as planned", numbers)

    def _days(self, days: Any) -> Check:
        if days is None:
            return _missing("days")
        numbers = {"days": _real("days", days)}
        if undefined := _undefined("days", numbers):
            return undefined
        days = numbers["days"]
        if days < self.min_days:
            return Check("days", "invalid", f"{days:g} days, fewer than {self.min_days}", numbers)
        if self.whole_weeks and days % 7:
            return Check("days", "invalid", f"{days:g} days are not whole weeks", numbers)
        return Check("days", "pass", f"{days:g} days", numbers)

    def _users(self, n: Any) -> Check:
        if n is None:
            return _missing("users")
        numbers = {"n": _real("n", n)}
        if undefined := _undefined("users", numbers):
            return undefined
        if self.planned_n is not None and numbers["n"] < self.planned_n:
            reason = f"{numbers['n']:,.0f} in the smallest arm, fewer than the planned {self.planned_n:,}"
            return Check("users", "invalid", reason, numbers)
        return Check("users", "pass", f"{numbers['n']:,.0f} in the smallest arm", numbers)

    def _offline(self, evidence: Any) -> Check:
        if evidence is None:
            return _missing("offline")
        numbers = _numbers("offline", evidence, "low", "high")
        if undefined := _undefined("offline", numbers):
            return undefined
        interval, bound = _interval(numbers), show(-self.tolerance, True)
        if _below(numbers["high"], -self.tolerance):
            return Check("offline", "reject", f"{interval} is below {bound}: worse than the tolerance", numbers)
        if not _above(numbers["low"], -self.tolerance):
            return Check(
                "offline", "hold", f"{interval} is not above {bound}: not shown to be within the tolerance", numbers
            )
        return Check("offline", "pass", f"{interval} is above {bound}", numbers)

    def _online(self, evidence: Any) -> Check:
        if evidence is None:
            return _missing("online")
        numbers = _numbers("online", evidence, "difference", "low", "high", "pvalue")
        if undefined := _undefined("online", numbers):
            return undefined
        difference, p, interval = numbers["difference"], numbers["pvalue"], _interval(numbers)
        stated = f"{show(difference, True)} {interval}, {show_p(p)}"
        if _below(numbers["high"], 0):
            return Check("online", "reject", f"{stated}: worse", numbers)
        doubts = []
        if not _below(p, self.alpha):
            doubts.append(f"p is not below {show(self.alpha)}")
        if not _above(numbers["low"], 0):
            doubts.append("the interval is not above 0")
        if not _above(difference, self.epsilon):
            doubts.append(f"the difference is not above {show(self.epsilon)}")
        if doubts:
            return Check("online", "hold", f"{stated}: {', '.join(doubts)}", numbers)
        return Check("online", "pass", f"{stated}, above {show(self.epsilon)}", numbers)

    def _guardrail(self, guardrail: str, evidence: Any) -> Check:
        name = f"guardrail {guardrail}"
        if evidence is None:
            return _missing(name)
        numbers = _numbers(name, evidence, "low", "high")
        if undefined := _undefined(name, numbers):
            return undefined
        margin, interval = self.margins[guardrail], _interval(numbers)
        # Turned, where lower is better, so that harm is always below.
        turned = guardrail in self.lower_is_better
        low, high = (-numbers["high"], -numbers["low"]) if turned else (numbers["low"], numbers["high"])
        bound = show(margin if turned else -margin, True)
        numbers = {**numbers, "margin": margin}
        if _below(high, -margin):
            return Check(name, "reject", f"{interval} is beyond {bound}: harm above the margin", numbers)
        if not _above(low, -margin):
            return Check(name, "hold", f"{interval} reaches {bound}: not shown to be within the margin", numbers)
        return Check(name, "pass", f"{interval} is within {bound}", numbers)

    def _novelty(self, evidence: Any) -> Check:
        decaying = bool(_field("novelty", evidence, "decaying"))
        numbers = _numbers("novelty", evidence, "last_week")
        if undefined := _undefined("novelty", numbers):
            return undefined
        last = show(numbers["last_week"], True)
        if decaying and not _above(numbers["last_week"], self.epsilon):
            reason = f"the lift decays, and {last} in the last week is not above {show(self.epsilon)}"
            return Check("novelty", "hold", reason, numbers)
        return Check("novelty", "pass", f"{last} in the last week{', decaying' if decaying else ''}", numbers)


def decide_from_files(
    config: str | Path,
    *,
    offline: str | Path | None = None,
    experiment: str | Path | None = None,
    arm: str | None = None,
    metric: str | None = None,
) -> GateDecision:
    """The decision of a gate whose YAML file has, beside its options, its ``evidence``: fields, or files of them.

    Each of ``offline online guardrails sample_ratio days n novelty deviations`` under ``evidence`` is a value, a mapping of fields
    (of guardrails: by name) or the path of a JSON file that holds one, seen from the folder of the configuration. So is
    ``evidence`` as a whole. ``experiment`` is a report of ``lightning-rank experiment evaluate``, which holds all but
    ``offline``; what the configuration does not say of margins, level and users is then as planned. ``offline`` may be what
    ``lightning-rank compare --format json`` wrote.

    Args:
        config: the file.
        offline, experiment: files of evidence, before those of the configuration.
        arm: the treatment of the report, where it has several.
        metric: the metric of the comparison, where it has several.

    Raises:
        ValueError: an unknown option or kind of evidence; see ``Gate.decide``.
    """
    path = Path(config)
    options = read_yaml(path)
    evidence = _from_file(options.pop("evidence", None) or {}, path.parent)
    if not isinstance(evidence, Mapping):
        raise ValueError(f"`evidence` must be a mapping of {', '.join(_EVIDENCE)} or experiment, got {evidence!r}.")
    found = dict(evidence)
    named = {name: found.pop(name, None) for name in ("arm", "metric")}
    arm = named["arm"] if arm is None else arm
    metric = named["metric"] if metric is None else metric
    for name, file in (("offline", offline), ("experiment", experiment)):
        if file is not None:
            found[name] = str(Path(file).absolute())
    found = {name: _from_file(value, path.parent) for name, value in found.items()}
    if isinstance(found.get("offline"), Mapping) and "differences" in found["offline"]:
        found["offline"] = _of_comparison(found["offline"]["differences"], metric)
    report = found.pop("experiment", None)
    if report is not None:
        try:
            by_arm, planned = report["evidence"], report["gate_options"]
        except (KeyError, TypeError):
            raise ValueError("The experiment must be a report of `lightning-rank experiment evaluate --output`.") from None
        if arm is None and len(by_arm) > 1:
            raise ValueError(f"`arm` must be given, as the experiment has several treatments: {', '.join(by_arm)}.")
        arm = next(iter(by_arm)) if arm is None else arm
        if arm not in by_arm:
            raise ValueError(f"`arm` must be one of {', '.join(by_arm)}, got {arm!r}.")
        found = {**by_arm[arm], **found}
        options = {**planned, **options}
    for name in found:
        if name not in _EVIDENCE:
            raise ValueError(f"`evidence` must be of {', '.join(_EVIDENCE)}, got {name!r}.")
    if isinstance(found.get("guardrails"), Mapping):
        found["guardrails"] = {name: _from_file(value, path.parent) for name, value in found["guardrails"].items()}
    return Gate.from_config(options).decide(**found)


def _of_comparison(differences: Sequence[Mapping[str, Any]], metric: str | None) -> Any:
    """The one paired test of a comparison of runs that is meant."""
    measures = list(dict.fromkeys(one["measure"] for one in differences))
    if metric is None and len(measures) > 1:
        raise ValueError(
            f"The comparison has the metrics {', '.join(measures)}: name the one that decides, by --metric or `metric` of the "
            "evidence."
        )
    chosen = [one for one in differences if metric in (None, one["measure"])]
    if not chosen:
        raise ValueError(f"`metric` must be one of {', '.join(measures)}, which the comparison has, got {metric!r}.")
    if len(chosen) > 1:
        candidates = ", ".join(str(one["candidate"]) for one in chosen)
        raise ValueError(f"The comparison must be of one new ranker with the old one, got {candidates}: compare two runs.")
    return chosen[0]["test"]


def _from_file(value: Any, folder: Path) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads((folder / value).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{folder / value} must be JSON: {error}.") from error


def _at_least_0(option: str, value: Any) -> float:
    value = number(option, value)
    if value < 0:
        raise ValueError(f"`{option}` must be at least 0, got {value:g}.")
    return value


def _field(name: str, evidence: Any, key: str) -> Any:
    holder = SimpleNamespace(**evidence) if isinstance(evidence, Mapping) else evidence
    if not hasattr(holder, key):
        raise ValueError(f"The evidence of {name} must have the field {key!r}, got {evidence!r}.")
    return getattr(holder, key)


def _real(name: str, value: Any) -> float:
    """A float, NaN and infinite ones included, also of the texts that stand for them in JSON."""
    if value is None:
        return math.nan
    try:
        if isinstance(value, bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"`{name}` must be a number, got {value!r}.") from None


def _numbers(name: str, evidence: Any, *keys: str) -> dict[str, float]:
    return {key: _real(f"{name}.{key}", _field(name, evidence, key)) for key in keys}


def _undefined(name: str, numbers: Mapping[str, float]) -> Check | None:
    nans = [key for key, value in numbers.items() if math.isnan(value)]
    return Check(name, "invalid", f"{', '.join(nans)} undefined (NaN)", numbers) if nans else None


def _missing(name: str) -> Check:
    return Check(name, "hold", "not given")


def _interval(numbers: Mapping[str, float]) -> str:
    return f"[{show(numbers['low'], True)}, {show(numbers['high'], True)}]"


def _above(x: float, y: float) -> bool:
    """x > y, where what differs by rounding is equal: .785 - .78 is not above .005."""
    return x - y > _SAME


def _below(x: float, y: float) -> bool:
    return y - x > _SAME
