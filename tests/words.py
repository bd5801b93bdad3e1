"""Tiny language models for tests: bases made in a moment, members over them, and rows of text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch

from evopipe import algos
from evopipe.core.net import Net
from evopipe.language.adapters import Adapted, Full, LoRA
from evopipe.language.base import Base, load_base
from evopipe.params.text import LanguageParams
from evopipe.schema.language import LanguageConfig
from evopipe.schema.write import dump_yaml
from evopipe.types import Text

CHARACTERS = "0123456789=abc"
CPU = torch.device("cpu")


def config(**changes: Any) -> LanguageConfig:
    tiny = {"characters": CHARACTERS, "hidden": 32, "layers": 2, "heads": 2}
    return LanguageConfig.model_validate({"tiny": tiny, "max_completion": 6, **changes})


@cache
def base(seed: int = 1) -> Base:
    """A base that tests share: none may change it."""
    return load_base(config(), seed)


def special(text: str) -> list[int]:
    """The tokens of a text in which special ones act, as a template's."""
    found: list[int] = base().tokenizer.encode(text, add_special_tokens=False)
    return found


def row(arch: LoRA | Full, seed: int, over: Base) -> torch.Tensor:
    """A row in which no number is 0."""
    rng = np.random.default_rng(seed)
    own = arch.initialise(Adapted.of(over), rng)
    return own + 0.05 * torch.from_numpy(rng.standard_normal(len(own))).float()


def net(archs: Sequence[Any], over: Base, trainable: bool = False, first: int = 0) -> Net:
    """Members of these architectures, with rows of their own from the seed `first` on."""
    structure: Any = archs[0].stack(archs, Adapted.of(over), CPU)
    rows = [row(arch, first + i, over) for i, arch in enumerate(archs)]
    return Net(structure, structure.pack(rows), trainable)


def text(members: int, rows: int, prompt: int, answer: int, seed: int = 0) -> Text:
    """Random rows; of the second prompt the first half is a pad, of the first answer the second half."""
    draws = torch.Generator().manual_seed(seed)
    width = prompt + answer
    ids = torch.randint(7, 21, (members, rows, width), generator=draws)
    real = torch.ones(members, rows, width, dtype=torch.bool)
    real[:, 1, : prompt // 2] = False
    real[:, 0, prompt + answer // 2 :] = False
    return Text(ids, real, real[..., prompt:].clone(), torch.zeros(members, rows, answer, dtype=torch.int64))


def small_params() -> dict[str, Any]:
    """A whole `params.yaml` of a run of a second: copy one or two digits."""
    small = LanguageParams.model_validate({
        "seed": 3,
        "language": {
            "tiny": {"hidden": 16, "layers": 1, "heads": 2}, "rank": 2, "max_prompt": 4, "max_completion": 3,
            "kwargs": {"shortest": 1, "longest": 2, "alphabet": "012"},
        },
        "fetch": {"generate": {"rows": 60}},
        "population": {"size": 3},
        "train": {"max_steps": 6, "evo_steps": 3, "eval_episodes": 5, "confirm_episodes": 5},
        "evaluate": {"episodes": 6, "samples": 2, "bootstrap": 100},
        "evolution": {"mutation": {"probabilities": {"none": 0.0, "rank": 1.0, "rl_hp": 1.0}}},
        "tracking": {"backends": []},
        "algos": {"grpo": {
            "lr": 0.01, "rows": 16, "group_size": 4, "batch_size": 8, "evolve": {"lr": {"min": 1e-3, "max": 1e-1}},
        }},
    })  # fmt: skip
    data: dict[str, Any] = small.model_dump(mode="json")
    data["algos"] |= {
        name: algos.get(name).Config().model_dump(mode="json") for name in ("dpo", "reinforce", "reward_model")
    }
    return data


def project(folder: Path, **changes: Any) -> Path:
    """Write a params.yaml of a tiny run; changes are dotted keys with `__` for the dots."""
    data = small_params()
    for key, value in changes.items():
        *blocks, name = key.split("__")
        place = data
        for each in blocks:
            place = place[each]
        place[name] = value
    path = folder / "params.yaml"
    path.write_text(dump_yaml(data), encoding="utf-8")
    return path
