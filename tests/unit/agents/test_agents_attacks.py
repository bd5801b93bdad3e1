"""What users' code may do beside raising and hanging: none of it ends a run, leaks, or reaches another episode."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pytest

pytest.importorskip("transformers")

import words
from evopipe import AgentTrainer
from evopipe.agents import (
    BaseEnv,
    ChatAgent,
    CopyGame,
    Episode,
    ModelOutput,
    MultiTurnWorkflow,
    Step,
    TerminationReason,
    Trajectory,
    Workflow,
)
from evopipe.agents.engine import Cancelled, Done, EpisodeJob, RolloutEngine
from evopipe.agents.model import Limits, Model, Reply, Sampled, Tokens
from evopipe.agents.rows import rows_of
from evopipe.agents.settings import Agents

CHAT = [{"role": "user", "content": "0"}]
DONE, ERROR, TIMEOUT = TerminationReason.ENV_DONE, TerminationReason.ERROR, TerminationReason.TIMEOUT


def play(make: Any, n: int = 1, agents: Agents | None = None, grace: float = 0.2, **more: Any) -> list[Done]:
    """Play so many episodes of a workflow; every completion says "1"."""
    stopped = more.pop("stopped", lambda: False)
    engine = RolloutEngine(
        make, Tokens(words.base()), Limits(64, 4), lambda wave: [Reply([8], [-1.0], [0.5]) for _ in wave],
        agents or Agents(retries=0), grace=grace, **more,
    )  # fmt: skip
    return engine.run([EpisodeJob(0, i, f"{i}:0", {"n": i}, Sampled()) for i in range(n)], stopped)


def flow(function: Any) -> Any:
    """A workflow of which a function is `run`, of the first episode; any other asks the model once."""

    class Own(Workflow):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Any:
            if task["n"] == 0:
                return await function(self)
            out = await self.rollout_engine.get_model_response(CHAT)
            step = Step.from_model_output(out, CHAT)
            return Episode(trajectories=[Trajectory(steps=[step], reward=1.0)], termination_reason=DONE)

    return Own


def reasons(done: list[Done]) -> list[Any]:
    return [each.episode.termination_reason for each in done]


def message(done: Done) -> str:
    return str(done.episode.info["error"]["error_message"])


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_tasks_that_a_workflow_forgets_end_with_it() -> None:
    cancelled: list[str] = []

    async def forgets(self: Workflow) -> Episode:
        async def linger() -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append("sleep")
                raise

        async def ask() -> None:
            try:
                while True:
                    await self.rollout_engine.get_model_response([{"role": "user", "content": "2"}])
            except asyncio.CancelledError:
                cancelled.append("ask")
                raise

        self.kept = [asyncio.create_task(linger()), asyncio.create_task(ask())]  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)
        return Episode(termination_reason=DONE)

    done = play(flow(forgets), 2)
    assert reasons(done) == [DONE, DONE]
    assert sorted(cancelled) == ["ask", "sleep"]


@pytest.mark.thorough
def test_a_coroutine_that_will_not_be_cancelled_is_left_behind() -> None:
    async def stubborn(self: Workflow) -> None:
        for _ in range(100):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    words.base()  # the first one imports transformers, which takes seconds
    began = time.monotonic()
    done = play(flow(stubborn), 2, Agents(episode_seconds=0.5, wave_seconds=0.1, retries=0), grace=0.05)
    assert reasons(done) == [TIMEOUT, DONE]
    assert time.monotonic() - began < 4.5  # it would go on for five seconds


def test_a_workflow_whose_own_task_is_cancelled_fails_alone() -> None:
    async def cancels(self: Workflow) -> None:
        inner = asyncio.create_task(asyncio.sleep(60))
        asyncio.get_running_loop().call_soon(inner.cancel)
        await inner

    done = play(flow(cancels), 2)
    assert reasons(done) == [ERROR, DONE]
    assert "CancelledError" in message(done[0])


def test_calls_of_one_episode_are_drawn_alike_whichever_thread_comes_first() -> None:
    seen: list[list[tuple[str, int]]] = []
    tokens = Tokens(words.base())

    class Two(Workflow):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> None:
            async def ask(digit: str, seconds: float) -> None:
                await self.run_in_executor(time.sleep, seconds)
                await self.rollout_engine.get_model_response([{"role": "user", "content": digit}])

            await asyncio.gather(ask("1", self.late[0]), ask("2", self.late[1]))

        late: ClassVar[list[float]] = []

    def decode(wave: Any) -> list[Reply]:
        seen.append([(words.base().decode(request.ids), request.call) for request in wave])
        return [Reply([8], [-1.0], [0.5]) for _ in wave]

    for late in ([0.0, 0.05], [0.05, 0.0]):
        Two.late = late
        RolloutEngine(Two, tokens, Limits(64, 4), decode, Agents(retries=0)).run(
            [EpisodeJob(0, 0, "0:0", {}, Sampled())]
        )
    assert seen == [[("1", 0), ("2", 1)]] * 2  # one wave, in the order of their prompts


# --- environments -----------------------------------------------------------------------------------------------------


class Counted(BaseEnv):
    """Counts those that are open; does what it is told."""

    open: ClassVar[int] = 0
    release: ClassVar[threading.Event] = threading.Event()
    together: ClassVar[list[int]] = []

    def __init__(self, task: dict[str, Any], does: str) -> None:
        self.does = does if task["n"] == 0 else ""
        if self.does == "make":
            Counted.release.wait(30)
        Counted.open += 1

    def reset(self) -> tuple[Any, dict[str, Any]]:
        if self.does == "reset":
            Counted.release.wait(30)
        return "0", {}

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        return "", 1.0, True, {}

    def close(self) -> None:
        Counted.open -= 1
        if self.does == "close":
            raise OSError("the socket is gone")
        if self.does == "exit":
            raise SystemExit(3)
        if self.does == "hold":
            Counted.release.wait(30)


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("does", ["make", "reset", "close", "exit", "hold"])
def test_an_environment_is_closed_whatever_hangs_or_raises(
    does: str, blocking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not blocking and does in ("make", "reset", "hold"):
        return  # an environment that says that it takes no time is not timed
    monkeypatch.setattr(Counted, "blocking", blocking, raising=False)
    Counted.open = 0
    Counted.release.clear()
    make = partial(MultiTurnWorkflow, agent_cls=ChatAgent, env_cls=Counted, env_args={"does": does})
    before = threading.active_count()
    done = play(make, 3, Agents(env_seconds=0.1, retries=0), grace=0.1)
    assert reasons(done) == [TIMEOUT if does in ("make", "reset") else DONE, DONE, DONE]
    if does in ("close", "exit"):
        assert ("the socket is gone" if does == "close" else "SystemExit") in done[0].episode.info["close"]
    Counted.release.set()
    until = time.monotonic() + 10
    while (Counted.open or threading.active_count() > before) and time.monotonic() < until:
        time.sleep(0.005)
    assert (Counted.open, threading.active_count()) == (0, before)  # one that was made too late, too


def test_environments_that_are_not_safe_beside_each_other_take_turns() -> None:
    class Unsafe(Counted):
        now = 0

        @staticmethod
        def is_multithread_safe() -> bool:
            return False

        def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
            Unsafe.now += 1
            Counted.together.append(Unsafe.now)
            time.sleep(0.002)
            Unsafe.now -= 1
            return "", 1.0, True, {}

    Counted.together.clear()
    play(partial(MultiTurnWorkflow, agent_cls=ChatAgent, env_cls=Unsafe, env_args={"does": ""}), 8)
    assert Counted.together == [1] * 8


def test_a_workflow_whose_close_raises_or_is_no_coroutine_ends_alone() -> None:
    class Bad(Workflow):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Any:
            return Episode(termination_reason=DONE)

        def close(self) -> Any:
            raise RuntimeError("no")

    class Late(Bad):
        async def close(self) -> Any:
            raise RuntimeError("no")

    class Plain(Bad):
        def close(self) -> Any:
            return 7

    for kind in (Bad, Late, Plain):
        (one,) = play(kind)
        assert one.episode.termination_reason is DONE
        assert "close" in one.episode.info


# --- what a workflow returns ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "high", None])
@pytest.mark.parametrize("of", ["step", "trajectory"])
def test_a_reward_that_is_no_number_fails_its_episode_alone(of: str, reward: Any) -> None:
    async def returns(self: Workflow) -> Episode:
        out = await self.rollout_engine.get_model_response(CHAT)
        step = Step.from_model_output(out, CHAT)
        made = Trajectory(steps=[step], reward=1.0)
        (step if of == "step" else made).reward = reward
        return Episode(trajectories=[made])

    done = play(flow(returns), 2)
    assert reasons(done) == [ERROR, DONE]


def test_tokens_that_the_model_did_not_write_are_refused() -> None:
    async def foreign(self: Workflow) -> Episode:
        out = ModelOutput("1", "1", prompt_ids=[3], completion_ids=[9, 9], logprobs=[])
        return Episode(trajectories=[Trajectory(steps=[Step.from_model_output(out, CHAT)])])

    async def elsewhere(self: Workflow) -> Episode:
        return Episode(trajectories=[Trajectory(steps=[Step.from_model_output(ModelOutput("1", "1"), CHAT)])])

    done = play(flow(foreign))
    assert reasons(done) == [ERROR]
    assert "tokens that this episode's model did not write" in message(done[0])
    assert reasons(play(flow(elsewhere))) == [TerminationReason.UNKNOWN]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"temperature": "hot"}, "temperature='hot' is no number"),
        ({"temperature": float("nan")}, "temperature=nan is no number"),
        ({"temperature": -1.0}, "temperature=-1.0 is no number from 0"),
        ({"top_p": 0.0}, "top_p=0.0 is no number"),
        ({"max_tokens": "many"}, "invalid literal"),
    ],
)
def test_a_completion_that_cannot_be_drawn_fails_its_episode_alone(how: dict[str, Any], says: str) -> None:
    async def asks(self: Workflow) -> Any:
        await self.rollout_engine.get_model_response(CHAT, **how)

    done = play(flow(asks), 2)
    assert reasons(done) == [ERROR, DONE]
    assert says in message(done[0])


def test_what_an_episode_holds_is_written_whatever_it_is() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    around: dict[str, Any] = {}
    around["itself"] = around
    info = {"around": around, "shy": Shy(), "nan": float("nan"), "deep": {1: (2, {3})}}
    told = json.dumps(Episode(info=info).to_dict(), allow_nan=False)
    found = json.loads(told)["info"]
    assert (found["shy"], found["nan"], found["deep"]) == ("<Shy>", None, {"1": [2, "{3}"]})


# --- the run ----------------------------------------------------------------------------------------------------------


def test_who_asks_to_stop_does_not_wait_for_what_hangs() -> None:
    Counted.open = 0
    Counted.release.clear()
    make = partial(MultiTurnWorkflow, agent_cls=ChatAgent, env_cls=Counted, env_args={"does": "reset"})
    began = time.monotonic()
    with pytest.raises(Cancelled):
        play(make, 2, Agents(env_seconds=60.0, retries=0), grace=0.1, stopped=lambda: time.monotonic() - began > 0.1)
    assert time.monotonic() - began < 20  # of the 60 that the environment may take
    Counted.release.set()
    assert Counted.open == 0


SMALL = {
    "data.train_batch_size": 2, "data.max_response_length": 1, "actor_rollout_ref.rollout.n": 2,
    "language.tiny.characters": "0123456789", "language.tiny.hidden": 16, "language.tiny.layers": 1,
    "language.tiny.heads": 2, "language.full": True, "trainer.total_training_steps": 2, "trainer.test_freq": 2,
    "train.eval_episodes": 2, "train.confirm_episodes": 2, "evaluate.bootstrap": 100,
}  # fmt: skip


def test_a_task_that_an_episode_changes_is_whole_for_the_next() -> None:
    seen: list[Any] = []

    async def changes(task: dict[str, Any], model: Any) -> float:
        seen.append(json.dumps(task))
        task["digits"].pop()
        task["more"]["a"] = 2
        await model.get_model_response(CHAT)
        return 0.0

    tasks = [{"digits": [1, 2, 3], "more": {}}]
    AgentTrainer(flow=changes, config=SMALL, train_dataset=tasks, val_dataset=tasks).train()
    assert set(seen) == {json.dumps(tasks[0])} == {'{"digits": [1, 2, 3], "more": {}}'}


def test_prompts_that_are_all_too_long_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    config = {**SMALL, "data.max_prompt_length": 2}
    trained = AgentTrainer(
        agent_class=ChatAgent, env_class=CopyGame, config=config, train_dataset=CopyGame.tasks(4)
    ).train(quiet=False)
    assert trained.score == 0
    told = capsys.readouterr()
    assert "4 of 4 episodes of a round began with a prompt longer than" in (told.out + told.err).replace("\n", " ")


def test_a_prompt_that_the_base_has_no_places_for_ends_its_episode() -> None:
    async def long(task: dict[str, Any], model: Any) -> float:
        await model.get_model_response("1" * task["n"])
        return 1.0

    config = {**SMALL, "data.max_prompt_length": 5000}
    found = AgentTrainer(flow=long, config=config, train_dataset=[{"n": 1}]).play([{"n": 2047}, {"n": 2048}])
    assert [each["termination_reason"] for each in found] == ["env_done", "max_prompt_length_exceeded"]


def test_a_chat_goes_on_by_its_tokens_where_the_template_would_make_others_of_its_text() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    known = {token: i for i, token in enumerate([*"0123456789|", "<|end|>", "12", "2|"])}
    made: Any = PreTrainedTokenizerFast
    tokenizer = made(tokenizer_object=Tokenizer(models.BPE(known, [("1", "2"), ("2", "|")])), eos_token="<|end|>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] }}{% if m['role'] == 'user' %}|{% endif %}{% endfor %}"
    )
    base = replace(words.base(), tokenizer=tokenizer, ends=(known["<|end|>"],))
    asked: list[list[int]] = []

    async def submit(request: Any) -> Reply:
        asked.append(request.ids)
        return Reply([known["1"]], [-1.0], [0.5])

    async def talk() -> list[ModelOutput]:
        model = Model(Tokens(base), submit, 0, 0, Sampled(), Limits(64, 4))
        chat = [{"role": "user", "content": "0"}]
        for said in ("2", "2"):
            out = await model.get_model_response(chat)
            chat += [{"role": "assistant", "content": out.content}, {"role": "user", "content": said}]
        await model.get_model_response(chat)
        return model.log

    log = asyncio.run(talk())
    told = [known[each] for each in ("0", "|", "1", "2|", "1", "2|")]
    assert asked == [told[:2], told[:4], told]
    assert base.encode("0|12|12|") != told  # as its text it would be other tokens: 12 is one
    (row,) = rows_of(Trajectory(steps=[Step(model_output=out) for out in log]))
    assert sum(row.mask) == 3
