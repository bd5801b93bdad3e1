"""From the command to the gradient: how many functions of ours stand between them."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

import evopipe
from evopipe import algos
from evopipe.native import build, policy
from tiny import call, write_params

OURS = str(Path(evopipe.__file__).parent)
SHORT = {
    "train.max_steps": 128, "train.evo_steps": 128, "train.eval_episodes": 1, "train.eval_steps": 1,
    "train.confirm_episodes": 2, "population.size": 2, "evolution.mutation.before_training": False,
    "fetch.collect.episodes": 1, "runtime.env_workers": 0, "runtime.kernels": "torch",
}  # fmt: skip


@pytest.mark.parametrize(("algo", "mode"), [("dqn", "online"), ("ppo", "online"), ("cqn", "offline")])
def test_at_most_nine_calls_lead_from_the_command_to_a_loss(
    algo: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off-policy, on-policy, offline; the command and the loss included."""
    module: Any = algos.get(algo)
    small = {"learn_step": 64, "batch_size": 32, "network": {"encoder": [16], "latent": 16}}
    block = module.Config.model_validate(small).model_dump(mode="json")
    write_params(tmp_path, {**SHORT, "train.algo": algo, "train.mode": mode, f"algos.{algo}": block})
    whole, seen = module.loss, []

    def loss(*args: Any) -> Any:
        seen.append([frame.name for frame in traceback.extract_stack() if frame.filename.startswith(OURS)])
        return whole(*args)

    monkeypatch.setattr(module, "loss", loss)
    for stage in [*(["fetch", "buffer"] if mode == "offline" else []), "population", "train"]:
        answer = call(tmp_path, stage)
        assert answer.code == 0, answer.err
    assert seen, "the members learned"
    assert len(seen[0]) + 1 <= 9, f"{' → '.join(seen[0])} → loss"


LEARN = {"tick_learn", "tick_many", "ppo_update"}
"""Kernels that make updates."""


class Watched:
    """The kernels; whoever asks for one that learns is taken note of, with all who stand above it."""

    def __init__(self, kernels: Any, seen: dict[str, list[str]]) -> None:
        self._kernels, self._seen = kernels, seen

    def __getattr__(self, name: str) -> Any:
        if name in LEARN:
            ours = [frame.name for frame in traceback.extract_stack() if frame.filename.startswith(OURS)]
            self._seen.setdefault(name, ours)
        return getattr(self._kernels, name)


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_at_most_nine_calls_lead_from_the_command_to_a_gradient_by_the_default_kernels(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command and the kernel included, which has the gradient of a minibatch in C."""
    small = {"learn_step": 64, "batch_size": 32, "network": {"encoder": [16], "latent": 16}}
    block = algos.get(algo).Config.model_validate(small).model_dump(mode="json")
    usual = {key: value for key, value in SHORT.items() if key != "runtime.kernels"}
    write_params(tmp_path, {**usual, "train.algo": algo, f"algos.{algo}": block})
    seen: dict[str, list[str]] = {}
    kernels = build.kernels
    for module in (build, policy):  # who asks for them by `build`, and who imports them
        monkeypatch.setattr(module, "kernels", lambda: Watched(kernels(), seen))
    for stage in ("population", "train"):
        answer = call(tmp_path, stage)
        assert answer.code == 0, answer.err
    assert seen, "the members learned by the kernels"
    for name, calls in seen.items():
        assert len(calls) + 1 <= 9, f"{' → '.join(calls)} → {name}"
