"""A policy at play: frames of an episode, a GIF, an MP4, or a window to watch."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from evopipe.envs.make import ActionSpace, make_env
from evopipe.envs.observations import ObservationSpace
from evopipe.errors import DataError, EnvironmentFailed, EvopipeError, UsageError
from evopipe.policy import Policy
from evopipe.schema.blocks import EnvConfig
from evopipe.storage import safeio

if TYPE_CHECKING:
    import gymnasium
    import numpy.typing as npt
    from PIL import Image

FPS = 30
"""Frames a second where the environment's metadata names no `render_fps`."""

LIMIT = 10_000
"""Steps of an episode where neither the environment nor the caller sets a limit."""

_GIF_WIDTH, _GIF_FPS = 400, 30
_UNSEEN = ("dummy", "offscreen", "evdev")
_SILENT = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}


class CannotRender(EnvironmentFailed):
    """The environment cannot draw itself in the way that is asked for."""


@dataclass(frozen=True)
class Playback:
    """One episode, drawn.

    Attributes:
        frames: `[H, W, 3]` uint8 each: the first state, then one a step.
        rewards: one a step.
        fps: frames a second at the environment's own speed.
        terminated: whether the episode reached an end state; False where a time limit or `max_steps` cut it.
    """

    frames: list[npt.NDArray[np.uint8]]
    rewards: list[float]
    fps: int
    terminated: bool

    @property
    def total(self) -> float:
        """The undiscounted return."""
        return sum(self.rewards)


@dataclass(frozen=True)
class Score:
    """How one watched episode ended: its seed, undiscounted return, and length in steps."""

    seed: int
    total: float
    steps: int


def play(policy: Policy, seed: int = 0, max_steps: int | None = None) -> Playback:
    """Play one greedy episode and draw every state, without a display.

    Args:
        policy: an exported policy; its `policy.json` names the environment.
        seed: of the episode.
        max_steps: step cap; None: the environment's own, or `LIMIT`.

    Raises:
        CannotRender: the environment has no render mode `rgb_array`, or draws something else than `[H, W, 3]` uint8.
        ParamsError: the environment is unknown or its package is not installed.
        DataError: the policy does not fit the environment.
        EnvironmentFailed: the environment raised.
    """
    cfg = environment_of(policy)
    with _without_display(), _opened(cfg, policy, "rgb_array") as env:
        played = [(_draw(env, cfg), moment) for moment in _episode(env, cfg, policy, seed, max_steps)]
        return Playback(
            frames=[frame for frame, _ in played],
            rewards=[moment.reward for _, moment in played[1:]],
            fps=_fps(env),
            terminated=played[-1][1].terminated,
        )


def watch(
    policy: Policy,
    cfg: EnvConfig,
    screens: Sequence[Screen] = (),
    episodes: int = 1,
    seed: int = 0,
    max_steps: int | None = None,
    tell: Callable[[Score], None] | None = None,
) -> list[Score]:
    """Play greedy episodes in a window or onto screens.

    Args:
        policy: who plays.
        cfg: where.
        screens: what receives the frames; none: a window, at the environment's own speed.
        episodes: how many; their seeds are `seed`, `seed + 1`, …
        seed: of the first.
        max_steps: step cap of an episode; None: the environment's own, or `LIMIT`.
        tell: called with each score as soon as it is known.

    Returns:
        one score an episode; fewer where the window was closed.

    Raises:
        UsageError: there is no display to open a window on.
        DiskError: a screen's file cannot be written.
        EvopipeError: as `play`.
    """
    scores: list[Score] = []
    display = _without_display() if screens else contextlib.nullcontext()
    with contextlib.ExitStack() as stack, display, _opened(cfg, policy, "rgb_array" if screens else "human") as env:
        for screen in screens:
            stack.callback(screen.close)
            screen.begin(_fps(env))
        for number in range(seed, seed + episodes):
            score = _watch_one(env, cfg, policy, screens, number, max_steps)
            if score is None:
                break
            scores.append(score)
            if tell is not None:
                tell(score)
        for screen in screens:
            screen.save()
    return scores


def _watch_one(
    env: gymnasium.Env[Any, Any],
    cfg: EnvConfig,
    policy: Policy,
    screens: Sequence[Screen],
    seed: int,
    max_steps: int | None,
) -> Score | None:
    """Play one episode; None where its window was closed."""
    rewards = []
    for moment in _episode(env, cfg, policy, seed, max_steps):
        if screens:
            frame = _draw(env, cfg)
            for screen in screens:
                screen.show(frame)
        elif _window_closed():
            return None
        rewards.append(moment.reward)
    return Score(seed, sum(rewards), len(rewards) - 1)


def environment_of(policy: Policy, env_id: str | None = None, kwargs: Mapping[str, Any] | None = None) -> EnvConfig:
    """Return the environment that a policy was trained in, or another one.

    Args:
        policy: its `policy.json` names its own environment.
        env_id: another environment.
        kwargs: other arguments; None: the policy's own, or none where `env_id` is another environment.

    Raises:
        DataError: the policy does not name its environment.
        UsageError: `env_id` or `kwargs` cannot be used.
    """
    about = policy.about.get("env")
    try:
        own = EnvConfig(id=about["id"], kwargs=about["kwargs"])  # type: ignore[index]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError("policy.json: names no environment (`env`: `id`, `kwargs`); export it again") from error
    if kwargs is None:
        kwargs = own.kwargs if env_id in (None, own.id) else {}
    try:
        return EnvConfig(id=own.id if env_id is None else env_id, kwargs=dict(kwargs))
    except ValueError as error:
        raise UsageError(f"the environment cannot be used: {error}") from error


def has_display() -> bool:
    """Whether a window could be opened here."""
    if os.environ.get("SDL_VIDEODRIVER") in _UNSEEN:
        return False
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


# --- the episode ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Moment:
    reward: float
    terminated: bool


def _episode(
    env: gymnasium.Env[Any, Any], cfg: EnvConfig, policy: Policy, seed: int, max_steps: int | None
) -> Iterator[_Moment]:
    """Play one episode: a moment after the reset and one after each step."""
    with _explained(cfg):
        obs, info = env.reset(seed=seed)
    yield _Moment(0.0, False)
    memory = None
    for _ in range(max_steps or LIMIT):
        action, memory = policy.step(obs, memory, info.get("action_mask"))
        action = int(action) if policy.action_space.kind == "discrete" else action
        with _explained(cfg):
            obs, reward, terminated, truncated, info = env.step(action)
            moment = _Moment(float(reward), bool(terminated))
        yield moment
        if terminated or truncated:
            return


@contextlib.contextmanager
def _explained(cfg: EnvConfig) -> Iterator[None]:
    """Turn what an environment raises into a sentence."""
    try:
        yield
    except EvopipeError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        if "video device" in text or "x11 not available" in text or "wayland not available" in text:
            raise UsageError(f"play: no window can be opened ({text}); write a file with --gif or --mp4") from error
        raise EnvironmentFailed(
            f"environment {cfg.id!r} raised {type(error).__name__} while the policy played: {text}; "
            f"try `evopipe env check {cfg.id}`"
        ) from error


@contextlib.contextmanager
def _opened(cfg: EnvConfig, policy: Policy, mode: str) -> Iterator[gymnasium.Env[Any, Any]]:
    """The environment in a render mode, closed at the end."""
    env = _make(cfg, mode)
    try:
        _check_fit(env, policy, cfg)
        yield env
    finally:
        with contextlib.suppress(Exception):  # a failure to close a window loses nothing
            env.close()


def _make(cfg: EnvConfig, mode: str) -> gymnasium.Env[Any, Any]:
    """Construct the environment; a window of an environment that only gives frames is Gymnasium's."""
    plain = make_env(cfg)
    modes = tuple(plain.metadata.get("render_modes") or ())
    plain.close()
    if mode in modes:
        return make_env(cfg, mode)
    if "rgb_array" not in modes:
        raise CannotRender(
            f"environment {cfg.id!r} cannot draw itself (its metadata lists the render modes {list(modes)}); "
            "give it the mode 'rgb_array': take `render_mode` in the constructor, and let render() return an "
            "array [H, W, 3] of uint8"
        )
    from gymnasium.wrappers import HumanRendering

    env = make_env(cfg, "rgb_array")
    env.metadata = {**env.metadata, "render_modes": [*modes], "render_fps": _fps(env)}  # what the window needs
    return HumanRendering(env)


def _check_fit(env: gymnasium.Env[Any, Any], policy: Policy, cfg: EnvConfig) -> None:
    actions = ActionSpace.of(env.action_space)
    found = ObservationSpace.of(env.observation_space).size, actions.size
    expected = policy.observations, policy.actions
    if found != expected:
        raise DataError(
            f"environment {cfg.id!r} has {found[0]} observations and {found[1]} actions, the policy {expected[0]} "
            f"and {expected[1]}; play it in the environment that it was trained in"
        )
    if actions.kind != policy.action_space.kind:
        raise DataError(
            f"environment {cfg.id!r} has {actions.kind} actions, the policy {policy.action_space.kind} ones; play it "
            "in the environment that it was trained in"
        )


def _fps(env: gymnasium.Env[Any, Any]) -> int:
    fps = env.metadata.get("render_fps")
    return max(1, round(fps)) if isinstance(fps, int | float) and fps > 0 else FPS


def _draw(env: gymnasium.Env[Any, Any], cfg: EnvConfig) -> npt.NDArray[np.uint8]:
    """One frame `[H, W, 3]`, a copy: some environments draw into the same array again."""
    with _explained(cfg):
        frame = np.array(env.render())
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8 or not frame.size:
        raise CannotRender(
            f"environment {cfg.id!r}: render() gave {frame.dtype} of shape {list(frame.shape)}; "
            "return an array [H, W, 3] of uint8"
        )
    return frame


@contextlib.contextmanager
def _without_display() -> Iterator[None]:
    """Let SDL, in which many environments draw, start without display and sound."""
    before = {name: os.environ.get(name) for name in _SILENT}
    os.environ.update(_SILENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _window_closed() -> bool:
    """Whether someone closed pygame's window. Environments only pump its events; the wish stays in the queue.

    Raises:
        UsageError: there is no window: SDL draws into memory where it finds no display, and says nothing.
    """
    pygame = sys.modules.get("pygame")
    if pygame is None or not pygame.display.get_init():  # the environment draws by other means
        return False
    if pygame.display.get_driver() in _UNSEEN:
        raise UsageError("play: no window can be opened on the display named here; write a file with --gif or --mp4")
    return bool(pygame.event.peek(pygame.QUIT))


# --- files ------------------------------------------------------------------------------------------------------------


class Screen(Protocol):
    """Receives frames: `begin` once, `show` each, `save` after the last; `close` always."""

    def begin(self, fps: int) -> None: ...
    def show(self, frame: npt.NDArray[np.uint8]) -> None: ...
    def save(self) -> None: ...
    def close(self) -> None: ...


@dataclass
class Gif:
    """An animated GIF at most 400 pixels wide. Its clock ticks 100 times a second and viewers slow down what is too
    fast for them, so frames beyond 30 a second are left out."""

    path: Path
    _images: list[Image.Image] = field(default_factory=list)
    _fps: int = FPS
    _every: int = 1
    _seen: int = 0

    def begin(self, fps: int) -> None:
        """Take the number of frames a second."""
        self._fps, self._every = fps, -(-fps // _GIF_FPS)

    def show(self, frame: npt.NDArray[np.uint8]) -> None:
        """Keep a frame `[H, W, 3]`, or leave it out."""
        from PIL import Image

        self._seen += 1
        if (self._seen - 1) % self._every:
            return
        image = Image.fromarray(frame)
        if image.width > _GIF_WIDTH:
            height = max(1, round(image.height * _GIF_WIDTH / image.width))
            image = image.resize((_GIF_WIDTH, height), Image.Resampling.BILINEAR)
        self._images.append(image.quantize(128, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE))

    def save(self) -> None:
        """Write the file.

        Raises:
            DiskError: it cannot be written.
        """
        buffer = io.BytesIO()
        first, *rest = self._images
        # The times of the frames are rounded, not the gaps: errors do not add up.
        times = [round(100 * self._every * number / self._fps) for number in range(len(self._images) + 1)]
        gaps = [10 * (b - a) for a, b in itertools.pairwise(times)]
        first.save(buffer, "GIF", save_all=True, append_images=rest, duration=gaps, loop=0, optimize=False)
        safeio.write_bytes(self.path, buffer.getvalue())

    def close(self) -> None:
        """Nothing is open."""


class Mp4:
    """An H.264 film in full size, by the `ffmpeg` that imageio-ffmpeg brings.

    Raises:
        UsageError: the extra `video` is not installed.
    """

    def __init__(self, path: Path) -> None:
        try:
            import imageio_ffmpeg  # noqa: F401
        except ImportError:
            raise UsageError('MP4 needs the extra `video`: pip install "evopipe[video]"; GIF needs none') from None
        self.path, self._fps = path, FPS
        self._folder = tempfile.TemporaryDirectory(prefix="evopipe-film-")
        self._film: Any = None

    def begin(self, fps: int) -> None:
        """Take the number of frames a second."""
        self._fps = fps

    def show(self, frame: npt.NDArray[np.uint8]) -> None:
        """Hand a frame `[H, W, 3]` to the encoder."""
        height, width = frame.shape[:2]
        even = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")  # the codec halves both
        if self._film is None:
            self._film = self._encoder(even.shape[1], even.shape[0])
        self._film.send(np.ascontiguousarray(even))

    def _encoder(self, width: int, height: int) -> Any:
        import imageio_ffmpeg

        film = imageio_ffmpeg.write_frames(
            str(Path(self._folder.name, "film.mp4")),
            (width, height),
            fps=self._fps,
            macro_block_size=1,
            ffmpeg_log_level="error",
            output_params=["-movflags", "+faststart"],
        )
        film.send(None)
        return film

    def save(self) -> None:
        """Write the file.

        Raises:
            DiskError: it cannot be written.
        """
        if self._film is not None:
            self._film.close()
        safeio.write_bytes(self.path, Path(self._folder.name, "film.mp4").read_bytes())

    def close(self) -> None:
        """End the encoder and remove what it left."""
        if self._film is not None:
            self._film.close()
        self._folder.cleanup()
