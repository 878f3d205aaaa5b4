"""Losses as modules: named, by name, with the options of their functions."""

from __future__ import annotations

import inspect
import pickle
import warnings

import pytest
import torch

import lightning_rank
from lightning_rank.functional.losses import LOSSES
from lightning_rank.losses import NAMED_CLASSES, loss
from tests.conftest import assert_close
from tests.loss_cases import arguments_of, function_of, one

every_loss = pytest.mark.parametrize("spec", LOSSES.values(), ids=LOSSES)


def test_every_loss_has_a_class_and_the_package_has_it():
    assert NAMED_CLASSES.keys() == LOSSES.keys()
    for cls in NAMED_CLASSES.values():
        assert getattr(lightning_rank, cls.__name__) is cls
        assert cls.__doc__


@every_loss
def test_signature_has_the_options_of_the_loss(spec):
    parameters = inspect.signature(NAMED_CLASSES[spec.name]).parameters
    assert {name: p.default for name, p in parameters.items() if name not in ("reduction", "global_mean")} == spec.options


@every_loss
def test_module_equals_function(spec):
    arguments = arguments_of(one(spec, [0.4, -1.0, 2.0], [1.0, 0.0, 3.0]))
    for name in ("number", "gamma", "noise"):
        arguments.pop(name, None)
    options = {"top_k": 2} if "top_k" in spec.options else {}
    module = pickle.loads(pickle.dumps(NAMED_CLASSES[spec.name](**options, reduction="sum")))
    torch.manual_seed(0)
    value = module(**arguments)
    torch.manual_seed(0)
    assert_close(value, function_of(spec)(**arguments, **options, reduction="sum"))


def test_grades_below_0_are_said_unless_a_mask_says_padding():
    preds, target = torch.randn(1, 3), torch.tensor([[1, 0, -1]])
    with pytest.warns(UserWarning, match="a grade below 0, which counts as 0.*give a `mask`"):
        loss("softmax")(preds, target)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss("softmax")(preds, target, target >= 0)


def test_a_misspelt_name_of_the_package_is_corrected():
    with pytest.raises(AttributeError, match=r"no attribute 'LambdaRnkLoss'\. Did you mean 'LambdaRankLoss'"):
        _ = lightning_rank.LambdaRnkLoss


@every_loss
def test_by_name(spec):
    module = loss(spec.name)
    assert type(module) is NAMED_CLASSES[spec.name]
    assert "reduction='mean'" in repr(module)
    if "top_k" in spec.options:
        assert loss(f"{spec.name.upper()}_loss@10").options["top_k"] == 10
        with pytest.raises(ValueError, match=f"'{spec.name}@10' has a cutoff, and top_k=5 gives another"):
            loss(f"{spec.name}@10", top_k=5)
    else:
        with pytest.raises(ValueError, match=f"`top_k` means nothing for the loss {spec.name}"):
            loss(f"{spec.name}@10")
    with pytest.raises(ValueError, match="must be a whole number >= 1"):
        loss(f"{spec.name}@0")
    with pytest.raises(ValueError, match="`strange` means nothing"):
        NAMED_CLASSES[spec.name](strange=1)
