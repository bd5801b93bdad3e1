from __future__ import annotations

import gc
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from evopipe.core.graphs import Body, Paths, Runner, upload
from evopipe.params.load import parse_params
from evopipe.problems.specs import make_spec
from evopipe.run.spec import first_members
from populations import problem

CPU = torch.device("cpu")


def nothing() -> list[torch.Tensor]:
    """What work reads that reads its inputs and what it writes."""
    return []


def accumulate(total: torch.Tensor, calls: list[int]) -> Callable[[Any], Body]:
    """Work that adds its input to a total and returns it, doubled."""

    def body(x: torch.Tensor) -> tuple[torch.Tensor]:
        calls.append(1)
        total.add_(x)
        return (2 * total,)

    return lambda _: body


# --------------------------------------------------------------------------------------------- what is chosen


@pytest.mark.parametrize(
    ("compile", "device", "capture", "compiled"),
    [
        ("auto", "cpu", "none", False),
        ("off", "cpu", "none", False),
        ("on", "cpu", "buffers", True),
        ("auto", "cuda", "graph", False),
        ("off", "cuda", "none", False),
        ("on", "cuda", "graph", True),
    ],
)
def test_the_paths_of_a_run(compile: Any, device: str, capture: str, compiled: bool) -> None:
    paths = Paths.choose(compile, torch.device(device))
    assert (paths.capture, paths.compiled) == (capture, compiled)


@pytest.mark.parametrize(("compile", "capture", "compiled"), [("auto", "none", False), ("on", "buffers", True)])
def test_params_choose_the_paths(compile: str, capture: str, compiled: bool) -> None:
    params = parse_params({"env": {"id": "CartPole-v1"}, "runtime": {"device": "cpu", "compile": compile}})
    paths = make_spec(params, CPU).paths
    assert (paths.capture, paths.compiled) == (capture, compiled)


def test_cohorts_share_the_paths_of_their_problem_and_have_runners_of_their_own() -> None:
    p = problem(config={"learn_step": 2})
    one, two = p.form(first_members(p, 2)[0]), p.form(first_members(p, 2)[0])
    assert one[0].runner is not two[0].runner
    assert one[0].runner.paths is two[0].runner.paths is p.paths
    assert one[0].runner.paths.capture == "none"


def test_without_a_path_work_is_called_as_it_is_and_nothing_recorded() -> None:
    paths, total, calls = Paths(), torch.zeros(1), []
    runner = Runner(paths)
    outs = [
        runner.ready("add", accumulate(total, calls), [torch.ones(1)], CPU, pytest.fail, pytest.fail)()
        for _ in range(3)
    ]
    assert [float(out) for (out,) in outs] == [2, 4, 6]
    assert (len(calls), paths.recorded) == (3, 0)


# ---------------------------------------------------------------------------------------------- fixed buffers


def test_recording_leaves_the_state_as_it_was() -> None:
    total, calls = torch.tensor([1.0, float("nan")]), []
    (out,) = Runner(Paths("buffers")).ready(
        "add", accumulate(total, calls), [torch.tensor([2.0, 0.0])], CPU, bound=nothing, written=lambda: [total]
    )()
    assert len(calls) > 1, "it was tried"
    assert total[0] == 3
    assert total[1].isnan()
    assert out[0] == 6


def test_a_failing_trial_leaves_the_state_as_it_was() -> None:
    total = torch.tensor([1.0])

    def body(x: torch.Tensor) -> tuple[torch.Tensor]:
        total.add_(x)
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        Runner(Paths("buffers")).ready(
            "add", lambda _: body, [torch.ones(1)], CPU, bound=nothing, written=lambda: [total]
        )()
    assert total == 1


def test_results_are_the_callers_to_keep() -> None:
    runner, total, calls = Runner(Paths("buffers")), torch.zeros(1), []
    make, x = accumulate(total, calls), torch.ones(1)
    outs = [runner.ready("add", make, [x], CPU, nothing, lambda: [total])()[0] for _ in range(3)]
    assert [float(out) for out in outs] == [2, 4, 6]
    x.fill_(9)  # inputs are the caller's too
    assert float(total) == 3


def test_recorded_once_for_the_same_tensors_and_anew_for_others() -> None:
    paths, calls = Paths("buffers"), []
    runner, total = Runner(paths), torch.zeros(1)
    for _ in range(3):
        runner.ready("add", accumulate(total, calls), [torch.ones(1)], CPU, nothing, lambda: [total])()
    assert paths.recorded == 1
    other = torch.zeros(1)
    runner.ready("add", accumulate(other, calls), [torch.ones(1)], CPU, nothing, lambda: [other])()
    assert paths.recorded == 2
    assert (float(total), float(other)) == (3, 1)
    runner.ready("other", accumulate(other, calls), [torch.ones(1)], CPU, nothing, lambda: [other])()
    assert paths.recorded == 3
    for read in (total, total, other):
        runner.ready(
            "other", accumulate(other, calls), [torch.ones(1)], CPU, lambda read=read: [read], lambda: [other]
        )()
    assert paths.recorded == 5, "of a tensor that it reads"


@pytest.mark.thorough
def test_graphs_go_with_their_runner() -> None:
    runner, total = Runner(Paths("buffers")), torch.zeros(1)
    make = accumulate(total, [])
    runner.ready("add", make, [torch.ones(1)], CPU, nothing, lambda: [total])()
    gone = weakref.ref(make(None))
    del make, runner
    gc.collect()
    assert gone() is None


def test_results_that_lie_in_the_state_are_copied_before_it_is_put_back() -> None:
    total = torch.zeros(1)

    def body(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (total.add_(x),)

    (out,) = Runner(Paths("buffers")).ready("add", lambda _: body, [torch.ones(1)], CPU, nothing, lambda: [total])()
    total.fill_(7)
    assert float(out) == 1


# --------------------------------------------------------------------------------------------------- failures


@pytest.mark.skipif(torch.cuda.is_available(), reason="a capture succeeds here")
def test_where_no_graph_can_be_captured_the_run_goes_on_and_says_so_once() -> None:
    paths, total, calls = Paths("graph"), torch.zeros(1), []
    with pytest.warns(UserWarning, match="CUDA graphs failed here and will not be used: RuntimeError: "):
        Runner(paths).ready("add", accumulate(total, calls), [torch.ones(1)], CPU, nothing, lambda: [total])()
    Runner(paths).ready("again", accumulate(total, calls), [torch.ones(1)], CPU, nothing, lambda: [total])()
    assert len(paths.given_up) == 1
    assert float(total) == 2
    assert paths.capture == "buffers"


def test_a_compiler_that_fails_is_given_up_and_the_state_is_right() -> None:
    paths, total = Paths("buffers", compiled=True), torch.zeros(1)

    def make(compiled: Callable[[Any], Any]) -> Body:
        def body(x: torch.Tensor) -> tuple[torch.Tensor]:
            total.add_(x)
            if compiled == paths.compile:
                raise RuntimeError("No working C++ compiler found\nand a page more")
            return (total.clone(),)

        return body

    runners = Runner(paths), Runner(paths)
    with pytest.warns(UserWarning, match="failed here") as caught:
        outs = [runner.ready("add", make, [torch.ones(1)], CPU, nothing, lambda: [total])()[0] for runner in runners]
    assert [str(w.message) for w in caught] == [
        "torch.compile failed here and will not be used: RuntimeError: No working C++ compiler found"
    ]
    assert [float(out) for out in outs] == [1, 2]
    assert not paths.compiled


def test_upload_on_the_host_is_the_tensor_itself() -> None:
    x = torch.ones(3)
    assert upload(x, CPU) is x


# ---------------------------------------------------------------------------------------------- torch.compile

COMPILED = """
import sys, warnings
import torch
sys.path[:0] = sys.argv[1:2]
from dataclasses import replace
from evopipe.core.graphs import Paths
from evopipe.core.cohort import dissolve
import populations

warnings.simplefilter("error", UserWarning if sys.argv[2] == "works" else ImportWarning)
torch.set_num_threads(1)
mutation = {"before_training": True, "activations": ["ReLU", "GELU"]}
p = populations.problem(mutation=mutation, cohorts="merged", config={"learn_step": 1})
q = replace(p, paths=Paths("buffers", compiled=True))
eager, fast = populations.started(p, 3), populations.started(q, 3)
for loop in (eager, fast):
    populations.advance(loop, 20)
pairs = [(a.tensors[n], b.tensors[n]) for a, b in zip(eager.members, fast.members) for n in a.tensors]
close = [torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in pairs]
same = all(populations.same(a, b) for a, b in zip(eager.members, fast.members))
again = populations.started(replace(p, paths=Paths("buffers", compiled=sys.argv[2] == "works")), 3)
again.restore(*fast.state())
for loop in (fast, again):
    populations.advance(loop, 10)
print("resumed", all(populations.same(a, b) for a, b in zip(fast.members, again.members)))
print(all(close), same, q.paths.compiled, q.paths.given_up, float(fast.members[0].tensors["updates"]))
"""


def compiled_run(tmp_path: Path, expect: str, **more: str) -> str:
    folders = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "code")}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, str(Path(tiny.__file__).parent), expect],
        env=tiny.environment(**folders, **more), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_compiled_updates_agree_with_eager_ones_and_resume_to_the_bit(tmp_path: Path) -> None:
    resumed, compared, *_ = compiled_run(tmp_path, "works").splitlines()
    assert resumed == "resumed True"
    assert compared.startswith("True False True [] "), "close, but not to the bit: it was compiled"


@pytest.mark.slow
def test_without_a_cpp_compiler_training_is_eager(tmp_path: Path) -> None:
    said = compiled_run(tmp_path, "fails", CXX="/nowhere/c++")
    resumed, first, *rest = said.splitlines()
    assert resumed == "resumed True"
    assert first.startswith("True True False [")
    assert "torch.compile failed here and will not be used: InductorError: InvalidCxxCompiler" in first
    assert sum("UserWarning: torch.compile failed" in line for line in rest) == 1


def test_no_warning_where_nothing_fails() -> None:
    total = torch.zeros(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Runner(Paths("buffers")).ready("add", accumulate(total, []), [torch.ones(1)], CPU, nothing, lambda: [total])()
