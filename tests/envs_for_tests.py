"""Small environments that behave well or badly on purpose; importing this module registers them.

`gymnasium.make("envs_for_tests:Chain-v0")`, or `env.id: envs_for_tests:Chain-v0` in `params.yaml`.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 4


class Chain(gymnasium.Env[Any, Any]):
    """A walk along `LENGTH` cells: action 1 goes right, 0 left; of continuous actions what is above 0 goes right. The
    kind of the action space is as asked for, of one choice, one bit, one number, or a choice and a number of no effect.
    Reaching the right end gives 1 and terminates.

    The start cell is drawn from the seed among the first two. The observation is one-hot. Every subclass spoils one
    thing at step `when` of an episode.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, when: int = 3, offset: int = 0, kind: str = "discrete") -> None:
        self.observation_space: spaces.Space[Any] = spaces.Box(0.0, 1.0, (LENGTH,), np.float32)
        kinds: dict[str, spaces.Space[Any]] = {
            "discrete": spaces.Discrete(2, start=offset),
            "continuous": spaces.Box(-1.0, 1.0, (1,), np.float32),
            "multidiscrete": spaces.MultiDiscrete([2], start=[offset]),
            "multibinary": spaces.MultiBinary(1),
            "mixed": spaces.Dict(
                {"way": spaces.Discrete(2, start=offset), "by": spaces.Box(-1.0, 1.0, (1,), np.float32)}
            ),
        }
        self.action_space = kinds[kind]
        self.when, self.offset = when, offset
        self.cell = self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell, self.steps = int(self.np_random.integers(2)), 0
        return self.seen(), self.info()

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        self.steps += 1
        right = np.ravel(action["way"] if isinstance(action, dict) else action)[0] - self.offset > 0
        self.cell = max(0, self.cell + (1 if right else -1))
        end = self.cell == LENGTH - 1
        return self.seen(), self.reward(float(end)), self.ended(end), False, self.info()

    @property
    def now(self) -> bool:
        return self.steps == self.when

    def seen(self) -> Any:
        return np.eye(LENGTH, dtype=np.float32)[min(self.cell, LENGTH - 1)]

    def reward(self, value: float) -> Any:
        return value

    def ended(self, end: bool) -> Any:
        return end

    def info(self) -> dict[str, Any]:
        return {}


class Raises(Chain):
    """Raises in the middle of an episode."""

    def reward(self, value: float) -> Any:
        if self.now:
            raise RuntimeError("the motor broke")
        return value


class RaisesInConstructor(Chain):
    """Cannot be constructed."""

    def __init__(self) -> None:
        raise RuntimeError("no display")


class NanReward(Chain):
    """Returns a reward that is not a number in the arithmetic sense."""

    def reward(self, value: float) -> Any:
        return float("nan") if self.now else value


class NanObs(Chain):
    """Returns an observation that is not finite."""

    def seen(self) -> Any:
        return np.full(LENGTH, np.nan, np.float32) if self.now else super().seen()


class HugeObs(Chain):
    """Returns a float64 observation that float32 cannot hold."""

    def seen(self) -> Any:
        return np.full(LENGTH, 1e300) if self.now else super().seen()


class WrongShape(Chain):
    """Returns an observation of another shape than it declared."""

    def seen(self) -> Any:
        return np.zeros(LENGTH + 1, np.float32) if self.now else super().seen()


class WrongDtype(Chain):
    """Returns an observation that holds text."""

    def seen(self) -> Any:
        return np.array(["1.0"] * LENGTH) if self.now else super().seen()


class DoubleObs(Chain):
    """Declares float32 and returns float64: harmless."""

    def seen(self) -> Any:
        return super().seen().astype(np.float64)


class NoReward(Chain):
    """Returns no reward at all."""

    def reward(self, value: float) -> Any:
        return None if self.now else value


class TextReward(Chain):
    """Returns its reward as text."""

    def reward(self, value: float) -> Any:
        return "1.0" if self.now else value


class VectorReward(Chain):
    """Returns one reward an objective."""

    def reward(self, value: float) -> Any:
        return np.array([value, value]) if self.now else value


class NumpyReward(Chain):
    """Returns its reward as an array of one element: harmless."""

    def reward(self, value: float) -> Any:
        return np.array([value])


class NumberEnded(Chain):
    """Returns `terminated` as a number."""

    def ended(self, end: bool) -> Any:
        return 0.5 if self.now else end


class OwnLimit(Chain):
    """Ends after five steps and calls that a termination."""

    def seen(self) -> Any:
        self.cell = 0
        return super().seen()

    def ended(self, end: bool) -> Any:
        return self.steps >= 5


class Endless(Chain):
    """Pays 1 a step and never ends by itself: the time limit cuts every episode, and each cut must bootstrap."""

    def reward(self, value: float) -> Any:
        return 1.0

    def ended(self, end: bool) -> Any:
        return False


class Countdown(Chain):
    """Pays 1 a step and ends after four, whatever is done; the observation says how many were taken."""

    def __init__(self, kind: str = "discrete", truncates: bool = False) -> None:
        super().__init__(kind=kind)
        self.truncates = truncates

    def seen(self) -> Any:
        return np.eye(LENGTH, dtype=np.float32)[self.steps % LENGTH]

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.steps += 1
        end = self.steps == LENGTH
        return self.seen(), 1.0, end and not self.truncates, end and self.truncates, {}


class Dark(Countdown):
    """The countdown of a few steps of which nothing is seen: every observation is zeros."""

    def __init__(self, kind: str = "discrete", length: int = 1) -> None:
        super().__init__(kind=kind)
        self.length = length

    def seen(self) -> Any:
        return np.zeros(LENGTH, np.float32)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.steps += 1
        return self.seen(), 1.0, self.steps == self.length, False, {}


class OneStep(Chain):
    """Ends with its first step, which pays half a point a cell."""

    def reward(self, value: float) -> Any:
        return self.cell / 2

    def ended(self, end: bool) -> Any:
        return True


class Random(Chain):
    """Its observations hold noise that no seed governs."""

    def seen(self) -> Any:
        noise = int.from_bytes(os.urandom(4), "little") / 2**32
        return super().seen() * np.float32(noise)


class RandomEnd(Chain):
    """Ends sooner each time it is played, whatever its seed."""

    played = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        RandomEnd.played += 1
        return super().reset(seed=seed)

    def ended(self, end: bool) -> Any:
        return self.steps >= 10 - 4 * RandomEnd.played


class Remembers(Chain):
    """Its start depends on the episode before: the same seed gives another episode in a used environment."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        _, info = super().reset(seed=seed)
        self.cell = self.episodes % 2
        self.episodes += 1
        return self.seen(), info


class Masked(Chain):
    """Gives an action mask: going left is illegal in cell 0."""

    def info(self) -> dict[str, Any]:
        return {"action_mask": np.array([self.cell > 0, True], np.int8)}


class MaskedNumbers(Chain):
    """Gives a mask of its one number, which it never rules out."""

    def info(self) -> dict[str, Any]:
        return {"action_mask": np.ones(1, np.int8)}


class MaskedOut(Masked):
    """Leaves no legal action in a running episode."""

    def info(self) -> dict[str, Any]:
        return {"action_mask": np.zeros(2, np.int8)} if self.now else super().info()


class MaskLost(Masked):
    """Forgets its mask."""

    def info(self) -> dict[str, Any]:
        return {} if self.now else super().info()


class MaskShape(Masked):
    """Gives a mask for three actions."""

    def info(self) -> dict[str, Any]:
        return {"action_mask": np.ones(3, np.int8)}


class Text(Chain):
    """Declares an observation that is no number."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Text(4, charset="abc")

    def seen(self) -> Any:
        return "abc"


class Several(Chain):
    """Declares several actions at once, as many as one likes."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Sequence(spaces.Discrete(2))


class Continuous(Chain):
    """Declares a continuous action."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Marks(Chain):
    """One step in each of two cells, then the end; a step pays 1 less the square of twice the action's distance from
    the cell's mark. Actions are in [0, 1]."""

    marks = (0.25, 0.75)

    def __init__(self, kind: str = "continuous") -> None:
        super().__init__(kind=kind)
        self.action_space = spaces.Box(0.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell = 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        reward = 1.0 - 4.0 * (float(action[0]) - self.marks[self.cell]) ** 2
        self.cell += 1
        return self.seen(), reward, self.cell == len(self.marks), False, {}


class Pairs(Chain):
    """A few steps, each in a cell of its own draw; of ten actions two are legal in a cell, in cell 0 one. The better of
    the two pays −10, the other −12: less than what nobody ever tried seems to be worth."""

    def __init__(self, length: int = 1) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(10)
        self.length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell = int(self.np_random.integers(LENGTH))
        return self.seen(), self.info()

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.steps += 1
        reward = -10.0 if action == self.cell else -12.0
        self.cell = int(self.np_random.integers(LENGTH))
        return self.seen(), reward, self.steps == self.length, False, self.info()

    def info(self) -> dict[str, Any]:
        mask = np.zeros(10, np.int8)
        mask[[self.cell, self.cell + 5 if self.cell else 0]] = 1
        return {"action_mask": mask}


class Pixels(Chain):
    """The chain as an image of 6 × 6 bytes: a bright pixel in the cell's column."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (6, 6, 1), np.uint8)

    def seen(self) -> Any:
        image = np.zeros((6, 6, 1), np.uint8)
        image[2:4, min(self.cell, LENGTH - 1)] = 255
        return image


class Diary(Chain):
    """Shows when its episode began, how many steps it has and the last action; pays ten a step and one for action 1.

    The beginning, drawn from the seed, says how it ends: `end_of`. Action 1 is legal at every second step; nothing is
    once it has terminated, which does no harm.
    """

    ENDS = ("terminates", "is cut", "loses its reward", "allows nothing")
    LENGTHS = (3, 4, 2, 2)

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0.0, 9.0, (3,), np.float32)
        self.begun, self.last = 0.0, 0

    @classmethod
    def end_of(cls, begun: float) -> int:
        """Which of `ENDS` it is, from the start of the episode."""
        return int(4 * begun)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.begun, self.last = float(self.np_random.random(dtype=np.float32)), 0
        return self.seen(), self.info()

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.steps, self.last = self.steps + 1, int(action)
        end = self.ENDS[self.end_of(self.begun)] if self.steps == self.LENGTHS[self.end_of(self.begun)] else ""
        reward = float("nan") if end == "loses its reward" else 10.0 * self.steps + action
        none = end in ("allows nothing", "terminates")
        info = {"action_mask": np.zeros(2, np.int8)} if none else self.info()
        return self.seen(), reward, end == "terminates", end == "is cut", info

    def seen(self) -> Any:
        return np.array([self.begun, self.steps, self.last], np.float32)

    def info(self) -> dict[str, Any]:
        return {"action_mask": np.array([True, self.steps % 2 == 1], np.int8)}


class Lottery(Chain):
    """One step, which pays a share of the ticket that the seed drew, and `bonus` for action 1; no number where the
    ticket is below `least`."""

    def __init__(self, bonus: float = 0.0, least: float = 0.0, steps: int = 1, share: float = 1.0) -> None:
        super().__init__()
        self.share, self.bonus, self.least, self.length, self.ticket = share, bonus, least, steps, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.ticket = float(self.np_random.random(dtype=np.float32))
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.steps += 1
        reward = self.share * self.ticket + self.bonus * action if self.ticket >= self.least else float("nan")
        return self.seen(), reward, self.steps == self.length, False, {}

    def seen(self) -> Any:
        return np.array([self.ticket, 1 - self.ticket, self.ticket**2, 1.0], np.float32)


class Seeds(Chain):
    """Keeps the seeds of all episodes that begin in this process."""

    begun: ClassVar[list[int]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        assert seed is not None
        Seeds.begun.append(seed)
        return super().reset(seed=seed)


class Chosen(Chain):
    """Pays nothing; but in the episode of one seed its third step pays 1, or raises while a file is there."""

    def __init__(self, seed: int, trigger: str = "") -> None:
        super().__init__()
        self.seed, self.trigger, self.chosen = seed, trigger, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.chosen = seed == self.seed
        return super().reset(seed=seed)

    def reward(self, value: float) -> Any:
        if self.chosen and self.steps == 3 and self.trigger and os.path.exists(self.trigger):
            raise RuntimeError("the motor broke")
        return float(self.chosen and self.steps == 3)

    def ended(self, end: bool) -> Any:
        return False


class Luck(Chain):
    """Three steps, the last of which pays what the seed and the actions drew from the standard normal distribution:
    nobody can be better than another, only luckier. The observation, of the seed, asks for unlike actions."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-np.inf, np.inf, (LENGTH,), np.float32)
        self.taken: list[int] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.taken = [int(self.np_random.integers(2**31))]
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.taken.append(int(action))
        end = len(self.taken) == 4
        return self.seen(), float(np.random.default_rng(self.taken).normal()) if end else 0.0, end, False, {}

    def seen(self) -> Any:
        return np.random.default_rng([*self.taken, 0]).normal(size=LENGTH).astype(np.float32)


ALL = [kind for kind in list(globals().values()) if isinstance(kind, type) and issubclass(kind, Chain)]
if "Unlimited-v0" not in gymnasium.registry:
    gymnasium.register("Unlimited-v0", entry_point=Endless)  # without a time limit
for _env in ALL:
    if f"{_env.__name__}-v0" not in gymnasium.registry:
        gymnasium.register(f"{_env.__name__}-v0", entry_point=_env, max_episode_steps=10)
