"""Tables, plots and pages of results; pages are loaded when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_rank.report.comparison import comparison_page
    from lightning_rank.report.explain import ExplainPage, explain_page

__all__ = ["ExplainPage", "comparison_page", "explain_page"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "comparison" if name == "comparison_page" else "explain"
    return getattr(import_module(f"lightning_rank.report.{module}"), name)
