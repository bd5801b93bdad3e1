"""skrl's MAPPO, one network of each kind for every agent, on environments that step in this process."""

from __future__ import annotations

import importlib
import itertools
import warnings
from collections.abc import Mapping
from typing import Any

warnings.filterwarnings("ignore")

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
import skrl  # noqa: E402
import torch  # noqa: E402
from common import held_out_seeds, judge_team, main  # noqa: E402
from skrl.memories.torch import RandomMemory  # noqa: E402
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model  # noqa: E402
from skrl.multi_agents.torch.mappo import MAPPO  # noqa: E402

Settings = Mapping[str, Any]
Each = dict[str, torch.Tensor]  # by agent


def layers(s: Settings, inputs: int, outputs: int) -> torch.nn.Sequential:
    """Return a network of the row's widths."""
    widths, made = [inputs, *s["widths"], *s["head"]], []
    for before, width in itertools.pairwise(widths):
        made += [torch.nn.Linear(before, width), getattr(torch.nn, s["activation"])()]
    return torch.nn.Sequential(*made, torch.nn.Linear(widths[-1], outputs))


class Actor(CategoricalMixin, Model):
    """Logits of what an agent sees itself."""

    def __init__(self, s: Settings, spaces: Mapping[str, Any]) -> None:
        Model.__init__(self, device=s["device"], **spaces)
        CategoricalMixin.__init__(self)
        self.net = layers(s, self.num_observations, self.num_actions)

    def compute(self, inputs: Mapping[str, Any], role: str = "") -> tuple[torch.Tensor, dict[str, Any]]:
        return self.net(inputs["observations"]), {}


class Critic(DeterministicMixin, Model):
    """The value of what all agents see."""

    def __init__(self, s: Settings, spaces: Mapping[str, Any]) -> None:
        Model.__init__(self, device=s["device"], **spaces)
        DeterministicMixin.__init__(self)
        self.net = layers(s, self.num_states, 1)

    def compute(self, inputs: Mapping[str, Any], role: str = "") -> tuple[torch.Tensor, dict[str, Any]]:
        return self.net(inputs["states"]), {}


class Games:
    """Environments of one kind that step in turns; one that is over begins anew."""

    def __init__(self, s: Settings) -> None:
        source = importlib.import_module(f"mpe2.{s['env']}")
        self.games = [source.parallel_env(**s["kwargs"]) for _ in range(s["num_envs"])]
        self.agents = self.games[0].possible_agents
        self.seen = [game.reset(seed=1000 * s["seed"] + i)[0] for i, game in enumerate(self.games)]

    def shown(self, seen: list[Any] | None = None) -> tuple[Each, Each]:
        """Return what each agent sees `[games, O]`, and what all see `[games, agents · O]`."""
        own = {a: torch.from_numpy(np.stack([obs[a] for obs in seen or self.seen])).float() for a in self.agents}
        every = torch.cat([own[agent] for agent in self.agents], dim=1)
        return own, dict.fromkeys(self.agents, every)

    def step(self, actions: Each) -> dict[str, Any]:
        """Step all; return what to record of it, `next_…` as it was before a game began anew."""
        found = [game.step({a: int(actions[a][i]) for a in self.agents}) for i, game in enumerate(self.games)]
        column = lambda part, dtype: {  # noqa: E731
            a: torch.tensor([[each[part][a]] for each in found], dtype=dtype) for a in self.agents
        }
        own, every = self.shown([each[0] for each in found])
        self.seen = [
            each[0] if game.agents else game.reset()[0] for game, each in zip(self.games, found, strict=True)
        ]  # fmt: skip
        return {
            "rewards": column(1, torch.float32), "terminated": column(2, torch.bool),
            "truncated": column(3, torch.bool), "next_observations": own, "next_states": every, "infos": {},
        }  # fmt: skip


def learner_of(s: Settings, games: Games) -> MAPPO:
    """Return the row's learner; all that the row does not name is skrl's default."""
    game, agents = games.games[0], games.agents
    width = sum(game.observation_space(agent).shape[0] for agent in agents)
    state = gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32)
    kinds = {
        "observation_space": {a: game.observation_space(a) for a in agents},
        "state_space": dict.fromkeys(agents, state), "action_space": {a: game.action_space(a) for a in agents},
    }  # fmt: skip
    models = {}
    for agent in agents:
        own = {name: each[agent] for name, each in kinds.items()}
        models[agent] = {"policy": Actor(s, own), "value": Critic(s, own)}
    ticks = s["learn_step"] // s["num_envs"]
    memories = {a: RandomMemory(memory_size=ticks, num_envs=s["num_envs"], replacement=False) for a in agents}
    made = MAPPO(
        possible_agents=agents, models=models, memories=memories, device=s["device"],
        **{f"{name}s": each for name, each in kinds.items()},
        cfg={
            "rollouts": ticks, "learning_epochs": s["epochs"], "mini_batches": s["learn_step"] // s["batch_size"],
            "discount_factor": s["gamma"], "gae_lambda": s["gae_lambda"], "learning_rate": s["lr"],
            "grad_norm_clip": s["grad_clip"], "ratio_clip": s["clip"], "value_clip": 0.0,
            "entropy_loss_scale": s["ent_coef"], "value_loss_scale": s["vf_coef"], "time_limit_bootstrap": True,
            "experiment": {"write_interval": 0, "checkpoint_interval": 0},
            # Its own defaults for these do not pass its own check.
            **{f"{name}_kwargs": {agent: {} for agent in agents} for name in (
                "learning_rate_scheduler", "observation_preprocessor", "state_preprocessor", "value_preprocessor",
            )},
        },
    )  # fmt: skip
    made.init()
    made.enable_training_mode(True)
    return made


def per_step(s: Settings) -> dict[str, Any]:
    """Train one learner, and evaluate it after every stretch of `every` steps."""
    torch.set_num_threads(s["threads"])
    skrl.utils.set_seed(s["seed"])
    games, seeds = Games(s), held_out_seeds(s["seed"], 0, s["episodes"])
    learner = learner_of(s, games)
    found: dict[str, Any] = {"steps": [], "greedy": [], "sampled": []}

    def play(greedy: bool, obs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        actions = {}
        for agent, seen in obs.items():
            with torch.no_grad():
                logits = learner.policies[agent].net(torch.from_numpy(seen).float())
            drawn = torch.distributions.Categorical(logits=logits).sample()
            actions[agent] = (logits.argmax(dim=1) if greedy else drawn).numpy()
        return actions

    total = s["steps"] // s["num_envs"]
    for tick in range(total):
        (own, every), when = games.shown(), {"timestep": tick, "timesteps": total}
        with torch.no_grad():
            actions, _ = learner.act(own, every, **when)
            learner.record_transition(observations=own, states=every, actions=actions, **games.step(actions), **when)
        learner.post_interaction(**when)
        if (tick + 1) * s["num_envs"] % s["every"] == 0:
            found["steps"].append((tick + 1) * s["num_envs"])
            for kind in ("greedy", "sampled"):
                act = lambda obs, greedy=kind == "greedy": play(greedy, obs)  # noqa: E731
                found[kind].append(judge_team(s["env"], s["kwargs"], act, seeds))
    return found


if __name__ == "__main__":
    main({"per-step": per_step})
