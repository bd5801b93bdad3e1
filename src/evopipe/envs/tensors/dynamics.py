"""Gymnasium's classic control, written for many rows at once.

Each environment has three functions on columns `[S, R]`, the physical state of `R` rows in float64, one contiguous row
of memory a quantity. The fields are the arguments of Gymnasium's constructor, with its defaults.

Every number is computed in Gymnasium's order and precision, by element-wise operators (no fused multiply-add): a row
comes out the same, bit for bit, wherever it stands and whatever stands beside it.

Sources: `gymnasium.envs.classic_control`, which follows Barto, Sutton & Anderson (1983) for CartPole, Sutton (1996) for
Acrobot, and Moore (1990) for MountainCar.
"""

from __future__ import annotations

import math
from typing import ClassVar, Protocol, TypeAlias

import torch

from evopipe.schema.declare import Schema

Advance: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""The next columns `[S, R]` float64, rewards `[R]` of any precision, and terminations `[R]`."""


class Dynamics(Protocol):
    """One environment."""

    draws: ClassVar[int]  # how many uniform numbers an initial state is made of

    def start(self, u: torch.Tensor) -> torch.Tensor:
        """Return initial columns `[S, R]` from draws `[draws, R]` in [0, 1)."""

    def advance(self, columns: torch.Tensor, action: torch.Tensor) -> Advance:
        """Take one step with the environment's own actions: int64 `[R]`, or float32 `[R, A]` within its bounds."""

    def observe(self, columns: torch.Tensor) -> torch.Tensor:
        """Return observations `[R, O]` float32."""


class CartPole(Schema):
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

    def advance(self, columns: torch.Tensor, action: torch.Tensor) -> Advance:
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


class Pendulum(Schema):
    """Swing a pendulum up by torque: state θ (0 is up), θ̇."""

    g: float = 10.0

    draws: ClassVar[int] = 2
    fastest: ClassVar[float] = 8.0
    seconds: ClassVar[float] = 0.05

    def start(self, u: torch.Tensor) -> torch.Tensor:
        angle, spin = u.unbind()
        return torch.stack((angle * (2 * math.pi) - math.pi, spin * 2.0 - 1.0))

    def advance(self, columns: torch.Tensor, action: torch.Tensor) -> Advance:
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


class Acrobot(Schema):
    """Swing two links, each of 1 m and 1 kg, above a line by torque at the joint between: state θ₁, θ₂, θ̇₁, θ̇₂."""

    draws: ClassVar[int] = 4
    gravity: ClassVar[float] = 9.8
    fastest: ClassVar[tuple[float, float]] = (4 * math.pi, 9 * math.pi)
    seconds: ClassVar[float] = 0.2

    def start(self, u: torch.Tensor) -> torch.Tensor:
        return u * 0.2 - 0.1

    def advance(self, columns: torch.Tensor, action: torch.Tensor) -> Advance:
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
        """Derivatives of the state by time `[4, R]`, in the version of Sutton & Barto's book.

        Each link has its centre of mass in the middle and a moment of inertia of 1 kg m².
        """
        angle1, angle2, spin1, spin2 = columns.unbind()
        cos, sin = angle2.cos(), angle2.sin()
        d1, d2 = cos + 3.5, cos * 0.5 + 1.25
        phi2 = (angle1 + angle2).sin() * (0.5 * self.gravity)
        phi1 = angle1.sin() * (1.5 * self.gravity) + phi2 - (spin2 * 0.5 + spin1) * spin2 * sin
        rate2 = (d2 / d1 * phi1 + torque - spin1.square() * 0.5 * sin - phi2) / (1.25 - d2.square() / d1)
        rate1 = -(d2 * rate2 + phi1) / d1
        return torch.stack((spin1, spin2, rate1, rate2))


class MountainCar(Schema):
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

    def advance(self, columns: torch.Tensor, action: torch.Tensor) -> Advance:
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


class MountainCarContinuous(MountainCar):
    """The same with any push in [-1, 1], which costs. Gymnasium keeps this state in float32 from the first step on."""

    goal: ClassVar[float] = 0.45
    force: ClassVar[float] = 0.0015

    def advance(self, columns: torch.Tensor, action: torch.Tensor) -> Advance:
        position, velocity = columns.unbind()
        push, thrice = action[:, 0], position * 3.0
        begun = position == position.float()  # an initial state is of float64, and so is what is computed from it
        slope = torch.where(begun, thrice.float().double(), thrice).cos() * self.gravity
        gain = push * self.force - slope.float()
        position, velocity, terminated = self._roll(position, velocity.float(), gain)
        reward = terminated * 100.0 - push.double().square() * 0.1
        return torch.stack((position, velocity)).double(), reward, terminated
