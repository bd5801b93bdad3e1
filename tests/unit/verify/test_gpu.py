"""`evopipe gpu check`, its logic on the CPU and on a second device in software."""

from __future__ import annotations

import types
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from device import DEVICE, Device, Remote
from evopipe import algos
from evopipe.core.cohort import COSTS
from evopipe.errors import DataError, ResourceError, UsageError
from evopipe.verify import gpu
from tiny import call

CPU = torch.device("cpu")


def check(device: torch.device, told: list[str]) -> None:
    gpu.check(["dqn"], device, members=3, repeats=1, tell=told.append, envs=2)


@pytest.fixture
def grouped_like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COSTS, DEVICE.type, COSTS["cuda"])


@pytest.mark.slow
def test_the_command_checks_every_algorithm_and_prints_a_line_for_each_thing(tmp_path: Path) -> None:
    answer = call(tmp_path, "gpu", "check", "--device", "cpu", "--members", "3", "--repeats", "1")
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    alone = {name for name in algos.names() if not algos.get(name).TEAM}
    assert {line.split()[0] for line in lines} == alone | {*algos.names("text")} - {"bc_language", "ilql"}
    assert "BAD" not in answer.out
    for name in alone:
        mine = [line for line in lines if line.split()[0] == name]
        assert [line.split()[-1] for line in mine if "were captured" in line] == ["yes"]
        assert sum(" ok " in line for line in mine) == 6
        assert sum("× " in f"{line} " for line in mine) == 2


def test_quiet_says_nothing_where_all_is_well(tmp_path: Path) -> None:
    words = ("gpu", "check", "--device", "cpu", "--members", "2", "--repeats", "1", "--algo", "dqn", "-q")
    assert call(tmp_path, *words) == (0, "", "")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_gpu_one_sentence_says_so(tmp_path: Path) -> None:
    answer = call(tmp_path, "gpu", "check")
    assert answer.code == ResourceError.exit_code == 72
    assert answer.err.startswith("error: gpu check: torch sees no CUDA device here (torch ")
    assert len(answer.err.splitlines()) == 1


def test_wrong_words_are_refused_with_a_sentence(tmp_path: Path) -> None:
    answer = call(tmp_path, "gpu", "check", "--device", "tpu")
    assert answer.code == 64
    assert answer.err.startswith("error: Invalid value for '--device': ")
    assert "'tpu' is not one of 'cuda', 'cpu'" in answer.err
    with pytest.raises(UsageError, match="no algorithm 'dqm', did you mean 'dqn'"):
        gpu.check(["dqm"], CPU, 3, 1, lambda _: None, envs=2)
    for name in ("ippo", "ilql"):
        with pytest.raises(UsageError, match=f"--algo: {name} learns in teams or from games, which are not checked"):
            gpu.check(["dqn", name], CPU, 3, 1, lambda _: None, envs=2)


@pytest.mark.thorough
def test_another_device_that_computes_the_same_is_good(grouped_like_a_gpu: None) -> None:
    told: list[str] = []
    with Device():
        check(DEVICE, told)
    assert [" ok " in line for line in told] == [True] * 6 + [False] * 2
    assert not [line for line in told if " BAD " in line]
    apart = [line for line in told if "apart" in line]
    assert len(apart) == 4
    assert apart[0].endswith(" 0.0e+00 of the largest apart, 0e+00 allowed")
    assert not apart[3].endswith(" 0.0e+00 of the largest apart, 1e-03 allowed") or torch.cuda.is_available()


class Faulty(Device):
    """A device whose matrix products are a hundredth too large."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if func is torch.ops.aten.baddbmm.default and isinstance(out, Remote):
            out.inner.mul_(1.01)
        return out


@pytest.mark.thorough
def test_a_device_that_computes_something_else_is_refused(grouped_like_a_gpu: None) -> None:
    told: list[str] = []
    with Faulty(), pytest.raises(DataError) as raised:
        check(DEVICE, told)
    bad = " ".join(line for line in told if " BAD " in line)
    assert "values are the CPU's" in bad
    assert "fixed buffers compute what eager code does" not in bad
    assert raised.value.exit_code == 65
    assert str(raised.value).startswith("dqn: values are the CPU's: ")
    assert str(raised.value).endswith("until it agrees")


@pytest.mark.thorough
def test_an_algorithm_with_state_outside_its_state_is_found() -> None:
    """What happens in Python happens once while recording, and never in a replay."""
    spec, ticks = gpu._spec("dqn", CPU, envs=2), count()
    algo = spec.algo

    def update(cfg: Any, state: Any, hp: Any, batch: Any, *rest: Any) -> Any:
        return algo.update(cfg, state, hp, replace(batch, reward=batch.reward + next(ticks)), *rest)

    needed = algos.REQUIRED | algos.REGIMES["off_policy"] | algos.OPTIONAL
    names = {**{name: getattr(algo, name) for name in needed}, "update": update}
    hidden = replace(spec, algo=types.SimpleNamespace(**names))  # type: ignore[arg-type]
    seen = list(gpu._check(hidden, 3, 1))
    assert "fixed buffers compute what eager code does" in [what for what, _, good in seen if good is False]


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_infinitely_far(broken: float) -> None:
    assert gpu._distance(torch.tensor([broken, 1.0]), torch.ones(2)) == float("inf")
    assert gpu._distance(torch.tensor([1.5, 1.0]), torch.tensor([2.0, 1.0])) == 0.25


@pytest.mark.parametrize("algo", [pytest.param("dpo", marks=pytest.mark.thorough), "grpo"])
def test_language_models_are_checked_too(algo: str) -> None:
    pytest.importorskip("transformers")
    told: list[str] = []
    gpu.check([algo], CPU, members=2, repeats=1, tell=told.append, envs=2)
    assert [" ok " in line for line in told] == [True] * (3 + (algo == "grpo")) + [False]
    assert "log-probabilities are the CPU's" in told[0]


@pytest.mark.thorough
def test_a_device_that_learns_language_models_wrongly_is_refused(grouped_like_a_gpu: None) -> None:
    pytest.importorskip("transformers")
    told: list[str] = []
    with Faulty(), pytest.raises(DataError, match=r"^grpo: log-probabilities are the CPU's: "):
        gpu.check(["grpo"], DEVICE, members=2, repeats=1, tell=told.append, envs=2)
