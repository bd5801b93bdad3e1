"""Watching a policy: frames, GIF, MP4, a window, and what is said where it cannot be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from evopipe import rng
from evopipe.algos import get
from evopipe.core.arch import Arch
from evopipe.core.cohort import create
from evopipe.core.layout import Block
from evopipe.core.member import Member
from evopipe.errors import DataError, DiskError, EnvironmentFailed, ParamsError, UsageError
from evopipe.policies import board, play, policy
from evopipe.policies.film import gif, mp4
from evopipe.policies.play import Score, watch
from evopipe.policies.policy import Policy
from evopipe.rng import Purpose
from evopipe.schema.env import EnvConfig
from evopipe.types import Spaces
from tiny import call, environment, evopipe

environment_of, play_one = partial(play.environment_of, trust=True), partial(play.play, trust=True)
ARCH = Arch((Block(16),), 16, (), "ReLU", False)


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No display, whatever the machine has."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)


def save(folder: Path, env: str, observations: int = 2, actions: int = 2, start: int = 0, **kwargs: Any) -> Path:
    """An untrained policy for an environment."""
    algo = get("dqn")
    cfg = algo.Config()
    widths = algo.networks(cfg, Spaces(observations, actions))
    rows = {name: [ARCH.initialise(w, rng.host(7, Purpose.INIT, 0))] for name, w in widths.items()}
    member = create([Member(0, 0, None, 7, ARCH, {"lr": 1e-3}, {})], partial(algo.init, cfg), rows, widths)[0]
    about = {"observations": observations, "actions": actions, "action_start": start}
    about["env"] = {"id": env, "kwargs": kwargs}
    policy.save(folder, "dqn", member, about, program=False, card="# card\n")
    return folder


def cartpole(tmp_path: Path) -> Policy:
    return policy.load(save(tmp_path / "elite", "CartPole-v1", 4))


def picture(tmp_path: Path, kind: str) -> Policy:
    """A policy of one of `rendering_envs`."""
    return policy.load(save(tmp_path / "elite", f"rendering_envs:{kind}Picture-v0", start=3))


# --- frames -----------------------------------------------------------------------------------------------------------


def test_frames_of_an_episode_without_a_display(tmp_path: Path) -> None:
    elite = cartpole(tmp_path)
    one, again, other = play_one(elite, seed=5), play_one(elite, seed=5), play_one(elite, seed=6)
    assert len(one.frames) == len(one.rewards) + 1
    assert {(frame.shape, frame.dtype) for frame in one.frames} == {((400, 600, 3), np.dtype(np.uint8))}
    assert not np.array_equal(one.frames[0], one.frames[-1])
    assert (one.fps, one.terminated, one.total) == (50, True, float(len(one.rewards)))
    assert all(np.array_equal(a, b) for a, b in zip(one.frames, again.frames, strict=True))
    assert not np.array_equal(one.frames[0], other.frames[0])
    assert "SDL_VIDEODRIVER" not in os.environ


def test_a_step_cap_is_no_end(tmp_path: Path) -> None:
    cut = play_one(cartpole(tmp_path), max_steps=3)
    assert (len(cut.frames), cut.total, cut.terminated) == (4, 3.0, False)


def test_each_frame_is_its_own(tmp_path: Path) -> None:
    """Though the environment draws into one array; and actions are those of the environment, from 3 on."""
    played = play_one(picture(tmp_path, "Drawn"))
    assert [int(frame.flat[0]) for frame in played.frames] == list(range(11))


def test_masks_are_obeyed(tmp_path: Path) -> None:
    assert play_one(picture(tmp_path, "Masked")).total == 10.0


def test_what_has_no_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "LIMIT", 20)
    played = play_one(picture(tmp_path, "Endless"))
    assert (len(played.rewards), played.terminated) == (20, False)


def test_a_frame_rate_where_none_is_named(tmp_path: Path) -> None:
    assert play_one(picture(tmp_path, "Unhurried")).fps == play.FPS


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("Invisible", r"cannot draw itself \(its metadata lists the render modes \[\]\); give it the mode"),
        ("Grey", r"render\(\) gave uint8 of shape \[33, 45\]; return an array \[H, W, 3\] of uint8"),
        ("Floats", r"render\(\) gave float64 of shape \[33, 45, 3\]"),
        ("Nothing", r"render\(\) gave object of shape \[\]"),
    ],
)
def test_environments_that_do_not_draw(tmp_path: Path, kind: str, sentence: str) -> None:
    with pytest.raises(EnvironmentFailed, match=sentence):
        play_one(picture(tmp_path, kind))


def test_an_environment_that_raises(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="raised RuntimeError while the policy played: the motor broke; try"):
        play_one(picture(tmp_path, "Breaks"))


def test_the_environment_must_be_named_and_fit(tmp_path: Path) -> None:
    elite = cartpole(tmp_path)
    with pytest.raises(DataError, match="has 6 observations and 3 discrete actions, the policy 4 observations and 2 "):
        watch(elite, environment_of(elite, "Acrobot-v1"), [partial(gif, tmp_path / "a.gif")])
    with pytest.raises(ParamsError, match="CartPol-v1"):
        watch(elite, environment_of(elite, "CartPol-v1"), [partial(gif, tmp_path / "a.gif")])
    del elite.about["env"]
    with pytest.raises(DataError, match="names no environment"):
        play_one(elite)


def test_another_environment_or_other_arguments(tmp_path: Path) -> None:
    elite = policy.load(save(tmp_path / "elite", "CartPole-v1", 4, sutton_barto_reward=True))
    assert environment_of(elite).kwargs == {"sutton_barto_reward": True}
    assert environment_of(elite, "CartPole-v0").kwargs == {}
    assert environment_of(elite, None, {}).id == "CartPole-v1"
    with pytest.raises(UsageError, match="'size'"):
        environment_of(elite, None, {"size": 3})


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_gif_plays_at_the_environments_speed(tmp_path: Path) -> None:
    elite = cartpole(tmp_path)
    told: list[Score] = []
    scores = watch(
        elite, environment_of(elite), [partial(gif, tmp_path / "new/a.gif")], episodes=3, seed=5, tell=told.append
    )
    assert told == scores
    assert [score.seed for score in scores] == [5, 6, 7]
    assert scores[0].total == scores[0].steps == play_one(elite, seed=5).total
    with Image.open(tmp_path / "new/a.gif") as image:
        assert image.size == (400, 267)
        assert image.info["loop"] == 0
        frames, seconds = image.n_frames, 0.0
        for number in range(frames):
            image.seek(number)
            seconds += image.info["duration"] / 1000
    drawn = sum(score.steps + 1 for score in scores)
    assert frames <= (drawn + 1) // 2  # 25 of 50 a second; equal ones are joined
    assert seconds == pytest.approx(drawn / 50, abs=0.05)
    first = (tmp_path / "new/a.gif").read_bytes()
    watch(elite, environment_of(elite), [partial(gif, tmp_path / "b.gif")], episodes=3, seed=5)
    assert (tmp_path / "b.gif").read_bytes() == first


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the reader leaves its pipes open
@pytest.mark.thorough
def test_a_film_holds_every_frame(tmp_path: Path) -> None:
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    elite = picture(tmp_path, "Drawn")
    path = tmp_path / "a.mp4"
    scores = watch(elite, environment_of(elite), [partial(mp4, path), partial(gif, tmp_path / "a.gif")], episodes=2)
    assert [(score.total, score.steps) for score in scores] == [(10.0, 10)] * 2
    film = imageio_ffmpeg.read_frames(str(path))
    about = next(film)
    assert (about["size"], about["fps"]) == ((46, 34), 50.0)  # the codec wants even numbers
    assert len(list(film)) == 22
    assert (tmp_path / "a.gif").exists()


def test_a_failed_run_writes_nothing_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("imageio_ffmpeg")
    elite = picture(tmp_path, "Breaks")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(EnvironmentFailed):
        watch(elite, environment_of(elite), [partial(mp4, tmp_path / "a.mp4"), partial(gif, tmp_path / "a.gif")])
    assert [path.name for path in tmp_path.iterdir()] == ["elite"]


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    elite = picture(tmp_path, "Drawn")
    with pytest.raises(DiskError):
        watch(elite, environment_of(elite), [partial(gif, tmp_path / "taken/a.gif")])


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_writes_a_file_and_tells_scores(tmp_path: Path) -> None:
    save(tmp_path / "elite", "CartPole-v1", 4)
    answer = call(tmp_path, "play", "elite", "--episodes", "2", "--seed", "3", "--max-steps", "4", "--gif", "a.gif")
    assert answer == (
        0,
        "seed 3: return 4.0, 4 steps\nseed 4: return 4.0, 4 steps\n"
        "CartPole-v1: mean return 4.0 of 2 episodes\nwritten: a.gif\n",
        "",
    )
    assert (tmp_path / "a.gif").read_bytes().startswith(b"GIF89a")
    assert call(tmp_path, "play", "elite", "--max-steps", "4", "--gif", "a.gif", "--quiet") == (0, "", "")


def test_the_command_without_a_display(tmp_path: Path) -> None:
    save(tmp_path / "my elite", "CartPole-v1", 4)
    assert call(tmp_path, "play", "my elite") == (
        64,
        "",
        "error: play: there is no display here to open a window on; write a file instead: "
        "evopipe play 'my elite' --gif play.gif, or --mp4 play.mp4\n",
    )


def test_the_command_with_what_is_not_there(tmp_path: Path) -> None:
    assert call(tmp_path, "play", "--gif", "a.gif").code == 66
    save(tmp_path / "models/elite", "CartPole-v1", 4)
    assert call(tmp_path, "play", "--gif", "a.gif", "--kwargs", "{").code == 64
    assert call(tmp_path, "play", "--gif", "a.gif", "--env", "Acrobot-v1").code == 65
    assert call(tmp_path, "play", "--gif", ".").code == 64


# --- hostile folders --------------------------------------------------------------------------------------------------


def test_a_module_that_only_the_folder_names_is_not_imported(tmp_path: Path) -> None:
    """Unless the user says so: it would run, and the folder may come from anybody."""
    save(tmp_path / "elite", "planted:CartPole-v1", 4)
    (tmp_path / "planted.py").write_text("import pathlib; pathlib.Path('ran').touch()\n")
    words = ("play", "elite", "--max-steps", "2", "--gif", "a.gif")
    refused = call(tmp_path, *words)
    assert refused.code == 64
    assert refused.err.startswith("error: policy.json names 'planted:CartPole-v1', an environment or wrapper in")
    assert "--trust" in refused.err
    assert "--env" in refused.err
    assert call(tmp_path, *words, "--env", "CartPole-v1").code == 0
    with pytest.raises(UsageError, match="'planted'"):
        play.play(policy.load(tmp_path / "elite"))
    assert "planted" not in sys.modules
    assert not (tmp_path / "ran").exists()
    try:
        assert call(tmp_path, *words, "--trust").code == 0
        assert (tmp_path / "ran").exists()
        assert sys.path[-1] == str(tmp_path), "where packages are looked for comes before"
    finally:
        sys.modules.pop("planted", None)
        sys.path.remove(str(tmp_path))


@pytest.mark.thorough
def test_no_file_of_the_working_folder_takes_the_place_of_a_package(tmp_path: Path) -> None:
    """Not under `python -m evopipe` either, and not where an environment's module is looked for there."""
    save(tmp_path / "elite", "CartPole-v1", 4)
    for name in ("pathlib", "typer", "torch", "gymnasium", "pygame", "safetensors", "PIL"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hijacked')\n")
    run = evopipe(
        tmp_path, "play", "elite", "--max-steps", "1", "--gif", "a.gif", "--env", "rendering_envs:DrawnPicture-v0"
    )
    assert (run.returncode, "hijacked" in run.stderr) == (65, False), run.stderr  # it has other spaces
    assert "has 2 observations" in run.stderr


# --- a window ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def display() -> Iterator[str]:
    """A display that nobody sees."""
    if shutil.which("Xvfb") is None:
        pytest.skip("a window needs a display: install Xvfb")
    reading, writing = os.pipe()
    words = ["Xvfb", "-displayfd", str(writing), "-screen", "0", "800x600x24", "-nolisten", "tcp"]
    server = subprocess.Popen(words, pass_fds=(writing,), stderr=subprocess.DEVNULL)
    os.close(writing)
    with os.fdopen(reading) as told:
        number = told.readline().strip()
    assert number
    yield f":{number}"
    server.terminate()
    server.wait(20)


_WINDOW = """
import sys, pygame
from evopipe.policies import play
from evopipe.policies import policy

def tell(score):
    print(score.steps, pygame.display.get_driver(), pygame.display.get_surface().get_size())
    if score.seed == 1:
        pygame.event.post(pygame.event.Event(pygame.QUIT))  # someone closes the window
for folder in sys.argv[1:]:
    elite = policy.load(folder)
    print(len(play.watch(elite, play.environment_of(elite, trust=True), episodes=5, max_steps=4, tell=tell)))
"""


@pytest.mark.thorough
def test_a_window(tmp_path: Path, display: str) -> None:
    """Of an environment that opens its own, and of one that only gives frames."""
    save(tmp_path / "opens", "CartPole-v1", 4, 2, 0)
    save(tmp_path / "gives", "rendering_envs:DrawnPicture-v0", 2, 2, 3)
    run = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", _WINDOW, "opens", "gives"],
        cwd=tmp_path,
        env=environment(DISPLAY=display),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    shown = [[f"4 x11 {size}"] * 2 + ["2"] for size in ((600, 400), (45, 33))]
    assert run.stdout.splitlines() == [*shown[0], *shown[1]], run.stderr


@pytest.mark.thorough
def test_a_display_that_is_not_there(tmp_path: Path) -> None:
    save(tmp_path / "elite", "CartPole-v1", 4)
    run = subprocess.run(
        [sys.executable, "-m", "evopipe", "play", "elite"],
        cwd=tmp_path,
        env=environment(DISPLAY=":7777"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 64
    assert run.stderr.splitlines()[-1].startswith("error: play: no window can be opened")


# --- MuJoCo -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_mujoco_draws_without_a_display_or_a_sentence_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco")
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    cfg, chosen = EnvConfig(id="HalfCheetah-v5"), play._mujoco_gl()
    with play._without_display():
        env = play._make(cfg, "rgb_array")
        assert os.environ.get("MUJOCO_GL") == chosen
        env.reset(seed=0)
        if chosen is not None:
            assert play._draw(env, cfg).std() > 0
        else:
            with pytest.raises(EnvironmentFailed, match=r"no display here.*neither EGL nor OSMesa.*or set MUJOCO_GL"):
                play._draw(env, cfg)
    assert "MUJOCO_GL" not in os.environ


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (None, "draws by neither EGL nor OSMesa; install one"),
        ("glfw", "cannot draw by MUJOCO_GL=glfw; unset it, and EGL"),
    ],
)
def test_a_way_to_draw_that_somebody_chose_is_named_where_it_fails(
    asked: str | None, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    if asked:
        monkeypatch.setenv("MUJOCO_GL", asked)
    with pytest.raises(EnvironmentFailed, match=sentence), play._explained(EnvConfig(id="HalfCheetah-v5")):
        raise RuntimeError("an OpenGL platform library has not been loaded into this process")


@pytest.mark.parametrize(
    ("works", "chosen"), [(("egl", "osmesa"), "egl"), (("osmesa",), "osmesa"), ((), None)], ids=["both", "one", "none"]
)
def test_mujoco_draws_by_what_makes_a_context(
    works: tuple[str, ...], chosen: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EGL first. A package of the same name stands for MuJoCo where drivers are there that this machine lacks."""
    for name in ("egl", "osmesa"):
        module = tmp_path / "mujoco" / f"{name}.py"
        module.parent.mkdir(exist_ok=True)
        (module.parent / "__init__.py").touch()
        context = "class GLContext:\n    def __init__(self, w, h): pass\n    def make_current(self): pass\n"
        module.write_text(context if name in works else "raise ImportError('no driver')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    play._mujoco_gl.cache_clear()
    try:
        assert play._mujoco_gl() == chosen
    finally:
        play._mujoco_gl.cache_clear()


# --- games ------------------------------------------------------------------------------------------------------------


def nim(tmp_path: Path) -> Path:
    return save(tmp_path / "elite", "games_for_tests:Nim-v0", 8, 3)


def test_a_game_is_printed_board_by_board(tmp_path: Path) -> None:
    folder = str(nim(tmp_path))
    answer = call(tmp_path, "play", folder, "--trust", "--opponent", "games_for_tests:first", "--seed", "3")
    assert answer.code == 0, answer.err
    boards = [line for line in answer.out.splitlines() if set(line) == {"|"}]
    assert boards[0] in ("|||||||", "||||||"), "as second player the policy sees what one stick less leaves"
    assert [len(board) for board in boards] == sorted({len(board) for board in boards}, reverse=True)
    assert "the policy is player " in answer.out
    assert "seed 3: return " in answer.out
    other = call(tmp_path, "play", folder, "--trust", "--opponent", str(tmp_path / "nobody"))
    assert (other.code, "nobody" in other.err) == (66, True)
    solo = call(tmp_path, "play", str(save(tmp_path / "pole", "CartPole-v1", 4)), "--opponent", "random")
    assert (solo.code, "--opponent is for games of several players" in solo.err) == (64, True)


def test_a_game_is_filmed_as_pictures_of_its_text(tmp_path: Path) -> None:
    film = tmp_path / "nim.gif"
    answer = call(tmp_path, "play", str(nim(tmp_path)), "--trust", "--gif", str(film))
    assert answer.code == 0, answer.err
    with Image.open(film) as image:
        assert image.is_animated
        first = np.asarray(image.convert("L"), np.int64)
        image.seek(image.n_frames - 1)
        last = np.asarray(image.convert("L"), np.int64)
    assert (first < 128).sum() > (last < 128).sum() == 0, "the sticks are gone at the end"


def test_letters_that_a_font_lacks_become_question_marks() -> None:
    assert np.array_equal(board.picture(["♜x"], 4, 1), board.picture(["?x"], 4, 1))
    assert not np.array_equal(board.picture(["x"], 4, 1), board.picture(["o"], 4, 1))
