"""An A/B test with one row per user, from the file to the verdict.

    python examples/ab_test.py                                  # data/cookie_cats_ab/cookie_cats.csv, else generated data
    python examples/ab_test.py --data FILE.csv

The file is that of the mobile game Cookie Cats: should players wait at level 30 (control) or 40? Its columns are ``test_version``,
``sum_gamerounds``, ``retention_1`` and ``retention_7``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import polars as pl

from lightning_rank.gate import Gate
from lightning_rank.online import Experiment, evaluate_plan, plan
from lightning_rank.stats import always_valid, min_detectable_effect

PLACE = Path("data/cookie_cats_ab/cookie_cats.csv")


def generated(users: int = 90_000) -> pl.DataFrame:
    """The same columns, with a fall of day-7 retention by a point."""
    generator = np.random.default_rng(0)
    late = generator.random(users) < 0.5
    return pl.DataFrame(
        {
            "userid": np.arange(users),
            "test_version": np.where(late, "gate_40", "gate_30"),
            "sum_gamerounds": generator.negative_binomial(0.3, 0.006, users),
            "retention_1": generator.random(users) < 0.448 - 0.005 * late,
            "retention_7": generator.random(users) < 0.19 - 0.01 * late,
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="CSV")
    args = parser.parse_args()
    path = args.data or PLACE
    if args.data or path.exists():
        players, source = pl.read_csv(path), str(path)
    else:
        players, source = generated(), "generated data"
    print(f"{len(players):,} players, {source}\n")

    # Before the test: what decides, what must not get worse, and how many players that takes.
    made = plan(
        ["gate_30", "gate_40"],
        {"numerator": "retention_7", "kind": "proportion"},
        baseline=0.19,
        effect=0.01,
        guardrails={"day 1": {"numerator": "retention_1", "kind": "proportion", "margin": 0.01}},
        secondary={"rounds": "rounds", "rounds, at most 3,000": "capped"},
    )
    print(f"Plan: {made}")

    experiment = Experiment(made.arms)
    for (arm,), rows in players.partition_by("test_version", as_dict=True).items():
        rounds = rows["sum_gamerounds"].to_numpy()
        experiment.update(
            arm,
            unit=rows["userid"].to_list(),
            retention_1=rows["retention_1"].cast(pl.Int8).to_numpy(),
            retention_7=rows["retention_7"].cast(pl.Int8).to_numpy(),
            rounds=rounds,
            capped=np.minimum(rounds, 3000),
        )
    report = evaluate_plan(made, experiment)
    print(f"\n{report}")

    found = report.primary["gate_40"]
    smallest = min_detectable_effect(found.value_a, found.n_a, found.n_b)
    safe = always_valid(found.difference, found.se**2, tau=0.01)
    print(f"\nWith power 0.8 it could find {100 * smallest:+.2f} points; had one looked at it every day: {safe}")
    # There is no ranker to evaluate offline here, and nobody wrote down the days: the gate says so, and that it is harm.
    evidence = report.evidence("gate_40")
    print(f"\nGate: {Gate(**report.gate_options()).decide(**evidence)}")


if __name__ == "__main__":
    main()
