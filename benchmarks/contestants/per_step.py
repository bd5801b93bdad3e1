"""evopipe's side of a learning curve by environment step: one member, no evolution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from common import held_out_seeds, play_episodes

from evopipe.acting import Policy
from evopipe.algos import get
from evopipe.core.cohort import dissolve
from evopipe.machine import configure
from evopipe.problems.env import begin
from evopipe.problems.specs import describe, make_spec
from evopipe.run.spec import first_members
from evopipe.schema.params import Params, parse_params

DRAWS = ("ppo", "sac")  # algorithms whose policy draws its actions
_NEVER = 1e-12  # chance of a uniform action: the policy draws, and nothing else explores


def per_step(s: Mapping[str, Any]) -> dict[str, Any]:
    """Train one member, and evaluate it after every stretch of `every` steps."""
    params = params_of(s)
    spec = make_spec(params, configure(params.runtime))
    members, _ = first_members(spec, 1)
    run = begin(spec, members)
    env = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(s["env"])] * s["episodes"])
    seeds, about, algo = held_out_seeds(s["seed"], 0, s["episodes"]), describe(params), get(s["algo"])
    found: dict[str, list[float]] = {"steps": [], "greedy": [], **({"sampled": []} if s["algo"] in DRAWS else {})}
    while run.clock.tick < run.clock.total:
        while not run.clock.generation_over:
            run.advance()
        run.clock.begin_generation()
        (member,) = dissolve(run.cohorts)
        policy = Policy(algo, params.algo_config, member, about)
        found["steps"].append(run.clock.step)
        for kind, epsilon in (("greedy", 0.0), ("sampled", _NEVER)):
            if kind in found:
                draw = np.random.default_rng((s["seed"], run.clock.step))
                act = lambda obs, e=epsilon, p=policy, d=draw: p.act(obs, epsilon=e, seed=int(d.integers(2**31)))  # noqa: E731
                found[kind].append(float(play_episodes(env, act, seeds).mean()))
        run.regime.adopt(run.cohorts)  # the next stretch
    run.close()
    env.close()
    return {"sampled": None, **found}


def params_of(s: Mapping[str, Any]) -> Params:
    """Return the parameters of a row."""
    algo, (*encoder, latent) = s["algo"], s["widths"]
    block: dict[str, Any] = {name: s[name] for name in ("batch_size", "learn_step", "gamma")}
    block["network"] = {"encoder": encoder, "latent": latent, "head": [], "activation": s["activation"]}
    if algo == "ppo":
        block |= {name: s[name] for name in ("lr", "epochs", "gae_lambda", "clip", "ent_coef", "grad_clip", "std")}
        block["vf_coef"] = 2 * s["vf_coef"]  # ours weighs half the squared error
    elif algo == "dqn":
        block |= {name: s[name] for name in ("lr", "target_interval", "eps_end", "eps_steps", "grad_clip")}
        block |= {"target": "hard", "double": False}
    else:
        block |= {"lr_actor": s["lr"], "lr_critic": s["lr"], "tau": s["tau"], "random_steps": s["random_steps"]}
        block |= {"grad_clip": 1e9}  # the peer clips none
        block |= {"lr_alpha": s["lr"], "alpha": 1.0} if algo == "sac" else {"noise_sd": s["noise_sd"]}
    off = {"learning_delay": s["random_steps"], "replay": {"capacity": s["capacity"]}} if algo != "ppo" else {}
    return parse_params({
        "seed": s["seed"],
        "env": {"id": s["env"], "num_envs": s["num_envs"], "backend": "sync"},
        "population": {"size": 1},
        "train": {"algo": algo, "max_steps": s["steps"], "evo_steps": s["every"], "warm_start": 0, **off},
        "runtime": {"device": s["device"], "threads": s["threads"]},
        "tracking": {"backends": []},
        "algos": {algo: block},
    })  # fmt: skip
