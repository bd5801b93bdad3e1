"""Environments in worker processes: bit for bit what they are in this process, and no process is left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from envs_for_tests import Chain
from evopipe.envs import workers
from evopipe.envs.pool import EnvPool, Step
from evopipe.envs.workers import Crew, Remote
from evopipe.errors import EnvironmentFailed, EvopipeError, ParamsError, UsageError
from evopipe.parallel import Helper, available_cpus
from evopipe.schema.blocks import EnvConfig

ROOT = Path(__file__).parents[2]
RIGHT, LEFT = 1, 0


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(3) as crew:
        yield crew


class WithUs(Crew):
    """As `auto` is where there are three CPUs and environments dear enough: two workers, and this process."""

    def count(self, rows: int, overlapped: bool, step_cost: float | None = None) -> int:
        return min(2, rows - 1)


@pytest.fixture(scope="module", params=[False, True], ids=["workers", "together"])
def any_crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    with WithUs() if request.param else Crew(3) as crew:
        yield crew


def config(env_id: str, **kwargs: Any) -> EnvConfig:
    return EnvConfig.model_validate({"id": env_id, "kwargs": kwargs})


def chain(name: str = "Chain", **kwargs: Any) -> EnvConfig:
    return config(f"envs_for_tests:{name}-v0", **kwargs)


def odd(name: str, **kwargs: Any) -> EnvConfig:
    return config(f"worker_envs:{name}-v0", **kwargs)


def started(cfg: EnvConfig, rows: int, crew: Crew | None) -> EnvPool:
    pool = EnvPool(cfg, rows, crew=crew)
    pool.reset(np.arange(rows), np.arange(rows))
    return pool


def pids(pool: EnvPool) -> list[int]:
    """Its worker processes."""
    assert isinstance(pool._home, Remote)
    return [helper.pid for helper in pool._home.helpers if isinstance(helper, Helper)]


def fields(step: Step) -> list[bytes]:
    return [getattr(step, name).tobytes() for name in Step.__dataclass_fields__]


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
        over = np.flatnonzero(step.terminated | step.truncated | step.broken)
        reset(over if rows is None else rows[over])
        kept.append((step, fields(step)))
        seen.append([*fields(step), *shown(pool)])
    assert all(fields(step) == before for step, before in kept), "a step is not overwritten by the next"
    return seen


# --- The same, wherever they live -------------------------------------------------------------------------------------


@pytest.mark.parametrize("foretell", [False, True])
@pytest.mark.parametrize(
    ("cfg", "rows", "ticks"),
    [
        (config("LunarLander-v3"), 12, 300),
        (config("LunarLander-v3", gravity=-5.0, enable_wind=True), 4, 150),
        (config("CartPole-v1"), 16, 500),
        (config("CartPole-v1", max_episode_steps=7), 5, 200),
        (config("Acrobot-v1"), 3, 100),
        *((chain(name), 5, 150) for name in ("Masked", "NanObs", "NanReward", "HugeObs", "DoubleObs", "NumpyReward")),
    ],
    ids=lambda value: f"{value.id}-{len(value.kwargs)}" if isinstance(value, EnvConfig) else str(value),
)
def test_every_output_is_bit_identical(any_crew: Crew, cfg: EnvConfig, rows: int, ticks: int, foretell: bool) -> None:
    here, there = EnvPool(cfg, rows), EnvPool(cfg, rows, crew=any_crew)
    expected, found = play(here, ticks, foretell), play(there, ticks, foretell)
    assert expected == found
    assert (here.workers, there.workers) == (0, 2 if any_crew.auto else 3)
    there.close()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_number_of_workers_does_not_matter(count: int) -> None:
    with Crew(count) as crew:
        pool = EnvPool(chain("Masked"), 5, crew=crew)
        assert play(pool, 60, True) == play(EnvPool(chain("Masked"), 5), 60, True)


def test_the_environments_really_live_elsewhere(crew: Crew) -> None:
    pool = started(odd("Process"), 6, crew)
    reward = pool.step([0] * 6).reward
    assert reward.tolist() == [float(pid % 2**20) for pid in pids(pool)] * 2
    assert float(os.getpid() % 2**20) not in reward.tolist()
    with pytest.raises(UsageError, match="do not live in this process"):
        pool.env(0)


def test_a_state_goes_from_one_place_to_another(any_crew: Crew) -> None:
    for before, after in ((None, any_crew), (any_crew, None)):
        pool = started(config("LunarLander-v3"), 4, before)
        rng = np.random.default_rng(3)
        for _ in range(50):
            pool.step(rng.integers(4, size=4))
        state = pool.state()
        again = EnvPool(config("LunarLander-v3"), 4, crew=after)
        assert not again.restore(state).any()
        assert shown(again) == shown(pool)
        assert fields(again.step([0, 1, 2, 3])) == fields(pool.step([0, 1, 2, 3]))


def test_denormal_numbers_are_treated_as_in_the_trainer(any_crew: Crew) -> None:
    try:
        for flush in (True, False):
            assert torch.set_flush_denormal(flush)
            rewards = [started(odd("Denormal"), 3, where).step([0] * 3).reward.tolist() for where in (None, any_crew)]
            assert rewards == [[float(flush)] * 3] * 2
    finally:
        torch.set_flush_denormal(False)


def test_a_module_and_its_files_are_found_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crew: Crew
) -> None:
    (tmp_path / "level").write_text("0.25")
    (tmp_path / "own_level.py").write_text(
        "import gymnasium\nfrom worker_envs import Process\n\n\nclass Own(Process):\n    pass\n\n\n"
        "gymnasium.register('Own-v0', entry_point=Own, max_episode_steps=4)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    pool = started(config("own_level:Own-v0"), 3, crew)
    assert pool.workers == 3
    assert pool.obs.tolist() == [[0.25] * 4] * 3


# --- A step in two halves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [False, True])
def test_nothing_changes_until_a_step_is_received(any_crew: Crew, there: bool) -> None:
    pool = started(chain("Masked"), 4, any_crew if there else None)
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
    with Crew(1) as crew:
        pool = started(config("LunarLander-v3"), 64, crew)
        waited, alone = [], []
        for _ in range(30):
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
    with Crew(2) as crew:
        pool = started(chain(), 4, crew)
        pool.send([RIGHT] * 4)
        pool.close()
        other = started(chain(), 4, crew)
        assert fields(other.step([RIGHT] * 4)) == fields(started(chain(), 4, None).step([RIGHT] * 4))


# --- Environments that break their contract ---------------------------------------------------------------------------

SPOILT = ("Raises", "WrongShape", "WrongDtype", "NoReward", "VectorReward", "NumberEnded", "MaskLost")
FAULTS = [*(chain(name) for name in SPOILT), odd("Typed")]


@pytest.mark.parametrize("cfg", FAULTS, ids=lambda cfg: cfg.id)
def test_a_fault_reads_as_in_this_process(any_crew: Crew, cfg: EnvConfig) -> None:
    errors = []
    for where in (None, any_crew):
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


def test_a_fault_at_reset_reads_as_in_this_process(any_crew: Crew) -> None:
    sentences = []
    for where in (None, any_crew):
        with pytest.raises(EnvironmentFailed) as failed:
            started(chain("MaskShape"), 4, where)
        sentences.append(str(failed.value))
    assert sentences[0] == sentences[1]


@pytest.mark.parametrize("foretell", [False, True])
def test_a_fault_of_an_episode_begun_ahead_comes_when_it_is_asked_for(any_crew: Crew, foretell: bool) -> None:
    sentences = []
    for where in (None, any_crew):
        pool = EnvPool(odd("SecondReset"), 3, crew=where)
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


def test_an_episode_begun_ahead_is_not_taken_for_another_seed(any_crew: Crew) -> None:
    """The caller may change its mind: what was foretold binds nobody."""
    pools = [started(config("CartPole-v1"), 3, where) for where in (None, any_crew)]
    for pool in pools:
        pool.upcoming = lambda rows, ahead: rows[:, None] + 100 + np.arange(ahead)
        pool.reset([0, 1, 2], [0, 1, 2])
        ended = np.zeros(3, bool)
        while not ended.all():
            alive = np.flatnonzero(~ended)
            step = pool.step([1] * len(alive), alive)
            ended[alive] = step.terminated
        pool.reset([2, 0, 1], [5, 100, 6])
        pool.step([0, 1, 0])
    assert shown(pools[0]) == shown(pools[1])


def test_an_environment_that_exits_does_not_take_the_worker_along(crew: Crew) -> None:
    pool = started(odd("SysExit", when=1), 3, crew)
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
    with Crew(2) as crew:
        pool = started(odd(name), 4, crew)
        pool.step([LEFT] * 4)
        pool.step([LEFT] * 4)
        with pytest.raises(EnvironmentFailed, match=text) as failed:
            pool.step([LEFT] * 4)
        assert failed.value.exit_code == 71
        with pytest.raises(EnvironmentFailed, match=text):  # and again, rather than hang
            pool.reset([0], [1])
        pool.close()


def test_a_worker_that_is_killed_is_told() -> None:
    with Crew(2) as crew:
        pool = started(chain(), 4, crew)
        os.kill(pids(pool)[1], signal.SIGKILL)
        pool.send([LEFT] * 4)
        with pytest.raises(EnvironmentFailed, match=r"SIGKILL \(often because memory ran out: lower env.num_envs or"):
            pool.receive()


def test_closing_ends_the_processes_at_once_even_in_a_step() -> None:
    with Crew(2) as crew:
        pool = started(odd("Hangs"), 2, crew)
        workers = pids(pool)
        pool.send([LEFT] * 2)
        began = time.monotonic()
    assert time.monotonic() - began < 2.0
    assert not any(map(runs, workers))
    crew.close()
    with pytest.raises(EnvironmentFailed, match="the pool was closed"):
        pool.receive()


def test_a_closed_pool_closes_its_environments_where_they_live(tmp_path: Path) -> None:
    with Crew(2) as crew:
        pool = started(odd("Closes", folder=str(tmp_path)), 3, crew)
        workers = pids(pool)
        pool.close()
    assert {path.name for path in tmp_path.iterdir()} == {*map(str, workers), str(os.getpid())}


def test_a_forgotten_pool_ends_its_processes() -> None:
    pool = started(chain(), 2, Crew(1))
    (worker,) = pids(pool)
    assert runs(worker)
    del pool
    gc.collect()
    assert not runs(worker)


SCRIPT = """\
import os, signal, sys, threading, time
import numpy as np
from evopipe.schema.blocks import EnvConfig
from evopipe.envs.pool import EnvPool
from evopipe.envs.workers import Crew

def build():
    global crew, pool
    crew = Crew(2)
    pool = EnvPool(EnvConfig.model_validate({{"id": "worker_envs:Hangs-v0", "kwargs": {kwargs}}}), 4, crew=crew)
    pool.reset(np.arange(4), np.arange(4))

{start}
pool.send([0] * 4)
print(*[helper.pid for helper in pool._home.helpers], flush=True)
{then}
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"}


def script(kwargs: dict[str, Any], then: str, start: str = "build()") -> subprocess.Popen[str]:
    """A program without `if __name__ == "__main__"`, whose environments are stepping when it prints their processes."""
    code = SCRIPT.format(kwargs=kwargs, then=then, start=start)
    return subprocess.Popen([sys.executable, "-c", code], env=environment(), stdout=subprocess.PIPE, text=True)


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
THREAD = "thread = threading.Thread(target=build); thread.start(); thread.join()"


@linux
@pytest.mark.parametrize("start", ["build()", THREAD], ids=["main", "thread"])
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_outlives_the_trainer(signum: signal.Signals, start: str) -> None:
    with script({}, "time.sleep(60)", start) as trainer:
        assert trainer.stdout is not None
        pids = [int(word) for word in trainer.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(runs, pids))
        trainer.send_signal(signum)
        trainer.wait(10)
        assert wait(lambda: not any(map(runs, pids)), 5.0), "a worker outlived its trainer"


@linux
def test_no_worker_outlives_the_trainer_while_its_environment_holds_the_lock() -> None:
    with script({"lock": True}, "time.sleep(60)") as trainer:
        assert trainer.stdout is not None
        pids = [int(word) for word in trainer.stdout.readline().split()]
        time.sleep(0.3)  # now they are in C, with the lock
        trainer.kill()
        trainer.wait(10)
        assert wait(lambda: not any(map(runs, pids)), 5.0), "a worker outlived its trainer"


@linux
def test_signals_that_ask_to_stop_are_the_trainers_to_answer(crew: Crew) -> None:
    pool = started(chain(), 3, crew)
    for worker in pids(pool):
        assert os.getpgid(worker) != os.getpgid(0)  # Ctrl-C does not reach it
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(worker, signum)
    time.sleep(0.05)
    assert fields(pool.step([RIGHT] * 3)) == fields(started(chain(), 3, None).step([RIGHT] * 3))


def test_a_program_that_just_ends_leaves_nothing() -> None:
    with script({"when": 5}, "pool.receive(); print(pool.episode_length.tolist(), flush=True)") as program:
        assert program.stdout is not None
        pids = [int(word) for word in program.stdout.readline().split()]
        assert program.stdout.readline() == "[1, 1, 1, 1]\n"
        assert program.wait(10) == 0
    assert not any(map(runs, pids))


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
    monkeypatch.setattr(workers, "available_cpus", lambda: cpus)
    assert Crew().count(rows, overlapped, step_cost) == count


def test_auto_goes_by_what_a_step_cost_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation pool chooses when it first plays: what training measured decides."""
    cheap, dear = config("CartPole-v1"), odd("Slow")
    for cfg, count in ((cheap, 0), (dear, 1)):
        with auto(monkeypatch) as crew:
            assert crew.step_cost(cfg) is None
            training = EnvPool(cfg, 16, crew=crew, overlapped=True)
            evaluation = EnvPool(cfg, 16, crew=crew)
            play(training, 10, False)
            assert training.workers == 1
            cost = crew.step_cost(cfg)
            assert cost is not None
            assert (cost >= 500) == (cfg is dear)
            play(evaluation, 2, False)
            assert evaluation.workers == count


def test_a_number_is_a_number() -> None:
    assert [Crew(n).count(5, overlapped) for n in (0, 1, 9) for overlapped in (True, False)] == [0, 0, 1, 1, 5, 5]
    assert 1 <= available_cpus() <= (os.cpu_count() or 1)


def test_every_pool_has_workers_of_its_own() -> None:
    with Crew(3) as crew:
        training, evaluation = started(chain(), 2, crew), started(chain("Masked"), 6, crew)
        assert len({*pids(training), *pids(evaluation)}) == 2 + 3
        training.send([RIGHT] * 2)
        assert fields(evaluation.step([RIGHT] * 6)) == fields(started(chain("Masked"), 6, None).step([RIGHT] * 6))
        assert fields(training.receive()) == fields(started(chain(), 2, None).step([RIGHT] * 2))


# --- Environments that are not like others ---------------------------------------------------------------------------


def auto(monkeypatch: pytest.MonkeyPatch) -> Crew:
    monkeypatch.setattr(workers, "available_cpus", lambda: 2)
    return Crew()


@pytest.fixture
def registered_here() -> Iterator[str]:
    gymnasium.register("OnlyHere-v0", entry_point=Chain, max_episode_steps=3)
    yield "OnlyHere-v0"
    del gymnasium.registry["OnlyHere-v0"]


def test_what_only_this_process_knows_lives_in_workers_too(
    registered_here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id that the program registered itself, another meaning of a known id, arguments that are no plain data."""
    monkeypatch.setattr(gymnasium.registry["CartPole-v1"], "max_episode_steps", 5)
    numbers = EnvConfig.model_construct(id="envs_for_tests:Chain-v0", kwargs={"when": np.int64(2)}, backend="sync")
    with Crew(2) as crew:
        for cfg in (config(registered_here), config("CartPole-v1"), numbers):
            pool = EnvPool(cfg, 4, crew=crew)
            assert play(pool, 20, True) == play(EnvPool(cfg, 4), 20, True)
            assert pool.workers == 2


def test_auto_steps_in_this_process_what_no_other_can_make(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = odd("OnlyIn", pid=os.getpid())
    with auto(monkeypatch) as crew:
        pool = EnvPool(cfg, 16, crew=crew)
        assert play(pool, 30, True) == play(EnvPool(cfg, 16), 30, True)
        assert pool.workers == 0


def test_a_number_of_workers_is_not_given_up_silently() -> None:
    with Crew(1) as crew, pytest.raises(ParamsError) as failed:
        started(odd("OnlyIn", pid=os.getpid()), 2, crew)
    assert str(failed.value) == (
        "runtime.env_workers: the training environment 'worker_envs:OnlyIn-v0' cannot live in worker processes: "
        "environment 'worker_envs:OnlyIn-v0' could not be constructed: RuntimeError: not in this process; check "
        "env.kwargs; set it to 0"
    )


def test_auto_leaves_environments_with_threads_to_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork has none of them, so that an environment might wait for its own forever. A number is an order."""
    for crew, count in ((auto(monkeypatch), 0), (Crew(1), 1)):
        with crew:
            assert started(odd("Threaded"), 16, crew).workers == count


def test_workers_survive_a_thread_that_started_them() -> None:
    pools: list[EnvPool] = []
    with Crew(2) as crew:
        thread = threading.Thread(target=lambda: pools.append(started(chain(), 4, crew)))
        thread.start()
        thread.join()
        time.sleep(0.1)
        assert fields(pools[0].step([RIGHT] * 4)) == fields(started(chain(), 4, None).step([RIGHT] * 4))
