"""Tables, plots and pages of results; pages are loaded when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_rank.report.explain import ExplainPage, explain_page

__all__ = ["ExplainPage", "explain_page"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from lightning_rank.report import explain

        return getattr(explain, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
