"""`env.source`: a user's environment in C, compiled at first use, checked, and compared with its twin."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import evopipe
import tiny
from evopipe.envs.check import check
from evopipe.envs.compiled import CompiledPool
from evopipe.envs.make import make_env
from evopipe.errors import EvopipeError, ParamsError, UsageError
from evopipe.native import build
from evopipe.params.load import parse_params
from evopipe.policies.play import environment_of
from evopipe.problems.env import problem_of
from evopipe.schema.env import EnvConfig
from tiny import ROOT

CPU = torch.device("cpu")
CATCH = re.findall(r"```c\n(.*?)```", (ROOT / "docs/environments.md").read_text(encoding="utf-8"), re.DOTALL)[0]
STILL = CATCH.replace(".step_draws = 2, ", "").replace(
    "  if (in->random[0] < in->settings[WIND]) s->ball = within(s->ball + (in->random[1] < 0.5 ? -1 : 1));\n", ""
)
PLACED = STILL.replace("const environment the_environment", """
static void place(void *state, const double *numbers, int count) {
  if (count == 3) *(board *)state = (board){(int32_t)numbers[0], (int32_t)numbers[1], (int32_t)numbers[2]};
}

const environment the_environment""").replace(".reset = reset", ".place = place, .reset = reset")  # fmt: skip
PUSH = """
#include <environment.h>
typedef struct { double at[2]; } point;
static void reset(void *state, const inputs *in) { ((point *)state)->at[1] = in->random[0]; }
static int step(void *state, const inputs *in, double *reward) {
  point *s = state;
  for (int i = 0; i < 2; i++) s->at[i] += in->numbers[i];
  *reward = s->at[0] > 30.0 ? 0.0 / 0.0 : s->at[0];
  return s->at[1] > 100.0;
}
static void observe(const void *state, float *observation) {
  for (int i = 0; i < 2; i++) observation[i] = (float)((const point *)state)->at[i];
}
static const float low[] = {-2.0f, 0.0f}, high[] = {4.0f, 1.0f};
const environment the_environment = {
    .state = sizeof(point), .observations = 2, .actions = 2, .continuous = 1, .low = low, .high = high,
    .reset_draws = 1, .reset = reset, .step = step, .observe = observe,
};
"""


def written(folder: Path, text: str, name: str = "own.c") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def config(source: str, **more: Any) -> EnvConfig:
    return EnvConfig.model_validate({"id": "Own", "backend": "c", "source": source, **more})


def test_the_docs_example_is_caught_by_who_follows_the_ball(tmp_path: Path) -> None:
    pool = CompiledPool(config(written(tmp_path, CATCH)), 50, CPU)
    assert (pool.max_steps, pool.limit, pool.reward_threshold, pool.sound) == (100, None, 0.95, False)
    pool.reset(np.arange(50), np.arange(50))
    for _ in range(9):
        board = pool.obs.view(50, 10, 5).numpy()
        ball, paddle = board[:, :9].sum(1).argmax(1), board[:, 9].argmax(1)
        step = pool.step(torch.from_numpy(1 + np.sign(ball - paddle)))
    assert step.terminated.all()
    assert step.reward.tolist() == [1.0] * 50
    assert len({*ball.tolist()}) == 5


def test_settings_and_draws_reach_it(tmp_path: Path) -> None:
    """In a gale every ball is blown aside at every step, to either side; without, none ever is."""
    source, moved = written(tmp_path, CATCH), {}
    for wind in (0.0, 1.0):
        pool = CompiledPool(config(source, kwargs={"wind": wind}), 200, CPU)
        pool.reset(np.arange(200), np.arange(200))
        stay = torch.ones(200, dtype=torch.int64)
        boards = torch.stack([pool.obs, *(pool.step(stay).obs for _ in range(4))]).view(5, 200, 10, 5)
        moved[wind] = boards[:, :, :9].sum(2).argmax(2).diff(dim=0)
    assert not moved[0.0].any()
    assert {*moved[1.0].flatten().tolist()} == {-1, 0, 1}  # 0: at a wall
    assert (moved[1.0] == 1).float().mean() > 0.3
    with pytest.raises(ParamsError, match="in C does not take 'rain': it takes wind"):
        make_env(config(source, kwargs={"rain": 1}))


def test_the_episode_of_seed_0_is_an_episode_as_any_other(tmp_path: Path) -> None:
    """And without a seed the generator's next one begins."""
    cfg = config(written(tmp_path, PUSH))
    pool, env = CompiledPool(cfg, 1, CPU), make_env(cfg)
    pool.reset([0], [0])
    for _ in range(2):
        np.testing.assert_array_equal(env.reset(seed=0)[0], pool.obs[0].numpy())
    pool.reset([0], [int(np.random.default_rng(0).integers(2**31))])
    env.reset(seed=0)
    np.testing.assert_array_equal(env.reset()[0], pool.obs[0].numpy())


@pytest.mark.parametrize("text", [CATCH, PUSH], ids=["catch", "push"])
def test_one_row_is_the_pools_to_the_bit(text: str, tmp_path: Path) -> None:
    cfg = config(written(tmp_path, text))
    pool, env = CompiledPool(cfg, 3, CPU), make_env(cfg)
    pool.reset([0, 1, 2], [5, 6, 7])
    obs, _ = env.reset(seed=6)
    draw = np.random.default_rng(0)
    for _ in range(20):
        np.testing.assert_array_equal(pool.obs[1].numpy(), obs)
        shape: Any = (3, 2) if pool.spaces.continuous else 3
        one = draw.uniform(-1, 1, shape).astype(np.float32) if pool.spaces.continuous else draw.integers(3, size=3)
        step, own = pool.step(torch.from_numpy(one)), pool.actions.own(one)[1]
        assert env.action_space.contains(own)
        obs, reward, terminated, truncated, _ = env.step(own)
        np.testing.assert_array_equal(step.obs[1].numpy(), obs)
        assert (reward, terminated, truncated) == (float(step.reward[1]), bool(step.terminated[1]), False)
        if terminated:
            break


def test_it_is_compiled_once_and_anew_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build.load()  # into the cache that is there, so that the new one has the environment's library alone
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    build.load_environment.cache_clear()
    kept = tmp_path / "cache/evopipe"
    for text, libraries in ((CATCH, 1), (CATCH, 1), (CATCH.replace("ROWS = 10", "ROWS = 12"), 2)):
        pool = CompiledPool(config(written(tmp_path, text)), 1, CPU)
        build.load_environment.cache_clear()  # as another process would begin
        assert len([*kept.glob("*.so")]) == libraries
    assert pool.obs.shape == (1, 60)


def told(cfg: EnvConfig) -> str:
    with pytest.raises(EvopipeError) as failed:
        make_env(cfg)
    assert failed.value.exit_code == 65
    return str(failed.value)


def test_what_does_not_compile_is_told_in_the_compilers_words(tmp_path: Path) -> None:
    source = written(tmp_path, CATCH.replace("s->row++;", "s->raw++;"))
    found = told(config(source))
    assert found.startswith("env.source: ")
    assert re.search(r"could not compile .*own\.c: .*own\.c:2\d:\d+: error: .*raw", found)
    assert "\n" not in found
    source = written(tmp_path, "int x;", "other.c")
    assert re.search(
        r"env.source: .* made of .*other.c cannot be loaded: undefined symbol: the_environment", told(config(source))
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (".step = step, ", "", "the_environment lacks .step: set it"),
        (".state = sizeof(point), ", "", "the_environment lacks .state: set it"),
        (".low = low, ", "", "the_environment lacks .low: set it"),
        ("{4.0f, 1.0f}", "{4.0f, 0.0f}", ".low and .high must be finite numbers, .low the lesser"),
        (".reset_draws = 1", ".reset_draws = 65", "a reset and a step take at most 64 random numbers each"),
    ],
)
def test_what_it_lacks_is_told(old: str, new: str, said: str, tmp_path: Path) -> None:
    assert old in PUSH
    assert told(config(written(tmp_path, PUSH.replace(old, new)))).endswith(said)


def test_a_file_that_is_not_there_is_told_and_needs_its_backend(tmp_path: Path) -> None:
    assert told(config("none.c")) == "env.source: 'none.c' cannot be read: No such file or directory"
    with pytest.raises(ParamsError, match=r"env.source: only env.backend c steps a C file, not torch: set it to null"):
        parse_params({"env": {"id": "Own", "source": "own.c", "backend": "torch"}})


def test_params_check_compiles_it(tmp_path: Path) -> None:
    (tmp_path / "own.c").write_text(CATCH)
    tiny.write_params(tmp_path, {"env.id": "Catch", "env.backend": "c", "env.source": "own.c"})
    assert tiny.call(tmp_path, "params", "check").code == 0
    (tmp_path / "own.c").write_text(CATCH + "}")
    answer = tiny.call(tmp_path, "params", "check")
    assert answer.code == 65
    assert "own.c:" in answer.err


def test_a_run_begins_anew_where_the_file_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.c").write_text(CATCH)
    params = parse_params(tiny.params({"env.id": "Catch", "env.backend": "c", "env.source": "own.c"}))
    assert problem_of(params).inputs() == [Path("own.c")]


# --- Checked ----------------------------------------------------------------------------------------------------------

ENDS = (
    "warning: each of 4 random episodes was terminated at step 9; if this is a time limit, return truncated instead of "
    "terminated"
)


def test_a_good_one_without_a_twin(tmp_path: Path) -> None:
    assert check("Catch", {}, source=written(tmp_path, CATCH)) == [ENDS]


def test_a_good_one_with_a_twin(tmp_path: Path) -> None:
    assert check("compiled_envs:InC-v0", {}, source=written(tmp_path, PLACED)) == [ENDS]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (STILL, "warning: steps were not compared, for the C file has no .place, or"),
        (PLACED.replace(".reset_draws = 1", ".reset_draws = 1, .step_draws = 1"),
         "warning: a step draws random numbers: steps were not compared with Gymnasium's"),
        (PLACED.replace("1.0 : -1.0", "1.0 : -2.0"), "error: from the state [8, 0, 2] by the action 0 the reward is"),
        (PLACED.replace("in->choice - 1", "1 - in->choice"),
         "error: from the state [1, 2, 2] by the action 0 the observation's number 46 is 0 in C, 1 in Python"),
        (PLACED.replace("steps = 100", "steps = 99"), "warning: time limit: 99 in C, 100 in compiled_envs:InC-v0"),
    ],
    ids=["not-placed", "drawn", "reward", "action", "limit"],
)  # fmt: skip
def test_what_is_unlike_its_twin_is_told(text: str, said: str, tmp_path: Path) -> None:
    found = check("compiled_envs:InC-v0", {}, source=written(tmp_path, text))
    assert found[0] == ENDS
    assert found[1].startswith(said)
    assert len(found) == 2


def test_other_spaces_and_limits_are_told(tmp_path: Path) -> None:
    assert check("compiled_envs:Wide-v0", {}, source=written(tmp_path, PLACED))[1:] == [
        "warning: numbers of an observation: 50 in C, 60 in compiled_envs:Wide-v0",
        "warning: time limit: 100 in C, 50 in compiled_envs:Wide-v0",
        "warning: reward threshold: 0.95 in C, None in compiled_envs:Wide-v0",
    ]


# --- Trained in -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("algo", "text"), [("dqn", CATCH), ("ppo", CATCH), ("sac", PUSH.replace("0.0 / 0.0", "30.0"))])
@pytest.mark.thorough
def test_it_trains_through_the_front_door(
    algo: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.c").write_text(text)
    data = tiny.params({
        "env.id": "Own", "env.backend": "c", "env.source": "own.c", "env.step_limit": 60, "train.algo": algo,
        "train.max_steps": 800,
    })  # fmt: skip
    rollout = {"batch_size": 32, "learn_step": 128} if algo == "ppo" else {"batch_size": 32, "learn_step": 4}
    result = evopipe.train({**data, "algos": {algo: rollout}}, tmp_path)
    with pytest.raises(UsageError, match=r"policy.json names the C file 'own.c', .* add --trust"):
        environment_of(result.policy)
    cfg = environment_of(result.policy, trust=True)
    assert (cfg.source, cfg.backend) == ("own.c", "c")
    env = make_env(cfg)
    obs, _ = env.reset(seed=3)
    assert env.action_space.contains(result.policy.act(obs))


def test_what_is_not_finite_is_a_broken_row(tmp_path: Path) -> None:
    pool = CompiledPool(config(written(tmp_path, PUSH)), 2, CPU)
    pool.reset([0, 1], [0, 1])
    rewards = [pool.step(torch.tensor([[1.0, -1.0], [-1.0, -1.0]])).reward for _ in range(8)]
    assert torch.stack(rewards)[:, 0].isfinite().tolist() == [True] * 7 + [False]
    assert torch.stack(rewards)[:, 1].isfinite().all()
