"""What the online statistics promise, simulated, and a log of 50 million events read once.

    python examples/benchmarks/online.py                # all parts, four minutes on two cores
    python examples/benchmarks/online.py --parts log    # one of: aa peeking coverage cuped interleaving log

By 10,000 simulations each, seed 0, on 2026-11-30 (intervals of the shares: Wilson, 95 %):

    A/A of a ratio, users split: rejected at 5 %    users as units 5.00 % [4.59, 5.44], impressions 23.25 % [22.43, 24.09]
    no difference, 20 looks: found at any           1.96 each time 24.46 % [23.63, 25.31], always-valid 1.37 % [1.16, 1.62],
                                                    Pocock 4.86 % [4.46, 5.30], O'Brien-Fleming 4.71 % [4.31, 5.14]
    the truth is in the interval at 95 %            fixed horizon: from 94.10 % [93.62, 94.55] (ratio of means, 1,000 users) to
                                                    95.40 % [94.97, 95.79] (Wilson); always-valid at 20 looks 98.86 %
    CUPED: variance left, rho 0.3, 0.6, 0.9         0.904, 0.641, 0.186; 1 - rho² is 0.910, 0.640, 0.190
    team draft, a clicker who does not read         49.65 % [48.67, 50.63]

50,002,833 events in Parquet to nine signals by arm: 41 s wall and CPU, 1.4 GiB, on 2 cores of a shared machine.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

PARTS = ("aa", "peeking", "coverage", "cuped", "interleaving", "log")


def share(hits: int, n: int) -> str:
    """A share in per cent with Wilson's interval at 95 %."""
    from lightning_rank.stats import wilson

    found = wilson(hits, n)
    return f"{100 * found.estimate:5.2f} % [{100 * found.low:.2f}, {100 * found.high:.2f}]"


def traffic(generator: np.random.Generator, users: int) -> tuple[np.ndarray, np.ndarray]:
    """Clicks and impressions of users who differ: some see much, and each clicks at a rate of its own."""
    shown = 1 + generator.negative_binomial(1, 0.05, users)
    return generator.binomial(shown, generator.beta(2.8, 18, users)), shown


def aa(simulations: int, generator: np.random.Generator) -> None:
    """Tests of two equal arms of 1,000 users: how often is a difference found at 5 %?"""
    from lightning_rank.stats import ratio_of_means, two_proportions

    ours = naive = 0
    for _ in range(simulations):
        (clicks_a, shown_a), (clicks_b, shown_b) = traffic(generator, 1000), traffic(generator, 1000)
        ours += ratio_of_means(clicks_a, shown_a, clicks_b, shown_b).pvalue < 0.05
        counts = (int(values.sum()) for values in (clicks_a, shown_a, clicks_b, shown_b))
        naive += two_proportions(*counts).pvalue < 0.05
    print("A/A, click-through rate of users split in two; rejected at 5 %")
    print(f"  users as units (delta method)   {share(ours, simulations)}")
    print(f"  impressions as units (naive z)  {share(naive, simulations)}")


def peeking(simulations: int, generator: np.random.Generator, looks: int = 20) -> None:
    """No difference, and a look after every 250 users of an arm: how often is one found at any look?"""
    from lightning_rank.stats import always_valid, group_sequential_bounds

    n = 250 * np.arange(1, looks + 1)
    bounds = {kind: group_sequential_bounds(looks, 0.05, kind).z for kind in ("pocock", "obrien-fleming")}
    found = dict.fromkeys(("fixed horizon, 1.96 at each", "always-valid, tau 0.02", *bounds), 0)
    for _ in range(simulations):
        rates = [generator.binomial(250, 0.1, looks).cumsum() / n for _ in range(2)]
        difference = rates[1] - rates[0]
        variance = sum(rate * (1 - rate) / n for rate in rates)
        z = np.abs(difference) / np.sqrt(variance)
        found["fixed horizon, 1.96 at each"] += bool((z > 1.959964).any())
        found["always-valid, tau 0.02"] += bool(always_valid(difference, variance, tau=0.02).pvalue[-1] < 0.05)
        for kind, bound in bounds.items():
            found[kind] += bool((z > bound).any())
    print(f"\nNo difference, {looks} looks; found at any look")
    for name, hits in found.items():
        print(f"  {name:30}  {share(hits, simulations)}")


def coverage(simulations: int, generator: np.random.Generator) -> None:
    """How often is the truth in an interval at 95 %?"""
    from lightning_rank.online import ClickThroughRate, composite_score
    from lightning_rank.online.signals import _rate
    from lightning_rank.stats import always_valid, cuped, paired, ratio_of_means, two_proportions, welch, wilson

    hits: dict[str, int] = {}

    def count(name: str, low: float, truth: float, high: float) -> None:
        hits[name] = hits.get(name, 0) + bool(low <= truth <= high)

    rate = (1.2 / 9.2, 1.5 / 9.5)
    for _ in range(simulations):
        x = generator.binomial(2000, 0.1), generator.binomial(3000, 0.12)
        found = two_proportions(x[0], 2000, x[1], 3000)
        count("two proportions, difference", found.low, 0.02, found.high)
        count("two proportions, lift", found.relative_low, 0.2, found.relative_high)
        alone = wilson(x[0], 2000)
        count("Wilson", alone.low, 0.1, alone.high)

        before = generator.gamma(2, 1, 700)
        a, b = before[:400] + generator.gamma(1, 2, 400), 1.1 * before[400:] + generator.gamma(1, 2, 300)
        found = welch(a, b)
        count("Welch, difference", found.low, 0.2, found.high)
        count("Welch, lift", found.relative_low, 0.05, found.relative_high)
        found = cuped(a, before[:400], b, before[400:])
        count("CUPED, difference", found.low, 0.2, found.high)

        shown = 1 + generator.negative_binomial(1, 0.1, 2000)
        clicks = generator.binomial(shown, np.r_[generator.beta(1.2, 8, 1000), generator.beta(1.5, 8, 1000)])
        found = ratio_of_means(clicks[:1000], shown[:1000], clicks[1000:], shown[1000:])
        count("ratio of means, difference", found.low, rate[1] - rate[0], found.high)
        count("ratio of means, lift", found.relative_low, rate[1] / rate[0] - 1, found.relative_high)
        ctr = _rate(clicks[:1000], shown[:1000], 0.05)
        count(f"{ClickThroughRate.__name__}", ctr.low, rate[0], ctr.high)

        score = composite_score(
            {"ndcg": float(np.mean(d := generator.beta(6, 2, 200))), "csat": x[0] / 2000},
            {"ndcg": 0.6, "csat": 0.4},
            variances={"ndcg": float(np.var(d, ddof=1) / 200), "csat": x[0] / 2000 * (1 - x[0] / 2000) / 2000},
        )
        count("composite score", score.low, 0.6 * 0.75 + 0.4 * 0.1, score.high)
        d = generator.gamma(2, 0.05, 100) - 0.08
        found = paired(np.full(100, 0.5), 0.5 + d)
        count("paired t, 100 queries", found.low, 0.02, found.high)

        n = 250 * np.arange(1, 21)
        rates = [generator.binomial(250, p, 20).cumsum() / n for p in (0.1, 0.12)]
        sequence = always_valid(rates[1] - rates[0], sum(p * (1 - p) / n for p in rates), tau=0.02)
        count("always-valid, at all of 20 looks", float(sequence.low.max()), 0.02, float(sequence.high.min()))
    print("\nThe truth is in the interval at 95 %")
    for name, covered in hits.items():
        print(f"  {name:32}  {share(covered, simulations)}")


def cuped_variance(simulations: int, generator: np.random.Generator) -> None:
    """The variance of the estimate over simulations, and what the theory says."""
    from lightning_rank.stats import cuped, welch

    print("\nCUPED: variance of the difference over simulations, relative to Welch")
    for rho in (0.3, 0.6, 0.9):
        plain, reduced, stated = [], [], []
        for _ in range(simulations):
            x = generator.standard_normal(400)
            y = rho * x + np.sqrt(1 - rho**2) * generator.standard_normal(400)
            plain.append(welch(y[:200], y[200:]).difference)
            found = cuped(y[:200], x[:200], y[200:], x[200:])
            reduced.append(found.difference)
            stated.append(found.variance_reduction)
        ratio = np.var(reduced) / np.var(plain)
        # By resampling of the simulations, which pairs the two.
        picks = generator.integers(0, simulations, (400, simulations))
        ratios = np.var(np.array(reduced)[picks], axis=1) / np.var(np.array(plain)[picks], axis=1)
        low, high = np.quantile(ratios, [0.025, 0.975])
        print(
            f"  rho {rho}: {ratio:.3f} [{low:.3f}, {high:.3f}], 1 - rho² = {1 - rho**2:.3f}, stated 1 - {np.mean(stated):.3f}"
        )


def interleaving(simulations: int, generator: np.random.Generator) -> None:
    """Whom does a clicker prefer who does not read?"""
    from lightning_rank.online import credit, team_draft

    coin = random.Random(int(generator.integers(2**31)))
    wins = {"a": 0, "b": 0, "tie": 0}
    for _ in range(simulations):
        shown = team_draft([2, 3, 1], [1, 2, 3], seed=coin)
        wins[credit(shown, [coin.choice(shown.documents)])] += 1
    print("\nTeam draft of [2, 3, 1] and [1, 2, 3], one random click")
    print(f"  won by a                        {share(wins['a'], wins['a'] + wins['b'])}")


def write_log(path: Path, events: int, seed: int = 0) -> int:
    """A log sorted by time: searches of ten results, clicks, two arms of users; returns the rows."""
    import polars as pl

    generator = np.random.default_rng(seed)
    searches = events * 10 // 113
    users = max(searches // 7, 2)
    chunk = 250_000
    starts = np.sort(generator.uniform(0, 14 * 86400, searches)) + 1.7e9
    topics = np.array([f"{a} {b}" for a in ("red", "blue", "green", "new", "old") for b in ("shoes", "hat", "bag", "coat")])
    rows = 0
    folder = path.with_suffix("")
    folder.mkdir()
    for start in range(0, searches, chunk):
        time_ = starts[start : start + chunk]
        n = len(time_)
        user = generator.integers(0, users, n)
        click = np.flatnonzero(generator.random(n) < 0.3)
        which = np.r_[np.arange(n), np.repeat(np.arange(n), 10), click]
        kind = np.r_[np.zeros(n, int), np.ones(10 * n, int), np.full(len(click), 2)]
        position = np.r_[
            np.zeros(n, int), np.tile(np.arange(1, 11), n), np.minimum(generator.geometric(0.4, len(click)), 10)
        ]
        t = np.r_[time_, np.repeat(time_ + 0.1, 10), time_[click] + generator.exponential(40, len(click))]
        order = np.argsort(t, kind="stable")
        which, kind, position, t = which[order], kind[order], position[order], t[order]
        number = start + which
        frame = pl.DataFrame(
            {
                "timestamp": t,
                "user": pl.Series(user[which]).cast(pl.String),
                "event": pl.Series(np.array(["search", "impression", "click"])[kind]),
                "search": pl.Series(number).cast(pl.String),
                "query": pl.Series(topics[number % len(topics)]),
                "document": pl.Series((number * 7919 + position) % 100_000).cast(pl.String),
                "position": pl.Series(position),
                "arm": pl.Series(np.array(["old", "new"])[user[which] % 2]),
            }
        ).with_columns(
            query=pl.when(pl.col("event") == "search").then("query"),
            document=pl.when(pl.col("event") != "search").then("document"),
            position=pl.when(pl.col("event") != "search").then("position"),
        )
        frame.write_parquet(folder / f"{start:010}.parquet", row_group_size=1_000_000)
        rows += len(frame)
    return rows


def read_log(path: str) -> None:
    """Run in a process of its own, so that its peak memory is that of reading."""
    from lightning_rank.online import Signals

    signals = Signals({name: signal for name, signal in Signals().signals.items() if name != "satisfaction"})
    started = time.perf_counter()
    signals.read(*sorted(map(str, Path(path).iterdir())))
    by_arm = signals.by_arm()
    seconds = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"  {signals.counts().rows:,} events in {seconds:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of CPU on "
        f"{os.environ.get('POLARS_MAX_THREADS')} threads, peak memory {used.ru_maxrss / 2**20:.2f} GiB"
    )
    for name in ("ctr", "ctr_per_search", "requery"):
        print(f"  {name:15} old {by_arm['old'][name].value:.5f}, new {by_arm['new'][name].value:.5f}")


def log(events: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.parquet")
        rows = write_log(path, events)
        size = sum(file.stat().st_size for file in path.with_suffix("").iterdir()) / 2**30
        print(f"\nA log of {rows:,} events in Parquet ({size:.2f} GiB) to nine signals by arm, one pass", flush=True)
        environment = {**os.environ, "POLARS_MAX_THREADS": "2"}
        subprocess.run([sys.executable, __file__, "--read", str(path.with_suffix(""))], check=True, env=environment)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--simulations", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=50_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--read", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        read_log(options.read)
        return
    functions = {"aa": aa, "peeking": peeking, "coverage": coverage, "cuped": cuped_variance, "interleaving": interleaving}
    for part in options.parts:
        if part == "log":
            log(options.events)
        else:
            functions[part](options.simulations, np.random.default_rng(options.seed))


if __name__ == "__main__":
    main()
