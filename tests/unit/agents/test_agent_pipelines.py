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
@pytest.mark.thorough
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


def test_a_lamp_that_is_pressed_goes_off_and_what_is_none_that_is_on_costs_a_press(module: Any) -> None:
    session = module("server", "lights").Session()
    seen = set()
    for seed in range(50):
        told = session.answer({"type": "reset", "data": {"seed": seed}})["data"]
        on = told["observation"]["on"]
        seen |= {*on}
        assert len({*on}) == 3
        first, wrong, last = (
            session.answer({"type": "step", "data": {"message": said}})["data"] for said in (on[1], on[1], on[0])
        )
        assert (first["observation"]["on"], first["reward"], first["done"]) == (on[0] + on[2], 1 / 3, False)
        assert (wrong["observation"], wrong["reward"], wrong["done"]) == (first["observation"], 0.0, False)
        assert (last["observation"]["on"], last["reward"], last["done"]) == (on[2], 1 / 3, True)
    assert seen == {*"0123456789"}
    assert session.answer({"type": "state", "data": {}})["type"] == "error"


@pytest.mark.thorough
def test_the_lamps_server_is_played_at_and_a_port_that_is_taken_is_told(module: Any) -> None:
    import socket

    from evopipe.agents.adapters.openenv import OpenEnvironment
    from evopipe.errors import EnvironmentFailed

    lights = module("lights")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentFailed, match=rf"port {port}: .*in use.*; free the port, or change PORT"):
            lights.begun(port)
    env = OpenEnvironment(lights.begun(port).removeprefix("openenv:") + "/ws", task={"seed": 3})
    told, _ = env.reset()
    assert len({*told}) == 3
    env.close()


def test_a_shelf_is_found_and_counted_in_the_agents_own_form(module: Any) -> None:
    """Who counts the shelf that he found knows the answer; who counts the first one with its letter, seldom."""
    stock = module("stock")
    right = []
    for attentive in (1.0, 0.0):
        chats = [stock.Demonstrations(attentive).chat(item, np.random.default_rng(i)) for i, item in
                 enumerate(stock.items()[1])]  # fmt: skip
        right.append(np.mean([chat[-1]["content"] == stock.task(chat[0]["content"])["answer"] for chat in chats]))
    assert right[0] == 1.0
    assert right[1] <= 0.2
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
        for name in ("find", "count")
    ]
    agent, (user, *rest) = CallingAgent(show_tools=False), chats[0]
    agent.update_from_env([user], 0.0, False, {"tools": tools})
    for said, told in zip(rest[::2], [*rest[1::2], None], strict=True):
        action = agent.update_from_model(said["content"]).action
        if told is None:
            assert (action["calls"], action["content"]) == ([], rest[-1]["content"])
            break
        (call,) = action["calls"]
        assert getattr(stock.store, call["name"])(**call["arguments"]) == told["content"]
        agent.update_from_env([told], 0.0, False, {})


def test_nobody_is_shown_or_trained_on_an_item_of_validation(module: Any) -> None:
    stock = module("stock")
    own, held = stock.items()
    assert (len(held), len({*own, *held})) == (100, len(stock.store.ITEMS))
    rows = stock.Demonstrations().rows(np.random.default_rng(3), 300)
    assert {row["messages"][0]["content"] for row in rows}.isdisjoint(held)


@pytest.mark.thorough
def test_the_store_answers_as_an_mcp_server(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mcp", reason="an extra of its own: pip install 'evopipe[mcp]'")
    stock = module("stock")
    monkeypatch.chdir(ROOT / "pipelines/agent-stock")
    trainer = stock.make(["agents.environment=mcp:python store.py"])
    assert trainer.agent_class is CallingAgent
    env = trainer.env_class.from_dict({**trainer.env_args, **trainer.val_dataset.data[0], "own": True})
    try:
        env.reset()
        shelf = env.call("find", {"item": env.task["prompt"]})
        env.answer = env.call("count", {"shelf": shelf})
        assert env.compute_final_reward() == 1.0
        assert env.call("count", {"shelf": "q0"}) == "-"
    finally:
        env.close()


def test_of_a_games_long_text_the_last_hint_is_told(module: Any) -> None:
    agent = module("number").Hints()
    texts = {"Guess. Hints are 'higher' or 'lower'.": "?", "Guess. The target number is higher.": "+",
             "Guess. The target number is higher.\nThe target number is lower.\n": "-"}  # fmt: skip
    assert [agent.message(text)["content"] for text in texts] == [*texts.values()]
