"""The probe: signals of runs, by the kernels and by torch, after a kill, alone and among others."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from evopipe import algos
from evopipe.native import build
from evopipe.regimes.probe import Probe
from evopipe.regimes.rollouts import probe_rollout
from evopipe.run.clock import Clock
from populations import advance, alone, close_generation, env_for, finish, go_on, problem, started, unlike

SMALL: dict[str, Any] = {"network": {"encoder": [16], "latent": 16}, "batch_size": 32}
TRAIN: dict[str, Any] = {"evo_steps": 160, "max_steps": 320, "learning_delay": 16, "eval_episodes": 2, "target": None}
LONGER: dict[str, Any] = {"evo_steps": 100_000, "max_steps": 100_000}
ALL = {"charts/learning_rate", "charts/updates_per_step", "losses/grad_norm", "losses/grad_clipped",
       "losses/weight_norm"}  # fmt: skip
ACTING = ALL | {"charts/dormant", "charts/episodes", "charts/observation_size", "charts/terminated"}
VALUES = {"losses/q_values", "losses/q_values_max", "losses/target_gap", "losses/td_error"}
REPLAY = {"replay/size", "replay/age", "charts/epsilon"}
ALWAYS = {"charts/learning_rate", "charts/updates_per_step", "losses/weight_norm", "charts/episodes", "replay/size",
          "charts/epsilon"}  # fmt: skip
TOLD = {
    "dqn": ACTING | VALUES | REPLAY,
    "rainbow": ACTING | VALUES | REPLAY | {"losses/support_low", "losses/support_high"},
    "qrdqn": ACTING | VALUES | REPLAY | {"losses/quantile_low", "losses/quantile_high"},
    "td3": ACTING | VALUES | REPLAY | {"losses/actor_loss", "charts/noise"},
    "sac": ACTING | VALUES | REPLAY | {"losses/actor_loss", "losses/entropy", "losses/alpha"},
    "tqc": ACTING
    | VALUES
    | REPLAY
    | {"losses/actor_loss", "losses/entropy", "losses/alpha", "charts/noise", "losses/log_std"}
    | {"losses/quantile_low", "losses/quantile_high"},
    "redq": ACTING
    | VALUES
    | REPLAY
    | {"losses/actor_loss", "losses/entropy", "losses/alpha", "charts/noise", "losses/log_std"},
    "crossq": (ACTING | VALUES | REPLAY | {"losses/actor_loss", "losses/entropy", "losses/alpha", "charts/noise"})
    - {"losses/target_gap"}
    | {"losses/log_std"},
    "ppo": ACTING
    | {
        "losses/policy_loss",
        "losses/value_loss",
        "losses/entropy",
        "losses/approx_kl",
        "losses/clipfrac",
        "losses/explained_variance",
        "losses/advantage_std",
    },
}


@pytest.fixture(params=["torch", "kernels"])
def computing(request: pytest.FixtureRequest) -> Iterator[str]:
    before = build.chosen()
    build.use(build.load() if request.param == "kernels" else None)
    yield request.param
    build.use(before)


def a_run(algo: str, members: int = 2, **train: Any) -> Any:
    own = {"learn_step": 4} if not algos.on_policy(algos.get(algo)) else {"learn_step": 64, "epochs": 2}
    return started(problem(env_for(algo), algo, config={**SMALL, **own}, train={**TRAIN, **train}), members)


def probed(run: Any) -> list[dict[str, tuple[float, float]]]:
    """What the first two members of a run, in one cohort, tell of one minibatch as they are."""
    probe = Probe(run.spec, run.clock)
    if algos.on_policy(run.spec.algo):
        (playing,) = run.regime.playing
        probe_rollout(run.spec, playing.cohort, playing.rollout, 16, run.clock.tick, probe)
    else:
        probe.due = lambda *_: True  # type: ignore[method-assign]
        run.regime.learning.probe(probe)
    return probe.diagnostics.told([0, 1])


def rates(name: str) -> str:
    return "charts/learning_rate" if name.startswith("charts/learning_rate") else name


DEAR = ("rainbow", "tqc", "crossq", "redq")


@pytest.mark.parametrize("algo", [pytest.param(n, marks=pytest.mark.thorough) if n in DEAR else n for n in TOLD])
def test_a_run_tells_the_signals_of_its_algorithm(algo: str, computing: str) -> None:
    run = a_run(algo)
    finish(run)
    assert {rates(name) for name in run.signal_names} - {"charts/episodic_return", "charts/episodic_length"} == TOLD[
        algo
    ]
    assert [row[:2] for row in run.signals] == [[generation, slot] for generation in (1, 2) for slot in (0, 1)]
    for row in run.signals:
        own = dict(zip(run.signal_names, row[2::2], strict=False))
        told = TOLD[algo] if algo == "ppo" or row[0] == 1 else ALWAYS  # generations of replay are short: one of two
        for name in TOLD[algo] & own.keys():
            assert (isinstance(own[name], float) and math.isfinite(own[name])) == (name in told), name
        assert (own["losses/grad_norm"] or 0) > 0 or "losses/grad_norm" not in told
        assert own["losses/weight_norm"] > 0
    run.close()


@pytest.mark.parametrize("algo", TOLD)
@pytest.mark.thorough
def test_kernels_and_torch_tell_the_same_of_the_same_members(algo: str) -> None:
    """Of one state and one minibatch: whatever computes the operators."""
    before = build.chosen()
    build.use(None)
    run, found = a_run(algo), []
    advance(run, 40)
    for kernels in (None, build.load()):
        build.use(kernels)
        found.append(probed(run))
    build.use(before)
    for of_torch, of_kernels in zip(*found, strict=True):
        assert of_torch.keys() == of_kernels.keys()
        for name, (mean, _) in of_torch.items():
            assert of_kernels[name][0] == pytest.approx(mean, rel=1e-4, abs=1e-6, nan_ok=True), name
    run.close()


@pytest.mark.thorough
@pytest.mark.parametrize("algo", ["dqn", "sac", "ppo"])
def test_a_run_resumed_within_a_generation_tells_the_same(algo: str, computing: str) -> None:
    whole = a_run(algo)
    finish(whole)
    for ticks in (13, 39, 40, 57):
        killed, resumed = a_run(algo), a_run(algo)
        advance(killed, ticks)
        resumed.restore(*killed.state())
        finish(resumed)
        assert (resumed.signal_names, resumed.signals) == (whole.signal_names, whole.signals), ticks
        killed.close()
        resumed.close()
    whole.close()


def test_a_member_alone_tells_what_it_tells_among_others() -> None:
    """Unlike members in one cohort of the kernels: batches and widths of others are pads, and not a digit changes."""
    before = build.chosen()
    build.use(build.load())
    p = unlike("dqn", cohorts="merged", **{**TRAIN, "replay": {"sharing": "own"}})
    runs = [started(p, 3), *(started(p, [alone(p, slot)]) for slot in range(3))]
    for each in runs:
        while not each.clock.generation_over:
            each.advance()
    together, *apart = (run.regime.signals(range(run.clock.members)) for run in runs)
    assert len({each["losses/grad_norm"] for each in together}) == 3
    assert together == [each[0] for each in apart]
    for each in runs:
        each.close()
    build.use(before)


@pytest.mark.thorough
@pytest.mark.parametrize("fitness", ["evaluation", "training"])
@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_ticks_in_c_tell_what_ticks_one_by_one_tell(algo: str, fitness: str) -> None:
    """However many the kernels take at once: episodes, their lengths, and probes at the same moments."""
    before = build.chosen()
    build.use(build.load())
    found = []
    for most in (1, 7, 10_000):
        config = {**SMALL, "learn_step": 256 if algo == "ppo" else 1}
        p = problem(
            "CartPole-v1", algo, config=config, train={**TRAIN, "evo_steps": 4000, "max_steps": 8000},
            search={"fitness": fitness},
        )  # fmt: skip
        run = started(replace(p, env=p.env.model_copy(update={"backend": "c"})), 2)
        while not run.reason:
            if run.clock.generation_over:
                close_generation(run)
            else:
                run.advance(most)
        found.append((run.signal_names, run.signals))
        run.close()
    build.use(before)
    assert found[0] == found[1] == found[2]
    names, rows = found[0]
    assert {"charts/episodic_return", "charts/episodic_length", "losses/grad_norm"} <= {*names}
    for row in rows:
        own = dict(zip(names, row[2::2], strict=False))
        assert own["charts/episodic_return"] == own["charts/episodic_length"]  # CartPole pays 1 a step
        assert own["charts/episodes"] > 1


def test_a_diverged_member_is_told_as_such_and_its_neighbour_as_ever(tmp_path: Path) -> None:
    run, clean = a_run("dqn"), a_run("dqn")
    for each in (run, clean):
        advance(each, 30)
    (cohort,) = run.cohorts
    cohort.state.q.values[0] = math.nan
    for each in (run, clean):
        while each.clock.generation == 0:
            go_on(each)
    ill, well = (
        {row[1]: dict(zip(r.signal_names, row[2::2], strict=False)) for row in r.signals} for r in (run, clean)
    )
    assert ill[0]["losses/grad_norm"] == ill[0]["losses/q_values"] == "nan"
    assert ill[1] == well[1]
    run.close()
    clean.close()


@pytest.mark.thorough
def test_updates_a_step_are_those_of_the_generation() -> None:
    """One in every four steps, but none in the first generation's first 16: 36 of 40, in 160 steps."""
    run = a_run("dqn")
    finish(run)
    at = 2 + 2 * run.signal_names.index("charts/updates_per_step")
    assert [row[at] for row in run.signals] == [0.225, 0.225, 0.25, 0.25]
    assert [row[at + 1] for row in run.signals] == [0.225, 0.225, 0.25, 0.25]
    run.close()


def test_how_often_a_generation_is_probed() -> None:
    clock = Clock(1, 1, 10, 10)
    probe = Probe(problem(algo="dqn"), clock)

    def moments(updates: float, among: int) -> list[int]:
        return [moment for moment in range(among) if probe.due(updates, moment, among)]

    assert moments(3, 10) == moments(1500, 10) == [9]
    assert moments(2048, 10) == [4, 9]
    assert moments(1e9, 10) == [2, 4, 7, 9]
    assert moments(1e9, 3) == [0, 1, 2]
    sparse, found = Probe(problem(algo="dqn"), clock, apart=8), {}
    for updates in (10, 400, 1024):
        found[updates] = []
        for clock.generation in range(9):
            found[updates] += [clock.generation] * sparse.due(updates, 9, 10)
            assert sparse.ahead(updates, 7, 10) == (3 if clock.generation in found[updates] else 4)
    assert found == {10: [0, 8], 400: [0, 6], 1024: [0, 2, 4, 6, 8]}
    of_replay = Probe(problem(algo="dqn"), clock, apart=2)
    for updates, told in ((10, [0, 2]), (2047, [0, 2]), (2048, [0, 1, 2, 3])):
        for clock.generation in range(4):
            assert of_replay.due(updates, 9, 10) == (clock.generation in told)


def test_the_table_is_written_with_means_and_last_values(tmp_path: Path) -> None:
    tiny.write_params(tmp_path, {"train.max_steps": 800})
    assert tiny.call(tmp_path, "population").code == tiny.call(tmp_path, "train").code == 0
    with (tmp_path / "reports/signals.csv").open() as stream:
        head, *rows = list(csv.reader(stream))
    assert head[:2] == ["generation", "slot"]
    assert head[3::2] == [f"{name}.last" for name in head[2::2]]
    assert [row[:2] for row in rows] == [[str(g), str(slot)] for g in (1, 2) for slot in range(3)]
    assert all(len(row) == len(head) for row in rows)


def test_what_a_probe_makes_leaves_no_trace() -> None:
    run = a_run("sac")
    advance(run, 30)
    before = [tensor.clone() for cohort in run.cohorts for tensor in cohort.tensors()]
    run.regime._probe.due = lambda *_: True
    run.regime.learning.probe(run.regime._probe)
    after = [tensor for cohort in run.cohorts for tensor in cohort.tensors()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    run.close()


def told_by(p: Any, ticks: int) -> list[dict[str, tuple[float, float]]]:
    """What two members tell of one minibatch after some ticks."""
    run = started(p, 2)
    advance(run, ticks)
    found = probed(run)
    run.close()
    return found


def test_the_newest_row_of_a_memory_has_the_age_0() -> None:
    """An age is how many rows came later: of six rows, the last ones of ten, ages are from 0 to 5."""
    few = {"evo_steps": 100, "max_steps": 100, "learning_delay": 10**6}
    (first, _) = told_by(problem(num_envs=1, train=few), 1)
    assert first["replay/age"] == (0.0, 0.0)
    replay = {"capacity": 6, "sharing": "own"}
    (some, _) = told_by(problem(num_envs=2, train={**few, "replay": replay}, config={"batch_size": 4096}), 5)
    assert some["replay/age"][0] == pytest.approx(2.5, abs=0.1)


@pytest.mark.parametrize("env", ["simple_speaker_listener_v4", "Pendulum-v1"])
def test_the_noise_of_exploration_is_that_of_its_parameter(env: str) -> None:
    """So small that hardly an action is clipped; agents' pads do not count."""
    algo, team = ("matd3", {"continuous_actions": True}) if env != "Pendulum-v1" else ("td3", None)
    config = {**SMALL, "batch_size": 256, "learn_step": 64, "noise_sd": 0.01}
    for told in told_by(problem(env, algo, config=config, train={**TRAIN, **LONGER}, kwargs=team), 80):
        assert told["charts/noise"][0] == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_the_share_of_legal_actions_and_of_ends(algo: str) -> None:
    """In cell 0 going left is illegal, of two actions: half are legal there, and all in the two other cells. An episode
    ends at the right end alone."""
    config = {**SMALL, "batch_size": 512, **({"learn_step": 64, "epochs": 1} if algo == "ppo" else {"learn_step": 64})}
    for told in told_by(problem("envs_for_tests:Masked-v0", algo, config=config, train={**TRAIN, **LONGER}), 80):
        legal, ended = told["charts/legal"][0], told["charts/terminated"][0]
        assert 0.5 < legal < 1.0
        assert 0.0 < ended < 0.5
    for told in told_by(problem("envs_for_tests:Endless-v0", algo, config=config, train={**TRAIN, **LONGER}), 80):
        assert told["charts/terminated"][0] == 0.0
        assert "charts/legal" not in told
    for told in told_by(problem("envs_for_tests:OneStep-v0", algo, config=config, train={**TRAIN, **LONGER}), 80):
        assert told["charts/terminated"][0] == 1.0


@pytest.mark.parametrize("algo", ["ippo", "maddpg"])
@pytest.mark.thorough
def test_each_agent_of_a_team_is_told_of(algo: str) -> None:
    """A team's score is the sum over its agents, who are told of by their names."""
    own = {"learn_step": 64, "epochs": 1} if algo == "ippo" else {"learn_step": 8}
    run = started(problem(env_for(algo), algo, config={**SMALL, **own}, train=TRAIN), 2)
    finish(run)
    for row in run.signals:
        told = dict(zip(run.signal_names, row[2::2], strict=False))
        returns = [told[f"agents/{agent}/episodic_return"] for agent in ("blue_0", "red_0", "red_1")]
        assert sum(returns) == pytest.approx(told["charts/episodic_return"], rel=1e-4)
        entropies = [told[f"agents/{agent}/entropy"] for agent in ("blue_0", "red_0", "red_1")]
        assert min(entropies) <= told["losses/entropy"] <= max(entropies)
        assert ("losses/q_values" in told) == (algo == "maddpg")
    run.close()
