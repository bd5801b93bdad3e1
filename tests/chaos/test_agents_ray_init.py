"""Settings of Ray (`ray_init`) of a trainer: they reach `ray.init`, and what Ray does not take ends the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="an extra of its own: pip install 'evopipe[language]'")
if find_spec("ray") is None:
    pytest.skip("an extra of its own: pip install 'evopipe[ray]'", allow_module_level=True)

import evopipe

pytestmark = pytest.mark.thorough
SCRIPT = """
import json, sys
import ray
from evopipe import EvopipeError
from evopipe import AgentTrainer
from evopipe.agents import ChatAgent, CopyGame

class Seen(CopyGame):
    pass

def made(**settings):
    config = {
        "data.train_batch_size": 1, "data.max_response_length": 1, "actor_rollout_ref.rollout.n": 2,
        "language.tiny.characters": "0123456789", "language.tiny.hidden": 16, "language.tiny.layers": 1,
        "language.tiny.heads": 2, "language.full": True, "trainer.total_training_steps": 1,
        "train.eval_episodes": 2, "train.confirm_episodes": 2, "evaluate.bootstrap": 100, "ray_init": settings,
    }
    return AgentTrainer(
        agent_class=ChatAgent, env_class=Seen, engine="ray", train_dataset=CopyGame.tasks(2), config=config
    )

def refused(**settings):
    try:
        made(**settings).train()
    except EvopipeError as error:
        return error.exit_code, str(error)

if __name__ == "__main__":
    told = [refused(**each) for each in json.loads(sys.argv[1])]
    trainer = made(num_cpus=3, namespace="there")
    trained = trainer.train()
    told.append([ray.cluster_resources()["CPU"], ray.get_runtime_context().namespace, trainer.resolved.notes])
    print(json.dumps(told))
"""
BAD = [
    ({"num_cpu": 1}, 65, "ray_init: ray.init takes no 'num_cpu', did you mean 'num_cpus'?"),
    ({"num_cpus": "many"}, 65, "ray_init: Ray does not take num_cpus='many' (AssertionError"),
    ({"num_cpus": -1}, 65, "ray_init: Ray does not take num_cpus=-1 (ValueError"),
    ({"_no_such": 1}, 65, "ray_init: Ray does not take _no_such=1 (RuntimeError: Unknown keyword"),
    ({"address": "127.0.0.1:1"}, 72, "ray_init.address: no Ray cluster answers at '127.0.0.1:1' (Connection"),
    ({"address": 7}, 65, "ray_init.address: of type int, expected text"),
]


def test_settings_of_ray_reach_it_and_what_it_does_not_take_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT, encoding="utf-8")
    given = json.dumps([settings for settings, _, _ in BAD])
    environment = {**os.environ, "PYTHONPATH": str(Path(evopipe.__file__).parent.parent)}
    ran = subprocess.run(
        [sys.executable, str(script), given], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    *refused, (cpus, namespace, notes) = json.loads(ran.stdout.splitlines()[-1])
    for (settings, code, text), found in zip(BAD, refused, strict=True):
        assert found is not None, f"{settings} ran to the end"
        assert found[0] == code
        assert found[1].startswith(text), found[1]
    assert (cpus, namespace) == (3.0, "there")
    assert not [note for note in notes if "ray_init" in note]
