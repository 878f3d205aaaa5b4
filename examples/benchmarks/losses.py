"""Losses, forward and backward, against plain dense PyTorch and sentence-transformers, in one run: time, memory, growth.

    python examples/benchmarks/losses.py               # --threads 2, --losses approx_ndcg ranknet
    pip install sentence-transformers                  # compared where it is installed, up to 1,000 items

"Dense" is the textbook formula in a few lines of PyTorch, all pairs laid out, its gradient by autograd: what people write. Both
sides get the same scores and five grades; values are compared before anything is timed. Times are medians, the sides taking turns
in one process; memory is the rise above what the process held before, at its peak, each in a process of its own.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from importlib.util import find_spec

import torch
from measuring import alternately, extra_bytes, printed_by, seconds
from torch import Tensor

from lightning_rank import functional
from lightning_rank.report.tables import print_table

F = torch.nn.functional
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
MIB = 2**20


# The textbook ---------------------------------------------------------------------------------------------------------


def gains_over_ideal(grade: Tensor, mask: Tensor) -> Tensor:
    gain = (torch.exp2(grade) - 1) * mask
    rank = torch.arange(1, grade.shape[1] + 1)
    return gain / (gain.sort(descending=True).values / torch.log2(rank + 1)).sum(1, keepdim=True)


def approx_ndcg(score: Tensor, grade: Tensor, mask: Tensor) -> Tensor:
    beats = torch.sigmoid(score[:, None, :] - score[:, :, None]) * mask[:, None, :]
    rank = beats.sum(-1) + 0.5
    return 1 - (gains_over_ideal(grade, mask) / torch.log2(1 + rank)).sum(1)


def pairs_of(score: Tensor, grade: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    better = (grade[:, :, None] > grade[:, None, :]) & mask[:, :, None] & mask[:, None, :]
    return score[:, :, None] - score[:, None, :], better


def ranknet(score: Tensor, grade: Tensor, mask: Tensor) -> Tensor:
    difference, better = pairs_of(score, grade, mask)
    return (F.softplus(-difference) * better).sum((1, 2))


def hinge(score: Tensor, grade: Tensor, mask: Tensor) -> Tensor:
    difference, better = pairs_of(score, grade, mask)
    return (F.relu(1 - difference) * better).sum((1, 2))


def lambda_loss(score: Tensor, grade: Tensor, mask: Tensor, mu: float = 0.0) -> Tensor:
    difference, better = pairs_of(score, grade, mask)
    gain = gains_over_ideal(grade, mask)
    rank = score.detach().masked_fill(~mask, -math.inf).argsort(descending=True).argsort() + 1
    discount = 1 / torch.log2(1.0 + rank)
    weight = (discount[:, :, None] - discount[:, None, :]).abs()
    if mu:
        apart = (rank[:, :, None] - rank[:, None, :]).abs()
        weight = weight + mu * (1 / torch.log2(1.0 + apart) - 1 / torch.log2(2.0 + apart))
    weight = weight * (gain[:, :, None] - gain[:, None, :])
    return torch.where(better, weight * F.softplus(-difference), 0.0).sum((1, 2))


def lambda_2pp(score: Tensor, grade: Tensor, mask: Tensor) -> Tensor:
    return lambda_loss(score, grade, mask, mu=10.0)


def neural_ndcg(score: Tensor, grade: Tensor, mask: Tensor) -> Tensor:
    n = mask.sum(1, keepdim=True)
    spread = ((score[:, :, None] - score[:, None, :]).abs() * mask[:, None, :]).sum(-1)
    rank = torch.arange(1, score.shape[1] + 1)
    logits = (n + 1 - 2 * rank)[:, :, None] * score[:, None, :] - spread[:, None, :]
    p = torch.softmax(logits.masked_fill(~mask[:, None, :], -math.inf), -1)
    p = p * (rank <= n)[:, :, None]
    for _ in range(30):
        p = p / p.sum(1, keepdim=True).clamp(min=1e-10)
        p = p / p.sum(2, keepdim=True).clamp(min=1e-10)
    sorted_gain = (p * gains_over_ideal(grade, mask)[:, None, :]).sum(-1)
    return 1 - (sorted_gain / torch.log2(1.0 + rank)).sum(1)


DENSE: dict[str, Loss] = {
    "approx_ndcg": approx_ndcg,
    "ranknet": ranknet,
    "lambdarank": lambda_loss,
    "lambda": lambda_2pp,
    "pairwise_hinge": hinge,
    "neural_ndcg": neural_ndcg,
}
LONGEST = {"lambda": 100_000, "neural_ndcg": 1_000}


# The public library ---------------------------------------------------------------------------------------------------


class Scores(torch.nn.Module):
    """Stands for a cross-encoder whose scores are known."""

    num_labels = 1
    device = torch.device("cpu")

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = scores

    def preprocess(self, pairs: object, **kwargs: object) -> dict[str, Tensor]:
        return {}

    def forward(self, tokens: object) -> dict[str, Tensor]:
        return {"scores": self.scores}


def public(name: str, shape: str) -> Callable[[], Tensor]:
    from sentence_transformers.cross_encoder import losses
    from sentence_transformers.cross_encoder.losses import LambdaRankScheme, NDCGLoss2PPScheme

    makers = {
        "ranknet": lambda model: losses.RankNetLoss(model, mini_batch_size=-1),
        "lambdarank": lambda model: losses.LambdaLoss(model, LambdaRankScheme(), mini_batch_size=-1),
        "lambda": lambda model: losses.LambdaLoss(model, NDCGLoss2PPScheme(), mini_batch_size=-1),
    }
    score, grade, _ = lists_of(shape)
    queries, documents = ["q"] * len(score), [["d"] * row for row in [score.shape[1]] * len(score)]
    leaf = score.clone().requires_grad_()
    loss = makers[name](Scores(leaf.flatten()))

    def run() -> Tensor:
        leaf.grad = None
        value = loss((queries, documents), list(grade))
        value.backward(retain_graph=True)
        return value

    return run


# Inputs and runs ------------------------------------------------------------------------------------------------------


def lists_of(shape: str) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, grades and mask, padded: ``"2x50"`` are full lists, ``"64 jagged"`` lists of mean 120 and at most 400."""
    generator = torch.Generator().manual_seed(0)
    if shape.endswith("jagged"):
        lengths = torch.empty(int(shape.split()[0])).log_normal_(4.6, 0.65, generator=generator).long().clamp(5, 400)
    else:
        queries, items = map(int, shape.split("x"))
        lengths = torch.full((queries,), items)
    size = (len(lengths), int(lengths.max()))
    grade = torch.multinomial(torch.tensor([0.55, 0.3, 0.1, 0.03, 0.02]), size[0] * size[1], True, generator=generator)
    mask = torch.arange(size[1]) < lengths[:, None]
    return torch.randn(size, generator=generator), grade.view(size).float() * mask, mask


def here(name: str, shape: str) -> Callable[[], Tensor]:
    """Flat lists with offsets where they are jagged, rows where they are full."""
    score, grade, mask = lists_of(shape)
    layout = {}
    if shape.endswith("jagged"):
        score, grade = score[mask], grade[mask]
        layout["offsets"] = torch.cat([torch.zeros(1, dtype=torch.long), mask.sum(1).cumsum(0)])
    leaf = score.requires_grad_()
    function = getattr(functional, f"{name}_loss")

    def run() -> Tensor:
        leaf.grad = None
        value = function(leaf, grade, **layout)
        value.backward()
        return value.detach()

    return run


def dense(name: str, shape: str) -> Callable[[], Tensor]:
    score, grade, mask = lists_of(shape)
    leaf = score.requires_grad_()

    def run() -> Tensor:
        leaf.grad = None
        value = DENSE[name](leaf, grade, mask).mean()
        value.backward()
        return value.detach()

    return run


SIDES = {"here": here, "dense": dense, "public": public}


def measure(sides: str, name: str, shape: str) -> str:
    """Of one side its extra bytes and its value, of several their seconds, measured in this process."""
    runs = [SIDES[side](name, shape) for side in sides.split(",")]
    if len(runs) > 1:
        return " ".join(map(str, alternately(runs)))
    SIDES[sides](name, "2x5")()  # what a first call loads
    return f"{extra_bytes(runs[0])} {runs[0]().item()}"


def compare(name: str, shape: str, threads: int) -> list[str]:
    items = 400 if shape.endswith("jagged") else int(shape.split("x")[1])
    sides = ["here", *["dense"] * (items <= 10_000)]
    if find_spec("sentence_transformers") and items <= 1_000 and name in ("ranknet", "lambdarank", "lambda"):
        sides += ["public"] * (not shape.endswith("jagged"))
    extras, values = {}, {}
    for side in sides:
        printed = printed_by(__file__, "--one", side, name, shape, "--threads", str(threads))
        if printed is not None:
            extras[side], values[side] = map(float, printed.split())
    sides = [side for side in sides if side in values]
    if len(sides) > 1:
        took = printed_by(__file__, "--one", ",".join(sides), name, shape, "--threads", str(threads))
        times = dict(zip(sides, map(float, took.split()), strict=True))
    else:
        times = {"here": seconds(here(name, shape))}
    # The textbook of NeuralNDCG stops after 30 rounds, which is not yet the limit.
    if "dense" in values and name != "neural_ndcg" and abs(values["dense"] - values["here"]) > 1e-4 * abs(values["here"]):
        raise SystemExit(f"{name} differs on {shape}: {values['here']} here, {values['dense']} dense.")

    def ratio(of: dict[str, float], side: str, least: float = 0.0) -> str:
        return f"{of[side] / max(of['here'], least):.1f}" if side in of else ""

    return [
        name,
        shape,
        f"{times['here'] * 1e3:.1f} ms",
        ratio(times, "dense"),
        ratio(times, "public"),
        f"{extras['here'] / MIB:.0f} MiB",
        ratio(extras, "dense", least=MIB),
        ratio(extras, "public", least=MIB),
    ]


def growth(name: str) -> list[str]:
    """Time at 10^4, 10^5, 10^6 items, and the exponent over these two decades."""
    times = [seconds(here(name, f"1x{n}")) for n in (10**4, 10**5, 10**6)]
    return [name, *(f"{t * 1e3:.0f} ms" for t in times), f"{math.log10(times[2] / times[0]) / 2:.2f}"]


SHAPES = ("128x50", "64x120", "1x100", "1x1000", "1x10000", "1x100000", "64 jagged", "512 jagged")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--losses", nargs="+", default=list(DENSE), choices=DENSE)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="queries x items, or 'N jagged'")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--growth", nargs="*", default=["approx_ndcg", "ranknet", "lambdarank", "pairwise_hinge"])
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.one:
        print(measure(*args.one))
        return
    rows = []
    for name in args.losses:
        for shape in args.shapes:
            if not shape.endswith("jagged") and int(shape.split("x")[1]) > LONGEST.get(name, 10**9):
                continue
            print(f"{name}, {shape}", file=sys.stderr)
            rows.append(compare(name, shape, args.threads))
    header = ["loss", "lists", "here", "dense / here", "public / here", "memory here", "dense / here", "public / here"]
    print_table(f"Forward and backward, threads: {args.threads}, torch {torch.__version__}", header, rows)
    if args.growth:
        rows = [growth(name) for name in args.growth]
        print_table("Growth with the items of one list", ["loss", "10^4", "10^5", "10^6", "exponent"], rows)


if __name__ == "__main__":
    main()
