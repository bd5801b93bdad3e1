"""Sessions: the one place that makes a run, and holds its locks, checkpoints, signals, trackers and output files."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Self

import numpy as np

from evopipe import layout
from evopipe.core.member import Member
from evopipe.errors import DiskError, DivergedError, EnvironmentFailed, Interrupted, ResourceError, translate_failures
from evopipe.mutations import Mutation
from evopipe.run.callbacks import Callback, Callbacks
from evopipe.run.clock import Clock
from evopipe.run.drive import Saver, drive, warn
from evopipe.run.outs import write_results, write_timing
from evopipe.run.population import about_spec
from evopipe.run.problem import Problem
from evopipe.run.run import Champion, Run
from evopipe.run.spec import JobT
from evopipe.schema.tracking import TrackingConfig
from evopipe.signals import StopSignal
from evopipe.storage.checkpoint import CheckpointStore
from evopipe.storage.files import dump_json, write_bytes, write_csv
from evopipe.storage.folders import remove_folder
from evopipe.storage.keys import CODE, content_key, state_folder
from evopipe.storage.lock import RunLock
from evopipe.track import tracking
from evopipe.track.events import End, Message, Start, Tracker

_LEAGUE = "league"  # the folder of opponents, which checkpoints name
_ENDINGS = {"target": "target reached", "max_steps": "all steps taken"}


def begin(
    problem: Problem[JobT], members: Sequence[Member], births: Sequence[Mutation] | None = None,
    league: Path | None = None,
) -> Run[JobT]:  # fmt: skip
    """Return a run on the problem `problem` that has not trained yet, with the given initial members.

    `births` has the mutation that made each member; None if no mutation made them. `league` is the folder for the
    opponents of self-play; None makes a temporary one, which is removed when the run is closed.

    Raises:
        MissingInputError, DataError: the data to learn from is missing or damaged.
    """
    clock = Clock.of(problem.spec, len(members))
    regime = problem.live(clock, np.array([member.key for member in members]))
    return Run(problem.spec, regime, clock, members, births, problem.spec.league(league))


def key_of(problem: Problem[Any], folder: Path) -> str:
    """Return a hash of everything that the result of the stage `train` depends on: parameters, input files and code.
    `folder` is the project's folder."""
    return content_key(problem.values, [layout.need(folder, layout.POPULATION), *problem.inputs(), CODE])


@dataclass(frozen=True)
class Home:
    """The folders and lock files that a run uses.

    Attributes:
        folder: the folder for the run's output files.
        state: the folder for the run's log, tracking record and checkpoints.
        seconds: the least time between two checkpoints.
        locks: files that the run locks, so that no other process uses these folders.
        checkpoints: another folder for the checkpoints; None uses a folder in `state`.
        project: the project's folder for trackers; None if it is `folder`.
    """

    folder: Path
    state: Path
    seconds: float
    locks: Sequence[Path] = ()
    checkpoints: Path | None = None
    project: Path | None = None

    @classmethod
    def of_stage(cls, problem: Problem[Any], folder: Path, seconds: float) -> Self:
        """Return the folders and locks that the stage `train` uses.

        The name of the state folder is a hash of everything that the run depends on, so that different runs never share
        a state. Only one run at a time may write below the project's folder `folder`, whatever its parameters.
        `seconds` is the least time between two checkpoints.
        """
        key = key_of(problem, folder)  # what is missing is told before anything is written
        outputs = state_folder("locks", content_key({"outputs": folder.absolute()}), folder)
        state = state_folder("train", key, folder)
        return cls(folder, state, seconds, (state.with_suffix(".lock"), outputs.with_suffix(".lock")))

    def store(self, parts: int) -> CheckpointStore:
        """Return the store of checkpoints for a run that is divided into `parts` shards; 0 if it is not divided.

        Each number of shards has its own store, because a run can only use checkpoints of the same number of shards.
        """
        name = f"checkpoints-{parts}" if parts else "checkpoints"
        return CheckpointStore(self.checkpoints or self.state / name)


@dataclass
class Session(Generic[JobT]):
    """A run with its checkpoints, stop signal, trackers and folders. `Session.opened` makes one.

    Attributes:
        run: the run.
        store: the store of the run's checkpoints.
        stop: the signal that asks the run to stop.
        tracker: the object that shows progress and warnings on the console and writes them to the log.
        trackers: the block `tracking` of the parameters.
        home: the folders and lock files.
        described: the part of `policy.json` that is equal for all members, such as the spaces, as JSON data.
        callbacks: the user's functions that are called while the run trains.
        problems: a function that is called between ticks and returns warnings for the user.
    """

    run: Run[JobT]
    store: CheckpointStore
    stop: StopSignal
    tracker: Tracker
    trackers: TrackingConfig
    home: Home
    described: Mapping[str, Any]
    callbacks: Callbacks
    problems: Callable[[], Iterable[str]] = list

    @classmethod
    @contextlib.contextmanager
    def opened(
        cls, problem: Problem[JobT], members: Sequence[Member], births: Sequence[Mutation] | None,
        tracked: tracking.Tracked, home: Home, quiet: bool = True, name: str | None = None,
        functions: Mapping[str, Callback | None] = MappingProxyType({}),
    ) -> Iterator[Self]:  # fmt: skip
        """Make a run, take its locks, and track it inside a `with` block; the block receives the session.

        Args:
            problem: the problem that the run works on.
            members: the initial members.
            births: the mutation that made each of these members; None if no mutation made them.
            tracked: the trackers, and the parameters that they show.
            home: the folders and lock files.
            quiet: whether progress is not printed.
            name: the run's name in trackers; None for the name of the DVC experiment.
            functions: callbacks by their kind, such as `on_best`, beside those of `train.callbacks`.

        Raises:
            BusyError: another process trains the same run, or writes to the same folder.
            ParamsError, UsageError: a callback cannot be used.
            DiskError, ResourceError: a file cannot be written, or memory runs out, also inside the block.
        """
        described = problem.described()
        policy = partial(problem.policy, described=described)
        callbacks = Callbacks(problem.spec.train.callbacks, functions, home.folder, policy)
        with contextlib.ExitStack() as stack:
            for lock in home.locks:
                stack.enter_context(RunLock(lock))
            stack.enter_context(translate_failures(problem.less))
            # Nothing is there to save before the run is: until then a signal simply ends the process.
            run = begin(problem, members, births, home.state / _LEAGUE)
            stack.callback(run.close)
            watched = tracking.watched(tracked, home.state, home.project or home.folder, quiet, name)
            stop, tracker, outbox = stack.enter_context(watched)

            def problems() -> list[str]:
                said: list[str] = getattr(run.regime, "said", [])
                found = [*said, *outbox.problems()]
                said.clear()
                return found

            held = home.store(problem.parts), stop, tracker, tracked.config, home, described, callbacks, problems
            yield cls(run, *held)

    def train(self, between: Callable[[Tracker], None] = lambda tracker: None) -> Champion:
        """Train from the last checkpoint, or from the start if there is none, to the end; return the best member as
        `Champion`.

        The run is saved at its end, and repeatedly before. The least time between two saves is `seconds` of the
        session's `Home`.
        `between` is called after each step of training.

        Raises:
            DataError: every checkpoint is damaged.
            DivergedError: all members diverged several times.
            EnvironmentFailed: the environment, or a callback, raised an exception or broke its contract.
            Interrupted: a signal arrived; the run was saved.
        """
        began, run, stop = time.perf_counter(), self.run, self.stop
        clock = run.clock
        self._resume()
        saver = Saver(run, self.store, self.home.seconds)

        def after_each() -> None:
            saver.save_if_due()
            between(self.tracker)
            warn(self.tracker, self.problems())

        try:
            drive(run, self.tracker, lambda: stop.signum is not None, after_each, self.callbacks)
        except (EnvironmentFailed, ResourceError) as failed:
            whole = run.regime.whole and isinstance(failed, EnvironmentFailed)
            if whole:
                clock.broken_here = 0  # a mended environment starts with a clean slate
                with contextlib.suppress(DiskError):  # the environment's failure is the news
                    saver.save()
            if stop.signum is not None:  # it was asked to stop, and hung or fell
                where = "from there" if whole else "from the last checkpoint"
                raise Interrupted(
                    stop.signum,
                    f"stopped at {run.place}: {failed}; the same command continues {where}",
                ) from None
            raise
        if stop.signum is not None and not run.reason:
            saver.save()
            raise Interrupted(
                stop.signum,
                f"stopped at {run.place}; saved, the same command continues from there",
            )
        if run.champion is None:
            raise DivergedError("no generation had a healthy member, so there is no elite: lower the learning rate")
        saver.save()  # whatever happens while the outs are written, training is not lost
        ended = End(_ENDINGS[run.reason], time.perf_counter() - began, clock.env_steps, clock.eval_steps)
        self.tracker.emit(ended)
        return run.champion

    def _resume(self) -> None:
        """Go on from the last checkpoint, if there is one, and tell of it."""
        run, clock = self.run, self.run.clock
        resumed: tuple[int | None, int | None] = (None, None)
        if loaded := self.store.load():
            warn(self.tracker, loaded.warnings)
            if lost := run.restore(loaded.tensors, loaded.meta):
                sentence = (
                    f"{lost} environments did not return to where they were: {run.spec.name} is not a function of its "
                    "seed and actions. They begin new episodes; the run goes on, but not bit for bit"
                )
                warn(self.tracker, [sentence])
            resumed = clock.step, clock.env_steps
        what = run.spec.name, run.spec.train.algo, clock.members, clock.total * clock.envs
        self.tracker.emit(Start("train", *what, *resumed, run.spec.search.budget))
        warn(self.tracker, run.regime.remarks)

    def write(self, champion: Champion) -> None:
        """Write all output files of the finished run, with its best member `champion`.

        The files go into the folder `folder` of the attribute `home`. If the members were trained in shards, the
        overhead of the shards is reported to the tracker too.
        """
        if account := getattr(self.run.regime, "account", None):
            self.tracker.emit(Message("info", account))
        measures = getattr(self.run.regime, "measures", None)
        if measures is not None:
            write_csv(self.home.folder / layout.MEASURES, ["generation", "slot", *measures.names], measures.rows())
        samples = getattr(self.run.regime, "samples", None)
        if samples is not None:
            lines = (dump_json(each, str(layout.SAMPLES)) for each in samples.rows())
            write_bytes(self.home.folder / layout.SAMPLES, b"".join(lines))
        about = {**about_spec(self.run.spec), "policy": self.described}
        write_results(self.run, champion, about, self.home.folder)
        if self.run.league is not None:
            self.run.league.write(self.run.opponents, self.home.folder / layout.LEAGUE)
        write_timing(self.home.state / tracking.LOG, self.run.curve, self.home.folder)

    def end(self) -> None:
        """Copy the output files into the tracking record, and remove all checkpoints of the run, and its league.

        Earlier checkpoints are removed too, even if another number of shards (processes) wrote them.
        """
        tracking.finish(self.trackers, self.home.state, self.home.folder)
        for each in {self.store.folder, *self.home.state.glob("checkpoints*")}:
            CheckpointStore(each).clear()
        remove_folder(self.home.state / _LEAGUE)
