"""What `evopipe env check ID` finds: each finding is one sentence."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from evopipe.envs import check_team
from evopipe.envs.make import close, guard, make_env
from evopipe.envs.pool import EnvPool
from evopipe.envs.rows import Step
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.envs.team import TeamEnv
from evopipe.errors import EnvironmentFailed, ParamsError, text_of
from evopipe.schema.blocks import EnvConfig
from evopipe.schema.declare import explain
from evopipe.watchdog import Hung

_STEPS = 500
_EPISODES = 4
_SEED = 20_011
_KEPT = 1 << 26  # numbers of observations at most that are kept, where 50 steps are not more
_IRRELEVANT = (
    "value is infinity",
    "value is -infinity",
    "is different from the unwrapped version",
    "is out of date",
    "old environment creation API",  # PettingZoo's, of the modules that it offers itself
    "without specifying any render mode",
)


def check(env_id: str, kwargs: dict[str, Any], wrappers: Sequence[Any] = ()) -> list[str]:
    """Try an environment. Each finding begins with `error:` (evopipe cannot train in it) or `warning:` (it can). Raises
    ParamsError if the id or the arguments are unknown; EnvironmentFailed if the constructor raised."""
    values = {"id": env_id, "kwargs": kwargs, "wrappers": wrappers}
    try:
        cfg = EnvConfig.model_validate(values)
    except ValidationError as error:
        found = explain(error, EnvConfig, values)
        raise ParamsError("\n".join(f"env.{'.'.join(map(str, keys))}: {said}" for keys, said in found)) from None
    env = make_env(cfg)
    try:
        findings = [*(check_team.spaces(env) if isinstance(env, TeamEnv) else _spaces(env)), *_library(env, cfg)]
    finally:
        close(env)
    if not any("is not served" in finding for finding in findings):
        findings.extend(_episodes(cfg))
    return list(dict.fromkeys(findings))


def _spaces(env: gymnasium.Env[Any, Any]) -> Iterator[str]:
    for served, space in ((ObservationSpace.of, env.observation_space), (ActionSpace.of, env.action_space)):
        try:
            served(space)
        except ParamsError as error:
            yield "error: " + str(error).removeprefix("env.id: ")


def _library(env: gymnasium.Env[Any, Any], cfg: EnvConfig) -> Iterator[str]:
    """Gymnasium's own checker, or PettingZoo's; its warnings and assertions become sentences. Rendering is optional
    here."""
    from gymnasium.utils.env_checker import check_env

    failure, who = "", "PettingZoo's test" if isinstance(env, TeamEnv) else "Gymnasium's checker"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with guard(cfg):
                if isinstance(env, TeamEnv):
                    check_team.pettingzoos(env, _SEED)
                else:
                    check_env(env.unwrapped, skip_render_check=True)
        except (Exception, SystemExit) as error:
            failure = _plain(text_of(error)) or type(error).__name__
        except Hung as hung:
            failure = f"the environment {hung}"
    for text in (_plain(warning.message) for warning in caught):
        if not any(part in text for part in _IRRELEVANT):
            yield f"warning: {who} says: {text}"
    if failure:
        yield f"warning: {who} stopped: {failure}"


def _plain(message: object) -> str:
    text = " ".join(str(message).split())
    for noise in ("\x1b[33m", "\x1b[31m", "\x1b[0m", "WARN: "):
        text = text.replace(noise, "")
    return text


def _episodes(cfg: EnvConfig) -> Iterator[str]:
    """Roll random episodes as training does, and play them again to see whether they come out the same."""
    pool = EnvPool(cfg, 2, what="checked")
    try:
        first, lengths = _roll(pool, 0)
        if pool.team is not None:
            yield from check_team.values(pool, pool.team, first)
            yield from check_team.ends(first, lengths, _EPISODES)
        else:
            yield from _values(pool, first)
            yield from _ends(pool, first, lengths)
        yield from _determinism(pool, first)
    except EnvironmentFailed as error:
        yield f"error: {error}"
    finally:
        pool.close()


def _roll(pool: EnvPool, row: int) -> tuple[list[Step], list[int]]:
    """Play random legal actions in one row: the steps, and the lengths of the episodes that ended."""
    rng, rows = np.random.default_rng(_SEED), np.array([row])
    steps: list[Step] = []
    lengths: list[int] = []
    pool.reset(rows, np.array([_SEED]))
    most = min(_STEPS, max(50, _KEPT // pool.obs[row].size))
    while len(steps) < most and len(lengths) < _EPISODES:
        if pool.team is None:
            action = pool.actions.sample(pool.mask[row], rng)
        else:
            action = np.array([pool.actions.sample(mask, rng) for mask in pool.mask[row]])
        steps.append(pool.step(np.array([action]), rows))
        if steps[-1].over[0]:
            lengths.append(int(pool.episode_length[row]))
            pool.reset(rows, np.array([_SEED + len(lengths)]))
    return steps, lengths


def _values(pool: EnvPool, steps: list[Step]) -> Iterator[str]:
    obs = np.concatenate([step.obs for step in steps])  # [T, O]
    reward = np.concatenate([step.reward for step in steps])  # [T]
    if not np.isfinite(obs).all():
        yield f"error: step {_first(~np.isfinite(obs).all(axis=1))} gave an observation that is not finite"
    if not np.isfinite(reward).all():
        yield f"error: step {_first(~np.isfinite(reward))} gave the reward {reward[~np.isfinite(reward)][0]}"
    if any((step.broken & ~pool.actions.possible(step.mask)).any() for step in steps):
        yield "error: info['action_mask'] left no legal action in a running episode"
    space = pool.observation_space
    if pool.observations.plain and isinstance(space, gymnasium.spaces.Box):
        outside = (obs < space.low.astype(np.float32)) | (obs > space.high.astype(np.float32))
        if outside.any():
            t, i = np.argwhere(outside)[0]
            yield (
                f"warning: element {i} of an observation was {obs[t, i]:g}, "
                f"outside its declared bounds [{space.low[i]:g}, {space.high[i]:g}]"
            )


def _ends(pool: EnvPool, steps: list[Step], lengths: list[int]) -> Iterator[str]:
    """Look for a time limit that calls itself a termination: learners would not bootstrap from its last state."""
    if any((step.terminated & step.truncated).any() for step in steps):
        yield "warning: a step was terminated and truncated at once; it is learned from as terminated"
    spec = pool.env(0).spec
    if not lengths and (spec is None or spec.max_episode_steps is None):
        yield (
            f"warning: no episode ended within {len(steps)} random steps and there is no time limit; "
            "register it with max_episode_steps"
        )
    terminated = sum(int(step.terminated.sum()) for step in steps)
    if len(lengths) == _EPISODES == terminated and len(set(lengths)) == 1 and lengths[0] > 1:
        yield (
            f"warning: each of {_EPISODES} random episodes was terminated at step {lengths[0]}; "
            "if this is a time limit, return truncated instead of terminated"
        )


def _determinism(pool: EnvPool, first: list[Step]) -> Iterator[str]:
    """A resumed run replays its running episodes: needs equal episodes from equal seeds, in a used environment too."""
    why = "a killed run will not continue bit for bit"
    if (t := _differs(first, _roll(pool, 1)[0])) is not None:
        yield f"warning: two environments with one seed and the same actions differ at step {t}: {why}"
    elif (t := _differs(first, _roll(pool, 0)[0])) is not None:
        yield f"warning: an episode depends on what its environment played before (step {t}), not on its seed: {why}"


def _differs(first: list[Step], second: list[Step]) -> int | None:
    """Return the first step at which two rolls are not bit-identical."""
    for t, (x, y) in enumerate(zip(first, second, strict=False), start=1):
        if any(a.tobytes() != b.tobytes() for a, b in zip(x.parts, y.parts, strict=True)):
            return t
    return None if len(first) == len(second) else min(len(first), len(second)) + 1


def _first(flags: npt.NDArray[np.bool_]) -> int:
    return int(np.argmax(flags)) + 1
