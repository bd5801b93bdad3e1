"""What the params.yaml of language models alone cannot say."""

from __future__ import annotations

from evopipe.params.text import LanguageParams


def check(params: LanguageParams) -> None:
    """Do nothing: for language models, the first stage (`fetch`) itself refuses parameters that cannot be used."""
