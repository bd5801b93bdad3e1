"""Environments in worker processes: bit for bit what they are in this process, and no process is left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from envs_for_tests import Chain
from evopipe.envs import workers as workers_module
from evopipe.envs.make import has_threads, make_env
from evopipe.envs.pool import EnvPool
from evopipe.envs.rows import RowStep
from evopipe.envs.workers import Workers, _WorkerRows
from evopipe.errors import EnvironmentFailed, EvopipeError, ParamsError, UsageError
from evopipe.parallel import available_cpus
from evopipe.schema.env import EnvConfig

ROOT = Path(__file__).parents[3]
RIGHT, LEFT = 1, 0


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(3) as workers:
        yield workers


class WithUs(Workers):
    """As `auto` is where there are three CPUs and environments dear enough: two workers, and this process."""

    def count(self, rows: int, overlapped: bool, step_cost: float | None = None) -> int:
        return min(2, rows - 1)


@pytest.fixture(scope="module", params=[False, True], ids=["workers", "together"])
def any_workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    with WithUs() if request.param else Workers(3) as workers:
        yield workers


def config(env_id: str, **kwargs: Any) -> EnvConfig:
    return EnvConfig.model_validate({"id": env_id, "kwargs": kwargs})


def chain(name: str = "Chain", **kwargs: Any) -> EnvConfig:
    return config(f"envs_for_tests:{name}-v0", **kwargs)


def odd(name: str, **kwargs: Any) -> EnvConfig:
    return config(f"worker_envs:{name}-v0", **kwargs)


def started(cfg: EnvConfig, rows: int, workers: Workers | None) -> EnvPool:
    pool = EnvPool(cfg, rows, workers=workers)
    pool.reset(np.arange(rows), np.arange(rows))
    return pool


def pids(pool: EnvPool) -> list[int]:
    """Its worker processes."""
    assert isinstance(pool._home, _WorkerRows)
    return [helper.pid for helper in pool._home.helpers]


def fields(step: RowStep) -> list[bytes]:
    return [part.tobytes() for part in step.parts]


def shown(pool: EnvPool) -> list[bytes]:
    arrays = [pool.obs, pool.mask, pool.episode_return, pool.episode_length, *pool.state().values()]
    return [*(array.tobytes() for array in arrays), bytes([pool.masked])]


def play(pool: EnvPool, ticks: int, foretell: bool) -> list[list[bytes]]:
    """Random legal actions in all rows, and now and then in some; ended rows begin anew. All there is to see."""
    rng, episodes = np.random.default_rng(5), np.zeros(pool.rows, np.int64)

    def seeds(rows: np.ndarray, ahead: int) -> np.ndarray:
        return rows[:, None] * 7919 + episodes[rows][:, None] + np.arange(ahead)

    def reset(rows: np.ndarray) -> None:
        now = seeds(rows, 1)[:, 0]
        episodes[rows] += 1
        pool.reset(rows, now)

    pool.upcoming = seeds if foretell else None
    reset(np.arange(pool.rows))
    seen, kept = [shown(pool)], []
    for tick in range(ticks):
        rows = rng.permutation(pool.rows)[: rng.integers(1, pool.rows)] if tick % 5 == 4 else None
        weights = pool.mask + 0.0
        actions = np.array([rng.choice(len(w), p=w / w.sum()) for w in weights])
        step = pool.step(actions if rows is None else actions[rows], rows)
        over = np.flatnonzero(step.over)
        reset(over if rows is None else rows[over])
        kept.append((step, fields(step)))
        seen.append([*fields(step), *shown(pool)])
    assert all(fields(step) == before for step, before in kept), "a step is not overwritten by the next"
    return seen


# --- The same, wherever they live -------------------------------------------------------------------------------------


PLAYED = [
    (config("LunarLander-v3"), 12, 150),
    (config("LunarLander-v3", gravity=-5.0, enable_wind=True), 4, 150),
    (config("CartPole-v1"), 16, 100),
    (config("CartPole-v1", max_episode_steps=7), 5, 100),
    (config("Acrobot-v1"), 3, 50),
    *((chain(name), 5, 60) for name in ("Masked", "NanObs", "NanReward", "HugeObs", "DoubleObs", "NumpyReward")),
]
# Each environment with and without this process, told ahead and not; both together every second time.
CASES = [(here, *played, here == (i % 2 == 0)) for i, played in enumerate(PLAYED) for here in (False, True)]


@pytest.mark.parametrize(
    ("any_workers", "cfg", "rows", "ticks", "foretell"),
    CASES,
    indirect=["any_workers"],
    ids=lambda value: f"{value.id}-{len(value.kwargs)}" if isinstance(value, EnvConfig) else str(value),
)
@pytest.mark.thorough
def test_every_output_is_bit_identical(
    any_workers: Workers, cfg: EnvConfig, rows: int, ticks: int, foretell: bool
) -> None:
    here, there = EnvPool(cfg, rows), EnvPool(cfg, rows, workers=any_workers)
    expected, found = play(here, ticks, foretell), play(there, ticks, foretell)
    assert expected == found
    assert (here.worker_count, there.worker_count) == (0, 2 if any_workers.auto else 3)
    there.close()


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.thorough
def test_the_number_of_workers_does_not_matter(count: int) -> None:
    with Workers(count) as workers:
        pool = EnvPool(chain("Masked"), 5, workers=workers)
        assert play(pool, 60, True) == play(EnvPool(chain("Masked"), 5), 60, True)


def test_the_environments_really_live_elsewhere(workers: Workers) -> None:
    pool = started(odd("Process"), 6, workers)
    reward = pool.step([0] * 6).reward
    assert reward.tolist() == [float(pid % 2**20) for pid in pids(pool)] * 2
    assert float(os.getpid() % 2**20) not in reward.tolist()
    with pytest.raises(UsageError, match="do not live in this process"):
        pool.env(0)


@pytest.mark.thorough
def test_a_state_goes_from_one_place_to_another(any_workers: Workers) -> None:
    for before, after in ((None, any_workers), (any_workers, None)):
        pool = started(config("LunarLander-v3"), 4, before)
        rng = np.random.default_rng(3)
        for _ in range(20):
            pool.step(rng.integers(4, size=4))
        state = pool.state()
        again = EnvPool(config("LunarLander-v3"), 4, workers=after)
        assert not again.restore(state).any()
        assert shown(again) == shown(pool)
        assert fields(again.step([0, 1, 2, 3])) == fields(pool.step([0, 1, 2, 3]))


@pytest.mark.thorough
def test_denormal_numbers_are_treated_as_in_the_trainer(any_workers: Workers) -> None:
    try:
        for flush in (True, False):
            assert torch.set_flush_denormal(flush)
            rewards = [
                started(odd("Denormal"), 3, where).step([0] * 3).reward.tolist() for where in (None, any_workers)
            ]
            assert rewards == [[float(flush)] * 3] * 2
    finally:
        torch.set_flush_denormal(False)


def test_a_module_and_its_files_are_found_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: Workers
) -> None:
    (tmp_path / "level").write_text("0.25")
    (tmp_path / "own_level.py").write_text(
        "import gymnasium\nfrom worker_envs import Process\n\n\nclass Own(Process):\n    pass\n\n\n"
        "gymnasium.register('Own-v0', entry_point=Own, max_episode_steps=4)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    pool = started(config("own_level:Own-v0"), 3, workers)
    assert pool.worker_count == 3
    assert pool.obs.tolist() == [[0.25] * 4] * 3


# --- A step in two halves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.thorough
def test_nothing_changes_until_a_step_is_received(any_workers: Workers, there: bool) -> None:
    pool = started(chain("Masked"), 4, any_workers if there else None)
    twin = started(chain("Masked"), 4, None)
    before = shown(pool)
    actions = np.array([RIGHT] * 4)
    pool.send(actions)
    actions[:] = LEFT  # the pool has its own copy
    time.sleep(0.01)
    assert shown(pool) == before
    with pytest.raises(UsageError, match="was not received"):
        pool.send(actions)
    assert fields(pool.receive()) == fields(twin.step([RIGHT] * 4))
    assert shown(pool) == shown(twin) != before
    with pytest.raises(UsageError, match="no step to receive"):
        pool.receive()


def test_work_goes_on_between_the_halves() -> None:
    """The step is done by the time it is asked for."""
    with Workers(1) as workers:
        pool = started(config("LunarLander-v3"), 64, workers)
        waited, alone = [], []
        for _ in range(11):
            pool.send([0] * 64)
            time.sleep(0.02)
            began = time.perf_counter()
            pool.receive()
            waited.append(time.perf_counter() - began)
            began = time.perf_counter()
            pool.step([0] * 64)
            alone.append(time.perf_counter() - began)
        assert np.median(waited) < 0.5 * np.median(alone)


def test_a_pool_may_be_closed_in_the_middle_of_a_step() -> None:
    with Workers(2) as workers:
        pool = started(chain(), 4, workers)
        pool.send([RIGHT] * 4)
        pool.close()
        other = started(chain(), 4, workers)
        assert fields(other.step([RIGHT] * 4)) == fields(started(chain(), 4, None).step([RIGHT] * 4))


# --- Environments that break their contract ---------------------------------------------------------------------------

SPOILT = ("Raises", "WrongShape", "WrongDtype", "NoReward", "VectorReward", "NumberEnded", "MaskLost")
FAULTS = [*(chain(name) for name in SPOILT), odd("Typed")]


@pytest.mark.thorough
@pytest.mark.parametrize("cfg", FAULTS, ids=lambda cfg: cfg.id)
def test_a_fault_reads_as_in_this_process(any_workers: Workers, cfg: EnvConfig) -> None:
    errors = []
    for where in (None, any_workers):
        pool = started(cfg, 4, where)
        pool.step([LEFT, LEFT], rows=[1, 3])
        pool.step([LEFT] * 4)
        before = shown(pool)
        with pytest.raises(EvopipeError) as failed:
            pool.step([LEFT] * 4)  # rows 1 and 3, which live in different workers, are at their third step
        assert shown(pool) == before
        errors.append((type(failed.value), str(failed.value), failed.value.exit_code))
        # The first row in the order of the call is the one that is told.
        pool = started(cfg, 4, where)
        pool.step([LEFT, LEFT], rows=[1, 3])
        pool.step([LEFT] * 4)
        with pytest.raises(EvopipeError) as failed:
            pool.step([LEFT] * 3, rows=[0, 3, 1])
        errors.append((type(failed.value), str(failed.value), failed.value.exit_code))
    assert errors[:2] == errors[2:]


def test_a_fault_at_reset_reads_as_in_this_process(any_workers: Workers) -> None:
    sentences = []
    for where in (None, any_workers):
        with pytest.raises(EnvironmentFailed) as failed:
            started(chain("MaskShape"), 4, where)
        sentences.append(str(failed.value))
    assert sentences[0] == sentences[1]


@pytest.mark.parametrize("foretell", [False, True])
def test_a_fault_of_an_episode_begun_ahead_comes_when_it_is_asked_for(any_workers: Workers, foretell: bool) -> None:
    sentences = []
    for where in (None, any_workers):
        pool = EnvPool(odd("SecondReset"), 3, workers=where)
        if foretell:
            pool.upcoming = lambda rows, ahead: rows[:, None] + 100 + np.arange(ahead)
        pool.reset([0, 1, 2], [0, 1, 2])
        steps = [pool.step([LEFT] * 3) for _ in range(10)]
        assert steps[-1].truncated.all()
        with pytest.raises(EnvironmentFailed) as failed:
            pool.reset([1], [101])
        sentences.append(str(failed.value))
    assert sentences[0] == sentences[1]
    assert sentences[0].endswith("(row 1, episode seed 101, step 1): reset() raised RuntimeError: out of track")


def test_a_fault_of_an_episode_begun_ahead_is_forgotten_with_it(workers: Workers) -> None:
    pool = EnvPool(odd("SecondReset"), 3, workers=workers)
    pool.upcoming = lambda rows, ahead: rows[:, None] + 100 + np.arange(ahead)
    pool.reset([0, 1, 2], [0, 1, 2])
    for _ in range(10):
        pool.step([LEFT] * 3)
    for seed in (5, 101):  # the episode that did not begin is 101
        pool.reset([1], [seed])
    assert fields(pool.step([RIGHT], [1])) == fields(alone(101).step([RIGHT]))


def alone(seed: int) -> EnvPool:
    """One chain of this process."""
    pool = EnvPool(chain(), 1)
    pool.reset([0], [seed])
    return pool


def test_an_episode_begun_ahead_is_not_taken_for_another_seed(any_workers: Workers) -> None:
    """The caller may change its mind, and change it back: what was foretold binds nobody, and is there once."""
    pools = [started(config("CartPole-v1", max_episode_steps=6), 4, where) for where in (None, any_workers)]
    for pool in pools:
        pool.upcoming = lambda rows, ahead: rows[:, None] + 100 + np.arange(ahead)
        pool.reset([0, 1, 2, 3], [0, 1, 2, 3])
        for _ in range(6):
            pool.step([1] * 4)
        pool.reset([2, 0, 1, 3], [5, 100, 6, 7])
        pool.reset([1], [101])  # foretold, but its environment has begun the episode 6 since
        pool.step([0, 1, 0, 1])
        pool.reset([0], [100])  # foretold, and played already
        pool.step([0, 1, 0, 1])
    assert shown(pools[0]) == shown(pools[1])


def test_an_environment_that_exits_does_not_take_the_worker_along(workers: Workers) -> None:
    pool = started(odd("SysExit", when=1), 3, workers)
    with pytest.raises(EnvironmentFailed, match="SystemExit: enough"):
        pool.step([LEFT] * 3)
    assert all(map(runs, pids(pool)))


# --- Processes that end -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Segfault", r"worker process \d+ was ended by SIGSEGV; runtime.env_workers: 0 steps them in the trainer"),
        ("Exit", r"worker process \d+ ended with exit code 3; runtime"),
    ],
)
def test_a_worker_that_dies_in_a_step_is_told(name: str, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    with Workers(2) as workers:
        pool = started(odd(name), 4, workers)
        pool.step([LEFT] * 4)
        pool.step([LEFT] * 4)
        with pytest.raises(EnvironmentFailed, match=text) as failed:
            pool.step([LEFT] * 4)
        assert failed.value.exit_code == 71
        with pytest.raises(EnvironmentFailed, match=text):  # and again, rather than hang
            pool.reset([0], [1])
        pool.close()


def test_a_worker_that_is_killed_is_told() -> None:
    with Workers(2) as workers:
        pool = started(chain(), 4, workers)
        os.kill(pids(pool)[1], signal.SIGKILL)
        pool.send([LEFT] * 4)
        with pytest.raises(EnvironmentFailed, match=r"SIGKILL \(often because memory ran out: lower env.num_envs or"):
            pool.receive()


def test_closing_ends_the_processes_at_once_even_in_a_step() -> None:
    with Workers(2) as workers:
        pool = started(odd("Hangs"), 2, workers)
        forked = pids(pool)
        pool.send([LEFT] * 2)
        began = time.monotonic()
    assert time.monotonic() - began < 2.0
    assert not any(map(runs, forked))
    workers.close()
    with pytest.raises(EnvironmentFailed, match="the pool was closed"):
        pool.receive()


def test_a_closed_pool_closes_its_environments_where_they_live(tmp_path: Path) -> None:
    with Workers(2) as workers:
        pool = started(odd("Closes", folder=str(tmp_path)), 3, workers)
        forked = pids(pool)
        pool.close()
    assert {path.name for path in tmp_path.iterdir()} == {*map(str, forked), str(os.getpid())}


@pytest.mark.thorough
def test_a_forgotten_pool_ends_its_processes() -> None:
    pool = started(chain(), 2, Workers(1))
    (worker,) = pids(pool)
    assert runs(worker)
    del pool
    gc.collect()
    assert not runs(worker)


SCRIPT = """\
import numpy as np
from evopipe.schema.env import EnvConfig
from evopipe.envs.pool import EnvPool
from evopipe.envs.workers import Workers

pool = EnvPool(EnvConfig.model_validate({"id": "worker_envs:Hangs-v0", "kwargs": {"when": 5}}), 4, workers=Workers(2))
pool.reset(np.arange(4), np.arange(4))
pool.send([0] * 4)
print(*[helper.pid for helper in pool._home.helpers], flush=True)
pool.receive()
print(pool.episode_length.tolist(), flush=True)
"""


def trainer(say: Connection, lock: bool, thread: bool) -> None:
    """What a process does whose workers hang in a step: it tells their numbers and waits."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # libraries that other tests load answer it in ways of their own

    def build() -> None:
        pool = started(odd("Hangs", lock=lock), 4, Workers(2))
        pool.send([LEFT] * 4)
        say.send(pids(pool))
        held.append(pool)

    held: list[EnvPool] = []
    if thread:
        one = threading.Thread(target=build)
        one.start()
        one.join()
    else:
        build()
    time.sleep(60)


def runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] not in "ZX"


def wait(until: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not until():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@linux
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("signum", "lock", "thread"),
    [(signal.SIGKILL, False, True), (signal.SIGTERM, False, False), (signal.SIGKILL, True, False)],
    ids=["a thread forked them", "asked to end", "in C, with Python's lock"],
)
@pytest.mark.thorough
def test_no_worker_outlives_the_trainer(signum: signal.Signals, lock: bool, thread: bool) -> None:
    context = multiprocessing.get_context("fork")
    hear, say = context.Pipe(duplex=False)
    process = context.Process(target=trainer, args=(say, lock, thread))
    process.start()
    assert process.pid is not None
    forked = hear.recv()
    assert len(forked) == 2
    assert all(map(runs, forked))
    time.sleep(0.1 if lock else 0.0)  # now they are in C
    os.kill(process.pid, signum)
    process.join(10)
    assert process.exitcode == -signum
    assert wait(lambda: not any(map(runs, forked)), 5.0), "a worker outlived its trainer"


@linux
def test_signals_that_ask_to_stop_are_the_trainers_to_answer(workers: Workers) -> None:
    pool = started(chain(), 3, workers)
    for worker in pids(pool):
        assert os.getpgid(worker) != os.getpgid(0)  # Ctrl-C does not reach it
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(worker, signum)
    time.sleep(0.05)
    assert fields(pool.step([RIGHT] * 3)) == fields(started(chain(), 3, None).step([RIGHT] * 3))


@pytest.mark.thorough
def test_a_program_that_just_ends_leaves_nothing() -> None:
    """It has no `if __name__ == "__main__"`."""
    where = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"}
    program = subprocess.run([sys.executable, "-c", SCRIPT], env=where, stdout=subprocess.PIPE, text=True, timeout=60)
    forked, lengths = program.stdout.splitlines()
    assert (program.returncode, lengths) == (0, "[1, 1, 1, 1]")
    assert not any(map(runs, map(int, forked.split())))


# --- How many ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpus", "rows", "overlapped", "step_cost", "count"),
    [
        (1, 64, True, None, 0),  # nobody to share the work with
        (2, 64, True, None, 1),  # the trainer learns on the other
        (2, 64, False, 25.0, 1),  # the trainer takes its share: LunarLander
        (2, 64, False, 6.0, 0),  # CartPole: a message costs as much as it saves
        (4, 64, False, 25.0, 3),
        (4, 64, False, 6.0, 0),
        (4, 256, False, 6.0, 3),
        (4, 64, False, None, 3),
        (4, 64, True, None, 2),
        (4, 16, True, 6.0, 1),
        (4, 7, True, 25.0, 0),
        (4, 7, False, 25.0, 0),
        (64, 4096, True, None, 15),
        (64, 4096, False, 25.0, 15),
    ],
)
def test_auto_goes_by_cpus_and_environments(
    monkeypatch: pytest.MonkeyPatch, cpus: int, rows: int, overlapped: bool, step_cost: float | None, count: int
) -> None:
    monkeypatch.setattr(workers_module, "available_cpus", lambda: cpus)
    assert Workers().count(rows, overlapped, step_cost) == count


def test_auto_goes_by_what_a_step_cost_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation pool chooses when it first plays: what training measured decides."""
    cheap, dear = config("CartPole-v1"), odd("Slow")
    for cfg, count in ((cheap, 0), (dear, 1)):
        with auto(monkeypatch) as workers:
            assert workers.step_cost(cfg) is None
            training = EnvPool(cfg, 16, workers=workers, overlapped=True)
            evaluation = EnvPool(cfg, 16, workers=workers)
            play(training, 10, False)
            assert training.worker_count == 1
            cost = workers.step_cost(cfg)
            assert cost is not None
            assert (cost >= 500) == (cfg is dear)
            if cfg is cheap:  # on a busy machine it may seem dearer than it is
                for pool in workers._pools:
                    pool.shared["spent"][:] = 10_000 * pool.shared["stepped"]
            play(evaluation, 2, False)
            assert evaluation.worker_count == count


def test_a_number_is_a_number() -> None:
    assert [Workers(n).count(5, overlapped) for n in (0, 1, 9) for overlapped in (True, False)] == [0, 0, 1, 1, 5, 5]
    assert 1 <= available_cpus() <= (os.cpu_count() or 1)


def test_every_pool_has_workers_of_its_own() -> None:
    with Workers(3) as workers:
        training, evaluation = started(chain(), 2, workers), started(chain("Masked"), 6, workers)
        assert len({*pids(training), *pids(evaluation)}) == 2 + 3
        training.send([RIGHT] * 2)
        assert fields(evaluation.step([RIGHT] * 6)) == fields(started(chain("Masked"), 6, None).step([RIGHT] * 6))
        assert fields(training.receive()) == fields(started(chain(), 2, None).step([RIGHT] * 2))


# --- Environments that are not like others ---------------------------------------------------------------------------


def auto(monkeypatch: pytest.MonkeyPatch) -> Workers:
    monkeypatch.setattr(workers_module, "available_cpus", lambda: 2)
    return Workers()


@pytest.fixture
def registered_here() -> Iterator[str]:
    gymnasium.register("OnlyHere-v0", entry_point=Chain, max_episode_steps=3)
    yield "OnlyHere-v0"
    del gymnasium.registry["OnlyHere-v0"]


@pytest.mark.thorough
def test_what_only_this_process_knows_lives_in_workers_too(
    registered_here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id that the program registered itself, another meaning of a known id, arguments that are no plain data."""
    monkeypatch.setattr(gymnasium.registry["CartPole-v1"], "max_episode_steps", 5)
    numbers = EnvConfig.model_construct(id="envs_for_tests:Chain-v0", kwargs={"when": np.int64(2)}, backend="sync")
    with Workers(2) as workers:
        for cfg in (config(registered_here), config("CartPole-v1"), numbers):
            pool = EnvPool(cfg, 4, workers=workers)
            assert play(pool, 20, True) == play(EnvPool(cfg, 4), 20, True)
            assert pool.worker_count == 2


def test_a_fault_of_the_trainers_own_share_is_told_at_the_end_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    with auto(monkeypatch) as workers:
        pool = started(chain("Raises"), 32, workers)
        assert pool.worker_count == 1
        for _ in range(2):
            pool.step([LEFT], rows=[1])  # an odd row: the worker has the even ones
        before = shown(pool)
        pool.send([LEFT] * 32)
        with pytest.raises(EnvironmentFailed, match="row 1, "):
            pool.receive()
        assert shown(pool) == before
        assert pool.step([LEFT] * 2, rows=[2, 3]).reward.shape == (2,)


def test_auto_steps_in_this_process_what_no_other_can_make(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = odd("OnlyIn", pid=os.getpid())
    with auto(monkeypatch) as workers:
        pool = EnvPool(cfg, 16, workers=workers)
        assert play(pool, 30, True) == play(EnvPool(cfg, 16), 30, True)
        assert pool.worker_count == 0


def test_a_number_of_workers_is_not_given_up_silently() -> None:
    with Workers(1) as workers, pytest.raises(ParamsError) as failed:
        started(odd("OnlyIn", pid=os.getpid()), 2, workers)
    assert str(failed.value) == (
        "runtime.env_workers: the environment 'worker_envs:OnlyIn-v0' cannot live in worker processes: "
        "environment 'worker_envs:OnlyIn-v0' could not be constructed: RuntimeError: not in this process; check "
        "env.kwargs; set it to 0"
    )


@pytest.mark.thorough
def test_auto_leaves_environments_with_threads_to_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork has none of them, so that an environment might wait for its own forever. A number is an order."""
    for workers, count in ((auto(monkeypatch), 0), (Workers(1), 1)):
        with workers:
            assert started(odd("Threaded"), 16, workers).worker_count == count


def test_a_thread_that_begins_elsewhere_meanwhile_is_none_of_the_environments() -> None:
    """Threads that start threads, as a learner's do, while the environment is made."""
    over, made = threading.Event(), threading.Event()

    def starts() -> None:
        while not made.is_set():
            threading.Thread(target=over.wait).start()
            time.sleep(0.002)

    cfg = odd("Process")
    other = threading.Thread(target=starts)
    other.start()
    try:
        make_env(cfg)
        assert not has_threads(cfg)
    finally:
        made.set()
        over.set()
        other.join()
    make_env(odd("Threaded"))
    assert has_threads(odd("Threaded"))


@pytest.mark.thorough
def test_workers_survive_a_thread_that_started_them() -> None:
    pools: list[EnvPool] = []
    with Workers(2) as workers:
        thread = threading.Thread(target=lambda: pools.append(started(chain(), 4, workers)))
        thread.start()
        thread.join()
        time.sleep(0.1)
        assert fields(pools[0].step([RIGHT] * 4)) == fields(started(chain(), 4, None).step([RIGHT] * 4))
