"""evopipe's side of a learning curve by environment step: one member, no evolution."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from common import held_out_seeds, judge_team, play_episodes

from evopipe.core.cohort import dissolve
from evopipe.core.member import Member
from evopipe.data.d4rl import read_d4rl
from evopipe.data.transitions import Transitions, pack
from evopipe.envs.spaces import ActionSpace
from evopipe.machine import configure
from evopipe.params.load import Params, parse_params
from evopipe.policies.acting import Policy
from evopipe.policies.team import TeamPolicy
from evopipe.problems.env import begin
from evopipe.problems.specs import describe, make_spec
from evopipe.run.spec import EnvSpec, first_members

DATASETS = Path(__file__).parents[1] / ".data"
DRAWS = ("ppo", "sac", "ippo", "mappo")  # algorithms whose policy draws its actions
_NEVER = 1e-12  # chance of a uniform action: the policy draws, and nothing else explores
_UNCLIPPED = 1e9
# Settings of each algorithm's block that have the same name and meaning there.
_ON_POLICY = ("lr", "epochs", "gae_lambda", "clip", "ent_coef", "grad_clip", "std")
_OWN = {
    "ppo": _ON_POLICY, "ippo": _ON_POLICY, "mappo": _ON_POLICY,
    "dqn": ("lr", "eps_end", "eps_steps", "grad_clip"), "cqn": ("lr", "tau", "alpha"),
    "rainbow": ("lr", "tau", "grad_clip", "atoms", "v_min", "v_max", "noisy_sigma"),
    "sac": ("tau", "random_steps"), "td3": ("tau", "random_steps", "noise_sd"),
    "ddpg": ("tau", "random_steps", "noise_sd"), "maddpg": ("tau", "random_steps", "noise_sd"),
    "iql": ("tau", "expectile", "beta"), "td3bc": ("tau", "alpha"),
}  # fmt: skip


def per_step(s: Mapping[str, Any]) -> dict[str, Any]:
    """Train one member, and evaluate it after every stretch of `every` steps."""
    params = params_of(s)
    spec = make_spec(params, configure(params.runtime))
    members, _ = first_members(spec, 1)
    run = begin(spec, members, dataset_of(s) if "data" in s else None)
    judge = Judge(s, spec)
    found: dict[str, list[float]] = {"steps": [], "greedy": [], **({"sampled": []} if s["algo"] in DRAWS else {})}
    while run.clock.tick < run.clock.total:
        while not run.clock.generation_over:
            run.advance()
        run.clock.begin_generation()
        (member,) = dissolve(run.cohorts)
        found["steps"].append(run.clock.step)
        for kind, epsilon in (("greedy", 0.0), ("sampled", _NEVER)):
            if kind in found:
                found[kind].append(judge(member, run.clock.step, epsilon))
        run.regime.adopt(run.cohorts)  # the next stretch
    run.close()
    return {"sampled": None, **found}


class Judge:
    """Lets members play a row's held-out episodes."""

    def __init__(self, s: Mapping[str, Any], spec: EnvSpec) -> None:
        self.s, self.spec, self.about = s, spec, describe(spec)
        self.seeds = held_out_seeds(s["seed"], 0, s["episodes"])
        if not s.get("team"):
            made = lambda: gymnasium.make(s["env"], **s.get("kwargs", {}))  # noqa: E731
            self.env = gymnasium.vector.SyncVectorEnv([made] * s["episodes"])

    def __call__(self, member: Member, step: int, epsilon: float) -> float:
        """Return the mean return; above an `epsilon` of 0 of actions that the policy draws."""
        s, given = self.s, (self.spec.algo, self.spec.algo_config, member)
        draw = np.random.default_rng((s["seed"], step))
        if s.get("team"):
            team = TeamPolicy(*given, self.about)
            act = lambda obs: team.act(obs, epsilon=epsilon, seed=int(draw.integers(2**31)))  # noqa: E731
            return judge_team(s["env"], s["kwargs"], act, self.seeds)
        policy, memory = Policy(*given, self.about), None

        def chosen(obs: np.ndarray) -> np.ndarray:
            nonlocal memory
            action, memory = policy.step(obs, memory, epsilon=epsilon, seed=int(draw.integers(2**31)))
            return action

        return float(play_episodes(self.env, chosen, self.seeds).mean())


def dataset_of(s: Mapping[str, Any]) -> Transitions:
    """Return an offline row's dataset."""
    with closing(gymnasium.make(s["env"])) as env:
        actions = ActionSpace.of(env.action_space)
    return pack(read_d4rl(DATASETS / f"{s['data']}.h5", discrete=not actions.continuous).episodes, actions.relative)


def params_of(s: Mapping[str, Any]) -> Params:
    """Return the parameters of a row."""
    algo, (*encoder, latent) = s["algo"], s["widths"]
    block: dict[str, Any] = {name: s[name] for name in ("batch_size", "learn_step", "gamma", *_OWN[algo])}
    block["network"] = {
        "encoder": encoder, "latent": latent, "head": s.get("head", []), "activation": s["activation"],
        "layer_norm": s.get("layer_norm", False),
        "encoder_kind": "lstm" if s.get("recurrent") else "mlp", **({"conv": s["conv"]} if "conv" in s else {}),
    }  # fmt: skip
    if "vf_coef" in s:
        block["vf_coef"] = 2 * s["vf_coef"]  # ours weighs half the squared error
    if algo == "dqn":  # the peer counts steps between two copies, we count updates
        block |= {"target": "hard", "target_interval": s["target_interval"] // s["learn_step"], "double": False}
    elif "grad_clip" not in s:
        block["grad_clip"] = _UNCLIPPED  # the peers clip none
        block |= {} if algo == "cqn" else {"lr_actor": s["lr"], "lr_critic": s["lr"]}
    block |= {
        "ppo": {"sequences": "whole"} if s.get("recurrent") else {}, "ippo": {"clip_value": True},
        "mappo": {"share": "none"}, "maddpg": {"share": "group", "output_penalty": 0.0},
        "sac": {"lr_alpha": s["lr"], "alpha": 1.0},
    }.get(algo, {})  # fmt: skip
    train: dict[str, Any] = {"algo": algo, "max_steps": s["steps"], "evo_steps": s["every"], "warm_start": 0}
    if "data" in s:
        train["mode"] = "offline"
    elif "capacity" in s:
        replay = {"capacity": s["capacity"]}
        if algo == "rainbow":
            replay |= {"prioritised": True, **{name: s[name] for name in ("n_step", "alpha", "beta")}}
        train |= {"learning_delay": s["random_steps"], "replay": replay}
    return parse_params({
        "seed": s["seed"],
        "env": {"id": s["env"], "kwargs": s.get("kwargs", {}), "num_envs": s["num_envs"], "backend": "sync"},
        "population": {"size": 1},
        "train": train,
        "runtime": {"device": s["device"], "threads": s["threads"]},
        "tracking": {"backends": []},
        "algos": {algo: block},
    })  # fmt: skip
