"""Policies of teams: every agent's action, for one observation of each agent or a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NoReturn

import numpy as np
import torch

from evopipe.algos import Algorithm, on_policy
from evopipe.core.cohort import Pace, form
from evopipe.core.member import Member
from evopipe.core.net import Net
from evopipe.core.structure import Widths, acting_networks
from evopipe.envs.team import TeamEnv, TeamSpace
from evopipe.errors import UsageError
from evopipe.layout import program_files
from evopipe.policies.acting import (
    Explained,
    Moment,
    for_acting,
    hold_bounds,
    online_networks,
    own_actions,
    unlike,
)
from evopipe.rng import Purpose, Stream


class TeamPolicy:
    """One trained member of a team's environment, which chooses the actions of all K agents.

    Args:
        algo: the member's algorithm.
        cfg: the algorithm's configuration.
        member: the architecture, and the tensors that acting needs.
        about: the content of `policy.json`: spaces, scores, provenance.

    Attributes:
        team: the agents' observation and action spaces.
        agents: the agents' ids, as in the environment.
        memory: the number of recurrent state values that each agent carries from step to step; 0 if the networks
            are not recurrent.
    """

    observation_space: None = None  # each agent has its own

    def __init__(self, algo: Algorithm, cfg: Any, member: Member, about: Mapping[str, Any]) -> None:
        self.about, self._algo, self.arch = dict(about), algo, member.arch
        self.team = TeamSpace.from_json(about)
        self.agents, self.spaces = self.team.ids, self.team.spaces
        self._cfg = cfg.at(self.spaces)
        self.widths: Mapping[str, Widths] = algo.networks(self._cfg, self.spaces)
        online, acting = online_networks(algo, self.widths), acting_networks(algo.POLICY, self.widths)
        self._blind = not all(online[name] in member.tensors for name in online if name not in acting)
        members = [for_acting(algo, member, self.widths)]
        (self._cohort,) = form(members, algo.State, self.widths, torch.device("cpu"), lambda _: Pace())
        self.memory = self._cohort.memory

    def act(self, obs: Mapping[Any, Any], mask: Mapping[Any, Any] | None = None, epsilon: float = 0.0,
            seed: int = 0) -> dict[Any, Any]:  # fmt: skip
        """Return every agent's action, deterministic unless `epsilon` is above 0.

        Args:
            obs: by agent, one observation as the environment gives it, or a batch of B observations. B is the same for
                all agents. An agent that is not in `obs` is absent, and gets no action.
            mask: by agent, the legal actions, `[A]` for one observation or `[B, A]` for a batch. For agents that are
                not in `mask`, the legal actions are those in the observation, or else all.
            epsilon: the probability of a random legal action. If it is above 0, the policy explores as in training.
            seed: the seed of exploration.

        Returns:
            The actions by agent, within the environment's own bounds, ready for `env.step`; for a batch, arrays
            `[B, …]`.

        Raises:
            UsageError: there is no such agent, a shape does not fit, or the policy is recurrent (use `step`).
        """
        if self.memory:
            raise UsageError("this team keeps a memory: call step(obs, memory), and hand on the memory it returns")
        return self.step(obs, None, mask, epsilon, seed)[0]

    def step(self, obs: Mapping[Any, Any], memory: Any = None, mask: Mapping[Any, Any] | None = None,
             epsilon: float = 0.0, seed: int = 0) -> tuple[dict[Any, Any], Any]:  # fmt: skip
        """Return every agent's action, as `act` does, and the new recurrent state.

        The state is float32 `[B, K, M]`, for B observations (1 if they are no batch) of K agents, where M is the size
        of one agent's state. It is zeros for an absent agent. Pass the state that the previous step of these episodes
        returned as `memory`, or None at their beginning. The other arguments are those of `act`.

        Raises:
            UsageError: an argument names an unknown agent, a shape does not fit, or the recurrent state has another
                shape.
        """
        rows, single, legal, before = self._situation(obs, mask, memory)
        state, draw = self._cohort.state, None
        if epsilon > 0.0:
            draw = Stream(torch.tensor([seed]), Purpose.ACT, torch.zeros(1, dtype=torch.int64))
        if on_policy(self._algo):
            actions, _, _, before = self._algo.step(self._cfg, state, rows, legal, before, draw)
        elif draw is None:
            actions = self._algo.greedy(self._cfg, state, rows, legal)
        else:
            actions = self._algo.act(self._cfg, state, rows, legal, torch.tensor([epsilon]), draw)
        own = self.team.own_each(actions[0].unflatten(0, (-1, len(self.agents))).numpy())
        named = dict(zip(self.agents, own, strict=True))
        chosen = {key: named[self.team.agent(key)] for key in obs}
        after = before[0].unflatten(0, (-1, len(self.agents))).numpy()
        gone = [place for place, agent in enumerate(self.agents) if agent not in {self.team.agent(key) for key in obs}]
        after[:, gone] = 0.0
        return {key: value[0] if single else np.asarray(value) for key, value in chosen.items()}, after

    def score(self, rewards: Sequence[float]) -> float:
        """Return the team's score of one step: the sum of its agents' rewards, or their mean.

        It is the mean if the algorithm's setting `score` is `mean`: the sum divided by the number of all agents. The
        `rewards` are those of the agents that took the step.
        """
        return sum(rewards) / (len(self.agents) if self._cfg.score == "mean" else 1)

    def value(self, obs: Mapping[Any, Any], memory: Any = None) -> dict[Any, Any]:
        """Return every agent's state value V(s), by agent: float32 `[]` for one observation or `[B]` for a batch.

        `obs` has the agents' observations, as in `act`, and `memory` the recurrent state, as in `step`.

        Raises:
            UsageError: the algorithm has no values, the critic was not exported, or an argument does not fit.
        """
        answers = self._algo.answers(self._cfg) if self._algo.answers is not None else None
        if answers is None or answers.value is None:
            raise UsageError(f"a team of {self.about.get('algo')} has no value(obs): it has act(obs)")
        if self._blind:
            raise UsageError(
                "value: this team was exported without its critic; set export.critic to true and export it again, or "
                'load a trained member: evopipe.load("models/trained", member=0)'
            )
        rows, single, legal, before = self._situation(obs, None, memory)
        found = answers.value(self._cfg, self._cohort.state, rows, legal, before)[0].unflatten(
            0, (-1, len(self.agents))
        )
        values = {key: found[:, self.agents.index(self.team.agent(key))].numpy() for key in obs}
        return {key: value[0] if single else value for key, value in values.items()}

    def probabilities(self, obs: Mapping[Any, Any], mask: Mapping[Any, Any] | None = None,
                      memory: Any = None) -> dict[Any, Any]:  # fmt: skip
        """Return every agent's action probabilities π(a|s), by agent: float32 `[A]` for one observation or `[B, A]` for
        a batch.

        A is the number of the agent's own actions. `obs` and `mask` have the agents' observations and legal actions, as
        in `act`, and `memory` the recurrent state, as in `step`.

        Raises:
            UsageError: the team is deterministic or its actions are continuous, or an argument does not fit.
        """
        answers = self._algo.answers(self._cfg) if self._algo.answers is not None else None
        if answers is None or answers.chances is None or self.spaces.continuous:
            raise UsageError(f"a team of {self.about.get('algo')} with {self.spaces.kind} actions has no probabilities")
        rows, single, legal, before = self._situation(obs, mask, memory)
        chances = answers.chances(self._cfg, self._cohort.state, rows, legal, before)
        found = chances.probabilities()[0].unflatten(0, (-1, len(self.agents))).numpy()
        sizes = [space.size for space in self.team.actions]
        own = {key: found[:, (k := self.agents.index(self.team.agent(key))), : sizes[k]] for key in obs}
        return {key: each[0] if single else each for key, each in own.items()}

    def modules(self) -> dict[str, tuple[torch.nn.Module, int]]:
        """Return the modules to export as `torch.export` programs, one for each agent, as a dict: file name → (module,
        width of the agent's flat observations)."""
        named = zip(program_files(self.team.agents).values(), self.team.observations, strict=True)
        return {file: (self.module(place), space.size) for place, (file, space) in enumerate(named)}

    def arrays(self) -> NoReturn:
        """Raise ValueError, because NumPy policies do not support teams."""
        raise ValueError("it is a team's")

    def on_rows(self) -> NoReturn:
        """Raise UsageError. Flat rows of observations come from datasets, and datasets hold the transitions of a single
        agent, not of a team."""
        raise UsageError("is a team, and datasets are of one agent")

    def misfit(self, env: Any) -> str | None:
        """Return why the team cannot act in the environment `env`; None if it can.

        The reason is a phrase that can follow the environment's name in a sentence.
        """
        if not isinstance(env, TeamEnv):
            return "is for one agent, the policy is not; play it where it was trained"
        return unlike(f"the agents {_listed(TeamSpace.of(env))}", f"the agents {_listed(self.team)}")

    def episode(self, env: TeamEnv, explained: Explained, begun: tuple[Any, Any], limit: int) -> Iterator[Moment]:
        """Play one greedy episode of at most `limit` steps.

        After each step, yield a pair: the team's score of the step (see `score`), and whether all agents that acted
        terminated.

        Args:
            env: the environment, which has been reset.
            explained: a function without arguments that returns a context manager in which `env.step` is called, to
                turn errors of the environment into evopipe's.
            begun: the observations and the infos by agent, which `env.reset` returned.
            limit: the largest number of steps.
        """
        (obs, info), memory, alive = begun, None, list(env.agents)
        for _ in range(limit):
            with explained():
                present = {agent: obs[agent] for agent in alive}
                masks, taken = self._limits(env, {agent: info.get(agent) or {} for agent in alive})
            actions, memory = self.step(present, memory, masks)
            with explained():
                obs, rewards, terminated, truncated, info = env.step(actions | taken)
                moment = self.score([float(rewards[agent]) for agent in alive]), all(terminated[a] for a in alive)
                alive = [a for a in env.agents if not (terminated.get(a) or truncated.get(a))]
            yield moment
            if not alive:
                return

    def _limits(self, env: TeamEnv, info: Mapping[Any, Any]) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Return masks of the agents that `info` is of, where they have any, and the actions that the environment sets
        itself. Who waits for its turn has no choice."""
        masks = {agent: own["action_mask"] for agent, own in info.items() if own.get("action_mask") is not None}
        taken = {agent: own["env_defined_actions"] for agent, own in info.items()
                 if own.get("env_defined_actions") is not None}  # fmt: skip
        if env.turn is not None and not self.team.action.continuous:
            sizes = {agent: space.size for agent, space in zip(env.ids, self.team.actions, strict=True)}
            masks |= {agent: self.team.first[: sizes[agent]] for agent in info if agent != env.turn}
        return masks, taken

    def __repr__(self) -> str:
        env = self.about.get("env")
        place = f", {env['id']}" if isinstance(env, dict) and "id" in env else ""
        who = f"{len(self.agents)} agents with {self.spaces.kind} actions"
        return f"<TeamPolicy {self.about.get('algo', '')}{place}: {who}, network {self.arch.describe()}>"

    def _situation(
        self, obs: Mapping[Any, Any], mask: Mapping[Any, Any] | None, memory: Any
    ) -> tuple[torch.Tensor, bool, torch.Tensor, torch.Tensor]:
        """Return observations `[1, B · K, O]`, whether each is one, legal actions, and the memory before."""
        found = self.team.situation(obs, mask)
        count, k = found.alive.shape
        rows, legal = (torch.from_numpy(x).flatten(0, 1)[None] for x in (found.obs, found.legal))
        before = torch.zeros(count, k, self.memory) if memory is None else torch.as_tensor(memory).float()
        if before.shape != (count, k, self.memory):
            raise UsageError(f"memory has shape {tuple(before.shape)}; expected [{count}, {k}, {self.memory}]")
        there = torch.from_numpy(found.alive).flatten()[None]
        return self._cohort.normalised(rows, there), found.single, legal, before.flatten(0, 1)[None]

    def module(self, place: int) -> torch.nn.Module:
        """Return the greedy policy of one agent as a `torch.nn.Module`: B observations `[B, O]` → actions `[B, …]`.

        `place` is the agent's index in `agents`.

        If the policy is recurrent, the module maps (observations, state) to (actions, new state). The recurrent state
        is `[B, M]`, and zeros at first. The attribute `memory` is M.
        """
        made = _Agent(self, place)
        own = self.team.observations[place].size
        # Constants that are made once are to be made here, of numbers, and not while it is traced.
        made(torch.zeros(1, own), *([torch.zeros(1, self.memory)] if self.memory else []))
        return made


def _listed(team: TeamSpace) -> str:
    agents = zip(team.agents, team.observations, team.actions, strict=True)
    return ", ".join(f"{name} ({o.size} observations, {a.size} {a.kind} actions)" for name, o, a in agents)


class _Agent(torch.nn.Module):
    """One agent of a greedy team without the population axis, for `torch.export`."""

    legal: torch.Tensor

    def __init__(self, policy: TeamPolicy, place: int) -> None:
        super().__init__()
        self._algo, self._cfg, self._shown = policy._algo, policy._cfg, policy._cohort.normalised
        state = policy._cohort.state
        nets = {each.name: net for each in fields(state) if isinstance(net := getattr(state, each.name), Net)}
        self._state = replace(
            state, **{name: net.separated() for name, net in nets.items()}
        )  # a memory is the critic's too
        self._place, self._agents = place, len(policy.agents)
        self._pad = policy.spaces.observations - policy.team.observations[place].size
        self._space = policy.team.actions[place]
        legal = np.zeros((self._agents, policy.spaces.actions), np.bool_)
        legal[:] = policy.team.free
        self.register_buffer("legal", torch.from_numpy(legal))
        hold_bounds(self, self._space)

    def forward(self, obs: torch.Tensor, memory: torch.Tensor | None = None) -> Any:
        """See `TeamPolicy.module`."""
        own = torch.nn.functional.pad(obs, (0, self._pad))
        everyone = self._among(own)
        legal = self.legal.repeat(obs.shape[0], 1)[None]
        shown, state = self._shown(everyone), self._state
        if memory is not None:
            before = self._among(memory)
            actions, _, _, after = self._algo.step(self._cfg, state, shown, legal, before, None)
            return self._own(self._mine(actions)), self._mine(after)
        return self._own(self._mine(self._algo.greedy(self._cfg, state, shown, legal)))

    def _among(self, own: torch.Tensor) -> torch.Tensor:
        """This agent's rows `[B, n]` among zeros of the others: `[1, B · K, n]`."""
        before, after = self._place, self._agents - 1 - self._place
        zeros = torch.zeros_like(own)
        return torch.stack([zeros] * before + [own] + [zeros] * after, dim=1).flatten(0, 1)[None]

    def _mine(self, everyone: torch.Tensor) -> torch.Tensor:
        mine: torch.Tensor = everyone[0].unflatten(0, (-1, self._agents))[:, self._place]
        return mine

    def _own(self, actions: torch.Tensor) -> torch.Tensor:
        mine = actions[:, : self._space.size] if self._space.continuous else actions
        return own_actions(self, self._space, mine)
