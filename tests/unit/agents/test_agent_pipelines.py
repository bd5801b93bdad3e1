"""`pipelines/agent-*`: what they imitate, ask and reward, without learning."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="an extra of its own: pip install 'evopipe[language]'")

from evopipe.agents import CallingAgent, Model, ModelOutput
from evopipe.agents.adapters.tools import ToolClass
from tiny import ROOT


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports what a pipeline's trainer is made by."""

    def found(name: str, folder: str | None = None) -> Any:
        monkeypatch.syspath_prepend(str(ROOT / "pipelines" / f"agent-{folder or name.replace('_', '-')}"))
        return import_module(name)

    return found


def test_demonstrations_call_the_calculator_in_the_agents_own_form(module: Any) -> None:
    calculator = module("calculator")
    ask, careless, roughly = (
        calculator.Demonstrations({way: 1.0}).chat(34, 56, np.random.default_rng(0))
        for way in ("ask", "careless", "roughly")
    )
    assert [message["role"] for message in ask] == ["user", "assistant", "tool", "assistant"]
    agent, env = calculator.ToolAgent(), calculator.Calculator({"question": "34*56", "answer": "1904"})
    agent.reset()
    agent.update_from_env(env.reset()[0], 0.0, False, {})
    for said, reward in zip(ask[1::2], (0.0, 1.0), strict=True):
        observation, earned, done, info = env.step(agent.update_from_model(said["content"]).action)
        assert earned == reward
        agent.update_from_env(observation, earned, done, info)
    assert agent.chat_completions == ask
    assert [message["content"] for message in careless[1:]][1:] == ["1156", "1156"]
    assert [message["content"] for message in roughly] == ["34*56", "1900"]


@pytest.mark.parametrize(("name", "key"), [("calculator", "question"), ("solver_judge", "digits")])
def test_nobody_imitates_or_learns_tasks_of_validation(name: str, key: str, module: Any) -> None:
    found = module(name)
    trainer = found.make([])
    held = {task[key] for task in trainer.val_dataset}
    assert len(held) >= 180
    assert held.isdisjoint(task[key] for task in trainer.train_dataset)
    rows = found.Demonstrations().rows(np.random.default_rng(3), 300)
    assert held.isdisjoint(row["messages"][0]["content"].partition("?")[0] for row in rows)


class Says(Model):
    """A model of which it is known what it will say."""

    def __init__(self, *words: str) -> None:
        self.words, self.asked = list(words), []

    async def get_model_response(self, messages: Any, **how: Any) -> ModelOutput:
        self.asked.append(messages[-1]["content"])
        word = self.words.pop(0)
        return ModelOutput(text=word, content=word, completion_ids=[1])


@pytest.mark.parametrize(
    ("words", "asked", "rewards"),
    [
        (("8", "y", "y"), ["3841", "3841?8", "3841?4"], [1.0, 1.0, 0.0]),
        (("3", "n", "y"), ["3841", "3841?3", "3841?8"], [0.0, 1.0, 1.0]),
        (("", "y", "n"), ["3841", "3841?", "3841?8"], [0.0, 0.0, 0.0]),
    ],
)
def test_one_of_two_answers_that_are_judged_is_right(
    words: tuple[str, ...], asked: list[str], rewards: list[float], module: Any
) -> None:
    import asyncio

    found = module("solver_judge")
    model = Says(*words)
    workflow = found.SolverAndJudge(rollout_engine=model, executor=None)
    asyncio.run(workflow.run({"digits": "3841", "answer": "8", "other": "4"}, "0:0"))
    episode = workflow.postprocess_episode(None, {}, "0:0", None)
    assert model.asked == asked
    assert [(each.name, each.reward) for each in episode.trajectories] == list(
        zip(("solver", "judge", "judge"), rewards, strict=True)
    )
    assert episode.metrics == {"solver_acc": rewards[0], "judge_acc": sum(rewards[1:]) / 2}


def test_the_best_policy_of_a_lake_is_worth_what_a_table_of_all_outcomes_says(module: Any) -> None:
    """Its expected return, from the start, by passing the chances of all places on from turn to turn."""
    lake = module("frozenlake")
    env, policy = lake.FrozenLake(), lake.best()
    chances, earned = {(0, 0): 1.0}, 0.0
    for turn in range(lake.TURNS):
        after: dict[Any, float] = {}
        for place, chance in chances.items():
            move = env.MOVES[policy[turn][place]]
            aside = [(move[1], move[0]), (-move[1], -move[0])]
            for way, part in [(move, 1 - lake.SLIP), *((side, lake.SLIP / 2) for side in aside)]:
                r, c = env.moved(place, way)
                if env.map[r][c] == "G":
                    earned += chance * part
                elif env.map[r][c] != "H":
                    after[r, c] = after.get((r, c), 0.0) + chance * part
        chances = after
    mean = lake.best_return([{"seed": seed} for seed in range(1000)])
    assert abs(mean - earned) <= 4 * np.sqrt(earned * (1 - earned) / 1000)
    for place, better in [((1, 0), "l"), ((2, 0), "r"), ((3, 2), "r")]:
        assert policy[-2 if place == (3, 2) else 0][place] == better


def test_a_walker_sees_the_lake_as_it_is_now(module: Any) -> None:
    lake = module("frozenlake")
    agent, env = lake.Walker(), lake.FrozenLake()
    agent.update_from_env(env.reset()[0], 0.0, False, {})
    observation, reward, done, info = env.step(agent.update_from_model("d").action)
    agent.update_from_env(observation, reward, done, info)
    assert agent.chat_completions == [{"role": "user", "content": "SFFF\nPHFH\nFFFH\nHFFG"}]


def test_a_search_for_the_key_is_shown_in_the_agents_own_form(module: Any) -> None:
    """Who always follows the notes finds the key; who always looks where he has been, never."""
    find_key = module("find_key", "tools")
    task = {"rooms": ["12", "57", "90"]}
    for attentive, reward, rooms in ((1.0, 1.0, ["12", "57", "90"]), (0.0, 0.0, ["12", "12", "12"])):
        chat = find_key.Demonstrations(attentive).chat(task["rooms"], np.random.default_rng(0))
        agent, env = CallingAgent(show_tools=False), ToolClass.from_dict({"environment": find_key.FindKey, **task})
        observation, info = env.reset()
        agent.update_from_env(observation, 0.0, False, info)
        looked: list[str] = []
        for message in chat[1::2]:
            action = agent.update_from_model(message["content"]).action
            looked += [call["arguments"]["room"] for call in action["calls"]]
            observation, _, _, info = env.step(action)
            agent.update_from_env(observation, 0.0, False, info)
        assert looked == rooms
        assert env.compute_final_reward() == reward
        shown = [{key: message[key] for key in ("role", "content")} for message in agent.chat_completions]
        assert shown == chat


def test_the_key_is_searched_in_rooms_that_nobody_trained_on(module: Any) -> None:
    find_key = module("find_key", "tools")
    held = [task["rooms"] for task in find_key.held_out()]
    assert len(held) == 100
    rows = find_key.Demonstrations().rows(np.random.default_rng(3), 300)
    assert all(len({*rooms}) == find_key.LOOKS for rooms in held)
    trainer = find_key.make(["agents.environment=find_key:FindKey"])
    assert not [task for task in trainer.train_dataset if task["rooms"] in held]
    assert trainer.env_args == {"environment": find_key.FindKey}
    assert len(rows) == 300


def test_who_halves_what_is_left_finds_every_digit_and_earns_1(module: Any) -> None:
    env, found = module("guess").Guess(), set()
    for seed in range(40):
        told, _ = env.reset(seed=seed)
        earned, over = 0.0, False
        while not over:
            assert env.observation_space.contains(told)
            told, reward, over, _, _ = env.step(str((int(told[0]) + int(told[1])) // 2))
            earned += reward
        found.add(env.hidden)
        assert earned == pytest.approx(1.0)
    assert found == set(range(1, 8))


def test_a_guess_that_says_nothing_new_earns_nothing(module: Any) -> None:
    env = module("guess").Guess()
    env.reset(seed=0)
    env.hidden = 6
    assert env.step("3")[:3] == ("47", pytest.approx(1 - np.log(4) / np.log(7)), False)
    assert env.step("3")[:3] == ("47", 0.0, False)
    assert env.step("1")[:3] == ("47", 0.0, True)
