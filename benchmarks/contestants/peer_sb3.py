"""Stable-Baselines3: its DQN run once per member, or DQN, PPO or SAC tuned until one is solved.

Searchers are Optuna's TPE with the median pruner (`tpe`), its random search (`random`), random search with its
asynchronous successive halving (`asha`), and Ray Tune's PB2 (`pb2`), whose scheduler is asked in this process: Ray's
own processes would take most of one core.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import itertools
import logging
import math
import time
import warnings
from collections.abc import Mapping
from typing import Any

warnings.filterwarnings("ignore")

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
import optuna  # noqa: E402
import torch  # noqa: E402
from common import (  # noqa: E402
    EnvClock,
    OutOfBudget,
    Parts,
    by_decades,
    draws,
    held_out_seeds,
    main,
    play_episodes,
    processor,
)
from stable_baselines3 import DDPG, DQN, PPO, SAC, TD3  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.noise import NormalActionNoise  # noqa: E402
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv  # noqa: E402

Settings = Mapping[str, Any]
Model = DQN | PPO | SAC
optuna.logging.set_verbosity(logging.WARNING)


def make_model(s: Settings, env: DummyVecEnv, seed: int, **chosen: Any) -> Model:
    """Return a learner. Off-policy it makes one update every `learn_step` environment steps; PPO's rollouts are of so
    many."""
    values = {**s, **chosen}
    envs, every = env.num_envs, int(values["learn_step"])
    layers = [int(values["width"])] * 2 if "width" in values else list(s["layers"])
    common: dict[str, Any] = {
        "policy": "MlpPolicy", "env": env, "learning_rate": float(values["lr"]), "gamma": s["gamma"],
        "batch_size": int(values["batch_size"]), "seed": seed, "device": s["device"],
        "policy_kwargs": {"net_arch": layers},
    }  # fmt: skip
    if s.get("algo") == "ppo":
        return PPO(
            **common, n_steps=max(1, every // envs), n_epochs=int(values["epochs"]), ent_coef=float(values["ent_coef"]),
            gae_lambda=s["gae_lambda"], clip_range=s["clip"], vf_coef=s["vf_coef"], max_grad_norm=s["grad_clip"],
        )  # fmt: skip
    # SB3 counts `train_freq` in steps of the vector and `gradient_steps` in updates after each.
    train_freq, updates = (1, envs // every) if envs >= every else (every // envs, 1)
    common |= {
        "buffer_size": s["capacity"], "learning_starts": s["learning_starts"], "tau": s["sb3_tau"],
        "train_freq": train_freq, "gradient_steps": updates,
    }  # fmt: skip
    if s.get("algo") == "sac":
        return SAC(**common)
    return DQN(
        **common, target_update_interval=s["target_interval"], exploration_fraction=s["exploration_fraction"],
        exploration_initial_eps=s["eps_start"], exploration_final_eps=s["eps_end"], max_grad_norm=s["grad_clip"],
    )  # fmt: skip


def environments(s: Settings, clock: EnvClock, envs: int) -> DummyVecEnv:
    """Return SB3's vector environment, every environment counted."""
    return DummyVecEnv([lambda: clock.watch(gymnasium.make(s["env"])) for _ in range(envs)])


def evaluation(s: Settings, clock: EnvClock, envs: int) -> gymnasium.vector.SyncVectorEnv:
    """Return environments to play whole episodes in, counted too."""
    return gymnasium.vector.SyncVectorEnv([lambda: clock.watch(gymnasium.make(s["env"])) for _ in range(envs)])


def mean_return(
    model: Model, env: gymnasium.vector.SyncVectorEnv, seeds: list[int], deterministic: bool = True
) -> float:
    """Return the mean of one episode a seed, greedy or by actions that the policy draws."""
    return float(play_episodes(env, lambda obs: model.predict(obs, deterministic=deterministic)[0], seeds).mean())


def start(s: Settings) -> None:
    """Set threads and seeds."""
    torch.set_num_threads(s["threads"])


class Every(BaseCallback):
    """Calls back every so many environment steps."""

    def __init__(self, steps: int, call: Any) -> None:
        super().__init__()
        self.every, self.call, self.due = steps, call, steps

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.due:
            self.due += self.every
            return self.call(self.model) is not False
        return True


def end_to_end(s: Settings) -> dict[str, Any]:
    """Train one learner a member, one after another, evaluated as often as a population's members are."""
    start(s)
    parts, clock, idle, updates, parameters = Parts(), EnvClock(), processor(), 0, 0
    algorithm = SAC if s.get("algo") == "sac" else DQN
    parts.watch(algorithm, "train", "learn and sample")
    parts.watch(algorithm, "predict", "act")
    for member in range(s["population"]):
        env = environments(s, clock, s["num_envs"])
        held = evaluation(s, clock, s["eval_episodes"])
        seeds = held_out_seeds(s["seed"], 0, s["eval_episodes"])
        model = make_model(s, env, s["seed"] * 1000 + member)
        parameters = sum(p.numel() for p in model.policy.parameters())
        judge = Every(s["evo_steps"], lambda model, held=held, seeds=seeds: bool(mean_return(model, held, seeds) + 1e9))
        model.learn(s["max_steps"], callback=judge)
        updates += model._n_updates
    return {
        "seconds": clock.seconds,
        "processor_seconds": processor() - idle,
        "training_steps": s["population"] * s["max_steps"],
        "steps": clock.steps,
        "step_seconds": clock.step_seconds,
        "reset_seconds": clock.reset_seconds,
        "updates": updates,
        "parameters": parameters,
        "parts": parts.seconds,
    }


class Solved(Exception):
    """A trial passed the held-out episodes."""


class Judge:
    """What every search is told by: the mean of an evaluation, which ends the search where the target is reached and
    the held-out episodes confirm it."""

    def __init__(self, s: Settings, clock: EnvClock) -> None:
        self.s, self.found, self.trials = s, [], []
        self.quick, self.wide = evaluation(s, clock, s["trial_episodes"]), evaluation(s, clock, 20)
        self.quick_seeds = held_out_seeds(s["seed"], 0, s["trial_episodes"])
        self.seeds = held_out_seeds(s["seed"], 1, s["confirm_episodes"])

    def __call__(self, model: Model) -> float:
        score = mean_return(model, self.quick, self.quick_seeds)
        if score >= self.s["target"]:
            confirmed = mean_return(model, self.wide, self.seeds)
            if confirmed >= self.s["target"]:
                self.found.append((model, confirmed))
                raise Solved
        return score


def time_to_solved(s: Settings) -> dict[str, Any]:
    """Tune until a trial's evaluation reaches the target and 100 held-out episodes confirm it."""
    start(s)
    search = by_trials
    if s.get("searcher") == "pb2":
        importlib.import_module("ray.tune.schedulers.pb2")  # imports are not counted
        search = by_bandit
    busy = processor()
    spent = time.process_time if s.get("processor") else time.perf_counter
    clock = EnvClock(s["budget_steps"], s["budget_seconds"], spent)
    judge = Judge(s, clock)
    with contextlib.suppress(Solved, OutOfBudget):
        search(s, clock, judge)
    seconds, steps = clock.seconds, clock.steps
    result = {
        "solved": bool(judge.found), "seconds": seconds, "processor_seconds": processor() - busy,
        "steps": min(steps, s["budget_steps"]), "trials": len(judge.trials), "last": judge.trials[-1],
    }  # fmt: skip
    if judge.found:
        clock.no_more_limits()
        model, score = judge.found[0]
        result |= {"score": score, "second_score": mean_return(model, judge.wide, held_out_seeds(s["seed"], 2, 100))}
    return result


def by_trials(s: Settings, clock: EnvClock, judge: Judge) -> None:
    """Let Optuna choose one trial after another, and end those of which it expects nothing."""
    pruners = optuna.pruners
    random = optuna.samplers.RandomSampler(seed=s["seed"])
    sampler, pruner = {
        "tpe": (
            optuna.samplers.TPESampler(seed=s["seed"]),
            pruners.MedianPruner(n_startup_trials=s["startup_trials"], n_warmup_steps=s["warmup_steps"]),
        ),
        "random": (random, pruners.NopPruner()),
        "asha": (random, pruners.SuccessiveHalvingPruner(min_resource=s["trial_eval_every"], reduction_factor=3)),
    }[s.get("searcher", "tpe")]

    def objective(trial: optuna.Trial) -> float:
        env = environments(s, clock, s["sb3_envs"])
        chosen = {name: suggest(trial, name, *bounds) for name, bounds in s["search"].items() if name not in s["fixed"]}
        model = make_model(s, env, s["seed"] * 1000 + trial.number, **{**s["fixed"], **chosen})
        judge.trials.append(chosen)
        best = [-np.inf]

        def told(model: Model) -> bool:
            score = judge(model)
            best[0] = max(best[0], score)
            trial.report(score, model.num_timesteps)
            return not trial.should_prune()

        model.learn(s["trial_steps"], callback=Every(s["trial_eval_every"], told))
        env.close()
        if model.num_timesteps < s["trial_steps"]:
            raise optuna.TrialPruned
        return best[0]

    optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner).optimize(objective)


def suggest(trial: optuna.Trial, name: str, low: float, high: float) -> float:
    """Draw a hyper-parameter from the range that evolution may use."""
    draw = trial.suggest_int if isinstance(low, int) else trial.suggest_float
    return draw(name, low, high, log=by_decades(low, high))


class Member:
    """A trial as Ray Tune's scheduler knows one: a name and values, logarithms where ranges span a factor of ten."""

    def __init__(self, number: int, config: dict[str, float]) -> None:
        self.experiment_tag, self.config = str(number), config
        self.model: Model | None = None

    def __str__(self) -> str:
        return self.experiment_tag

    def is_finished(self) -> bool:
        """Never: all go on until one is solved."""
        return False


def by_bandit(s: Settings, clock: EnvClock, judge: Judge) -> None:
    """Let a population learn in turns; in each round PB2 gives the worst one the best one's state and values that its
    Gaussian process chooses."""
    from ray.tune.schedulers.pb2 import PB2
    from ray.tune.schedulers.pbt import _PBTTrialState

    np.random.seed(s["seed"])  # noqa: NPY002 (the scheduler draws from it)
    search = {name: bounds for name, bounds in s["search"].items() if name not in s["fixed"]}
    logs = {name for name, bounds in search.items() if by_decades(*bounds)}
    # Networks keep their widths: they come with the state.
    bounds = {
        name: [math.log(x) if name in logs else float(x) for x in ends]
        for name, ends in search.items()
        if name != "width"
    }
    scheduler = PB2(
        time_attr="steps", metric="score", mode="max", perturbation_interval=s["trial_eval_every"],
        hyperparam_bounds=bounds, log_config=False,
    )  # fmt: skip

    def made(member: Member) -> Model:
        values = {name: math.exp(x) if name in logs else x for name, x in member.config.items()}
        chosen = {name: round(x) if isinstance(search[name][0], int) else x for name, x in values.items()}
        judge.trials.append(chosen)
        env = environments(s, clock, s["sb3_envs"])
        return make_model(s, env, s["seed"] * 1000 + len(judge.trials), **{**s["fixed"], **chosen})

    members = []
    for number, drawn in enumerate(draws(search, s["seed"], s["population"])):
        config = {name: math.log(x) if name in logs else float(x) for name, x in drawn.items()}
        members.append(Member(number, config))
        members[-1].model = made(members[-1])
    for turn in itertools.count(1):
        for member in members:
            missing = turn * s["trial_eval_every"] - member.model.num_timesteps
            if missing > 0:
                member.model.learn(missing, reset_num_timesteps=False)
            steps = member.model.num_timesteps
            state = scheduler._trial_state.setdefault(member, _PBTTrialState(member))
            scheduler._save_trial_state(state, steps, {"steps": steps, "score": judge(member.model)}, member)
        worst, best = scheduler._quantiles()
        for member, winner in zip(worst, best, strict=True):
            member.config, _ = scheduler._get_new_config(member, winner)
            member.model.env.close()
            member.model = heir(made(member), winner.model)


def heir(model: Model, of: Model) -> Model:
    """Give a learner another's networks, optimisers, memory and count of steps."""
    model.set_parameters(of.get_parameters())
    model.num_timesteps = of.num_timesteps
    if not isinstance(model, PPO):
        model.replay_buffer = copy.deepcopy(of.replay_buffer)
    return model


class Convolutions(BaseFeaturesExtractor):
    """Convolutions and one layer behind them, activated by ReLU."""

    def __init__(self, space: Any, conv: list[dict[str, int]], width: int) -> None:
        super().__init__(space, width)
        layers, channels = [], space.shape[0]
        for each in conv:
            layers += [torch.nn.Conv2d(channels, each["channels"], each["kernel"], each["stride"]), torch.nn.ReLU()]
            channels = each["channels"]
        seen = torch.nn.Sequential(*layers, torch.nn.Flatten())
        size = seen(torch.zeros(1, *space.shape)).shape[1]
        self.layers = torch.nn.Sequential(seen, torch.nn.Linear(size, width), torch.nn.ReLU())

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layers(observations)


def learner_of(s: Settings, env: DummyVecEnv) -> Any:
    """Return a row's learner; all that the row does not name is SB3's default."""
    algo, widths = s["algo"], list(s["widths"])
    policy: dict[str, Any] = {"net_arch": widths, "activation_fn": getattr(torch.nn, s["activation"])}
    if s.get("conv"):
        policy |= {
            "net_arch": widths[1:], "features_extractor_class": Convolutions,
            "features_extractor_kwargs": {"conv": s["conv"], "width": widths[0]},
        }  # fmt: skip
    common: dict[str, Any] = {
        "policy": "CnnPolicy" if s.get("conv") else "MlpPolicy", "env": env, "learning_rate": s["lr"],
        "gamma": s["gamma"], "seed": s["seed"], "batch_size": s["batch_size"], "device": s["device"],
        "policy_kwargs": policy,
    }  # fmt: skip
    if algo == "ppo":
        policy["log_std_init"] = math.log(s["std"])
        common |= {
            "n_steps": s["learn_step"] // s["num_envs"], "n_epochs": s["epochs"], "gae_lambda": s["gae_lambda"],
            "clip_range": s["clip"], "ent_coef": s["ent_coef"], "vf_coef": s["vf_coef"],
            "max_grad_norm": s["grad_clip"],
        }  # fmt: skip
        if not s.get("recurrent"):
            return PPO(**common)
        from sb3_contrib import RecurrentPPO

        # An LSTM of its own for policy and value, each before the layers behind it.
        policy |= {"net_arch": widths[1:], "lstm_hidden_size": widths[0]}
        return RecurrentPPO(**{**common, "policy": "MlpLstmPolicy"})
    common |= {"buffer_size": s["capacity"], "learning_starts": s["random_steps"], "train_freq": s["learn_step"]}
    if algo == "dqn":
        return DQN(
            **common, target_update_interval=s["target_interval"], max_grad_norm=s["grad_clip"],
            exploration_fraction=s["eps_steps"] / s["steps"], exploration_final_eps=s["eps_end"],
        )  # fmt: skip
    if algo == "sac":
        return SAC(**common, tau=s["tau"])
    size = env.action_space.shape
    noise = NormalActionNoise(np.zeros(size), np.full(size, s["noise_sd"]))
    return (TD3 if algo == "td3" else DDPG)(**common, tau=s["tau"], action_noise=noise)


def per_step(s: Settings) -> dict[str, Any]:
    """Train one learner, and evaluate it after every stretch of `every` steps."""
    start(s)
    env = DummyVecEnv([lambda: gymnasium.make(s["env"]) for _ in range(s["num_envs"])])
    held = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(s["env"])] * s["episodes"])
    seeds, algo = held_out_seeds(s["seed"], 0, s["episodes"]), s["algo"]
    model = learner_of(s, env)
    found: dict[str, list[float]] = {"steps": [], "greedy": [], **({"sampled": []} if algo in ("ppo", "sac") else {})}

    def mean(deterministic: bool) -> float:
        memory, begins = None, np.ones(s["episodes"], bool)

        def act(obs: np.ndarray) -> np.ndarray:
            nonlocal memory
            action, memory = model.predict(obs, memory, begins.copy(), deterministic)
            begins[:] = False
            return action

        return float(play_episodes(held, act, seeds).mean())

    def judge() -> None:
        found["steps"].append(model.num_timesteps)
        for kind in ("greedy", "sampled"):
            if kind in found:
                found[kind].append(mean(kind == "greedy"))

    class Between(BaseCallback):
        """Evaluates between a rollout's updates and the next rollout."""

        def _on_rollout_start(self) -> None:
            if self.num_timesteps and self.num_timesteps % s["every"] == 0:
                judge()

        def _on_step(self) -> bool:
            return True

    model.learn(s["steps"], callback=Between())
    judge()
    return {"sampled": None, **found}


if __name__ == "__main__":
    main({"end-to-end": end_to_end, "time-to-solved": time_to_solved, "per-step": per_step})
