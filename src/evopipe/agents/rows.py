"""Episodes as rows of text: the tokens that members read and wrote, which of them count, and their advantages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from evopipe.agents.types import Step, Trajectory
from evopipe.language.base import stacked
from evopipe.types import Tensor, Text

Level = Literal["trajectory", "step", "turn"]


@dataclass
class TokenRow:
    """A sequence of tokens to learn from: a prompt, then completions of the model, with replies of the environment
    between them.

    Attributes:
        prompt: the tokens of the prompt.
        ids: the tokens after the prompt. The other lists have one entry for each of these tokens.
        mask: whether the model wrote the token.
        turn: the index of the step that the token belongs to.
        log_prob: the token's log-probability when the model drew it; 0 for the environment's tokens.
    """

    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    log_prob: list[float] = field(default_factory=list)

    def add(self, shown: Sequence[int], written: Sequence[int], log_probs: Sequence[float], step: int) -> None:
        self.ids += [*shown, *written]
        self.mask += [False] * len(shown) + [True] * len(written)
        self.turn += [step] * (len(shown) + len(written))
        self.log_prob += [0.0] * len(shown) + list(log_probs)


class RoundTrajectory(NamedTuple):
    """One agent's trajectory in a round of episodes, with what is needed to learn from it.

    Attributes:
        task: the number of the trajectory's task in the round.
        trajectory: the trajectory.
        counts: whether members learn from the trajectory.
    """

    task: int  # which of the round's
    trajectory: Trajectory
    counts: bool


def rows_of(trajectory: Trajectory) -> list[TokenRow]:
    """Return a trajectory as rows of tokens. A step whose prompt begins with all tokens of the previous row extends
    that row; any other step begins a new row."""
    rows: list[TokenRow] = []
    for number, step in enumerate(trajectory.steps):
        out = step.model_output
        if out is None or not out.completion_ids:
            continue
        known = len(rows[-1].prompt) + len(rows[-1].ids) if rows else 0
        if rows and out.prompt_ids[:known] == [*rows[-1].prompt, *rows[-1].ids]:
            rows[-1].add(out.prompt_ids[known:], out.completion_ids, out.logprobs, number)
        else:
            rows.append(TokenRow(list(out.prompt_ids)))
            rows[-1].add([], out.completion_ids, out.logprobs, number)
    return rows


def returns(steps: Sequence[Step], gamma: float) -> list[float]:
    """Compute the discounted return Σ γᵏ r from every step on, with the discount `gamma` = γ and the rewards r. Return
    the returns of all steps, and also store each in its step (`mc_return`)."""
    later = 0.0
    for step in reversed(steps):
        later = step.reward + gamma * later
        step.mc_return = later
    return [step.mc_return for step in steps]


@dataclass
class RolloutBatch:
    """The rows of tokens that `P` members learn from after a round.

    Attributes:
        text: the rows of all members, `[P, B, …]`, where B is the largest number of rows of a member; other members
            have padding.
        owner: for each member, the index of the trajectory that each of its rows comes from.
        played: for each member, its trajectories of the round.
    """

    text: Text
    owner: list[list[int]]
    played: Sequence[Sequence[RoundTrajectory]]


def batch_of(played: Sequence[Sequence[RoundTrajectory]], pad: int, device: torch.device) -> RolloutBatch:
    """Stack the trajectories of `P` members as one padded batch of rows of tokens. Each row has the reward of its
    trajectory.

    Args:
        played: the trajectories of each member.
        pad: the token that fills up shorter rows.
        device: the device of the tensors.
    """
    every: list[list[TokenRow]] = []
    owner: list[list[int]] = []
    for member in played:
        found = [(i, row) for i, each in enumerate(member) for row in rows_of(each.trajectory)]
        owner.append([i for i, _ in found])
        every.append([row for _, row in found])
    width = max(1, *(len(rows) for rows in every))
    flat = [
        row for rows in every for row in (*rows, *([TokenRow([pad], [pad], [False], [0], [0.0])] * (width - len(rows))))
    ]
    prompts, seen = stacked([row.prompt for row in flat], pad, left=True)
    ids, there = stacked([row.ids for row in flat], pad, left=False)
    shape = (len(played), width, -1)

    # Numbers are put together in numpy: in torch each would give Python's lock away, for which others may wait.
    def told(values: Sequence[Sequence[Any]], dtype: type[np.generic]) -> Tensor:
        out = np.zeros(ids.shape, dtype=dtype)
        for i, row in enumerate(values):
            out[i, : len(row)] = row
        return torch.from_numpy(out).view(shape).to(device)

    mask = told([row.mask for row in flat], np.bool_)
    counts, reward = np.zeros(shape[:2], dtype=np.bool_), np.zeros(shape[:2], dtype=np.float32)
    for p, member in enumerate(played):
        for b, i in enumerate(owner[p]):
            counts[p, b], reward[p, b] = member[i].counts, member[i].trajectory.reward
    text = Text(
        torch.cat((prompts, ids), dim=1).view(shape).to(device), torch.cat((seen, there), dim=1).view(shape).to(device),
        mask, told([row.turn for row in flat], np.int64),
        log_prob=told([row.log_prob for row in flat], np.float32),
        reward=torch.from_numpy(reward).to(device), keep=torch.from_numpy(counts).to(device),
    )  # fmt: skip
    return RolloutBatch(text, owner, played)


@dataclass(frozen=True)
class AdvantageSettings:
    """Settings for computing the advantages of tokens from the rewards of trajectories.

    Attributes:
        level: what is compared within a group. A group has all trajectories of one task by agents of one role.
            `trajectory` compares whole trajectories, and each step has the advantage of its trajectory. `step` divides
            that advantage equally among the trajectory's steps. `turn` compares each turn with the same turn of the
            other trajectories.
        gamma: discount factor of the returns of turns, for `turn`.
        estimate: for each role of agents, a function (text, size of a group) that returns the text with advantages. The
            key `""` is for all other roles.
    """

    level: Level
    gamma: float
    estimate: Mapping[str, Callable[[Text, int], Text]]

    def of(self, role: str) -> Callable[[Text, int], Text]:
        return self.estimate.get(role, self.estimate[""])


class _Places(NamedTuple):
    """Where the trajectories of a role stand when groups lie next to each other."""

    group: int  # of each group, pads included
    of: list[list[tuple[int, int]]]  # of each member: (place, index among its trajectories)
    size: int


def _places(played: Sequence[Sequence[RoundTrajectory]], role: str, tasks: int) -> _Places:
    own: list[dict[int, list[int]]] = []
    for member in played:
        found: dict[int, list[int]] = defaultdict(list)
        for i, each in enumerate(member):
            if each.trajectory.name == role:
                found[each.task].append(i)
        own.append(found)
    group = max(len(each) for found in own for each in found.values())
    of = [[(task * group + k, i) for task, each in found.items() for k, i in enumerate(each)] for found in own]
    return _Places(group, of, tasks * group)


def advantages(batch: RolloutBatch, tasks: int, how: AdvantageSettings) -> tuple[Text, int]:
    """Compute the advantage of every token of a batch. Return the text with its fields `advantage` and `keep` set, and
    the number of uninformative groups.

    Trajectories of the same task and role form a group. Only trajectories of one group are compared. A group is
    uninformative if all its rewards are equal. `keep` is True for rows that have an advantage.

    Args:
        batch: the rows and their trajectories.
        tasks: the number of tasks in the round.
        how: the settings for computing advantages.
    """
    text, played = batch.text, batch.played
    values = [[[0.0] * len(each.trajectory.steps) for each in member] for member in played]
    spread = [[[False] * len(each.trajectory.steps) for each in member] for member in played]
    summed = _sums(batch)
    silent = 0
    for role in sorted({each.trajectory.name for member in played for each in member}):
        places, estimate = _places(played, role, tasks), how.of(role)
        longest = max(
            len(each.trajectory.steps) for member in played for each in member if each.trajectory.name == role
        )
        whole, keep, skipped = _compare(batch, places, estimate, lambda each: each.trajectory.reward, summed)
        silent += skipped
        for p, own in enumerate(places.of):
            for place, i in own:
                n = len(values[p][i])
                share = n if how.level == "step" else 1
                values[p][i] = [whole[p][place] / share] * n
                spread[p][i] = [keep[p][place]] * n
        if how.level != "turn":
            continue
        for member in played:
            for each in member:
                returns(each.trajectory.steps, how.gamma)
        for t in range(longest):
            turn, keep, _ = _compare(batch, places, estimate, partial(_return, t), summed)
            for p, own in enumerate(places.of):
                there = [place // places.group for place, i in own if t < len(values[p][i]) and played[p][i].counts]
                for place, i in own:
                    # A turn that nobody else of the group took is worth what its trajectory is.
                    if t < len(values[p][i]) and there.count(place // places.group) > 1:
                        values[p][i][t], spread[p][i][t] = turn[p][place], keep[p][place]
    turns, device = text.turn.cpu().numpy(), text.ids.device
    advantage, kept = np.zeros(turns.shape, dtype=np.float32), np.zeros(turns.shape[:2], dtype=np.bool_)
    for p, owners in enumerate(batch.owner):
        for b, i in enumerate(owners):
            told = np.array([a if s else 0.0 for a, s in zip(values[p][i], spread[p][i], strict=True)], np.float32)
            advantage[p, b] = told[np.minimum(turns[p, b], len(told) - 1)]
            kept[p, b] = any(spread[p][i])  # what does not count is in no comparison
    found = torch.from_numpy(advantage).to(device), torch.from_numpy(kept).to(device)
    return replace(text, advantage=found[0], keep=found[1]), silent


def _return(t: int, each: RoundTrajectory) -> float | None:
    steps = each.trajectory.steps
    return steps[t].mc_return if t < len(steps) else None


def _sums(batch: RolloutBatch) -> list[dict[int, tuple[float, float]]]:
    """Return of each trajectory Σ log π and Σ log π_ref over its tokens."""
    text, found = batch.text, []
    assert text.log_prob is not None
    own = text.log_prob.sum(dim=-1).cpu().tolist()
    base = own if text.reference is None else text.reference.sum(dim=-1).cpu().tolist()
    for p, owners in enumerate(batch.owner):
        sums: dict[int, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        for b, i in enumerate(owners):
            sums[i] = (sums[i][0] + own[p][b], sums[i][1] + base[p][b])
        found.append(sums)
    return found


def _compare(
    batch: RolloutBatch, places: _Places, estimate: Callable[[Text, int], Text],
    value: Callable[[RoundTrajectory], float | None], summed: Sequence[Mapping[int, tuple[float, float]]],
) -> tuple[list[list[float]], list[list[bool]], int]:  # fmt: skip
    """Compare trajectories by the algorithm's own estimate, one token each; return it by place, whether it says
    anything, and how many groups do not."""
    shape = (len(batch.played), places.size, 1)
    reward, log_prob, reference = (np.zeros(shape[:2], dtype=np.float32) for _ in range(3))
    there = np.zeros(shape[:2], dtype=np.bool_)
    for p, own in enumerate(places.of):
        for place, i in own:
            each = batch.played[p][i]
            found = value(each)
            if found is None or not each.counts:
                continue
            there[p, place], reward[p, place] = True, found
            log_prob[p, place], reference[p, place] = summed[p].get(i, (0.0, 0.0))
    device = batch.text.ids.device
    nothing, present = torch.zeros(shape, dtype=torch.int64, device=device), torch.from_numpy(there)
    told = Text(
        nothing, present[..., None].to(device), present[..., None].to(device), nothing,
        torch.from_numpy(log_prob[..., None]).to(device),
        torch.from_numpy(reference[..., None]).to(device) if batch.text.reference is not None else None,
        reward=torch.from_numpy(reward).to(device), keep=present.to(device),
    )  # fmt: skip
    done = estimate(told, places.group)
    assert done.advantage is not None
    assert done.keep is not None
    keep = done.keep.cpu()
    groups = present.view(len(present), -1, places.group).any(dim=-1)
    silent = int((groups & ~keep.view(len(keep), -1, places.group).any(dim=-1)).sum())
    return done.advantage[..., 0].cpu().tolist(), keep.tolist(), silent
