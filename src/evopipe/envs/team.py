"""Teams: environments in which K agents act at once, by PettingZoo's parallel API.

A row holds the K agents in the order of `possible_agents`: `obs [K, O]`, `action [K, …]`, `reward [K]`. If agents
differ, O and A are the widest agent's: shorter observations are padded with 0, choices that an agent lacks are never
legal, and numbers of a Box action that it lacks are ignored.

PettingZoo is imported where a team is made (`evopipe.envs.make`), not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np

from evopipe.envs.spaces import NO_MASK, ActionSpace, ObservationSpace, brief
from evopipe.errors import ParamsError, UsageError, did_you_mean
from evopipe.types import Spaces, Team

if TYPE_CHECKING:
    import numpy.typing as npt

_MASK = "action_mask"


class TeamEnv(gymnasium.Env[Any, Any]):
    """A Gymnasium environment that wraps a PettingZoo ParallelEnv of several agents. Observations, actions and all
    other values are dictionaries by agent. The attribute `ids` holds the agents' names.

    Args:
        parallel: the ParallelEnv.
        turns: the AECEnv inside it, if its agents act in turns; else None.

    Raises:
        ParamsError: the environment has no `possible_agents`, or lacks an agent's space.
    """

    def __init__(self, parallel: Any, turns: Any = None) -> None:
        self.parallel, self._turns = parallel, turns
        self.metadata, self.render_mode = getattr(parallel, "metadata", {}), getattr(parallel, "render_mode", None)
        self.ids: tuple[Any, ...] = self.possible
        if not self.ids:
            raise ParamsError("env.id: the environment has no possible_agents, which must name all its agents")
        if len({str(agent) for agent in self.ids}) < len(self.ids):
            raise ParamsError(f"env.id: two of the environment's possible_agents {[*self.ids]} have one name")
        self.observation_space = self._spaces("observation_space")
        self.action_space = self._spaces("action_space")

    def _spaces(self, what: str) -> gymnasium.spaces.Dict:
        found = [(agent, getattr(self.parallel, what)(agent)) for agent in self.ids]
        for agent, space in found:
            if not isinstance(space, gymnasium.Space):
                raise ParamsError(f"env.id: {what}({agent!r}) is no space but {brief(space)}")
        return gymnasium.spaces.Dict(found)

    @property
    def possible(self) -> tuple[Any, ...]:
        """The names of all agents that may appear in an episode, read from the ParallelEnv now. The attribute `ids` has
        the names as they were at construction."""
        return tuple(getattr(self.parallel, "possible_agents", None) or ())

    @property
    def agents(self) -> Sequence[Any]:
        agents: Sequence[Any] = self.parallel.agents
        return agents

    @property
    def turn(self) -> Any:
        """The agent whose action counts next, if agents act in turns; else None."""
        return None if self._turns is None else self._turns.agent_selection

    def wrapped(self, wrapper: Callable[..., Any], kwargs: Mapping[str, Any]) -> TeamEnv:
        """Return this environment inside a wrapper for PettingZoo environments, which is called with `kwargs`.

        Raises:
            TypeError: the wrapper does not return a ParallelEnv.
        """
        from pettingzoo import ParallelEnv

        made = wrapper(self.parallel, **kwargs)
        if not isinstance(made, ParallelEnv):
            raise TypeError(f"it gave no ParallelEnv but {type(made).__name__}")
        return TeamEnv(made, self._turns)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.parallel.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        return self.parallel.step(action)

    def render(self) -> Any:
        return self.parallel.render()

    def close(self) -> None:
        self.parallel.close()


class Situation(NamedTuple):
    """The observations and legal actions of K agents in each of `n` environments, with O numbers in an observation and
    A actions.

    Attributes:
        obs: `[n, K, O]`, the observations; 0 for absent agents.
        alive: `[n, K]`, whether the agent is present and acts.
        legal: `[n, K, A]`, whether each action is legal.
        single: whether the caller gave one observation for each agent, not a batch.
    """

    obs: npt.NDArray[np.float32]
    alive: npt.NDArray[np.bool_]
    legal: npt.NDArray[np.bool_]
    single: bool


@dataclass(frozen=True)
class TeamSpace:
    """The spaces of a team's K agents, in the order of their ids. A `TeamSpace` converts between dictionaries by agent
    and arrays with an axis K.

    Attributes:
        ids: the agents' ids in the environment.
        observations: the observation space of each agent.
        actions: the action space of each agent.
        masks: for each agent, whether its observation is a dictionary that also holds its action mask.
    """

    ids: tuple[Any, ...]
    observations: tuple[ObservationSpace, ...]
    actions: tuple[ActionSpace, ...]
    masks: tuple[bool, ...]

    @classmethod
    def of(cls, env: TeamEnv) -> TeamSpace:
        """Return the `TeamSpace` of an environment of several agents.

        Raises:
            ParamsError: an agent's spaces are not supported, or the agents' spaces differ too much.
        """
        observed, acted, masks = [], [], []
        for agent in env.ids:
            space = env.observation_space[agent]  # type: ignore[index]
            masks.append(isinstance(space, gymnasium.spaces.Dict) and _MASK in space.spaces)
            if masks[-1]:
                space = gymnasium.spaces.Dict([part for part in space.spaces.items() if part[0] != _MASK])
            try:
                observed.append(ObservationSpace.of(space))
                acted.append(ActionSpace.of(env.action_space[agent]))  # type: ignore[index]
                if masks[-1] and acted[-1].continuous:
                    raise ParamsError(f"its observations bring an action_mask {NO_MASK}")
            except ParamsError as error:
                text = str(error).removeprefix("env.id: ")
                raise ParamsError(f"env.id: agent {agent!r}: {text}") from None
        found = cls(env.ids, tuple(observed), tuple(acted), tuple(masks))
        found._refuse_unlike()
        return found

    def _refuse_unlike(self) -> None:
        kinds = [action.kind for action in self.actions]
        if "mixed" in kinds:
            raise ParamsError(
                f"env.id: the actions of agent {self.ids[kinds.index('mixed')]!r} are a Dict or Tuple, which is served "
                "for single agents alone: wrap the environment so that they are of one kind"
            )
        if len({*kinds}) > 1:
            listed = ", ".join(f"{kind} of {agent!r}" for agent, kind in zip(self.ids, kinds, strict=True))
            raise ParamsError(
                f"env.id: the agents' actions are of unlike kinds ({listed}), which is not served: wrap the "
                "environment so that all are of one kind"
            )
        if kinds[0] in ("multidiscrete", "multibinary"):
            for agent, action in zip(self.ids, self.actions, strict=True):
                if action.choices != self.actions[0].choices:
                    raise ParamsError(
                        f"env.id: the agents' {kinds[0]} actions are unlike ({[*self.actions[0].choices]} choices of "
                        f"{self.ids[0]!r}, {[*action.choices]} of {agent!r}), which is not served: only Discrete and "
                        "Box actions may be unlike"
                    )
        for agent, space in zip(self.ids, self.observations, strict=True):
            if (space.images or self.observations[0].images) and space != self.observations[0]:
                raise ParamsError(
                    f"env.id: the agents {self.ids[0]!r} and {agent!r} see images that are unlike, or one sees none, "
                    "which is not served: only vectors may be unlike"
                )

    @cached_property
    def agents(self) -> tuple[str, ...]:
        return tuple(map(str, self.ids))

    @cached_property
    def observation(self) -> ObservationSpace:
        """The observation space that fits every agent. If all agents have the same space, it is that space. Otherwise
        it is a space of vectors, as long as the longest observation of any agent."""
        if len({*self.observations}) == 1:
            return self.observations[0]
        return ObservationSpace.vector(max(space.size for space in self.observations))

    @cached_property
    def action(self) -> ActionSpace:
        """The action space that fits every agent. Its width is that of the agent with the most actions."""
        kind, size = self.actions[0].kind, max(action.size for action in self.actions)
        if kind == "continuous":
            return ActionSpace(kind, (size,), bounds=(np.full(size, -1.0), np.ones(size)))
        choices = (size,) if kind == "discrete" else self.actions[0].choices
        return ActionSpace(kind, () if kind == "discrete" else (len(choices),), choices, (0,) * len(choices))

    @cached_property
    def spaces(self) -> Spaces:
        one, action = self.observation, self.action
        sizes = [tuple(space.size for space in spaces) for spaces in (self.observations, self.actions)]
        team = Team(self.agents, *sizes)
        common = tuple(
            part for part in self.observations[0].one_hot if all(part in each.one_hot for each in self.observations)
        )
        images, kind = one.images, action.kind
        return Spaces(one.size, action.size, action.continuous, images, kind, action.choices, common, team=team)

    @cached_property
    def free(self) -> npt.NDArray[np.bool_]:
        """Which discrete actions each of the K agents has, `[K, A]` bool.

        `A` is the largest number of actions that an agent has. For other action spaces, such as a Box, all are True.
        """
        free = np.ones((len(self.ids), self.action.size), np.bool_)
        if self.action.kind == "discrete":
            free[:] = np.arange(self.action.size) < np.array([action.size for action in self.actions])[:, None]
        return free

    @cached_property
    def first(self) -> npt.NDArray[np.bool_]:
        """The action mask of an absent agent, `[A]` bool.

        For discrete actions, only the first choice of each is legal. If actions are a Box, all entries are True; if
        they are bits, all are False.
        """
        first = np.ones(self.action.size, np.bool_)
        if self.action.kind != "continuous":
            first[:] = False
        if self.action.kind in ("discrete", "multidiscrete"):
            first[np.cumsum((0, *self.action.choices[:-1]))] = True
        return first

    @property
    def masked(self) -> bool:
        """Whether some actions can be illegal, because an agent's observation has a mask or an agent has fewer actions
        than others."""
        return any(self.masks) or not bool(self.free.all())

    def legal(self, alive: npt.NDArray[np.bool_], given: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.bool_]:
        """Return which of A actions are legal for each of the K agents in n environments, `[n, K, A]` bool.

        Args:
            alive: `[n, K]`, True for the agents that act. For the other agents, only the first action is legal.
            given: `[n, K, A]`, the environment's own masks. If None, all actions of an agent that acts are legal,
                but not the padding of an agent with fewer than A actions.
        """
        return np.where(alive[:, :, None], self.free if given is None else given, self.first)

    def obs(self, observed: Mapping[Any, Any], alive: Sequence[bool] | npt.NDArray[np.bool_]) -> Any:
        """Convert the observations of K agents, a dictionary by agent, to an array `[K, O]` float32 with O numbers
        each, with zeros for agents that are not `alive` `[K]`.

        Raises:
            ValueError: an observation is missing or does not fit. The error's text continues a sentence
                such as "The environment returned".
        """
        row = np.zeros((len(self.ids), self.observation.size), np.float32)
        for place, (agent, space) in enumerate(zip(self.ids, self.observations, strict=True)):
            if alive[place]:
                if agent not in observed:
                    raise ValueError(f"no observation of agent {agent!r}, which is alive")
                try:
                    row[place, : space.size] = space.row(observed[agent])
                except ValueError as error:
                    raise ValueError(f"of agent {agent!r} {error}") from error
        return row

    def agent(self, key: Any) -> Any:
        """Return the id that an agent has in the environment. `key` is this id, or the id as text.

        Raises:
            UsageError: there is no such agent.
        """
        for agent, name in zip(self.ids, self.agents, strict=True):
            if key == agent or str(key) == name:
                return agent
        names = ", ".join(self.agents)
        raise UsageError(f"there is no agent {key!r}{did_you_mean(str(key), self.agents)} (there are {names})")

    def situation(self, obs: Mapping[Any, Any], mask: Mapping[Any, Any] | None = None) -> Situation:
        """Convert dictionaries of observations and of action masks by agent to arrays `[n, K, …]`. Each of the K agents
        has a single observation or a batch of n; a mask of A actions is `[A]` or `[n, A]`.

        If an agent is not in `mask`, its mask may also be part of its observation. An agent without a mask may take all
        its actions. An agent that is not in `obs` is absent.

        Raises:
            UsageError: there is no such agent, or a shape does not fit.
        """
        if not isinstance(obs, Mapping) or not obs:
            raise UsageError("obs is no dictionary of observations by agent: pass what the environment gives")
        given, masks = ({self.agent(key): value for key, value in x.items()} for x in (obs, mask or {}))
        read: dict[int, tuple[Any, bool]] = {}
        for place, agent in enumerate(self.ids):
            if agent in given:
                seen = given[agent]
                if self.masks[place] and isinstance(seen, Mapping):
                    masks.setdefault(agent, seen.get(_MASK))
                    seen = {name: part for name, part in seen.items() if name != _MASK}
                try:
                    read[place] = self.observations[place].read(seen)
                except ValueError as error:
                    raise UsageError(f"obs[{agent!r}] holds {error}; pass what the environment gives") from error
        sizes, single = {len(rows) for rows, _ in read.values()}, all(one for _, one in read.values())
        if len(sizes) != 1:
            raise UsageError(f"obs holds batches of unlike lengths ({', '.join(map(str, sorted(sizes)))})")
        (n,), k = sizes, len(self.ids)
        rows, alive = np.zeros((n, k, self.observation.size), np.float32), np.zeros((n, k), np.bool_)
        legal = np.broadcast_to(self.free, (n, *self.free.shape)).copy()
        for place, (seen, _) in read.items():
            rows[:, place, : seen.shape[1]], alive[:, place] = seen, True
            if (own := masks.get(self.ids[place])) is not None:
                legal[:, place, : self.actions[place].size] = self._mask(place, own, n)
        return Situation(rows, alive, self.legal(alive, legal), single)

    def _mask(self, place: int, mask: Any, n: int) -> npt.NDArray[np.bool_]:
        agent, action = self.ids[place], self.actions[place]
        try:
            own = np.asarray(action.flat_mask(mask)).astype(np.bool_)
        except ValueError as error:
            raise UsageError(f"the mask of {agent!r} is {error}") from error
        if own.shape not in ((action.size,), (n, action.size)):
            raise UsageError(
                f"the mask of {agent!r} has shape {own.shape}; expected [{action.size}] or [{n}, {action.size}]"
            )
        if not action.possible(own.reshape(-1, action.size)).all():
            raise UsageError(f"the mask of {agent!r} leaves no legal action: allow at least one")
        return own

    def own(self, actions: npt.NDArray[Any]) -> dict[Any, Any]:
        """Convert one action of each of the K agents, `[K, …]` in the algorithm's encoding, to the actions that the
        environment takes, by the agent's id."""
        return {agent: own[0] for agent, own in zip(self.ids, self.own_each(actions[None]), strict=True)}

    def own_each(self, actions: npt.NDArray[Any]) -> list[Any]:
        """Convert the actions of K agents in n environments, `[n, K, …]`, from the algorithm's encoding to the
        environment's own.

        The result is a list of K items, the actions `[n, …]` of each agent: a list of integers if actions are discrete,
        else an array.
        """
        parts = [(space, actions[:, place]) for place, space in enumerate(self.actions)]
        if self.action.kind == "discrete":
            return [space.own(part).tolist() for space, part in parts]
        return [space.own(part[:, : space.size] if self.action.continuous else part) for space, part in parts]

    def to_json(self) -> dict[str, Any]:
        """Return the spaces as JSON data for an exported policy's description; `from_json` reads these data.

        Agents' ids that are neither texts nor integers become texts.
        """
        parts = zip(self.ids, self.observations, self.actions, self.masks, strict=True)
        return {
            "team": [
                {"id": agent if isinstance(agent, str | int) else str(agent), "masked": masked}
                | seen.to_json()
                | done.to_json()
                for agent, seen, done, masked in parts
            ]
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TeamSpace:
        """Build the spaces from JSON data that `to_json` returned.

        Raises:
            KeyError, TypeError, ValueError: the data does not have that form.
        """
        team = data["team"]
        observations, actions = [ObservationSpace.from_json(x) for x in team], [ActionSpace.from_json(x) for x in team]
        ids, masks = tuple(x["id"] for x in team), tuple(bool(x["masked"]) for x in team)
        found = cls(ids, tuple(observations), tuple(actions), masks)
        if not ids or len({*found.agents}) < len(ids):
            raise ValueError(f"a team of the agents {[*ids]}, which need a name each")
        try:
            found._refuse_unlike()
        except ParamsError as error:
            raise ValueError(str(error)) from error
        return found


def read_spaces(env: gymnasium.Env[Any, Any]) -> tuple[Spaces, dict[str, Any]]:
    """Return an environment's spaces in the form that algorithms use, and as JSON data for an exported policy's
    description.

    Raises:
        ParamsError: the spaces are not supported.
    """
    if isinstance(env, TeamEnv):
        team = TeamSpace.of(env)
        return team.spaces, team.to_json()
    action, observation = ActionSpace.of(env.action_space), ObservationSpace.of(env.observation_space)
    return action.spaces(observation), action.to_json() | observation.to_json()
