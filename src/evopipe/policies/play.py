"""Playing a policy: returns of episodes, the frames of one episode, films, or a window to watch."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from evopipe.envs.make import close, guard, make_env, opened
from evopipe.errors import DataError, EnvironmentFailed, EvopipeError, UsageError, text_of
from evopipe.policies import board
from evopipe.policies.acting import Explained, Moment
from evopipe.schema.env import EnvConfig
from evopipe.watchdog import Hung

if TYPE_CHECKING:
    import gymnasium
    import numpy.typing as npt

    from evopipe.policies.film import Film


@runtime_checkable
class Actor(Protocol):
    """Protocol of a policy that can be played in environments: for one agent (`acting.Policy`) or a team.

    The methods `misfit` and `episode` are described in `acting.Policy`.

    Attributes:
        about: the content of the policy's `policy.json`.
    """

    about: dict[str, Any]

    def misfit(self, env: Any) -> str | None: ...
    def episode(self, env: Any, explained: Explained, begun: tuple[Any, Any], limit: int) -> Iterator[Moment]: ...


FPS = 30  # frames a second where the environment's metadata names no `render_fps`
LIMIT = 10_000  # steps of an episode where neither the environment nor the caller sets a limit
_UNSEEN = ("dummy", "offscreen", "evdev")  # video drivers of SDL without a window
_SILENT = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}
_GL = "MUJOCO_GL"
_UNSEEN_GL = (
    "egl",
    "osmesa",
)  # by what MuJoCo draws without a display: the driver of a GPU or Mesa's, or the CPU alone


@dataclass(frozen=True)
class _Playback:
    """One episode, drawn."""

    frames: list[npt.NDArray[np.uint8]]  # `[H, W, 3]` each: the first state, then one a step
    rewards: list[float]  # one a step
    fps: int  # frames a second at the environment's own speed
    terminated: bool  # whether it reached an end state; False if a time limit or `max_steps` cut it

    @property
    def total(self) -> float:
        """The undiscounted return."""
        return sum(self.rewards)


@dataclass(frozen=True)
class Score:
    """The outcome of one watched episode.

    Attributes:
        seed: the seed of the episode.
        total: the undiscounted return.
        steps: the number of steps.
    """

    seed: int
    total: float
    steps: int


def evaluate(
    policy: Actor, env: str | None = None, episodes: int = 100, seed: int = 0, max_steps: int | None = None,
    trust: bool = False,
) -> np.ndarray:  # fmt: skip
    """Play greedy episodes one after another, without rendering, and return their undiscounted returns `[n]`.

    Args:
        policy: a policy that `evopipe.load` returned, for one agent or a team.
        env: an id of Gymnasium, or `module:EnvId`; None for the environment in which the policy was trained.
        episodes: the number n of episodes.
        seed: the seed of the first episode; the following episodes have the following numbers.
        max_steps: the most steps of an episode; None for the environment's own limit, or 10,000 if it has none.
        trust: whether code may run that only the policy's folder names: the module of a `module:EnvId`, or a C file.

    Raises:
        UsageError: the policy is a language model's, `episodes` is below 1, or the environment is not trusted.
        ParamsError: the environment is unknown or its package is not installed.
        DataError: the policy does not fit the environment.
        EnvironmentFailed: the environment raised an exception.

    Examples:
        >>> import evopipe
        >>> small = {"env": {"id": "CartPole-v1"}, "train": {"max_steps": 200, "evo_steps": 100, "eval_episodes": 2}}
        >>> policy = evopipe.train({**small, "evaluate": {"episodes": 4}}).policy
        >>> returns = evopipe.evaluate(policy, episodes=3)
        >>> returns.shape, bool(returns.min() > 0.0)
        ((3,), True)
    """
    if not isinstance(policy, Actor):
        raise UsageError(f"evaluate: a {type(policy).__name__} acts in no environment: call its own methods")
    if episodes < 1:
        raise UsageError(f"evaluate: episodes must be at least 1, got {episodes}")
    cfg = environment_of(policy, env, trust=trust)
    with _without_display(), _opened(cfg, policy, None) as opened:
        seeds = range(seed, seed + episodes)
        return np.array([sum(r for r, _ in _episode(opened, cfg, policy, each, max_steps)) for each in seeds])


def play(policy: Actor, seed: int = 0, max_steps: int | None = None, trust: bool = False) -> _Playback:
    """Play one greedy episode in the policy's own environment, and return a recording of it. No display is needed.

    The recording has `frames` (the first state, then the state after each step), `rewards`, `fps` (frames per second),
    `terminated` and `total` (the return).

    Args:
        policy: the policy, for one agent or a team.
        seed: the seed of the episode.
        max_steps: the most steps; None for the environment's own limit, or 10,000 if it has none.
        trust: whether code may run that only the policy's folder names: the module of a `module:EnvId`, or a C file.

    Raises:
        UsageError: the policy's environment is not trusted.
        ParamsError: the environment is unknown or its package is not installed.
        DataError: the policy does not fit the environment.
        EnvironmentFailed: the environment raised an exception, has no render mode `rgb_array`, or its images are not
            `[H, W, 3]` uint8.
    """
    cfg = environment_of(policy, trust=trust)
    with _without_display(), _opened(cfg, policy, "rgb_array") as env:
        played = [(_draw(env, cfg), *moment) for moment in _episode(env, cfg, policy, seed, max_steps)]
        frames, rewards, ended = map(list, zip(*played, strict=True))
        return _Playback(frames, rewards[1:], _fps(env), ended[-1])


def watch(
    policy: Actor,
    cfg: EnvConfig,
    films: Sequence[Film] = (),
    episodes: int = 1,
    seed: int = 0,
    max_steps: int | None = None,
    tell: Callable[[Score], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> list[Score]:
    """Play greedy episodes in a window, as text or into films, and return one score per episode.

    Args:
        policy: the policy, for one agent or a team.
        cfg: the environment's configuration, as `environment_of` returns it.
        films: a function for each film, such as `film.gif` with its path set. It takes the frames per second, and
            returns a context manager that yields a function to call with each frame. Without films, a window shows the
            environment at its own speed; one that only draws itself as text (`drawn_as_text`) has no window.
        episodes: the number of episodes; their seeds are `seed`, `seed + 1`, …
        seed: the seed of the first episode.
        max_steps: the most steps of an episode; None for the environment's own limit, or 10,000 if it has none.
        tell: a function that is called with the score after each episode.
        say: a function that is called with each text of an environment that draws itself as text, unless there are
            films. The first text of an episode of a game says which player the policy is.

    Returns:
        The scores; fewer than `episodes` if the window was closed.

    Raises:
        UsageError: there is no display, or a film needs a package that is not installed.
        DiskError: a film cannot be written.
        ParamsError, DataError, EnvironmentFailed: as for `play`.
    """
    scores: list[Score] = []
    with contextlib.ExitStack() as stack:
        if films:
            stack.enter_context(_without_display())
        env = stack.enter_context(_opened(cfg, policy, "rgb_array" if films else "human"))
        text = not films and env.render_mode == "ansi"
        shows = [stack.enter_context(film(_fps(env))) for film in films]
        for number in range(seed, seed + episodes):
            rewards: list[float] = []
            for reward, _ in _episode(env, cfg, policy, number, max_steps):
                if text and say is not None:
                    if not rewards and (seat := board.seated(env)):
                        say(seat)
                    say(f"{env.render()}\n")
                rewards.append(reward)
                if films:
                    frame = _draw(env, cfg)
                    for show in shows:
                        show(frame)
                elif not text and _window_closed():
                    return scores
            scores.append(Score(number, sum(rewards), len(rewards) - 1))
            if tell is not None:
                tell(scores[-1])
    return scores


def environment_of(
    policy: Actor, env_id: str | None = None, kwargs: Mapping[str, Any] | None = None, trust: bool = False
) -> EnvConfig:
    """Return the configuration of the environment in which to play a policy: that of its training, or another one.

    Args:
        policy: the policy.
        env_id: another environment; None for the one in which the policy was trained.
        kwargs: arguments of the environment's constructor that replace the configured ones; None to keep those.
        trust: whether code may run that is named by the policy's folder and not by the caller: the module of an id
            `module:EnvId` or of a wrapper, or a C file.

    Raises:
        DataError: the policy does not name its environment.
        UsageError: `env_id` or `kwargs` cannot be used, or the environment of the training needs `trust`.
    """
    about = policy.about.get("env")
    try:
        known = {"id": about["id"], "kwargs": about["kwargs"]}  # type: ignore[index]
        more = {"wrappers": about.get("wrappers", ())}  # type: ignore[union-attr]
        if "source" in about:  # type: ignore[operator]
            more |= {"source": about["source"], "backend": "c"}  # type: ignore[index]
        own = EnvConfig.model_validate({**known, **more})
    except (KeyError, TypeError, ValueError) as error:
        raise DataError("policy.json: names no environment (`env`: `id`, `kwargs`); export it again") from error
    another = env_id not in (None, own.id)
    named = [] if another else [*([] if env_id else [own.id]), *(wrapper.name for wrapper in own.wrappers)]
    if not trust and (foreign := next((name for name in named if ":" in name), None)):
        raise UsageError(
            f"policy.json names {foreign!r}, an environment or wrapper in the module {foreign.partition(':')[0]!r}, "
            "whose code would run; add --trust (trust=True) if this policy is your own or from someone you trust, or "
            "name another environment with --env"
        )
    if not (trust or another) and own.source is not None:
        raise UsageError(
            f"policy.json names the C file {own.source!r}, which would be compiled and run; add --trust (trust=True) "
            "if this policy is your own or from someone you trust, or name another environment with --env"
        )
    if another:
        own = EnvConfig(id=str(env_id))
    try:
        return own if kwargs is None else EnvConfig.model_validate({**own.model_dump(), "kwargs": dict(kwargs)})
    except ValueError as error:
        raise UsageError(f"the environment cannot be used: {error}") from error


def drawn_as_text(cfg: EnvConfig) -> bool:
    """Return whether an environment only draws itself as text, by the render mode `ansi`, as games do.

    Raises:
        ParamsError, EnvironmentFailed: the environment cannot be made.
    """
    with opened(cfg) as env:
        modes = env.metadata.get("render_modes") or ()
    return "ansi" in modes and not {"human", "rgb_array"} & {*modes}


def against(policy_folder: Path, cfg: EnvConfig, opponent: str) -> EnvConfig:
    """Return the configuration of a game with another opponent.

    Args:
        policy_folder: the folder of the policy, who is meant by `itself`.
        cfg: the game's configuration.
        opponent: `random`, `itself`, the folder of an elite, the file of an opponent, or `module:function`.

    Raises:
        UsageError: the environment is not a game of several players.
        ParamsError, MissingInputError, DataError, EnvironmentFailed: the game cannot be made with this opponent.
    """
    with opened(cfg) as env:
        kwargs = board.against(opponent, policy_folder, env, cfg.kwargs)
    found = cfg.model_copy(update={"kwargs": kwargs})
    with opened(found):  # what is wrong with the opponent is told before a film is begun
        return found


def has_display() -> bool:
    """Return whether a window can be opened on this machine."""
    if os.environ.get("SDL_VIDEODRIVER") in _UNSEEN:
        return False
    return _has_screen()


def _has_screen() -> bool:
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _episode(
    env: gymnasium.Env[Any, Any], cfg: EnvConfig, policy: Actor, seed: int, max_steps: int | None
) -> Iterator[Moment]:
    """Play one episode: after the reset and after each step, the reward and whether an end state is reached."""
    with _explained(cfg):
        obs, info = env.reset(seed=seed)
    yield 0.0, False
    yield from policy.episode(env, partial(_explained, cfg), (obs, info), max_steps or LIMIT)


@contextlib.contextmanager
def _explained(cfg: EnvConfig) -> Iterator[None]:
    try:
        with guard(cfg):
            yield
    except EvopipeError:
        raise
    except (Exception, SystemExit, Hung) as error:
        text = text_of(error)
        if "video device" in text or "x11 not available" in text or "wayland not available" in text:
            raise UsageError(f"play: no window can be opened ({text}); write a file with --gif or --mp4") from error
        if "OpenGL" in text and not _has_screen():
            why = (
                "MuJoCo draws by neither EGL nor OSMesa; install one of them (libegl1 with a driver, or libosmesa6),"
                " or set MUJOCO_GL to what is there"
            )
            if chosen := os.environ.get(_GL):
                why = f"MuJoCo cannot draw by {_GL}={chosen}; unset it, and EGL and OSMesa are tried"
            raise EnvironmentFailed(
                f"environment {cfg.id!r} cannot be drawn: there is no display here, and {why} ({text})"
            ) from error
        raise EnvironmentFailed(
            f"environment {cfg.id!r} raised {type(error).__name__} while the policy played: {text}; "
            f"try `evopipe env check {cfg.id}`"
        ) from error


@contextlib.contextmanager
def _opened(cfg: EnvConfig, policy: Actor, mode: str | None) -> Iterator[gymnasium.Env[Any, Any]]:
    env = make_env(cfg) if mode is None else _make(cfg, mode)
    try:
        if (wrong := policy.misfit(env)) is not None:
            raise DataError(f"environment {cfg.id!r} {wrong}")
        yield env
    finally:
        close(env)


def _make(cfg: EnvConfig, mode: str) -> gymnasium.Env[Any, Any]:
    """Construct the environment; a window of an environment that only gives frames is Gymnasium's."""
    plain = make_env(cfg)
    modes = tuple(plain.metadata.get("render_modes") or ())
    close(plain)
    if mode == "rgb_array":
        _draw_mujoco_unseen()
    if mode in modes:
        return make_env(cfg, mode)
    if "rgb_array" not in modes and "ansi" in modes:
        drawn = make_env(cfg, "ansi")
        return board.TextFrames(drawn) if mode == "rgb_array" else drawn
    if "rgb_array" not in modes:
        raise EnvironmentFailed(
            f"environment {cfg.id!r} cannot draw itself (its metadata lists the render modes {list(modes)}); give it "
            "the mode 'rgb_array': take `render_mode` in the constructor, and let render() return an array [H, W, 3] "
            "of uint8"
        )
    from gymnasium.wrappers import HumanRendering

    env = make_env(cfg, "rgb_array")
    env.metadata = {**env.metadata, "render_modes": [*modes], "render_fps": _fps(env)}  # what the window needs
    return HumanRendering(env)


def _fps(env: gymnasium.Env[Any, Any]) -> int:
    fps = env.metadata.get("render_fps")
    return max(1, round(fps)) if isinstance(fps, int | float) and fps > 0 else FPS


def _draw(env: gymnasium.Env[Any, Any], cfg: EnvConfig) -> npt.NDArray[np.uint8]:
    """One frame `[H, W, 3]`, a copy: some environments draw into the same array again."""
    with _explained(cfg):
        frame = np.array(env.render())
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8 or not frame.size:
        raise EnvironmentFailed(
            f"environment {cfg.id!r}: render() gave {frame.dtype} of shape {list(frame.shape)}; "
            "return an array [H, W, 3] of uint8"
        )
    return frame


@contextlib.contextmanager
def _without_display() -> Iterator[None]:
    """Let SDL, in which many environments draw, start without display and sound; see also `_draw_mujoco_unseen`."""
    names = (*_SILENT, _GL)
    before = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.update(_SILENT)
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(before)


def _draw_mujoco_unseen() -> None:
    """Set MUJOCO_GL where there is no display: MuJoCo's own choice is a window then, in which nothing can be drawn."""
    if "mujoco" in sys.modules and _GL not in os.environ and not _has_screen() and (found := _mujoco_gl()):
        os.environ[_GL] = found


@cache
def _mujoco_gl() -> str | None:
    """Return by what MuJoCo can draw here without a display, None if by nothing. Each is tried in a process of its own:
    OpenGL's bindings cannot change their platform once they are loaded."""
    for name in _UNSEEN_GL:
        program = f"from mujoco.{name} import GLContext; GLContext(8, 8).make_current()"
        with contextlib.suppress(subprocess.TimeoutExpired):
            tried = [sys.executable, "-c", program]
            if not subprocess.run(tried, env={**os.environ, _GL: name}, capture_output=True, timeout=60).returncode:
                return name
    return None


def _window_closed() -> bool:
    """Whether someone closed pygame's window. Environments only pump its events; the wish stays in the queue."""
    pygame = sys.modules.get("pygame")
    if pygame is None or not pygame.display.get_init():  # the environment draws by other means
        return False
    if pygame.display.get_driver() in _UNSEEN:  # SDL draws into memory where it finds no display, and says nothing
        raise UsageError("play: no window can be opened on the display named here; write a file with --gif or --mp4")
    return bool(pygame.event.peek(pygame.QUIT))
