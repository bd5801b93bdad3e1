"""Ready environments of text: twenty questions, and several agents in one of PettingZoo's."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import gymnasium
import pytest

pytest.importorskip("transformers")

import words
from evopipe.agents import GymEnvironment, PettingZooEnvironment, TeamWorkflow, TerminationReason, TwentyQuestions
from evopipe.agents.engine import EpisodeJob, RolloutEngine
from evopipe.agents.games import THINGS, _calculate
from evopipe.agents.model import Limits, Reply, Sampled, Tokens
from evopipe.agents.settings import Agents
from evopipe.errors import ParamsError

PLACES = tuple("012345678")


def test_questions_are_answered_and_the_right_name_ends_the_game() -> None:
    env = TwentyQuestions.from_dict({"secret": "bee"})
    assert "wings" in env.reset()[0]
    said = [env.step(text)[:3] for text in ("Has it wings?", "is it big?", "is it blue?", "cat bee", " Bee.")]
    assert said == [("yes", 0.0, False), ("no", 0.0, False), ("I do not know that word.", 0.0, False),
                    ("no", 0.0, False), ({}, 1.0, True)]  # fmt: skip
    env.reset()
    assert [env.step("is it big?")[2] for _ in range(20)] == [False] * 19 + [True]
    with pytest.raises(ValueError, match="the secret 'moon' is none of cat"):
        TwentyQuestions({"secret": "moon"})


def test_every_thing_can_be_told_from_every_other() -> None:
    assert len({frozenset(text.split()) for text in THINGS.values()}) == len(THINGS)
    assert {task["secret"] for task in TwentyQuestions.tasks(300)} == set(THINGS)


def test_a_gymnasium_environment_is_played_by_names() -> None:
    """Of its own episode of that seed; what names no action is told, costs nothing and ends nothing."""
    env = GymEnvironment({"seed": 7}, "CartPole-v1", ("Left", "Right"), lambda obs: " ".join(f"{x:.6f}" for x in obs))
    alone = gymnasium.make("CartPole-v1")

    def shown(obs: Any) -> str:
        return " ".join(f"{x:.6f}" for x in obs)

    assert env.reset()[0] == shown(alone.reset(seed=7)[0])
    said = env.step("up")
    assert said == ("no action 'up'; there are left, right", 0.0, False, {"legal": False})
    over = False
    while not over:
        obs, reward, terminated, truncated, _ = alone.step(1)
        over = terminated or truncated
        assert env.step(" RIGHT\n") == (shown(obs), reward, over, {"legal": True})
    limited = GymEnvironment({"seed": 7}, "CartPole-v1", ("left", "right"), kwargs={"max_episode_steps": 2})
    limited.reset()
    assert [limited.step("left")[2] for _ in range(2)] == [False, True]  # cut is over, too
    plain = GymEnvironment({"seed": 7}, "CartPole-v1")
    assert plain.reset()[0] == str(alone.reset(seed=7)[0])
    assert plain.step(0)[0] == str(alone.step(0)[0])
    for each in (env, limited, plain):
        each.close()


def test_agents_that_take_turns_speak_one_after_the_other() -> None:
    env = PettingZooEnvironment({"seed": 1}, "tictactoe_v3", PLACES, lambda board, who: f"{who} {board.sum()}")
    seen, _ = env.reset()
    assert seen == {"player_1": "player_1 0"}
    assert env.step({"player_1": "4"})[:3] == ({"player_2": "player_2 1"}, {"player_1": 0.0, "player_2": 0.0}, False)
    taken = env.step({"player_2": "4"})
    assert taken[:3] == ({"player_2": "no action '4'; there are 0, 1, 2, 3, 5, 6, 7, 8"}, {}, False)
    for who, place in (("player_2", "1"), ("player_1", "0"), ("player_2", "2"), ("player_1", "8")):
        seen, rewards, over, _ = env.step({who: place})
    assert (seen, rewards, over) == ({}, {"player_1": 1.0, "player_2": -1.0}, True)
    env.close()


def test_masks_are_of_those_who_act_next_and_an_observation_without_one_is_shown_whole() -> None:
    env = PettingZooEnvironment({"seed": 1}, "tictactoe_v3", PLACES)
    env.reset()
    assert env._texts({"a": {"observation": 5, "action_mask": [0, 1]}, "b": {"observation": 6}}) == {
        "a": "5", "b": "{'observation': 6}",
    }  # fmt: skip
    assert [env._meant(who, "0")[0] for who in ("a", "b")] == [None, 0]
    assert env._texts({"b": 7}) == {"b": "7"}
    assert env._meant("a", "0")[0] == 0
    env.close()


def test_a_text_of_200_letters_is_calculated_and_no_longer_one() -> None:
    text = "1" + "+1" * 99
    assert _calculate(f"{text} ") == 100
    with pytest.raises(ValueError, match="too long"):
        _calculate(f"{text}  ")


def test_an_action_of_one_step_is_no_action_of_the_next() -> None:
    """It waits for another's that was wrong, and is gone where all have acted."""
    env = PettingZooEnvironment({"seed": 1}, "teams_for_tests:Crew", ("stay", "left", "right"), kwargs={"length": 5})
    first, second = env.reset()[0]
    assert env.step({first: "left", second: "fly"})[3] == {"legal": False}
    assert env.step({second: "right"})[3] == {}
    with pytest.raises(KeyError, match=first):
        env.step({second: "right"})


def test_agents_that_act_together_wait_for_one_that_was_not_understood() -> None:
    env = PettingZooEnvironment({"seed": 1}, "teams_for_tests:Crew", ("stay", "left", "right"), kwargs={"length": 2})
    assert sorted(env.reset()[0]) == ["ant_0", "ant_1"]
    assert env.step({"ant_0": "left", "ant_1": "jump"})[:3] == (
        {"ant_1": "no action 'jump'; there are stay, left, right"}, {}, False,
    )  # fmt: skip
    seen, rewards, over, _ = env.step({"ant_1": "right"})
    # 10 times the step, the action's number, and the agent's own
    assert (sorted(seen), rewards, over) == (["ant_0", "ant_1"], {"ant_0": 11.0, "ant_1": 13.0}, False)
    seen, rewards, over, _ = env.step({"ant_0": "stay", "ant_1": "stay"})
    assert (seen, rewards, over) == ({}, {"ant_0": 20.0, "ant_1": 21.0}, True)
    with pytest.raises(ParamsError, match="'no_such_v0' names no environment of PettingZoo"):
        PettingZooEnvironment({}, "no_such_v0")


def play(turns: list[str], workflow: Any) -> Any:
    said = itertools.count()

    def decode(wave: Any) -> list[Reply]:
        texts = [turns[next(said)] for _ in wave]
        return [Reply(words.base().encode(text), [-1.0] * len(text), [0.5] * len(text)) for text in texts]

    engine = RolloutEngine(workflow, Tokens(words.base()), Limits(512, 4), decode, Agents(retries=0))
    return engine.run([EpisodeJob(0, 0, "0:0", {"seed": 1}, Sampled())])[0].episode, engine.waves


def test_each_agent_of_a_team_is_a_role_with_its_own_rewards() -> None:
    show = {"show": lambda board, who: "0"}
    args = {"id": "tictactoe_v3", "actions": PLACES, **show}
    episode, _ = play(list("41028"), partial(TeamWorkflow, env_args=args))
    assert episode.termination_reason is TerminationReason.ENV_DONE
    told = {each.name: [step.reward for step in each.steps] for each in episode.trajectories}
    assert told == {"player_1": [0.0, 0.0, 1.0], "player_2": [0.0, -1.0]}
    cut, _ = play(list("41"), partial(TeamWorkflow, env_args=args, max_steps=2))
    assert cut.termination_reason is TerminationReason.MAX_TURNS_EXCEEDED


def test_agents_that_act_together_are_asked_in_one_wave() -> None:
    args = {"id": "teams_for_tests:Crew", "actions": ("0", "1", "2"), "kwargs": {"length": 3},
            "show": lambda seen, who: who[-1]}  # fmt: skip
    roles = {"ant_0": "ant", "ant_1": "ant"}
    episode, waves = play(list("012012"), partial(TeamWorkflow, env_args=args, roles=roles))
    assert waves == 3
    assert [each.name for each in episode.trajectories] == ["ant", "ant"]
    # of a wave the prompt that ends in 0 comes first: actions (0, 1), (2, 0), (1, 2)
    assert [[step.reward for step in each.steps] for each in episode.trajectories] == [
        [10.0, 22.0, 31.0], [12.0, 21.0, 33.0],
    ]  # fmt: skip
