"""Stable-Baselines3's DQN: run once per member, or tuned by Optuna (TPE, median pruner)."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Mapping
from typing import Any

warnings.filterwarnings("ignore")

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
import optuna  # noqa: E402
import torch  # noqa: E402
from common import EnvClock, OutOfBudget, Parts, held_out_seeds, main, play_episodes, processor  # noqa: E402
from stable_baselines3 import DQN, PPO, SAC  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
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


def mean_return(model: Model, env: gymnasium.vector.SyncVectorEnv, seeds: list[int]) -> float:
    """Return the mean of one greedy episode a seed."""
    return float(play_episodes(env, lambda obs: model.predict(obs, deterministic=True)[0], seeds).mean())


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


def time_to_solved(s: Settings) -> dict[str, Any]:
    """Tune with Optuna until a trial's evaluation reaches the target and 100 held-out episodes confirm it."""
    start(s)
    clock, found, trials = EnvClock(s["budget_steps"], s["budget_seconds"]), [], []
    quick, wide = evaluation(s, clock, s["trial_episodes"]), evaluation(s, clock, 20)
    quick_seeds = held_out_seeds(s["seed"], 0, s["trial_episodes"])
    seeds = held_out_seeds(s["seed"], 1, s["confirm_episodes"])

    def objective(trial: optuna.Trial) -> float:
        env = environments(s, clock, s["sb3_envs"])
        chosen = {name: suggest(trial, name, *bounds) for name, bounds in s["search"].items() if name not in s["fixed"]}
        model = make_model(s, env, s["seed"] * 1000 + trial.number, **{**s["fixed"], **chosen})
        trials.append(chosen)
        best = [-np.inf]

        def judge(model: DQN) -> bool:
            score = mean_return(model, quick, quick_seeds)
            best[0] = max(best[0], score)
            if score >= s["target"]:
                confirmed = mean_return(model, wide, seeds)
                if confirmed >= s["target"]:
                    found.append((model, confirmed))
                    raise Solved
            trial.report(score, model.num_timesteps)
            return not trial.should_prune()

        model.learn(s["trial_steps"], callback=Every(s["trial_eval_every"], judge))
        env.close()
        if model.num_timesteps < s["trial_steps"]:
            raise optuna.TrialPruned
        return best[0]

    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=s["seed"]),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=s["startup_trials"], n_warmup_steps=s["warmup_steps"]),
    )
    with contextlib.suppress(Solved, OutOfBudget):
        study.optimize(objective)
    seconds, steps = clock.seconds, clock.steps
    result = {
        "solved": bool(found), "seconds": seconds, "steps": min(steps, s["budget_steps"]), "trials": len(trials),
        "last": trials[-1],
    }  # fmt: skip
    if found:
        clock.max_steps = clock.max_seconds = float("inf")
        model, score = found[0]
        result |= {"score": score, "second_score": mean_return(model, wide, held_out_seeds(s["seed"], 2, 100))}
    return result


def suggest(trial: optuna.Trial, name: str, low: float, high: float) -> float:
    """Draw a hyper-parameter from the range that evolution may use."""
    if isinstance(low, int):
        return trial.suggest_int(name, low, high, log=name == "batch_size")
    return trial.suggest_float(name, low, high, log=True)


if __name__ == "__main__":
    main({"end-to-end": end_to_end, "time-to-solved": time_to_solved})
