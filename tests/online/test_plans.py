"""Plans made beforehand, and evaluations that hold themselves to them, from Python and from files."""

from __future__ import annotations

import json
import math

import numpy as np
import polars as pl
import pytest
from statsmodels.stats.power import NormalIndPower

from lightning_rank.gate import Gate
from lightning_rank.online import Experiment, ExperimentPlan, evaluate_files, evaluate_plan, novelty, plan
from lightning_rank.online.plans import Measure, plan_from_file
from lightning_rank.stats import always_valid, group_sequential_bounds, power_proportions, sample_size_proportions

CLICKED = {"numerator": "clicked", "kind": "proportion"}


def rates(**options):
    return plan(["old", "new"], CLICKED, **{"baseline": 0.3, "effect": 0.1, **options})


@pytest.mark.parametrize("alternative", ["two-sided", "greater"])
@pytest.mark.parametrize(("baseline", "effect"), [(0.05, 0.01), (0.3, 0.1), (0.5, 0.002)])
def test_two_equal_arms_need_the_sample_size_of_proportions(baseline, effect, alternative):
    n = sample_size_proportions(baseline, baseline + effect, alternative=alternative)
    made = rates(baseline=baseline, effect=effect, alternative=alternative)
    assert (made.n_smallest, made.n_total) == (n, 2 * n)


@pytest.mark.parametrize("ratio", [1.0, 0.25])
def test_means_need_what_statsmodels_says(ratio):
    made = plan({"old": 1, "new": ratio}, "clicks", effect=0.1, sd=2.0, power=0.9)
    n = NormalIndPower().solve_power(0.1 / 2, alpha=0.05, power=0.9, ratio=ratio)
    # Above by less than one user for the whole number of all, and one for that of each arm but one.
    assert n * (1 + ratio) <= made.n_total < n * (1 + ratio) + 2
    assert made.n_smallest >= n * ratio


@pytest.mark.parametrize("alternative", ["two-sided", "larger"])
def test_every_arm_is_rounded_up(alternative):
    n = NormalIndPower().solve_power(0.01 / 0.47, alpha=0.05, power=0.8, alternative=alternative)
    made = plan(
        ["old", "new"], "clicks", effect=0.01, sd=0.47, alternative={"larger": "greater"}.get(alternative, alternative)
    )
    assert made.n_smallest == math.ceil(n) > n
    assert made.n_total == 2 * made.n_smallest


def test_unequal_weights_reach_the_power():
    made = plan({"old": 9, "new": 1}, CLICKED, baseline=0.1, effect=0.02)
    n = made.n_total
    assert power_proportions(0.1, 0.12, int(0.9 * n), int(0.1 * n)) >= 0.8
    assert power_proportions(0.1, 0.12, int(0.9 * (n - 20)), int(0.1 * (n - 20))) < 0.8


def test_more_arms_divide_the_level():
    made = plan(["old", "new", "other"], CLICKED, baseline=0.05, effect=0.01)
    assert made.n_smallest == sample_size_proportions(0.05, 0.06, alpha=0.025)


def test_looking_more_than_once_needs_more():
    sizes = {kind: rates(sequential=kind, looks=5).n_total for kind in ("none", "obrien-fleming", "pocock", "always-valid")}
    assert sorted(sizes, key=sizes.__getitem__) == list(sizes)
    made = rates(sequential="always-valid")
    assert made.tau == 0.1
    variance = sum(p * (1 - p) for p in (0.3, 0.4)) / made.n_smallest
    reached = 0.1 - always_valid(0.0, variance, tau=0.1).high
    assert reached / math.sqrt(variance) == pytest.approx(0.8416, abs=0.01)


def test_whole_weeks():
    assert rates(baseline=0.05, effect=0.01, eligible_per_day=1500).days == 14
    assert rates().days is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"guardrails": {"bounce": "bounced"}}, "'bounce' must have a margin"),
        ({"guardrails": {"bounce": {"numerator": "bounced", "margin": 0}}}, "above 0"),
        ({"guardrails": {"bounce": {"margin": 0.1}}}, "'numerator'"),
        ({"secondary": {"depth": {"numerator": "a", "kidn": "x"}}}, "got 'kidn'"),
        ({"baseline": None}, "`baseline`"),
        ({"baseline": 30}, "Not per cent"),
        ({"effect": 0}, "not 0"),
        ({"effect": -0.1, "alternative": "greater"}, "direction"),
        ({"effect": 0.8}, "baseline . effect"),
        ({"alpha": 5}, "Not per cent"),
        ({"power": 80}, "Not per cent"),
        ({"sequential": "peek"}, "'always-valid'"),
        ({"sequential": "pocock"}, "two looks or more"),
        ({"adjust": "none"}, "`adjust`"),
        ({"eligible_per_day": 0}, "above 0"),
        ({"tau": 0, "sequential": "always-valid"}, "above 0"),
    ],
)
def test_bad_plans_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        rates(**options)
    with pytest.raises(ValueError, match="`sd`"):
        plan(["old", "new"], "clicks", effect=0.1)


FULL = {
    "guardrails": {"bounce": {"numerator": "bounced", "kind": "proportion", "margin": 0.05, "lower_is_better": True}},
    "secondary": {"clicks": "clicks", "ctr": {"numerator": "clicks", "denominator": "shown"}},
}


def rows(n=3000, days=14, seed=0, lift=0.1, first_day=0):
    """A row per user, who comes on one day."""
    generator = np.random.default_rng(seed)
    table = []
    for arm, rate in (("old", 0.3), ("new", 0.3 + lift)):
        clicked = generator.random(n) < rate
        clicks = clicked * (1 + generator.poisson(1, n))
        table.append(
            {
                "arm": [arm] * n,
                "unit": [f"{arm}{i}" for i in range(n)],
                "day": first_day + np.arange(n) % days,
                "clicked": clicked.astype(int),
                "clicks": clicks,
                "shown": clicks + 10,
                "bounced": (generator.random(n) < 0.2).astype(int),
            }
        )
    return table


def experiment_of(table, **options):
    experiment = Experiment(["old", "new"], **options)
    for part in table:
        experiment.update(
            part["arm"][0], part["unit"], day=part["day"], **{k: part[k] for k in part if k not in ("arm", "unit", "day")}
        )
    return experiment


def test_a_plan_is_kept_as_json(tmp_path):
    made = rates(**FULL, sequential="always-valid", eligible_per_day=100)
    made.save(tmp_path / "plan.json")
    assert ExperimentPlan.load(tmp_path / "plan.json") == made


def test_an_experiment_as_planned_ships():
    made = rates(**FULL, effect=0.05, eligible_per_day=500)
    experiment = experiment_of(rows())
    report = evaluate_plan(made, experiment)
    assert report.valid
    assert report.days == 14
    assert report.primary == experiment.evaluate("clicked", kind="proportion")
    lifts = [c.difference for c in experiment.lift_by_day("clicked")]
    assert report.novelty == {"new": novelty(lifts)}
    both = report.secondary["new"]
    smaller, larger = sorted(both.values(), key=lambda r: r.pvalue)
    assert (smaller.adjusted, larger.adjusted) == (2 * smaller.pvalue, max(2 * smaller.pvalue, larger.pvalue))
    options = report.gate_options()
    assert options == {
        "margins": {"bounce": 0.05},
        "lower_is_better": ["bounce"],
        "alpha": 0.05,
        "planned_n": made.n_smallest,
    }
    decision = Gate(**options).decide(offline={"low": 0.01, "high": 0.02}, **report.evidence("new"))
    assert decision.outcome == "ship", decision
    for shown in ("clicked, new: 0.298 -> 0.378", "guardrail bounce (margin 0.05)", "novelty: lift", "clicks / shown"):
        assert shown in str(report)


@pytest.mark.parametrize(
    ("table", "options", "problem"),
    [
        (rows(days=3), {}, "3 days are less than a week"),
        (rows(days=10), {}, "10 days are not whole weeks"),
        (rows(n=100), {}, "100 users in the smallest arm, 356 are planned"),
        (rows(days=7), {"eligible_per_day": 60}, "7 of the planned 14 days"),
        ([rows(n=2000)[0], rows()[1]], {}, "sample ratio MISMATCH"),
    ],
)
def test_what_is_not_as_planned_is_a_problem_and_never_ships(table, options, problem):
    report = evaluate_plan(rates(**options), experiment_of(table))
    assert not report.valid
    assert any(problem in found for found in report.problems), report.problems
    assert f"PROBLEM: {problem}" in str(report)
    decision = Gate().decide(offline={"low": 0.01, "high": 0.02}, **report.evidence("new"))
    assert decision.outcome == "invalid"


def test_a_lift_that_fades_with_exposure_is_seen_though_the_days_do_not_show_it():
    """Users begin on any of 15 days, so that each day has old and new ones; the lift halves with each day of a user."""
    generator = np.random.default_rng(2)
    experiment = Experiment(["old", "new"])
    for arm in ("old", "new"):
        for day in range(21):
            for begun in range(max(day - 6, 0), min(day, 14) + 1):
                lift = 0.3 * 0.5 ** (day - begun) if arm == "new" else 0.0
                users = [f"{arm} {begun} {i}" for i in range(300)]
                clicks = generator.poisson(1 + lift, 300)
                experiment.update(arm, users, day=day, clicks=clicks)
    report = evaluate_plan(plan(["old", "new"], "clicks", effect=0.5, sd=3), experiment)
    assert report.valid
    by_exposure = report.novelty_by_exposure["new"]
    daily = experiment.lift_by_day("clicks", since="exposure")
    assert by_exposure == novelty([c.difference for c in daily])
    assert by_exposure.decaying
    assert report.evidence("new")["novelty"] == by_exposure
    assert "first exposure" in str(report)


def test_days_without_users_are_a_deviation():
    table = [{**part, "day": np.where(part["day"] == 5, 6, part["day"])} for part in rows()]
    report = evaluate_plan(rates(), experiment_of(table))
    assert report.deviations == ("only 13 of 14 days have users",)
    assert report.novelty == {}
    assert "only 13 of 14 days" in str(Gate().decide(**report.evidence("new")))


def test_unknown_days_are_a_problem():
    experiment = Experiment(["old", "new"])
    for part in rows():
        experiment.update(part["arm"][0], clicked=part["clicked"])
    assert evaluate_plan(rates(), experiment).problems == ("it is not known how many days the experiment ran",)
    assert evaluate_plan(rates(), experiment, days=14).valid


def test_users_in_two_arms_are_counted():
    table = rows()
    table[0]["unit"] = ["new0", *table[0]["unit"][1:]]
    report = evaluate_plan(rates(), experiment_of(table, mixed="exclude"))
    assert report.mixed_users == 1
    assert "1 users were in two arms" in str(report)
    with pytest.raises(ValueError, match="in one arm"):
        evaluate_plan(rates(), experiment_of(table))


def test_other_arms_than_planned_are_refused():
    with pytest.raises(ValueError, match="planned arms"):
        evaluate_plan(rates(), Experiment({"old": 9, "new": 1}))
    with pytest.raises(ValueError, match="must have a user"):
        evaluate_plan(rates(), Experiment(["old", "new"]))
    # Equal weights of another sum are the same split.
    halves = Experiment({"old": 0.5, "new": 0.5})
    for part in rows():
        halves.update(part["arm"][0], clicked=part["clicked"])
    assert evaluate_plan(rates(), halves, days=14).valid
    assert (halves | Experiment(["old", "new"])).users() == {"old": 3000, "new": 3000}
    made = plan(["old", "new"], "purchases", effect=0.1, sd=1)
    with pytest.raises(ValueError, match="there is no 'purchases'"):
        evaluate_plan(made, experiment_of(rows(n=10)))


def test_a_metric_that_should_fall_is_turned_for_the_gate():
    made = plan(["old", "new"], Measure("clicked", kind="proportion", lower_is_better=True), baseline=0.3, effect=-0.1)
    report = evaluate_plan(made, experiment_of(rows(lift=-0.1)))
    evidence = report.evidence("new")
    primary = report.primary["new"]
    assert primary.high < 0
    assert evidence["online"].low == -primary.high > 0
    assert evidence["online"].difference == -primary.difference
    assert Gate().decide(offline={"low": 0.01, "high": 0.02}, **evidence).outcome == "ship"
    assert Gate().decide(**evaluate_plan(made, experiment_of(rows(lift=0.1))).evidence("new")).outcome == "reject"


def test_always_valid_evaluation():
    report = evaluate_plan(rates(sequential="always-valid"), experiment_of(rows(n=200)))
    assert report.valid, "no number of users is planned to be reached"
    primary = report.primary["new"]
    expected = always_valid(primary.difference, primary.se**2, tau=0.1)
    assert report.sequential["new"].pvalue == expected.pvalue
    assert report.sequential["new"].low == expected.low
    assert report.evidence("new")["online"].low == expected.low < primary.low


def test_group_sequential_evaluation():
    made = rates(sequential="obrien-fleming", looks=4)
    experiment = experiment_of(rows(n=300, lift=0.08))
    bounds = group_sequential_bounds(4, 0.05, "obrien-fleming")
    for look in range(1, 5):
        report = evaluate_plan(made, experiment, look=look)
        found, primary = report.sequential["new"], report.primary["new"]
        beyond = abs(primary.statistic) > bounds.z[look - 1]
        assert (found.pvalue < 0.05) == beyond
        assert found.high - found.low == pytest.approx(2 * bounds.z[look - 1] * primary.se)
    for look in (None, 0, 5):
        with pytest.raises(ValueError, match=r"planned looks 1 to 4|whole number"):
            evaluate_plan(made, experiment, look=look)


def test_under_peeking_without_variance():
    made = plan(["old", "new"], "clicks", effect=1, sd=1, sequential="always-valid")
    for values, pvalue in (((2, 2), 1), ((2, 3), 0)):
        experiment = Experiment(["old", "new"])
        for arm, value in zip(("old", "new"), values, strict=True):
            experiment.update(arm, clicks=[value] * 5)
        found = evaluate_plan(made, experiment, days=7).sequential["new"]
        assert (found.pvalue, found.low) == (pvalue, values[1] - values[0])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("dates", [False, True])
def test_from_files(tmp_path, suffix, dates):
    (tmp_path / "plan.yaml").write_text(
        "arms: [old, new]\nprimary: {numerator: clicked, kind: proportion}\nbaseline: 0.3\neffect: 0.1\n"
        "guardrails: {bounce: {numerator: bounced, kind: proportion, margin: 0.05, lower_is_better: true}}\n"
        "secondary: {clicks: clicks, ctr: {numerator: clicks, denominator: shown}}\n"
    )
    made = plan_from_file(tmp_path / "plan.yaml")
    assert made == rates(**FULL)
    made.save(tmp_path / "plan.json")
    files = []
    for i, part in enumerate(rows()):
        frame = pl.DataFrame(part)
        if dates:
            frame = (
                frame.with_columns(pl.date(2026, 3, 1) + pl.duration(days=pl.col("day")))
                .drop("day")
                .rename({"date": "day"})
            )
        files.append(tmp_path / f"{i}{suffix}")
        frame.write_csv(files[-1]) if suffix == ".csv" else frame.write_parquet(files[-1])
    report = evaluate_files(tmp_path / "plan.json", *files)
    assert report.to_dict() == evaluate_plan(made, experiment_of(rows(first_day=0))).to_dict()
    json.dumps(report.to_dict())
    pl.DataFrame(rows()[0]).drop("shown").write_csv(tmp_path / "less.csv")
    with pytest.raises(ValueError, match=r"less.csv must have the column 'shown', got arm, unit"):
        evaluate_files(tmp_path / "plan.json", tmp_path / "less.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "mapping of options"),
        ("arms: [a", "must be YAML"),
        ("arms: [a, b]\nprimary: x\neffct: 1", "got 'effct'. Known: effect"),
        ("arms: [a, b]\nprimary: x", "must have 'effect'"),
    ],
)
def test_bad_plan_files_are_refused(tmp_path, text, message):
    (tmp_path / "plan.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        plan_from_file(tmp_path / "plan.yaml")


def test_what_is_no_plan_and_no_table_is_refused(tmp_path):
    for text in ("{", "{}", "[]", '{"primary": 1}'):
        (tmp_path / "plan.json").write_text(text)
        with pytest.raises(ValueError, match=r"plan.json must hold a plan"):
            ExperimentPlan.load(tmp_path / "plan.json")
    rates().save(tmp_path / "plan.json")
    (tmp_path / "empty.csv").touch()
    with pytest.raises(ValueError, match=r"empty.csv must be CSV or Parquet"):
        evaluate_files(tmp_path / "plan.json", tmp_path / "empty.csv")


def test_numbers_of_yaml(tmp_path):
    (tmp_path / "plan.yaml").write_text("arms: [a, 'b']\nprimary: x\neffect: 1e-2\nsd: 2E1\n")
    made = plan_from_file(tmp_path / "plan.yaml")
    assert made == plan(["a", "b"], "x", effect=0.01, sd=20)
