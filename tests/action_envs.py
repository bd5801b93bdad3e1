"""Environments whose action is several choices or bits; importing this module registers them.

They check every action that they get, so that a wrong one raises, and show what they got.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

STEPS = 7

SPACES: dict[str, spaces.Space[Any]] = {
    "Locks": spaces.MultiDiscrete([2, 3, 4], start=[0, 1, -2]),
    "Table": spaces.MultiDiscrete([[2, 3], [1, 2]], start=[[5, 0], [-1, 2]]),
    "Switches": spaces.MultiBinary(5),
    "Grid": spaces.MultiBinary([2, 3]),
}


class Panel(gymnasium.Env[Any, Any]):
    """A goal for every number of the action, drawn anew at every step; the reward is the share that were met.

    It draws itself as a row of pixels, a goal each.

    Args:
        name: which of `SPACES` the actions are from.
        masks: how it gives masks, `none`, `flat` or `tuple`; they leave the goal legal.
        impossible: the step at which the mask allows nothing: no choice in the first component, no bit at all; 0: none.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, name: str, masks: str = "none", impossible: int = 0, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.action_space = SPACES[name]
        self.masks, self.impossible = masks, impossible
        binary = isinstance(self.action_space, spaces.MultiBinary)
        shape = self.action_space.shape
        self.first = np.zeros(shape, np.int64) if binary else np.asarray(self.action_space.start, np.int64)
        self.counts = (np.full(shape, 2) if binary else np.asarray(self.action_space.nvec)).reshape(-1)
        self.binary, self.size = binary, len(self.counts)
        self.observation_space = spaces.Box(0.0, 1.0, (2 * self.size,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.last = 0, np.zeros(self.size, np.int64)
        return self.seen()

    def seen(self) -> tuple[Any, dict[str, Any]]:
        self.goal = self.np_random.integers(self.counts)
        scale = np.maximum(self.counts - 1, 1)
        obs = np.concatenate((self.goal / scale, self.last / scale)).astype(np.float32)
        self.legal = [self.np_random.random(n) < 0.5 for n in self.counts]
        for part, goal in zip(self.legal, self.goal, strict=True):
            part[goal] = True
        if self.masks == "none":
            return obs, {}
        if self.impossible and self.steps == self.impossible:
            for part in self.legal if self.binary else self.legal[:1]:
                part[:] = False
        if self.binary:
            return obs, {"action_mask": np.array([part[1] for part in self.legal], np.int8)}
        mask = tuple(part.astype(np.int8) for part in self.legal)
        return obs, {"action_mask": mask if self.masks == "tuple" else np.concatenate(mask)}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        self.last = (action - self.first).reshape(-1)
        if self.masks != "none":
            for part, choice in zip(self.legal, self.last.tolist(), strict=True):
                if not part[choice] and not (self.binary and choice == 0):
                    raise ValueError(f"action {action!r} is illegal now")
        reward = float((self.last == self.goal).mean())
        self.steps += 1
        obs, info = self.seen()
        return obs, reward, False, self.steps == STEPS, info

    def render(self) -> Any:
        return np.repeat((self.goal * 60).astype(np.uint8)[None, :, None], 3, axis=2)


for _name in SPACES:
    if f"{_name}-v0" not in gymnasium.registry:
        gymnasium.register(f"{_name}-v0", entry_point=Panel, kwargs={"name": _name})


class Desk(gymnasium.Env[Any, Any]):
    """A gear to choose, keys to press and a lever to pull, at once: what is wanted is seen, drawn anew at every step.

    Half of the reward is for the gear, and it comes only where the lever is near enough: both parts are needed. It
    checks every action that it gets.

    Args:
        form: how the action is built, `dict`, `tuple` or `nested`.
        masks: whether it gives masks, which leave the right gear legal.
    """

    def __init__(self, form: str = "dict", masks: bool = False) -> None:
        gear, keys = spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 4], start=[0, -1])
        lever = spaces.Box(np.array([0.0, -2.0]), np.array([4.0, 2.0]), dtype=np.float64)
        forms: dict[str, spaces.Space[Any]] = {
            "dict": spaces.Dict({"lever": lever, "gear": gear, "keys": keys}),
            "tuple": spaces.Tuple((lever, gear, keys)),
            "nested": spaces.Dict({"hand": spaces.Tuple((lever, keys)), "gear": gear}),
        }
        self.action_space, self.form, self.masks = forms[form], form, masks
        self.observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.seen()

    def seen(self) -> tuple[Any, dict[str, Any]]:
        self.gear, self.pull = int(self.np_random.integers(1, 4)), self.np_random.uniform(-1.0, 1.0)
        obs = np.array([*np.eye(3)[self.gear - 1], self.pull], np.float32)
        return obs, {"action_mask": self.legal()} if self.masks else {}

    def legal(self) -> Any:
        gear = (self.np_random.random(3) < 0.5).astype(np.int8)
        gear[self.gear - 1] = 1
        self.allowed = gear
        keys = (np.array([1, 0], np.int8), np.array([0, 1, 1, 0], np.int8))
        return {
            "dict": {"gear": gear, "keys": keys}, "tuple": (None, gear, keys),
            "nested": {"hand": (None, keys), "gear": gear},
        }[self.form]  # fmt: skip

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        if self.form == "tuple":
            lever, gear, keys = action
        elif self.form == "dict":
            lever, gear, keys = action["lever"], action["gear"], action["keys"]
        else:
            (lever, keys), gear = action["hand"], action["gear"]
        if self.masks and not (self.allowed[gear - 1] and keys[0] == 0 and keys[1] in (0, 1)):
            raise ValueError(f"action {action!r} is masked")
        near, right = abs(float(lever[0]) / 2 - 1 - self.pull) < 0.3, int(gear) == self.gear
        self.steps += 1
        obs, info = self.seen()
        return obs, 0.5 * near + 0.5 * (near and right), False, self.steps == STEPS, info


gymnasium.register("Desk-v0", entry_point=f"{__name__}:Desk")
