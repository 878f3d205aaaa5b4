"""What all results share, what may be imported, and what is said without scipy."""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_rank import stats

USERS = [3.0, 5.0, 4.0, 6.0]
RESULTS = {
    "wilson": lambda: stats.wilson(45, 60),
    "two_proportions": lambda: stats.two_proportions(500, 10_000, 560, 10_000),
    "lift undefined": lambda: stats.two_proportions(0, 10, 1, 10, alternative="greater"),
    "non_inferior": lambda: stats.non_inferior(500, 10_000, 560, 10_000, margin=0.01),
    "sample_ratio": lambda: stats.sample_ratio([500, 510]),
    "sample_ratio by arm": lambda: stats.sample_ratio({"a": 500, "b": 510}),
    "welch": lambda: stats.welch(USERS, [5.0, 6.0]),
    "welch_from_moments": lambda: stats.welch_from_moments(1, 2, 30, 3, 4, 50),
    "ratio_of_means": lambda: stats.ratio_of_means(USERS, USERS[::-1], USERS, USERS, use_t=False),
    "cuped": lambda: stats.cuped(USERS, USERS[::-1], USERS, USERS),
    "duration": lambda: stats.duration(5, 2),
    "always_valid": lambda: stats.always_valid(0.1, 0.01, tau=0.1),
    "always_valid looks": lambda: stats.always_valid([0.1, 0.2], [0.01, 0.005], tau=0.1),
    "group_sequential_bounds": lambda: stats.group_sequential_bounds(3),
    **{
        f"paired {test}": lambda test=test: stats.paired(USERS, [5.0, 5.0, 7.0, 6.0], test=test)
        for test in ("t", "randomization", "bootstrap", "wilcoxon")
    },
}
every_result = pytest.mark.parametrize("make", RESULTS.values(), ids=RESULTS)


@every_result
def test_results_are_plain(make):
    result = make()
    assert isinstance(result, stats.Result)
    table = result.to_dict()
    assert list(table) == [field.name for field in dataclasses.fields(result)]
    for name, value in table.items():
        kinds = (float, int, str, bool)
        assert type(value) in kinds or all(type(x) in kinds for x in (value.values() if type(value) is dict else value)), (
            name
        )
    json.dumps(table)


@every_result
def test_results_are_immutable_and_survive_pickling(make):
    result = make()
    field = dataclasses.fields(result)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(result, field, 0)
    assert str(pickle.loads(pickle.dumps(result)).to_dict()) == str(result.to_dict())


@every_result
def test_results_print_in_one_line(make):
    text = str(make())
    assert text
    assert "\n" not in text
    assert len(text) < 220


@every_result
def test_fields_are_documented(make):
    result = make()
    documented = " ".join(cls.__doc__ for cls in type(result).__mro__ if cls.__doc__ and "Attributes:" in cls.__doc__)
    for field in dataclasses.fields(result):
        assert field.name in documented


def test_arrays_of_results_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        stats.group_sequential_bounds(3).z[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        stats.always_valid([0.1], [0.1], tau=1).pvalue[0] = 0


def test_public_names_exist():
    assert sorted(stats.__all__) == stats.__all__
    for name in stats.__all__:
        assert getattr(stats, name).__doc__


def test_import_needs_neither_torch_nor_scipy():
    code = (
        "import sys; sys.modules['torch'] = None; import lightning_rank.stats as stats; "
        "print([m for m in ('scipy', 'pandas', 'torchmetrics') if m in sys.modules]); print(stats.wilson(45, 60))"
    )
    root = Path(stats.__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[]", "0.75 [0.6277, 0.8422] at 95 %"]


@pytest.mark.parametrize("module", ["scipy.special", "scipy.optimize"])
def test_without_scipy_the_extra_is_named(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'lightning-rank\[stats\]'"):
        stats.non_inferior(500, 10_000, 560, 10_000, margin=0.01)
