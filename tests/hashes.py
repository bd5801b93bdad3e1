"""Whether a change of the code changes a number: short runs, and one hash of all that each has learned and written.

`PYTHONPATH=src python tests/hashes.py [name …]` prints `name sha256` a job. A hash is of tensors, fitness, lineage and
scores, of no path, version or time. Compare what two trees print on one machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import players
import tiny
import words
from evopipe import algos
from evopipe.schema.write import dump_yaml

SMALL: dict[str, Any] = {"batch_size": 29, "learn_step": 4, "network": {"encoder": [16], "latent": 16}}
ROLLOUT = {**SMALL, "batch_size": 32, "learn_step": 128, "epochs": 2}
LSTM = {**ROLLOUT, "max_seq_len": 8, "network": {"encoder": [16], "latent": 16, "encoder_kind": "lstm"}}
PENDULUM = {"env.id": "Pendulum-v1"}
OFFLINE = {"train.mode": "offline", "train.warm_start": 0}
SPEAKER = {"env.id": "simple_speaker_listener_v4", "env.kwargs": {"continuous_actions": True}, "env.backend": "torch"}
SURPRISED = {"train.replay.n_step": 3, "train.replay.prioritised": True, "train.replay.sharing": "own"}
JOBS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dqn": ("dqn", {**SMALL, "eps_steps": 400}, {"train.warm_start": 100}),
    "dqn-nstep-prioritised": ("dqn", {**SMALL, "eps_steps": 400}, SURPRISED),
    "rainbow": ("rainbow", SMALL, {}),
    "ddpg": ("ddpg", SMALL, PENDULUM),
    "td3": ("td3", SMALL, PENDULUM),
    "sac": ("sac", SMALL, PENDULUM),
    "sac-discrete": ("sac", SMALL, {}),
    "ppo": ("ppo", ROLLOUT, {}),
    "ppo-box": ("ppo", ROLLOUT, PENDULUM),
    "ppo-lstm": ("ppo", LSTM, {}),
    "ppo-tensors": ("ppo", ROLLOUT, {"env.backend": "torch"}),
    "ppo-compiled": ("ppo", ROLLOUT, {"env.backend": "c"}),
    "ppo-compiled-box": ("ppo", ROLLOUT, {**PENDULUM, "env.backend": "c"}),
    "cqn-offline": ("cqn", SMALL, OFFLINE),
    "iql-offline": ("iql", SMALL, PENDULUM | OFFLINE),
    "ippo": ("ippo", ROLLOUT, {"env.id": "teams_for_tests:Relay"}),
    "maddpg": ("maddpg", SMALL, SPEAKER),
}
"""Of a job in an environment: its algorithm, that block of `algos`, and what else is not as in `tiny.TINY`."""
TEXT: dict[str, dict[str, Any]] = {"grpo": words.small_params(), "ilql": players.small_params("ilql")}
STAGES = ("fetch", "buffer", "population", "train", "evaluate", "export")
UNLIKE = frozenset({"provenance", "fingerprint", "seconds", "timing", "version", "why"})
"""Keys whose values are not results."""


def pipeline(name: str, folder: Path) -> None:
    """Run all stages of a job in a folder."""
    if name in TEXT:
        folder.mkdir()
        (folder / "params.yaml").write_text(dump_yaml(TEXT[name]), encoding="utf-8")
    else:
        algo, given, more = JOBS[name]
        config = algos.get(algo).Config
        block = config.model_validate({key: value for key, value in given.items() if key in config.model_fields})
        own = {"train.algo": algo, f"algos.{algo}": block.model_dump(mode="json"), "train.max_steps": 800}
        tiny.write_params(folder, {**own, **more})
    team = name in JOBS and algos.get(JOBS[name][0]).TEAM  # no dataset holds its steps
    for stage in STAGES[2 * team :]:
        answer = tiny.call(folder, "--quiet", stage)
        if answer.code:
            sys.exit(f"{name}: {stage} ended with {answer.code}: {answer.err}")


def agents(folder: Path) -> None:
    """Run an `AgentTrainer` in a folder."""
    import evopipe
    from evopipe.agents import ChatAgent, CopyGame

    config = {
        "trainer.default_local_dir": str(folder), "data.train_batch_size": 2, "actor_rollout_ref.rollout.n": 4,
        "data.max_response_length": 1, "language.tiny.characters": "0123456789", "language.tiny.hidden": 16,
        "language.tiny.layers": 1, "language.tiny.heads": 2, "language.full": True,
        "trainer.total_training_steps": 8, "trainer.test_freq": 4, "train.eval_episodes": 8, "evaluate.bootstrap": 100,
    }  # fmt: skip
    tasks = CopyGame.tasks(20)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        evopipe.AgentTrainer(
            agent_class=ChatAgent, env_class=CopyGame, population=2, train_dataset=tasks, config=config
        ).train()


def finetune(folder: Path) -> None:
    """Train two adapters by `finetune_llm_reasoning`, and write the better one to a folder."""
    from evopipe import GRPO, ReasoningGym, finetune_llm_reasoning
    from evopipe.language.base import load_base
    from evopipe.schema.language import LanguageConfig

    base = load_base(LanguageConfig.model_validate({"tiny": {"characters": "0123456789="}}), seed=1)
    rows = [{"question": f"{n}=", "answer": str(n)} for n in range(10)]
    env = ReasoningGym(
        rows[:8], rows[8:], base.tokenizer, lambda completion, answer, question: float(completion[:1] == answer),
        data_batch_size_per_gpu=4,
    )  # fmt: skip
    pop = GRPO.population(2, base.model, group_size=4, max_output_tokens=2)
    out = folder / "models" / "elite"
    out.parent.mkdir(parents=True)
    found = finetune_llm_reasoning(
        pop, env, evaluation_interval=2, max_steps=24, verbose=False, save_elite=True, elite_path=str(out)
    )
    for agent in found:
        agent.save_checkpoint(folder / "models" / str(agent.index))


def digest(folder: Path) -> str:
    """SHA-256 of the results below a folder."""
    found = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if (
            name.startswith(("models/", "reports/"))
            and name != tiny.MEASURED
            and file.is_file()
            and file.suffix not in (".npz", ".py")
        ):
            found.update(name.encode() + b"\0" + _results(file))
    return found.hexdigest()


def _results(file: Path) -> bytes:
    content = file.read_bytes()
    if file.name == "manifest.json":  # checksums of the others, of texts too
        return b""
    if file.suffix == ".json":
        return json.dumps(_without(json.loads(content)), sort_keys=True).encode()
    if file.suffix == ".jsonl":
        return json.dumps([_without(json.loads(line)) for line in content.splitlines()], sort_keys=True).encode()
    return content if file.suffix in (".safetensors", ".csv", ".h5") else b""


def _without(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _without(value) for key, value in data.items() if key not in UNLIKE}
    return [_without(each) for each in data] if isinstance(data, list) else data


def main(names: list[str]) -> None:
    """Run jobs, all where none is named, and print their hashes."""
    jobs: dict[str, Callable[[Path], None]] = {name: partial(pipeline, name) for name in [*JOBS, *TEXT]}
    jobs |= {"agents": agents, "finetune": finetune}
    for name in names or jobs:
        with tempfile.TemporaryDirectory(prefix="hashes-") as scratch:
            folder = Path(scratch) / "run"
            jobs[name](folder)
            print(name, digest(folder), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
