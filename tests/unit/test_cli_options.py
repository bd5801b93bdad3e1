"""What a command's words come to: every option arrives at what it is for, and defaults are those of the help."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evopipe.errors import EnvironmentFailed
from tiny import Answer, call, params, write_params

HERE = Path()
ELITE = Path("models/elite")


def plain(value: Any) -> Any:
    """An argument as it can be compared: functions by their names."""
    if isinstance(value, partial):
        return (plain(value.func), *value.args, value.keywords)
    return value.__name__ if callable(value) and hasattr(value, "__name__") else value


Heard = Callable[..., tuple[Answer, list[Any]]]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Heard:
    """Run a command, in whose place stands what notes its arguments; `gives` is what that returns."""

    def run(words: str, target: str, gives: Any = None) -> tuple[Answer, list[Any]]:
        module, _, name = target.rpartition(".")
        noted: list[Any] = []

        def note(*given: Any, **more: Any) -> Any:
            noted.append([*map(plain, given), *([{k: plain(v) for k, v in more.items()}] if more else [])])
            return gives

        with monkeypatch.context() as patch:
            patch.setattr(importlib.import_module(module), name, note)
            return call(tmp_path, *words.split()), noted

    return run


TELL, ERR = "tell", ("tell", {"err": True})


@pytest.mark.parametrize(
    ("words", "target", "given"),
    [
        ("sweep", "sweep.command", ["params.yaml", "sweep", (), (), None, "random", None, True, TELL, "warn"]),
        (
            "--params p.yaml sweep big --set a=1,2 --set b=3 --sample c=uniform(0,1) --trials 7 --sampler sobol "
            "--jobs 5 --no-experiments",
            "sweep.command",
            ["p.yaml", "big", ["a=1,2", "b=3"], ["c=uniform(0,1)"], 7, "sobol", 5, False, TELL, "warn"],
        ),
        ("verify", "verify.clones.verify", [HERE, False, 1, 0.1, False, TELL, ERR, "warn"]),
        (
            "verify --pipeline a --jobs 2 --lock --tolerance 0.25 --keep",
            "verify.clones.verify",
            [Path("a"), True, 2, 0.25, True, TELL, ERR, "warn"],
        ),
        ("gpu check --device cpu", "verify.gpu.check", [(), torch.device("cpu"), 8, 9, TELL, {"envs": 16}]),
        (
            "gpu check --device cpu --algo dqn --algo ppo --members 3 --repeats 4",
            "verify.gpu.check",
            [["dqn", "ppo"], torch.device("cpu"), 3, 4, TELL, {"envs": 16}],
        ),
        ("push a b/c", "hub.push", [Path("a"), "b/c", None, False, True, TELL, "warn"]),
        (
            "push a b/c --dry-run d --private --no-film",
            "hub.push",
            [Path("a"), "b/c", Path("d"), True, False, TELL, "warn"],
        ),
        ("pull b/c d", "hub.pull", ["b/c", Path("d"), None, TELL, "warn"]),
        ("pull b/c d --revision e", "hub.pull", ["b/c", Path("d"), "e", TELL, "warn"]),
        ("onnx", "policies.onnx.write", [ELITE, HERE, False]),
        ("onnx a -o b --trust", "policies.onnx.write", [Path("a"), Path("b"), True]),
        ("new a", "new.project.make", [Path("a"), None, "environment"]),
        ("new a --env Taxi-v4", "new.project.make", [Path("a"), "Taxi-v4", "environment"]),
        ("new a --language", "new.project.make", [Path("a"), None, "language"]),
        ("new a --agent", "new.project.make", [Path("a"), None, "agent"]),
        ("agent show --no-open", "agents.shown.page_of", [HERE, None]),
        ("agent show a --out b --no-open", "agents.shown.page_of", [Path("a"), Path("b")]),
        ("play a --env E-v1 --trust", "policies.loading.load", [Path("a"), {"trust": True}]),
        ("play", "policies.loading.load", [ELITE, {"trust": False}]),
    ],
    ids=lambda value: value.replace(" ", "_")[:40] if isinstance(value, str) else "",
)
def test_every_option_arrives(words: str, target: str, given: list[Any], heard: Heard) -> None:
    kinds = {
        "policies.onnx.write": [Path("x.onnx")],
        "new.project.make": "made",
        "agents.shown.page_of": Path("p.html"),
    }
    player = SimpleNamespace(perform=lambda *given: None)
    answer, noted = heard(words, f"evopipe.{target}", kinds.get(target, player))
    assert answer.code == 0, answer.err
    assert noted == [given]
    told = {"policies.onnx.write": "written: x.onnx\n", "new.project.make": "made\nnext: cd a && dvc repro\n"}
    told["agents.shown.page_of"] = "p.html: written\n"
    assert answer.out == told.get(target, "")
    if target in told:
        assert heard(f"--quiet {words}", f"evopipe.{target}", kinds[target])[0].out == ""


def test_zoos_words_arrive(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row once, in the order of the words; all of them where none is named."""
    from evopipe.zoo import row

    monkeypatch.setattr(row, "find", lambda name, folder: (name, folder))
    monkeypatch.setattr(row, "rows", lambda folder: {"x": ("x", folder), "y": ("y", folder)})
    train, verify = "evopipe.zoo.train.train", "evopipe.zoo.verify.verify"
    found = heard("zoo train b a b --seeds 1,3,7-9,8 --jobs 3 --folder f", train)[1]
    assert found == [[[("b", Path("f")), ("a", Path("f"))], [1, 3, 7, 8, 9], 3, TELL, "warn"]]
    assert heard("zoo train", train)[1] == [[[("x", None), ("y", None)], [1, 2, 3, 4, 5], None, TELL, "warn"]]
    assert heard("zoo verify a", verify)[1] == [[("a", None), None, None, TELL, ERR, "warn"]]
    found = heard("zoo verify a --seeds 2 --jobs 4 --folder f", verify)[1]
    assert found == [[("a", Path("f")), [2], 4, TELL, ERR, "warn"]]


@pytest.mark.parametrize(
    ("seeds", "right"),
    [("1", [1]), ("0-1", [0, 1]), (" 2 , 1-2", [2, 1]), ("5-1004", [*range(5, 1005)]), ("5-1005", None), ("2-1", None),
     ("", None), ("1-", None), ("-1", None), ("1,,2", None), ("1-999,1000", [*range(1, 1001)]),
     ("1-1000,1001", None), ("1234567890", None)],
)  # fmt: skip
def test_seeds_are_named_by_ranges(seeds: str, right: list[int] | None, heard: Heard) -> None:
    from evopipe.cli_zoo import seeds_of
    from evopipe.errors import UsageError

    if right is None:
        with pytest.raises(UsageError, match="names no seeds: write them as 1-5 or 1,3,4"):
            seeds_of(seeds)
    else:
        assert seeds_of(seeds) == right


def test_runs_are_compared_and_drawn_where_it_was_asked_for(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    from evopipe import compare
    from evopipe.compare import pictures

    drawn: list[Any] = []
    for name in ("draw", "draw_curves", "draw_parallel"):
        monkeypatch.setattr(pictures, name, lambda rows, path, name=name: drawn.append((name, rows, str(path))))
    monkeypatch.setattr(compare, "table", lambda rows: f"table of {rows}")
    answer, noted = heard(
        "compare a b -A --picture p.svg --curves c.svg --parallel l.svg", "evopipe.compare.compare", (["r"], ["old"])
    )
    assert noted == [[["a", "b"], True]]
    assert drawn == [("draw", ["r"], "p.svg"), ("draw_curves", ["r"], "c.svg"), ("draw_parallel", ["r"], "l.svg")]
    assert answer.out == "table of ['r']\nwritten: p.svg\nwritten: c.svg\nwritten: l.svg\n"
    assert answer.err == "warning: old\n"
    assert heard("compare --curves c.svg", "evopipe.compare.compare", (["r"], []))[1] == [[(), False]]
    assert drawn[3:] == [("draw_curves", ["r"], "c.svg")]


def test_what_needs_the_parameters_has_them(heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_params(tmp_path, params({}))
    from evopipe.storage import keys

    monkeypatch.setattr(keys, "dvc_root", lambda: Path("root"))
    serve = "evopipe.track.backends.mlflow.serve"
    assert heard("track ui", serve)[1] == [[Path("root"), 5000, True, TELL]]
    assert heard("track ui --port 81 --no-browser", serve)[1] == [[Path("root"), 81, False, TELL]]
    answer, _ = heard("track sync", "evopipe.track.outbox.sync", {})
    assert (answer.code, answer.err) == (
        64,
        "error: params.yaml: tracking.backends is empty: name a tracker, such as [mlflow]\n",
    )
    write_params(tmp_path, params({"tracking.backends": ["mlflow"]}))
    answer, noted = heard("track sync", "evopipe.track.outbox.sync", {"mlflow": "3 new"})
    assert answer.out == "mlflow: 3 new\n"
    ((root, tracking, *others),) = noted
    assert (root, tracking.backends, tuple(others)) == (Path("root"), ("mlflow",), (TELL, "warn"))
    for words, seeds, quiet in (("replay", 3, False), ("--quiet replay --seeds 5", 5, True)):
        ((asked, *rest),) = heard(words, "evopipe.replay.run")[1]
        assert (asked.population.size, *rest) == (params({})["population"]["size"], seeds, quiet)


def test_the_fastest_way_is_named_with_its_processes(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    from evopipe.envs import check, speed

    monkeypatch.setattr(check, "described", lambda *given: given)
    monkeypatch.setattr(speed, "chosen", lambda rows: rows + 1)
    way = lambda backend, workers, rate: SimpleNamespace(backend=backend, workers=workers, rate=rate)  # noqa: E731
    ways = [way("sync", 0, 2000.0), way("sync", 2, 5000.4), way("c", None, 4000.0)]
    words = 'env bench E-v1 --kwargs {"a":1} --source f.c --rows 9 --seconds 0.5'
    answer, noted = heard(words, "evopipe.envs.speed.speeds", ways)
    assert noted == [[("E-v1", {"a": 1}, (), "f.c"), 9, 0.5]]
    assert [line.split() for line in answer.out.splitlines()] == [
        "env.backend env_workers steps a second of the first".split(), ["sync", "0", "2,000", "1.00"],
        ["sync", "2", "5,000", "2.50"], ["c", "4,000", "2.00"],
        "fastest here: env.backend: sync with runtime.env_workers: 2; env_workers: auto begins with 10 under sync"
        .split(),
    ]  # fmt: skip
    answer, noted = heard("env bench E-v1", "evopipe.envs.speed.speeds", [ways[2], ways[0]])
    assert noted == [[("E-v1", {}, (), None), 64, 1.0]]
    assert answer.out.endswith("fastest here: env.backend: c; env_workers: auto begins with 0 under sync\n")


@pytest.mark.parametrize(
    ("findings", "code"), [((), 0), (("error: no", "odd", "error: two"), EnvironmentFailed.exit_code)]
)
def test_findings_about_an_environment_are_said(
    findings: tuple[str, ...], code: int, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evopipe.envs import check, outlook

    monkeypatch.setattr(check, "described", lambda *given: given)
    words = 'env check E-v1 --kwargs {"a":1} --wrappers ["W"] --source f.c --gamma 0.5'
    asked: list[Any] = []
    for looked, more in ((["figures"], ""), (["figures", "warned"], "E-v1: figures\nE-v1: warned\n")):
        asked.clear()
        monkeypatch.setattr(outlook, "outlook", lambda *given, looked=looked: asked.append(given) or looked)
        answer, noted = heard(words, "evopipe.envs.check.check", findings)
        assert noted == [["E-v1", {"a": 1}, ["W"], "f.c"]]
        assert answer.code == code
        if code:
            assert answer.err == "E-v1: odd\nerror: E-v1: no\nerror: E-v1: two\n"
        else:
            assert asked == [(("E-v1", {"a": 1}, ["W"], "f.c"), 0.5)]
            assert (answer.out, answer.err) == ("E-v1: ok\n", more)
