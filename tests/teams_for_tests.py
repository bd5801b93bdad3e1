"""Small teams that behave well or badly on purpose: `env.id: teams_for_tests:Crew`."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pettingzoo
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.wrappers import BaseParallelWrapper

SIZE = 3


class Crew(ParallelEnv[Any, Any, Any]):
    """Two agents; each sees the seed's ticket, the step and its own last action, and is paid 10 a step, its action and
    its number. The episode is cut after `length` steps. Every subclass spoils one thing, at step `when` for most.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "crew", "render_modes": []}
    render_mode: str | None = None
    IDS: ClassVar[tuple[Any, ...]] = ("ant_0", "ant_1")

    def __init__(self, kind: str = "discrete", length: int = 4, when: int = 2) -> None:
        self.possible_agents, self.agents = [*self.IDS], []
        self.kind, self.length, self.when, self.t, self.ticket = kind, length, when, 0, 0.0
        self.last: dict[Any, Any] = {}
        self.given: dict[Any, Any] = {}  # the actions of the last step, as they came
        self._spaces = {agent: (self.sees(i), self.does(i)) for i, agent in enumerate(self.IDS)}

    def sees(self, i: int) -> spaces.Space[Any]:
        return spaces.Box(-100.0, 100.0, (SIZE,), np.float32)

    def does(self, i: int) -> spaces.Space[Any]:
        kinds: dict[str, spaces.Space[Any]] = {
            "discrete": spaces.Discrete(3),
            "continuous": spaces.Box(-2.0, 4.0, (2,), np.float32),
            "multidiscrete": spaces.MultiDiscrete([2, 3]),
            "threefold": spaces.MultiDiscrete([3, 2, 4]),
            "multibinary": spaces.MultiBinary(2),
        }
        return kinds[self.kind]

    def observation_space(self, agent: Any) -> spaces.Space[Any]:
        return self._spaces[agent][0]

    def action_space(self, agent: Any) -> spaces.Space[Any]:
        return self._spaces[agent][1]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.ticket, self.t = float(np.random.default_rng(seed).random(dtype=np.float32)), 0
        self.last = dict.fromkeys(self.IDS, 0.0)
        self.agents = self.living()
        return {agent: self.seen(agent) for agent in self.agents}, {agent: self.info(agent) for agent in self.agents}

    def step(self, actions: dict[Any, Any]) -> Any:
        for agent, action in actions.items():
            if agent not in self.agents or not self.action_space(agent).contains(action):
                raise ValueError(f"{action!r} is no action of {agent!r}")
        self.given, self.t = dict(actions), self.t + 1
        self.last |= {agent: float(np.sum(action)) for agent, action in actions.items()}
        before, ends = self.agents, {agent: self.ends(agent) for agent in self.agents}
        self.agents = [agent for agent in self.living() if not any(ends.get(agent, ()))]
        shown = [*dict.fromkeys((*before, *self.agents))]
        ends = {agent: ends.get(agent, (False, False)) for agent in shown}
        return (
            {agent: self.seen(agent) for agent in shown},
            {agent: self.pays(agent) for agent in shown},
            {agent: ended for agent, (ended, _) in ends.items()},
            {agent: cut for agent, (_, cut) in ends.items()},
            {agent: self.info(agent) for agent in shown},
        )

    @property
    def now(self) -> bool:
        return self.t == self.when

    def number(self, agent: Any) -> int:
        return self.IDS.index(agent)

    def living(self) -> list[Any]:
        return [*self.IDS]

    def seen(self, agent: Any) -> Any:
        return np.array([self.ticket, self.t, self.last[agent]], np.float32)

    def pays(self, agent: Any) -> Any:
        return 10.0 * self.t + self.last[agent] + self.number(agent)

    def ends(self, agent: Any) -> tuple[Any, Any]:
        return False, self.t == self.length

    def info(self, agent: Any) -> Any:
        return {}


class Dies(Crew):
    """The first agent dies at step `when`."""

    def living(self) -> list[Any]:
        return [agent for agent in self.IDS if self.number(agent) or self.t < self.when]

    def ends(self, agent: Any) -> tuple[Any, Any]:
        return self.now and not self.number(agent), self.t == self.length


class DiesUnseen(Dies):
    """It shows nothing then."""

    def step(self, actions: dict[Any, Any]) -> Any:
        observed, *rest = super().step(actions)
        return {agent: obs for agent, obs in observed.items() if agent in self.agents or self.t == self.length}, *rest


class IsCut(Dies):
    """The first agent's episode is cut at step `when`, the second's goes on."""

    def ends(self, agent: Any) -> tuple[Any, Any]:
        return False, (self.now and not self.number(agent)) or self.t == self.length


class Leaves(Dies):
    """The first agent is not among the living from step `when`, and no end is given."""

    def ends(self, agent: Any) -> tuple[Any, Any]:
        return False, self.t == self.length


class Stays(Crew):
    """The first agent dies at step `when`, is never removed from `agents`, and goes on giving what it gave."""

    def ends(self, agent: Any) -> tuple[Any, Any]:
        return self.t >= self.when and not self.number(agent), self.t == self.length

    def step(self, actions: dict[Any, Any]) -> Any:
        result = super().step(actions | {agent: 0 for agent in self.agents if agent not in actions})
        self.agents = self.living()
        self.given = actions
        return result


class Late(Crew):
    """The first agent comes at step `when`."""

    def living(self) -> list[Any]:
        return [agent for agent in self.IDS if self.number(agent) or self.t >= self.when]


class Returns(Crew):
    """The first agent is away at step `when` alone."""

    def living(self) -> list[Any]:
        return [agent for agent in reversed(self.IDS) if self.number(agent) or not self.now]


class StaysCut(Stays):
    """The first agent's episode is cut at step `when`; it is never removed from `agents`, and goes on giving."""

    def ends(self, agent: Any) -> tuple[Any, Any]:
        return False, (self.t >= self.when and not self.number(agent)) or self.t == self.length


class Numbers(Crew):
    """Ids are whole numbers."""

    IDS = (7, 3)


class Bees(Crew):
    """Unlike agents: the second sees less and may do more."""

    IDS = ("ant_0", "bee_0")

    def sees(self, i: int) -> spaces.Space[Any]:
        return spaces.Box(-100.0, 100.0, (SIZE - i,), np.float32)

    def does(self, i: int) -> spaces.Space[Any]:
        if self.kind == "continuous":
            return spaces.Box(-1.0 - i, 1.0, (1 + i,), np.float32)
        return spaces.Discrete(3 + i, start=i)

    def seen(self, agent: Any) -> Any:
        return super().seen(agent)[: SIZE - self.number(agent)]


class Relay(Crew):
    """Unlike agents that come and go: the first dies at a step that its seed says, the second comes late. Small
    numbers: each is paid for its action, by how far it is from the ticket."""

    IDS = ("red_0", "blue_0", "red_1")

    def __init__(self, kind: str = "discrete", length: int = 9, when: int = 2) -> None:
        super().__init__(kind, length, when)

    def sees(self, i: int) -> spaces.Space[Any]:
        return spaces.Box(-100.0, 100.0, (SIZE - i % 2,), np.float32)

    def does(self, i: int) -> spaces.Space[Any]:
        unlike: dict[str, spaces.Space[Any]] = {
            "discrete": spaces.Discrete(2 + i),
            "continuous": spaces.Box(-1.0, 1.0, (1 + i % 2,), np.float32),
        }
        return unlike[self.kind] if self.kind in unlike else super().does(i)

    def dies(self) -> int:
        return 3 + int(4 * self.ticket)

    def living(self) -> list[Any]:
        return ["red_0"] * (self.t < self.dies()) + ["blue_0"] * (self.t >= self.when) + ["red_1"]

    def seen(self, agent: Any) -> Any:
        all_ = np.array([self.ticket, self.t / self.length, self.last[agent]], np.float32)
        return all_[: SIZE - self.number(agent) % 2]

    def pays(self, agent: Any) -> Any:
        return 1.0 - (self.last[agent] - self.ticket) ** 2 + 0.1 * self.last["red_1"]

    def ends(self, agent: Any) -> tuple[Any, Any]:
        return agent == "red_0" and self.t == self.dies(), self.t == self.length


class RelayNan(Relay):
    """The second agent's reward is no number after step `when` + 3 of some episodes."""

    def pays(self, agent: Any) -> Any:
        spoilt = agent == "blue_0" and self.ticket < 0.1 and self.t == self.when + 3
        return float("nan") if spoilt else super().pays(agent)


class Masks(Crew):
    """`info` says what is legal: of the first agent all but the first action at odd steps, of the second all."""

    def info(self, agent: Any) -> Any:
        return {"action_mask": np.array([self.number(agent) == 1 or self.t % 2 == 0, True, True], np.int8)}


class MasksOne(Masks):
    """The second agent gives no mask."""

    def info(self, agent: Any) -> Any:
        return {} if self.number(agent) else super().info(agent)


class MasksDies(Dies, Masks):
    """The first agent dies, and masks are given."""


class MasksCut(IsCut):
    """The first agent is cut at step `when`; masks are given at every step, the last one too: all but the first choice.
    `blank`: that last one leaves nothing."""

    def __init__(self, blank: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.blank = blank

    def info(self, agent: Any) -> Any:
        sizes = {"discrete": 3, "multidiscrete": 5, "threefold": 9}
        mask = np.ones(sizes[self.kind], np.int8)
        mask[0] = 0
        return {"action_mask": mask * (not (self.blank and agent not in self.agents))}


class MasksBoth(MasksCut):
    """The first agent dies at step `when`, and its episode is cut there, too."""

    def ends(self, agent: Any) -> tuple[Any, Any]:
        return self.now and not self.number(agent), super().ends(agent)[1]


class MasksOnce(Crew):
    """`info` says what is legal in the first episode alone: all but the first action."""

    episodes = 0

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episodes += 1
        return super().reset(seed, options)

    def info(self, agent: Any) -> Any:
        return {"action_mask": np.array([0, 1, 1], np.int8)} if self.episodes == 1 else {}


class Sees(Masks):
    """Masks are part of the observation."""

    def sees(self, i: int) -> spaces.Space[Any]:
        return spaces.Dict({"observation": super().sees(i), "action_mask": spaces.Box(0, 1, (3,), np.int8)})

    def seen(self, agent: Any) -> Any:
        return {"observation": super().seen(agent), **super().info(agent)}

    def info(self, agent: Any) -> Any:
        return {}


class MasksNumbers(Crew):
    """`info` rules out the first agent's first number at odd steps; it has two."""

    def info(self, agent: Any) -> Any:
        return {"action_mask": np.array([self.number(agent) == 1 or self.t % 2 == 0, True], np.int8)}


class SeesNumbers(MasksNumbers):
    """The same in observations."""

    def sees(self, i: int) -> spaces.Space[Any]:
        return spaces.Dict({"observation": super().sees(i), "action_mask": spaces.Box(0, 1, (2,), np.int8)})

    def seen(self, agent: Any) -> Any:
        return {"observation": super().seen(agent), **super().info(agent)}

    def info(self, agent: Any) -> Any:
        return {}


class Sets(Crew):
    """The environment sets the second agent's next action after odd steps, or even ones, and would take no other."""

    SET: ClassVar[dict[str, Any]] = {
        "discrete": 2,
        "continuous": np.array([4.0, 1.0], np.float32),
        "multidiscrete": np.array([1, 2]),
        "multibinary": np.array([1, 0], np.int8),
    }

    def __init__(self, even: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.even = even

    @property
    def sets(self) -> bool:
        return (self.t % 2 == 0) == self.even

    def info(self, agent: Any) -> Any:
        return {"env_defined_actions": self.SET[self.kind] if self.sets and self.number(agent) == 1 else None}

    def step(self, actions: dict[Any, Any]) -> Any:
        if self.sets and not np.array_equal(actions["ant_1"], self.SET[self.kind]):
            raise ValueError(f"action {actions['ant_1']} is not what was set")
        return super().step(actions)


class Pixels(Crew):
    """Two agents that see images of bytes."""

    def sees(self, i: int) -> spaces.Space[Any]:
        return spaces.Box(0, 255, (4, 5, 3), np.uint8)

    def seen(self, agent: Any) -> Any:
        return np.full((4, 5, 3), int(self.ticket * 255) // (1 + self.t), np.uint8)


class Views(Pixels):
    """Two agents that see unlike images."""

    def sees(self, i: int) -> spaces.Space[Any]:
        return spaces.Box(0, 255, (4, 5 + i, 3), np.uint8)


class Mixed(Crew):
    """Agents with unlike kinds of actions."""

    def does(self, i: int) -> spaces.Space[Any]:
        return spaces.Box(-1.0, 1.0, (1,), np.float32) if i else spaces.Discrete(2)


class Several(Crew):
    """Agents with unlike MultiDiscrete actions."""

    def does(self, i: int) -> spaces.Space[Any]:
        return spaces.MultiDiscrete([2, 3 + i])


class Desks(Crew):
    """Agents whose actions are a choice and a number at once."""

    def does(self, i: int) -> spaces.Space[Any]:
        return spaces.Tuple((spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,))))


class Words(Crew):
    """The second agent sees text."""

    def sees(self, i: int) -> spaces.Space[Any]:
        return spaces.Text(4) if i else super().sees(i)


class NanReward(Crew):
    """The second agent's reward is no number at step `when`."""

    def pays(self, agent: Any) -> Any:
        return float("nan") if self.now and self.number(agent) else super().pays(agent)


class NanObs(Crew):
    """The second agent's observation is not finite at step `when`."""

    def seen(self, agent: Any) -> Any:
        return np.full(SIZE, np.nan if self.now and self.number(agent) else 0.0, np.float32)


class MaskedOut(Masks):
    """The second agent has no legal action after step `when`."""

    def info(self, agent: Any) -> Any:
        return {"action_mask": np.zeros(3, np.int8)} if self.now and self.number(agent) else super().info(agent)


class DeadNan(Dies):
    """The dead go on giving what is no number."""

    def step(self, actions: dict[Any, Any]) -> Any:
        observed, rewards, *rest = super().step(actions)
        if self.t > self.when:
            observed["ant_0"], rewards["ant_0"] = np.full(SIZE, np.nan, np.float32), float("nan")
        return observed, rewards, *rest


class Forgets(Crew):
    """The second agent is missing in one of the dictionaries of step `when`, or of the reset."""

    def __init__(self, what: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.what = what

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observed, infos = super().reset(seed, options)
        return ({"ant_0": observed["ant_0"]} if self.when == 0 else observed), infos

    def step(self, actions: dict[Any, Any]) -> Any:
        result = super().step(actions)
        if self.now:
            del result[self.what]["ant_1"]
        return result


class ForgetsMask(Masks):
    """The second agent's mask is missing at step `when`."""

    def info(self, agent: Any) -> Any:
        return {} if self.now and self.number(agent) else super().info(agent)


class LateMask(Crew):
    """A mask is given at step `when` alone."""

    def info(self, agent: Any) -> Any:
        return {"action_mask": np.ones(3, np.int8)} if self.now else {}


class LateSet(Crew):
    """An action is set at step `when`, of which no reset spoke."""

    def info(self, agent: Any) -> Any:
        return {"env_defined_actions": 1} if self.now else {}


class Gives(Crew):
    """Gives a wrong value in one place at step `when`."""

    WRONG: ClassVar[dict[str, Any]] = {
        "shape": np.zeros(SIZE + 1, np.float32),
        "reward": "much",
        "end": 1,
        "mask": np.ones(4, np.int8),
        "set": 5,
        "info": "none",
    }

    def __init__(self, wrong: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.wrong = wrong

    def value(self, agent: Any, what: str, right: Any) -> Any:
        return self.WRONG[what] if self.now and self.number(agent) and self.wrong == what else right

    def seen(self, agent: Any) -> Any:
        return self.value(agent, "shape", super().seen(agent))

    def pays(self, agent: Any) -> Any:
        return self.value(agent, "reward", super().pays(agent))

    def ends(self, agent: Any) -> tuple[Any, Any]:
        return self.value(agent, "end", False), self.t == self.length

    def info(self, agent: Any) -> Any:
        known = {"action_mask": np.ones(3, np.int8), "env_defined_actions": None}
        known |= {"action_mask": self.value(agent, "mask", known["action_mask"])}
        return self.value(agent, "info", known | {"env_defined_actions": self.value(agent, "set", None)})


class Lists(Crew):
    """A step gives lists."""

    def step(self, actions: dict[Any, Any]) -> Any:
        observed, *rest = super().step(actions)
        return [*observed.values()], *rest


class Four(Crew):
    """A step gives too little."""

    def step(self, actions: dict[Any, Any]) -> Any:
        return super().step(actions)[:4]


class Grows(Crew):
    """Other `possible_agents` from the second episode on."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.possible_agents = [*self.IDS, "ant_2"][: 2 + (self.t > 0)]
        return super().reset(seed, options)


class Empty(Crew):
    """Nobody is there."""

    def living(self) -> list[Any]:
        return []


class Stranger(Crew):
    """Someone unknown comes."""

    def living(self) -> list[Any]:
        return [*self.IDS, *(["fly_0"] if self.now else [])]

    def seen(self, agent: Any) -> Any:
        return np.zeros(SIZE, np.float32)

    def pays(self, agent: Any) -> Any:
        return 0.0


class Raises(Crew):
    """Raises in the middle of an episode."""

    def pays(self, agent: Any) -> Any:
        if self.now:
            raise RuntimeError("the motor broke")
        return super().pays(agent)


class Hangs(Crew):
    """Does not return."""

    def pays(self, agent: Any) -> Any:
        while True:
            time.sleep(0.01)


class Endless(Crew):
    """Never ends."""

    def ends(self, agent: Any) -> tuple[Any, Any]:
        return False, False


class OwnLimit(Crew):
    """Calls its time limit a termination."""

    def ends(self, agent: Any) -> tuple[Any, Any]:
        return self.t == self.length, False


class Draws(Crew):
    """Does not depend on its seed alone."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(None, options)


class Absent(Crew):
    """The first agent never comes."""

    def living(self) -> list[Any]:
        return [*self.IDS[1:]]


class Nameless(Crew):
    """Says not who its agents are."""

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = []


class Twins(Crew):
    """Two agents have one name."""

    IDS = (1, "1")


class Spaceless(Crew):
    """Has no space for an agent."""

    def observation_space(self, agent: Any) -> Any:
        return None


class Doubled(BaseParallelWrapper[Any, Any, Any]):
    """Pays so many times as much."""

    def __init__(self, env: Any, times: float = 2.0) -> None:
        super().__init__(env)
        self.times = times

    def step(self, actions: dict[Any, Any]) -> Any:
        observed, rewards, *rest = super().step(actions)
        return observed, {agent: self.times * reward for agent, reward in rewards.items()}, *rest


class Turns(AECEnv[Any, Any, Any]):
    """Two agents take turns at counting to four; who counts is paid its action. Who waits has no legal action."""

    metadata: ClassVar[dict[str, Any]] = {"name": "turns", "render_modes": [], "is_parallelizable": False}
    render_mode: str | None = None

    def __init__(self) -> None:
        self.possible_agents = ["x", "y"]

    def observation_space(self, agent: Any) -> spaces.Space[Any]:
        mask = spaces.Box(0, 1, (3,), np.int8)
        return spaces.Dict({"observation": spaces.Box(0.0, 9.0, (1,), np.float32), "action_mask": mask})

    def action_space(self, agent: Any) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def observe(self, agent: Any) -> Any:
        mask = np.full(3, agent == self.agent_selection, np.int8)
        return {"observation": np.array([self.count], np.float32), "action_mask": mask}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.agents, self.count, self.agent_selection = [*self.possible_agents], 0, "x"
        self.rewards, self._cumulative_rewards = dict.fromkeys("xy", 0.0), dict.fromkeys("xy", 0.0)
        self.terminations, self.truncations = dict.fromkeys("xy", False), dict.fromkeys("xy", False)
        self.infos: dict[str, Any] = {"x": {}, "y": {}}

    def step(self, action: Any) -> None:
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        agent, self.count = self.agent_selection, self.count + 1
        self.rewards = {each: float(action) if each == agent else -float(action) for each in "xy"}
        self.terminations = dict.fromkeys("xy", self.count == 4)
        self.agent_selection = "y" if agent == "x" else "x"


def alone() -> gymnasium.Env[Any, Any]:
    """A single agent's environment, made by a function."""
    return gymnasium.make("CartPole-v1")


def nothing() -> int:
    """No environment at all."""
    return 3


class Drawn(Relay):
    """Draws itself: the picture's first number counts the steps."""

    metadata: ClassVar[dict[str, Any]] = {"name": "drawn", "render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, kind: str = "discrete", render_mode: str | None = None) -> None:
        super().__init__(kind)
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((8, 9, 3), self.t, np.uint8)


class DrawnSets(Sets):
    """The same, where the environment sets actions."""

    metadata = Drawn.metadata

    def __init__(self, kind: str = "discrete", render_mode: str | None = None) -> None:
        super().__init__(kind)
        self.render_mode = render_mode

    render = Drawn.render


class DrawnTurns(Turns):
    """The same, where agents take turns; who has one and none are legal raises."""

    metadata: ClassVar[dict[str, Any]] = {**Drawn.metadata, "is_parallelizable": False}

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((8, 9, 3), self.count, np.uint8)


def incomplete() -> None:
    """Needs what is not installed, and says so as PettingZoo does."""
    raise ImportError("no luck") from ModuleNotFoundError("No module named 'bees'", name="bees")


if "tests/Crew-v0" not in pettingzoo.parallel_registry:
    pettingzoo.register("parallel", "tests/Crew-v0", Crew)


class Guest(ParallelEnv[Any, Any, Any]):
    """Two agents, of which the second is paid 1 at each of `steps` steps, `choosy`: not for its first action. The first
    comes after `since` of them and is there `until` another one: then it goes, `how` it does. The last step
    ends the episode for the second, how says `last`. `legal` is the only action that the second may take, the first
    agent then may take the other ones alone."""

    metadata: ClassVar[dict[str, Any]] = {"name": "guest", "render_modes": []}
    render_mode: str | None = None

    def __init__(
        self, kind: str = "discrete", how: str = "dies", since: int = 0, until: int = 1, steps: int = 3,
        last: str = "dies", choosy: bool = False, choices: tuple[int, int] = (2, 2), legal: int | None = None,
    ) -> None:  # fmt: skip
        self.legal = legal
        self.possible_agents, self.agents, self.t = ["guest_0", "host_0"], [], 0
        self.how, self.since, self.until, self.steps, self.last_how, self.choosy = (
            how,
            since,
            until,
            steps,
            last,
            choosy,
        )
        box = spaces.Box(-9.0, 9.0, (1,), np.float32)
        self._does = {
            agent: spaces.Box(-1.0, 1.0, (1,), np.float32) if kind == "continuous" else spaces.Discrete(n)
            for agent, n in zip(self.possible_agents, choices, strict=True)
        }
        self._sees = dict.fromkeys(self.possible_agents, box)

    def observation_space(self, agent: Any) -> spaces.Space[Any]:
        return self._sees[agent]

    def action_space(self, agent: Any) -> spaces.Space[Any]:
        return self._does[agent]

    def there(self) -> list[Any]:
        return ["guest_0"] * (self.since <= self.t < self.until) + ["host_0"] * (self.t < self.steps)

    def seen(self, agent: Any) -> Any:
        at = self.t if self.steps > 1 else 0  # of one step there is one state
        return np.array([2.0 if agent == "guest_0" else 1.5 * (at - 1)], np.float32)

    def info(self, agent: Any) -> Any:
        if self.legal is None:
            return {}
        own = np.arange(self._does[agent].n) == self.legal
        return {"action_mask": (own if agent == "host_0" else ~own).astype(np.int8)}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.t = 0
        self.agents = self.there()
        return {agent: self.seen(agent) for agent in self.agents}, {agent: self.info(agent) for agent in self.agents}

    def step(self, actions: dict[Any, Any]) -> Any:
        before, self.t = self.agents, self.t + 1
        self.agents = self.there()
        how = {"guest_0": self.how, "host_0": self.last_how}
        gone = {agent: how[agent] for agent in before if agent not in self.agents}
        shown = [*dict.fromkeys((*before, *self.agents))]
        return (
            {agent: self.seen(agent) for agent in shown},
            {agent: float(agent == "host_0" and not (self.choosy and actions[agent] == 0)) for agent in shown},
            {agent: gone.get(agent) == "dies" for agent in shown},
            {agent: gone.get(agent) == "is cut" for agent in shown},
            {agent: self.info(agent) for agent in shown},
        )


class Comings(Relay):
    """Unlike agents that come, die, are cut, leave and come back, as the seed has it; after `length` steps all that are
    there are cut. What they see and are paid is drawn, too. `log` keeps every step as it was given."""

    def __init__(self, kind: str = "discrete", length: int = 8, masks: bool = False) -> None:
        super().__init__(kind, length)
        self.log: list[dict[str, Any]] = []
        self.masks = masks

    def living(self) -> list[Any]:
        if self.t == 0:
            self.rng = np.random.default_rng(int(1e6 * self.ticket))
            self.ended: dict[Any, tuple[bool, bool]] = {}
            return [agent for agent in self.IDS if agent == "red_1" or self.rng.random() < 0.7]
        goes = {agent: self.rng.choice(["stays"] * 7 + ["dies", "is cut", "leaves"]) for agent in self.agents}
        goes = dict.fromkeys(goes, "is cut") if self.t == self.length else goes
        self.ended = {agent: (how == "dies", how == "is cut") for agent, how in goes.items()}
        stay = [agent for agent, how in goes.items() if how == "stays"]
        return [
            agent for agent in self.IDS if agent in stay or (stay and agent not in goes and self.rng.random() < 0.4)
        ]

    def ends(self, agent: Any) -> tuple[Any, Any]:
        return self.ended.get(agent, (False, False))

    def seen(self, agent: Any) -> Any:
        return np.append([np.float32(self.ticket)], self.rng.normal(size=SIZE - 1))[
            : SIZE - self.number(agent) % 2
        ].astype(np.float32)

    def pays(self, agent: Any) -> Any:
        return float(self.rng.normal())

    def info(self, agent: Any) -> Any:
        if not self.masks:
            return {}
        mask = (self.rng.random(2 + self.number(agent)) < 0.5).astype(np.int8)
        mask[int(self.rng.integers(len(mask)))] = 1
        return {"action_mask": mask}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.shown = super().reset(seed, options)
        return self.shown

    def step(self, actions: dict[Any, Any]) -> Any:
        before, (obs, infos) = self.agents, self.shown
        self.t, after = self.t + 1, None
        self.given = dict(actions)
        after = self.living()
        everyone = [*dict.fromkeys((*before, *after))]
        ends = {agent: self.ends(agent) for agent in everyone}
        self.agents = after
        self.shown = {a: self.seen(a) for a in everyone}, {a: self.info(a) for a in everyone}
        rewards = {agent: self.pays(agent) for agent in everyone}
        terminated, truncated = ({agent: bool(end[i]) for agent, end in ends.items()} for i in (0, 1))
        self.log.append({
            "before": before, "after": after, "obs": obs, "infos": infos, "actions": actions, "rewards": rewards,
            "terminated": terminated, "next_obs": self.shown[0], "next_infos": self.shown[1],
        })  # fmt: skip
        return self.shown[0], rewards, terminated, truncated, self.shown[1]
