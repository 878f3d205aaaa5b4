"""The release gate: its table row by row, its configuration, and what it prints."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_rank.gate import EXIT_CODES, Gate, decide_from_files
from lightning_rank.stats import paired, sample_ratio, two_proportions

OPTIONS = {
    "epsilon": 0.005,
    "tolerance": 0.01,
    "margins": {"latency": 0.01, "bounce": 0.02},
    "lower_is_better": ["bounce"],
    "planned_n": 1000,
}


def evidence(difference: float, low: float, high: float, pvalue: float = 0.003) -> SimpleNamespace:
    return SimpleNamespace(difference=difference, low=low, high=high, pvalue=pvalue)


GOOD = {
    "offline": evidence(0.02, 0.005, 0.035),
    "online": evidence(0.012, 0.004, 0.02),
    "guardrails": {"latency": evidence(-0.001, -0.005, 0.003), "bounce": evidence(0.002, -0.006, 0.01)},
    "sample_ratio": SimpleNamespace(pvalue=0.75),
    "days": 14,
    "n": 5000,
}


def guardrails(**changed: SimpleNamespace) -> dict[str, object]:
    return {"guardrails": {**GOOD["guardrails"], **changed}}


DECISIONS = [
    ({}, "ship"),
    ({"novelty": SimpleNamespace(decaying=True, last_week=0.006)}, "ship"),
    ({"novelty": SimpleNamespace(decaying=False, last_week=0.001)}, "ship"),
    # Significantly worse, but within the margin.
    (guardrails(latency=evidence(-0.005, -0.008, -0.002)), "ship"),
    ({"sample_ratio": SimpleNamespace(pvalue=0.0009)}, "invalid"),
    ({"sample_ratio": SimpleNamespace(pvalue=0.001)}, "ship"),
    ({"days": 3}, "invalid"),
    ({"days": 10}, "invalid"),
    ({"days": math.nan}, "invalid"),
    ({"n": 999}, "invalid"),
    ({"n": 1000}, "ship"),
    ({"online": evidence(math.nan, 0.004, 0.02)}, "invalid"),
    ({"online": evidence(0.012, 0.004, 0.02, math.nan)}, "invalid"),
    ({"offline": evidence(0.02, math.nan, 0.035)}, "invalid"),
    (guardrails(bounce=evidence(0.0, 0.0, math.nan)), "invalid"),
    ({"novelty": SimpleNamespace(decaying=False, last_week=math.nan)}, "invalid"),
    ({"deviations": ["only 13 of 14 days have users"]}, "invalid"),
    ({"offline": evidence(-0.05, -0.07, -0.03)}, "reject"),
    ({"online": evidence(-0.01, -0.018, -0.002)}, "reject"),
    (guardrails(latency=evidence(-0.03, -0.04, -0.02)), "reject"),
    (guardrails(bounce=evidence(0.05, 0.04, 0.06)), "reject"),
    # A fall of what should be low is no harm.
    (guardrails(bounce=evidence(-0.05, -0.06, -0.04)), "ship"),
    ({"offline": evidence(-0.002, -0.015, 0.011)}, "hold"),
    ({"offline": evidence(0.0, -0.01, 0.01)}, "hold"),
    ({"online": evidence(0.012, 0.004, 0.02, 0.05)}, "hold"),
    ({"online": evidence(0.012, 0.0, 0.02)}, "hold"),
    ({"online": evidence(0.785 - 0.78, 0.001, 0.009)}, "hold"),
    (guardrails(latency=evidence(-0.004, -0.01, 0.004)), "hold"),
    (guardrails(bounce=evidence(0.01, -0.01, 0.02)), "hold"),
    ({"novelty": SimpleNamespace(decaying=True, last_week=0.005)}, "hold"),
    ({"offline": None}, "hold"),
    ({"online": None}, "hold"),
    ({"guardrails": {"latency": GOOD["guardrails"]["latency"]}}, "hold"),
    ({"sample_ratio": None}, "hold"),
    ({"days": None}, "hold"),
    ({"n": None}, "hold"),
    # One-sided evidence: the open end is infinite.
    ({"online": evidence(0.012, 0.005, math.inf)}, "ship"),
]


@pytest.mark.parametrize(("changed", "outcome"), DECISIONS)
def test_decision_table(changed, outcome):
    decision = Gate(**OPTIONS).decide(**{**GOOD, **changed})
    assert decision.outcome == outcome
    assert decision.exit_code == {"ship": 0, "hold": 10, "reject": 11, "invalid": 12}[outcome]
    assert decision.reasons


@given(st.lists(st.sampled_from(DECISIONS[3:]), max_size=4))
def test_the_worst_check_decides(changes):
    """Whatever else is true: invalid before reject before hold before ship."""
    given_evidence = dict(GOOD)
    for changed, _ in changes:
        given_evidence.update(changed)
    decision = Gate(**OPTIONS).decide(**given_evidence)
    verdicts = {check.verdict for check in decision.checks}
    worst = next((v for v in ("invalid", "reject", "hold") if v in verdicts), "ship")
    assert decision.outcome == worst


def test_nothing_known_holds():
    decision = Gate().decide()
    assert decision.outcome == "hold"
    assert len(decision.reasons) == 4


def test_users_without_a_plan_are_stated_but_not_needed():
    gate = Gate()
    assert "users" not in {check.name for check in gate.decide().checks}
    assert "users" in {check.name for check in gate.decide(n=10).checks}


@pytest.mark.parametrize(
    ("offline", "outcome"),
    [
        (evidence(0.02, 0.005, 0.035), "pass"),
        (evidence(0.0, -0.02, 0.02), "hold"),
        (evidence(-0.05, -0.07, -0.03), "reject"),
        (evidence(math.nan, math.nan, math.nan), "hold"),
        (None, "hold"),
    ],
)
def test_screen_is_the_offline_half(offline, outcome):
    decision = Gate(**OPTIONS).screen(offline)
    assert decision.outcome == outcome
    assert decision.exit_code == EXIT_CODES[outcome]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"margins": {"bounce": 0}}, "above 0"),
        ({"margins": {"bounce": None}}, "above 0"),
        ({"margins": ["bounce"]}, "mapping"),
        ({"lower_is_better": ["bounce"]}, "'bounce'"),
        ({"margins": {"b": 1}, "lower_is_better": "b"}, "list"),
        ({"epsilon": -0.1}, "at least 0"),
        ({"tolerance": math.nan}, "finite"),
        ({"alpha": 5}, "per cent"),
        ({"planned_n": 0}, ">= 1"),
        ({"min_days": -1}, ">= 0"),
        ({"whole_weeks": "no"}, "true or false"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Gate(**options)


def test_guardrail_without_a_margin_is_refused():
    with pytest.raises(ValueError, match="'conversions' must have a margin"):
        Gate(**OPTIONS).decide(**{**GOOD, "guardrails": {"conversions": evidence(0, 0, 0)}})


@pytest.mark.parametrize(
    ("given_evidence", "message"),
    [
        ({"online": SimpleNamespace(difference=0.1)}, "'low'"),
        ({"online": evidence("much", 0.0, 0.1)}, "must be a number"),
        ({"days": True}, "must be a number"),
        ({"novelty": SimpleNamespace(last_week=0.1)}, "'decaying'"),
        ({"deviations": "late"}, "list of texts"),
    ],
)
def test_evidence_without_its_fields_is_refused(given_evidence, message):
    with pytest.raises(ValueError, match=message):
        Gate().decide(**given_evidence)


def test_takes_the_results_of_stats():
    decision = Gate(tolerance=0.01).decide(
        offline=paired([0.5, 0.6, 0.7, 0.4, 0.6], [0.55, 0.66, 0.74, 0.46, 0.65]),
        online=two_proportions(2000, 40_000, 2300, 40_000),
        sample_ratio=sample_ratio([40_000, 40_000]),
        days=14,
    )
    assert decision.outcome == "ship"


def test_prints_every_check_with_its_numbers(tmp_path):
    decision = Gate(**OPTIONS).decide(**{**GOOD, "online": evidence(0.007, -0.004, math.inf, 0.2), "offline": None})
    text, markdown, page = str(decision), decision.to_markdown(), decision.to_html()
    for shown in (text, markdown, page):
        assert "hold" in shown.lower()
        assert "+0.007 [-0.004, +inf], p = 0.2" in shown
        assert "guardrail bounce" in shown
    assert "http" not in page
    loaded = json.loads(decision.to_json())
    assert loaded["outcome"] == "hold"
    assert loaded["exit_code"] == 10
    online = next(check for check in loaded["checks"] if check["name"] == "online")
    assert online["numbers"] == {"difference": 0.007, "low": -0.004, "high": "Infinity", "pvalue": 0.2}
    assert loaded["options"]["margins"] == {"latency": 0.01, "bounce": 0.02}


def test_names_in_a_page_are_escaped():
    page = Gate(margins={"<b>": 1}).decide().to_html()
    assert "&lt;b&gt;" in page
    assert "guardrail <b>" not in page


def test_configuration_from_yaml(tmp_path):
    path = tmp_path / "gate.yaml"
    path.write_text(
        "epsilon: 5e-3\ntolerance: 0.01\nmargins: {latency: 1e-2, bounce: 0.02}\nlower_is_better: [bounce]\nplanned_n: 1000\n"
    )
    gate = Gate.from_config(path)
    assert gate.options() == Gate(**OPTIONS).options()
    assert Gate.from_config(gate.options()).options() == gate.options()
    assert repr(gate) == repr(Gate(**OPTIONS))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epsillon: 1", "Did you mean 'epsilon'"),
        ("zzz: 1", "Known: epsilon"),
        ("[1, 2]", "mapping"),
        ("epsilon: x", "finite number"),
    ],
)
def test_bad_configuration_is_refused(tmp_path, text, message):
    path = tmp_path / "gate.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Gate.from_config(path)


def test_decision_from_files(tmp_path):
    (tmp_path / "offline.json").write_text(json.dumps({"low": 0.005, "high": 0.035}))
    (tmp_path / "bounce.json").write_text(json.dumps({"low": "-Infinity", "high": 0.01}))
    path = tmp_path / "gate.yaml"
    path.write_text(
        "margins: {bounce: 0.02}\nlower_is_better: [bounce]\nevidence:\n  offline: offline.json\n"
        "  online: {difference: 0.012, low: 0.004, high: 0.02, pvalue: 0.003}\n  guardrails: {bounce: bounce.json}\n"
        "  sample_ratio: {pvalue: 0.75}\n  days: 14\n"
    )
    assert decide_from_files(path).outcome == "ship"
    path.write_text("evidence: {onlin: 1}")
    with pytest.raises(ValueError, match="'onlin'"):
        decide_from_files(path)
    path.write_text("epsilon: 0.1")
    assert decide_from_files(path).outcome == "hold"


REPORT = {
    "evidence": {
        "new": {
            "online": {"difference": 0.012, "low": 0.004, "high": "Infinity", "pvalue": 0.003},
            "guardrails": {"bounce": {"low": -0.006, "high": 0.01}},
            "sample_ratio": {"pvalue": 0.75},
            "days": 14,
            "n": 5000,
            "novelty": None,
            "deviations": [],
        }
    },
    "gate_options": {"margins": {"bounce": 0.02}, "lower_is_better": ["bounce"], "alpha": 0.05, "planned_n": 4000},
}


def test_decision_from_the_report_of_an_experiment(tmp_path):
    config, offline, report = (tmp_path / name for name in ("gate.yaml", "offline.json", "report.json"))
    offline.write_text(json.dumps({"low": 0.005, "high": 0.035}))
    report.write_text(json.dumps(REPORT))
    config.write_text("evidence: {offline: offline.json, experiment: report.json}")
    decision = decide_from_files(config)
    assert decision.outcome == "ship", decision
    assert decision.options["margins"] == {"bounce": 0.02}, "as planned"
    # What the configuration says is before the plan, what is given before the configuration.
    config.write_text("planned_n: 6000")
    assert decide_from_files(config, offline=offline, experiment=report, arm="new").outcome == "invalid"
    config.write_text("evidence: {offline: none.json, experiment: none.json}")
    assert decide_from_files(config, offline=offline, experiment=report).outcome == "ship"
    with pytest.raises(FileNotFoundError):
        decide_from_files(config)
    with pytest.raises(ValueError, match="`arm` must be one of new, got 'old'"):
        decide_from_files(config, offline=offline, experiment=report, arm="old")
    report.write_text(json.dumps({**REPORT, "evidence": {"b": REPORT["evidence"]["new"], **REPORT["evidence"]}}))
    with pytest.raises(ValueError, match="several treatments: b, new"):
        decide_from_files(config, offline=offline, experiment=report)
    config.write_text("evidence: {arm: b}")
    assert decide_from_files(config, offline=offline, experiment=report).outcome == "ship"


@pytest.mark.parametrize("text", ["{", '{"low": 1}', "[]"])
def test_what_is_no_report_is_refused(tmp_path, text):
    (tmp_path / "gate.yaml").write_text("epsilon: 0.0")
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(ValueError, match=r"must be (JSON|a report)"):
        decide_from_files(tmp_path / "gate.yaml", experiment=tmp_path / "report.json")
