"""Small parts of agents, each by hand: files of tasks, what flows return, tools, streams, and who is decoded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import words
from evopipe import AgentTrainer
from evopipe.agents import (
    ChatAgent,
    Dataset,
    Episode,
    ModelOutput,
    Step,
    TerminationReason,
    ToolAgent,
    ToolEnvironment,
    Trajectory,
    Workflow,
    protocol,
    rounds,
)
from evopipe.agents.data import DatasetRegistry
from evopipe.agents.engine import Done, EpisodeJob, RolloutEngine
from evopipe.agents.environment import SingleTurnEnvironment
from evopipe.agents.learned import first_of
from evopipe.agents.model import Limits, Reply, Request, Sampled, Tokens
from evopipe.agents.rows import RoundTrajectory, _places
from evopipe.agents.settings import Agents
from evopipe.agents.types import RewardOutput
from evopipe.agents.workflow import FlowWorkflow, _stepped
from evopipe.errors import DataError, UsageError
from evopipe.rng import Purpose
from evopipe.run.clock import Clock

CHAT = [{"role": "user", "content": "0"}]
SMALL = {
    "data.train_batch_size": 2, "data.max_response_length": 6, "actor_rollout_ref.rollout.n": 2,
    "language.tiny.characters": "0123456789", "language.tiny.hidden": 16, "language.tiny.layers": 1,
    "language.tiny.heads": 2, "language.full": True, "language.stop": ["no such"],
}  # fmt: skip


def play(make: Any, n: int = 1) -> list[Done]:
    """Play so many episodes; completions are 1, 2, 3 …, as they come."""
    base, said = words.base(), iter("123456789")

    def decode(wave: Any) -> list[Reply]:
        return [Reply(base.encode(next(said)), [-1.0], [0.5]) for _ in wave]

    engine = RolloutEngine(make, Tokens(base), Limits(64, 4), decode, Agents(retries=0))
    return engine.run([EpisodeJob(0, i, f"{i}:0", {"n": i}, Sampled()) for i in range(n)])


def flow(returns: Callable[[list[str], Any], Any], calls: int = 2, **how: Any) -> Episode:
    async def asked(task: dict[str, Any], model: Any) -> Any:
        texts = [(await model.get_model_response(CHAT)).text for _ in range(calls)]
        return returns(texts, model)

    (done,) = play(lambda **given: FlowWorkflow(asked, **how, **given))
    return done.episode


def test_what_a_flow_returns_is_its_reward_or_its_calls_or_its_own_trajectory() -> None:
    one = flow(lambda texts, model: 0.5)
    (made,) = one.trajectories
    assert (made.reward, [step.model_response for step in made.steps]) == (0.5, ["1", "2"])
    assert (one.termination_reason, one.is_correct) == (TerminationReason.ENV_DONE, True)
    each = flow(lambda texts, model: [1.0, -3.0])
    (made,) = each.trajectories
    assert ([step.reward for step in made.steps], made.reward, each.is_correct) == ([1.0, -3.0], -2.0, False)
    own = flow(lambda texts, model: Trajectory(name="own", reward=4.0, steps=[Step.from_model_output(model.log[1])]))
    (made,) = own.trajectories
    assert (made.name, made.reward, [step.model_response for step in made.steps]) == ("own", 4.0, ["2"])
    assert own.metrics == {"own_acc": 4.0}
    few = flow(lambda texts, model: [1.0])
    assert few.info["error"]["error_message"] == "the flow returned 1 rewards for 2 calls of the model"

    def length(task: dict[str, Any], text: str) -> float:
        return task["n"] + len(text) / 4

    assert flow(lambda texts, model: "".join(texts), reward_fn=length).trajectories[0].reward == 0.5
    assert flow(lambda texts, model: "12").info["error"]["error_type"] == "ValueError"


def test_a_commit_is_of_an_agent_or_a_trajectory_and_may_begin_the_agent_anew() -> None:
    class Twice(Workflow):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.agent = ChatAgent("Be brief.")

        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> None:
            for name in ("first", None):
                self.agent.update_from_env("0", 0.0, False, {})
                assert [each["role"] for each in self.agent.chat_completions] == ["system", "user"]
                out = await self.rollout_engine.get_model_response(self.agent.chat_completions)
                self.agent.update_from_model(out.text)
                self.agent.get_current_state().model_output = out
                self.commit(name, self.agent, reset=True)
            self.commit(trajectory=Trajectory(name="none"))  # without steps
            for wrong in ({}, {"agent": self.agent, "trajectory": Trajectory()}):
                with pytest.raises(ValueError, match="give either agent or trajectory"):
                    self.commit(**wrong)

    (done,) = play(Twice)
    told = [(each.name, [step.model_response for step in each.steps]) for each in done.episode.trajectories]
    assert told == [("first", ["1"]), ("agent", ["2"])]


def test_a_last_step_that_holds_nothing_is_none_and_a_trajectorys_task_is_the_episodes_unless_it_has_one() -> None:
    class Own(Workflow):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
            full = Step(CHAT, reward=1.0)
            return Episode("other", trajectories=[
                Trajectory(steps=[full, Step(reward=9.0)]), Trajectory(steps=[Step(), Step(CHAT)], task={"own": 1}),
            ])  # fmt: skip

    (done,) = play(Own)
    first, second = done.episode.trajectories
    assert ([step.reward for step in first.steps], first.reward, first.task) == ([1.0], 1.0, {"n": 0})
    assert (len(second.steps), second.task) == (2, {"own": 1})
    assert (done.episode.id, done.episode.task_id, done.episode.rollout_idx) == ("0:0", "0", 0)
    assert (done.episode.reward, Episode().reward) == (0.5, 0.0)
    assert Episode("a:b:3").task_id == "a:b"
    assert (Episode("a:b:3").rollout_idx, [each.uid for each in (first, second)]) == (3, ["0:0:0", "0:0:1"])


def test_steps_of_five_values_end_by_either_flag() -> None:
    for flags, over in (((False, False), False), ((True, False), True), ((False, True), True)):
        assert _stepped(("seen", 2, *flags, {"a": 1}), None) == ("seen", 2.0, over, {"a": 1})
    assert _stepped(("seen", 2, 1, None), None) == ("seen", 2.0, True, {})
    with pytest.raises(TypeError, match="expected \\(observation, reward, done, info\\)"):
        _stepped(("seen", 2, True), None)


def test_chats_that_continue_each_other_are_cumulative() -> None:
    a, b, c = ({"role": "user", "content": text} for text in "abc")
    for chats, says in (([[a], [a, b], [a, b, c]], True), ([[a], [a, b], [b, c, a]], False), ([[a, b], [a]], False)):
        assert Trajectory(steps=[Step(chat) for chat in chats]).is_cumulative() is says


def test_observations_are_messages_and_completions_are_calls_or_answers() -> None:
    agent, tools = ChatAgent(), ToolAgent()
    assert agent.message({"text": "t", "prompt": "p"}) == {"role": "user", "content": "p"}
    assert agent.message({"question": "q", "prompt": "p"})["content"] == "q"
    assert agent.message({"n": 1}) == {"role": "user", "content": '{"n": 1}'}
    assert agent.message({"role": "tool", "content": "x"}) == {"role": "tool", "content": "x"}
    assert tools.message({"tool_output": 3}) == {"role": "tool", "content": "3"}
    agent.update_from_env("0", 0.0, True, {})
    assert agent.chat_completions == [], "what ends an episode is not shown"
    assert tools.act('I call {"tool": "add", "input": "1"} now') == {"tool": "add", "input": "1"}
    assert tools.act('{"tool": "add"}') == {"tool": "add", "input": ""}
    for text in ('{"tool": 3}', "{broken", "7", "{}"):
        assert tools.act(text) == {"answer": text}


def test_one_turn_is_scored_once_and_tools_answer_or_say_why_not() -> None:
    env = SingleTurnEnvironment({"want": "1"}, lambda task, action: RewardOutput(float(action == task["want"])))
    assert env.reset() == ({"want": "1"}, {})
    assert env.step("1") == ({}, 1.0, True, {"turn": 1})
    assert SingleTurnEnvironment({}, lambda task, action: 3).step("")[1] == 3.0
    tools = ToolEnvironment({"want": "5"}, {"twice": lambda x: 2 * int(x)}, lambda task, text: text == task["want"], 2)
    assert tools.step({"tool": "twice", "input": "4"}) == ({"tool_output": "8"}, 0.0, False, {"tool": "twice"})
    assert tools.step({"tool": "half", "input": "4"}) == (
        {"tool_output": "error: no tool half"}, 0.0, True, {"tool": "half"},
    )  # fmt: skip
    assert tools.call("twice", "x").startswith("error: invalid literal")
    assert tools.step({"answer": 5}) == ({}, 1.0, True, {})
    assert tools.step("4")[1] == 0.0
    for kind in (SingleTurnEnvironment, ToolEnvironment):
        with pytest.raises(ValueError, match=f"{kind.__name__}: reward_fn is missing"):
            kind({})


def test_files_of_tasks_are_read_by_their_names(tmp_path: Path) -> None:
    rows = [{"a": "1", "b": "x,y"}, {"a": "2", "b": ""}]
    (tmp_path / "a.csv").write_text('a,b\n1,"x,y"\n2,\n')
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "a.jsonl").write_text("\n".join([json.dumps(rows[0]), "", json.dumps(rows[1]), ""]))
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"a": ["1", "2"], "b": ["x,y", ""]}), tmp_path / "a.parquet")
    for kind in ("csv", "json", "jsonl", "parquet"):
        found = Dataset.load_data(tmp_path / f"a.{kind}")
        assert (found.get_data(), found[1], len(found)) == (rows, rows[1], 2)
    (tmp_path / "b.json").write_text('{"a": 1}')
    with pytest.raises(DataError, match=r"b\.json: holds dict, expected a list of rows"):
        Dataset.load_data(tmp_path / "b.json")
    (tmp_path / "c.jsonl").write_text("{")
    with pytest.raises(DataError, match=r"c\.jsonl: cannot be read"):
        Dataset.load_data(tmp_path / "c.jsonl")
    with pytest.raises(DataError, match="dataset : row 1 is of type int, expected a mapping"):
        Dataset([{}, 3])  # type: ignore[list-item]


def test_splits_of_a_registry_are_removed_one_by_one_or_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".dvc").mkdir()
    for split in ("train", "test"):
        DatasetRegistry.register_dataset("sums", [{"n": 1}], split)
    assert DatasetRegistry.remove_dataset_split("sums", "train")
    assert not DatasetRegistry.remove_dataset_split("sums", "train")
    assert [DatasetRegistry.dataset_exists("sums", split) for split in ("train", "test", None)] == [False, True, True]
    assert DatasetRegistry.get_dataset_splits("sums") == ["test"]
    assert DatasetRegistry.remove_dataset("sums")
    assert not DatasetRegistry.remove_dataset("sums")
    assert not DatasetRegistry.dataset_exists("sums")
    for wrong in ("../sums", ".sums", "", "a/b", "a" * 101):
        with pytest.raises(UsageError, match="must be of letters"):
            DatasetRegistry.path(wrong)


@pytest.mark.parametrize(
    ("members", "most", "taken"),
    [
        ([3, 3], 4, [2, 2]),
        ([3, 3], 5, [2, 2]),
        ([3, 1, 3], 2, [1, 1, 1]),
        ([2, 2], 9, [2, 2]),
        ([3], 0, [0]),
        ([], 3, []),
    ],
)
def test_a_sample_has_the_first_episodes_of_each_member(members: list[int], most: int, taken: list[int]) -> None:
    done: Any = [[(member, i) for i in range(n)] for member, n in enumerate(members)]
    assert first_of(done, most) == [(member, i) for member, n in enumerate(taken) for i in range(n)]


def test_a_stream_sends_the_text_in_pieces_or_the_calls_of_tools_at_once() -> None:
    base = words.base()
    ids = base.encode("0123456789")
    out = ModelOutput(text="0123456789", completion_ids=ids)
    found = protocol.pieces(base, out, "0123456789")
    assert "".join(text for text, _ in found) == "0123456789"
    assert [i for _, places in found for i in places] == list(range(len(ids)))
    cut = protocol.pieces(base, out, "0123")  # a text that stops is none of it
    assert ("".join(text for text, _ in cut), cut[-1][1].stop) == ("0123", len(ids))
    assert protocol.deltas({"content": "x"}, found) == [({"content": text}, places) for text, places in found]
    calls = [{"id": "a"}, {"id": "b"}]
    told = [{"index": 0, "id": "a"}, {"index": 1, "id": "b"}]
    assert protocol.deltas({"content": "hm", "tool_calls": calls}, found) == [
        ({"content": "hm"}, range(0)), ({"tool_calls": told}, range(len(ids))),
    ]  # fmt: skip
    assert protocol.deltas({"content": None, "tool_calls": calls}, []) == [({"tool_calls": told}, range(0))]


def test_parts_of_a_message_are_one_text_and_nothing_else_is_read() -> None:
    body = {"model": "m", "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]},
        {"role": "assistant", "content": None}, {"role": "user", "content": "c"},
    ]}  # fmt: skip
    asked = protocol.asked(protocol.ChatAsked, json.dumps(body).encode(), "m")
    assert [each["content"] for each in asked.chat()] == ["ab", "", "c"]
    body["messages"][0]["content"][0] = {"type": "image_url"}  # type: ignore[index]
    with pytest.raises(protocol.Refused, match="a part is no text"):
        protocol.asked(protocol.ChatAsked, json.dumps(body).encode(), "m").chat()


def test_a_completion_depends_on_its_member_episode_and_call_and_on_no_other_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not on how many are decoded at a time, nor on how many other members have; each is cut at its own limit."""

    async def nothing(task: dict[str, Any], model: Any) -> float:
        return 0.0

    trainer = AgentTrainer(flow=nothing, config=SMALL, train_dataset=[{"n": 0}, {"n": 1}], population=3)
    spec, members, _ = trainer._begin()
    regime = trainer._regime(spec, Clock.of(spec, 3), None)
    cohorts = [*spec.form(members[:2]), *spec.form(members[2:])]
    ids = regime.tokens.prompt(CHAT, ())

    def request(slot: int, job: int, call: int, limit: int = 6) -> Request:
        made = Request(slot, job, call, ids, limit, Sampled(1.5), None, ())  # type: ignore[arg-type]
        made.call = call
        return made

    wave = [request(slot, job, call) for slot in (1, 0, 2) for job in range(1 + 2 * slot) for call in (0, 1)]
    wave[3] = request(wave[3].slot, wave[3].job, wave[3].call, 2)

    def decoded(wave: list[Request], tick: int = 4) -> list[tuple[list[int], list[float]]]:
        found = rounds._decode(spec, cohorts, Purpose.GENERATE, tick, wave)
        assert all(len(each.ids) == len(each.log_probs) == len(each.entropies) for each in found)
        return [(each.ids, [round(x, 4) for x in each.log_probs]) for each in found]

    together = decoded(wave)
    assert [len(ids) <= one.limit for (ids, _), one in zip(together, wave, strict=True)] == [True] * len(wave)
    assert len({str(ids) for ids, _ in together}) > len(wave) - 3
    assert [decoded([one])[0] for one in wave] == together
    assert decoded(wave[::-1]) == together[::-1]
    monkeypatch.setattr(rounds, "_AT_ONCE", 2)
    assert decoded(wave) == together
    assert decoded(wave, 5) != together


def test_values_that_a_round_learns_by_are_the_critics_own() -> None:
    """Where an algorithm learns values: of the frozen critic, whose weights are all zero here."""

    async def asked(task: dict[str, Any], model: Any) -> float:
        await model.get_model_response(CHAT)
        return float(task["n"])

    config = {**SMALL, "algorithm.adv_estimator": "gae"}
    trainer = AgentTrainer(flow=asked, config=config, train_dataset=[{"n": 0}, {"n": 1}], population=2)
    spec, members, _ = trainer._begin()
    regime = trainer._regime(spec, Clock.of(spec, 2), None)
    cohorts = spec.form(members)
    cohorts[0].state.value.values.zero_()
    regime.adopt(cohorts)
    seen: list[Any] = []
    plain = spec.algo.estimate

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spec.algo, "estimate", lambda *args: (seen.append(args), plain(*args))[1])
        regime.advance()
    (_, hyper, text, group), *_ = seen
    assert group == 2
    assert text.value is not None
    assert text.value.shape[:2] == text.reward.shape
    assert sorted(text.reward[0].tolist()) == [0.0, 0.0, 1.0, 1.0]
    assert not text.value.any()
    assert hyper is cohorts[0].hyper


def test_prompts_that_are_too_long_from_the_start_are_counted_and_told_of_once() -> None:
    async def nothing(task: dict[str, Any], model: Any) -> float:
        return 0.0

    trainer = AgentTrainer(flow=nothing, config=SMALL, train_dataset=[{"n": 0}, {"n": 1}])
    spec, members, _ = trainer._begin()
    regime = trainer._regime(spec, Clock.of(spec, len(members)), None)

    def done(steps: int, reason: TerminationReason) -> Done:
        made = [Trajectory(steps=[Step(CHAT)] * steps)]
        return Done(EpisodeJob(0, 0, "0:0", {}, Sampled()), Episode("0:0", {}, reason, False, made), 1, {})

    long = TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED
    regime._warn([done(2, long), done(0, TerminationReason.ENV_DONE)])
    assert regime.said == [], "it grew while it was played"
    for _ in range(2):
        regime._warn([done(0, long), done(2, long), done(0, long), done(1, TerminationReason.ENV_DONE)])
    (said,) = regime.said
    assert said.startswith("2 of 4 episodes of a round began with a prompt longer than language.max_prompt")


@pytest.mark.parametrize(("endpoint", "end"), [(False, "bit by bit"), (True, "lower the latter")])
def test_episodes_that_keep_the_others_waiting_too_long_are_told_of_once(endpoint: bool, end: str) -> None:
    """As those of a client that has fewer connections than there are episodes."""

    async def asks(task: dict[str, Any], model: Any) -> float:
        if not endpoint:
            await asyncio.sleep(0.15 * (task["n"] < 2))
            await model.get_model_response(CHAT)
        return 0.0

    config = {**SMALL, "agents.wave_seconds": 0.02}
    trainer = AgentTrainer(flow=asks, endpoint=endpoint, config=config, train_dataset=[{"n": n} for n in range(5)])
    spec, members, _ = trainer._begin()
    regime = trainer._regime(spec, Clock.of(spec, len(members)), None)
    if regime.outside is not None:  # what HTTP adds to the engine is the words alone
        regime.outside.close()
        regime._tell_late(2)
    else:
        cohorts = spec.form([*members])
        jobs = [EpisodeJob(0, n, f"{n}:0", {"n": n}, Sampled()) for n in range(5)]
        done = regime.play(cohorts, jobs, Purpose.GENERATE, 0, lambda: False)
        assert not [one for one in done if "error" in one.episode.info]
    regime._tell_late(0)
    regime._tell_late(3)
    (said,) = regime.said
    assert said.startswith("2 episodes asked for no completion in agents.wave_seconds (0.02 s); the others went on")
    assert said.endswith(end)


@pytest.mark.parametrize(("n", "pieces"), [(1, 1), (64, 64), (65, 33), (100, 50), (129, 43)])
def test_a_completion_is_streamed_in_at_most_64_pieces_of_equal_length(n: int, pieces: int) -> None:
    base, text = words.base(), ("0123456789" * n)[:n]
    ids = base.encode(text)
    assert len(ids) == n, "a character is a token"
    parts = protocol.pieces(base, ModelOutput(text, completion_ids=ids), text)
    assert "".join(part for part, _ in parts) == text
    assert [token for _, places in parts for token in places] == list(range(n))
    assert len(parts) == pieces


def test_groups_have_room_for_the_largest_of_any_member() -> None:
    def of(*tasks: int) -> list[RoundTrajectory]:
        return [RoundTrajectory(task, Trajectory(name="a"), True) for task in tasks]

    found = _places([of(0), of(0, 1, 0)], "a", 2)
    assert (found.group, found.size, found.of) == (2, 4, [[(0, 0)], [(0, 0), (1, 2), (2, 1)]])
