"""The command as a process, and its configuration files."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.test_module import write_letor

CONFIGS = Path(__file__).parent.parent / "configs"


def run(*args: str, cwd: Path, status: int = 0) -> str:
    """Run ``lightning-rank`` and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "lightning_rank.cli", *args],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> tuple[Path, str]:
    """A folder in which a short run on generated data has ended, and what it printed."""
    folder = tmp_path_factory.mktemp("fit")
    small = ["--data.num_train=60", "--data.num_val=20", "--data.num_test=20", "--trainer.max_epochs=3"]
    return folder, run("fit", "--config", str(CONFIGS / "synthetic.yaml"), *small, cwd=folder)


def table(output: str) -> dict[str, dict[str, float]]:
    """The printed table: metric -> column -> value."""
    lines = output[output.index("Test: ") :].splitlines()
    columns = re.split(r"\s{2,}", lines[1].strip())
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines[3:]]
    return {row[0]: dict(zip(columns, map(float, row[1:]), strict=True)) for row in rows if len(row) == len(columns) + 1}


def test_fit_ends_with_a_table_against_random_best_possible_and_ideal_order(fitted):
    values = table(fitted[1])
    assert list(values) == ["ndcg@10", "ndcg", "map", "mrr"]
    for row in values.values():
        assert row["random order"] < row["this model"] < row["best possible"] <= row["ideal order"] == 1


def test_fit_says_where_everything_is(fitted):
    folder, output = fitted
    places = {
        line.split()[0]: line.split()[1:] for line in output.splitlines() if line.startswith(("checkpoint", "curves"))
    }
    assert (folder / places["checkpoint"][0]).is_file()
    assert all((folder / place.rstrip(",")).is_file() for place in places["curves"])
    assert {Path(place.rstrip(",")).name for place in places["curves"]} == {"metrics.csv", "curves.png"}


def test_the_tested_epoch_is_the_best_of_the_curve(fitted):
    folder, output = fitted
    with (folder / "lightning_logs/version_0/metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    curve = {int(row["epoch"]): float(row["val/ndcg@10"]) for row in rows if row["val/ndcg@10"]}
    assert len(curve) == 3
    assert f"best-epoch={max(curve, key=curve.__getitem__)}.ckpt" in output
    (tested,) = [float(row["test/ndcg@10"]) for row in rows if row["test/ndcg@10"]]
    assert table(output)["ndcg@10"]["this model"] == pytest.approx(tested, abs=1e-4)


def test_the_next_step_that_is_printed_works_as_printed(fitted):
    folder, output = fitted
    (step,) = [line.split()[2:] for line in output.splitlines() if line.startswith("next")]
    run(*step, "--predictions.scores=scores.txt", cwd=folder)
    lines = (folder / "run.txt").read_text().splitlines()
    assert len(lines) == len((folder / "scores.txt").read_text().splitlines())
    assert re.fullmatch(r"2-0 Q0 \d+ 1 \S+ lightning_rank", lines[0])
    assert "exists" in run(*step, cwd=folder, status=1)


def test_validate_and_test_repeat_what_fit_measured(fitted):
    folder, output = fitted
    (checkpoint,) = [line.split()[1] for line in output.splitlines() if line.startswith("checkpoint")]
    config = ["--config", "lightning_logs/version_0/config.yaml", "--ckpt_path", checkpoint]
    again = run("test", *config, cwd=folder)
    value = float(re.search(r"test/ndcg@10\D+?(\d\.\d+)", again).group(1))
    assert value == pytest.approx(table(output)["ndcg@10"]["this model"], abs=1e-4)
    assert re.search(r"val/ndcg@10\D+?\d\.\d+", run("validate", *config, cwd=folder))


def test_a_checkpoint_beyond_the_last_epoch_is_one_line(fitted, tmp_path):
    config = fitted[0] / "lightning_logs" / "version_0" / "config.yaml"
    last = config.parent / "checkpoints" / "last.ckpt"
    output = run("fit", "--config", str(config), "--trainer.max_epochs=1", "--ckpt_path", str(last), cwd=tmp_path, status=1)
    assert re.search(r"lightning-rank: error: You restored a checkpoint with current_epoch=\d, .*max_epochs=1", output)
    assert "Traceback" not in output


def test_without_a_logger_evaluation_writes_no_configuration_and_fit_none_over_another(fitted, tmp_path):
    config = fitted[0] / "lightning_logs" / "version_0" / "config.yaml"
    (checkpoint,) = config.parent.glob("checkpoints/best-*.ckpt")
    given = ["--config", str(config), "--trainer.logger=false"]
    for command in ("test", "validate", "test"):
        output = run(command, *given, "--ckpt_path", str(checkpoint), cwd=tmp_path)
        assert "ndcg@10" in output
        assert list(tmp_path.iterdir()) == []
    short = ["--trainer.max_epochs=1"]
    run("fit", *given, *short, cwd=tmp_path)
    written = (tmp_path / "config.yaml").read_text()
    output = run("fit", *given, *short, cwd=tmp_path, status=1)
    assert re.search(rf"lightning-rank: error: .*{tmp_path}/config\.yaml is there already: move it away", output)
    assert "Traceback" not in output
    assert (tmp_path / "config.yaml").read_text() == written


def test_a_seed_gives_the_same_numbers_twice(fitted, tmp_path):
    small = ["--data.num_train=60", "--data.num_val=20", "--data.num_test=20", "--trainer.max_epochs=3"]
    again = run("fit", "--config", str(CONFIGS / "synthetic.yaml"), *small, cwd=tmp_path)
    assert table(again) == table(fitted[1])


@pytest.mark.parametrize("name", ["letor_mlp_approx_ndcg.yaml", "letor_linear_softmax.yaml"])
def test_letor_configurations_on_files(name, tmp_path):
    for i in range(1, 6):
        write_letor(tmp_path / f"S{i}.txt", 8, seed=i)
    files = ["--data.train=[S1.txt, S2.txt, S3.txt]", "--data.val=S4.txt", "--data.test=S5.txt"]
    output = run(
        "fit", "--config", str(CONFIGS / name), "--data.root", str(tmp_path), *files, "--trainer.max_epochs=4", cwd=tmp_path
    )
    assert table(output)["ndcg@10"]["this model"] > 0.5


OWN_DATA = """
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

class Own(pl.LightningDataModule):
    def lists(self, seed):
        features = torch.randn(12, 8, 3, generator=torch.Generator().manual_seed(seed))
        rows = [{"features": x, "target": (x[:, 0] > 0).long()} for x in features]
        return DataLoader(rows, batch_size=4)
    def train_dataloader(self):
        return self.lists(0)
    def val_dataloader(self):
        return self.lists(1)
"""
OWN_TEST = """
class OwnWithTest(Own):
    def test_dataloader(self):
        return self.lists(2)
"""


@pytest.mark.parametrize("name", ["Own", "OwnWithTest"])
def test_a_data_module_of_ones_own(name, tmp_path):
    (tmp_path / "own_data.py").write_text(OWN_DATA + OWN_TEST)
    output = run("fit", f"--data=own_data.{name}", "--trainer.max_epochs=2", cwd=tmp_path)
    assert ("There is no test data" in output) == (name == "Own")
    assert bool(re.search(r"test/ndcg@10 .*\d\.\d", output)) == (name == "OwnWithTest")  # Lightning's own table
    assert "lightning-rank predict" not in output
    assert re.search(r"^checkpoint +\S+best-epoch", output, flags=re.MULTILINE)


def test_without_a_configuration_monitor_and_checkpoint_are_there(tmp_path):
    for name in ("train.txt", "vali.txt"):
        write_letor(tmp_path / name, 8)
    output = run("fit", "--data=LetorDataModule", "--data.root=.", "--trainer.max_epochs=2", cwd=tmp_path)
    assert "There is no test data" in output
    assert list(tmp_path.glob("lightning_logs/version_0/checkpoints/best-epoch=*.ckpt"))
    with (tmp_path / "lightning_logs/version_0/metrics.csv").open() as file:
        assert {"val/ndcg@10", "val/map", "val/mrr", "val/loss", "train/loss"} < set(file.readline().strip().split(","))


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (["fit", "--data=LetorDataModule", "--data.root=nowhere"], 1, r"`root` must be a folder.*nowhere"),
        (["fit", "--data=LetorDataModule", "--data.train=nowhere.txt"], 1, r"nowhere\.txt"),
        (["fit", "--data=SyntheticDataModule", "--data.difficulty=2"], 1, r"`difficulty`.*got 2"),
        (["fit", "--data=SyntheticDataModule", "--model.loss=aprox"], 1, r"Unknown loss 'aprox'.*'approx_ndcg'"),
        (
            ["fit", "--data=SyntheticDataModule", "--trainer.limit_val_batches=-1"],
            1,
            r"invalid value -1 for limit_val_batches",
        ),
        (["fit", "--data=SyntheticDataModule", "--data.batch=3"], 2, r"'batch' is not accepted"),
        (
            ["fit", "--data=SyntheticDataModule", "--model.loss=ApproxNDCGLoss", "--model.loss.temperature=hot"],
            2,
            r"temperature",
        ),
        (["test", "--data=SyntheticDataModule"], 1, r"test needs a trained model: --ckpt_path"),
        (["predict", "--data=SyntheticDataModule", "--ckpt_path=last"], 1, r"predict needs a file to write"),
        (["test", "--data=SyntheticDataModule", "--ckpt_path=x.ckpt"], 1, r"There is no checkpoint x\.ckpt"),
    ],
)
def test_bad_input_is_one_line_and_a_status(args, status, words, tmp_path):
    output = run(*args, cwd=tmp_path, status=status)
    assert re.search(words, output)
    assert "Traceback" not in output


def test_a_malformed_line_is_named(tmp_path):
    (tmp_path / "train.txt").write_text("1 qid:1 1:0.5\n2 qd:1 1:0.5\n")
    output = run("fit", "--data=LetorDataModule", "--data.root=.", cwd=tmp_path, status=1)
    assert re.search(r"lightning-rank: error: .*train\.txt:2: .*qid", output)


def test_help_reads_well(tmp_path):
    assert "Train and evaluate rankers" in run("--help", cwd=tmp_path)
    text = run("fit", "--help", cwd=tmp_path)
    assert re.search(r"--model\.scorer.*\n?.*a module from", text)
    assert "a ranking loss, or the name of one" in " ".join(text.split())


def test_the_monitor_in_a_users_own_cli_and_yaml(tmp_path):
    config = {
        "trainer": {
            "max_epochs": 1,
            "accelerator": "cpu",
            "enable_progress_bar": False,
            "callbacks": [
                {
                    "class_path": "lightning_rank.RankingMonitor",
                    "init_args": {
                        "metrics": ["ndcg@3"],
                        "keys": {"preds": "preds"},
                        "gain": [0, 1, 3, 7],
                        "num_queries": True,
                    },
                }
            ],
        },
        "model": {"class_path": "tests.lightning_cases.Ranker"},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    script = (
        "from pytorch_lightning.cli import LightningCLI\n"
        "import pytorch_lightning as pl\n"
        "from tests.lightning_cases import loader\n"
        "cli = LightningCLI(pl.LightningModule, subclass_mode_model=True, run=False, args=['--config', 'config.yaml'])\n"
        "cli.trainer.fit(cli.model, loader(), loader())\n"
        "print(sorted(cli.trainer.callback_metrics))\n"
    )
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
    )
    assert "['val/ndcg@3', 'val/num_queries']" in done.stdout, done.stdout + done.stderr
