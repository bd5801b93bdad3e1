"""The scripts of `examples/`: each runs, with a test's budgets, and as it stands where it is to learn something."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tiny import ROOT, environment

EXAMPLES = ROOT / "examples"
ELSEWHERE = {"custom_loop.py", "openai_agent.py"}  # `test_examples.py`, and `tests/learning/test_agents_endpoint.py`
STEPS = (r'"max_steps": \d+, "evo_steps": \d+', '"max_steps": 512, "evo_steps": 256')
ROLLOUT = (r'"learn_step": \d+', '"learn_step": 256')
EPISODES = ('"target": None', '"target": None, "eval_episodes": 2')
SIZE = (r'"size": \d', '"size": 2')
ENDS = (r'"train": \{"algo": "ppo"', '"evaluate": {"episodes": 4}, "train": {"algo": "ppo", "confirm_episodes": 2')
SHORT = {
    "custom_environment.py": [STEPS, ROLLOUT],
    "custom_network.py": [STEPS, ROLLOUT, EPISODES],
    "curves.py": [STEPS, EPISODES, ("1,2,3", "1"), ROLLOUT],
    "film.py": [STEPS, ROLLOUT, SIZE, ENDS],
    "language_reward.py": [(r'"max_steps": 60, "evo_steps": 20', '"max_steps": 2, "evo_steps": 1')],
    "learning_rates.py": [STEPS, ROLLOUT, EPISODES, (r'"size": \d', '"size": 4')],
    "numpy_alone.py": [STEPS, ROLLOUT, ENDS],
    "offline_data_frame.py": [(r"range\(200\)", "range(20)"), (r'4000, "evo_steps": 1000', '200, "evo_steps": 100')],
    "onnx_program.py": [STEPS, ROLLOUT, ENDS],
    "resume.py": [],
    "sweep.py": [STEPS, EPISODES, ("0.0003,0.001,0.003", "0.001,0.003"), ROLLOUT],
    "team.py": [STEPS, (r'"learn_step": \d+, "batch_size": \d+', '"learn_step": 256, "batch_size": 64')],
}
"""Of each script what is replaced, by what, for a short run."""
TOLD = {
    "custom_environment.py": r"faults: \[\]\nbest mean return of 20 steps: [\d.]+",
    "custom_network.py": r"generation 2: fitness .*\n<Policy ppo, CartPole-v1: .*>",
    "curves.py": r"algo=dqn[\s\S]*algo=ppo[\s\S]*curves.svg",
    "film.py": r"seed 7",
    "language_reward.py": r"mean reward [\d.]+: \['.*', '.*'\]",
    "learning_rates.py": r"generation 1\n(  \d+, a child of (\d+|None): learning rate .*\n){4}",
    "numpy_alone.py": r"NumPy alone chooses ([01]), evopipe \1\n",
    "offline_data_frame.py": r"\d+ steps, mean return [\d.]+\nmean return learned [\d.]+",
    "onnx_program.py": r"largest difference of 100 actions: (0.0e\+00|\d.\de-0[6-9])",
    "resume.py": r"undisturbed (\w{16}), killed and continued \1\n",
    "sweep.py": r"lr=0.001[\s\S]*lr=0.003",
    "team.py": r"agents: ",
}
"""What a run tells."""
IN_PROCESS = ("learning_rates.py", "team.py")


def short(name: str, folder: Path) -> Path:
    """A script with a test's budgets, by its own name in a folder."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    for pattern, value in SHORT[name]:
        text, found = re.subn(pattern, value, text)
        assert found, (name, pattern)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def told(script: Path, folder: Path) -> str:
    """Run a script in a folder by a process of its own; return what it printed."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=environment(PATH=path), capture_output=True, text=True,
        timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def needs(name: str) -> None:
    wanted = {"language_reward.py": "transformers", "onnx_program.py": "onnxscript", "offline_data_frame.py": "pandas"}
    if name in wanted:
        pytest.importorskip(wanted[name])


def test_every_example_is_short_on_the_page_and_has_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {*SHORT, *ELSEWHERE}
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import make_examples

    assert names == {f"{name}.py" for name in make_examples.WISHES}
    assert {name for name in SHORT if len((EXAMPLES / name).read_text().splitlines()) > 40} == set()


@pytest.mark.parametrize("name", IN_PROCESS)
@pytest.mark.thorough
def test_an_example_in_this_process(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(short(name, tmp_path)), run_name="__main__")
    assert re.search(TOLD[name], capsys.readouterr().out)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in SHORT if name not in IN_PROCESS])
def test_an_example(name: str, tmp_path: Path) -> None:
    needs(name)
    assert re.search(TOLD[name], told(short(name, tmp_path), tmp_path))
    assert name != "film.py" or (tmp_path / "elite.gif").read_bytes()[:4] == b"GIF8"
    assert name != "curves.py" or "<svg" in (tmp_path / "curves.svg").read_text()


LEARNED = {
    "custom_environment.py": (r"20 steps: ([\d.]+)", 15.0),  # at random 12, at best 17.5
    "custom_network.py": (r"generation 4: fitness \[([\d.]+)", 150.0),
    "language_reward.py": (r"mean reward ([\d.]+)", 0.9),  # at random 0.4
    "offline_data_frame.py": (r"learned ([\d.]+)", 300.0),
    "team.py": (r"generation 4: return of an episode \[(-[\d.]+)", -60.0),  # at random -78
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNED)
def test_an_example_as_it_stands_learns(name: str, tmp_path: Path) -> None:
    needs(name)
    pattern, least = LEARNED[name]
    (tmp_path / name).write_bytes((EXAMPLES / name).read_bytes())
    found = re.search(pattern, told(tmp_path / name, tmp_path))
    assert found
    assert float(found[1]) >= least
