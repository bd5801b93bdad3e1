"""Environments in C, evopipe's own and users': their descriptions, and many copies that one call steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from evopipe.errors import ParamsError
from evopipe.native import build
from evopipe.native.header import at, declarations, of, own_declarations
from evopipe.rng import Purpose, salt
from evopipe.types import Tensor

MOST_DRAWS = 64
"""Random numbers that a reset or a step can take."""
_ALIGNED = 16  # a state begins at a multiple of so many bytes


@dataclass(frozen=True, eq=False)
class Compiled:
    """The description of an environment in C, as its library gives it; see also `environment.h`.

    Attributes:
        address: the address of the C struct `environment`.
        name: the environment's id, or the name of a user's file in messages.
        state: the number of bytes of a state.
        observations: the number of values in an observation.
        actions: the number of discrete actions, or of the values in a continuous action.
        continuous: whether actions are continuous.
        low, high: the bounds of each value in a continuous action; empty for discrete actions.
        max_steps: the time limit of an episode; None for no limit.
        threshold: the return at which the environment counts as solved; None if no return does.
        settings: the default values of the settings that `env.kwargs` may change, by name.
        step_draws: the number of random numbers that one step draws.
        place: the C function that sets a state from the numbers in the attribute `state` or `s` of the same environment
            in Gymnasium; None if the environment does not define it. `evopipe env check` uses it.
        held: an object that keeps the library loaded.
    """

    address: int
    name: str
    state: int
    observations: int
    actions: int
    continuous: bool
    low: tuple[float, ...]
    high: tuple[float, ...]
    max_steps: int | None
    threshold: float | None
    settings: dict[str, float]
    step_draws: int
    place: Any
    held: Any

    @classmethod
    def read(cls, pointer: Any, name: str, held: Any) -> Compiled:
        """Return the description in the C struct `environment` at `pointer`.

        Args:
            pointer: a pointer to the struct.
            name: the environment's name.
            held: an object that keeps the library loaded.

        Raises:
            ParamsError: the struct lacks a field, or a field has an impossible value.
        """
        ffi, c = declarations(), pointer[0]
        bounds = [] if not c.continuous else [c.low, c.high]
        lacking = [part for part in ("reset", "step", "observe") if getattr(c, part) == ffi.NULL]
        lacking += [part for part in ("state", "observations", "actions") if getattr(c, part) < 1]
        lacking += [part for part, bound in zip(("low", "high"), bounds, strict=False) if bound == ffi.NULL]
        if lacking:
            raise ParamsError(f"env.source: {name}: the_environment lacks .{lacking[0]}: set it")
        low, high = (tuple(bound[i] for i in range(c.actions)) for bound in bounds or ((), ())) if bounds else ((), ())
        if not all(math.isfinite(a) and math.isfinite(b) and a < b for a, b in zip(low, high, strict=True)):
            raise ParamsError(f"env.source: {name}: .low and .high must be finite numbers, .low the lesser")
        if not all(0 <= count <= MOST_DRAWS for count in (c.reset_draws, c.step_draws)):
            raise ParamsError(f"env.source: {name}: a reset and a step take at most {MOST_DRAWS} random numbers each")
        settings = {ffi.string(c.settings[i].name).decode(): c.settings[i].usual for i in range(c.settings_count)}
        return cls(
            int(ffi.cast("intptr_t", pointer)), name, c.state, c.observations, c.actions, bool(c.continuous), low, high,
            c.max_steps or None, c.threshold or None, settings,
            c.step_draws, None if c.place == ffi.NULL else c.place, held,
        )  # fmt: skip

    def values(self, kwargs: Mapping[str, Any]) -> list[float]:
        """Return the values of the environment's settings, in the order of `settings`.

        A setting has its value in `kwargs` (the parameter `env.kwargs`), or else its default value.

        Raises:
            ParamsError: the environment has no setting of a given name, or the given value is no number.
        """
        for name, value in kwargs.items():
            if name not in self.settings:
                offer = f"it takes {', '.join(self.settings)}" if self.settings else "it takes no arguments"
                raise ParamsError(f"env.kwargs: {self.name!r} in C does not take {name!r}: {offer}")
            if not isinstance(value, bool | int | float) or not math.isfinite(value):
                raise ParamsError(f"env.kwargs: {name} of {self.name!r} in C is a number or a bool, not {value!r}")
        return [float(kwargs.get(name, usual)) for name, usual in self.settings.items()]


@cache
def offered() -> dict[str, Compiled]:
    """Return evopipe's own environments in C, by their ids in Gymnasium.

    Raises:
        ParamsError: C cannot be compiled on this machine.
    """
    kernels, ffi = _kernels(), declarations()
    found: dict[str, Compiled] = {}
    while (pointer := kernels.environment_at(len(found))) != ffi.NULL:
        name = ffi.string(pointer.name).decode()
        found[name] = Compiled.read(pointer, name, kernels)
    return found


def compiled(source: str) -> Compiled:
    """Compile a user's environment in the C file `source`, or load the compiled library from the cache.

    Raises:
        ParamsError: there is no such file, it does not compile, or its description is incomplete.
    """
    try:
        content = Path(source).read_bytes()
    except OSError as error:
        raise ParamsError(f"env.source: {source!r} cannot be read: {error.strerror or error}") from error
    try:
        library = build.load_environment(Path(source), content)
    except build.NoKernels as error:
        raise ParamsError(f"env.source: {error}") from error
    own = own_declarations()
    return Compiled.read(own.addressof(library, "the_environment"), source, library)


def _kernels() -> Any:
    try:
        return build.chosen() or build.load()
    except build.NoKernels as error:
        raise ParamsError(f"env.backend: c cannot be compiled here: {error}; or set it to torch") from error


class States:
    """The states of `R` copies of an environment in C, one per row, which are stepped in one call.

    The environment does not reset itself: after an episode has ended, the caller must reset its row with a seed.

    Args:
        kind: the description of the environment.
        settings: the values of the environment's settings, see `Compiled.values`.
        rows: `R`, the number of copies.
        max_steps: the time limit of an episode; None for no limit.

    Attributes:
        memory: `[R, S]` uint8, the states of S bytes, zeros before the first reset; the memory address does not change.
        length, seeds: `[R]` int64, the number of steps so far and the seed of each row's episode; the memory address
            does not change.
    """

    def __init__(self, kind: Compiled, settings: list[float], rows: int, max_steps: int | None) -> None:
        self.kind, self._kernels, self._call = kind, _kernels(), of("env_call")
        self.memory = torch.zeros(rows, -(-kind.state // _ALIGNED) * _ALIGNED, dtype=torch.uint8)
        self.length, self.seeds = torch.zeros(2, rows, dtype=torch.int64)
        self._settings = torch.tensor([*settings, 0.0], dtype=torch.float64)
        self._action = torch.float32 if kind.continuous else torch.int64
        self._fixed = (
            kind.address, at(self._settings), at(self.memory), at(self.length), at(self.seeds), self.memory.shape[1],
            salt(Purpose.EPISODE), max_steps or 1 << 62,
        )  # fmt: skip

    def packed(self) -> bytes:
        """Return the C struct `env_call`, as bytes, that describes these environments to the kernels.

        The struct's fields for one particular call, such as the actions, are 0.
        """
        found: bytes = self._call.pack(*self._fixed, *[0] * 10)
        return found

    def reset(self, rows: Tensor, seeds: Tensor) -> None:
        """Begin an episode in the rows `rows` `[n]` int64, each from its seed in `seeds` `[n]` int64."""
        rows, seeds = rows.contiguous(), seeds.contiguous()
        self._kernels.env_reset(self._call(*self._fixed, len(rows), at(rows), at(seeds), *[0] * 7))

    def place(self, numbers: Any) -> bool:
        """Set the state of row 0 to that of a Gymnasium environment; return whether that was possible.

        `numbers` is the attribute `state` or `s` of the Gymnasium environment. The function `place` of the environment
        in C sets the state. The result is False if the environment in C does not define this function, or if `numbers`
        do not convert to float64.
        """
        try:
            given = torch.tensor(numbers, dtype=torch.float64).reshape(-1)
        except (TypeError, ValueError, RuntimeError):
            return False
        if self.kind.place is None:
            return False
        ffi = declarations()
        self.kind.place(ffi.cast("void *", at(self.memory)), ffi.cast("double *", at(given)), len(given))
        return True

    def step(
        self, actions: Tensor, rows: Tensor | None = None, only: Tensor | None = None, own: bool = False
    ) -> tuple[Tensor, ...]:
        """Take one step of the environment in n rows.

        Args:
            actions: `[n]` indices, or `[n, A]` numbers in [-1, 1].
            rows: `[n]`, the indices of the rows; None for the first n rows.
            only: `[n]` bool, the rows that really step; None for all. The results of the others are undefined.
            own: whether continuous actions are given within the environment's bounds instead of in [-1, 1].

        Returns:
            Next observations `[n, O]` float32, rewards `[n]` float32, terminated and truncated `[n]` bool.
        """
        n = len(actions)
        actions = actions.to(self._action).contiguous()
        rows = None if rows is None else rows.contiguous()
        only = None if only is None else only.contiguous()
        obs, reward = torch.empty(n, self.kind.observations), torch.empty(n)
        terminated, truncated = torch.empty(n, dtype=torch.bool), torch.empty(n, dtype=torch.bool)
        self._kernels.env_step(self._call(
            *self._fixed, n, at(rows), 0, at(only), at(actions), own, at(obs), at(reward), at(terminated), at(truncated)
        ))  # fmt: skip
        return obs, reward, terminated, truncated

    def observe(self) -> Tensor:
        """Return the current observation of every row, `[R, O]` float32."""
        obs = torch.empty(len(self.memory), self.kind.observations)
        self._kernels.env_observe(self._call(*self._fixed, len(obs), 0, 0, 0, 0, 0, at(obs), 0, 0, 0))
        return obs
