"""The tutorials run, made short, and leave their pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tiny import ROOT

DOCS = ROOT / "docs"
SHORTER = {
    "lunarlander": {"max_steps=200_000": "max_steps=640", "evo_steps=10_000": "evo_steps=320", "1_000,": "100,"},
    "offline": {"range(200)": "range(20)", "max_steps=1_500": "max_steps=20", "evo_steps=100": "evo_steps=10"},
    "speaker-listener": {
        '"max_steps": 128_000': '"max_steps": 1_280', '"evo_steps": 16_000': '"evo_steps": 640',
        '"learning_delay": 2_000': '"learning_delay": 64', '"target": None': '"target": None, "confirm_episodes": 16',
        '"eval_episodes": 128': '"eval_episodes": 16',
    },
    "symbols": {
        '"max_steps": 600, "evo_steps": 200': '"max_steps": 4, "evo_steps": 2', "max_steps=960": "max_steps=64",
        "evo_steps=10": "evo_steps=2", "4_000": "100",
    },
    "tool": {
        '"trainer.total_training_steps": 200': '"trainer.total_training_steps": 2',
        '"trainer.test_freq": 10': '"trainer.test_freq": 1',
    },
    "own-environment": {"max_steps=24_576": "max_steps=2_048", "evo_steps=2_048": "evo_steps=1_024"},
    "sweep": {
        "-S 'seed=1,2' -S train.max_steps=1600 -S train.evo_steps=800":
            "-S train.max_steps=400 -S train.evo_steps=200 -S evaluate.episodes=4 -S train.eval_episodes=4",
    },
}  # fmt: skip
"""Of each page what stands in it, and in its place."""


@pytest.fixture
def tutorials(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(DOCS))
    import make_tutorials

    return make_tutorials


def test_every_tutorial_is_listed_and_has_its_picture(tutorials: Any) -> None:
    assert set(tutorials.names()) == {*SHORTER}
    index = (DOCS / "tutorials/index.md").read_text()
    for name in SHORTER:
        assert f"({name}.md)" in index
        assert f"]({name}.png)" in (DOCS / f"tutorials/{name}.md").read_text()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == "sweep" else pytest.mark.thorough) for name in SHORTER],
)
def test_tutorials_run(name: str, tutorials: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in ("symbols", "tool"):
        pytest.importorskip("transformers", reason="an extra of its own: pip install 'evopipe[language]'")
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "test")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "test@localhost")
    tutorials.run(name, tmp_path, SHORTER[name])
    assert (tmp_path / f"{name}.png").stat().st_size > 1000
