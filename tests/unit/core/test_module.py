"""Networks that are a `torch.nn.Module` of the user's own (`network.module`)."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import evopipe
import nets_for_tests
import populations
import tiny
from evopipe import algos
from evopipe.algos import on_policy
from evopipe.core import optim
from evopipe.core.cohort import dissolve
from evopipe.core.member import read_architecture
from evopipe.core.module import Module
from evopipe.core.net import Net, forward
from evopipe.core.structure import Widths
from evopipe.errors import MissingInputError, ParamsError
from evopipe.machine import say_once
from evopipe.mutations import mutate
from evopipe.params.load import parse_params
from evopipe.problems import check
from evopipe.problems.env import begin
from evopipe.problems.specs import make_spec
from evopipe.regimes.rollouts import learn_from_rollout
from evopipe.run.spec import first_members
from evopipe.schema.evolution import ArchitectureBounds
from evopipe.schema.write import dump_yaml
from populations import batch_for, rollout_for, same, update

WIDTHS = Widths(5, 3)
SINGLE = [name for name in algos.names() if not algos.get(name).TEAM and name != "rainbow"]
QUICK = ("dqn", "ppo")
REFUSES = {"crossq"}  # it renormalises what each of evopipe's own layers reads
ALGOS = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough) for name in SINGLE if name not in REFUSES
]


def arch(name: str = "Net", **kwargs: Any) -> Module:
    return Module.start(f"nets_for_tests:{name}", kwargs, "network.module")


def problem(algo: str, name: str = "Net", **kwargs: Any) -> Any:
    network: dict[str, Any] = {"module": f"nets_for_tests:{name}", "kwargs": kwargs}
    return populations.problem(algo=algo, config={"network": network})


# ----------------------------------------------------------------------------------------------------- structure


@pytest.mark.parametrize("name", ["Net", "Unmapped", "Tied", "Vector"])
def test_rows_compute_what_each_module_computes_alone(name: str) -> None:
    """Forward and gradient, of three members, equal those of modules that hold each one's parameters."""
    own = arch(name)
    rows = [own.initialise(WIDTHS, np.random.default_rng(i)) for i in range(3)]
    shape = own.stack([own] * 3, WIDTHS, torch.device("cpu"))
    net = Net(shape, shape.pack(rows), trainable=True)
    x = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(0))
    out = forward(net, x)
    optim.backward(out.square().sum(dim=(1, 2)), net)
    assert out.shape == (3, 7, 3)
    for i, row in enumerate(rows):
        alone = getattr(nets_for_tests, name)(5, 3).eval()
        for part, value in zip(alone.parameters(), own.named(WIDTHS, row).values(), strict=True):
            part.data.copy_(value)
        expected = alone(x[i])
        torch.testing.assert_close(out[i], expected, atol=1e-6, rtol=1e-5)
        expected.square().sum().backward()
        found = own.named(WIDTHS, net.grad[i])
        for part, (key, grad) in zip(alone.parameters(), found.items(), strict=True):
            torch.testing.assert_close(grad, part.grad, atol=1e-5, rtol=1e-4, msg=key)
    assert all(map(torch.equal, shape.unpack(shape.pack(rows)), rows))
    assert net.values.shape[1] % 16 == 0
    assert not net.values[:, own.size(WIDTHS) :].any()


def test_first_weights_are_a_function_of_the_draw_and_leave_torchs_generator_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, again, other = (arch().initialise(WIDTHS, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_architecture_goes_through_json_without_importing_anything() -> None:
    own = arch(hidden=8)
    assert read_architecture(json.loads(json.dumps(own.to_json()))) == own
    assert own.describe() == "nets_for_tests:Net hidden=8"
    unknown = read_architecture({"kind": "module", "module": "nobody_imports_this:Net", "kwargs": {}})
    with pytest.raises(MissingInputError, match="not imported here: install it and `import nobody_imports_this` first"):
        unknown.size(WIDTHS)
    for bad, said in (({"module": "no colon"}, "not of the form"), ({}, "module: "), ({"module": 1}, "module: ")):
        with pytest.raises(ValueError, match=said):
            read_architecture({"kind": "module", **bad})


# ----------------------------------------------------------------------------------------------------- algorithms


def learned(p: Any, members: list[Any], borders: tuple[int, ...] = ()) -> list[Any]:
    """Members after two updates in these parts, each on its own share of the same transitions."""
    (cohort,) = p.form(members)
    cuts = list(itertools.pairwise((0, *borders, len(members))))
    parts = [cohort.part(first, end) for first, end in cuts]
    for turn in range(2):
        if on_policy(p.algo):
            whole = rollout_for(p, p.form(members)[0], turn)
            for own, cut in zip(parts, cuts, strict=True):
                learn_from_rollout(p, own, whole.part(*cut), populations.TICKS, turn)
            continue
        batch = batch_for(p, cohort, turn)
        given = {f.name: getattr(batch, f.name) for f in fields(batch)}
        some = {name: value for name, value in given.items() if value is not None and name != "next_legal"}
        for own, (first, end) in zip(parts, cuts, strict=True):
            update(p, own, replace(batch, **{name: value[first:end] for name, value in some.items()}), turn)
    return sorted((member for own in parts for member in dissolve([own])), key=lambda m: m.slot)


@pytest.mark.parametrize("name", ALGOS)
def test_members_learn_as_each_would_alone(name: str) -> None:
    p = problem(name)
    members, _ = first_members(p, 3)
    together, alone = learned(p, members), learned(p, members, (1, 2))
    for member, found, expected in zip(members, together, alone, strict=True):
        assert not same(found, member)
        for key, tensor in expected.tensors.items():
            torch.testing.assert_close(found.tensors[key], tensor, atol=1e-6, rtol=1e-4, msg=key)


@pytest.fixture
def run() -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make(p: Any, members: int, processes: int = 1) -> Any:
        made.append(begin(p, first_members(p, members)[0], learners=processes))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ALGOS)
def test_a_run_evolves_and_goes_on_to_the_bit_whoever_learns(name: str, run: Callable[..., Any]) -> None:
    """Two generations with selection, cloning and mutation; the second run is restored from the first one's middle, and
    might have divided its learning among processes."""
    if algos.get(name).OFFLINE_ONLY:
        pytest.skip("it has no run without a dataset")
    p = problem(name)
    whole = run(p, 3)
    populations.advance(whole, 60)
    tensors, meta = whole.state()
    tensors, meta = {n: t.clone() for n, t in tensors.items()}, json.loads(json.dumps(meta))
    resumed = run(p, 3, 2)
    assert resumed.restore(tensors, meta) == 0
    for each in (whole, resumed):
        populations.finish(each)
    assert populations.equal_states(whole.state(), resumed.state()) == []
    assert len(whole.lineage) >= 3
    assert all(member.healthy for member in whole.members)


@pytest.mark.thorough
def test_a_member_that_diverged_is_found_and_replaced(run: Callable[..., Any]) -> None:
    made = run(problem("dqn"), 3)
    populations.advance(made, 10)
    cohort, row = populations.of_slot(made.cohorts, 1)
    cohort.state.q.values[row, 3] = torch.nan
    populations.finish(made)
    assert all(member.tensors["q"].isfinite().all() for member in made.members)
    dead = [m.slot for record in made.lineage for m in record.members if not m.healthy]
    assert dead == [1]


def test_what_cannot_mutate_is_passed_over_and_never_recorded() -> None:
    p = problem("dqn")
    (member,), _ = first_members(p, 1)
    chances = {"none": 0, "architecture": 1, "parameters": 0, "activation": 1, "rl_hp": 1e-6}
    cfg = p.mutation.model_validate({"probabilities": chances})
    kinds = {mutate(cfg, p.traits, member, np.random.default_rng(i))[1].kind for i in range(20)}
    assert kinds == {"rl_hp"}
    flat = problem("dqn", "Vector")
    (member,), _ = first_members(flat, 1)
    cfg = p.mutation.model_validate({"probabilities": {**chances, "parameters": 1e6, "rl_hp": 1e-6}})
    assert mutate(cfg, flat.traits, member, np.random.default_rng(0))[1].kind == "rl_hp"


def test_arguments_in_another_order_are_no_change() -> None:
    """And what was changed is equal to what was so from the start: they are computed together."""
    arch = Module.start("nets_for_tests:Turning", {"outer": 8, "hidden": 16}, "x")
    (option,) = arch.options(ArchitectureBounds(), ())
    assert option[:2] == ("wider", "wider")
    assert option[-1] == Module.start("nets_for_tests:Turning", {"outer": 8, "hidden": 24}, "x")
    assert option[2:4] == ("nets_for_tests:Turning hidden=16 outer=8", "nets_for_tests:Turning hidden=24 outer=8")


def test_a_class_may_offer_mutations() -> None:
    p = problem("dqn", "Evolving", hidden=16)
    (member,), _ = first_members(p, 1)
    cfg = p.mutation.model_validate({"probabilities": {"none": 0, "architecture": 1, "parameters": 0, "activation": 0,
                                                       "rl_hp": 0}})  # fmt: skip
    seen = set()
    for i in range(10):
        child, mutation = mutate(cfg, p.traits, member, np.random.default_rng(i))
        seen.add((mutation.kind, mutation.what))
        wide = json.loads(child.arch.kwargs)["hidden"]
        assert wide == (24 if mutation.what == "add hidden" else 8)
        own = child.arch.named(p.widths["q"], child.tensors["q"])
        before = member.arch.named(p.widths["q"], member.tensors["q"])
        kept = min(wide, 16)
        assert torch.equal(own["first.weight"][:kept], before["first.weight"][:kept])
        assert not child.arch.named(p.widths["q"], child.tensors["adam.mean"])["first.weight"].any()
        learned(p, [child])
    assert seen == {("architecture", "add hidden"), ("architecture", "remove hidden")}
    assert len(p.form([member, child])) == 2


# ----------------------------------------------------------------------------------------------------- whole runs


def given(algo: str, **more: Any) -> dict[str, Any]:
    """Params as a dict, as `evopipe.train` takes them."""
    data = tiny.params({"train.algo": algo, **{k.replace("__", "."): v for k, v in more.items()}})
    block: dict[str, Any] = {"network": {"module": "nets_for_tests:Net", "kwargs": {"hidden": 16}}}
    rollout = {"batch_size": 32, "learn_step": 128, "epochs": 2}
    block |= rollout if algo == "ppo" else {"batch_size": 32, "learn_step": 4}
    return {**data, "algos": {algo: block}}


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
@pytest.mark.thorough
def test_a_module_trains_through_the_front_door(algo: str, tmp_path: Path) -> None:
    result = evopipe.train(given(algo, export__program=True, export__critic=True), tmp_path)
    obs = np.array([[0.0, 0.1, 0.0, -0.1], [0.0, -0.1, 0.0, 0.1]], np.float32)
    acts = result.policy.act(obs)
    again = evopipe.load(tmp_path / "models/elite")
    assert (again.act(obs) == acts).all()
    about = json.loads((tmp_path / "models/elite/policy.json").read_text())
    assert about["arch"] == {"kind": "module", "module": "nets_for_tests:Net", "arguments": {"hidden": 16}}
    program = torch.export.load(tmp_path / "models/elite/policy.pt2").module()
    found = program(torch.from_numpy(obs))
    assert (np.asarray(found[0] if isinstance(found, tuple) else found) == acts).all()
    lineage = [json.loads(line) for line in (tmp_path / "reports/lineage.jsonl").read_text().splitlines()]
    assert len(lineage) > 2
    assert '"kind": "architecture"' not in json.dumps(lineage)
    member = evopipe.load(tmp_path / "models/trained", member=0)
    assert member.act(obs).shape == (2,)
    # A file alone has no code imported; whoever trusts it may say so.
    loads = "import evopipe, sys; print(evopipe.load('models/elite'{}).act([0.0, 0.1, 0.0, -0.1]) in (0, 1))"
    env = {**os.environ, "PYTHONPATH": str(tiny.ROOT / "src")}
    shutil.copy(tiny.ROOT / "tests/nets_for_tests.py", tmp_path)
    for argument, code, said in (("", 1, "load it with --trust (trust=True)"), (", trust=True", 0, "")):
        ran = subprocess.run([sys.executable, "-c", loads.format(argument)], cwd=tmp_path, env=env,
                             capture_output=True, text=True)  # fmt: skip
        assert ran.returncode == code, ran.stderr
        assert said in ran.stderr
    (tmp_path / "nets_for_tests.py").unlink()
    ran = subprocess.run([sys.executable, "-c", loads.format(", trust=True")], cwd=tmp_path, env=env,
                         capture_output=True, text=True)  # fmt: skip
    assert "no module named 'nets_for_tests'" in ran.stderr


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    def project(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        evopipe_params = given("dqn", runtime__checkpoint_seconds=0.01, train__max_steps=4000)
        config = algos.get("dqn").Config.model_validate(evopipe_params["algos"]["dqn"]).model_dump(mode="json")
        (folder / "params.yaml").write_text(dump_yaml({**evopipe_params, "algos": {"dqn": config}}))
        shutil.copy(tiny.ROOT / "tests/nets_for_tests.py", folder)
        return folder

    env = {**os.environ, "PYTHONPATH": str(tiny.ROOT / "src")}

    def call(folder: Path, stage: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "evopipe", "-q", stage], cwd=folder, env=env)

    whole, cut = project("whole"), project("cut")
    for folder in (whole, cut):
        assert call(folder, "population").wait(120) == 0
    assert call(whole, "train").wait(300) == 0
    run, end = call(cut, "train"), time.monotonic() + 120
    while not list(cut.glob(".evopipe/train/*/checkpoints/*")) and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.5)
    run.send_signal(signal.SIGKILL)
    assert run.wait(60) == -signal.SIGKILL
    assert call(cut, "train").wait(300) == 0
    for out in ("models/trained/members.safetensors", "reports/lineage.jsonl", "reports/fitness.csv"):
        assert (whole / out).read_bytes() == (cut / out).read_bytes(), out


# ----------------------------------------------------------------------------------------------------- what is wrong


BAD = {
    "nets_for_tests:Wrong": "forward() of a batch [2, 4] gave [2, 3], expected [2, 2]; the network is 'q'",
    "nets_for_tests:Empty": "nets_for_tests:Empty(4, 2) has no parameters, and nothing that could learn",
    "nets_for_tests:plain": "nets_for_tests:plain(4, 2) gave a str, expected a torch.nn.Module",
    "nets_for_tests:NUMBER": "is of type int, and cannot be called",
    "nets_for_tests:Nett": "the module 'nets_for_tests' has no 'Nett', did you mean 'Net'?",
    "no_such_nets:Net": "no module named 'no_such_nets' in ",
    "nets_for_tests:Double": "scale is of torch.float64, expected torch.float32",
    "nets_for_tests:Counting": "forward() changes its buffer shift, and buffers must be constants",
    "nets_for_tests:Broken": "forward() of observations [2, 4] raised RuntimeError: no way",
    "nets_for_tests:Pair": "forward() gave a tuple, expected a tensor [2, 2]",
}


@pytest.mark.parametrize("module", BAD)
def test_a_bad_module_is_refused_with_its_place(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tiny.write_params(tmp_path, {"algos.dqn.network.module": module})
    answer = tiny.call(tmp_path, "params", "check")
    at = next(i for i, line in enumerate(path.read_text().splitlines(), 1) if "module:" in line and "nets" in line)
    (line,) = answer.err.splitlines()
    assert answer.code == 65, line
    assert line.startswith(f"error: params.yaml:{at}:7: algos.dqn.network.module: "), line
    assert BAD[module] in line


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"algos.dqn.network.module": "nets"}, "algos.dqn.network.module: 'nets' is not of the form 'module:Class'"),
        ({"algos.dqn.network.kwargs": {"hidden": 3}},
         "algos.dqn.network.kwargs: arguments of a module, and there is none"),
        ({"algos.dqn.network.module": "nets_for_tests:Net", "algos.dqn.network.kwargs": {"hiden": 3}},
         "nets_for_tests:Net(4, 2, hiden=3) raised TypeError: "),
        ({"train.algo": "rainbow", "algos": {"rainbow": {"network": {"module": "nets_for_tests:Net"}}}},
         "algos.rainbow.network.module: rainbow puts noise on single layers, and serves evopipe's own alone"),
        ({"train.algo": "ppo", "algos": {"ppo": {"share_encoder": True, "network": {"module": "nets_for_tests:Net"}}}},
         "algos.ppo.share_encoder: a module of one's own is not cut into encoder and heads; set it to false"),
    ],
)  # fmt: skip
def test_what_goes_with_no_module_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    data = tiny.params({key: value for key, value in changes.items() if key != "algos"})
    with pytest.raises(ParamsError, match=re.escape(said)):
        check(parse_params({**data, **{key: value for key, value in changes.items() if key == "algos"}}))


def test_kernels_that_were_asked_for_by_name_are_missed_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    for kernels, told in (("auto", False), ("torch", False), ("native", True)):
        say_once.cache_clear()
        data = {"env": {"id": "CartPole-v1"}, "runtime": {"kernels": kernels},
                "algos": {"dqn": {"network": {"module": "nets_for_tests:Net"}}}}  # fmt: skip
        make_spec(parse_params(data))
        assert ("torch computes nets_for_tests:Net" in capsys.readouterr().err) == told
