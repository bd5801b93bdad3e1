"""Rollouts: the environment steps that members of a cohort (one batch of members) took since their last update.

One float32 row a step: observation, action, its log-probability, the value, whether an episode begins, advantage, value
target, whether the step may be learned from, and the legal actions if the environment masks any.

The `K` agents of a team are adjacent rows: for a team, `E` in the shapes here is `E · K`. What follows a step then also
says where it left each agent, `next_alive` (see `evopipe.types`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evopipe.native import policy, rollouts
from evopipe.ops import signals as ops
from evopipe.ops.value import gae
from evopipe.types import GONE, Chosen, Sequences, Spaces

TERMINATED = "charts/terminated"  # the signal
AFTER = 4  # numbers beside the next observation that are known of a step once it was taken, of a team one more


@dataclass(frozen=True)
class StepLayout:
    """Layout of one environment step in a rollout: where the parts of the step begin in a row of float32 numbers.

    Attributes:
        spaces: the environment's spaces.
        masked: whether a row holds the legal actions.
    """

    spaces: Spaces
    masked: bool

    @property
    def log_prob(self) -> int:
        """The index of the column that holds the action's log-probability.

        The next five columns are, in this order: the value; `begins`, 1 at the first step of an episode; the advantage;
        the target of the value; and `valid`, 0 if the step must not be learned from.
        """
        return self.spaces.observations + self.spaces.action_size

    @property
    def size(self) -> int:
        return self.log_prob + 6 + (self.spaces.actions if self.masked else 0)


class Rollout:
    """Buffer of an on-policy rollout: up to `T` ticks (environment steps) of `P` members in `E` environments each.

    Args:
        layout: the layout of a step.
        members: `P`.
        ticks: `T`.
        envs: `E`. For a team of K agents, `E` is the number of environments times K.
        memory: `M`, the number of recurrent state values of a member.
        device: the device of the tensors.

    Attributes:
        layout: the layout of a step.
        rows: `[P, T, E, size]`, the steps in this layout; `size` is `layout.size`.
        after: `[P, T, E, O + 4]`, the results of each step: next observation (`O` numbers), reward, terminated, cut (1
            at the last step of an episode), valid (0 if the step must not be learned from). A team has one number more,
            `O + 5`. This last number is the agent's status after the step: `GONE` (takes no part in the next step),
            `ACTS` (acts next) or `CUT` (was truncated).
        memory: `[P, T + 1, E, M]`, the recurrent state before each step, and after the last step.
    """

    def __init__(
        self, layout: StepLayout, members: int, ticks: int, envs: int, memory: int, device: torch.device
    ) -> None:
        self.layout = layout
        self.rows = torch.zeros(members, ticks, envs, layout.size, device=device)
        known = layout.spaces.observations + AFTER + len(layout.spaces.by_agent)
        self.after = torch.zeros(members, ticks, envs, known, device=device)
        self.memory = torch.zeros(members, ticks + 1, envs, memory, device=device)

    def tensors(self) -> list[Tensor]:
        return [self.rows, self.after, self.memory]

    def part(self, first: int, end: int) -> Rollout:
        """Return the rollout of the members `first` to `end` (exclusive); it shares memory with this rollout."""
        part = object.__new__(Rollout)
        part.layout = self.layout
        part.rows, part.after, part.memory = (tensor[first:end] for tensor in self.tensors())
        return part

    def enter(self, tick: int, obs: Tensor, legal: Tensor, begins: Tensor, memory: Tensor, chosen: Chosen) -> None:
        """Store what is known before a step of P members in E environments each: observations of O numbers, legal
        actions among A, recurrent states of M numbers, and the policy's choices.

        Args:
            tick: the number of the step in the rollout.
            obs: `[P, E, O]`, the observations.
            legal: `[P, E, A]`, whether each action is legal.
            begins: `[P, E]`, whether an episode begins.
            memory: `[P, E, M]`, the recurrent state before the step.
            chosen: the action, its log-probability, the value and the recurrent state after the step.
        """
        rows = self.rows[:, tick]
        if not policy.enter(self.layout.spaces, rows, obs, legal if self.layout.masked else None, begins, chosen):
            action = chosen.action if chosen.action.ndim == 3 else chosen.action[..., None]
            zeros = torch.zeros_like(chosen.value)
            numbers = torch.stack((chosen.log_prob, chosen.value, begins.float(), zeros, zeros, zeros), dim=-1)
            parts = [obs, action.float(), numbers, *([legal.float()] if self.layout.masked else [])]
            torch.cat(parts, dim=-1, out=rows)
        if memory.shape[-1]:
            self.memory[:, tick], self.memory[:, tick + 1] = memory, chosen.memory

    def finish(
        self, tick: int, next_obs: Tensor, reward: Tensor, terminated: Tensor, truncated: Tensor, broken: Tensor,
        next_alive: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Store the results of a step of P members in E environments each.

        Args:
            tick: the number of the step in the rollout.
            next_obs: `[P, E, O]`, the true next observations of O numbers each, also where the episode ended.
            reward, terminated, truncated: `[P, E]`, the rewards, and whether the step terminated or truncated the
                episode.
            broken: `[P, E]`, whether the step cannot be used, for example because a number is not finite, or because
                the agent of a team is absent. Such a step is stored as the last of its episode. The predicted value is
                stored as its reward, so that its advantage is 0.
            next_alive: for a team, `[P, E]`, each agent's status after the step: `GONE` (takes no part in the next
                step), `ACTS` (acts next) or `CUT` (was truncated). None for a single agent.

        Some next observations are stored as zeros: for a team those of agents with the status `GONE`, and for a single
        agent those of broken steps.
        """
        expected, after = self.rows[:, tick, :, self.layout.log_prob + 1], self.after[:, tick]
        ends = (terminated, truncated, broken)
        if policy.finish(after, expected, next_obs, reward, next_alive, *ends):
            return
        numbers = (
            torch.where(broken, expected, reward),
            (terminated | broken).float(),
            (terminated | truncated | broken).float(),
            (~broken).float(),
        )
        nothing, of_team = (broken, ()) if next_alive is None else (next_alive == GONE, (next_alive,))
        usable = torch.where(nothing[..., None], 0.0, next_obs)
        torch.cat((usable, torch.stack((*numbers, *of_team), dim=-1)), dim=-1, out=after)

    def cut(self, tick: int, members: list[int], envs: list[int]) -> None:
        """Mark the step `tick` as the end of what is known of its episode, for some environments of some members.

        What came after this step was lost, so no later reward counts for it.

        The pair (`members[i]`, `envs[i]`) names one environment, by the index of the member and that of its
        environment.
        """
        self.after[members, tick, envs, self.layout.spaces.observations + 2] = 1.0

    def following(self, ticks: int) -> tuple[Tensor, ...]:
        """Return the states after each of the first t = `ticks` ticks of P members in E environments each. The method
        `estimate` needs the values of these states.

        The result is a tuple. It has the next observations `[P, t · E, O]`, of O numbers, and the recurrent states
        `[P, t · E, M]`, of M numbers. For a team it also has the agents' statuses after the step, `[P, t · E]`.
        """
        o, after = self.layout.spaces.observations, self.after[:, :ticks].flatten(1, 2)
        return after[..., :o], self.memory[:, 1 : ticks + 1].flatten(1, 2), *after[..., o + AFTER :].unbind(dim=-1)

    def estimate(self, ticks: int, next_value: Tensor, gamma: Tensor, lam: Tensor) -> None:
        """Compute the advantages (GAE) and value targets of the first t = `ticks` ticks of P members in E environments
        each, and store them in `rows`.

        Args:
            ticks: the number of ticks.
            next_value: `[P, t · E]`, the values of the states that the method `following` returns.
            gamma: `[P]`, the discounts γ.
            lam: `[P]`, λ of GAE.
        """
        at, o = self.layout.log_prob, self.layout.spaces.observations
        if rollouts.estimate(self.rows[:, :ticks], self.after[:, :ticks], at, o, next_value, gamma, lam):
            return
        reward, terminated, cut, valid = self.after[:, :ticks, :, o : o + AFTER].unbind(dim=-1)
        value = self.rows[:, :ticks, :, at + 1]
        advantage = gae(reward, value, next_value.view_as(value), terminated > 0, cut > 0, gamma, lam)
        self.rows[:, :ticks, :, at + 3 : at + 6] = torch.stack((advantage, advantage + value, valid), dim=-1)

    def signals(self, ticks: int) -> dict[str, Tensor]:
        """Return training metrics of the first `ticks` ticks by name, each `[P]`, one number for every member.

        The metrics are the explained variance of the values, the standard deviation of the advantages, and the share of
        steps that terminated an episode.
        """
        at = self.layout.log_prob
        value, advantage, target, valid = (self.rows[:, :ticks, :, at + i].flatten(1) for i in (1, 3, 4, 5))
        ended = self.after[:, :ticks, :, self.layout.spaces.observations + 1].flatten(1)
        return ops.of_rollout(valid, value, target, advantage) | {TERMINATED: ops.mean(valid, ended)}

    def sequences(self, ticks: Tensor, env: Tensor, weight: Tensor) -> Sequences:
        """Return a minibatch of B sequences of L steps for each of P members.

        Args:
            ticks: `[P, B, L]` int64, the numbers of the steps of each sequence.
            env: `[P, B]` int64, the environment of each sequence. For a team of K agents, the result holds the
                sequences of all agents of these environments, `[P, B · K, L]`.
            weight: `[P, B, L]`, 0 on padding, else 1. In the result, steps that must not be learned from have weight 0
                too, and weights sum to 1.
        """
        members, capacity, envs = self.rows.shape[:3]
        agents = self.layout.spaces.agents
        if agents > 1:
            ticks, weight = (x.repeat_interleave(agents, dim=1) for x in (ticks, weight))
            env = (agents * env[..., None] + torch.arange(agents, device=env.device)).flatten(1)
        member = torch.arange(members, device=ticks.device)[:, None, None]
        index = (member * capacity + ticks) * envs + env[..., None]
        before = ((member * (capacity + 1) + ticks) * envs + env[..., None])[..., 0]
        rows = self.rows.flatten(0, 2).index_select(0, index.flatten()).unflatten(0, index.shape)
        o, at = self.layout.spaces.observations, self.layout.log_prob
        action = rows[..., o:at]
        kind = self.layout.spaces.kind
        if not self.layout.spaces.real:
            action = action.long()
        log_prob, value, begins, advantage, target, valid = rows[..., at : at + 6].unbind(dim=-1)
        weight = weight * valid
        return Sequences(
            obs=rows[..., :o],
            action=action[..., 0] if kind == "discrete" else action,
            legal=rows[..., at + 6 :] > 0.5 if self.layout.masked else None,
            log_prob=log_prob,
            value=value,
            advantage=advantage,
            target=target,
            begins=begins > 0.5,
            memory=self.memory.flatten(0, 2).index_select(0, before.flatten()).unflatten(0, env.shape),
            weight=weight / weight.sum(dim=(1, 2), keepdim=True).clamp(min=1.0),
        )

    def state(self, ticks: int) -> dict[str, Tensor]:
        """Return a copy on the CPU of the first `ticks` ticks, as tensors by name."""
        held = {"rows": self.rows[:, :ticks], "after": self.after[:, :ticks], "memory": self.memory[:, : ticks + 1]}
        return {name: tensor.to("cpu", copy=True) for name, tensor in held.items()}

    def restore(self, state: dict[str, Any]) -> None:
        for name, tensor in zip(("rows", "after", "memory"), self.tensors(), strict=True):
            tensor[:, : state[name].shape[1]] = state[name].to(tensor.device)
