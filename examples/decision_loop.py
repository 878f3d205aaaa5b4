"""From a trained ranker to a decision and back: screen offline, plan, experiment, survey, gate, and learn from the clicks.

    python examples/decision_loop.py

The users are SIMULATED: a position-based click model, whose look at position k has the probability 1 / k. What is printed says
that the parts fit together, and nothing of real users.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightning_rank import RankingDataset, RankingMetrics, SoftmaxLoss, make_ranking
from lightning_rank.gate import Gate
from lightning_rank.online import (
    Experiment,
    PositionBasedModel,
    Signals,
    assign,
    click_targets,
    evaluate_plan,
    plan,
    relative_score,
    swap_propensities,
)
from lightning_rank.stats import paired

ITEMS = 10
LOOKS = 1 / np.arange(1, ITEMS + 1)
FEW = 4  # features that the old ranker knew


class Mlp(nn.Module):
    def __init__(self, num_features: int, known: int | None = None) -> None:
        super().__init__()
        self.known = known or num_features
        self.net = nn.Sequential(nn.Linear(self.known, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, features: Tensor) -> Tensor:
        return self.net(features[..., : self.known]).squeeze(-1)


def train(
    scorer: nn.Module, data: RankingDataset, target: Tensor, weight: Tensor | None = None, epochs: int = 30
) -> nn.Module:
    """Softmax loss; an item's gain is its target, times its weight."""
    torch.manual_seed(0)
    optimizer, loss = torch.optim.Adam(scorer.parameters(), lr=3e-3), SoftmaxLoss(gain="linear")
    features, target = data.features.view(-1, ITEMS, data.num_features), target.view(-1, ITEMS)
    weight = torch.ones_like(target) if weight is None else weight.view(-1, ITEMS)
    for _ in range(epochs):
        for queries in torch.randperm(len(features)).split(32):
            optimizer.zero_grad()
            loss(scorer(features[queries]), target[queries], weight=weight[queries]).backward()
            optimizer.step()
    return scorer


@torch.no_grad()
def ndcg(scorer: nn.Module, data: RankingDataset) -> dict[int, float]:
    """NDCG@10 by query, of those with a relevant item."""
    metric = RankingMetrics(["ndcg@10"], per_query=True)
    metric.update(scorer(data.features), data.grades, offsets=data.offsets)
    ids, values = metric.query_values()
    return {query: value for query, value in zip(ids.tolist(), values.flatten().tolist(), strict=True) if value == value}


class Traffic:
    """SIMULATED users, who search, look by position, click by grade, come back soon from a bad result, and answer a survey."""

    def __init__(self, data: RankingDataset, orders: dict[str, np.ndarray], seed: int) -> None:
        self.orders, self.generator = orders, np.random.default_rng(seed)
        self.grades = data.grades.view(-1, ITEMS).long().numpy()
        self.log: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self.shown: dict[str, list[Any]] = defaultdict(list)
        self.searches = 0

    def add(self, **fields: Any) -> None:
        for name, values in self.log.items():
            values.append(fields.get(name))

    def visit(self, user: str, arm: str, start: float, swaps: float) -> None:
        time, generator = start, self.generator
        pleasure = 0.0
        searches = 1 + int(generator.poisson(2))
        for _ in range(searches):
            query = int(generator.integers(len(self.grades)))
            order = self.orders[arm][query].copy()
            other = 0
            if generator.random() < swaps:
                # One result changes places with the first, by a fair coin.
                other = int(generator.integers(1, ITEMS))
                if generator.random() < 0.5:
                    order[[0, other]] = order[[other, 0]]
            grades = self.grades[query, order]
            clicked = generator.random(ITEMS) < LOOKS * (0.05 + 0.9 * (2.0**grades - 1) / 7)
            at = {"user": user, "arm": arm, "search": f"{self.searches}"}
            self.searches += 1
            self.add(timestamp=time, event="search", query=f"query {query}", **at)
            for k, document in enumerate(order.tolist()):
                self.add(timestamp=time, event="impression", document=f"{document}", position=k + 1, **at)
                for name, value in zip(SHOWN, (query, document, k + 1, clicked[k], other + 1, user), strict=True):
                    self.shown[name].append(value)
            for k in np.flatnonzero(clicked).tolist():
                time += 5
                self.add(timestamp=time, event="click", document=f"{order[k]}", position=k + 1, **at)
                time += 10 if grades[k] == 0 and generator.random() < 0.7 else 90
            pleasure += float(LOOKS @ grades) / searches
            time += 5
        if generator.random() < 0.3:
            rating = (
                int(np.clip(round(2 + pleasure / 1.5 + generator.normal()), 1, 5)) if generator.random() < 0.6 else None
            )
            self.add(timestamp=time, event="survey", user=user, arm=arm, rating=rating)

    def run(self, users: int, days: int, experiment: str, swaps: float = 0.1) -> Signals:
        arms = dict.fromkeys(self.orders, 1.0)
        for i in range(users):
            user = f"{experiment} {i}"
            self.visit(user, assign(user, experiment, arms), 1.7e9 + 86400 * days * i / users, swaps)
        signals = Signals()
        signals.update(self.log)
        return signals


COLUMNS = ("timestamp", "user", "event", "search", "query", "document", "position", "arm", "rating")
SHOWN = ("query", "document", "position", "clicked", "other", "user")


@torch.no_grad()
def orders(scorer: nn.Module, data: RankingDataset) -> np.ndarray:
    return scorer(data.features).view(-1, ITEMS).argsort(dim=1, descending=True).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--effect", type=float, default=0.02, help="more searches with a click, that the experiment is to find"
    )
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    sizes = {"labelled": 150, "validation": 300, "live": 400, "test": 500}
    labelled, validation, live, test = (
        make_ranking(n, min_items=ITEMS, max_items=ITEMS, difficulty=0.1, seed=args.seed, split=i)
        for i, n in enumerate(sizes.values())
    )
    gains = 2**labelled.grades - 1

    print("1. Train, and screen offline")
    old = train(Mlp(labelled.num_features, FEW), labelled, gains)
    new = train(Mlp(labelled.num_features), labelled, gains)
    gate = Gate(epsilon=0.0, tolerance=0.005, margins={"quick back": 0.02}, lower_is_better=["quick back"])
    offline = paired(ndcg(old, validation), ndcg(new, validation))
    print(f"   NDCG@10 {offline}\n   screen: {gate.screen(offline).outcome}")

    print("2. Plan, from a week of the old ranker (simulated)")
    week = Traffic(live, {"old": orders(old, live)}, args.seed + 1).run(1500, 7, "pilot", swaps=0.0)
    units = week.units("ctr_per_search")
    ratio = units.numerator.sum() / units.denominator.sum()
    sd = float(np.std(units.numerator - ratio * units.denominator, ddof=1) / units.denominator.mean())
    made = plan(
        ["old", "new"],
        {"numerator": "ctr_per_search_sum", "denominator": "ctr_per_search_n"},
        effect=args.effect,
        sd=sd,
        guardrails={
            "quick back": {
                "numerator": "quick_back_sum",
                "denominator": "quick_back_n",
                "margin": 0.02,
                "lower_is_better": True,
            }
        },
        eligible_per_day=600,
    )
    print(f"   {made}")

    print("3. Run the experiment (simulated), read the signals and the survey")
    traffic = Traffic(live, {"old": orders(old, live), "new": orders(new, live)}, args.seed + 2)
    assert made.days is not None
    signals = traffic.run(600 * made.days, made.days, "ranker-v2")
    by_arm = signals.by_arm()
    for name in ("ctr_per_search", "click_position", "quick_back", "satisfaction"):
        for arm in ("old", "new"):
            print(f"   {arm} {name}: {by_arm[arm][name]}")
    experiment = Experiment(made.arms)
    experiment.update_from(signals)
    report = evaluate_plan(made, experiment, days=made.days)
    print("   " + str(report).replace("\n", "\n   "))

    print("4. Decide")
    parts = {
        arm: {"ndcg": value, "ctr": by_arm[arm]["ctr_per_search"].value, "csat": by_arm[arm]["satisfaction"].value}
        for arm, value in (("old", offline.value_a), ("new", offline.value_b))
    }
    print(
        f"   score over the old ranker: {relative_score(parts['new'], parts['old'], {'ndcg': 0.5, 'ctr': 0.3, 'csat': 0.2})}"
    )
    print("   " + str(gate.decide(offline=offline, **report.evidence("new"))).replace("\n", "\n   "))

    print("5. Learn from the clicks of the old ranker")
    shown = {name: np.array(values) for name, values in traffic.shown.items()}
    of_pair = (shown["other"] > 1) & ((shown["position"] == 1) | (shown["position"] == shown["other"]))
    pairs = {name: values[of_pair] for name, values in shown.items()}
    swapped = swap_propensities(
        np.ones(of_pair.sum()), pairs["other"], pairs["position"], pairs["clicked"], unit=pairs["user"]
    )
    clicks = (shown["query"], shown["document"], shown["position"], shown["clicked"])
    model = PositionBasedModel(iterations=500).fit(*clicks)
    for name, found in (("swaps", swapped.propensity), ("click model", model.propensities.propensity), ("truth", LOOKS)):
        print(f"   {name:12}" + " ".join(f"{p:.2f}" for p in found))
    of_old = np.array([assign(user, "ranker-v2", made.arms) == "old" for user in shown["user"].tolist()])
    results = {}
    for name, propensities in (("raw clicks", None), ("swaps", swapped), ("click model", model.propensities)):
        found = click_targets(*(values[of_old] for values in clicks), propensities)
        target, weight = torch.zeros(len(live), ITEMS), torch.ones(len(live), ITEMS)
        target[list(found.query), list(found.document)] = torch.tensor(found.target, dtype=torch.float32)
        weight[list(found.query), list(found.document)] = torch.tensor(found.weight, dtype=torch.float32)
        results[name] = ndcg(train(Mlp(live.num_features), live, target, weight), test)
        print(f"   {name}: {found}")
    print("   NDCG@10 against the true grades of other queries")
    for name, scorer in (("old ranker", old), ("new ranker", new)):
        print(f"   {name:12}{np.mean(list(ndcg(scorer, test).values())):.4f}")
    print(f"   raw clicks  {np.mean(list(results['raw clicks'].values())):.4f}")
    for name in ("swaps", "click model"):
        compared = paired(results["raw clicks"], results[name])
        print(f"   {name:12}{compared.value_b:.4f}, over raw clicks: {compared}")


if __name__ == "__main__":
    main()
