"""Training that is killed, loses a worker, diverges or meets a full disk: nothing is lost, it is told, and training goes on."""

from __future__ import annotations

import json
import operator
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from lightning_utilities.core.imports import compare_version
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import ModelCheckpoint

from lightning_rank.checkpoints import check_checkpoint
from lightning_rank.losses import SoftmaxLoss
from lightning_rank.models import LinearScorer, MLPScorer
from lightning_rank.offline.per_query import write_per_query
from lightning_rank.pytorch_lightning import LetorDataModule, RankingModule, SafeCheckpointIO, TerminateOnNaN
from tests.lightning_cases import Ranker, loader, trainer
from tests.test_cli import run
from tests.test_datamodule import fold, write_fold  # noqa: F401  # a fixture

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
FOLDER = Path(__file__).parent

TRAIN = """
import json, os, signal, sys
import pytorch_lightning as pl, torch
from lightning_rank.models import MLPScorer
from lightning_rank.pytorch_lightning import LetorDataModule, RankingModule, RankingMonitor
from tests.lightning_cases import trainer
folder, keep, die_in, resume = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

class Record(pl.Callback):
    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0):
        if trainer.current_epoch == die_in and batch_idx == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    def on_validation_end(self, trainer, module):
        values = {name: value.item() for name, value in trainer.callback_metrics.items() if name.startswith("val/")}
        with open(f"{folder}/values.jsonl", "a") as file:
            print(json.dumps([trainer.current_epoch, trainer.global_step, values]), file=file)

pl.seed_everything(0, verbose=False)
module = RankingModule(MLPScorer([8]), loss="softmax")
kept = pl.callbacks.ModelCheckpoint(folder, filename="last", enable_version_counter=False, **keep)
run = trainer(RankingMonitor(["ndcg@10", "map"], advice=False), kept, Record(), max_epochs=4, enable_checkpointing=True,
              num_sanity_val_steps=0)
run.fit(module, datamodule=LetorDataModule(folder, batch_size=4, cache=f"{folder}/cache"), ckpt_path=resume or None)
torch.save(module.state_dict(), f"{folder}/weights.pt")
"""


def trained(folder: Path, keep: dict, die_in: int = -1, resume: str = "") -> int:
    command = [sys.executable, "-c", TRAIN, str(folder), json.dumps(keep), str(die_in), resume]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def validations(folder: Path) -> dict[int, tuple[int, dict[str, float]]]:
    """By epoch, the step and the values of its validation."""
    lines = [json.loads(line) for line in (folder / "values.jsonl").read_text().splitlines()]
    return {epoch: (step, values) for epoch, step, values in lines}


@pytest.mark.parametrize(
    ("keep", "lost"),
    [
        ({"monitor": "val/ndcg@10", "mode": "max", "save_top_k": -1}, []),
        # Lightning takes a checkpoint of the last step before a validation for one of after it.
        pytest.param(
            {"every_n_train_steps": 1},
            [2],
            marks=pytest.mark.skipif(
                compare_version("pytorch_lightning", operator.lt, "2.5.0"),
                reason="Lightning before 2.5 goes on from the last step of an epoch with a step too many",
            ),
        ),
    ],
)
def test_killed_in_a_validation_it_goes_on_from_the_last_checkpoint_to_the_same_numbers(tmp_path, keep, lost):
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for folder in (undisturbed, killed):
        folder.mkdir()
        write_fold(folder)
    assert trained(undisturbed, keep) == 0
    expected = validations(undisturbed)
    assert list(expected) == [0, 1, 2, 3]
    assert trained(killed, keep, die_in=2) == -signal.SIGKILL
    assert validations(killed) == {epoch: expected[epoch] for epoch in (0, 1)}
    assert trained(killed, keep, resume=str(killed / "last.ckpt")) == 0
    assert validations(killed) == {epoch: values for epoch, values in expected.items() if epoch not in lost}
    weights, others = (torch.load(folder / "weights.pt") for folder in (killed, undisturbed))
    assert all(torch.equal(weights[name], value) for name, value in others.items()), "to the bit"


# Checkpoints that are not whole ------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(fold):  # noqa: F811
    """Of a small model after one epoch; beside it another whole one."""
    made = trainer(plugins=[SafeCheckpointIO()])
    made.fit(RankingModule(MLPScorer([8])), datamodule=LetorDataModule(str(fold)))
    for name in ("good.ckpt", "bad.ckpt"):
        made.save_checkpoint(fold / name)
    return fold / "bad.ckpt"


def spoil(path: Path, how: str) -> None:
    content = path.read_bytes()
    at = content.index(next(iter(torch.load(path)["state_dict"].values())).numpy().tobytes()) if how == "changed" else 500
    path.write_bytes(
        {
            "cut": content[:at],
            "changed": content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :],
            "empty": b"",
            "text": b"epoch 3\n",
        }[how]
    )


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("cut", r"is cut short or changed: its [\d,]+ bytes have no end"),
        ("changed", "was changed after it was written: the checksum of 'archive/"),
        ("empty", "is empty"),
        ("text", "is none: its 8 bytes do not begin"),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_named_with_the_others_of_its_folder(checkpoint, how, words):
    check_checkpoint(checkpoint)
    spoil(checkpoint, how)
    told = rf"The checkpoint \S*bad\.ckpt {words}.*Take another of \S+, the newest first: good\.ckpt\."
    with pytest.raises(ValueError, match=told):
        trainer(plugins=[SafeCheckpointIO()]).fit(
            RankingModule(MLPScorer([8])), datamodule=LetorDataModule(str(checkpoint.parent)), ckpt_path=str(checkpoint)
        )


def test_the_command_tells_of_a_bad_checkpoint_in_one_line(checkpoint):
    folder = checkpoint.parent

    def told(model: list[str], path: str, status: int = 1) -> str:
        data = ["--data=LetorDataModule", "--data.root=."]
        said = run("test", *model, *data, f"--ckpt_path={path}", cwd=folder, status=status)
        assert "Traceback" not in said
        return said.splitlines()[-1]

    small, linear = ["--model.scorer=MLPScorer", "--model.scorer.hidden=[8]"], ["--model.scorer=LinearScorer"]
    larger = ["--model.scorer=MLPScorer", "--model.scorer.hidden=[9]"]
    assert "lightning-rank: error" not in told(small, "bad.ckpt", 0)
    assert re.search(
        r"error: The checkpoint bad.ckpt is one of another model than RankingModule with LinearScorer as configured: "
        r"scorer.network.weight is missing; .* Give the config.yaml",
        told(linear, "bad.ckpt"),
    )
    assert "scorer.network.0.bias is [8], that of the model [9]" in told(
        [*larger, "--model.scorer.num_features=4"], "bad.ckpt"
    )
    assert "scorer.network.0.weight has 8 outputs, that of the model 9" in told(larger, "bad.ckpt")
    assert "error: There is no checkpoint nowhere.ckpt. Take another of" in told(small, "nowhere.ckpt")
    torch.save([1, 2], folder / "list.ckpt")
    assert "list.ckpt holds no `state_dict`, so it is no checkpoint of Lightning." in told(small, "list.ckpt")
    spoil(checkpoint, "cut")
    assert "The checkpoint bad.ckpt is cut short or changed" in told(small, "bad.ckpt")


KILLED_WHILE_WRITING = """
import os, signal, sys, torch
from contextlib import contextmanager
from lightning_rank import checkpoints
from lightning_rank.pytorch_lightning import SafeCheckpointIO
whole = checkpoints.writing
class Deadly:
    def __init__(self, file):
        self.file = file
    def write(self, content):
        self.file.write(content[: len(content) // 2])
        self.file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
@contextmanager
def writing(path):
    with whole(path) as file:
        yield Deadly(file)
checkpoints.writing = writing
SafeCheckpointIO().save_checkpoint({"state_dict": {"weight": torch.ones(1000)}}, sys.argv[1])
"""


def test_killed_while_it_writes_a_checkpoint_the_one_before_is_there_and_the_next_clears_up(tmp_path):
    path = tmp_path / "epoch=1 [a].ckpt"
    SafeCheckpointIO().save_checkpoint({"state_dict": {"weight": torch.zeros(1000)}}, path)
    before = path.read_bytes()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KILLED_WHILE_WRITING, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2, "half a file beside it"
    SafeCheckpointIO().save_checkpoint({"state_dict": {"weight": torch.ones(1000)}}, path)
    assert list(tmp_path.iterdir()) == [path]
    check_checkpoint(path)
    assert SafeCheckpointIO().load_checkpoint(path)["state_dict"]["weight"].sum() == 1000


# A worker that dies -------------------------------------------------------------------------------------------------------

WORKER = """
import os, signal
from pathlib import Path
from torch.utils.data import get_worker_info
from lightning_rank.data.batches import RankingDataset
get = RankingDataset.__getitem__
def mortal(self, queries):
    here = Path("batches")
    if get_worker_info() is not None and Path("deadly").exists():
        with here.open("a") as file:
            file.write(".")
        if here.stat().st_size == 14:  # in the second epoch
            os.kill(os.getpid(), signal.SIGKILL)
    return get(self, queries)
RankingDataset.__getitem__ = mortal
import sys
from lightning_rank.cli import main
sys.exit(main())
"""


def test_a_worker_that_dies_ends_the_run_with_a_message_and_a_checkpoint_to_go_on_from(tmp_path):
    results = {}
    for name in ("undisturbed", "disturbed"):
        folder = tmp_path / name
        folder.mkdir()
        write_fold(folder)
        (folder / "vali.txt").unlink()
        keep = [
            "--trainer.callbacks=ModelCheckpoint", "--trainer.callbacks.dirpath=kept", "--trainer.callbacks.save_last=true",
        ]  # fmt: skip
        command = [
            sys.executable, "-c", WORKER, "fit", "--data=LetorDataModule", "--data.root=.", "--data.batch_size=4",
            "--data.num_workers=1", "--model.scorer=LinearScorer", *keep, "--trainer.max_epochs=3", "--trainer.accelerator=cpu",
        ]  # fmt: skip
        options = {"cwd": folder, "capture_output": True, "text": True, "timeout": 120, "check": False}
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER.parent), *sys.path])}
        resume = []
        if name == "disturbed":
            (folder / "deadly").touch()
            done = subprocess.run(command, **options, env=environment)
            assert done.returncode == 1
            (told,) = [line for line in done.stderr.splitlines() if "error:" in line]
            assert re.search(r"A process that makes batches has died: DataLoader worker .*pid", told)
            kept = re.search(r"--data.num_workers 0\)\. Go on with --ckpt_path (\S+\.ckpt)$", told)[1]
            assert "Traceback" not in done.stderr
            (folder / "deadly").unlink()
            resume = ["--ckpt_path", kept]
        done = subprocess.run([*command, *resume], **options, env=environment)
        assert done.returncode == 0, done.stderr
        results[name] = torch.load(folder / "kept" / "last.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(value, results["disturbed"][key]) for key, value in results["undisturbed"].items())


# A loss that is not finite ------------------------------------------------------------------------------------------------


class Endless(torch.nn.Module):
    def forward(self, preds, target, mask):
        return preds.sum() * torch.inf


class Steep(torch.nn.Module):
    def forward(self, preds, target, mask):
        return (preds * 0).abs().sqrt().sum()


class Spoils(Callback):
    """Makes something not finite in a batch of the second epoch, and remembers the weights before it."""

    def __init__(self, what: str) -> None:
        self.what, self.before = what, {}

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.current_epoch == 1 and batch_idx == 2:
            self.batch = batch["query"].tolist()
            if self.what == "features":
                batch["features"][0, 0, 0] = torch.inf
            if self.what == "gradient":  # of an item that scores alone do not tell of
                pl_module.loss = Steep()
            if self.what == "weights":
                pl_module.scorer.network.weight.data.fill_(torch.nan)
            if self.what == "loss":
                pl_module.loss = Endless()
            self.before = {name: value.clone() for name, value in pl_module.state_dict().items()}


def diverging(folder: Path, what: str, **options: object) -> tuple[str, RankingModule, Spoils]:
    kept, spoils = ModelCheckpoint(folder, filename="{epoch}"), Spoils(what)
    module = RankingModule(LinearScorer(), loss="softmax")
    made = trainer(kept, spoils, max_epochs=3, enable_checkpointing=True, limit_val_batches=0)
    with pytest.raises(ValueError, match="Training stopped") as error:
        made.fit(module, datamodule=LetorDataModule(str(folder), batch_size=4, **options))
    return str(error.value), module, spoils


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("features", r"The features of query \d+ are already not finite\."),
        ("weights", r"The features are finite, the weights are not since an earlier step: scorer\.network\.weight\."),
        (
            "gradient",
            r"the loss is finite, the gradient of scorer\.network\.weight is not\. Features, weights and scores are",
        ),
        ("loss", r"the loss is (inf|-inf|nan)\. Features, weights and scores are finite; the loss alone is not\."),
    ],
)
def test_a_loss_that_is_not_finite_is_explained_and_never_trained_on(fold, what, words):  # noqa: F811
    said, module, spoils = diverging(fold, what)
    assert re.search("at batch 2 of epoch 1: .*" + words, said)
    named = re.search(r"Queries of the batch, by id: ([^.]*)\.", said)[1].split(", ")
    data = LetorDataModule(str(fold))
    data.setup("fit")
    assert named == [data.splits["train"].query_ids[i] for i in spoils.batch]
    if what == "features":
        assert re.search(r"features of query (\d+) ", said)[1] == named[0]
    assert re.search(r"The last checkpoint is \S+epoch=0\.ckpt; go on", said)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, spoils.before[name], rtol=0, atol=0, equal_nan=True)
    kept = torch.load(fold / "epoch=0.ckpt", weights_only=True)["state_dict"]
    assert all(value.isfinite().all() for value in kept.values())


def test_on_a_device_losses_are_looked_at_before_a_checkpoint_is_written(fold, monkeypatch):  # noqa: F811
    monkeypatch.setattr("lightning_rank.module.values_are_free", lambda tensor: False)
    said, _, spoils = diverging(fold, "loss")
    assert "at batch 2 of epoch 1: the loss is" in said
    assert "The last checkpoint is" in said
    assert [path.name for path in fold.glob("*.ckpt")] == ["epoch=0.ckpt"]
    assert len(spoils.batch) == len(re.search(r"by id: ([^.]*)\.", said)[1].split(", "))


def test_a_query_of_a_jagged_batch_is_named(fold):  # noqa: F811
    class Breaks(LinearScorer):
        def forward(self, features):
            scores = super().forward(features)
            return torch.where(torch.arange(len(scores)) == len(scores) - 1, torch.inf, scores)

    module = RankingModule(Breaks(), loss="softmax")
    with pytest.raises(ValueError, match=r"Features and weights are finite, the scores of query (\d+) are not") as error:
        trainer().fit(module, datamodule=LetorDataModule(str(fold), batch_size=4, layout="jagged"))
    named = re.search(r"by id: ([^.]*)\.", str(error.value))[1].split(", ")
    assert f"scores of query {named[-1]} are not" in str(error.value)
    assert "No checkpoint was written yet" in str(error.value)


class Own(pl.LightningModule):
    """Somebody's own module, with a loss of ours; its batches are those of LetorDataModule."""

    def __init__(self) -> None:
        super().__init__()
        self.scorer, self.loss = LinearScorer(4), SoftmaxLoss()

    def training_step(self, batch, batch_idx):
        return self.loss(self.scorer(batch["features"]), batch["target"], mask=batch["mask"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("features", r"the loss is (inf|-inf|nan)\."),
        ("weights", r"`preds` must not be NaN, got \d+ NaN in query 0; .*"),
        ("gradient", r"the loss is finite, the gradient of scorer\.network\.weight is not\."),
        ("loss", r"the loss is (inf|-inf|nan)\."),
    ],
)
def test_an_own_module_is_stopped_in_the_same_way_by_a_callback(fold, what, words):  # noqa: F811
    kept, spoils = ModelCheckpoint(fold, filename="{epoch}"), Spoils(what)
    module, data = Own(), LetorDataModule(str(fold), batch_size=4)
    run = trainer(kept, spoils, TerminateOnNaN(), max_epochs=3, enable_checkpointing=True, limit_val_batches=0)
    with pytest.raises(ValueError, match="Training stopped at batch 2 of epoch 1: " + words) as error:
        run.fit(module, datamodule=data)
    said = str(error.value)
    named = re.search(r"Queries of the batch, by id: ([^.]*)\.", said)[1].split(", ")
    assert named == [data.splits["train"].query_ids[i] for i in spoils.batch]
    assert re.search(r"The last checkpoint is \S+epoch=0\.ckpt; go on", said)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, spoils.before[name], rtol=0, atol=0, equal_nan=True)


def test_an_own_module_on_a_device_is_stopped_before_a_checkpoint(fold, monkeypatch):  # noqa: F811
    monkeypatch.setattr("lightning_rank.callbacks_divergence.values_are_free", lambda tensor: False)
    kept, spoils = ModelCheckpoint(fold, filename="{epoch}"), Spoils("loss")
    run = trainer(kept, spoils, TerminateOnNaN(), max_epochs=3, enable_checkpointing=True, limit_val_batches=0)
    with pytest.raises(ValueError, match=r"at batch 2 of epoch 1: the loss is .*, seen up to 8 steps later"):
        run.fit(Own(), datamodule=LetorDataModule(str(fold), batch_size=4))
    assert [path.name for path in fold.glob("*.ckpt")] == ["epoch=0.ckpt"]


def test_a_batch_of_another_shape_than_ours_is_named_by_its_number():
    run = trainer(TerminateOnNaN())
    own = Ranker()
    own.training_step = lambda batch, batch_idx: own(batch[0]).sum() * torch.inf
    with pytest.raises(
        ValueError, match=r"stopped at batch 0 of epoch 0: the loss is -?inf\. No checkpoint was written yet"
    ):
        run.fit(own, loader())


# A full disk --------------------------------------------------------------------------------------------------------------

FULL = """
import sys, torch
import pytorch_lightning as pl
from lightning_rank.models import MLPScorer
from lightning_rank.pytorch_lightning import LetorDataModule, RankingModule, SafeCheckpointIO
from tests.lightning_cases import trainer
source, disk = sys.argv[1], sys.argv[2]
class Fill(pl.Callback):
    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 2:
            try:
                with open(f"{disk}/filler", "wb") as file:
                    while True:
                        file.write(bytes(1000)); file.flush()
            except OSError:
                pass
kept = pl.callbacks.ModelCheckpoint(disk, filename="last", enable_version_counter=False)
run = trainer(Fill(), kept, max_epochs=4, enable_checkpointing=True, plugins=[SafeCheckpointIO()], limit_val_batches=0)
try:
    run.fit(RankingModule(MLPScorer([8])), datamodule=LetorDataModule(source, batch_size=4))
except OSError as error:
    print(error)
print(sorted(path.name for path in __import__("pathlib").Path(disk).iterdir()), torch.load(f"{disk}/last.ckpt")["epoch"])
"""


def in_small_disk(tmp_path: Path, command: list[str]) -> str:
    """What a command prints that has a disk of 256 KiB at ``tmp_path / "disk"``."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("no namespace of its own for a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    inside = f'mount -t tmpfs -o size=256k tmpfs {disk} && exec "$@"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", inside, "sh", *command], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_disk_that_fills_up_leaves_the_checkpoint_that_was_there(fold, tmp_path):  # noqa: F811
    said = in_small_disk(tmp_path, [sys.executable, "-c", FULL, str(fold), str(tmp_path / "disk")])
    told, left = said.splitlines()[-2:]
    assert re.search(r"no room to write '\S+/disk/last\.ckpt', where 0\.0 MB are free; what was there is as it was", told)
    assert left == "['filler', 'last.ckpt'] 1", "the checkpoint of the epoch before, and no part of another"


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "jsonl", "csv.gz"])
def test_a_file_of_values_by_query_is_whole_or_as_it_was(tmp_path, ending):
    path = tmp_path / f"values.{ending}"
    write_per_query(path, {"mrr": {"q": 1.0}}, run="before")
    before = path.read_bytes()
    random = torch.rand(20_000, dtype=torch.float64).tolist()
    limit, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limit[1]))
    try:
        with pytest.raises(OSError, match=r"no room to write '\S+values\.\S+', where .* what was there is as it was"):
            write_per_query(path, {"mrr": {f"q{i}": value for i, value in enumerate(random)}}, run="after")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_ctrl_c_says_what_to_go_on_from(tmp_path):
    command = [sys.executable, "-m", "lightning_rank.cli", "fit", "--data=SyntheticDataModule", "--data.num_train=20"]
    command += ["--trainer.max_epochs=100000", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER.parent), *sys.path])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes)
    last = tmp_path / "lightning_logs" / "version_0" / "checkpoints" / "last.ckpt"
    try:
        deadline = time.monotonic() + 120
        while not last.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=120)[0]
    finally:
        process.kill()
    assert process.returncode == 1
    named = re.search(r"Interrupted\. Go on with --ckpt_path (\S+)", told)
    assert named, told
    # The newest: the best one, where it was just written and the last one would have followed.
    assert max(last.parent.iterdir(), key=lambda path: path.stat().st_mtime).samefile(tmp_path / named[1])


@pytest.mark.parametrize(
    "options", [["--data=SyntheticDataModule"], ["--config", str(FOLDER.parent / "configs/synthetic.yaml")]]
)
def test_the_last_checkpoint_is_of_the_last_epoch_also_where_an_earlier_one_is_the_best(options, tmp_path):
    run("fit", *options, "--data.num_train=20", "--data.num_val=10", "--data.num_test=10", "--trainer.max_epochs=4",
        "--trainer.accelerator=cpu", "--model.optimizer=torch.optim.SGD", "--model.optimizer.lr=0", cwd=tmp_path)  # fmt: skip
    folder = tmp_path / "lightning_logs" / "version_0" / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["best-epoch=0.ckpt", "last.ckpt"]
    assert torch.load(folder / "last.ckpt", weights_only=True)["epoch"] == 3
