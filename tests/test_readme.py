"""What the README shows is run as it stands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_module import write_letor

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
SET_UP = [
    "pip install -e . && lightning-rank fit --config configs/synthetic.yaml\n",
    'pip install -e ".[test]" && pytest\n',
]


def run(command: list[str], cwd: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "MPLBACKEND": "agg",
    }
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_blocks_are_of_known_kinds():
    assert [code for kind, code in BLOCKS if kind == "sh"] == SET_UP, "these two are what CI does"
    assert {kind for kind, _ in BLOCKS} == {"sh", "bash", "python", ""}


@pytest.mark.parametrize("code", [code for kind, code in BLOCKS if kind == "python"], ids=lambda code: code.splitlines()[0])
def test_python_blocks(code, tmp_path):
    run([sys.executable, "-c", code], tmp_path)


def test_commands_one_after_the_other(tmp_path):
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (tmp_path / "MQ2008").mkdir()
    for i in range(1, 6):
        write_letor(tmp_path / "MQ2008" / f"S{i}.txt", 6, seed=i)
    (tmp_path / "qrels.txt").write_text("".join(f"q{i} 0 d{i} 1\n" for i in range(5)))
    for name, step in (("bm25", 1), ("dense", 2)):
        lines = (f"q{i} Q0 d{j} 1 {j * step % 5} {name}\n" for i in range(5) for j in range(6))
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    script = "".join(code for kind, code in BLOCKS if kind == "bash")
    run(["sh", "-ec", script], tmp_path)
    assert (tmp_path / "run.txt").read_text().count("\n") == (tmp_path / "scores.txt").read_text().count("\n") > 0
    assert (tmp_path / "values.csv").read_text().count("\n") == 11
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_links_and_pictures_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target
