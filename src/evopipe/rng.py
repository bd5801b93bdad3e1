"""Random numbers as a function of (key, purpose, step), never of a global generator.

A draw is a hash of the member's key, its purpose and its time. The hash is the finaliser of SplitMix64 (Steele, Lea &
Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), applied as a counter-based generator. It runs on
int64 tensors, which wrap around on overflow, and on the CPU by the native kernels, or else on uint64 NumPy arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import torch


class Purpose(IntEnum):
    """The purpose of a random draw, such as acting or mutation; draws with different purposes never share bits."""

    MEMBER = 1
    INIT = 2
    ACT = 3
    REPLAY = 4
    EPISODE = 5
    MUTATE = 6
    SELECT = 7
    EVALUATE = 8
    CONFIRM = 9
    HELD_OUT = 10
    BEHAVIOUR = 11
    BOOTSTRAP = 12
    UPDATE = 13
    PROPOSE = 14
    PROBE = 15
    HINDSIGHT = 16
    PROMPT = 20
    GENERATE = 21


def _unsigned(value: int) -> int:
    return value & 0xFFFFFFFFFFFFFFFF


def _signed(value: int) -> int:
    """The same 64 bits as a signed number."""
    return (_unsigned(value) ^ 1 << 63) - (1 << 63)


_HOST = _GOLDEN_HOST, _MIX1_HOST, _MIX2_HOST = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_GOLDEN, _MIX1, _MIX2 = map(_signed, _HOST)
_INIT = _signed(0xD1B54A32D192ED03)


def salt(purpose: Purpose) -> int:
    """Return the integer that is added to a key before it is hashed, for draws with this purpose."""
    return _signed(int(purpose) * _INIT)


def _mix(x: Any) -> Any:
    """SplitMix64's finaliser on int64; `& mask` turns the arithmetic shift into a logical one."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _MIX1
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _MIX2
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def _mix_host(x: np.ndarray) -> np.ndarray:
    """`_mix` on uint64, in place: there the shift is logical by itself."""
    for shift, factor in ((30, _MIX1_HOST), (27, _MIX2_HOST)):
        x ^= x >> shift
        x *= factor
    x ^= x >> 31
    return x


_Kernel: TypeAlias = "Callable[[str, torch.Tensor, int, torch.Tensor, torch.Tensor], None]"
_kernel: _Kernel | None = None


def use(kernel: _Kernel | None) -> None:
    """Set the function that draws random numbers on the CPU from now on; None restores NumPy and torch.

    The function is called as `kernel(name, keys, salt, steps, found)`, and writes its draws into the tensor `found`:

    - If `name` is `uniform`, `normals` or `shuffles`, the function draws n numbers for each of P keys and U steps.
      `keys` is `[P]`, `steps` `[U]`, and `found` `[P, U, n]`.
    - If `name` is `parts`, the function derives a new key from each key. `found` is `[P]`, and `steps` has no effect.

    `salt` is an integer, which the function adds to a key before it hashes the key.
    """
    global _kernel
    _kernel = kernel


def _drawn(
    kernel: _Kernel, name: str, keys: torch.Tensor, salt: int, steps: torch.Tensor, n: int, kind: torch.dtype
) -> torch.Tensor:
    found = torch.empty(keys.shape[0], steps.shape[0], n, dtype=kind)
    kernel(name, keys.contiguous(), salt, steps.contiguous(), found)
    return found


def _bits(keys: torch.Tensor, purpose: Purpose, steps: torch.Tensor, n: int) -> torch.Tensor:
    """Draw 64 random bits for every key `[P]` int64, step `[U]` int64 and position below `n`: `[P, U, n]` int64."""
    if _on_host(keys):
        return torch.from_numpy(_host_bits(keys, purpose, steps, n).view(np.int64))
    base = _mix(keys + salt(purpose))[:, None] + steps * _GOLDEN  # [P, U]
    position = torch.arange(1, n + 1, device=keys.device) * _GOLDEN  # [n]
    drawn: torch.Tensor = _mix(_mix(base)[:, :, None] + position)
    return drawn


def uniform(keys: torch.Tensor, purpose: Purpose, steps: torch.Tensor, n: int) -> torch.Tensor:
    """Draw float64 numbers in [0, 1) with 53 random bits, `[P, U, n]`: n numbers for each key and each step.

    `keys` are P keys `[P]` int64, and `steps` are U step numbers `[U]` int64. Each number is a function of its key,
    purpose, step and position alone.
    """
    if _on_host(keys):
        if _kernel is not None:
            return _drawn(_kernel, "uniform", keys, salt(purpose), steps, n, torch.float64)
        drawn = (_host_bits(keys, purpose, steps, n) >> 11).astype(np.float64)
        drawn *= 2.0**-53
        return torch.from_numpy(drawn)
    return ((_bits(keys, purpose, steps, n) >> 11) & 0x1FFFFFFFFFFFFF).to(torch.float64) * 2.0**-53


def normal(keys: torch.Tensor, purpose: Purpose, steps: torch.Tensor, n: int) -> torch.Tensor:
    """Draw standard normal float32 numbers `[P, U, n]`, at most 8.6 in absolute value: n numbers for each key and each
    step.

    `keys` are P keys `[P]` int64, and `steps` are U step numbers `[U]` int64. Each number is a function of its key,
    purpose, step and position alone. The native kernels and torch give the same numbers, except for the last bit of
    about one number in 10⁸.
    """
    if _kernel is not None and _on_host(keys):
        return _drawn(_kernel, "normals", keys, salt(purpose), steps, n, torch.float32)
    return _normal(uniform(keys, purpose, steps, 2 * n))


def shuffled(keys: torch.Tensor, purpose: Purpose, steps: torch.Tensor, n: int) -> torch.Tensor:
    """Draw a random permutation of 0 to n - 1 for each key and each step, `[P, U, n]` int64.

    `keys` are P keys `[P]` int64, and `steps` are U step numbers `[U]` int64. Another `purpose` gives other
    permutations. A permutation is the order that sorts n draws of `uniform`.
    """
    if _kernel is not None and _on_host(keys):
        return _drawn(_kernel, "shuffles", keys, salt(purpose), steps, n, torch.int64)
    return uniform(keys, purpose, steps, n).argsort(dim=2)


def _on_host(keys: torch.Tensor) -> bool:
    return keys.is_cpu and not torch.compiler.is_compiling()


def _host_bits(keys: torch.Tensor, purpose: Purpose, steps: torch.Tensor, n: int) -> np.ndarray:
    base = _mix_host(keys.numpy().view(np.uint64) + _unsigned(int(purpose) * _INIT))
    at = _mix_host(base[:, None] + steps.numpy().view(np.uint64) * _GOLDEN_HOST)  # [P, U]
    return _mix_host(at[:, :, None] + np.arange(1, n + 1, dtype=np.uint64) * _GOLDEN_HOST)


@dataclass(frozen=True)
class Stream:
    """A source of every member's random draws for one purpose at one step.

    Equal calls return equal numbers; the method `part` returns a source of other numbers.

    Attributes:
        keys: `[P]` int64, the random keys of P members.
        purpose: the purpose of the draws.
        step: `[1]` int64, the number of the step.
    """

    keys: torch.Tensor  # [P] int64
    purpose: Purpose
    step: torch.Tensor  # [1] int64, when

    def uniform(self, n: int) -> torch.Tensor:
        """Return float64 numbers in [0, 1), n for each of the P members, `[P, n]`."""
        return uniform(self.keys, self.purpose, self.step, n).squeeze(1)

    def normal(self, n: int) -> torch.Tensor:
        """Return standard normal float32 numbers, n for each of the P members, `[P, n]`, at most 8.6 in absolute
        value."""
        return normal(self.keys, self.purpose, self.step, n).squeeze(1)

    def normal_window(self, steps: int, n: int) -> torch.Tensor:
        """Return the results of `normal(n)` at this step and the `steps - 1` steps before it, latest first, for P
        members: `[P, steps, n]`."""
        back = self.step - torch.arange(steps, device=self.step.device)
        return normal(self.keys, self.purpose, back, n)

    def part(self, name: int) -> Stream:
        """Return a stream for the same purpose and step whose draws are independent of this stream's draws.

        `name` is a number of at least 1. Each number gives another stream.
        """
        return Stream(_part(self.keys, name), self.purpose, self.step)

    def parts(self, count: int) -> Stream:
        """Return the streams `part(1)` to `part(count)` as one stream, with `count · P` keys for P members.

        First come the P keys of `part(1)`, then those of `part(2)`, and so on. The method `part` gives independent
        draws.
        """
        keys = torch.cat([_part(self.keys, name) for name in range(1, count + 1)])
        return Stream(keys, self.purpose, self.step)


def _part(keys: torch.Tensor, name: int) -> torch.Tensor:
    if _on_host(keys):
        if _kernel is not None:
            found = torch.empty(len(keys), dtype=torch.int64)
            _kernel("parts", keys.contiguous(), _signed(name * _INIT), found, found)
            return found
        return torch.from_numpy(_mix_host(keys.numpy().view(np.uint64) + _unsigned(name * _INIT)).view(np.int64))
    mixed: torch.Tensor = _mix(keys + _signed(name * _INIT))
    return mixed


def _normal(u: torch.Tensor) -> torch.Tensor:
    """Box & Muller (1958): `[…, 2n]` in [0, 1) → `[…, n]` float32. A number does not depend on how many follow."""
    radius, angle = u.unflatten(-1, (-1, 2)).unbind(-1)
    return ((-2.0 * torch.log1p(-radius)).sqrt() * torch.cos(2.0 * math.pi * angle)).float()


def member_keys(seed: int, slots: Any) -> np.ndarray:
    """Return the random keys of P members, given by their `slots` (places in the population), for the population's
    seed: `[P]` int64."""
    slots = np.asarray(slots, dtype=np.int64)
    base = _mix(np.full_like(slots, _signed(seed * _INIT + int(Purpose.MEMBER))))
    keys: np.ndarray = _mix(base + (slots + 1) * _GOLDEN)
    return keys


def run_key(seed: int) -> int:
    """Return the key for random draws that belong to the whole run and not to a member, for the run's seed."""
    return int(member_keys(seed, [-1])[0])


def seeds(keys: Any, purpose: Purpose, *counters: Any) -> Any:
    """Derive environment seeds in [0, 2³¹) from a key, a purpose and counters, elementwise.

    Counters are numbers that tell seeds of one key apart, such as those of the environment and of its episode. Keys and
    counters are int64 arrays or tensors of shapes that broadcast.
    """
    if isinstance(keys, torch.Tensor) and _on_host(keys):
        found: np.ndarray = seeds(keys.numpy(), purpose, *(counter.numpy() for counter in counters))
        return torch.from_numpy(found)
    x = _mix(keys + salt(purpose))
    for counter in counters:
        x = _mix(x + (counter + 1) * _GOLDEN)
    return (x >> 33) & 0x7FFFFFFF


def host(key: int, purpose: Purpose, step: int = 0) -> np.random.Generator:
    """Return a NumPy generator for single decisions on the CPU, seeded from a key, a purpose and a step."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([key & 0xFFFFFFFFFFFFFFFF, int(purpose), step])))
