"""Imports only go down: which file may import which, what each floor may need, and how light the package is."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lightning_rank"
NAME = PACKAGE.name
FLOORS = (
    ("lists", "flags", "conventions", "entries", "uncertainty", "extras"),
    ("functional", "stats"),
    ("metrics", "losses", "models", "data", "online", "explain", "advise"),
    ("offline", "checkpoints", "divergence", "gathering"),
    ("report",),
    ("callbacks", "module", "datamodule", "gate"),
    ("callbacks_divergence", "callbacks_gate", "callbacks_report", "callbacks_retrieval"),
    ("pytorch_lightning", "lightning"),  # the third floor, joined to each Lightning package
    ("cli", "__init__"),
)
FLOOR_OF = {unit: floor for floor, units in enumerate(FLOORS) for unit in units}
SAME_FLOOR = {
    ("lists", "conventions"), ("lists", "flags"), ("flags", "conventions"), ("entries", "conventions"),
    ("cli", "__init__"),  # for the version
}  # fmt: skip
LIGHTNING = {"pytorch_lightning", "lightning", "lightning_fabric"}
FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(file): file for file in FILES}


def unit_of(module: str) -> str:
    """The file or folder at the root of the package that a module belongs to."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports_of(source: str, package: str) -> Iterator[str]:
    """Modules that a file imports, anywhere in it, but those imported for type checkers only."""
    pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending.extend(node.orelse)
            continue
        pending.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            for alias in node.names:
                # `from package import name` imports the module `name` where it is one.
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base


def imports(file: Path) -> set[str]:
    package = module_of(file) if file.name == "__init__.py" else module_of(file).rpartition(".")[0]
    return set(imports_of(file.read_text(), package))


def test_imports_are_found():
    source = """
import numpy.linalg as la
from lightning_rank import functional, Missing
from . import lists
from .functional.losses import LOSSES
if TYPE_CHECKING:
    import pandas
def later():
    from torch import nn
"""
    assert set(imports_of(source, NAME)) == {
        "numpy.linalg", f"{NAME}.functional", NAME, f"{NAME}.lists", f"{NAME}.functional.losses", "torch",
    }  # fmt: skip


@pytest.mark.parametrize("file", FILES, ids=module_of)
def test_file_imports_from_lower_floors_only(file):
    unit = unit_of(module_of(file))
    assert unit in FLOOR_OF, f"{unit} stands on no floor: add it to FLOORS"
    for imported in imports(file):
        other = unit_of(imported)
        if imported.partition(".")[0] != NAME or other == unit or (unit, other) in SAME_FLOOR:
            continue
        assert FLOOR_OF[other] < FLOOR_OF[unit], f"{module_of(file)} must not import {imported}"


def third_parties(modules: set[str]) -> set[str]:
    """What the modules import from elsewhere than the package and the standard library, through the package too."""
    found: set[str] = set()
    pending, seen = list(modules), set(modules)
    while pending:
        for imported in imports(MODULES[pending.pop()]):
            if imported.partition(".")[0] != NAME:
                found.add(imported.partition(".")[0])
            elif imported not in seen:
                seen.add(imported)
                pending.append(imported)
    return found - set(sys.stdlib_module_names)


def test_core_needs_torch_and_torchmetrics_alone():
    core = {module for module in MODULES if unit_of(module) in ("functional", "metrics", "losses")}
    assert len(core) >= 4
    # NumPy comes with torchmetrics; matplotlib is imported when something is drawn, as torchmetrics does.
    assert third_parties(core) <= {"torch", "torchmetrics", "numpy", "matplotlib"}


def test_online_evaluation_needs_no_torch():
    online = {module for module in MODULES if unit_of(module) in ("stats", "online", "gate")}
    assert len(online) > 15
    # All but numpy when something is first asked of them.
    assert third_parties(online) <= {"numpy", "scipy", "polars", "yaml"}
    heavy = ("torch", "scipy", "polars", "yaml")
    code = f"import sys, lightning_rank.online, lightning_rank.gate; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "file", [file for file in FILES if FLOOR_OF.get(unit_of(module_of(file)), 0) < FLOOR_OF["callbacks"]], ids=module_of
)
def test_only_upper_floors_know_lightning(file):
    assert not {imported.partition(".")[0] for imported in imports(file)} & LIGHTNING


BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"{{name}} is blocked", name=name)
sys.meta_path.insert(0, Blocked())
"""


def run_without(names: set[str], code: str) -> str:
    """What some code prints where packages are not installed."""
    code = BLOCKED.format(names=names) + code
    run = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_metrics_losses_and_retrieval_work_without_lightning():
    code = """
import torch
from lightning_rank import ApproxNDCGLoss, MLPScorer, RankingMetrics, make_ranking
from lightning_rank.functional import top_items
data = make_ranking(4)
batch = data[[0, 1, 2, 3]]
scores = MLPScorer([4], num_features=data.num_features)(batch["features"])
ApproxNDCGLoss()(scores, batch["target"], mask=batch["mask"]).backward()
metrics = RankingMetrics(["ndcg@5"])
metrics.update(scores, batch["target"], mask=batch["mask"])
assert 0 <= metrics.compute()["ndcg@5"] <= 1
print(top_items(torch.eye(2), torch.eye(2), 1)[1].tolist())
import lightning_rank
try:
    lightning_rank.RankingMonitor
except ModuleNotFoundError as error:
    print(error)
"""
    assert run_without(LIGHTNING, code) == "[[0], [1]]\npytorch_lightning is blocked"


def test_pytorch_lightning_alone_is_enough():
    code = "from lightning_rank import RetrievalMonitor; print(RetrievalMonitor.__module__)"
    assert run_without({"lightning"}, code) == "lightning_rank.pytorch_lightning"


def test_the_classes_of_lightning_need_no_pytorch_lightning():
    pytest.importorskip("lightning.pytorch", reason="the package `lightning` is not installed")
    code = "import lightning.pytorch, lightning_rank; print(lightning_rank.RetrievalMonitor.__module__)"
    assert run_without({"pytorch_lightning"}, code) == "lightning_rank.lightning"


def test_functions_do_not_load_the_compiler():
    code = "import sys, lightning_rank.functional; print('torch._dynamo' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_import_is_light():
    heavy = ("pytorch_lightning", "lightning", "scipy", "sklearn", "pandas", "matplotlib")
    code = (
        "import sys, torch, torchmetrics; before = set(sys.modules); import lightning_rank; "
        f"print(sorted(m for m in set(sys.modules) - before if m.split('.')[0] in {heavy}))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
