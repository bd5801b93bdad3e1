"""Environments in TRL's form and Gymnasium's text environments, as `agents.environment` and `env_class` name them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("transformers", reason="an extra of its own: pip install 'evopipe[language]'")

import adapted_envs as envs
import evopipe
from endpoints import tool_base
from evopipe.agents import CallingAgent, ChatAgent, CopyGame, adapters
from evopipe.agents.adapters.text_spaces import TextSpaces, seeds
from evopipe.agents.adapters.tools import ToolClass, schemas
from evopipe.cli import app
from evopipe.errors import EnvironmentFailed, ParamsError

SMALL = {
    "data.train_batch_size": 2, "data.max_response_length": 4, "actor_rollout_ref.rollout.n": 4,
    "language.tiny.hidden": 16, "language.tiny.layers": 1, "language.tiny.heads": 2, "language.full": True,
    "language.max_prompt": 2000, "trainer.total_training_steps": 1, "train.eval_episodes": 4,
    "train.confirm_episodes": 4, "evaluate.bootstrap": 100, "agents.retries": 0, "agents.record": "all",
}  # fmt: skip


def trainer(**changes: Any) -> evopipe.AgentTrainer:
    config = {**SMALL, **changes.pop("config", {})}
    return evopipe.AgentTrainer(config=config, **changes)


def made(cls: Any, **row: Any) -> ToolClass:
    return ToolClass.from_dict({"environment": cls, **row})


def say(env: Any, agent: CallingAgent, *texts: str) -> list[Any]:
    """Play: the agent writes these texts."""
    observation, info = env.reset()
    agent.update_from_env(observation, 0.0, False, info)
    found = []
    for text in texts:
        observation, reward, done, info = env.step(agent.update_from_model(text).action)
        agent.update_from_env(observation, reward, done, info)
        found.append((observation, reward, done))
    return found


# --- TRL's form -------------------------------------------------------------------------------------------------------


def test_public_methods_are_tools_with_schemas_of_their_hints() -> None:
    tools = {tool["function"]["name"]: tool["function"] for tool in schemas(envs.Doors)}
    assert {*tools} == {"open", "knock", "break_in", "leave"}
    assert tools["open"]["description"] == "Open a door."
    parameters = tools["open"]["parameters"]
    assert parameters["required"] == ["number"]
    assert parameters["properties"]["number"] == {"type": "integer", "description": "which, from 0 to 9."}
    assert parameters["properties"]["push"]["type"] == "boolean"


@pytest.mark.parametrize("cls", [envs.Undocumented, envs.Untyped, envs.Unnamed])
def test_a_method_of_which_no_tool_can_be_made_is_one_sentence(cls: Any) -> None:
    with pytest.raises(ParamsError, match=rf"{cls.__name__}\.go: no tool can be made of it .*begin its name with '_'"):
        adapters.find(cls)


def test_bytes_of_a_tool_are_told_as_text() -> None:
    env = made(envs.Raw)
    env.reset()
    (told,), *_ = env.step({"calls": [{"name": "read", "arguments": {}, "id": "1"}], "content": ""})
    assert told["content"] == "grün\ufffd"


def test_tools_are_called_and_what_they_return_or_raise_is_told() -> None:
    env, agent = made(envs.Doors, door=4), CallingAgent()
    told = say(
        env, agent,
        '<tool_call>{"name": "open", "arguments": {"number": 3, "push": true}}</tool_call>',
        '<tool_call>{"name": "knock", "arguments": {}}</tool_call>'
        '<tool_call>{"name": "break_in", "arguments": {}}</tool_call>',
        'open{"nomber": 4}',
        'open{"number": 4}',
        "done",
    )  # fmt: skip
    contents = [[each["content"] for each in observation] for observation, _, _ in told]
    assert contents[0] == ["pushed, closed"]
    assert contents[1] == ['{"answers": 4}', "error: the alarm rings"]
    assert contents[2][0].startswith("error: Doors.open() got an unexpected keyword argument 'nomber'")
    assert contents[3:] == [["open"], []]
    assert [done for _, _, done in told] == [False] * 4 + [True]
    assert env.compute_final_reward() == 0.5
    assert env.answer == "done"
    chat = agent.chat_completions
    assert chat[0] == {"role": "user", "content": "which?"}
    (call,) = chat[1]["tool_calls"]
    assert chat[2]["tool_call_id"] == call["id"]
    assert len(call["id"]) == 9


@pytest.mark.parametrize(
    ("prompt", "chat"),
    [
        ("Try", [{"role": "user", "content": "Try Try?"}]),
        (
            [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
            [{"role": "system", "content": "s"}, {"role": "user", "content": None}],
        ),
    ],
)
def test_what_reset_returns_is_added_to_the_rows_prompt(prompt: Any, chat: Any) -> None:
    found, info = made(envs.Doors, door=1, prompt=prompt).reset()
    if isinstance(prompt, list):
        chat[-1]["content"] = f"u {prompt}?"
    assert found == chat
    assert info["tools"] == schemas(envs.Doors)


def test_rewards_come_from_the_attribute_or_a_reward_function_too() -> None:
    env = made(envs.Owned)
    say(env, CallingAgent(), "win{}", "x")
    assert env.compute_final_reward() == 2.5
    del envs.Owned.reward, env.made.reward
    try:
        with pytest.raises(ValueError, match="neither get_reward nor an attribute reward: pass reward_fn"):
            env.compute_final_reward()
        env.reward_fn = lambda row, text: float(text == "x")
        assert env.compute_final_reward() == 1.0
    finally:
        envs.Owned.reward = 0.0


class Lookup:
    """In TRL's form, with the tool of `endpoints.tool_base`."""

    def reset(self, key: str, **row: Any) -> str:
        self.key, self.reward = key, 0.0
        return key

    def lookup(self, key: str) -> str:
        """Look up what a key stands for.

        Args:
            key: one digit.
        """
        self.reward += 0.25 if key == self.key else 0.1
        return str((3 * int(key) + 1) % 10)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.thorough
def test_tokens_are_made_once_and_what_was_done_counts_however_an_episode_ends(steps: int, tmp_path: Path) -> None:
    """A base of digits and calls, which calls by chance: its tokens stay, and its episodes are scored when cut, too."""
    rows = [{"key": str(key)} for key in range(10)]
    config = {
        "language.model": str(tool_base(tmp_path / "base")), "data.max_response_length": 1, "agents.max_steps": steps,
        "actor_rollout_ref.rollout.n": 8, "trainer.default_local_dir": str(tmp_path / "run"),
    }  # fmt: skip
    found = trainer(env_class=Lookup, config=config, train_dataset=rows).train()
    assert found.measures[-1]["failed"] == 0.0
    assert found.measures[-1]["drift"] < 1e-5
    lines = (tmp_path / "run/episodes/train-000001.jsonl").read_text().splitlines()
    cut = 0
    for episode in map(json.loads, lines):
        (turns,) = episode["trajectories"]
        calls = [step["action"]["calls"] for step in turns["steps"]]
        keys = [call["arguments"]["key"] for each in calls for call in each]
        assert turns["reward"] == pytest.approx(sum(0.25 if key == episode["task"]["key"] else 0.1 for key in keys))
        assert len(turns["rows"]) == 1
        cut += episode["termination_reason"] == "max_turns_exceeded"
        for before, after in itertools.pairwise(turns["steps"]):
            (call,) = before["chat_completions"][-1]["tool_calls"]
            answer = after["chat_completions"][-2]
            assert answer["tool_call_id"] == call["id"]
            assert answer["content"] == str((3 * int(json.loads(call["function"]["arguments"])["key"]) + 1) % 10)
    assert cut, "of 16 random episodes none called to the end"


@pytest.mark.parametrize(
    ("cls", "says"),
    [
        pytest.param(envs.Leaves, "os._exit", marks=pytest.mark.thorough),
        pytest.param(envs.Apart, "the process that this ran in died", marks=pytest.mark.thorough),
    ],
)
def test_what_exits_raises_or_hangs_costs_its_episode_alone(cls: Any, says: str) -> None:
    rows = [{"door": door} for door in range(5)]
    episodes = trainer(env_class=cls, train_dataset=rows, config={"agents.env_seconds": 4.0}).play()
    reasons = [each["termination_reason"] for each in episodes]
    assert reasons[:3] == ["error", "error", "timeout"]
    assert not {"error", "timeout"} & {*reasons[3:]}
    told = [each["info"]["error"]["error_message"] for each in episodes[:3]]
    assert says in told[0]
    assert told[1] == "'no door'"
    assert all("\n" not in text for text in told)


# --- Gymnasium's text spaces ------------------------------------------------------------------------------------------


def test_texts_go_in_and_out_and_a_seed_fixes_them() -> None:
    def played(seed: int) -> list[Any]:
        env = TextSpaces(envs.Digits, task={"seed": seed, "options": {"turns": 2}})
        shown, _ = env.reset()
        told = [env.step(text) for text in ("x", shown, "123", shown)]
        env.close()
        return [shown, *told]

    found = played(7)
    assert played(7) == found != played(8)
    first, wrong, right, long, last = found
    assert wrong[1:] == (0.0, False, {"legal": False})
    assert wrong[0].startswith("no action 'x'; actions are of Text(")
    assert right[1:3] == (1.0, False)
    assert long[3] == {"legal": False}
    assert last[2] is True
    assert first.isdecimal()


def test_numbers_of_a_discrete_space_are_actions_and_mappings_are_json() -> None:
    env = TextSpaces(envs.Choices, task={"seed": 3})
    shown, _ = env.reset()
    digit = shown[len('{"digit": "')]
    assert shown == f'{{"digit": "{digit}", "left": 3}}'
    assert env.step(digit)[1] == 1.0
    for text in ("ten", "10", "-1", "", "1.0"):
        assert env.step(text)[3] == {"legal": False}, text


def test_spaces_that_are_no_texts_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"observations are of Box\(.*, no texts: GymEnvironment shows them"):
        TextSpaces(envs.Boxes)


def test_what_a_gymnasium_environment_throws_is_one_sentence() -> None:
    run = trainer(env_class=envs.Broken, config={"language.tiny.characters": "0123456789"})
    told = [each["info"]["error"]["error_message"] for each in run.play([{"seed": seed} for seed in range(8)])]
    assert {*told} == {"'lost'", next(text for text in told if "os._exit" in text)}


# --- how they are named -----------------------------------------------------------------------------------------------


def test_one_name_in_the_configuration_or_the_program() -> None:
    by_name = trainer(config={"agents.environment": "adapted_envs:Doors"}, train_dataset=[{"door": 1}])
    by_class = trainer(env_class=envs.Doors, train_dataset=[{"door": 1}])
    by_kind = trainer(env_class="tools:adapted_envs:Doors", train_dataset=[{"door": 1}])
    for each in (by_name, by_class, by_kind):
        assert each.env_class is ToolClass
        assert each.agent_class is CallingAgent
        assert each.env_args == {"environment": envs.Doors}
    plain = adapters.find("evopipe.agents:CopyGame")
    assert plain is not None
    assert plain[:3] == (CopyGame, {}, ChatAgent)
    assert adapters.find(CopyGame) is None


def test_a_function_that_makes_environments_is_one_too() -> None:
    def doors() -> envs.Doors:
        return envs.Doors()

    found = adapters.find(doors)
    assert found is not None
    assert found.env_class is ToolClass
    with pytest.raises(EnvironmentFailed, match="making"):
        adapters.find(lambda: 1 / 0)


def test_environments_whose_tasks_are_seeds_need_no_dataset() -> None:
    run = trainer(env_class=envs.Digits)
    assert run.train_dataset is not None
    assert run.val_dataset is not None
    train, held = run.train_dataset.data, run.val_dataset.data
    assert (len(train), len(held)) == (1000, 200)
    assert not {row["seed"] for row in train} & {row["seed"] for row in held}
    assert seeds(2, 1) == [{"seed": 1_000_000}, {"seed": 1_000_001}]


@pytest.mark.thorough
def test_a_file_that_names_the_environment_is_all_that_the_command_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {**SMALL, "agents.environment": "adapted_envs:Digits", "trainer.default_local_dir": "run"}
    (tmp_path / "own.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items()))
    monkeypatch.chdir(tmp_path)
    words = ["--quiet", "agent", "train", "own.yaml", "data.max_response_length=1"]
    told = CliRunner().invoke(app, words, catch_exceptions=False)
    assert json.loads(told.stdout)["elite"]["failed"] == 0.0
    assert (tmp_path / "run/models/elite").is_dir()
    with pytest.raises(ParamsError, match=r"agents\.environment: gymnasium knows no 'No-v0'"):
        CliRunner().invoke(app, [*words, "agents.environment=gym:No-v0"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gymm:CartPole-v1", "neither 'module:Class' nor 'KIND:NAME', did you mean 'gym'"),
        ("CartPole", "neither 'module:Class' nor 'KIND:NAME'"),
        ("ws://127.0.0.1:1", "neither 'module:Class' nor 'KIND:NAME'"),
        ("gym:CartPool-v1", "gymnasium knows no 'CartPool-v1'.*did you mean 'CartPole-v1'"),
        ("adapted_envs:Dors", "has no 'Dors', did you mean 'Doors'"),
        ("no_such_module:Doors", "no module named 'no_such_module'"),
        ("adapted_envs:string", "of type module, and cannot be called"),
        ("evopipe.agents:ChatAgent", "no environment of a known kind, it has no step, close, from_dict"),
        ("tools:evopipe.agents:Model", "Model has no method 'reset'"),
        ("openenv:127.0.0.1:8000", "must have the form openenv:ws://host:port"),
        ("mcp:", "must be followed by the command"),
    ],
)
def test_names_that_name_nothing_are_one_sentence(name: str, says: str) -> None:
    with pytest.raises(ParamsError, match=says) as raised:
        trainer(config={"agents.environment": name}, train_dataset=[{"a": 1}])
    assert str(raised.value).startswith("agents.environment: ")
    assert "\n" not in str(raised.value)


def test_two_names_of_one_environment_are_refused() -> None:
    with pytest.raises(ParamsError, match="beside what the program passes: leave one of them out"):
        trainer(config={"agents.environment": "adapted_envs:Doors"}, env_class=envs.Doors, train_dataset=[{"a": 1}])


def test_a_package_brings_a_kind_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evopipe import plugins

    (tmp_path / "rooms.py").write_text(
        "from evopipe.agents import CopyGame\nfrom evopipe.agents.adapters import AdaptedEnvironment\n\n\n"
        "def adapted(name, key):\n    return AdaptedEnvironment(CopyGame, {}) if name == 'copy' else None\n"
    )
    info = tmp_path / "rooms-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rooms\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[evopipe.environments]\nrooms = rooms:adapted\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.forget()
    try:
        found = adapters.find("rooms:copy")
        assert found is not None
        assert found.env_class is CopyGame
        with pytest.raises(ParamsError, match="returned NoneType, expected an AdaptedEnvironment"):
            adapters.find("rooms:other")
    finally:
        monkeypatch.undo()
        plugins.forget()
