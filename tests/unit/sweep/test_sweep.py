"""`evopipe sweep`: what runs, in which folders, to which bits; errors; signals, kills and the way on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import evopipe
from evopipe.errors import EvopipeError, ParamsError, UsageError
from evopipe.params.load import load_params
from evopipe.schema.read import read_yaml
from evopipe.storage.files import read_json
from evopipe.storage.lock import RunLock
from evopipe.sweep.run import sweep
from evopipe.sweep.settings import Setting, settings_of
from tiny import TRAINED, call, checkpoints, digests, environment, wait_for, write_params

OUTS = (*TRAINED, "reports/evaluation.json", "reports/members.json", "reports/episodes.csv", "reports/report.html")
IN_C = {"env.backend": "c", "export.program": True, "export.film": True, "tracking.backends": ["mlflow"]}
NUMBERS = ",".join(map(str, range(300)))
LONG = {"train.max_steps": 60_000, "train.evo_steps": 1000, "population.size": 2, "runtime.checkpoint_seconds": 0.05}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_params(tmp_path, IN_C)
    (tmp_path / ".dvc").mkdir()  # checkpoints lie below it, see `storage.keys.dvc_root`
    return tmp_path


def settings(
    project: Path, *sets: str, samples: tuple[str, ...] = (), trials: int | None = None, sampler: Any = "random",
    dataset: bool = False,
) -> list[Setting]:  # fmt: skip
    return settings_of(str(project / "params.yaml"), sets, samples, trials, sampler, dataset)


def folders(project: Path, name: str = "sweep") -> dict[str, Path]:
    """The folders of a sweep's runs by their names without the hash."""
    return {path.name[:-9]: path for path in (project / "sweeps" / name).iterdir() if path.is_dir()}


# --- settings ---------------------------------------------------------------------------------------------------------


def test_a_grid_has_every_combination_once(project: Path) -> None:
    found = settings(project, "seed=1,2,2", "lr=1e-3,0.01")
    assert [setting.values for setting in found] == [
        {"seed": seed, "algos.dqn.lr": lr} for seed in (1, 2) for lr in (0.001, 0.01)
    ]
    assert [setting.label for setting in found][:2] == ["seed=1 lr=0.001", "seed=1 lr=0.01"]
    assert len({setting.name for setting in found}) == 4
    assert all(setting.name.startswith(f"seed={setting.values['seed']},lr=") for setting in found)


def test_values_may_be_lists_words_and_nothing(project: Path) -> None:
    found = settings(project, "algos.dqn.network.encoder=[8],[8, 16]", "train.target=null,auto")
    values = [(s.params.algo_config.network.encoder, s.params.train.target) for s in found]
    assert values == [((8,), None), ((8,), "auto"), ((8, 16), None), ((8, 16), "auto")]


def test_a_run_has_a_complete_params_file_that_keeps_comments(project: Path, tmp_path: Path) -> None:
    text = (project / "params.yaml").read_text()
    (project / "params.yaml").write_text(text.replace("seed: 1", "seed: 1  # of everything"))
    (setting,) = settings(project, "train.algo=ppo", "train.max_steps=4000")
    file = tmp_path / "run.yaml"
    file.write_text(setting.text)
    assert "# of everything" in setting.text
    assert load_params(file) == setting.params
    assert setting.params.algo_config == evopipe.parse_params({"train": {"algo": "ppo"}}).algo_config


def test_film_program_and_trackers_are_left_out_unless_they_are_set(project: Path) -> None:
    (lean,) = settings(project, "seed=1")
    assert (lean.params.export.film, lean.params.export.program, lean.params.tracking.backends) == (False, False, ())
    (full,) = settings(project, "export.film=true", "export.program=true", "tracking.backends=[wandb]")
    assert (full.params.export.film, full.params.export.program) == (True, True)
    assert full.params.tracking.backends == ("wandb",)


def test_what_nothing_reads_is_a_dataset_of_one_episode(project: Path) -> None:
    (read,) = settings(project, "train.warm_start=100", dataset=True)
    (unread,) = settings(project, "train.warm_start=0", dataset=True)
    (none,) = settings(project, "train.warm_start=0")
    assert [s.params.fetch.collect.episodes for s in (read, unread, none)] == [4, 1, 4]


@pytest.mark.thorough
def test_draws_are_within_their_range_and_do_not_depend_on_how_many_there_are(project: Path) -> None:
    samples = ("lr=loguniform(1e-4,1e-2)", "population.size=integers(2,3)", "algos.dqn.loss=choice(huber,mse)",
               "train.replay.beta=uniform(0,1)")  # fmt: skip
    for sampler in ("random", "sobol"):
        many = [s.values for s in settings(project, samples=samples, trials=16, sampler=sampler)]
        few = [s.values for s in settings(project, samples=samples, trials=4, sampler=sampler)]
        assert many[:4] == few
        rates = [each["algos.dqn.lr"] for each in many]
        assert all(1e-4 <= rate <= 1e-2 for rate in rates)
        assert sum(rate < 1e-3 for rate in rates) in range(3, 14)  # half of them, by logarithms
        assert {each["population.size"] for each in many} == {2, 3}
        assert {each["algos.dqn.loss"] for each in many} == {"huber", "mse"}
        assert all(float(f"{rate:.4g}") == rate for rate in rates)


def test_draws_are_combined_with_the_grid(project: Path) -> None:
    found = settings(project, "seed=1,2", samples=("lr=uniform(0.001,0.01)",), trials=2)
    assert [s.values["seed"] for s in found] == [1, 2, 1, 2]
    assert [s.values["algos.dqn.lr"] for s in found][::2] == [s.values["algos.dqn.lr"] for s in found][1::2]


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--set", "trian.max_steps=1"], 65, "trian: unknown key, did you mean 'train'?"),
        (["--set", "train.max_stps=1"], 65, "train.max_stps: unknown key, did you mean 'max_steps'?"),
        (["--set", "lrr=1"], 65, "lrr: unknown key, did you mean 'lr'?"),
        (["--set", "learning_rate=1"], 65, "learning_rate: unknown key: it is named `lr` here"),
        (["--set", "lr=1e-3,-1"], 65, "algos.dqn.lr: must be above 0, got -1"),
        (["--set", "train.algo=ppoo"], 65, "train.algo: unknown algorithm 'ppoo', did you mean 'ppo'?"),
        (["--set", "train.algo.x=1"], 65, "train.algo.x: train.algo is a value and has no keys"),
        (["--set", "env.id=CartPol-v1"], 65, "id=CartPol-v1: env.id: unknown environment 'CartPol-v1', did you mean"),
        (["--set", "lr="], 64, "--set 'lr=' names no key or no value"),
        (["--set", "lr"], 64, "--set 'lr' names no key or no value"),
        (["--set", "=1"], 64, "--set '=1' names no key or no value"),
        (["--set", "lr=1", "--set", "lr=2"], 64, "--set names lr twice"),
        (["--set", "lr=[1"], 64, "--set lr:1:"),
        (["--set", f"seed={NUMBERS}", "--set", f"population.size={NUMBERS}"], 64, "90000 runs, at most 10000"),
        (["--sample", "lr=loguniform(1e-4,1e-2)"], 64, "--sample needs --trials N"),
        (["--trials", "3"], 64, "--trials needs --sample"),
        (["--trials", "3", "--set", "lr=1", "--sample", "lr=uniform(1,2)"], 64, "lr stands in --set and in --sample"),
        (["--trials", "3", "--sample", "lr=1"], 64, "'1' is no distribution"),
        (["--trials", "3", "--sample", "lr=lognormal(1,2)"], 64, "unknown distribution 'lognormal'"),
        (["--trials", "3", "--sample", "lr=loguniform(0,1)"], 64, "from a smaller number above 0 to a larger one"),
        (["--trials", "3", "--sample", "lr=uniform(2,1)"], 64, "from a smaller number to a larger one"),
        (["--trials", "3", "--sample", "lr=uniform(1)"], 64, "takes two numbers"),
        (["--trials", "3", "--sample", "seed=integers(1,2.5)"], 64, "takes two numbers"),
        (["--trials", "3", "--sample", "seed=choice()"], 64, "choice() has no value"),
        (["../up", "--set", "seed=1"], 64, "'../up' cannot be the name of a folder"),
        (["--set", "seed=1", "--jobs", "0"], 64, "--jobs"),
    ],
)  # fmt: skip
@pytest.mark.thorough
def test_what_cannot_be_run_is_one_sentence_before_anything_runs(
    project: Path, words: list[str], code: int, sentence: str
) -> None:
    answer = call(project, "sweep", *words)
    assert (answer.code, answer.err.count("\n"), sentence in answer.err) == (code, 1, True), answer.err
    assert not (project / "sweeps").exists()


def test_an_incomplete_params_file_is_told_with_its_place(project: Path) -> None:
    (project / "params.yaml").write_text((project / "params.yaml").read_text().replace("seed: 1\n", ""))
    answer = call(project, "sweep", "--set", "lr=1e-3")
    assert (answer.code, answer.err.startswith("error: params.yaml:1:1: seed: missing key")) == (65, True)


def test_errors_are_typed(project: Path) -> None:
    with pytest.raises(UsageError, match="--trials"):
        settings(project, samples=("lr=uniform(1,2)",))
    with pytest.raises(ParamsError, match="did you mean 'lr'"):
        settings(project, "lrr=1")


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_two_at_once_have_the_bits_of_single_trainings(project: Path, tmp_path: Path) -> None:
    answer = call(project, "sweep", "--set", "lr=1e-3,1e-2", "--jobs", "2")
    assert (answer.code, answer.err) == (0, "")
    first, *ended, head, best, worst, _ = answer.out.splitlines()
    assert first == "2 runs in sweeps/sweep"
    assert [line[:6] for line in ended] == ["1 of 2", "2 of 2"]
    assert head.split() == ["setting", "elite's", "mean", "95", "%", "interval", "time", "folder"]
    found = folders(project)
    assert sorted(found) == ["lr=0.001", "lr=0.01"]
    means = {name: read_json(path / "reports/evaluation.json")["elite"]["mean"] for name, path in found.items()}
    assert [best.split()[0], worst.split()[0]] == sorted(means, key=lambda name: -means[name])
    for name, path in found.items():
        alone = evopipe.load_params(path / "params.yaml")
        evopipe.train(alone, tmp_path / "alone" / name)
        assert digests(path, OUTS) == digests(tmp_path / "alone" / name, OUTS), name
    assert "not filmed" in (path / "reports/report.html").read_text()
    assert (project / "sweeps/.gitignore").read_text() == "*\n"


@pytest.mark.thorough
def test_runs_of_a_sweep_are_compared(project: Path) -> None:
    """By the folder of all, or by folders; configurations have their seeds, and curves."""
    assert call(project, "sweep", "--set", "lr=1e-3,1e-2", "--set", "seed=1,2", "--no-experiments").code == 0
    answer = call(project, "compare", "sweeps/sweep", "--curves", "curves.svg")
    assert (answer.code, answer.err) == (0, "")
    head, *rows, _, legend, last = answer.out.splitlines()
    assert head.startswith("configuration")
    assert (legend, last) == ("in short: lr is algos.dqn.lr", "written: curves.svg")
    assert sorted(row.split("  ")[0] for row in rows) == ["lr=0.01", "lr=1e-3"]
    assert all("2 seeds" in row for row in rows)
    assert (project / "curves.svg").read_text().count("lr=") >= 2
    found = {name: path for name, path in folders(project).items() if "seed=1" in name}
    one = call(project, "compare", *map(str, found.values())).out.splitlines()
    assert len(one) == 5
    assert all("episodes of seed 1" in row for row in one[1:3])
    (path, _) = found.values()
    (path / "reports/evaluation.json").unlink()
    answer = call(project, "compare", str(path))
    assert answer.code == 66
    assert "has no score yet" in answer.err


@pytest.mark.thorough
def test_a_run_that_has_ended_is_not_run_again(project: Path) -> None:
    assert call(project, "sweep", "--set", "seed=1").code == 0
    (path,) = folders(project).values()
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.is_file()}
    answer = call(project, "sweep", "--set", "seed=1,2")
    assert answer.code == 0
    assert [line.rpartition(", ")[2] == "was there" for line in answer.out.splitlines()[1:3]] == [True, False]
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.is_file()} == before
    assert len(folders(project)) == 2


@pytest.mark.thorough
def test_a_run_that_fails_does_not_stop_the_others(project: Path) -> None:
    answer = call(project, "sweep", "--set", "population.start=nowhere,null", "--jobs", "1")
    assert answer.code == 66
    assert answer.err.splitlines()[-1].startswith("error: 1 of 2 runs failed, the first was start=nowhere: nowhere"), (
        answer.err
    )
    assert "warning: start=nowhere: nowhere" in answer.err
    found = folders(project)
    assert (found["start=null"] / "reports/report.html").exists()
    assert not (found["start=nowhere"] / "reports").exists()


@pytest.mark.thorough
def test_a_signal_after_the_last_run_hides_no_failure(project: Path) -> None:
    """Nothing is left to stop: the sweep says what failed, not that it was stopped."""

    def warn(sentence: str) -> None:
        assert "nowhere" in sentence
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(EvopipeError, match="1 of 1 runs failed, the first was start=nowhere: nowhere"):
        sweep(settings(project, "population.start=nowhere"), project / "sweeps/one", 1, False, print, warn)


def test_two_sweeps_of_one_name_are_refused(project: Path) -> None:
    with RunLock(project / "sweeps/mine/.lock"):
        answer = call(project, "sweep", "mine", "--set", "seed=1")
    assert (answer.code, "this run is being worked on" in answer.err) == (75, True)


@pytest.mark.thorough
def test_a_dataset_is_made_where_it_is_read(project: Path) -> None:
    assert call(project, "sweep", "--set", "train.warm_start=0,50", "--jobs", "2").code == 0
    found = folders(project)
    assert [(found[f"warm_start={n}"] / "data/transitions.h5").exists() for n in (0, 50)] == [False, True]


# --- signals and kills ------------------------------------------------------------------------------------------------


def begun(project: Path, *words: str) -> subprocess.Popen[str]:
    """A sweep in a process of its own, whose two runs have each written a checkpoint."""
    process = subprocess.Popen(
        [sys.executable, "-m", "evopipe", "sweep", *words, "--jobs", "2"],
        cwd=project, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert wait_for(lambda: len({path.parent for path in checkpoints(project)}) == 2, 120), process.communicate()
    return process


def runs_go_on(project: Path) -> bool:
    """Whether any process works in the project: each run holds a lock."""
    for lock in (project / ".evopipe").rglob("*.lock"):
        try:
            with RunLock(lock):
                pass
        except evopipe.errors.BusyError:
            return True
    return False


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.thorough
def test_a_sweep_that_is_stopped_continues_to_the_same_bits(project: Path, tmp_path: Path, signum: int) -> None:
    write_params(project, {**IN_C, **LONG})
    process = begun(project, "--set", "seed=1,2")
    os.kill(process.pid, signum)
    _, err = process.communicate(timeout=120)
    if signum == signal.SIGKILL:
        assert process.returncode == -signum
        assert wait_for(lambda: not runs_go_on(project)), "a run outlived its sweep"
    else:
        assert process.returncode == 128 + signum
        assert err == "error: stopped: 0 of 2 runs have ended, the others are saved; the same command continues\n"
    left = folders(project)
    assert not any((path / "reports/report.html").exists() for path in left.values())
    answer = call(project, "sweep", "--set", "seed=1,2", "--jobs", "2")
    assert answer.code == 0, answer.err
    assert folders(project) == left
    for name, path in left.items():
        assert ", goes on at step " in (path / "run.log").read_text(), name
        evopipe.train(load_params(path / "params.yaml"), tmp_path / "alone" / name)
        assert digests(path, OUTS) == digests(tmp_path / "alone" / name, OUTS), name


@pytest.mark.thorough
def test_stages_that_were_done_are_not_done_again(project: Path) -> None:
    """A run that was killed behind its training does not train again: its checkpoints are gone."""
    assert call(project, "sweep", "--set", "seed=1").code == 0
    (path,) = folders(project).values()
    done = read_json(path / "sweep.json")["stages"]
    kept = {name: seconds for name, seconds in done.items() if name in ("population", "train")}
    (path / "sweep.json").write_text(str({"stages": kept}).replace("'", '"'))
    before = digests(path, OUTS)
    log = (path / "run.log").read_text()
    assert call(project, "sweep", "--set", "seed=1").code == 0
    assert "train:" not in (path / "run.log").read_text().removeprefix(log)
    assert digests(path, OUTS) == before


# --- DVC --------------------------------------------------------------------------------------------------------------


def command(folder: Path, *words: str) -> str:
    run = subprocess.run(words, cwd=folder, env=environment(DVC_NO_ANALYTICS="1"), capture_output=True, text=True,
                         check=False)  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.fixture
def repository(project: Path) -> Path:
    """A project with git and DVC, whose dvc.yaml has all stages."""
    made = call(project, "new", "mine", "--env", "CartPole-v1")
    assert made.code == 0, made.err
    write_params(project / "mine", IN_C)
    command(project / "mine", "git", "add", "-A")
    command(project / "mine", "git", "-c", "user.name=A", "-c", "user.email=a@b", "commit", "-qm", "First")
    return project / "mine"


@pytest.mark.thorough
def test_runs_become_dvc_experiments(repository: Path) -> None:
    """Each can be brought in, and is then up to date for DVC: its lock, its outs and its parameters agree."""
    file = repository / "params.yaml"
    file.write_text(
        file.read_text().replace("max_steps: 2000", "max_steps: 800")
    )  # nor is a change lost that is not committed
    answer = call(repository, "sweep", "grid", "--set", "seed=1,2", "--jobs", "2")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines()[-1] == "2 DVC experiments were made: `dvc exp show` lists them"
    assert "Updating" not in answer.out
    names = sorted(command(repository, sys.executable, "-m", "dvc", "exp", "list", "--name-only").split())
    assert names == sorted(f"grid-{path.name}" for path in folders(repository, "grid").values())
    assert command(repository, "git", "status", "--porcelain").split() == ["M", "params.yaml"]
    again = call(repository, "sweep", "grid", "--set", "seed=1,2")
    assert again.out.splitlines()[-1] == "all were DVC experiments"
    command(repository, "git", "checkout", "-q", "params.yaml")
    command(repository, sys.executable, "-m", "dvc", "exp", "apply", names[1])
    applied = read_yaml(file).data
    assert (applied["seed"], applied["train"]["max_steps"], applied["export"]["film"]) == (2, 800, False)
    status = command(repository, sys.executable, "-m", "dvc", "status")
    assert status == "Data and pipelines are up to date.\n"
    run = next(path for path in folders(repository, "grid").values() if f"grid-{path.name}" == names[1])
    assert digests(repository, OUTS) == digests(run, OUTS)


@pytest.mark.thorough
def test_without_a_repository_the_folders_are_all_there_is(project: Path) -> None:
    answer = call(project, "sweep", "--set", "seed=1")
    assert answer.out.splitlines()[-1] == "no DVC experiments were made: there is no dvc.yaml here"
    assert "no DVC" not in call(project, "sweep", "--set", "seed=1", "--no-experiments").out
