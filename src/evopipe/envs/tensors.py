"""Environments as tensors, on any device: Gymnasium's classic control, and teams of `mpe2`, see `mpe`.

The state of `R` rows is one tensor and a step is arithmetic on it, so a loop that learns on a device never leaves it.
`reset_where`, `step` and `obs` never make the host wait, and change tensors in place, so a CUDA graph can hold them.

Each environment has three functions on columns `[S, R]`: the physical state of `R` rows in float64, one contiguous row
of memory for each quantity. `start` makes them from uniform numbers `[draws, R]` in [0, 1). `advance` takes a step with
the environment's own actions, int64 `[R]`, or float32 `[R, A]` within its bounds. `observe` returns observations
`[R, O]` float32. For a team, all but the columns has an axis `K` behind `R`. The fields are the arguments of
Gymnasium's constructor, with its defaults. Every number is computed in Gymnasium's order and precision, by element-wise
operators (no fused multiply-add): a row has the same bits wherever it stands and whatever stands beside it.

Sources: `gymnasium.envs.classic_control`, which follows Barto, Sutton & Anderson (1983) for CartPole, Sutton (1996) for
Acrobot, and Moore (1990) for MountainCar.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import ValidationError

from evopipe.envs.make import close, make_env, refuse
from evopipe.envs.mpe import OFFERED as TEAMS
from evopipe.envs.rows import Actions, Begun, Ints, RowStep, Upcoming
from evopipe.envs.single import OneRow
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.envs.team import TeamSpace
from evopipe.envs.team_rows import team_step
from evopipe.errors import ParamsError, did_you_mean
from evopipe.rng import Purpose, Stream
from evopipe.schema.declare import Schema
from evopipe.schema.env import EnvConfig

_OF_MAKE = "max_episode_steps"  # the one argument that `gymnasium.make` keeps for itself

_Made = TypeVar("_Made")
_Advance: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor]"
"""The next columns `[S, R]` float64, rewards `[R]` of any precision, and terminations `[R]`."""


class _CartPole(Schema):
    """Keep a pole upright on a cart: state x, ẋ, θ, θ̇."""

    sutton_barto_reward: bool = False

    draws: ClassVar[int] = 4
    gravity: ClassVar[float] = 9.8
    pole_mass: ClassVar[float] = 0.1
    total_mass: ClassVar[float] = 1.1
    half_length: ClassVar[float] = 0.5
    force: ClassVar[float] = 10.0
    seconds: ClassVar[float] = 0.02
    farthest: ClassVar[float] = 2.4
    steepest: ClassVar[float] = 12 * 2 * math.pi / 360

    def start(self, u: torch.Tensor) -> torch.Tensor:
        return u * 0.1 - 0.05

    def advance(self, columns: torch.Tensor, action: torch.Tensor) -> _Advance:
        _, speed, angle, spin = columns.unbind()
        cos, sin = angle.cos(), angle.sin()
        moment = self.pole_mass * self.half_length
        push = (action * (2 * self.force) - self.force + spin.square() * moment * sin) / self.total_mass
        inertia = self.half_length * (4.0 / 3.0 - cos.square() * self.pole_mass / self.total_mass)
        spin_rate = (sin * self.gravity - cos * push) / inertia
        rates = torch.stack((speed, push - spin_rate * moment * cos / self.total_mass, spin, spin_rate))
        following = columns + rates * self.seconds
        terminated = (following[0].abs() > self.farthest) | (following[2].abs() > self.steepest)
        reward = -terminated.float() if self.sutton_barto_reward else torch.ones_like(push, dtype=torch.float32)
        return following, reward, terminated

    def observe(self, columns: torch.Tensor) -> torch.Tensor:
        return columns.T.to(torch.float32, memory_format=torch.contiguous_format)


class _Pendulum(Schema):
    """Swing a pendulum up by torque: state θ (0 is up), θ̇."""

    g: float = 10.0

    draws: ClassVar[int] = 2
    fastest: ClassVar[float] = 8.0
    seconds: ClassVar[float] = 0.05

    def start(self, u: torch.Tensor) -> torch.Tensor:
        angle, spin = u.unbind()
        return torch.stack((angle * (2 * math.pi) - math.pi, spin * 2.0 - 1.0))

    def advance(self, columns: torch.Tensor, action: torch.Tensor) -> _Advance:
        angle, spin = columns.unbind()
        torque = action[:, 0]  # its products are rounded to float32, as Gymnasium's are
        off = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        cost = off.square() + spin.square() * 0.1 + torque.square() * 0.001
        spin = spin + (angle.sin() * (3 * self.g / 2) + torque * 3.0) * self.seconds
        spin = spin.clamp(-self.fastest, self.fastest)
        following = torch.stack((angle + spin * self.seconds, spin))
        return following, -cost, torch.zeros_like(cost, dtype=torch.bool)

    def observe(self, columns: torch.Tensor) -> torch.Tensor:
        angle, spin = columns.unbind()
        return torch.stack((angle.cos(), angle.sin(), spin), -1).float()


class _Acrobot(Schema):
    """Swing two links, each of 1 m and 1 kg, above a line by torque at the joint between: state θ₁, θ₂, θ̇₁, θ̇₂."""

    draws: ClassVar[int] = 4
    gravity: ClassVar[float] = 9.8
    fastest: ClassVar[tuple[float, float]] = (4 * math.pi, 9 * math.pi)
    seconds: ClassVar[float] = 0.2

    def start(self, u: torch.Tensor) -> torch.Tensor:
        return u * 0.2 - 0.1

    def advance(self, columns: torch.Tensor, action: torch.Tensor) -> _Advance:
        after = self._integrate(columns, action - 1)
        angles = after[:2] - (after[:2] / (2 * math.pi)).round() * (2 * math.pi)  # into [-π, π]
        first, second = (after[2 + i].clamp(-limit, limit) for i, limit in enumerate(self.fastest))
        terminated = -angles[0].cos() - (angles[1] + angles[0]).cos() > 1.0
        return torch.cat((angles, first[None], second[None])), terminated.float() - 1.0, terminated

    def observe(self, columns: torch.Tensor) -> torch.Tensor:
        cos, sin = columns[:2].cos(), columns[:2].sin()
        return torch.stack((cos[0], sin[0], cos[1], sin[1], columns[2], columns[3]), -1).float()

    def _integrate(self, columns: torch.Tensor, torque: torch.Tensor) -> torch.Tensor:
        """One step of the fourth-order Runge-Kutta method."""
        half = self.seconds / 2.0
        k1 = self._rates(columns, torque)
        k2 = self._rates(columns + k1 * half, torque)
        k3 = self._rates(columns + k2 * half, torque)
        k4 = self._rates(columns + k3 * self.seconds, torque)
        return columns + (k1 + k2 * 2.0 + k3 * 2.0 + k4) * (self.seconds / 6.0)

    def _rates(self, columns: torch.Tensor, torque: torch.Tensor) -> torch.Tensor:
        """Derivatives of the state by time `[4, R]`, in the version of Sutton & Barto's book. Each link has its centre
        of mass in the middle and a moment of inertia of 1 kg m²."""
        angle1, angle2, spin1, spin2 = columns.unbind()
        cos, sin = angle2.cos(), angle2.sin()
        d1, d2 = cos + 3.5, cos * 0.5 + 1.25
        phi2 = (angle1 + angle2).sin() * (0.5 * self.gravity)
        phi1 = angle1.sin() * (1.5 * self.gravity) + phi2 - (spin2 * 0.5 + spin1) * spin2 * sin
        rate2 = (d2 / d1 * phi1 + torque - spin1.square() * 0.5 * sin - phi2) / (1.25 - d2.square() / d1)
        rate1 = -(d2 * rate2 + phi1) / d1
        return torch.stack((spin1, spin2, rate1, rate2))


class _MountainCar(Schema):
    """Rock a car out of a valley, by pushing left, not at all, or right: state position, velocity."""

    goal_velocity: float = 0.0

    draws: ClassVar[int] = 1
    lowest: ClassVar[float] = -1.2
    highest: ClassVar[float] = 0.6
    fastest: ClassVar[float] = 0.07
    goal: ClassVar[float] = 0.5
    force: ClassVar[float] = 0.001
    gravity: ClassVar[float] = 0.0025

    def start(self, u: torch.Tensor) -> torch.Tensor:
        position = u * 0.2 - 0.6
        return torch.cat((position, torch.zeros_like(position)))

    def advance(self, columns: torch.Tensor, action: torch.Tensor) -> _Advance:
        position, velocity = columns.unbind()
        gain = (action - 1).double() * self.force - (position * 3.0).cos() * self.gravity
        position, velocity, terminated = self._roll(position, velocity, gain)
        return torch.stack((position, velocity)), torch.full_like(position, -1.0), terminated

    def observe(self, columns: torch.Tensor) -> torch.Tensor:
        return columns.T.to(torch.float32, memory_format=torch.contiguous_format)

    def _roll(
        self, position: torch.Tensor, velocity: torch.Tensor, gain: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Next position and velocity, and whether the goal is reached, all `[R]`; the left wall stops the car."""
        velocity = (velocity + gain).clamp(-self.fastest, self.fastest)
        position = (position + velocity).to(velocity.dtype).clamp(self.lowest, self.highest)
        velocity = velocity.masked_fill((position <= self.lowest) & (velocity < 0.0), 0.0)
        return position, velocity, (position >= self.goal) & (velocity >= self.goal_velocity)


class _MountainCarContinuous(_MountainCar):
    """The same with any push in [-1, 1], which costs. Gymnasium keeps this state in float32 from the first step on."""

    goal: ClassVar[float] = 0.45
    force: ClassVar[float] = 0.0015

    def advance(self, columns: torch.Tensor, action: torch.Tensor) -> _Advance:
        position, velocity = columns.unbind()
        push, thrice = action[:, 0], position * 3.0
        begun = position == position.float()  # an initial state is of float64, and so is what is computed from it
        slope = torch.where(begun, thrice.float().double(), thrice).cos() * self.gravity
        gain = push * self.force - slope.float()
        position, velocity, terminated = self._roll(position, velocity.float(), gain)
        reward = terminated * 100.0 - push.double().square() * 0.1
        return torch.stack((position, velocity)).double(), reward, terminated


OFFERED: dict[str, Callable[..., Any]] = {
    "Acrobot-v1": _Acrobot,
    "CartPole-v0": _CartPole,
    "CartPole-v1": _CartPole,
    "MountainCar-v0": _MountainCar,
    "MountainCarContinuous-v0": _MountainCarContinuous,
    "Pendulum-v1": _Pendulum,
}


class TensorStep(NamedTuple):
    """The results of one step of `n` environments as tensors. No later step overwrites the tensors.

    For a team of K agents every tensor is `[n, K, …]`, and the episodes of all agents end at the same time.

    Attributes:
        obs: `[n, O]` float32, the next observations of O numbers each; at the end of an episode its last one.
        reward: `[n]` float32, the rewards.
        terminated: `[n]` bool, whether the episode reached an end state, so that nothing is bootstrapped.
        truncated: `[n]` bool, whether the time limit cut the episode, so that the value of `obs` is bootstrapped.
    """

    obs: torch.Tensor  # [n, O] float32, the true next observation, also where the episode ended
    reward: torch.Tensor  # [n] float32
    terminated: torch.Tensor  # [n] bool
    truncated: torch.Tensor  # [n] bool, the time limit cut the episode: bootstrap from `obs`


class TensorPool:
    """A pool of `R` environments whose states are tensors on one device. After the end of an episode, the caller must
    reset the row with the next episode's seed.

    An episode depends only on its seed and its actions, not on other rows or earlier episodes.

    Args:
        cfg: the block `env` of `params.yaml`.
        rows: the number of environments, `R`.
        device: the device of the tensors.

    Attributes:
        actions: the action space, which converts actions.
        spaces: the widths and kinds of the spaces, as algorithms use them.
        team: the spaces of each agent, if there are several agents; else None.
        masked: whether the environment has action masks.
        reward_threshold: the return at which the environment counts as solved; None if it is not known.
        physics: `[R, S]` float64, the physical state of each environment as `S` numbers, zeros before the first reset.
            The tensor is never replaced.
        length: `[R]` int64, the steps of the running episodes. The tensor is never replaced.
        max_steps: the number of steps after which an episode is truncated.
        limit: `env.step_limit` if the environment declares no time limit of its own; else None.
        sound: whether the environment is evopipe's own, not a user's class; then all its numbers are finite.

    Raises:
        ParamsError: the environment is not offered as tensors, or does not take an argument of `env.kwargs`.
    """

    def __init__(self, cfg: EnvConfig, rows: int, device: torch.device) -> None:
        self.rows, self.device = rows, device
        self.reward_threshold: float | None = None
        self.team: TeamSpace | None = None
        self.limit: int | None = None
        self.sound = True
        self._dynamics: Any
        own = self._serve_team(cfg) if cfg.id in TEAMS else self._serve_single(cfg)
        self.masked = self.team is not None and self.team.masked
        self._first = torch.zeros(1, dtype=torch.int64, device=device)
        self._bounds = tuple(torch.from_numpy(bound).to(device) for bound in own.bounds or ())
        self.length = torch.zeros(rows, dtype=torch.int64, device=device)
        # [S, R]: arithmetic wants each quantity in one piece of memory.
        self._columns = torch.zeros_like(self._start(self.length))
        self.physics = self._columns.T

    def _serve_single(self, cfg: EnvConfig) -> ActionSpace:
        """An environment of Gymnasium, which says itself what its spaces are. Return that of its own actions."""
        own = cfg.id.partition(":")[2].isidentifier()
        env = make_env(cfg) if own or cfg.id in OFFERED else None
        if env is not None:
            close(env)
        if env is None or (own and not isinstance(env, OneRow)):
            names = [*OFFERED, *(name for name in TEAMS if ":" not in name)]
            raise ParamsError(
                f"env.backend: torch has no {cfg.id!r}{did_you_mean(cfg.id, names)}; it has {', '.join(names)}; "
                "`sync` serves all of Gymnasium's and PettingZoo's"
            )
        assert env.spec is not None
        self.limit = None if env.spec.max_episode_steps else cfg.step_limit
        self.max_steps, self.reward_threshold = env.spec.max_episode_steps or cfg.step_limit, env.spec.reward_threshold
        self.actions = ActionSpace.of(env.action_space)
        self.observation_space, self.observations = env.observation_space, ObservationSpace.of(env.observation_space)
        self.spaces = self.actions.spaces(self.observations)
        if isinstance(env, OneRow):
            self._dynamics, self.sound = env.dynamics, False
            return self.actions
        arguments = {name: value for name, value in cfg.kwargs.items() if name != _OF_MAKE}
        self._dynamics = _made(OFFERED[cfg.id], cfg, arguments)
        return self.actions

    def _serve_team(self, cfg: EnvConfig) -> ActionSpace:
        """An environment of `mpe2`. Return the space of the widest agent's own actions; all have the same bounds."""
        refuse(cfg, ("render_mode",))
        self._dynamics = scenario = _made(TEAMS[cfg.id], cfg, cfg.kwargs)
        self.max_steps, self.team = scenario.max_cycles, scenario.space
        self.actions, self.spaces = self.team.action, self.team.spaces
        return max(self.team.actions, key=lambda action: action.size)

    @property
    def obs(self) -> torch.Tensor:
        """The current observation of each of the R environments, O numbers each: `[R, O]` float32."""
        obs: torch.Tensor = self._dynamics.observe(self._columns)
        return obs

    @property
    def begins(self) -> torch.Tensor:
        """Whether each environment is at the beginning of an episode, `[R]` bool."""
        return self.length == 0

    def reset(self, rows: npt.ArrayLike, seeds: npt.ArrayLike) -> None:
        """Begin a new episode in the environments `rows` `[n]`, each from its own seed `[n]`."""
        index, drawn = (torch.as_tensor(x, device=self.device) for x in (rows, seeds))
        self._columns[:, index] = self._start(drawn)
        self.length[index] = 0

    def reset_where(self, over: torch.Tensor, seeds: torch.Tensor) -> None:
        """Begin a new episode in each environment for which `over` `[R]` is True, from `seeds` `[R]`, without
        synchronising with the device."""
        torch.where(over, self._start(seeds), self._columns, out=self._columns)
        self.length.masked_fill_(over, 0)

    def step(self, actions: torch.Tensor, rows: torch.Tensor | None = None) -> TensorStep:
        """Step the environments `rows` `[n]`, or all if None, and return the results.

        `actions` are indices `[n]` int64, or vectors of A numbers `[n, A]` float32 in [-1, 1], which are scaled to the
        action space's bounds; for a team of K agents `[n, K, …]`.
        """
        if rows is None:
            columns, length, found = self._after(self._columns, self.length, actions)
            self._columns.copy_(columns)
            self.length.copy_(length)
        else:
            columns, length, found = self._after(self._columns[:, rows], self.length[rows], actions)
            self._columns[:, rows], self.length[rows] = columns, length
        return found

    def step_where(self, actions: torch.Tensor, where: torch.Tensor) -> TensorStep:
        """Step those of the first `n` environments for which `where` `[n]` is True, without synchronising with the
        device.

        `actions` `[n, …]` are as `step` takes them. The other environments do not change, and their results have no
        meaning.
        """
        n = len(where)
        columns, length, found = self._after(self._columns[:, :n], self.length[:n], actions)
        self._columns[:, :n] = torch.where(where, columns, self._columns[:, :n])
        self.length[:n] = torch.where(where, length, self.length[:n])
        return found

    def _after(
        self, columns: torch.Tensor, length: torch.Tensor, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, TensorStep]:
        """Return columns and lengths after a step, and what it gives."""
        columns, reward, terminated = self._dynamics.advance(columns, self._own(actions))
        length = length + 1
        cut = length >= self.max_steps
        if self.team is not None:  # where the time is up mpe2 does not ask whether the goal is reached
            cut = cut[:, None].expand_as(terminated).contiguous()
            terminated = terminated & ~cut
        return columns, length, TensorStep(self._dynamics.observe(columns), reward.float(), terminated, cut)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the data from which `restore` rebuilds the pool: a copy of the attribute `physics` under the key
        `state`, and a copy of the attribute `length` under the key `length`."""
        return {"state": self.physics.cpu().numpy().copy(), "length": self.length.cpu().numpy().copy()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
        """Restore the pool from what the method `state` returned.

        Return for each environment whether it could not continue as saved, `[R]` bool. All are False, because all
        environments of such a pool can continue.
        """
        self.physics.copy_(torch.from_numpy(state["state"]))
        self.length.copy_(torch.from_numpy(state["length"]))
        return np.zeros(self.rows, np.bool_)

    def close(self) -> None:
        """Do nothing: the pool holds nothing but memory."""

    def _start(self, seeds: torch.Tensor) -> torch.Tensor:
        """Initial columns `[S, n]` of these seeds `[n]`."""
        draw, count = Stream(seeds, Purpose.EPISODE, self._first), self._dynamics.draws
        begun: torch.Tensor = self._dynamics.start(draw.uniform(count).T.contiguous())  # of [draws, n]
        return begun

    def _own(self, actions: torch.Tensor) -> torch.Tensor:
        """The environment's own actions, to the bit those of `ActionSpace.own`."""
        if not self._bounds:
            return actions
        low, high = self._bounds
        share = (actions.double().nan_to_num().clamp(-1.0, 1.0) + 1.0) / 2.0
        return torch.clamp(low + share * (high - low), low, high).float()


def _made(kind: Callable[..., _Made], cfg: EnvConfig, arguments: Mapping[str, Any]) -> _Made:
    """Make an environment's dynamics; ParamsError where it does not take these arguments."""
    try:
        return kind(**arguments)
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(map(str, problem["loc"]))
        raise ParamsError(
            f"env.kwargs: torch's {cfg.id!r} does not take {name}: {problem['msg']}; change it, or set "
            "env.backend to sync"
        ) from error


class TensorRows:
    """An adapter that steps a pool of tensors with NumPy arrays. It has the methods of `RowStepper`.

    `pool` is a `TensorPool` or a `CompiledPool` on the CPU.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def reset(self, rows: Ints, seeds: Ints, upcoming: Upcoming = None) -> Begun:
        """Begin an episode in the environments `rows` `[n]`, each from its own seed `[n]`; return the first
        observations, without masks. `upcoming` is not used."""
        self._pool.reset(rows, seeds)
        return Begun(self._pool.obs.numpy()[rows], None)

    def send(self, rows: Ints, actions: Actions) -> None:
        """Do nothing, because `receive` steps these environments."""

    def receive(self, rows: Ints, actions: Actions) -> RowStep:
        """Step the environments `rows` `[n]` with actions `[n, …]` in the algorithm's encoding; return the results."""
        step = self._pool.step(torch.tensor(actions), torch.tensor(rows))
        obs, reward, terminated, truncated = (part.numpy() for part in step)
        if self._pool.team is None:
            return RowStep.of(self._pool.actions, obs, reward, terminated, truncated, None)
        return team_step(self._pool.team, obs, reward, terminated, truncated, ~(terminated | truncated))

    def close(self) -> None:
        """Do nothing: the pool holds nothing but memory."""
