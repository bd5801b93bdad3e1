"""From the command to the gradient: how many functions of ours stand between them."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

import evopipe
from evopipe import algos
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
