"""A metric and a loss in a plain PyTorch loop, without Lightning; scores are logits of any sign.

python examples/metric_only.py
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from lightning_rank import RankingMetrics, SoftmaxLoss, make_ranking


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=800)
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()

    torch.manual_seed(0)
    train, val = (make_ranking(n, difficulty=0.2, split=i) for i, n in enumerate((args.queries, args.queries // 4)))
    scorer = nn.Sequential(nn.Linear(train.num_features, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(scorer.parameters(), lr=3e-3)
    loss = SoftmaxLoss(gain="exp2")
    metrics = RankingMetrics(["ndcg@5", "ndcg@10", "map", "mrr"])
    print(metrics)  # and repr(metrics) states every convention in force
    print("epoch  " + "  ".join(f"{name:>8}" for name in metrics.names))
    for epoch in range(args.epochs):
        for queries in torch.randperm(len(train)).split(32):
            batch = train[queries.tolist()]
            optimizer.zero_grad()
            loss(scorer(batch["features"]).squeeze(-1), batch["target"], mask=batch["mask"]).backward()
            optimizer.step()
        with torch.no_grad():
            # Flat items with offsets need no padding.
            metrics.update(scorer(val.features).squeeze(-1), val.grades, offsets=val.offsets)
        print(f"{epoch:>5}  " + "  ".join(f"{value.item():8.4f}" for value in metrics.compute().values()))
        metrics.reset()


if __name__ == "__main__":
    main()
