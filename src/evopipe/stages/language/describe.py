"""What a language policy is, beside its tensors."""

from __future__ import annotations

from typing import Any

from evopipe.run.language import LanguageSpec
from evopipe.schema.text import LanguageParams


def describe(params: LanguageParams, spec: LanguageSpec) -> dict[str, Any]:
    """Return as JSON data the algorithm, its configuration, and the base."""
    return {
        "kind": "games" if spec.base.length else "language",
        "algo": params.train.algo,
        "config": params.algo_config.model_dump(mode="json"),
        "env": {"id": spec.name},
        "language": spec.language.model_dump(mode="json"),
        "seed": params.seed,
        "base": spec.base.digest,
        **({"tokens": list(spec.base.tokenizer)} if spec.base.length else {}),
    }
