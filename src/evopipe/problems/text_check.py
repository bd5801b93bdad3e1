"""What the params.yaml of language models alone cannot say."""

from __future__ import annotations

from evopipe.params.text import LanguageParams


def check(params: LanguageParams) -> None:
    """See `problems.check`: nothing is made before `fetch` makes it, and refuses what cannot be."""
