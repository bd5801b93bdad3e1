"""The check of parameters before the first stage, for language models: there is nothing to check."""

from __future__ import annotations

from evopipe.params.text import LanguageParams


def check(params: LanguageParams) -> None:
    """Do nothing: for language models, the first stage (`fetch`) itself refuses parameters that cannot be used."""
