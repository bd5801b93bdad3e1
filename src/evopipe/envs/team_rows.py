"""Environments of several agents, stepped in one process; the counterpart of `evopipe.envs.rows` for teams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evopipe.envs.make import close, guard
from evopipe.envs.rows import (
    Actions,
    Begun,
    Bools,
    Fault,
    Floats,
    Ints,
    RowStep,
    Upcoming,
    calling,
    floats,
    make_rows,
    number,
    read_mask,
)
from evopipe.envs.rows import picture as name_of
from evopipe.envs.team import TeamSpace
from evopipe.schema.env import EnvConfig

if TYPE_CHECKING:
    import gymnasium

_BOOLS, _REALS = {bool, np.bool_}, {float, int, np.float64, np.float32}
_STEP = ("observations", "rewards", "terminations", "truncations", "infos")
_MASK, _FORCED = "action_mask", "env_defined_actions"
FORCED = ("continuous", "multibinary")
"""Kinds of actions of which no mask can say that the environment sets one itself."""


def team_step(
    space: TeamSpace, obs: Floats, reward: Floats, terminated: Bools, truncated: Bools, alive: Bools,
    mask: Bools | None = None, forced: Floats | None = None,
) -> RowStep:  # fmt: skip
    """Build the results of one step of K agents in n environments, and find the broken environments.

    An environment is broken if an observation or reward is not finite, or if an agent acts next and has no legal
    action.

    Args:
        space: the agents' spaces.
        obs: `[n, K, O]`, the next observations, of O numbers each.
        reward: `[n, K]`, the rewards.
        terminated, truncated: `[n, K]`, how each agent's episode ended, if it did.
        alive: `[n, K]`, the agents that act next.
        mask: `[n, K, A]`, the environment's masks of A actions; None if every action that an agent has is legal. If an
            agent was truncated and its last mask allows no action, all its actions count as legal.
        forced: `[n, K, …]`, the next actions of agents whose actions the environment sets itself, NaN for other agents;
            None if it sets none.
    """
    broken: Bools = np.asarray(~(np.isfinite(obs).all(axis=(1, 2)) & np.isfinite(reward).all(axis=1)), np.bool_)
    cut = truncated & ~terminated & ~alive
    legal = space.legal(alive | cut, mask)
    if mask is not None:
        possible = space.action.possible(legal.reshape(-1, legal.shape[2])).reshape(alive.shape)
        broken |= ~(possible | cut).all(axis=1)
        legal = np.where((cut & ~possible)[:, :, None], space.free, legal)
    return RowStep(obs, reward, terminated, truncated, broken, legal, alive, forced)


class TeamRows:
    """The environments of several agents that are stepped one after another in this process.

    An agent acts next if it is in the environment's `agents` and did not end in this step. An agent that acted and is
    missing from `agents` afterwards, but was neither terminated nor truncated, counts as truncated. A terminated agent
    without an observation gets the observation 0, from which nothing is learned.

    Args:
        cfg: the block `env` of `params.yaml`.
        numbers: the indices (rows) of these environments in the pool.
        made: environments that already exist. The first rows get them; for the other rows, environments are made.
        masked: a flag `[1]` that this object sets to True if an environment has action masks.
        turn: an array `[1]` that this object writes and a watchdog reads, to find an environment that hangs. While an
            environment is reset or stepped, the array holds the environment's row. After each construction of an
            environment, it holds a new negative number.

    Raises:
        ParamsError: the environment is unknown, or its spaces are not supported.
        EnvironmentFailed: the environment's constructor raised an exception.
    """

    def __init__(
        self, cfg: EnvConfig, numbers: range, made: Sequence[gymnasium.Env[Any, Any]], masked: Bools | None = None,
        turn: Ints | None = None,
    ) -> None:  # fmt: skip
        self._turn: Ints = np.zeros(1, np.int64) if turn is None else turn
        self.envs: dict[int, Any] = dict(make_rows(cfg, numbers, made, self._turn))
        self._guard = guard(cfg, lambda: self._turn[0])
        self._space = space = TeamSpace.of(self.envs[numbers[0]])
        self._place = {agent: place for place, agent in enumerate(space.ids)}
        self._everyone = [*space.ids]
        spaces = self.envs[numbers[0]].observation_space.spaces
        # Shape and type of observations that are rows already.
        self._plain = [
            ((seen.size,), spaces[agent].dtype) if seen.plain else None
            for agent, seen in zip(space.ids, space.observations, strict=True)
        ]
        self._forces = space.action.kind in FORCED
        self._masked: Bools = np.zeros(1, np.bool_) if masked is None else masked
        if space.masked:
            self._masked[0] = True
        self._acting: dict[int, list[int]] = {row: [] for row in numbers}  # places of those who act next
        self._giving: dict[int, set[int]] = {row: set() for row in numbers}  # of those who give masks in this episode

    def reset(self, rows: Ints, seeds: Ints, upcoming: Upcoming = None) -> Begun:
        """Begin an episode in the environments `rows` `[n]`, each from its own seed `[n]`; return the first
        observations, the masks, and which agents act first. `upcoming` (see `EnvPool`) is not used."""
        seen = _Seen(self._space, len(rows), self._forces)
        with calling(self._guard, self._turn, "reset"):
            for i, (row, seed) in enumerate(zip(rows.tolist(), seeds.tolist(), strict=True)):
                self._turn[0] = row
                self._begin(row, i, self.envs[row].reset(seed=seed), seen)
        alive = np.array(seen.alive, np.bool_).reshape(len(rows), len(self._everyone))
        mask = self._space.legal(alive, seen.mask) if self._masked[0] else None
        if mask is not None:
            possible = self._space.action.possible(mask.reshape(-1, mask.shape[2])).reshape(alive.shape)
            if not possible.all():
                i, place = np.argwhere(~possible)[0].tolist()
                whose = self._whose(place)
                raise Fault(int(rows[i]), f"reset() returned an action_mask{whose} in which no action is legal")
        return Begun(seen.obs, mask, alive, seen.forced)

    def send(self, rows: Ints, actions: Actions) -> None:
        """Do nothing, because `receive` steps these environments."""

    def receive(self, rows: Ints, actions: Actions) -> RowStep:
        """Step the environments `rows` `[n]` with the actions of K agents `[n, K, …]` in the algorithm's encoding;
        return the results. Actions of agents that are not alive are ignored."""
        seen, ids = _Seen(self._space, len(rows), self._forces), self._space.ids
        own, turn = self._space.own_each(actions), self._turn
        with calling(self._guard, turn, "step"):
            for i, row in enumerate(rows.tolist()):
                turn[0] = row
                given = {ids[place]: own[place][i] for place in self._acting[row]}
                self._take(row, i, self.envs[row].step(given), seen)
        shape, mask = (len(rows), len(ids)), seen.mask if self._masked[0] else None
        flags = seen.terminated, seen.truncated, seen.alive
        terminated, truncated, alive = (np.array(flag, np.bool_).reshape(shape) for flag in flags)
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows float32 becomes infinite: a broken row
            reward = floats(seen.reward).astype(np.float32).reshape(shape)
        return team_step(self._space, seen.obs, reward, terminated, truncated, alive, mask, seen.forced)

    def legal(self, alive: Bools) -> Bools:
        """Return which actions are legal if the environments give no masks, `[n, K, A]`.

        There are n environments, K agents and A actions. All of an agent's actions are legal if the agent acts, as
        `alive` `[n, K]` says. Otherwise only its first action is legal.
        """
        return self._space.legal(alive)

    def close(self) -> None:
        close(*self.envs.values())

    def _begin(self, row: int, i: int, result: Any, seen: _Seen) -> None:
        env = self.envs[row]
        if not isinstance(result, tuple) or len(result) != 2:
            raise Fault(row, f"reset() returned {_count(result)}, expected observations and infos")
        observed, infos = (
            self._dictionary(row, "reset", *x) for x in zip(("observations", "infos"), result, strict=True)
        )
        if env.possible != self._space.ids:
            raise Fault(
                row,
                f"reset() changed its possible_agents from {self._everyone} to {[*env.possible]}: they must stay the "
                "same; who acts is said by agents",
            )
        self._acting[row], self._giving[row] = self._present(row, "reset"), set()
        if not self._acting[row]:
            raise Fault(row, "reset() left no agent alive: its agents are empty")
        for place in self._acting[row]:
            agent = self._space.ids[place]
            if agent not in observed:
                raise Fault(row, f"reset() returned no observation{self._whose(place)}, which is alive")
            self._see(row, i, place, observed[agent], seen)
            if not np.isfinite(seen.obs[i, place]).all():
                raise Fault(row, f"reset() returned an observation{self._whose(place)} that is not finite")
            seen.alive[seen.at(i, place)] = True
            self._hint(row, i, place, observed[agent], infos.get(agent), seen, "reset")

    def _take(self, row: int, i: int, result: Any, seen: _Seen) -> None:
        if not isinstance(result, tuple) or len(result) != 5:
            raise Fault(row, f"step() returned {_count(result)}, expected {', '.join(_STEP)}")
        for what, part in zip(_STEP, result, strict=True):
            if part.__class__ is not dict:
                self._dictionary(row, "step", what, part)
        observed, rewards, terminations, truncations, infos = result
        ids, acted, first = self._space.ids, self._acting[row], seen.at(i, 0)
        acting, gone = [], set()
        for place in acted:
            agent = ids[place]
            try:
                reward, terminated, truncated = rewards[agent], terminations[agent], truncations[agent]
            except KeyError:
                parts = zip(_STEP[1:], result[1:], strict=True)
                what = next((what for what, part in parts if agent not in part), "")
                raise Fault(row, f"step() returned no {what[:-1]}{self._whose(place)}, which is alive") from None
            if reward.__class__ not in _REALS:
                reward = number(row, reward, self._whose(place))
            for what, flag in (("terminated", terminated), ("truncated", truncated)):
                if flag.__class__ not in _BOOLS:
                    raise Fault(
                        row, f"step() returned {what}{self._whose(place)} = {name_of(flag)}, which is not a bool"
                    )
            at = first + place
            seen.reward[at], seen.terminated[at], seen.truncated[at] = reward, terminated, truncated
            if terminated or truncated:
                gone.add(place)
            if agent in observed:
                self._see(row, i, place, observed[agent], seen)
            elif not terminated:
                raise Fault(row, f"step() returned no observation{self._whose(place)}, which is alive")
        for place in self._present(row, "step"):
            agent = ids[place]
            if place not in acted:
                if terminations.get(agent) or truncations.get(agent):  # ended before, and was not removed
                    continue
                if agent not in observed:
                    raise Fault(row, f"step() returned no observation{self._whose(place)}, which came to live")
                self._see(row, i, place, observed[agent], seen)
            elif place in gone:
                continue
            acting.append(place)
            seen.alive[first + place] = True
            info = infos.get(agent)
            if info or self._masked[0]:
                self._hint(row, i, place, observed[agent], info, seen, "step")
        for place in acted:
            if place not in acting and not seen.terminated[first + place]:
                seen.truncated[first + place] = True
                if self._masked[0]:
                    self._hint(row, i, place, observed[ids[place]], infos.get(ids[place]), seen, "end")
        self._acting[row] = acting

    def _present(self, row: int, what: str) -> list[int]:
        """The places of the environment's `agents`."""
        agents = self.envs[row].agents
        if agents == self._everyone:
            return [*range(len(agents))]
        try:
            return [self._place[agent] for agent in agents]
        except KeyError as error:
            stranger = error.args[0]
            raise Fault(row, f"{what}() left agent {stranger!r} in agents, which is none of possible_agents") from None

    def _whose(self, place: int) -> str:
        return f" of agent {self._space.ids[place]!r}"

    def _dictionary(self, row: int, what: str, name: str, value: Any) -> Mapping[Any, Any]:
        if not isinstance(value, Mapping):
            raise Fault(row, f"{what}() returned {name} that are no dictionary by agent but {name_of(value)}")
        return value

    def _see(self, row: int, i: int, place: int, obs: Any, seen: _Seen) -> None:
        space, plain = self._space.observations[place], self._plain[place]
        if plain is None or obs.__class__ is not np.ndarray or (obs.shape, obs.dtype) != plain:
            try:
                obs = space.row(obs)
            except ValueError as error:
                raise Fault(row, f"returned{self._whose(place)} {error}") from error
        seen.obs[i, place, : space.size] = obs

    def _hint(self, row: int, i: int, place: int, obs: Any, info: Any, seen: _Seen, what: str) -> None:
        """Read an agent's mask and the action that the environment sets itself, if there are any.

        For an agent that was truncated (`end`), neither is needed: it takes no other action.
        """
        if info is None:
            info = {}
        elif not isinstance(info, Mapping):
            raise Fault(row, f"{what}() returned an info{self._whose(place)} that is no mapping but {name_of(info)}")
        mask = obs[_MASK] if self._space.masks[place] else info.get(_MASK)
        limits = mask is not None or (_FORCED in info and not self._forces)
        if limits and what == "reset":
            self._masked[0] = True
        elif limits and not self._masked[0]:
            name = _MASK if mask is not None else _FORCED
            raise Fault(row, f"step() returned {name}{self._whose(place)}, reset() did not: give it in both")
        turn = self.envs[row].turn
        if turn is not None and turn != self._space.ids[place]:
            seen.mask[i, place] = self._space.first  # it waits: nothing depends on its action
        elif mask is not None:
            self._giving[row].add(place)
            own = self._space.actions[place]
            seen.mask[i, place, : own.size] = read_mask(row, own, mask, self._whose(place))
        elif place in self._giving[row] and what != "end":
            raise Fault(
                row, f"returned no action_mask{self._whose(place)}, earlier it did: give it at every reset and step"
            )
        if info.get(_FORCED) is not None and not (self._forces and what == "end"):
            self._force(row, i, place, info[_FORCED], seen)

    def _force(self, row: int, i: int, place: int, given: Any, seen: _Seen) -> None:
        """Keep the action that the environment sets itself."""
        space = self._space.actions[place]
        own = np.asarray(given)
        fits = own.shape == space.shape and own.dtype.kind in ("biuf" if space.continuous else "biu")
        if fits and not space.continuous:
            index = own.reshape(-1) - np.array(space.starts)
            fits = bool(((index >= 0) & (index < np.array(space.choices))).all())
        if not fits:
            raise Fault(row, f"returned {_FORCED} = {name_of(given)}{self._whose(place)}, which is none of its actions")
        relative = space.relative(own[None])[0]
        if seen.forced is not None:
            seen.forced[i, place, : space.size] = relative
            return
        seen.mask[i, place] = False
        seen.mask[i, place, np.cumsum((0, *space.choices[:-1])) + relative] = True


def _count(result: Any) -> str:
    return f"a tuple of {len(result)}" if isinstance(result, tuple) else name_of(result)


class _Seen:
    """What a step or reset of `n` rows has shown so far; nothing for absent agents."""

    def __init__(self, space: TeamSpace, n: int, forces: bool) -> None:
        self._agents = agents = len(space.ids)
        self.obs: Floats = np.zeros((n, agents, space.observation.size), np.float32)
        self.mask: Bools = np.repeat(space.free[None], n, axis=0)
        self.reward = [0.0] * (n * agents)  # by row and place, as the next three
        self.terminated, self.truncated, self.alive = ([False] * (n * agents) for _ in range(3))
        shape = (n, agents, *space.spaces.action_shape)
        self.forced: Floats | None = np.full(shape, np.nan, np.float32) if forces else None

    def at(self, i: int, place: int) -> int:
        """Where an agent of a row stands in the lists."""
        return i * self._agents + place
