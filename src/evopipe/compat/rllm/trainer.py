"""`AgentTrainer`: trains language models in users' own agents, environments and workflows."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from evopipe import layout, rng
from evopipe.agents import adapters, records
from evopipe.agents.data import Tasks
from evopipe.agents.elsewhere import on_ray
from evopipe.agents.engine import Done, EpisodeJob
from evopipe.agents.model import Model, Reply, Request, Sampled
from evopipe.agents.rounds import Rounds
from evopipe.agents.types import Episode, TerminationReason
from evopipe.agents.workflow import CumulativeWorkflow, FlowWorkflow, MultiTurnWorkflow, Workflow
from evopipe.compat.rllm.arguments import (
    GIVEN_BY_US,
    check_arguments,
    check_classes,
    check_engine,
    dataset_of,
    parameters_of,
    shown,
    source_of,
)
from evopipe.compat.rllm.config import read, resolve
from evopipe.core.member import Member
from evopipe.errors import DataError, ParamsError, need_package
from evopipe.imports import frozen
from evopipe.language.data import same
from evopipe.language.policy import LanguagePolicy
from evopipe.machine import configure
from evopipe.mutations import Mutation
from evopipe.ops.statistics import summary
from evopipe.policies.loading import load
from evopipe.problems.text import describe, make_spec
from evopipe.problems.text_population import members_of
from evopipe.rng import Purpose
from evopipe.run.clock import Clock
from evopipe.run.evaluate import Episodes
from evopipe.run.problem import Problem
from evopipe.run.session import Home, Session
from evopipe.run.text import LESS, TextSpec
from evopipe.stages import export
from evopipe.storage.files import write_json
from evopipe.storage.keys import CODE, content_key, state_folder
from evopipe.track.events import Message
from evopipe.track.tracking import Tracked

_TASKS, _HELD_TASKS = 1000, 200
"""Tasks to learn from and to validate on, where the environment makes them."""


@dataclass(frozen=True)
class Trained:
    """The result of `AgentTrainer.train`.

    Attributes:
        policy: the policy of the best member, the elite; None if nothing was trained.
        score: the elite's mean return over all tasks of the final evaluation; that of the untrained base model if
            nothing was trained.
        evaluation: the results of evaluation. `evaluation["elite"]` has those of the elite by name: `mean`, `interval`,
            `pass@1`, `pass@k` …; it is missing if nothing was trained. `evaluation["base"]` has those of the untrained
            base model; it is missing if the base model was not scored before training.
        curve: a list for each generation, with seven values: the generation, the step, the training episodes and the
            validation episodes so far, the best score, the mean score, and the score of the elite.
        measures: a mapping for each generation and member, with the figures of its training rounds.
        validated: a mapping for each generation and member, with the figures of its validations.
    """

    policy: LanguagePolicy | None
    score: float
    evaluation: dict[str, Any]
    curve: list[list[Any]]
    measures: list[dict[str, Any]]
    validated: list[dict[str, Any]]


class AgentTrainer:
    """A trainer of language models in users' own agents and environments, workflows, or functions, with the arguments
    of rLLM's `AgentTrainer`.

    Args:
        workflow_class: a subclass of `Workflow`; classes of its agents and environments go into `workflow_args`.
        workflow_args: arguments of the workflow's constructor.
        agent_class: a subclass of `BaseAgent`, together with `env_class`. None: the agent that fits an adapted
            environment.
        env_class: a subclass of `BaseEnv`; or an environment of another library, as a class or a text, see
            `agents.adapters`. None: the environment that the configuration names in `agents.environment`. Name no
            environment if you pass `workflow_class` or `flow`.
        agent_args: arguments of the agent's constructor.
        env_args: arguments of the environment's constructor, in addition to those in a task.
        config: values that replace those of the default configuration. It is a mapping with dotted keys or nested
            mappings, a list of `key=value` texts, an object with nested attributes, or the path of a YAML file. The
            method `explain` shows the result.
        train_dataset: tasks to learn from: a `Dataset` or a list of mappings. None: the file `data.train_files`, or the
            tasks that an adapted environment makes.
        val_dataset: tasks of validations. None: the file `data.val_files`, or the tasks to learn from.
        test_dataset: tasks on which the best member's final score is measured, and by which no member is selected.
            None: the tasks of `val_dataset`.
        engine: `local` or `auto` to run environments in this process; `ray` to run the environments of `env_class` in
            processes of Ray, see `on_ray`, in a cluster that the configuration's `ray_init` describes.
        population: the number of members, or a mapping of `size`, `start`, `evolve`, `tournament`, `mutation`; None:
            one member.
        reward_fn: a reward function, which is passed to an environment with an argument `reward_fn`, and scores the
            text that `flow` returns.
        flow: a coroutine function `async def flow(task, model)` that plays an episode, instead of classes.
        endpoint: whether the flow calls its model over HTTP, by OpenAI's API. The flow is then a coroutine function or
            a plain function of (task, connection), with a `Connection`; or a command, as a list of words. See
            `agents.outside.OutsideWorkflow`.

    Raises:
        ValueError: classes or arguments do not fit together, or are of a wrong type.
        ParamsError: a key of the configuration is unknown, or a value cannot be used.
        DataError: a dataset is empty, or its rows are no mappings.
        MissingInputError: a dataset's file, or a package that is needed, is missing.

    Examples:
        >>> from evopipe import AgentTrainer
        >>> async def flow(task, model):
        ...     out = await model.get_model_response([{"role": "user", "content": task["question"]}])
        ...     return float(out.content == task["answer"])
        >>> tasks = [{"question": str(n), "answer": str(n)} for n in range(10)]
        >>> config = {"data.train_batch_size": 2, "data.max_response_length": 2, "actor_rollout_ref.rollout.n": 2,
        ...           "trainer.total_training_steps": 1, "language.full": True}
        >>> trainer = AgentTrainer(flow=flow, config=config, train_dataset=tasks[2:], val_dataset=tasks[:2])
        >>> 0.0 <= trainer.train().score <= 1.0
        True
    """

    def __init__(
        self, workflow_class: type[Any] | None = None, workflow_args: dict[str, Any] | None = None,
        agent_class: type[Any] | None = None, env_class: Any = None,
        agent_args: dict[str, Any] | None = None, env_args: dict[str, Any] | None = None, config: Any = None,
        train_dataset: Any = None, val_dataset: Any = None, *, engine: Literal["auto", "local", "ray"] = "auto",
        population: int | Mapping[str, Any] | None = None, reward_fn: Callable[..., Any] | None = None,
        flow: Callable[..., Any] | Sequence[str] | None = None, test_dataset: Any = None, endpoint: bool = False,
    ) -> None:  # fmt: skip
        if workflow_class is not None:
            idle = {"agent_class": agent_class, "agent_args": agent_args, "env_class": env_class, "env_args": env_args}
            for name, value in idle.items():
                if value is not None:
                    own = name.replace("class", "cls")
                    raise ValueError(f"{name} is not supported when using workflow, instead use workflow_args['{own}']")
        named = read(config)[0].get(adapters.KEY)
        adapted = adapters.chosen(env_class, named, workflow_class is not None or flow is not None)
        if adapted is not None:
            env_class, agent_class = adapted.env_class, agent_class or adapted.agent_class
            env_args = {**adapted.env_args, **dict(env_args or {})}
        check_engine(engine, env_class)
        self.workflow_class, self.workflow_args = workflow_class, dict(workflow_args or {})
        self.agent_class, self.env_class = agent_class, env_class
        self._elsewhere: type[Any] | None = None  # the environments' class, where Ray has them
        self.agent_args, self.env_args = dict(agent_args or {}), dict(env_args or {})
        self.config, self.engine, self.reward_fn, self.flow, self.endpoint = config, engine, reward_fn, flow, endpoint
        check_classes(workflow_class, agent_class, env_class, flow, endpoint)
        self.train_dataset, self.val_dataset = (
            dataset_of(train_dataset, "train_dataset"),
            dataset_of(val_dataset, "val_dataset"),
        )
        named = workflow_class or agent_class or flow
        name = str(named[0] if isinstance(named, (list, tuple)) else getattr(named, "__name__", type(named).__name__))
        first = resolve(config, population, len(self.train_dataset or []), name, engine)
        for split, which in (("train", "train_dataset"), ("val", "val_dataset")):
            if getattr(self, which) is None and split in first.files:
                setattr(self, which, dataset_of(Tasks.load_data(first.files[split]), which))
        if self.train_dataset is None and adapted is not None and adapted.tasks is not None:
            self.train_dataset = Tasks(adapted.tasks(_TASKS, 1))
            self.val_dataset = self.val_dataset or Tasks(adapted.tasks(_HELD_TASKS, 2))
        if not self.train_dataset:
            raise DataError("train_dataset: no tasks; pass a Dataset with rows, or name a file by data.train_files")
        self.resolved = resolve(config, population, len(self.train_dataset), name, engine)
        if self.val_dataset is None:
            self.val_dataset = self.train_dataset
            self.resolved.notes.append("val_dataset: none was passed: validations are on the tasks of training")
        else:
            self.val_dataset = self._apart(self.val_dataset, "val_dataset", train_dataset=self.train_dataset)
        self.test_dataset = dataset_of(test_dataset, "test_dataset")
        if self.test_dataset is not None:
            known = {"train_dataset": self.train_dataset, "val_dataset": self.val_dataset}
            self.test_dataset = self._apart(self.test_dataset, "test_dataset", **known)
        self._fit()

    def _apart(self, held: Tasks, name: str, **others: Tasks) -> Tasks:
        """Return the tasks of a dataset that are apart from others, as `agents.overlap` says.

        Raises:
            DataError: some are not, and `agents.overlap` is `error`; or none is left.
        """
        for other, known in others.items():
            both = same(known.data, held.data)
            if not both:
                continue
            how, says = self.resolved.agents.overlap, f"{name}: {len(both)} of {len(held)} tasks are in {other}, too"
            if how == "error":
                rows = ", ".join(map(str, both[:10])) + (", …" if len(both) > 10 else "")
                raise DataError(f"{says} (rows {rows}): remove them, or set agents.overlap to leave_out")
            if how == "leave_out":
                if len(both) == len(held):
                    raise DataError(f"{says}, and none is left: pass other tasks, or set agents.overlap to keep")
                held, says = held.select([i for i in range(len(held)) if i not in set(both)]), f"{says}: left out"
            self.resolved.notes.append(says)
        return held

    def _fit(self) -> None:
        """Join the arguments, and check that every constructor takes its own."""
        given = self.resolved.arguments
        self.agent_args |= given["agent_args"]
        self.env_args |= given["env_args"]
        self.workflow_args |= {key: value for key, value in given["workflow_args"].items() if value is not None}
        if self.workflow_class is not None:
            check_arguments(self.workflow_class, {**self.workflow_args, **dict.fromkeys(GIVEN_BY_US)}, "workflow_args")
            for kind in ("agent", "env"):
                if isinstance(cls := self.workflow_args.get(f"{kind}_cls"), type):
                    check_arguments(cls, self.workflow_args.get(f"{kind}_args") or {}, f"workflow_args['{kind}_args']")
        elif self.flow is None:
            if (
                self.env_class is not None
                and self.reward_fn is not None
                and "reward_fn" in parameters_of(self.env_class)
            ):
                self.env_args.setdefault("reward_fn", self.reward_fn)
            assert self.agent_class is not None
            assert self.env_class is not None
            check_arguments(self.agent_class, self.agent_args, "agent_args")
            check_arguments(self.env_class, self.env_args, "env_args")

    def make(self, outside: Any = None) -> Callable[..., Workflow]:
        """Return the function that makes the workflow of one episode, a `Workflow`.

        The function takes the arguments of `Workflow`, such as the episode's model `rollout_engine` and the runner of
        blocking calls `executor`. `outside` is the server for agents that call the model over HTTP; None if there are
        no such agents.
        """
        agents, own = self.resolved.agents, cast("Any", self.workflow_class)
        if outside is not None:
            return cast("Callable[..., Workflow]", outside.make)
        if own is not None:
            return partial(own, **self.workflow_args)
        if self.flow is not None:
            return partial(FlowWorkflow, flow=cast("Any", self.flow), reward_fn=self.reward_fn)
        kind: Any = CumulativeWorkflow if agents.cumulative else MultiTurnWorkflow
        if self.engine == "ray" and self._elsewhere is None:
            assert self.env_class is not None
            self._elsewhere = on_ray(self.env_class, **self.resolved.arguments["ray_init"])
        return partial(
            kind, agent_cls=self.agent_class, env_cls=self._elsewhere or self.env_class, agent_args=self.agent_args,
            env_args=self.env_args, max_steps=agents.max_steps,
        )  # fmt: skip

    def explain(self) -> str:
        """Return the configuration in effect as text: a line for each key with its value and the value's source, then
        the keys that have no effect."""
        found: list[str] = []
        params = self.resolved.params
        blocks = {
            **params.model_dump(mode="json", exclude={"algos", "fetch", "evaluate", "export"}),
            "agents": self.resolved.agents.model_dump(mode="json"),
            "algos": {params.train.algo: params.algo_config.model_dump(mode="json")},
        }

        def tell(data: Any, path: str) -> None:
            if isinstance(data, dict) and data and not path.endswith((".kwargs", ".estimators")):
                for key, value in data.items():
                    tell(value, f"{path}.{key}" if path else key)
                return
            source = next(
                (text for key, text in self.resolved.origin.items() if path == key or path.startswith(key + ".")),
                "default",
            )
            found.append(f"{path} = {json.dumps(data)}  ({source})")

        tell(blocks, "")
        return "\n".join([*found, *self.resolved.notes])

    # --- running ------------------------------------------------------------------------------------------------------

    def train(self, quiet: bool = True) -> Trained:
        """Train to the end, and return the result. With `quiet`, the console shows only warnings.

        A run in a folder (`trainer.default_local_dir`) that was stopped earlier continues from its last checkpoint, bit
        for bit.

        Raises:
            EnvironmentFailed: more episodes of a round failed than `agents.max_error_fraction` allows.
            BusyError: another process trains the same run.
            DivergedError, Interrupted: see `run.session.Session.train`.
        """
        if self.resolved.folder is not None:
            return self._train(self.resolved.folder, quiet)
        with tempfile.TemporaryDirectory(prefix="evopipe-agents-") as folder:
            return self._train(Path(folder), quiet)

    def evaluate(self) -> dict[str, Any]:
        """Score a model on the test tasks, or on the validation tasks if there are no test tasks.

        The model is the first trained member in the folder `population.start` if this parameter is set, else the
        untrained base model.

        Returns:
            Results by name: among others the `mean` return, its 95 % confidence `interval`, `pass@1` and `pass@k`.
        """
        with self._idle() as (regime, member):
            return self._reported(regime, member)

    def play(self, tasks: Any = None) -> list[dict[str, Any]]:
        """Play tasks with a model, with the settings of validations.

        The model is the first trained member in the folder `population.start` if this parameter is set, else the
        untrained base model.

        Args:
            tasks: a `Dataset`, a list of mappings, or a file of tasks; None for the validation tasks.

        Returns:
            The episodes as JSON data, failed ones included, in the order of the tasks; `Episode.from_dict` reads them.
        """
        given = dataset_of(tasks, "tasks") if tasks is not None else self.val_dataset
        assert given is not None
        with self._idle() as (regime, member):
            jobs = regime.validation(given.data, [member.slot], range(len(given)))
            done = regime.play(regime.spec.form_alone(member), jobs, Purpose.EVALUATE, 0)
            return [records.record(one, regime.spec.base, regime.masked) for one in done]

    def serve(
        self, port: int = 0, ready: Callable[[Any], None] = lambda connection: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Serve a model to clients of OpenAI's API on loopback, until `stopped` returns True.

        The model is the first trained member in the folder `population.start` if this parameter is set, else the
        untrained base model.

        Args:
            port: the port; 0 for any free port.
            ready: a function that is called once with the `Connection` for clients.
            stopped: a function that is called repeatedly; it returns whether to stop.

        Returns:
            The sessions that clients have named, as episodes in JSON data; at most the last 1024.

        Raises:
            UsageError: the port is in use.
            MissingInputError: the extra `serve` is not installed.
        """
        need_package("aiohttp", "serve", "an endpoint")
        from evopipe.agents.endpoint import number, serve

        with self._idle() as (regime, member):
            how = Sampled(regime.agents.temperature)

            def make(key: str, submit: Callable[[Request], Awaitable[Reply]]) -> Model:
                return Model(regime.tokens, submit, member.slot, number(key), how, regime.limits, None, 0)

            served = self.resolved.agents.served
            sessions = asyncio.run(serve(make, regime.decoder(member), served, port, ready, stopped))
            found = []
            for session in sessions:
                job = EpisodeJob(member.slot, 0, f"{session.name}:0", {}, how)
                episode = Episode(job.uid, {}, TerminationReason.UNKNOWN, trajectories=[session.trajectory])
                episode.info["endpoint"] = dict(sorted(session.counts.items()))
                found.append(Done(job, episode, 1, session.model.entropies))
            return [records.record(one, regime.spec.base, regime.masked) for one in found]

    @contextmanager
    def _idle(self) -> Iterator[tuple[Rounds, Member]]:
        """Give what plays episodes of the first member, as it is."""
        spec, members, _ = self._begin()
        with closing(self._regime(spec, Clock.of(spec, len(members)), None)) as regime:
            yield regime, members[0]

    def _begin(self) -> tuple[TextSpec, list[Member], list[Mutation]]:
        params = self.resolved.params
        spec = make_spec(params, configure(params.runtime))
        return spec, *members_of(params, spec)

    def _regime(self, spec: TextSpec, clock: Clock, folder: Path | None) -> Rounds:
        assert self.train_dataset is not None
        assert self.val_dataset is not None
        agents, outside = self.resolved.agents, self._outside()
        if outside is not None and not inspect.iscoroutinefunction(self.flow):
            # An episode that waits for a thread would hold up all others.
            agents = agents.model_copy(update={"at_once": min(agents.at_once, agents.workers)})
        tasks, held = self.train_dataset.data, self.val_dataset.data
        return Rounds(spec, clock, agents, self.make(outside), tasks, held, folder, outside)

    def _outside(self) -> Any:
        """Return what serves agents at an endpoint; None where they are handed their model.

        Raises:
            ParamsError: rounds are to be played ahead, for which an endpoint would have to serve several at once.
        """
        if not self.endpoint:
            return None
        if self.resolved.agents.staleness:
            raise ParamsError("agents.staleness: rounds at an endpoint are not played ahead; set it to 0")
        from evopipe.agents.outside import OutsideAgents

        return OutsideAgents(cast("Any", self.flow), self.resolved.agents.served, self.reward_fn)

    def _train(self, folder: Path, quiet: bool) -> Trained:
        params, first = self.resolved.params, self.resolved.agents.first
        spec, members, births = self._begin()
        problem = Problem(
            spec, lambda clock, keys: self._regime(spec, clock, folder / layout.EPISODES_FOLDER),
            described=partial(describe, spec), less=LESS,
        )  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        state = state_folder("agents", self._key(), folder)
        home = Home(folder, state, params.runtime.checkpoint_seconds, (state.with_suffix(".lock"),))
        tracked = Tracked(params.tracking, params.model_dump(mode="json"))
        with frozen(), Session.opened(problem, members, births, tracked, home, quiet) as session:
            regime = cast("Rounds", session.run.regime)
            regime.stopped = lambda: session.stop.signum is not None
            for note in self.resolved.notes:
                session.tracker.emit(Message("warning", note))
            before = self._reported(regime, members[0]) if first or self.resolved.val_only else None
            if self.resolved.val_only and before is not None:
                return Trained(None, before["mean"], {"base": before}, [], [], [])
            champion = session.train()
            session.write(champion)
            found = self._reported(regime, champion.member)
            told = {"elite": found, **({"base": before} if before else {}), "env": spec.name}
            self._report(regime, told, folder)
            export.run(params, True, folder)
            session.end()
        policy: Any = load(folder / layout.ELITE)
        measures, validated = (
            [dict(zip(("generation", "slot", *each.names), row, strict=True)) for row in each.rows()]
            for each in (regime.measures, regime.validated)
        )
        return Trained(policy, found["mean"], told, session.run.curve, measures, validated)

    def _report(self, regime: Rounds, told: Mapping[str, Any], folder: Path) -> None:
        """Write what validations found, and episodes to read."""
        regime.write("elite", regime.seen)
        files = records.files_of(folder / layout.EPISODES_FOLDER, regime.clock.ticks)
        records.show(regime.spec.name, files, folder / layout.EPISODES_PAGE)
        write_json(folder / layout.EVALUATION, told)

    def _reported(self, regime: Rounds, member: Member) -> dict[str, Any]:
        """Score a member by every task of the test set or, without one, of the validation set."""
        spec, tasks = regime.spec, self.test_dataset or self.val_dataset
        assert tasks is not None
        played: Episodes = regime.scored(spec.form_alone(member), tasks.data, range(len(tasks)), lambda: False)
        chance = rng.host(rng.run_key(spec.seed), Purpose.BOOTSTRAP)
        found = summary(played.returns[0], played.lengths[0], self.resolved.params.evaluate.bootstrap, chance)
        return {**found, **regime.last}

    def _key(self) -> str:
        """Key of a run's checkpoints: what its outcome depends on."""
        digest = hashlib.sha256()
        for dataset in (self.train_dataset, self.val_dataset, self.test_dataset):
            if dataset is None:
                continue
            digest.update(json.dumps(dataset.data, sort_keys=True, default=repr).encode())
        named: list[Any] = [self.workflow_class, self.agent_class, self.env_class, self.flow, self.reward_fn]
        values = {
            "params": self.resolved.params.tracked(
                "seed", "language", "train", "evolution", "search", "population", "runtime"
            ),
            "agents": self.resolved.agents.model_dump(mode="json"),
            "data": digest.hexdigest(),
            "code": [source_of(each) for each in named],
            **({"endpoint": True} if self.endpoint else {}),
            "args": [shown(each) for each in (self.workflow_args, self.agent_args, self.env_args)],
        }
        values["outside"], sources = self.resolved.params.outside()
        return content_key(values, [*sources, CODE])
