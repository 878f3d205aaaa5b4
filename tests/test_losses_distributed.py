"""Two real processes: every loss with ``global_mean``, and in-batch softmax, have the gradients of one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lightning_rank import functional
from lightning_rank.functional import in_batch_softmax_loss
from lightning_rank.functional.losses import LOSSES, LossSpec
from tests.conftest import assert_close
from tests.loss_cases import F64, function_of

QUERIES, ROWS = (3, 2), (4, 2)
"""Queries, and rows of two towers, in each process."""

SCRIPT = """
import os
import sys
import torch
from tests.test_losses_distributed import work
torch.set_num_threads(1)
rank, folder = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
torch.save(work(rank), f"{folder}/{rank}.pt")
# The end of a process group may hang or abort with PyTorch 2.4.
os._exit(0)
"""


def queries_of(spec: LossSpec) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Five queries with noise; one of the second process has no signal, whatever the loss asks for but an item."""
    generator = torch.Generator().manual_seed(0)
    shape = (5, 4, 3) if spec.logits else (5, 4)
    preds = torch.randn(shape, generator=generator, dtype=F64)
    target = torch.randint(0, 2, (5, 4), generator=generator)
    target[:, 0], target[:, 1], target[4] = 1, 0, 0
    noise = {"gamma": (5, 4), "noise": (2, 5, 4), None: (0,)}[spec.noise]
    drawn = torch.rand(noise, generator=generator, dtype=F64)
    return preds.requires_grad_(), target, {spec.noise: drawn} if spec.noise else {}


def gradient_of(spec: LossSpec, rows: slice, *, global_mean: bool) -> Tensor:
    preds, target, noise = queries_of(spec)
    noise = {name: values[rows] if name == "gamma" else values[:, rows] for name, values in noise.items()}
    function_of(spec)(preds[rows], target[rows], global_mean=global_mean, **noise).backward()
    return preds.grad


def towers() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    query, item = (torch.randn(sum(ROWS), 3, generator=generator, dtype=F64).requires_grad_() for _ in range(2))
    log_q = torch.randn(sum(ROWS), generator=generator, dtype=F64).requires_grad_()
    return query, item, torch.tensor([0, 1, 2, 0, 1, 3]), log_q


def gradients_of_towers(rows: slice) -> list[Tensor]:
    query, item, ids, log_q = towers()
    in_batch_softmax_loss(query[rows], item[rows], temperature=0.5, item_ids=ids[rows], log_q=log_q[rows]).backward()
    return [query.grad, item.grad, log_q.grad]


def work(rank: int) -> dict[str, object]:
    """The gradients in one of two processes."""
    first = sum(QUERIES[:rank])
    gradients = {
        name: gradient_of(spec, slice(first, first + QUERIES[rank]), global_mean=True) for name, spec in LOSSES.items()
    }
    first = sum(ROWS[:rank])
    rows = slice(first, first + ROWS[rank])
    query, item, ids, _ = (values[rows] for values in towers())
    alone = in_batch_softmax_loss(query, item, item_ids=ids, gather=False).detach()
    return gradients | {"in_batch_softmax": gradients_of_towers(rows), "alone": alone}


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> list[dict]:
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    folder = tmp_path_factory.mktemp("processes")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(folder)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    for process in processes:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("spec", LOSSES.values(), ids=LOSSES)
def test_averaged_gradients_are_those_of_one_process(spec, parts):
    wanted = gradient_of(spec, slice(0, sum(QUERIES)), global_mean=False)
    assert (wanted != 0).any()
    assert_close((parts[0][spec.name] + parts[1][spec.name]) / 2, wanted)


def test_in_batch_softmax_has_the_gradient_of_the_whole_batch(parts):
    wanted = gradients_of_towers(slice(0, sum(ROWS)))
    for first, second, one in zip(*(part["in_batch_softmax"] for part in parts), wanted, strict=True):
        assert_close((first + second) / 2, one)


def test_in_batch_softmax_without_gathering_keeps_to_its_process(parts):
    for rank, start in enumerate((0, ROWS[0])):
        query, item, ids, _ = (values[start : start + ROWS[rank]] for values in towers())
        assert_close(parts[rank]["alone"], functional.in_batch_softmax_loss(query, item, item_ids=ids).detach())
