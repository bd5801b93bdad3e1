"""Teams whose agents share networks: which agent uses which network, and what centralised critics read.

The `K` agents of an environment lie next to each other. A member has `G` like networks, one for every group of agents
that share one: agents that do are told apart by a one-hot number at the end of what they read. Groups of unlike size
are filled up to `n` seats with agents that sit there already: nobody reads what comes out there, so that nothing is
learned from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple

import torch

from evopipe.core.net import Net, forward
from evopipe.native.actor_critic import Places
from evopipe.types import ACTS, CUT, Spaces, Team, Tensor


class _Places(NamedTuple):
    """Constants of a team's groups on one device."""

    seats: Tensor | None  # [G · n] which agent sits there; None where all sit in order
    back: Tensor | None  # [K] where each agent sits
    group: Tensor | None  # [K] its group; None where each agent is one, in order
    together: Tensor  # [K, K] float32, 1 where two agents share a network
    ids: Tensor  # [K, n] which of its group an agent is, one-hot; [K, 0] where nobody shares
    missing: Tensor | None  # [K, 1, A] bool, the actions that an agent does not have; None where all have as many
    share: Tensor  # [K, 1, A] float32, one part of each agent's own actions, which sum to 1
    plain: Tensor | None  # `AgentGroups.plain`, None where that is all
    seen: Tensor | None  # `AgentGroups.seen` and `AgentGroups.done`, None where there are no pads
    done: Tensor | None
    other: Tensor  # [K, 1, K, 1] bool, whether the second agent is another one


@dataclass(frozen=True, eq=False)
class AgentGroups:
    """The agents of a team, divided into groups of agents that share a network.

    `K` agents form `G` groups of at most `n` agents; each member has one network per group. Smaller groups are padded
    to n places, so that the networks of all groups run in one batch. In shapes, P counts members, B rows of a batch, O
    the numbers of an observation, and A the largest number of actions of any agent.

    Attributes:
        spaces: the environment's spaces.
        team: the agents.
        groups: the indices of each group's agents.
    """

    spaces: Spaces
    team: Team
    groups: tuple[tuple[int, ...], ...]
    _on: dict[torch.device, _Places] = field(default_factory=dict, repr=False)

    @cached_property
    def agents(self) -> int:
        """`K`, the number of agents."""
        return len(self.team.agents)

    @cached_property
    def seats(self) -> int:
        """The number n of agents in the largest group. Every group has n places in a batch; in a smaller group, nobody
        reads the results of the surplus places."""
        return max(map(len, self.groups))

    @cached_property
    def ids(self) -> int:
        """The length of the one-hot code by which a shared network tells its agents apart; 0 if no agents share a
        network."""
        return self.seats if self.seats > 1 else 0

    @cached_property
    def plain(self) -> tuple[int, ...]:
        """The columns of an observation that belong to no image. A centralised critic reads these columns of all
        agents."""
        within = {c for image in self.spaces.images for c in range(image.start, image.start + image.size)}
        return tuple(c for c in range(self.spaces.observations) if c not in within)

    @cached_property
    def seen(self) -> list[int]:
        """Which columns of the agents' observations a centralised critic reads, as indices.

        The observations of all agents are put side by side, without columns of images, and each padded to the same
        width. The indices are those of the columns that are not padding.

        For example, one agent observes 2 numbers and another 3. Both observations have 3 columns, together 6. Column 2
        is padding, and the indices are [0, 1, 3, 4, 5].
        """
        n = len(self.plain)
        return [i * n + j for i, own in enumerate(self.team.observations) for j, c in enumerate(self.plain) if c < own]

    @cached_property
    def done(self) -> list[int]:
        """Which columns of the agents' actions a centralised critic reads, as indices.

        The A action columns of all agents are put side by side, and the padding of agents with fewer actions is left
        out. If 2 agents have 2 and 3 actions, column 2 of the 6 columns is padding, and the indices are
        [0, 1, 3, 4, 5].
        """
        return [i * self.spaces.actions + j for i, own in enumerate(self.team.actions) for j in range(own)]

    @cached_property
    def places(self) -> Places:
        """The description of the team in the form that the C kernels read. The kernels do not support images."""
        at = {agent: (g, i) for g, group in enumerate(self.groups) for i, agent in enumerate(group)}
        group, seat = zip(*(at[agent] for agent in range(self.agents)), strict=True)
        return Places(tuple(self.team.observations), tuple(self.team.actions), group, seat, self.ids)

    @property
    def observed(self) -> int:
        """The input width of a network that reads one agent's own observation. If agents share a network, it also reads
        the agent's one-hot code."""
        return self.spaces.observations + self.ids

    def joint(self, actions: bool = True) -> int:
        """Return the input width of a centralised critic, which reads all agents' observations.

        If `actions` is True, the critic reads all agents' actions too.
        """
        own = self.spaces.observations if self.spaces.images else 0
        return own + len(self.seen) + (len(self.done) if actions else 0) + self.ids

    def on(self, device: torch.device) -> _Places:
        if device not in self._on:
            self._on[device] = self._made(device)
        return self._on[device]

    def _made(self, device: torch.device) -> _Places:
        n, actions = self.seats, torch.tensor(self.team.actions)
        seats = [group[i] if i < len(group) else group[0] for group in self.groups for i in range(n)]
        place = {agent: g * n + i for g, group in enumerate(self.groups) for i, agent in enumerate(group)}
        back = [place[agent] for agent in range(self.agents)]
        group = torch.tensor(back) // n
        ids = torch.zeros(self.agents, self.ids)
        if self.ids:
            ids[range(self.agents), [at % n for at in back]] = 1.0
        own = torch.arange(self.spaces.actions) < actions[:, None]

        def given(values: Tensor, wanted: bool = True) -> Tensor | None:
            return values.to(device) if wanted else None

        in_order, each = (values == list(range(self.agents)) for values in (seats, group.tolist()))
        return _Places(
            seats=given(torch.tensor(seats), not in_order),
            back=given(torch.tensor(back), not in_order),
            group=given(group, not each),
            together=(group == group[:, None]).float().to(device),
            ids=ids.to(device),
            missing=given(~own[:, None], self.team.unlike),
            share=(own / actions[:, None])[:, None].to(device),
            plain=given(torch.tensor(self.plain, dtype=torch.int64), bool(self.spaces.images)),
            seen=given(torch.tensor(self.seen, dtype=torch.int64), len(self.seen) < self.agents * len(self.plain)),
            done=given(torch.tensor(self.done), len(self.done) < self.agents * self.spaces.actions),
            other=~torch.eye(self.agents, dtype=torch.bool, device=device)[:, None, :, None],
        )

    def first(self, x: Tensor) -> Tensor:
        """Move the axis of agents before the batch axis: `[P, B, K, …]` → `[P, K, B, …]`.

        The result and its gradient are contiguous. If they were not, the last bits of a member's gradient could depend
        on the number of members.
        """
        return x.transpose(1, 2).contiguous()

    def apart(self, x: Tensor) -> Tensor:
        """Split the batch axis by agent, and move the axis of agents forward: `[P, B · K, …]` → `[P, K, B, …]`."""
        return self.first(x.unflatten(1, (-1, self.agents)))

    def side_by_side(self, x: Tensor) -> Tensor:
        """Undo `apart`: put the K agents of each row side by side, `[P, K, B, …]` → `[P, B · K, …]`."""
        return x.transpose(1, 2).flatten(1, 2)

    def seated(self, x: Tensor) -> Tensor:
        """Arrange agents' inputs by the network that each agent uses: `[P, K, B, …]` → `[P · G, n · B, …]`.

        The K agents form G groups with one network each; the largest group has n agents. In a smaller group, the free
        places are filled with copies of its first agent's inputs.
        """
        seats = self.on(x.device).seats
        x = x if seats is None else x.index_select(1, seats)
        out: Tensor = x.unflatten(1, (len(self.groups), -1)).flatten(2, 3).flatten(0, 1)
        return out

    def back(self, x: Tensor) -> Tensor:
        """Arrange the networks' outputs by agent: `[P · G, n · B, …]` → `[P, K, B, …]`; the inverse of `seated`.

        A member has G networks, one for each group of agents. n is the number of agents in the largest group; the
        padding of smaller groups is left out.
        """
        back = self.on(x.device).back
        out: Tensor = x.unflatten(1, (self.seats, -1)).unflatten(0, (-1, len(self.groups))).flatten(1, 2)
        return out if back is None else out.index_select(1, back)

    def run(self, net: Net, x: Tensor) -> Tensor:
        """Run every agent's network `net` on the agent's inputs x: `[P, K, B, inputs]` → `[P, K, B, outputs]`.

        `net` holds the networks of all groups. If every group has two networks (twins), the result is `[2, P, K, B,
        outputs]`.
        """
        out = forward(net, self.seated(x))
        if out.ndim == 3:
            return self.back(out)
        return torch.stack([self.back(each) for each in out.unbind(dim=1)])

    def named(self, x: Tensor) -> Tensor:
        """Append each agent's one-hot code to its inputs. The result is `[P, K, B, F + ids]`, where `ids` is the length
        of the code.

        `x` is `[P, K, B, F]`: B inputs of F numbers for each of the K agents of P members. If no agents share a
        network, `x` is returned unchanged.
        """
        if not self.ids:
            return x
        ids = self.on(x.device).ids.to(x.dtype)[:, None]
        return torch.cat((x, ids.expand(*x.shape[:-1], -1)), dim=-1)

    def there(self, next_alive: Tensor) -> Tensor:
        """Return, for the bootstrap target of each agent, which agents count as present after the step:
        `[P, K, B, K]` bool.

        A centralised critic values the situation after the step, and reads zeros for agents that are not present. Entry
        [p, i, b, j] is True if agent j is present in the target of agent i. This is so if j acts next, or if the step
        truncated both i and j. `next_alive` `[P, B, K]` is each agent's status after the step: `GONE`, `ACTS` or `CUT`,
        see `evopipe.types`.
        """
        of = next_alive[:, None]  # [P, 1, B, K]
        return (of == ACTS) | ((of == CUT) & (next_alive.transpose(1, 2)[..., None] == CUT))

    def together(self, obs: Tensor, actions: Tensor | None = None) -> Tensor:
        """Return the input of every agent's centralised critic, `[P, K, B, inputs]`, with the width that the method
        `joint` returns.

        A critic reads all agents' observations and, if they are given, actions. It reads the images of its own agent
        only, because a network has convolutions for one observation.

        Args:
            obs: the observations. `[P, B, K, O]` if all critics read the same ones. `[P, K, B, K, O]` if each critic
                reads different ones: the first K counts the critics' agents, the second K the agents that observe.
            actions: the actions, `[P, B, K, A]` or `[P, K, B, K, A]` in the same way; None for critics that read no
                actions.
        """
        places = self.on(obs.device)
        parts = [_side_by_side(obs if places.plain is None else obs.index_select(-1, places.plain), places.seen)]
        if actions is not None:
            parts.append(_side_by_side(actions, places.done))
        if len(parts) == 2 and parts[0].ndim == parts[1].ndim:
            parts = [torch.cat(parts, dim=-1)]
        parts = [part if part.ndim == 4 else part[:, None].expand(-1, self.agents, -1, -1) for part in parts]
        if self.spaces.images:
            own = obs.transpose(1, 2) if obs.ndim == 4 else obs.diagonal(dim1=1, dim2=3).movedim(-1, 1)
            parts.insert(0, own)
        return self.named(torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0])

    def own(self, actions: Tensor, else_: float = 0.0) -> Tensor:
        """Return `actions` `[P, K, B, A]` with the number `else_` in the padding columns. An agent with a < A actions
        has A − a padding columns."""
        missing = self.on(actions.device).missing
        return actions if missing is None else actions.masked_fill(missing, else_)

    def legal(self, legal: Tensor | None, like: Tensor) -> Tensor | None:
        """Return which actions are legal for each agent, `[P, K, B, A]` bool; None if all agents may take all A
        actions.

        Args:
            legal: the environment's mask of legal actions, which is returned unchanged. If it is None, an agent may
                take every action that it has; some agents may have fewer than A.
            like: a tensor `[P, K, B, A]`, which gives the result its shape and device. Its numbers do not matter.
        """
        missing = self.on(like.device).missing
        return ~missing.expand_as(like) if legal is None and missing is not None else legal

    def of_group(self, x: Tensor) -> Tensor:
        """Return for each agent the values of its group. `x` `[P, G, …]` has the values of G groups; the result is
        `[P, K, …]` for K agents."""
        group = self.on(x.device).group
        return x if group is None else x.index_select(1, group)

    def over_group(self, x: Tensor) -> Tensor:
        """Return for each agent the sum of `x` over all agents of its group, `[P, K]`.

        `x` `[P, K]` has a number for each of the K agents of P teams.
        """
        if len(self.groups) == self.agents:
            return x
        return (x[:, None] * self.on(x.device).together).sum(dim=2)


def _side_by_side(x: Tensor, columns: Tensor | None) -> Tensor:
    """Put agents' numbers side by side, without pads: `[…, K, F]` → `[…, columns]`."""
    x = x.flatten(-2)
    return x if columns is None else x.index_select(-1, columns)


def agent_groups(cfg: Any, spaces: Spaces | None = None) -> AgentGroups:
    """Return the agents of an environment, divided into groups of agents that share a network.

    An environment with one agent counts as a team of one.

    Args:
        cfg: the algorithm's configuration. Its fields `share` and `groups` say which agents form a group.
        spaces: the environment's spaces; None for those in `cfg`.

    Raises:
        ValueError: the field `groups` has an empty group or an unknown agent, or an agent is in no group or in two
            groups.
    """
    spaces = spaces or cfg.spaces
    return _agent_groups(spaces, cfg.share, tuple((name, tuple(agents)) for name, agents in cfg.groups.items()))


@cache
def _agent_groups(spaces: Spaces, share: str, named: tuple[tuple[str, tuple[str, ...]], ...]) -> AgentGroups:
    team = spaces.who
    every = tuple(range(len(team.agents)))
    groups = {"none": tuple((i,) for i in every), "all": (every,)}
    found = AgentGroups(spaces, team, groups[share] if share in groups else tuple(team.groups(dict(named)).values()))
    found.on(torch.device("cpu"))  # now: while a program is recorded, nothing can be made that is to stay
    return found
