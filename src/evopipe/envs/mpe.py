"""Four of the multi-agent particle environments of `mpe2`, as tensors: all rows are stepped in a few operators.

Agents are discs that accelerate in a plane; landmarks stand still. The state of a row lies in columns `[S, R]` float64,
one contiguous row of memory for each quantity (see `tensors`): positions of what moves (every x, then every y),
velocities, positions of landmarks and, if the environment has them, what the speaker said and which landmark is the
goal. Actions are int64 `[R, K]`, or float32 `[R, K, A]` in [0, 1]; observations are `[R, K, O]` float32, padded with 0
where an agent has fewer numbers. Every number is computed in mpe2's order and precision by element-wise operators, and
sums are taken term by term: a row has the same bits wherever it stands and whatever stands beside it. It differs from
mpe2 by no more than the libraries' `exp` and `log1p` do, which are within a unit in the last place of each other. Two
discs at the very same point do not push each other here; in mpe2 both become NaN.

The fields are the arguments of mpe2's functions, with their defaults. `dynamic_rescaling` only changes pictures and
`benchmark_data` only extra information, so neither has an effect here. A `curriculum` stays in its first stage, as it
does in mpe2 until a program advances it.

Sources: `mpe2` 1.1.1; Lowe et al., "Multi-agent actor-critic for mixed cooperative-competitive environments", 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch
from pydantic import Field

from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.envs.team import TeamSpace
from evopipe.schema.declare import Schema

if TYPE_CHECKING:
    from torch import Tensor  # `evopipe fetch` and `buffer` do without torch

_PUSHES = 5  # actions of an agent that moves: none, left, right, down, up
_SECONDS, _KEPT = 0.1, 0.75  # of a step; share of a velocity that is left after it
_STIFFNESS, _SOFTNESS = 100.0, 1e-3  # of a contact
_POINT = 1e-300  # shorter than any distance

_Outcome: TypeAlias = "tuple[Tensor, Tensor, Tensor]"
"""The next columns `[S, R]` float64, rewards `[R, K]` float32, and terminations `[R, K]`."""


class _Arguments(Schema):
    """The arguments that all these environments take, under the names of mpe2."""

    max_cycles: int = Field(25, ge=1)
    continuous_actions: bool = False
    dynamic_rescaling: bool = True
    benchmark_data: bool = False

    def _space(self, names: list[str], observations: list[int], actions: list[int] | None = None) -> TeamSpace:
        """Return the space of agents with these numbers of observed values and of action values or choices."""
        sizes = actions or [_PUSHES] * len(names)
        each = [
            ActionSpace("continuous", (n,), bounds=(np.zeros(n), np.ones(n)))
            if self.continuous_actions
            else ActionSpace("discrete", (), (n,), (0,))
            for n in sizes
        ]
        seen = tuple(map(ObservationSpace.vector, observations))
        return TeamSpace(tuple(names), seen, tuple(each), (False,) * len(names))


class _Partial(_Arguments):
    """The arguments of environments in which an agent may see only its nearest neighbours; None: all of them."""

    num_agent_neighbors: int | None = Field(None, ge=1)
    num_landmark_neighbors: int | None = Field(None, ge=1)

    def _slots(self, others: int, landmarks: int) -> tuple[int, int]:
        """Return how many other agents and landmarks an observation holds, out of those that exist."""
        return self.num_agent_neighbors or others, self.num_landmark_neighbors or landmarks


class _Spread(_Partial):
    """The environment `simple_spread`: as many agents as landmarks shall cover all landmarks and not collide."""

    N: int = Field(3, ge=1)
    local_ratio: float = Field(0.5, ge=0.0, le=1.0)
    curriculum: bool = False
    terminate_on_success: bool = False

    width: ClassVar[float] = 0.3  # of an agent
    covered: ClassVar[float] = 0.1

    @property
    def draws(self) -> int:
        return 4 * self.N

    @property
    def space(self) -> TeamSpace:
        others, landmarks = self._slots(self.N - 1, self.N)
        return self._space([f"agent_{i}" for i in range(self.N)], [4 + 2 * landmarks + 4 * others] * self.N)

    def start(self, u: Tensor) -> Tensor:
        place = u * 2.0 - 1.0
        agents, landmarks = place.chunk(2)
        return torch.cat((agents, torch.zeros_like(agents), landmarks))

    def advance(self, columns: Tensor, action: Tensor) -> _Outcome:
        parts = _parts(columns, self.N, self.N)
        force = _pushed(_push(action) * 5.0, parts.position, self.width)
        following, (position, _, landmarks, _) = _moved(parts, force)
        nearest = _length(_from(position, landmarks)).amin(0)  # [N, R], of each landmark
        reward = torch.zeros_like(position[0])
        if not self.curriculum:
            touching = _length(_from(position, position)) < self.width
            reward = 1.0 - touching.double().sum(1)  # an agent touches itself
        reward = -reduce(torch.add, nearest) * (1 - self.local_ratio) + reward * self.local_ratio
        success = (nearest < self.covered).all(0) if self.terminate_on_success else None
        return following, *_ends(reward, success)

    def observe(self, columns: Tensor) -> Tensor:
        position, velocity, landmarks, _ = _parts(columns, self.N, self.N)
        near = _nearest(_others(_from(position, position)), self.num_agent_neighbors)
        return _rows(
            velocity[:, :, None],
            position[:, :, None],
            _nearest(_from(position, landmarks), self.num_landmark_neighbors),
            near,
            torch.zeros_like(near),  # what they say: nothing
        )


class _SpeakerListener(_Arguments):
    """The environment `simple_speaker_listener`: a speaker that cannot move knows which landmark is the goal, and tells
    it by a word; a listener that does not know must go there."""

    draws: ClassVar[int] = 9
    words: ClassVar[int] = 3  # as many as landmarks

    @property
    def space(self) -> TeamSpace:
        return self._space(["speaker_0", "listener_0"], [self.words, 11], [self.words, _PUSHES])

    def start(self, u: Tensor) -> Tensor:
        place, silence = u[:-1] * 2.0 - 1.0, torch.zeros_like(u[: self.words])
        return torch.cat((place[:2], torch.zeros_like(place[:2]), place[2:], silence, _drawn(u, self.words)))

    def advance(self, columns: Tensor, action: Tensor) -> _Outcome:
        parts = _parts(columns, 1, self.words)
        following, (position, _, landmarks, rest) = _moved(parts, _push(action[:, 1:]) * 5.0)
        said = action[:, 0, : self.words].T if self.continuous_actions else action[:, 0] == self._each(columns)
        following[-self.words - 1 : -1] = said
        square = (position - _goal(landmarks, rest[-1]))[:, 0].square()
        return following, *_ends(-(square[0] + square[1]).expand(2, -1), None)

    def observe(self, columns: Tensor) -> Tensor:
        position, velocity, landmarks, rest = _parts(columns, 1, self.words)
        obs = columns.new_zeros((columns.shape[1], 2, 11), dtype=torch.float32)
        obs[:, 0, : self.words] = torch.where(rest[-1] == self._each(columns), 0.65, 0.15).T  # the goal's colour
        seen = _rows(velocity[:, :, None], _from(position, landmarks))
        obs[:, 1, :8] = seen[:, 0]
        obs[:, 1, 8:] = rest[:-1].T
        return obs

    def _each(self, columns: Tensor) -> Tensor:
        """The words, as landmarks, one a row: `[3, 1]`."""
        return torch.arange(self.words, device=columns.device)[:, None]


class _Tag(_Partial):
    """The environment `simple_tag`: slow predators (adversaries) chase quick prey (good agents) between obstacles."""

    num_good: int = Field(1, ge=1)
    num_adversaries: int = Field(3, ge=1)
    num_obstacles: int = Field(2, ge=0)
    curriculum: bool = False
    terminate_on_success: bool = False

    sizes: ClassVar[tuple[float, float, float]] = (0.075, 0.05, 0.2)  # a predator's, a prey's, an obstacle's radius
    thrusts: ClassVar[tuple[float, float]] = (3.0, 4.0)
    speeds: ClassVar[tuple[float, float]] = (1.0, 1.3)
    first_stage: ClassVar[float] = 0.5  # of the curriculum: the share of its speed that a prey has

    @property
    def draws(self) -> int:
        return 2 * (self._agents + self.num_obstacles)

    @property
    def space(self) -> TeamSpace:
        others, landmarks = self._slots(self._agents - 1, self.num_obstacles)
        predators, prey = self.num_adversaries, self.num_good
        width = 4 + 2 * (landmarks + others + (self.num_agent_neighbors or prey))
        shown = width if self.num_agent_neighbors else width - 2  # a prey's own velocity is none of the others'
        return self._space(_names(predators, prey), [width] * predators + [shown] * prey)

    @property
    def _agents(self) -> int:
        return self.num_adversaries + self.num_good

    def start(self, u: Tensor) -> Tensor:
        agents, obstacles = u[: 2 * self._agents] * 2.0 - 1.0, u[2 * self._agents :] * 1.8 - 0.9
        return torch.cat((agents, torch.zeros_like(agents), obstacles))

    def advance(self, columns: Tensor, action: Tensor) -> _Outcome:
        predators, share = self.num_adversaries, self.first_stage if self.curriculum else 1.0
        parts = _parts(columns, self._agents, self.num_obstacles)
        size = self._each(columns, *self.sizes)
        thrust = self._each(columns, self.thrusts[0], self.thrusts[1] * share)
        fastest = self._each(columns, self.speeds[0], self.speeds[1] * share)
        bodies = torch.cat((parts.position, parts.landmarks), 1)
        force = _pushed(_push(action) * thrust, bodies, size[: self._agents, None] + size)
        following, (position, *_) = _moved(parts, force, fastest)
        met = _length(_from(position[:, predators:], position[:, :predators])) < self.sizes[0] + self.sizes[1]
        caught = met.double().sum(1) * 10.0  # [prey, R]
        beyond = self._beyond(position[:, predators:])
        reward = torch.cat((caught.sum(0).expand(predators, -1), -caught - beyond[0] - beyond[1]))
        success = met.any(1).all(0) if self.terminate_on_success else None
        return following, *_ends(reward, success)

    def observe(self, columns: Tensor) -> Tensor:
        position, velocity, landmarks, _ = _parts(columns, self._agents, self.num_obstacles)
        near = _others(_from(position, position))
        good, predators = velocity[:, None, self.num_adversaries :], self.num_adversaries
        if self.num_agent_neighbors:
            moving = torch.cat((torch.zeros_like(velocity[:, None, :predators]), good), 2)
            shown = _nearest(near, self.num_agent_neighbors, _others(moving.expand(-1, self._agents, -1, -1)))
        else:
            prey = _padded(_others(good.expand(-1, self.num_good, -1, -1)), self.num_good)
            shown = torch.cat((good.expand(-1, predators, -1, -1), prey), 1)
        fixed = _nearest(_from(position, landmarks), self.num_landmark_neighbors)
        near = _nearest(near, self.num_agent_neighbors)
        return _rows(velocity[:, :, None], position[:, :, None], fixed, near, shown)

    def _each(self, columns: Tensor, *values: float) -> Tensor:
        """What every predator, prey and obstacle has `[bodies, 1]`, of agents alone where two values are given."""
        counts = (self.num_adversaries, self.num_good, self.num_obstacles)
        return torch.cat([columns.new_full((n, 1), value) for n, value in zip(counts, values, strict=False)])

    def _beyond(self, position: Tensor) -> Tensor:
        """What a prey pays for going far away: `[2, prey, R]`."""
        far = position.abs()
        outside = (far * 2.0 - 2.0).exp().clamp(max=10.0)
        near = ((far - 0.9) * 10.0).masked_fill(far < 0.9, 0.0)
        return torch.where(far < 1.0, near, outside)


class _Adversary(_Partial):
    """The environment `simple_adversary`: good agents know which landmark is the goal, and must cover it without
    telling the adversary, which does not know."""

    N: int = Field(2, ge=1)

    @property
    def draws(self) -> int:
        return 2 * (2 * self.N + 1) + 1

    @property
    def space(self) -> TeamSpace:
        width = 2 * sum(self._slots(self.N, self.N))
        return self._space(_names(1, self.N), [width] + [width + 2] * self.N)

    def start(self, u: Tensor) -> Tensor:
        place = u[:-1] * 2.0 - 1.0
        agents, landmarks = place.split((2 * self.N + 2, 2 * self.N))
        return torch.cat((agents, torch.zeros_like(agents), landmarks, _drawn(u, self.N)))

    def advance(self, columns: Tensor, action: Tensor) -> _Outcome:
        parts = _parts(columns, self.N + 1, self.N)
        following, (position, _, landmarks, rest) = _moved(parts, _push(action) * 5.0)
        distance = _length(position - _goal(landmarks, rest[0]))  # [K, R]
        good = -distance[1:].amin(0) + distance[0]
        return following, *_ends(torch.cat((-distance[:1], good.expand(self.N, -1))), None)

    def observe(self, columns: Tensor) -> Tensor:
        position, _, landmarks, rest = _parts(columns, self.N + 1, self.N)
        near = _nearest(_others(_from(position, position)), self.num_agent_neighbors)
        both = torch.cat((_nearest(_from(position, landmarks), self.num_landmark_neighbors), near), 2)
        goal = (_goal(landmarks, rest[0]) - position)[:, 1:, None]
        good = torch.cat((goal, both[:, 1:]), 2)
        return _rows(torch.cat((_padded(both[:, :1], good.shape[2]), good), 1))


OFFERED: dict[str, Callable[..., Any]] = {
    spelling: scenario
    for name, scenario in (
        ("simple_adversary_v3", _Adversary),
        ("simple_speaker_listener_v4", _SpeakerListener),
        ("simple_spread_v3", _Spread),
        ("simple_tag_v3", _Tag),
    )
    for spelling in (name, f"mpe2.{name}:parallel_env")
}


class _Parts(NamedTuple):
    """What columns hold, of `M` that move and `L` landmarks."""

    position: Tensor  # [2, M, R]
    velocity: Tensor  # [2, M, R]
    landmarks: Tensor  # [2, L, R]
    rest: Tensor  # [S - 4 M - 2 L, R]


def _parts(columns: Tensor, movers: int, landmarks: int) -> _Parts:
    position, velocity, fixed, rest = columns.tensor_split((2 * movers, 4 * movers, 4 * movers + 2 * landmarks))
    shape = (2, movers)
    return _Parts(position.unflatten(0, shape), velocity.unflatten(0, shape), fixed.unflatten(0, (2, landmarks)), rest)


def _moved(parts: _Parts, force: Tensor, fastest: Tensor | None = None) -> tuple[Tensor, _Parts]:
    """Move what moves by its velocity, and change that by a force `[2, M, R]`: the next columns, and their parts."""
    position = parts.position + parts.velocity * _SECONDS
    velocity = parts.velocity * _KEPT + force * _SECONDS
    if fastest is not None:
        speed = _length(velocity)
        velocity = torch.where(speed > fastest, velocity / speed * fastest, velocity)
    held = parts.landmarks.flatten(0, 1)
    following = torch.cat((position.flatten(0, 1), velocity.flatten(0, 1), held, parts.rest))
    return following, _Parts(position, velocity, parts.landmarks, parts.rest)


def _push(action: Tensor) -> Tensor:
    """The directions `[2, M, R]` float64 in which agents push: from indices `[R, M]`, or shares `[R, M, A]`."""
    if action.dim() == 2:
        each = torch.arange(1, _PUSHES, device=action.device)[:, None, None]
        ways = (each == action.T).to(torch.float64)
    else:
        ways = action.permute(2, 1, 0)[1:_PUSHES]
    return (ways[1::2] - ways[::2]).to(torch.float64, memory_format=torch.contiguous_format)


def _pushed(force: Tensor, bodies: Tensor, touch: Tensor | float) -> Tensor:
    """Add to the forces `[2, M, R]` on agents, the first `M` bodies, those by which other bodies `[2, C, R]` push them
    away, from the distance on at which two touch, `[M, C, 1]` or of all."""
    away = bodies[:, : force.shape[1], None] - bodies[:, None]  # [2, M, C, R], 0 of a body and itself
    distance = _length(away)
    overlap = (distance - touch) / -_SOFTNESS
    depth = (overlap.clamp(min=0.0) + (-overlap.abs()).exp().log1p()) * _SOFTNESS
    for push in (away * _STIFFNESS / distance.clamp(min=_POINT) * depth).unbind(2):
        force = push + force
    return force


def _from(origin: Tensor, places: Tensor) -> Tensor:
    """Places `[2, n, R]` as each origin `[2, m, R]` sees them: `[2, m, n, R]`."""
    return places[:, None] - origin[:, :, None]


def _length(x: Tensor) -> Tensor:
    """`[2, …]` → `[…]`."""
    square = x.square()
    return (square[0] + square[1]).sqrt()


def _others(x: Tensor) -> Tensor:
    """`[2, n, n, R]` without the diagonal: `[2, n, n - 1, R]`."""
    n, rows = x.shape[2:]
    apart = x.reshape(2, n * n, rows)[:, 1:].view(2, n - 1, n + 1, rows)[:, :, :n]
    return apart.reshape(2, n, n - 1, rows)


def _nearest(relative: Tensor, count: int | None, values: Tensor | None = None) -> Tensor:
    """Of bodies `[2, K, n, R]`, as agents see them, the `count` nearest first, 0 where there are no more: `[2, K,
    count, R]`; None: all of them in their own order. Values are what to return of them, by default where they are."""
    values = relative if values is None else values
    if count is None:
        return values
    order = _length(relative).argsort(dim=1, stable=True)[:, :count]
    return _padded(values.gather(2, order.expand(2, -1, -1, -1)), count)


def _padded(slots: Tensor, count: int) -> Tensor:
    """`[2, K, n, R]` with zeros behind: `[2, K, count, R]`."""
    return torch.nn.functional.pad(slots, (0, 0, 0, count - slots.shape[2])) if slots.shape[2] < count else slots


def _goal(landmarks: Tensor, number: Tensor) -> Tensor:
    """The landmark `[2, 1, R]` of each row's number `[R]`."""
    return landmarks.gather(1, number.long().expand(2, 1, -1))


def _drawn(u: Tensor, count: int) -> Tensor:
    """One of `count` landmarks `[1, R]`, from the last draw."""
    return (u[-1:] * count).floor()


def _rows(*slots: Tensor) -> Tensor:
    """Put what agents see, pairs of numbers `[2, K, n, R]` each, one after another: `[R, K, O]` float32."""
    seen = torch.cat(slots, 2).permute(3, 1, 2, 0)
    return seen.to(torch.float32, memory_format=torch.contiguous_format).flatten(2)


def _ends(reward: Tensor, success: Tensor | None) -> tuple[Tensor, Tensor]:
    """Rewards `[R, K]` float32 of `[K, R]`, and terminations `[R, K]`, of all agents where success `[R]` ends it."""
    rewards = reward.T.to(torch.float32, memory_format=torch.contiguous_format)
    if success is None:
        return rewards, torch.zeros_like(rewards, dtype=torch.bool)
    return rewards, success[:, None].repeat(1, rewards.shape[1])


def _names(adversaries: int, good: int) -> list[str]:
    return [f"adversary_{i}" for i in range(adversaries)] + [f"agent_{i}" for i in range(good)]
