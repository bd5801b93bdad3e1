"""What is measured: for each measurement its contestants and their settings."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from harness import rows
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
        cores: cores of a lane.
        lanes: whether independent turns may run side by side.
        chosen: for a contestant, variants of which its best is taken before the first turn.
        timeout: seconds that a run may take.
        repeats: turns, where the command line names no other number.
    """

    name: str
    task: str
    contestants: tuple[Contestant, ...]
    settings: Callable[[Options], Settings]
    cores: int = 2
    lanes: bool = False
    chosen: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    timeout: float = 1200.0
    repeats: int = 5


EVOPIPE, AGILERL, SB3 = Contestant("evopipe"), Contestant("AgileRL", "agilerl"), Contestant("SB3", "sb3")
TRL, LOOP = Contestant("TRL", "trl"), Contestant("PEFT models in a loop", changes={"way": "loop"})
HOURS = 4 * 3600.0  # that a seed of a learning curve may take
ONE_PROMPT = Contestant("one generate() a prompt", changes={"way": "prompt"})
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


def another(o: Options, algo: str, ticks: int, **own: Any) -> Settings:
    """Another algorithm on LunarLander: two generations of so many vector steps a member.

    The peer's published settings, but for generations' length and for the delay before learning. What would change the
    number of updates does not evolve, as in `lander`.
    """
    ticks, generations = (32, 1) if o.quick else (ticks, 2)
    envs = own.get("num_envs", 16)
    dqn = ("lr", "sb3_tau", "target_interval", "eps_start", "eps_end", "eps_decay", "exploration_fraction", "double")
    shared = {name: value for name, value in lander(o).items() if name not in dqn}
    probabilities = {**EVOLUTION["probabilities"], "activation": 0.0}  # type: ignore[dict-item]
    return {
        **shared, "algo": algo, "probabilities": probabilities, "evo_steps": envs * ticks,
        "max_steps": envs * ticks * generations, **own,
    }  # fmt: skip


def deterministic(o: Options, algo: str, width: int, **own: Any) -> Settings:
    """DDPG and TD3: networks three layers of `width`. Both sides explore by the same Gaussian noise."""
    net: Settings = {"encoder": [width], "latent": width, "head": [width], "layers": [width] * 3}
    return another(
        o, algo, **net, env="LunarLanderContinuous-v3", tau=5e-3, policy_delay=2, noise_sd=0.1, ou=False,
        random_steps=0, share_encoders=False, **own, search={"lr_actor": [1e-4, 1e-2], "lr_critic": [1e-4, 1e-2]},
    )  # fmt: skip


def td3(o: Options) -> Settings:
    """TD3, 49,920 training steps of the population; an update every 4 steps."""
    return deterministic(o, "td3", 64, ticks=390, num_envs=16, learn_step=4, lr_actor=1e-4, lr_critic=1e-3)


def ddpg(o: Options) -> Settings:
    """DDPG, 49,920 training steps of the population; an update every 2 steps."""
    return deterministic(o, "ddpg", 128, ticks=780, num_envs=8, learn_step=2, lr_actor=3e-4, lr_critic=3e-4)


def sac(o: Options) -> Settings:
    """SAC, 24,960 training steps of the population; an update every 4 steps. The temperature begins at 1 and is
    learned, and all rates are one at first, as the peer has it, which clips no gradients."""
    net: Settings = {"encoder": [64], "latent": 64, "head": [64], "layers": [64] * 3}
    return another(
        o, "sac", 195, **net, env="LunarLanderContinuous-v3", learn_step=4, lr=3e-4, lr_actor=3e-4, lr_critic=3e-4,
        lr_alpha=3e-4, alpha=1.0, tau=5e-3, sb3_tau=5e-3, learning_starts=16, random_steps=0,
        search={"lr_actor": [1e-4, 1e-2], "lr_critic": [1e-4, 1e-2]},
    )  # fmt: skip


def rainbow(o: Options) -> Settings:
    """Rainbow with priorities over four steps, 12,800 training steps of the population, an update at each."""
    net: Settings = {"encoder": [128], "latent": 64, "head": [128], "layers": [128, 64, 128]}
    return {
        **another(o, "rainbow", 100, **net, batch_size=64, learn_step=1, lr=1e-4, search={"lr": [6.25e-5, 1e-3]}),
        "probabilities": EVOLUTION["probabilities"], "atoms": 51, "v_min": -200.0, "v_max": 200.0, "noisy_sigma": 0.5,
        "replay": {"n_step": 4, "prioritised": True, "alpha": 0.6, "beta": 0.4},
    }  # fmt: skip


def priorities(o: Options) -> Settings:
    """Prioritised sampling for 8 members, batches of 128, from a million transitions of LunarLander over one step."""
    s = {**rainbow(o), "population": 8, "batch_size": 128, "capacity": 10_000 if o.quick else 1_000_000}
    return {**s, "replay": {"n_step": 1, "prioritised": True, "alpha": 0.6, "beta": 0.4}}


def cqn(o: Options) -> Settings:
    """The learn step of conservative Q-learning, 4 and 8 members."""
    net: Settings = {"encoder": [64], "latent": 64, "head": [64], "layers": [64, 64, 64]}
    return {
        **another(o, "cqn", 32, **net, env="CartPole-v1", batch_size=256, learn_step=1, lr=1e-3, grad_clip=1.0),
        "double": True, "search": {"lr": [1e-4, 1e-2]}, "sizes": [4] if o.quick else [4, 8],
    }  # fmt: skip


def ppo(o: Options) -> Settings:
    """PPO, 98,304 training steps of the population: six rollouts a generation."""
    net: Settings = {"encoder": [64], "latent": 64, "head": [64], "layers": [64, 64, 64]}
    return another(
        o, "ppo", 768, **net, learn_step=256 if o.quick else 2048, epochs=4, lr=1e-3, gae_lambda=0.95, clip=0.2,
        clip_value=True, vf_coef=0.5, ent_coef=0.01, grad_clip=0.5, share_encoders=True, share_encoder=True,
        recurrent=False, max_seq_len=16, search={"lr": [1e-4, 1e-2], "ent_coef": [1e-3, 0.1]},
    )  # fmt: skip


def ppo_recurrent(o: Options) -> Settings:
    """Recurrent PPO on CartPole, 65,536 training steps of the population: two rollouts a generation.

    The peer's published settings, but for rollouts a quarter as long, and as many members as in `ppo`. Its batches
    count sequences; it cuts these where episodes end and leaves out their last steps, so how many it has depends on how
    it plays: in a rollout of this length enough for as many batches as ours has, four.
    """
    net: Settings = {"encoder": [64], "latent": 64, "head": [128], "layers": [64, 64, 128]}
    ticks, generations = (64, 1) if o.quick else (512, 2)
    return {
        **ppo(o), **net, "env": "CartPole-v1", "recurrent": True, "lr": 3e-4, "ent_coef": 1e-4,
        "learn_step": 1024 if o.quick else 4096, "batch_size": 64 * 16, "evo_steps": 16 * ticks,
        "max_steps": 16 * ticks * generations, "search": {"lr": [1e-4, 1e-2], "ent_coef": [1e-4, 1e-3]},
        "probabilities": {"none": 0.4, "architecture": 0.0, "parameters": 0.2, "activation": 0.0, "rl_hp": 0.2},
    }  # fmt: skip


def team(o: Options, algo: str, env: str, ticks: int, **own: Any) -> Settings:
    """An algorithm for teams on one of mpe2's environments, by the peer's published settings as in `another`. Networks
    are three layers of 64; a member is judged by its agents' returns summed up."""
    net: Settings = {"encoder": [64], "latent": 64, "head": [64], "layers": [64] * 3}
    return another(o, algo, ticks, **net, env=env, team=True, **own)


def centralised(o: Options, algo: str, batch_size: int, policy_delay: int) -> Settings:
    """MADDPG and MATD3, 49,920 training steps of the population; an update every 16 steps. Both sides explore by the
    same Gaussian noise."""
    rates = {"lr_actor": [1e-4, 1e-2], "lr_critic": [1e-4, 1e-2]}
    return team(
        o, algo, "simple_speaker_listener_v4", 390, kwargs={"continuous_actions": True}, batch_size=batch_size,
        learn_step=16, lr_actor=1e-4, lr_critic=1e-3, gamma=0.95, tau=1e-3, noise_sd=0.1, ou=False, random_steps=0,
        policy_delay=policy_delay, search=rates,
    )  # fmt: skip


def maddpg_learning(o: Options) -> Settings:
    """MADDPG as in `centralised`, four times as long, in eight generations."""
    short = centralised(o, "maddpg", 64, 1)
    return short if o.quick else {**short, "max_steps": 8 * short["evo_steps"]}


def ippo(o: Options) -> Settings:
    """IPPO, 98,304 training steps of the population: six rollouts a generation. Three agents share their networks. Ours
    counts steps of the environment in a batch, of which all agents come; the peer counts each agent's."""
    return team(
        o, "ippo", "simple_spread_v3", 768, kwargs={"continuous_actions": False}, learn_step=256 if o.quick else 2048,
        batch_size=128, epochs=4, lr=1e-4, gamma=0.99, gae_lambda=0.95, clip=0.2, clip_value=True, vf_coef=0.5,
        ent_coef=0.05, grad_clip=0.5, search={"lr": [1e-6, 1e-2], "ent_coef": [1e-3, 0.1]},
    )  # fmt: skip


def ppo_native(o: Options) -> Settings:
    """PPO acts in evopipe's own CartPole: 8 members, 64 environments each, one rollout longer than the measurement."""
    ticks, warm = (40, 10) if o.quick else (1500, 50)
    small: Settings = {"encoder": [64], "latent": 64, "head": [], "layers": [64, 64]}
    return {
        **ppo(o), **small, "env": "CartPole-v1", "backend": "torch", "population": 8, "num_envs": 64, "ticks": ticks,
        "warm_ticks": warm, "learn_step": 64 * 2 * (ticks + warm), "evo_steps": 64 * 2 * (ticks + warm),
        "max_steps": 64 * 2 * (ticks + warm),
    }  # fmt: skip


def parts(o: Options) -> Settings:
    """One round of a population of 4 and 8."""
    return {**lander(o), "sizes": [4] if o.quick else [4, 8], "evolutions": 3 if o.quick else 12}


def curve(o: Options, base: Callable[[Options], Settings] = lander) -> Settings:
    """The learn step of 1 to 64 members, on a GPU to 512."""
    sizes = [1, 8, 64, 512] if o.device == "cuda" else [1, 2, 4, 8, 16, 32, 64]
    return {**base(o), "sizes": [1, 2] if o.quick else sizes}


def efficiency(o: Options, base: Callable[[Options], Settings] = lander) -> Settings:
    """The loop after its replay holds something, and its parts alone."""
    return {**base(o), "warm_steps": 160 if o.quick else 800, "ticks": 20 if o.quick else 300}


def checkpoint(o: Options) -> Settings:
    """A checkpoint with a full replay memory."""
    return {**lander(o), "saves": 3 if o.quick else 9}


# --- scripts ----------------------------------------------------------------------------------------------------------

_OFF = {"BATCH_SIZE": 128, "LEARN_STEP": 4, "GAMMA": 0.99, "TAU": 1e-3}
_ON = {"BATCH_SIZE": 128, "LEARN_STEP": 2048, "LR": 1e-3, "GAMMA": 0.99, "GAE_LAMBDA": 0.95, "CLIP_COEF": 0.2,
       "ENT_COEF": 0.01, "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5, "UPDATE_EPOCHS": 4, "ACTION_STD_INIT": 0.6}  # fmt: skip
_NET = {"latent_dim": 64, "encoder_config": {"hidden_size": [64]}, "head_config": {"hidden_size": [64]}}
# What each page's script says, but for the number of steps. Environments step in the script's own process: on one core
# AgileRL's default, a process each, takes it half as long again.
SCRIPTS: dict[str, Settings] = {
    "script_dqn": {"algo": "DQN", "env": "LunarLander-v3", "steps": (4, 5_000), "INIT_HP": {**_OFF, "LR": 1e-3}},
    "script_ppo": {"algo": "PPO", "env": "LunarLander-v3", "steps": (4, 10_240), "INIT_HP": _ON},
    "script_ppo_recurrent": {
        "algo": "PPO", "env": "CartPole-v1", "steps": (2, 16_384), "architecture": 0.0,
        "INIT_HP": {**_ON, "LEARN_STEP": 4096, "RECURRENT": True, "SHARE_ENCODERS": False},
        "NET_CONFIG": {"latent_dim": 64, "head_config": {"hidden_size": [64]},
                       "encoder_config": {"hidden_state_size": 64, "num_layers": 1}},
    },
    "script_cqn": {
        "algo": "CQN", "env": "CartPole-v1", "steps": (4, 1_000), "dataset": 10_000,
        "INIT_HP": {**_OFF, "LR": 1e-3, "LEARN_STEP": 1, "DOUBLE": True},
    },
    "script_ddpg": {
        "algo": "DDPG", "env": "LunarLanderContinuous-v3", "steps": (4, 2_500),
        "INIT_HP": {**_OFF, "LR_ACTOR": 3e-4, "LR_CRITIC": 3e-4, "TAU": 5e-3, "POLICY_FREQ": 2,
                    "SHARE_ENCODERS": False},
    },
    "script_maddpg": {
        "algo": "MADDPG", "env": "simple_speaker_listener_v4", "steps": (4, 5_000),
        "kwargs": {"continuous_actions": True},
        "INIT_HP": {**_OFF, "BATCH_SIZE": 64, "LEARN_STEP": 16, "LR_ACTOR": 1e-4, "LR_CRITIC": 1e-3, "GAMMA": 0.95},
    },
}  # fmt: skip


def a_script(o: Options, name: str) -> Settings:
    """A script of the peer's documentation, as everyone runs it."""
    own = dict(SCRIPTS[name])
    generations, evo_steps = own.pop("steps")
    if o.quick:
        hp = {**own["INIT_HP"], **({"LEARN_STEP": 128} if own["algo"] == "PPO" else {})}
        own |= {"INIT_HP": hp, "dataset": 500}
        generations, evo_steps = 1, 256
    return {
        "NET_CONFIG": _NET, "architecture": 0.2, "num_envs": 16, "population": 4, "memory_size": 100_000,
        "eps_decay": 0.995, "test_loop": 1, "vector": "sync", "evo_steps": evo_steps,
        "max_steps": generations * evo_steps, "threads": o.threads, **own,
    }  # fmt: skip


# --- time to a solved elite -------------------------------------------------------------------------------------------

SEARCHED = ("lr", "batch_size", "learn_step")
# AgileRL's own settings for LunarLander-v3, from the configuration that it publishes.
AGILERL_LANDER = {
    "population": 4, "num_envs": 16, "probabilities": EVOLUTION["probabilities"],
    "encoder": [128], "latent": 128, "head": [128], "layer_norm": True, "batch_size": 128, "lr": 6.3e-4,
    "learn_step": 4, "gamma": 0.99, "tau": 1e-3, "double": False, "eps_start": 1.0, "eps_end": 0.1, "eps_decay": 0.99,
    "evo_steps": 10_000, "learning_delay": 0,
}  # fmt: skip


def solving(o: Options, path: str, target: float, steps: int, seconds: float, **sb3: Any) -> Settings:
    """Settings from a params file, in the words of all contestants, and the budget of a run."""
    from evopipe.params.load import load_params

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
    return solving(
        o, "pipelines/dqn-lunarlander/params.yaml", 200.0, 1_500_000, 240.0, trial_steps=100_000,
        trial_eval_every=10_000, warmup_steps=20_000, exploration_fraction=0.12,
    )  # fmt: skip


SEARCHERS = tuple(
    Contestant(f"SB3 + {words}", "sb3", {"searcher": name})
    for name, words in (("tpe", "Optuna"), ("random", "random search"), ("asha", "ASHA"), ("pb2", "PB2"))
)
AS_TENSORS = (Contestant("evopipe, tensors", changes={"backend": "torch"}),)
# By measurement: whether we have the environment as tensors, and the search.
SEARCHES: dict[str, tuple[bool, Settings]] = {
    "hpo_cartpole": (True, {
        "path": "pipelines/ppo-cartpole/params.yaml", "target": 475.0, "steps": 1_000_000, "seconds": 60.0,
        "trial": 65_536, "sb3_envs": 8,
    }),
    "hpo_acrobot": (True, {
        "path": "pipelines/ppo-acrobot/params.yaml", "target": -100.0, "steps": 1_000_000, "seconds": 60.0,
        "trial": 131_072, "sb3_envs": 8,
    }),
    "hpo_pendulum": (True, {
        "path": "pipelines/sac-pendulum/params.yaml", "target": -200.0, "steps": 1_000_000, "seconds": 90.0,
        "trial": 15_000, "sb3_envs": 1,
    }),
    "hpo_lander": (False, {
        "path": "pipelines/ppo-lunarlander/params.yaml", "target": 200.0, "steps": 3_000_000, "seconds": 200.0,
        "trial": 500_000, "sb3_envs": 16,
    }),
}  # fmt: skip


def searching(
    o: Options, path: str, target: float, steps: int, seconds: float, trial: int, sb3_envs: int,
) -> Settings:  # fmt: skip
    """Settings of a search that knows nothing but its space: all members and trials begin with values drawn from it.

    The space, and all that does not vary, are of a pipeline. Budgets count a processor's seconds, of which other work
    on the machine takes nothing; trials of SB3 have `trial` steps, and are evaluated as often as our members.
    """
    from evopipe.params.load import parse_params
    from harness import tournament

    params = parse_params(tournament.of(ROOT / path))
    algo, nodes, seen = params.algo_config, params.evolution.mutation.architecture, params.train.eval_episodes
    every = params.train.evo_steps
    whole = {"batch_size": int, "learn_step": int, "epochs": int}
    names = {"lr": "lr_critic", **{name: name for name in ("batch_size", "learn_step", "epochs", "ent_coef")}}
    search: Settings = {"width": [nodes.min_nodes, nodes.max_nodes]}
    for name, ours in names.items():
        bounds = algo.evolve.get(name) or algo.evolve.get(ours)
        if bounds:
            search[name] = [whole.get(name, float)(x) for x in (bounds.min, bounds.max)]
    own = ("gamma", "gae_lambda", "clip", "vf_coef", "grad_clip")
    quick = {"budget_steps": 12_000, "budget_seconds": 20.0, "trial_steps": 2_000, "trial_eval_every": 500}
    return {
        "params": path, "env": params.env.id, "backend": "sync", "algo": params.train.algo, "drawn": True,
        "normalise": {"observations": False}, "population": params.population.size, "search": search, "fixed": {},
        "processor": True, "target": target,
        "budget_steps": steps, "budget_seconds": o.seconds or seconds, "confirm_episodes": 100, "trial_episodes": seen,
        "trial_steps": trial, "trial_eval_every": every, "startup_trials": 2, "warmup_steps": every,
        "capacity": params.train.replay.capacity, "learning_starts": 500, "sb3_tau": 0.005, "sb3_envs": sb3_envs,
        "device": o.device, "threads": o.threads, **{name: getattr(algo, name) for name in own if hasattr(algo, name)},
        **(quick if o.quick else {}),
    }  # fmt: skip


def curve_of(o: Options, name: str) -> Settings:
    """A row of the learning curves by environment step."""
    return rows.settings(name, o.quick, o.device, o.threads)


# --- language models --------------------------------------------------------------------------------------------------


def language(o: Options, **own: Any) -> Settings:
    """A Llama of 2 layers, 64 wide, with adapters of rank 8 on all linear layers; 8 prompts × 8 completions × 16
    tokens. No divergence from the base is asked for, as TRL does by default."""
    return {
        "hidden": 64, "layers": 2, "rank": 8, "prompts": 8, "group": 8, "prompt_tokens": 4, "tokens": 16, "pairs": 64,
        "lr": 1e-4, "beta": 0.0, "sizes": [1] if o.quick else [1, 4], "device": o.device, "threads": o.threads,
        "warm_steps": 1 if o.quick else 5, "steps": 2 if o.quick else 40, "part_seconds": 0.2 if o.quick else 4.0,
        **own,
    }  # fmt: skip


def dpo(o: Options) -> Settings:
    """DPO: 64 pairs of 24 tokens each, prompt and completion."""
    return language(o, prompt_tokens=8, tokens=24, beta=0.1)


def completions(o: Options) -> Settings:
    """Completions of 16 prompts, 8 of each, by the base alone."""
    return language(o, prompts=16, tokens=32, sizes=[1])


def measurements() -> dict[str, Measurement]:
    """Return all measurements by name, in the order in which they run."""
    ours = [EVOPIPE, Contestant("evopipe, no workers", changes={"env_workers": 0})]
    if importlib.util.find_spec("envpool"):
        ours.append(Contestant("evopipe, envpool", changes={"backend": "envpool"}))
    peers_threads = tuple({"threads": n} for n in (1, 2))
    sharing = {"threads": 1, "share_encoders": True}
    by_torch = Contestant("evopipe, torch's kernels", changes={"kernels": "torch"})
    teams = EVOPIPE, Contestant("evopipe, tensors", changes={"backend": "torch"})
    listed = (
        Measurement(
            "end_to_end", "end-to-end", (*ours, by_torch, AGILERL, SB3), lander,
            chosen={"AgileRL": (*peers_threads, {"threads": 1, "vector": "async"}), "SB3": peers_threads},
        ),
        Measurement("td3", "end-to-end", (EVOPIPE, AGILERL), td3, chosen={"AgileRL": (*peers_threads, sharing)}),
        Measurement("ddpg", "end-to-end", (EVOPIPE, AGILERL), ddpg, chosen={"AgileRL": (*peers_threads, sharing)}),
        Measurement("sac", "end-to-end", (EVOPIPE, SB3), sac, chosen={"SB3": peers_threads}),
        Measurement("rainbow", "end-to-end", (EVOPIPE, AGILERL), rainbow, chosen={"AgileRL": peers_threads}),
        Measurement("cqn", "learn-step", (EVOPIPE, AGILERL), cqn, cores=1),
        Measurement("ppo", "end-to-end", (*ours, AGILERL), ppo, chosen={"AgileRL": peers_threads}),
        Measurement(
            "ppo_recurrent", "end-to-end",
            (EVOPIPE, Contestant("AgileRL", "agilerl", {"batch_size": 64})), ppo_recurrent,
            chosen={"AgileRL": peers_threads},
        ),
        Measurement(
            "maddpg", "end-to-end", (*teams, AGILERL), lambda o: centralised(o, "maddpg", 64, 1),
            chosen={"AgileRL": peers_threads},
        ),
        Measurement("maddpg_learning", "end-to-end", (EVOPIPE, AGILERL), maddpg_learning),
        Measurement(
            "matd3", "end-to-end", (*teams, AGILERL), lambda o: centralised(o, "matd3", 128, 2),
            chosen={"AgileRL": peers_threads},
        ),
        Measurement(
            "ippo", "end-to-end", (*teams, Contestant("AgileRL", "agilerl", {"batch_size": 3 * 128})), ippo,
            chosen={"AgileRL": peers_threads},
        ),
        Measurement("grpo", "grpo", (EVOPIPE, LOOP, TRL), language, cores=1),
        Measurement("grpo_small", "grpo", (EVOPIPE, LOOP), lambda o: language(o, prompts=4), cores=1),
        Measurement("dpo", "dpo", (EVOPIPE, LOOP, TRL), dpo, cores=1),
        Measurement("completions", "completions", (EVOPIPE, ONE_PROMPT), completions, cores=1),
        Measurement("ppo_native", "acting", (EVOPIPE,), ppo_native, cores=1),
        Measurement("priorities", "priorities", (EVOPIPE,), priorities, cores=1),
        Measurement("roofline", "roofline", (EVOPIPE,), lander, cores=1),
        Measurement("parts", "parts", (EVOPIPE, AGILERL), parts, cores=1),
        Measurement("curve_128", "curve", (EVOPIPE,), curve, cores=1),
        Measurement("curve_64", "curve", (EVOPIPE,), lambda o: curve(o, cartpole_core), cores=1),
        Measurement("efficiency_lander", "efficiency", (EVOPIPE,), efficiency, cores=1),
        Measurement("efficiency_cartpole", "efficiency", (EVOPIPE,), lambda o: efficiency(o, cartpole_core), cores=1),
        Measurement("checkpoint", "checkpoint", (EVOPIPE,), checkpoint, cores=1),
        *(
            Measurement(name, "script", (EVOPIPE, AGILERL), partial(a_script, name=name)) for name in SCRIPTS
        ),
        Measurement(
            "cartpole", "time-to-solved", (EVOPIPE, AGILERL, Contestant("SB3 + Optuna", "sb3")), cartpole, lanes=True
        ),
        Measurement(
            "lunarlander", "time-to-solved",
            (EVOPIPE, Contestant("AgileRL", "agilerl", AGILERL_LANDER), Contestant("SB3 + Optuna", "sb3")), lunarlander,
            lanes=True,
        ),
        *(
            Measurement(name, "time-to-solved", (EVOPIPE, *(AS_TENSORS if tensors else ()), *SEARCHERS),
                        partial(searching, **own), cores=1, lanes=True)
            for name, (tensors, own) in SEARCHES.items()
        ),
        *(Measurement(name, "per-step", (EVOPIPE, Contestant(row.peer, rows.ENVIRONMENTS[row.peer])),
                      partial(curve_of, name=name), lanes=True, timeout=HOURS, repeats=row.repeats)
          for name, row in rows.ROWS.items()),
    )  # fmt: skip
    return {m.name: m for m in listed}
