"""The benchmark: its statistics against values by hand, its counting, its record, its page. Peers with `--slow`."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from evopipe.envs.make import make_env
from evopipe.schema.env import EnvConfig

ROOT = Path(__file__).parents[3]
BENCHMARKS = ROOT / "benchmarks"
INF = math.inf


@pytest.fixture(autouse=True)
def _on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS / "contestants"))
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def stats(_on_path: None) -> Any:
    from harness import stats

    return stats


# --- statistics -------------------------------------------------------------------------------------------------------


def test_a_ratio_is_the_median_of_the_pairs_ratios(stats: Any) -> None:
    # Pairs 2, 3, 4, 1, 10: their median is 3; the ratio of the medians (8 / 2) would be 4.
    ratio = stats.ratio([2, 6, 8, 9, 30], [1, 2, 2, 9, 3])
    assert ratio.median == 3
    assert ratio.pairs == 5


def test_intervals_are_those_of_all_resamples(stats: Any) -> None:
    assert stats.interval([7.0]) == (7, 7)
    # Three values: 7 of 27 resamples have the smallest as their median, far more than 2.5 %.
    assert stats.interval([1, 2, 3]) == (1, 3)
    # Five: the smallest is the median of 181 of 3125 resamples, 5.8 %; two of a kind at the end do not narrow that.
    assert stats.interval([1, 2, 3, 4, 5]) == (1, 5)
    assert stats.interval([1, 1, 3, 4, 4]) == (1, 4)
    # Seven: 1 % for the smallest, 10 % for the two smallest together, so the second is the end.
    assert stats.interval([1, 2, 3, 4, 5, 6, 7]) == (2, 6)
    assert stats.interval([INF, 2, 3, INF, INF]) == (2, INF)
    with pytest.raises(ValueError, match="no values"):
        stats.interval([])


def test_a_ratio_is_inconclusive_with_few_pairs_or_a_wide_interval(stats: Any) -> None:
    assert not stats.too_wide(stats.Ratio(10, 9, 13.5, 5))
    assert stats.too_wide(stats.Ratio(10, 9, 13.6, 5))
    assert stats.too_wide(stats.Ratio(10, 9, 11, 4))
    assert stats.too_wide(stats.Ratio(math.nan, math.nan, math.nan, 5))


@pytest.mark.parametrize(
    ("low", "high", "pairs", "wide", "said"),
    [
        (10.0, 12.0, 5, False, "reached"),
        (8.0, 9.9, 5, False, "not reached"),
        (9.0, 11.0, 5, False, "INCONCLUSIVE"),
        (11.0, 20.0, 5, False, "INCONCLUSIVE"),  # too wide, though all of it lies above
        (11.0, INF, 5, True, "reached"),
        (11.0, 12.0, 4, True, "INCONCLUSIVE"),
    ],
)
def test_verdicts(stats: Any, low: float, high: float, pairs: int, wide: bool, said: str) -> None:
    assert stats.verdict(stats.Ratio((low + high) / 2, low, high, pairs), 10.0, wide) == said


def test_a_censored_time_is_a_lower_bound(stats: Any) -> None:
    T = stats.Time
    assert stats.median_time([T(10), T(20), T(30, True)]) == (20, False)
    assert stats.median_time([T(10), T(20, True), T(30, True)]) == (20, True)
    assert stats.median_time([T(10, True), T(20), T(30)]) == (20, True)  # the first may have been the longest
    # Pairs: ≥ 3, = 2, ≤ 2 (so at least 0): the median is at least 2, and everything up to infinity is possible.
    ratio = stats.ratio_of_times([T(30, True), T(20), T(20)], [T(10), T(10), T(10, True)])
    assert ratio == (2, 0, INF, 3)


# --- counting ---------------------------------------------------------------------------------------------------------


def test_steps_are_counted_below_the_wrappers_and_resets_apart() -> None:
    from common import EnvClock

    clock = EnvClock()
    env = clock.watch(make_env(EnvConfig(id="LunarLander-v3")))
    env.reset(seed=1)  # ends with a step of its own, which is nobody's
    assert clock.steps == 0
    for _ in range(5):
        env.step(0)
    env.close()
    assert clock.steps == 5
    assert 0 < clock.step_seconds < clock.seconds
    assert clock.reset_seconds > 0


def test_a_budget_ends_the_run() -> None:
    from common import EnvClock, OutOfBudget

    env = EnvClock(max_steps=2).watch(make_env(EnvConfig(id="CartPole-v1")))
    env.reset(seed=1)
    env.step(0)
    env.step(1)
    with pytest.raises(OutOfBudget):
        env.step(0)
    seconds = iter([10.0, 10.5, 11.5])  # at the beginning, after the first step, after the second
    slow = EnvClock(max_seconds=1.0, spent=lambda: next(seconds)).watch(make_env(EnvConfig(id="CartPole-v1")))
    slow.reset(seed=1)
    slow.step(0)
    with pytest.raises(OutOfBudget):
        slow.step(1)
    late = EnvClock(max_seconds=0.0).watch(make_env(EnvConfig(id="CartPole-v1")))
    late.reset(seed=1)
    with pytest.raises(OutOfBudget):
        late.step(0)


def test_a_part_inside_another_counts_for_itself_alone() -> None:
    import time

    from common import Parts

    class Work:
        def outer(self) -> None:
            time.sleep(0.01)
            self.inner()

        def inner(self) -> None:
            time.sleep(0.05)

    parts = Parts()
    parts.watch(Work, "outer", "outer")
    parts.watch(Work, "inner", "inner")
    Work().outer()
    assert parts.calls == {"inner": 1, "outer": 1}
    assert parts.seconds["inner"] >= 0.05
    assert parts.seconds["outer"] < 0.04


def test_episodes_are_played_once_a_seed() -> None:
    from common import EnvClock, play_episodes

    clock = EnvClock()
    env = gymnasium.vector.SyncVectorEnv([lambda: clock.watch(make_env(EnvConfig(id="CartPole-v1"))) for _ in range(2)])
    left = lambda obs: np.zeros(len(obs), np.int64)  # noqa: E731
    returns = play_episodes(env, left, [1, 2, 3, 4])
    again = play_episodes(env, left, [3, 4])
    assert returns.tolist()[2:] == again.tolist()
    assert clock.steps >= returns.sum() + again.sum()  # who is done goes on until the other is


# --- settings ---------------------------------------------------------------------------------------------------------


def test_all_are_given_the_same_work() -> None:
    from harness.measurements import Options, measurements
    from ours import params_of

    measurement = measurements()["end_to_end"]
    s = measurement.settings(Options())
    params = params_of({**s, "seed": 1})
    dqn = params.algo_config
    assert s["population"] * s["max_steps"] == 49_920
    assert (params.population.size, params.env.num_envs) == (4, 16)
    assert (dqn.batch_size, dqn.learn_step) == (128, 4)
    assert sorted(dqn.evolve) == sorted(s["search"]) == ["lr"]  # what would change the number of updates stays
    # After k vector steps AgileRL and evopipe explore alike.
    from evopipe.algos.dqn import explore

    for k in (0, 100, 400):
        theirs = max(s["eps_end"], s["eps_start"] * s["eps_decay"] ** k)
        assert explore(dqn, k * s["num_envs"]) == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize("name", ["td3", "ddpg", "rainbow", "cqn"])
def test_the_other_algorithms_run_as_the_settings_say(name: str) -> None:
    from harness.measurements import Options, measurements
    from ours import OWN, params_of

    s = measurements()[name].settings(Options())
    params = params_of({**s, "seed": 1})
    cfg = params.algo_config
    assert params.train.algo == name
    for setting in ("batch_size", "learn_step", "gamma", "grad_clip", *OWN[name]):
        assert getattr(cfg, setting) == s[setting], setting
    net = cfg.network
    assert [*net.encoder, net.latent, *net.head] == s["layers"]
    assert sorted(cfg.evolve) == sorted(s["search"])
    assert not {"batch_size", "learn_step"} & set(cfg.evolve)  # what would change the number of updates stays
    assert s["max_steps"] == 2 * s["evo_steps"]
    assert s["evo_steps"] % s["num_envs"] == 0
    replay = params.train.replay
    if name == "rainbow":
        assert (replay.prioritised, replay.n_step, replay.alpha, replay.beta) == (True, 4, 0.6, 0.4)
    else:
        assert (replay.prioritised, replay.n_step) == (False, 1)
    if name in ("td3", "ddpg"):
        assert (cfg.noise, cfg.noise_sd, cfg.random_steps, cfg.policy_delay) == ("gaussian", 0.1, 0, 2)


@pytest.mark.parametrize("name", ["ppo", "ppo_recurrent"])
@pytest.mark.parametrize("quick", [False, True])
def test_ppo_runs_as_the_settings_say(name: str, quick: bool) -> None:
    from harness.measurements import Options, measurements
    from ours import OWN, params_of

    measurement = measurements()[name]
    s = measurement.settings(Options(quick=quick))
    params = params_of({**s, "seed": 1})
    cfg = params.algo_config
    assert params.train.algo == "ppo"
    for setting in ("batch_size", "learn_step", "gamma", "grad_clip", *OWN["ppo"]):
        assert getattr(cfg, setting) == s[setting], setting
    assert cfg.clip_value  # the peer cannot leave it
    assert cfg.share_encoder
    net, layers = cfg.network, s["layers"]
    assert [*net.encoder, net.latent, *net.head] == layers
    assert net.encoder_kind == ("lstm" if name == "ppo_recurrent" else "mlp")
    assert sorted(cfg.evolve) == sorted(s["search"]) == ["ent_coef", "lr"]
    assert s["evo_steps"] % s["learn_step"] == 0  # then everybody's rollouts are whole
    assert s["learn_step"] % s["num_envs"] == 0
    if not quick:
        assert s["population"] * s["max_steps"] == {"ppo": 98_304, "ppo_recurrent": 65_536}[name]
        assert s["max_steps"] == 2 * s["evo_steps"]
    (peer,) = (c for c in measurement.contestants if c.name == "AgileRL")
    sequences = s["max_seq_len"] if name == "ppo_recurrent" else 1
    assert {**s, **peer.changes}["batch_size"] * sequences == s["batch_size"]


@pytest.mark.parametrize("name", ["maddpg", "matd3", "ippo"])
@pytest.mark.parametrize("quick", [False, True])
def test_teams_run_as_the_settings_say(name: str, quick: bool) -> None:
    from harness.measurements import Options, measurements
    from ours import OWN, params_of

    measurement = measurements()[name]
    s = measurement.settings(Options(quick=quick))
    for contestant in measurement.contestants[:2]:
        params = params_of({**s, **contestant.changes, "seed": 1})
        assert params.env.backend == contestant.changes.get("backend", "sync")
        assert params.runtime.kernels == contestant.changes.get("kernels", "auto")
    cfg = params.algo_config
    assert (params.train.algo, params.env.kwargs, cfg.score) == (name, s["kwargs"], "sum")
    for setting in ("batch_size", "learn_step", "gamma", "grad_clip", *OWN[name]):
        assert getattr(cfg, setting) == s[setting], setting
    assert [*cfg.network.encoder, cfg.network.latent, *cfg.network.head] == s["layers"] == [64] * 3
    assert sorted(cfg.evolve) == sorted(s["search"])
    assert not {"batch_size", "learn_step", "epochs"} & set(cfg.evolve)  # what would change the number of updates
    (peer,) = (c for c in measurement.contestants if c.name == "AgileRL")
    if name == "ippo":
        assert {**s, **peer.changes}["batch_size"] == 3 * s["batch_size"], "it counts each agent's steps"
        assert s["evo_steps"] % s["learn_step"] == 0
    else:
        assert (cfg.share, cfg.noise) == ("none", "gaussian")
    if not quick:
        assert s["population"] * s["max_steps"] == (98_304 if name == "ippo" else 49_920)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["maddpg", "ippo"])
@pytest.mark.parametrize("backend", ["sync", "torch"])
def test_a_team_of_ours_takes_the_updates_that_the_settings_say(name: str, backend: str) -> None:
    """The peer takes one every 16 steps of 16 environments, from its second or fourth tick on; of a rollout
    epochs · steps / batch."""
    from harness.measurements import Options, measurements
    from ours import end_to_end

    s = {**measurements()[name].settings(Options(quick=True)), "seed": 1, "backend": backend, "env_workers": 0}
    result = end_to_end(s)
    assert result["training_steps"] == 4 * s["max_steps"]
    rollouts = s["max_steps"] // s["learn_step"]
    if name == "ippo":
        assert result["updates"] == 4 * rollouts * s["epochs"] * s["learn_step"] // s["batch_size"]
    else:
        assert 4 * (rollouts - 4) <= result["updates"] <= 4 * rollouts


def test_no_rollout_ends_while_acting_is_timed() -> None:
    from harness.measurements import Options, measurements
    from ours import acting

    s = {**measurements()["ppo_native"].settings(Options(quick=True)), "seed": 1}
    result = acting(s)
    assert result["steps"] == 40 * 8 * 64
    assert result["steps_per_second"] == pytest.approx(result["steps"] / result["seconds"])
    with pytest.raises(RuntimeError, match="a rollout ended"):
        acting({**s, "learn_step": 64 * 30, "evo_steps": 64 * 60})


def test_time_to_solved_takes_its_settings_from_the_pipelines() -> None:
    from harness.measurements import Options, measurements
    from ours import solving_params

    from evopipe.params.load import load_params

    for name in ("cartpole", "lunarlander"):
        s = measurements()[name].settings(Options())
        file = load_params(ROOT / s["params"])
        ours = solving_params({**s, "seed": 3})
        assert ours.algo_config == file.algo_config
        assert ours.train.target_sigmas == 0.0  # the rule that all have: the mean decides
        assert ours.train.target == s["target"] == {"cartpole": 475.0, "lunarlander": 200.0}[name]
        assert ours.train.warm_start == 0  # nobody else has a dataset
        for key, (low, high) in s["search"].items():
            assert (low, high) == (file.algo_config.evolve[key].min, file.algo_config.evolve[key].max)


def test_values_are_drawn_from_the_whole_of_their_space() -> None:
    from common import draws

    space = {"lr": (1e-4, 1e-2), "epochs": (1, 10), "learn_step": (1, 8)}
    drawn = draws(space, 1, 400)
    assert drawn[:4] == draws(space, 1, 4)
    assert drawn[:4] != draws(space, 2, 4)
    for name, (low, high) in space.items():
        assert all(low <= each[name] <= high for each in drawn)
        assert isinstance(drawn[0][name], type(low))
    assert {each["learn_step"] for each in drawn} == set(range(1, 9))
    assert np.median([each["lr"] for each in drawn]) == pytest.approx(1e-3, rel=0.3)  # by its logarithm
    assert np.median([each["learn_step"] for each in drawn]) in (4, 5)  # not a factor of ten: evenly


@pytest.mark.parametrize("name", ["hpo_cartpole", "hpo_pendulum"])
def test_a_search_begins_with_members_drawn_from_its_space(name: str, tmp_path: Path) -> None:
    from common import draws
    from harness.measurements import Options, measurements
    from ours import draw_population, solving_params

    from evopipe import layout
    from evopipe.problems.specs import make_spec
    from evopipe.run.population import read_members

    s = {**measurements()[name].settings(Options()), "seed": 3}
    params = solving_params(s)
    assert (params.train.target, params.env.backend) == (s["target"], "sync")
    draw_population(params, s["search"], tmp_path)
    members, _ = read_members(tmp_path, layout.POPULATION, make_spec(params))
    rates = ("lr",) if name == "hpo_cartpole" else ("lr_actor", "lr_critic")
    for member, drawn in zip(members, draws(s["search"], 3, 4), strict=True):
        assert [*(block.width for block in member.arch.encoder), member.arch.latent] == [drawn["width"]] * 2
        assert [member.hyper[rate] for rate in rates] == [drawn["lr"]] * len(rates)
        for setting in set(drawn) - {"width", "lr"}:
            assert member.hyper[setting] == drawn[setting]
            bounds = params.algo_config.evolve[setting]
            assert s["search"][setting] == [bounds.min, bounds.max]
    assert len({member.key for member in members}) == 4


# --- running and keeping ----------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_measurement_runs_is_kept_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import run

    asked = ["roofline", "--quick", "--cores", "1", "--results", str(tmp_path)]
    assert run.main([*asked, "--repeats", "1"]) == 0
    (first,) = (kept := json.loads((tmp_path / "roofline.json").read_text()))["runs"]
    assert first["result"]["step_microseconds"] > 0
    assert kept["machine"]["cpu"]
    assert kept["machine"]["cores"] == [[min(_able())]]
    assert run.main([*asked, "--repeats", "1"]) == 0  # nothing is left to do
    assert json.loads((tmp_path / "roofline.json").read_text())["runs"] == [first]
    assert run.main([*asked, "--repeats", "2"]) == 0
    runs = json.loads((tmp_path / "roofline.json").read_text())["runs"]
    assert (runs[0], [r["turn"] for r in runs]) == (first, [0, 1])
    with pytest.raises(SystemExit, match="other settings"):
        run.main(["roofline", "--cores", "1", "--results", str(tmp_path)])
    assert "turn 2, evopipe" in capsys.readouterr().out


def test_of_a_curve_one_contestant_may_begin_anew_and_the_others_keep_their_runs(tmp_path: Path) -> None:
    from harness.turns import Record

    machine = {"cpu": "a CPU", "torch": "2", "source": "old"}
    both = [{"name": name, "environment": "", "changes": {}} for name in ("evopipe", "SB3")]
    about = {"settings": {"lr": 1.0}, "lanes": 1, "contestants": both, "machine": machine}
    record, path = Record(tmp_path / "curve.json", about, fresh=True), tmp_path / "curve.json"
    for name in ("evopipe", "SB3"):
        record.add({"turn": 0, "contestant": name})
    new = {**about, "contestants": both[:1], "machine": {**machine, "source": "new"}}
    assert Record(path, new, fresh=True).data["runs"] == []  # seconds of two days are not compared
    of_old = Record(path, {**new, "settings": {"lr": 2.0}}, fresh=True, others=True)
    assert of_old.data["runs"] == []
    anew = Record(path, new, fresh=True, others=True)
    assert anew.data["runs"] == [{"turn": 0, "contestant": "SB3"}]
    anew.add({"turn": 0, "contestant": "evopipe"})
    on = Record(path, {**about, "machine": new["machine"]}, fresh=False)  # and goes on as any other
    assert [run["contestant"] for run in on.data["runs"]] == ["SB3", "evopipe"]


@pytest.mark.thorough
def test_a_search_ends_when_its_budget_is_spent(tmp_path: Path) -> None:
    import run

    asked = ["hpo_cartpole", "--quick", "--cores", "1", "--repeats", "1", "--contestants", "evopipe"]
    assert run.main([*asked, "--results", str(tmp_path)]) == 0
    (first,) = json.loads((tmp_path / "hpo_cartpole.json").read_text())["runs"]
    assert (first["result"]["solved"], first["result"]["steps"]) == (False, 12_000)
    assert 0 < first["result"]["processor_seconds"] < 20


def _able() -> list[int]:
    from harness import machine

    able: list[int] = machine.able()
    return able


def test_lanes_share_no_core() -> None:
    from harness import machine

    able = _able()
    assert machine.lanes_of(1, 1) == [able[:1]]
    if len(able) >= 4:
        assert machine.lanes_of(2, 2) == [able[:2], able[2:4]]
    with pytest.raises(SystemExit, match="take fewer"):
        machine.lanes_of(len(able) + 1, 1)


@pytest.mark.thorough
def test_a_failing_contestant_is_told(tmp_path: Path) -> None:
    from harness.measurements import Contestant, Measurement
    from harness.turns import ContestantFailed
    from harness.turns import run as run_one

    nobody = Measurement("x", "no such task", (Contestant("evopipe"),), lambda _: {})
    with pytest.raises(ContestantFailed, match=r"evopipe failed \(1\):\n[^$]*no such task"):
        run_one(nobody, nobody.contestants[0], {}, _able()[:1])


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT asks for it
@pytest.mark.parametrize("way", ["ours", "loop", "prompt"])
def test_language_models_take_a_step_of_every_kind(way: str) -> None:
    pytest.importorskip("peft")
    import language_models as language
    from harness.measurements import Options, measurements

    for name in ("completions",) if way == "prompt" else ("grpo", "dpo", "completions"):
        s = {**measurements()[name].settings(Options(quick=True)), "seed": 1, "part_seconds": 0.0, "way": way}
        s |= {"prompts": 2, "group": 2, "tokens": 10, "pairs": 4}
        found = language.completions(s) if name == "completions" else language.step(s, name)
        assert list(found) == ["1"]
        assert found["1"]["step"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "measurement",
    [
        "grpo",
        "dpo",
        "end_to_end",
        "td3",
        "ddpg",
        "rainbow",
        "cqn",
        "ppo",
        "ppo_recurrent",
        "maddpg",
        "matd3",
        "ippo",
        "parts",
        "cartpole",
        "lunarlander",
        "hpo_cartpole",
        "hpo_pendulum",
    ],
)
def test_the_peers_run(measurement: str, tmp_path: Path) -> None:
    import run
    from harness import venvs

    if not all(venvs.ready(peer) for peer in venvs.PEERS):
        pytest.skip("the peers' environments are not here: make bench BENCH_ARGS=--setup")
    assert run.main([measurement, "--quick", "--repeats", "1", "--results", str(tmp_path)]) == 0


# --- the page ---------------------------------------------------------------------------------------------------------


def _result(**changes: Any) -> dict[str, Any]:
    """An end-to-end result of five turns: AgileRL takes 40 to 44 s, we take 4."""
    run = {"training_steps": 1000, "steps": 3000, "reset_seconds": 0.0, "updates": 100, "parts": {"learn": 2.0}}
    runs = [
        {"turn": turn, "contestant": name, "load": 0.1, "result": {**run, "seconds": s, "step_seconds": 1.0}}
        for turn in range(5)
        for name, s in (("evopipe", 4.0), ("AgileRL", 40.0 + turn))
    ]
    machine = {
        "cores": [[0, 1]], "revision": "abc", "device": "cpu", "cpu": "a CPU", "processors": 4, "python": "3.11",
        "cpu_capability": "AVX512", "torch": "2", "gymnasium": "1",
    }  # fmt: skip
    from harness.measurements import Options, lander

    return {
        "measurement": "end_to_end", "command": "python benchmarks/run.py end_to_end", "quick": False, "lanes": 1,
        "settings": lander(Options()), "contestants": [{"name": "evopipe"}, {"name": "AgileRL"}], "choices": {},
        "runs": runs, "machine": machine, **changes,
    }  # fmt: skip


def test_the_page_says_what_the_results_say() -> None:
    from harness.page import page

    text = page({"end_to_end": _result()})
    row = "| steps/s of DQN end to end over AgileRL | ≥ 5 × | ≥ 6 × | 10.5 × [10.0, 11.0] | a CPU, 2 cores |"
    assert f"{row} **reached** |" in text
    assert "### DQN · a CPU, 2 cores" in text
    assert (
        "| AgileRL | 42.0 (40.0 – 44.0) | – | 23.8 (22.7 – 25.0) |" in text
    )  # as older results, which lack CPU seconds
    assert "`python benchmarks/run.py end_to_end` · 5 turns, cores 0–1" in text


def test_the_page_compares_cpu_seconds_where_all_runs_have_them() -> None:
    from harness.page import page

    timed = _result()
    for run in timed["runs"]:
        run["result"] |= {"processor_seconds": 8.0 if run["contestant"] == "evopipe" else 24.0}
        run["result"] |= {"kernels": "native"} if run["contestant"] == "evopipe" else {}
    text = page({"end_to_end": timed})
    assert "| AgileRL | 42.0 (40.0 – 44.0) | 24.0 (24.0 – 24.0) |" in text
    assert "| 10.5 × [10.0, 11.0] | 3.00 × [3.00, 3.00] |" in text
    assert "highest load average 0.1, native kernels" in text
    del timed["runs"][0]["result"]["processor_seconds"]
    assert "| 10.5 × [10.0, 11.0] | – |" in page({"end_to_end": timed})


def test_the_limit_takes_the_faster_products_and_no_other_processors() -> None:
    from harness.page import page

    end = _result()
    roof = _result(measurement="roofline")
    roof["runs"] = [run for run in roof["runs"] if run["contestant"] == "evopipe"]
    for run in roof["runs"]:
        # 3000 steps of 1000 µs, 1000 training steps of 1000 µs: 4 s on 2 cores are 2 s, of our 4 s one half.
        own = {"step_microseconds": 1000.0, "products_microseconds": 3000.0, "own_products_microseconds": 1000.0}
        run["result"] = own
    text = page({"end_to_end": end, "roofline": roof})
    row = "| fraction of the machine's limit, DQN end to end | ≥ 0.5 | ≥ 0.6 | 0.500 [0.500, 0.500] | a CPU, 2 cores |"
    assert f"{row} **reached** |" in text
    assert "matrix products of learning alone, by torch's library | 3,000 µs a training step | 3.00 s |" in text
    assert "At the limit itself the ratio to AgileRL's 42.0 s would be 21.0 ×." in text
    for run in roof["runs"]:
        del run["result"]["own_products_microseconds"]  # as older results: 6 s on 2 cores are 3 s
    assert "DQN end to end | ≥ 0.5 | ≥ 0.6 | 0.750 [0.750, 0.750]" in page({"end_to_end": end, "roofline": roof})
    roof["machine"] = {**roof["machine"], "cpu": "another CPU"}
    text = page({"end_to_end": end, "roofline": roof})
    assert "fraction of the machine's limit" not in text
    assert "Measured on another processor than the run end to end" in text


def test_the_page_tells_the_time_a_member_and_that_of_a_gpu() -> None:
    from harness.measurements import Options, measurements
    from harness.page import page

    curve = _result(measurement="curve_64", settings={**measurements()["curve_64"].settings(Options()), "sizes": [8]})
    curve["runs"] = [run for run in curve["runs"] if run["contestant"] == "evopipe"]
    for run in curve["runs"]:
        run["result"] = {"8": {"learn": 160.0, "products": 300.0, "own_products": 120.0}, "kernels": "native"}
    text = page({"curve_64": curve})
    assert "| 8 | 160 (160 – 160) | 20.0 (20.0 – 20.0) | 0.750 (0.750 – 0.750) |" in text
    assert "| update of 8 members, 64 wide, batches of 64 | ≤ 150 µs |  | 160 µs [160, 160] |" in text
    assert "No figures yet: no GPU was at hand." in text
    lent = {**curve, "machine": {**curve["machine"], "device": "a GPU"}}
    text = page({"curve_64_cuda": lent})
    assert "### 64 wide · a GPU, 2 cores" in text
    assert "No figures yet" not in text


def test_the_page_has_the_other_off_policy_algorithms() -> None:
    from harness.measurements import Options, measurements
    from harness.page import page

    td3 = _result(measurement="td3", settings=measurements()["td3"].settings(Options()))
    text = page({"td3": td3})
    assert "| steps/s of TD3 end to end over AgileRL | ≥ 5 × | ≥ 6 × | 10.5 × [10.0, 11.0] | a CPU" in text
    assert "TD3 on LunarLanderContinuous-v3: 4 members of 16 environments, networks 64 × 64 × 64" in text
    cqn = _result(measurement="cqn", settings={**measurements()["cqn"].settings(Options()), "sizes": [4]})
    for run in cqn["runs"]:
        learn = 1000.0 if run["contestant"] == "evopipe" else 3000.0
        run["result"] = {"4": {"learn": learn, "learn and sample": 2 * learn}}
    text = page({"cqn": cqn})
    assert "learn step of CQN, 4 members, AgileRL over ours | ≥ 4 × |  | 3.00 × [3.00, 3.00] | a CPU" in text
    assert "| learn and sample, 4 members | 2,000 (2,000 – 2,000) | 6,000 (6,000 – 6,000) | 3.00 ×" in text
    for run in td3["runs"]:
        run["result"]["updates"] += 3 * (run["contestant"] == "AgileRL")
    with pytest.raises(ValueError, match="td3: numbers of updates differ"):
        page({"td3": td3})


def test_the_page_has_language_models() -> None:
    from harness.measurements import Options, measurements
    from harness.page import page

    settings = measurements()["grpo"].settings(Options())
    takes = {"evopipe": (100.0, 250.0), "TRL": (150.0, 600.0), "PEFT models in a loop": (140.0, 560.0)}
    runs = [
        {"turn": turn, "contestant": name, "load": 0.1, "result": {"1": {"step": 1e3 * one}, "4": {"step": 1e3 * four}}}
        for turn in range(5)
        for name, (one, four) in takes.items()
    ]  # fmt: skip
    contestants = [{"name": name, "environment": "", "changes": {}} for name in takes]
    own = {"measurement": "grpo", "settings": settings, "runs": runs, "contestants": contestants}
    text = page({"grpo": {**_result(), **own}, "grpo_small": {**_result(), **own, "measurement": "grpo_small"}})
    assert "step of GRPO, 4 members, four runs of TRL over ours | ≥ 2 × |  | 2.40 × [2.40, 2.40] | a CPU" in text
    assert "step of GRPO, 4 members, PEFT models in a loop over ours | ≥ 2 × |  | 2.24 ×" in text
    assert "| GRPO, 1 member | 100 (100 – 100) | 150 (150 – 150) | 140 (140 – 140) | 1.50 ×" in text
    assert "GRPO: 8 prompts × 8 completions × at most 16 tokens." in text


def test_the_page_has_teams() -> None:
    from harness.measurements import Options, measurements
    from harness.page import page

    maddpg = _result(measurement="maddpg", settings=measurements()["maddpg"].settings(Options()))
    maddpg["runs"] += [
        {**run, "contestant": "evopipe, tensors", "result": {**run["result"], "seconds": 6.0}}
        for run in maddpg["runs"]
        if run["contestant"] == "evopipe"
    ]
    maddpg["contestants"].append({"name": "evopipe, tensors"})
    text = page({"maddpg": maddpg})
    assert "| steps/s of MADDPG end to end over AgileRL, mpe2 | ≥ 4 × |  | 10.5 × [10.0, 11.0] | a CPU" in text
    assert "MADDPG end to end over AgileRL, tensors | ≥ 8 × |  | 7.00 × [6.67, 7.33] | a CPU" in text
    assert (
        "MADDPG on simple_speaker_listener_v4: 4 members of 16 environments, networks 64 × 64 × 64, batches of 64"
        in text
    )
    ippo = _result(measurement="ippo", settings=measurements()["ippo"].settings(Options()))
    text = page({"ippo": ippo})
    assert "rollouts of 2,048 steps, 4 epochs of batches of 128 steps of all agents, 98,304 training steps" in text
    for run in ippo["runs"]:
        run["result"]["updates"] += 3 * (run["contestant"] == "AgileRL")
    with pytest.raises(ValueError, match="ippo: numbers of updates differ"):
        page({"ippo": ippo})


def test_the_page_has_ppo() -> None:
    from harness.measurements import Options, measurements
    from harness.page import page

    settings = {name: measurements()[name].settings(Options()) for name in ("ppo", "ppo_recurrent", "ppo_native")}
    ppo = _result(measurement="ppo", settings=settings["ppo"])
    text = page({"ppo": ppo})
    assert "| steps/s of PPO end to end over AgileRL | ≥ 3.5 × | ≥ 4.2 × | 10.5 × [10.0, 11.0] | a CPU" in text
    assert "PPO on LunarLander-v3: 4 members of 16 environments, networks 64 × 64 × 64, rollouts of 2,048" in text
    recurrent = _result(measurement="ppo_recurrent", settings=settings["ppo_recurrent"])
    text = page({"ppo_recurrent": recurrent})
    assert "| steps/s of Recurrent PPO end to end over AgileRL | ≥ 3.5 × | ≥ 4.2 × | 10.5 × [10.0, 11.0] |" in text
    assert "an LSTM, learned in sequences of 16 steps" in text
    for rate, said in ((1_600_000, "reached"), (400_000, "not reached")):
        native = _result(measurement="ppo_native", settings=settings["ppo_native"])
        native["runs"] = [run for run in native["runs"] if run["contestant"] == "evopipe"]
        for run in native["runs"]:
            run["result"] = {"steps_per_second": rate + run["turn"]}
        text = page({"ppo_native": native})
        assert f"| ≥ 1,500,000 |  | {rate + 2:,} [{rate:,}, {rate + 4:,}] | a CPU, 2 cores | **{said}** |" in text
        assert ("aim not shown" in text) == (said == "not reached")
    for run in ppo["runs"]:
        run["result"]["updates"] += 3 * (run["contestant"] == "AgileRL")
    with pytest.raises(ValueError, match="ppo: numbers of updates differ"):
        page({"ppo": ppo})


def test_the_page_has_what_priorities_cost() -> None:
    from harness.measurements import Options, measurements
    from harness.page import page
    from ours import priorities

    settings = measurements()["priorities"].settings(Options(quick=True))
    small = priorities({**settings, "seed": 1})
    assert small["rows_megabytes"] == pytest.approx(10_000 * 4 * (8 + 8 + 3) / 1e6)
    assert small["microseconds"] > 0
    for time, size, words in (
        (140, 76.0, ("| ≤ 150 µs |  | 142 µs [140, 144] | a CPU", "| ≤ 100 MB |  | 76.0 MB [76.0, 76.0] | a CPU")),
        (420, 101.0, ("| ≤ 150 µs |  | 422 µs [420, 424] | a CPU", "| ≤ 100 MB |  | 101 MB [101, 101] | a CPU")),
    ):
        result = _result(measurement="priorities", settings=measurements()["priorities"].settings(Options()))
        result["runs"] = [run for run in result["runs"] if run["contestant"] == "evopipe"]
        for run in result["runs"]:
            run["result"] = {"microseconds": time + run["turn"], "rows_megabytes": size, "priorities_megabytes": 33.0}
        text = page({"priorities": result})
        assert all(each in text for each in words), text
        assert ("aim not shown: prioritised draw of 8 × 128 from 1,000,000 transitions" in text) == (time > 150)


def test_the_page_lists_what_is_not_won() -> None:
    from harness.page import page

    slow = _result()
    for run in slow["runs"]:
        run["result"]["seconds"] = 5.0
    text = page({"end_to_end": slow})
    assert "**not reached**" in text
    assert "- aim not shown: steps/s of DQN end to end over AgileRL, ≥ 5 ×: 1.00 × [1.00, 1.00]" in text


@pytest.mark.thorough
def test_the_page_says_against_whom_a_search_is_won() -> None:
    from harness.measurements import Options, measurements
    from harness.page import page

    m = measurements()["hpo_cartpole"]
    # By processor seconds and steps: ours 2 s and 100 steps; 4 s and 50 steps; as long as ours, more or less; censored.
    takes = {
        "evopipe": lambda turn: (True, 2.0, 100), "SB3 + Optuna": lambda turn: (True, 4.0, 50),
        "SB3 + ASHA": lambda turn: (True, (1.0, 4.0)[turn % 2], 100), "SB3 + PB2": lambda turn: (False, 60.0, 900),
    }  # fmt: skip
    runs = []
    for turn in range(6):
        for name, take in takes.items():
            solved, busy, steps = take(turn)
            result = {"solved": solved, "seconds": 99.0, "processor_seconds": busy, "steps": steps, "second_score": 490}
            runs.append({"turn": turn, "contestant": name, "load": 0.1, "result": result})
    own = {"measurement": m.name, "settings": m.settings(Options()), "runs": runs}
    text = page({m.name: {**_result(), **own, "contestants": [{"name": name} for name in takes]}})
    assert "- processor seconds: won against SB3 + Optuna, SB3 + PB2; open against SB3 + ASHA\n" in text
    assert "- steps: won against SB3 + PB2; lost to SB3 + Optuna; open against SB3 + ASHA\n" in text
    assert "| SB3 + Optuna | processor seconds | 6 of 6 | 4.00 | 4.00, 4.00, 4.00, 4.00, 4.00, 4.00 | 2.00 ×" in text
    assert "| SB3 + PB2 | processor seconds | 0 of 6 | > 60.0 |" in text
    assert "- search: steps to a solved CartPole-v1 against SB3 + Optuna: 0.500 × [0.500, 0.500]" in text
    assert "first trials of a seed" in text
    assert "\n\nNot measured yet: `hpo_acrobot`, `hpo_pendulum`, `hpo_lander`.\n\n## " in text


def test_unequal_work_gives_no_page() -> None:
    from harness.page import page
    from harness.results import UnequalWork

    unequal = _result()
    for run in unequal["runs"]:
        if run["contestant"] == "AgileRL":
            run["result"]["updates"] = 103
    with pytest.raises(UnequalWork, match="more than 2 %"):
        page({"end_to_end": unequal})


def test_plots_are_the_same_for_the_same_results() -> None:
    from harness.plots import plots

    results = {"end_to_end": _result()}
    first = plots(results)
    assert first == plots(results)
    assert first["bench-end-to-end.svg"].startswith(b"<?xml")
    assert b"AgileRL" in first["bench-end-to-end.svg"]


@pytest.mark.thorough
def test_the_committed_page_is_what_the_committed_results_give(capsys: pytest.CaptureFixture[str]) -> None:
    import make_page

    assert make_page.main(["--check"]) == 0, capsys.readouterr().out


def test_the_pipeline_runs_every_measurement() -> None:
    import make_page
    from harness.measurements import measurements

    from evopipe.schema.read import read_yaml

    stages = read_yaml(BENCHMARKS / "dvc.yaml").data["stages"]
    assert set(stages["measure"]["foreach"]) == set(measurements()) == set(make_page.NAMES)
    assert not [name for name in sys.modules if name.startswith(("agilerl", "stable_baselines3"))]


# --- learning curves by environment step ------------------------------------------------------------------------------


def _curve_result(**curves: list[list[float]]) -> dict[str, Any]:
    runs = [
        {"turn": turn, "contestant": name.replace("_", " "), "result": {"steps": [100, 300], "greedy": curve}}
        for name, seeds in curves.items()
        for turn, curve in enumerate(seeds)
    ]
    return {"runs": runs, "contestants": [{"name": name} for name in curves]}


def test_an_area_weighs_each_evaluation_by_the_steps_before_it_and_begins_at_the_floor() -> None:
    from harness.per_step import Curves

    curves = Curves.of(_curve_result(evopipe=[[0.0, 30.0], [-10.0, -10.0]]), "evopipe", "greedy")
    # 100 steps at 0 and 200 at 30, above −10: (100 · 10 + 200 · 40) / 300.
    assert curves.areas(-10.0).tolist() == [30.0, 0.0]
    assert curves.first(25.0) == [(300.0, False), (300.0, True)]
    assert curves.first(0.0)[0] == (100.0, False)


def test_a_ratio_of_means_draws_each_groups_seeds_by_themselves() -> None:
    from harness.per_step import ratio_of_means

    assert ratio_of_means([2.0, 2.0, 2.0], [1.0, 1.0]) == (2.0, 2.0, 2.0, 2)
    # Paired by place the ratio would be 1 in every pair; unpaired, means of three of 1, 2, 3 lie between 1 and 3.
    ratio = ratio_of_means([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert ratio.median == 1.0
    assert ratio.low < 0.6
    assert ratio.high > 1.6
    with pytest.raises(ValueError, match="no values"):
        ratio_of_means([], [1.0])


def test_rows_of_curves_give_both_sides_the_same_steps() -> None:
    from harness.rows import ROWS, UNLIKE, settings

    for name, row in ROWS.items():
        assert set(row.unlike) <= set(UNLIKE), name
        for s in (row.values, settings(name, True, "cpu", 1)):
            assert s["steps"] % s["every"] == 0, name
            rollout = s["learn_step"] if "epochs" in s else s["num_envs"]
            assert s["every"] % rollout == 0, name  # evaluations lie between rollouts


def test_every_row_is_a_params_file_of_its_values() -> None:
    from harness.rows import ROWS, settings
    from per_step import params_of

    for name in ROWS:
        s = {**settings(name, False, "cpu", 1), "seed": 3}
        params = params_of(s)
        cfg, train = params.algo_config, params.train
        assert (train.algo, train.max_steps, train.evo_steps) == (s["algo"], s["steps"], s["every"])
        assert (cfg.batch_size, cfg.learn_step, cfg.gamma) == (s["batch_size"], s["learn_step"], s["gamma"]), name
        assert [*cfg.network.encoder, cfg.network.latent] == s["widths"], name
        assert {getattr(cfg, rate) for rate in ("lr", "lr_actor", "lr_critic") if hasattr(cfg, rate)} == {s["lr"]}, name
        assert getattr(cfg, "vf_coef", 0.0) == 2 * s.get("vf_coef", 0.0), name  # both weigh the squared error alike
        assert (train.mode == "offline") == ("data" in s), name


@pytest.mark.parametrize(("seeds", "said"), [(4, "open"), (5, "reached")])
def test_a_row_of_few_seeds_decides_nothing(seeds: int, said: str) -> None:
    from harness.per_step import section
    from harness.rows import settings

    name = "per_step_ppo_cartpole"
    result = {**_result(), **_curve_result(evopipe=[[60.0]] * seeds, SB3=[[50.0]] * seeds)}
    for run in result["runs"]:
        run |= {"load": 0.1, "result": {"steps": [100], "greedy": run["result"]["greedy"], "sampled": None}}
    text = "\n".join(section({name: {**result, "settings": settings(name, False, "cpu", 1)}}))
    assert f"| greedy | {seeds}, {seeds} | 40.0 | 30.0 | 1.33 [1.33, 1.33] | {said} |" in text


def test_the_page_names_each_rows_peer() -> None:
    from harness.per_step import section
    from harness.rows import ROWS, settings

    results = {}
    for name in ("per_step_ppo_masked_cartpole", "per_step_iql_pendulum"):
        peer, floor = ROWS[name].peer, ROWS[name].values["floor"]
        result = _curve_result(**{"evopipe": [[floor + 30.0] * 2], peer: [[floor + 20.0] * 2]})
        results[name] = {**_result(), **result, "settings": settings(name, False, "cpu", 1)}
    for run in results["per_step_iql_pendulum"]["runs"]:
        run["load"] = 0.1
    for run in results["per_step_ppo_masked_cartpole"]["runs"]:
        run |= {"load": 0.1, "result": {**run["result"], "sampled": run["result"]["greedy"]}}
    text = "\n".join(section(results))
    assert "| recurrent PPO, MaskedCartPole-v0, 98,304 steps | sb3-contrib | greedy | 1, 1 | 30.0 | 20.0 | 1.50" in text
    assert "| IQL, Pendulum-v1, 10,000 steps | d3rlpy | greedy | 1, 1 | 30.0 | 20.0 | 1.50 [" in text
    assert text.count("| sampled |") == 1
    assert "Not measured yet: `per_step_ppo_cartpole`" in text
    assert "Peers: SB3 2.9.2, sb3-contrib 2.9.2, AgileRL 2.58.0, d3rlpy 2.8.1, skrl 2.1.1 (d3rlpy with Gymn" in text
    assert "- d3rlpy learns a deviation of IQL's policy" in text
    assert "ours beside it. (`iql_pendulum`)" in text
    assert "AgileRL's" not in text  # no row of it is there


def test_what_a_team_scores_is_the_mean_of_its_agents_returns_summed_up() -> None:
    from common import judge_team
    from mpe2 import simple_spread_v3

    seeds, kwargs, total = [5, 6], {"continuous_actions": False}, 0.0
    for seed in seeds:  # one episode after another, everybody still
        env = simple_spread_v3.parallel_env(**kwargs)
        env.reset(seed=seed)
        while env.agents:
            total += sum(env.step(dict.fromkeys(env.agents, 0))[1].values())
    still = lambda obs: {agent: np.zeros(len(each), int) for agent, each in obs.items()}  # noqa: E731
    assert judge_team("simple_spread_v3", kwargs, still, seeds) == pytest.approx(total / 2)


def test_a_dataset_is_a_function_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness import datasets

    from evopipe.data.d4rl import read_d4rl

    monkeypatch.setattr(datasets, "FOLDER", tmp_path)
    monkeypatch.setitem(datasets._CONTENTS, "cartpole", ("CartPole-v1", 4, {"medium": 0.5, "random": 0.5}))
    read = []
    for _ in range(2):
        datasets.make("cartpole")
        read.append(read_d4rl(tmp_path / "cartpole.h5", discrete=True))
        (tmp_path / "cartpole.h5").unlink()
    assert (len(read[0].episodes), read[0].dropped) == (4, 0)  # every step has its next observation
    for one, other in zip(read[0].episodes, read[1].episodes, strict=True):
        assert np.array_equal(one.obs, other.obs)
        assert np.array_equal(one.action, other.action)
