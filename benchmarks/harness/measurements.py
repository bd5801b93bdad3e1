"""What is measured: for each measurement its contestants and their settings."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.machine import ROOT

Settings = dict[str, Any]


@dataclass(frozen=True)
class Contestant:
    """Who runs: a name, the environment it runs in, and what differs from the measurement's settings."""

    name: str
    environment: str = "ours"
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def script(self) -> str:
        """Its script under `contestants/`."""
        return "ours.py" if self.environment == "ours" else f"peer_{self.environment}.py"


@dataclass(frozen=True)
class Options:
    """The command line, as far as settings depend on it."""

    device: str = "cpu"
    threads: int = 1
    quick: bool = False
    seconds: float | None = None  # that a run to a solved elite may take; None: as the measurement says


@dataclass(frozen=True)
class Measurement:
    """One measurement.

    Attributes:
        name: of its results file.
        task: the contestants' task.
        contestants: who runs, in this order, turn after turn.
        settings: from options to settings; every contestant gets them and its `changes`.
        cores: cores of a lane, None for all.
        lanes: whether independent turns may run side by side.
        chosen: for a contestant, variants of which its best is taken before the first turn.
        timeout: seconds that a run may take.
    """

    name: str
    task: str
    contestants: tuple[Contestant, ...]
    settings: Callable[[Options], Settings]
    cores: int | None = 2
    lanes: bool = False
    chosen: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    timeout: float = 1200.0


EVOPIPE, AGILERL, SB3 = Contestant("evopipe"), Contestant("AgileRL", "agilerl"), Contestant("SB3", "sb3")
NETWORK = {"encoder": [128], "latent": 128, "head": [128], "layers": [128, 128, 128], "layer_norm": False}
EVOLUTION = {
    "probabilities": {"none": 0.4, "architecture": 0.2, "parameters": 0.2, "activation": 0.2, "rl_hp": 0.2},
    "new_layer_prob": 0.2, "mutation_sd": 0.1, "mutate_elite": False, "tournament": 2,
}  # fmt: skip


def lander(o: Options) -> Settings:
    """DQN on LunarLander: two generations, 49,920 training steps of the population.

    The peer's published settings for this environment, but for its generations of 10,000 steps a member, of which the
    budget would hold one and a quarter. Batch size and learn step do not evolve, so that everybody makes as many
    updates on as many transitions.
    """
    ticks, generations = (32, 1) if o.quick else (390, 2)
    return {
        "env": "LunarLander-v3", "num_envs": 16, "population": 4, **NETWORK, **EVOLUTION, "batch_size": 128,
        "lr": 5e-4, "learn_step": 4, "gamma": 0.99, "tau": 1e-3, "sb3_tau": 1e-3, "target_interval": 1, "double": False,
        "grad_clip": 10.0, "search": {"lr": [6.25e-5, 1e-2]}, "capacity": 100_000, "evo_steps": 16 * ticks,
        "max_steps": 16 * ticks * generations, "eval_episodes": 16, "learning_delay": 0, "learning_starts": 128,
        "eps_start": 1.0, "eps_end": 0.1, "eps_decay": 0.995, "exploration_fraction": 0.6, "device": o.device,
        "threads": o.threads, "part_seconds": 0.1 if o.quick else 0.6,
    }  # fmt: skip


def cartpole_core(o: Options) -> Settings:
    """The small workload: networks 64 wide, batches of 64."""
    small = {"encoder": [64], "latent": 64, "head": [], "layers": [64, 64]}
    return {**lander(o), "env": "CartPole-v1", **small, "batch_size": 64}


def parts(o: Options) -> Settings:
    """One round of a population of 4 and 8."""
    return {**lander(o), "sizes": [4] if o.quick else [4, 8], "evolutions": 3 if o.quick else 12}


def curve(o: Options, base: Callable[[Options], Settings] = lander) -> Settings:
    """The learn step of 1 to 64 members."""
    return {**base(o), "sizes": [1, 2] if o.quick else [1, 2, 4, 8, 16, 32, 64]}


def threads(o: Options) -> Settings:
    """The learn step of 4, 8 and 16 members."""
    return {**lander(o), "sizes": [2] if o.quick else [4, 8, 16]}


def efficiency(o: Options, base: Callable[[Options], Settings] = lander) -> Settings:
    """The loop after its replay holds something, and its parts alone."""
    return {**base(o), "warm_steps": 160 if o.quick else 800, "ticks": 20 if o.quick else 300}


def checkpoint(o: Options) -> Settings:
    """A checkpoint with a full replay memory."""
    return {**lander(o), "saves": 3 if o.quick else 9}


# --- time to a solved elite -------------------------------------------------------------------------------------------

SEARCHED = ("lr", "batch_size", "learn_step")
# AgileRL's own settings for LunarLander-v3, from the configuration that it publishes.
AGILERL_LANDER = {
    "encoder": [128], "latent": 128, "head": [128], "layer_norm": True, "batch_size": 128, "lr": 6.3e-4,
    "learn_step": 4, "gamma": 0.99, "tau": 1e-3, "double": False, "eps_start": 1.0, "eps_end": 0.1, "eps_decay": 0.99,
    "evo_steps": 10_000, "learning_delay": 0,
}  # fmt: skip


def solving(o: Options, path: str, target: float, steps: int, seconds: float, **sb3: Any) -> Settings:
    """Settings from a params file, in the words of all contestants, and the budget of a run."""
    from evopipe.config import load_params

    params = load_params(ROOT / path)
    dqn, net, mutation = params.algo_config, params.algo_config.network, params.evolution.mutation
    envs = params.env.num_envs
    whole = {"batch_size": int, "learn_step": int}
    search = {
        name: [whole.get(name, float)(dqn.evolve[name].min), whole.get(name, float)(dqn.evolve[name].max)]
        for name in SEARCHED
        if name in dqn.evolve
    }
    quick = {"budget_steps": 3_000, "budget_seconds": 20.0, "trial_steps": 1_000, "trial_eval_every": 500}
    return {
        "params": path, "env": params.env.id, "num_envs": envs, "population": params.population.size,
        "encoder": list(net.encoder), "latent": net.latent, "head": list(net.head) or [net.latent],
        "layers": [*net.encoder, net.latent, *net.head], "layer_norm": net.layer_norm, "batch_size": dqn.batch_size,
        "lr": dqn.lr, "learn_step": dqn.learn_step, "gamma": dqn.gamma, "tau": dqn.tau, "double": dqn.double,
        "grad_clip": dqn.grad_clip, "search": search, "probabilities": mutation.probabilities.model_dump(),
        "new_layer_prob": mutation.new_layer_prob, "mutation_sd": mutation.sd, "mutate_elite": mutation.mutate_elite,
        "tournament": params.evolution.tournament.size, "capacity": params.train.replay.capacity,
        "evo_steps": params.train.evo_steps, "max_steps": steps, "learning_delay": params.train.learning_delay,
        "eps_start": dqn.eps_start, "eps_end": dqn.eps_end,
        "eps_decay": math.exp(math.log(dqn.eps_end / dqn.eps_start) * envs / dqn.eps_steps),
        "device": o.device, "threads": o.threads, "target": target, "budget_steps": steps,
        "budget_seconds": o.seconds or seconds,
        "confirm_episodes": 100, "trial_episodes": 5, "learning_starts": 500, "sb3_tau": 1.0, "target_interval": 250,
        "sb3_envs": 1, "fixed": {}, "startup_trials": 2, **sb3, **(quick if o.quick else {}),
    }  # fmt: skip


def cartpole(o: Options) -> Settings:
    """CartPole: SB3 in its strongest setting, one gradient step per environment step."""
    return solving(
        o, "pipelines/dqn-cartpole/params.yaml", 475.0, 1_000_000, 240.0, trial_steps=40_000, trial_eval_every=2_500,
        warmup_steps=5_000, exploration_fraction=0.16, fixed={"learn_step": 1},
    )  # fmt: skip


def lunarlander(o: Options) -> Settings:
    """LunarLander, without a warm start: nobody else has a dataset."""
    own = "pipelines/dqn-lunarlander/params.yaml"
    path = own if (ROOT / own).exists() else "params.yaml"
    return solving(
        o, path, 200.0, 1_500_000, 240.0, trial_steps=100_000, trial_eval_every=10_000, warmup_steps=20_000,
        exploration_fraction=0.12,
    )  # fmt: skip


def measurements() -> dict[str, Measurement]:
    """Return all measurements by name, in the order in which they run."""
    ours = [EVOPIPE, Contestant("evopipe, no workers", changes={"env_workers": 0})]
    if importlib.util.find_spec("envpool"):
        ours.append(Contestant("evopipe, envpool", changes={"backend": "envpool"}))
    peers_threads = tuple({"threads": n} for n in (1, 2))
    listed = (
        Measurement(
            "end_to_end", "end-to-end", (*ours, AGILERL, SB3), lander,
            chosen={"AgileRL": (*peers_threads, {"threads": 1, "vector": "async"}), "SB3": peers_threads},
        ),
        Measurement("roofline", "roofline", (EVOPIPE,), lander, cores=1),
        Measurement("parts", "parts", (EVOPIPE, AGILERL), parts, cores=1),
        Measurement("curve_128", "curve", (EVOPIPE,), curve, cores=1),
        Measurement("curve_64", "curve", (EVOPIPE,), lambda o: curve(o, cartpole_core), cores=1),
        Measurement(
            "threads", "curve",
            tuple(Contestant(f"{n} thread{'s' if n > 1 else ''}", changes={"threads": n}) for n in (1, 2, 4)),
            threads, cores=None,
        ),
        Measurement("efficiency_lander", "efficiency", (EVOPIPE,), efficiency, cores=1),
        Measurement("efficiency_cartpole", "efficiency", (EVOPIPE,), lambda o: efficiency(o, cartpole_core), cores=1),
        Measurement("checkpoint", "checkpoint", (EVOPIPE,), checkpoint, cores=1),
        Measurement(
            "cartpole", "time-to-solved", (EVOPIPE, AGILERL, Contestant("SB3 + Optuna", "sb3")), cartpole, lanes=True
        ),
        Measurement(
            "lunarlander", "time-to-solved",
            (EVOPIPE, Contestant("AgileRL", "agilerl", AGILERL_LANDER), Contestant("SB3 + Optuna", "sb3")), lunarlander,
            lanes=True,
        ),
    )  # fmt: skip
    return {m.name: m for m in listed}
