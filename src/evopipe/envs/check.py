"""The checks of `evopipe env check ID`. Each finding is one sentence."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch

from evopipe.envs.compiled import CompiledPool
from evopipe.envs.make import close, guard, make_env, opened
from evopipe.envs.pool import EnvPool
from evopipe.envs.rows import RowStep
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.envs.team import TeamEnv, TeamSpace
from evopipe.errors import EnvironmentFailed, ParamsError, text_of
from evopipe.schema.declare import parsed
from evopipe.schema.env import EnvConfig
from evopipe.watchdog import Hung

_STEPS = 500
_EPISODES = 4
_CYCLES = 50  # steps that PettingZoo's own test takes of an episode
_SEED = 20_011
_KEPT = 1 << 26  # numbers of observations at most that are kept, where 50 steps are not more
_NAMES_TWIN = re.compile(r":|-v\d+$")  # an id of Gymnasium
_TWIN_STEPS, _CLOSE = 2000, 1e-5
_IRRELEVANT = (
    "value is infinity",
    "value is -infinity",
    "is different from the unwrapped version",
    "is out of date",
    "old environment creation API",  # PettingZoo's, of the modules that it offers itself
    "without specifying any render mode",
)


def check(env_id: str, kwargs: dict[str, Any], wrappers: Sequence[Any] = (), source: str | None = None) -> list[str]:
    """Try an environment in random play, and return the findings, each one sentence.

    A finding begins with `error:` if evopipe cannot train in the environment, and with `warning:` if it can.

    Args:
        env_id: the environment's id, as `env.id`.
        kwargs: arguments of the environment, as `env.kwargs`.
        wrappers: wrappers, as `env.wrappers`.
        source: a C file that implements the environment, as `env.source`; None for an environment in Python.

    Raises:
        ParamsError: the id or the arguments are unknown.
        EnvironmentFailed: the environment's constructor raised an exception.
    """
    cfg = described(env_id, kwargs, wrappers, source)
    env = make_env(cfg)
    try:
        unserved = [*_spaces(env)]
        findings = [*unserved, *_library(env, cfg)]
    finally:
        close(env)
    if not unserved:
        findings.extend(_episodes(cfg))
        if source is not None and _NAMES_TWIN.search(env_id):
            findings.extend(_unlike_twin(cfg))
    return list(dict.fromkeys(findings))


def described(
    env_id: str, kwargs: dict[str, Any], wrappers: Sequence[Any] = (), source: str | None = None
) -> EnvConfig:
    """Return the block `env` of a `params.yaml` with these values.

    Args:
        env_id: the environment's id, as `env.id`.
        kwargs: arguments of the environment, as `env.kwargs`.
        wrappers: wrappers, as `env.wrappers`.
        source: a C file that implements the environment, as `env.source`; None for an environment in Python.

    Raises:
        ParamsError: a value cannot be used.
    """
    values = {"id": env_id, "kwargs": kwargs, "wrappers": wrappers, "source": source}
    return parsed(EnvConfig, values | ({} if source is None else {"backend": "c"}), "env.")


def _spaces(env: gymnasium.Env[Any, Any]) -> Iterator[str]:
    seen, acted = partial(ObservationSpace.of, env.observation_space), partial(ActionSpace.of, env.action_space)
    for served in (partial(TeamSpace.of, env),) if isinstance(env, TeamEnv) else (seen, acted):
        try:
            served()
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
                    _pettingzoos(env)
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


def _pettingzoos(env: TeamEnv) -> None:
    """Run PettingZoo's own test, which warns, and raises. It knows no masks but in observations, and no turns."""
    from pettingzoo.test import parallel_api_test

    _, infos = env.reset(seed=_SEED)
    ruled = {"action_mask", "env_defined_actions"}
    if env.turn is not None or any(ruled & {*(info or ())} for info in infos.values()):
        return
    for number, agent in enumerate(env.ids):
        env.parallel.action_space(agent).seed(_SEED + number)
    with contextlib.redirect_stdout(io.StringIO()):
        parallel_api_test(env.parallel, num_cycles=_CYCLES)


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
        yield from _values(pool, first)
        yield from _ends(pool, first, lengths) if pool.team is None else _team_ends(first, lengths)
        yield from _determinism(pool, first)
    except EnvironmentFailed as error:
        yield f"error: {error}"
    finally:
        pool.close()


def _roll(pool: EnvPool, row: int) -> tuple[list[RowStep], list[int]]:
    """Play random legal actions in one row: the steps, and the lengths of the episodes that ended."""
    rng, rows = np.random.default_rng(_SEED), np.array([row])
    steps: list[RowStep] = []
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


def _values(pool: EnvPool, steps: list[RowStep]) -> Iterator[str]:
    """Look at what random episodes gave each agent, or the only one."""
    team = pool.team
    obs, reward, mask = (np.concatenate([getattr(x, name) for x in steps]) for name in ("obs", "reward", "mask"))
    if team is None:
        able = np.concatenate([~step.broken for step in steps]) | pool.actions.possible(mask)
        obs, reward, able, alive = obs[:, None], reward[:, None], able[:, None], np.ones((len(obs), 1), bool)
        spaces, observations, who, gave = [pool.observation_space], [pool.observations], [""], [" "]
    else:
        able = team.action.possible(mask.reshape(-1, mask.shape[2])).reshape(reward.shape)
        alive = np.concatenate([step.alive for step in steps if step.alive is not None])  # [T, K]
        alive |= np.concatenate([step.terminated | step.truncated for step in steps])
        spaces = [pool.env(0).observation_space[agent] for agent in team.ids]  # type: ignore[index]
        observations, who = [*team.observations], [f" of agent {agent!r}" for agent in team.ids]
        gave = [f" agent {agent!r} " for agent in team.ids]
    for t, k in _first(~np.isfinite(obs).all(axis=2)):
        yield f"error: step {t + 1} gave{gave[k]}an observation that is not finite"
    for t, k in _first(~np.isfinite(reward)):
        yield f"error: step {t + 1} gave{gave[k]}the reward {reward[t, k]}"
    for _, k in _first(~able):
        mask_of = "info['action_mask']" if team is None else "action_mask"
        yield f"error: {mask_of} left{gave[k]}no legal action in a running episode"
    for k, (seen, space) in enumerate(zip(observations, spaces, strict=True)):
        if not alive[:, k].any():
            yield f"warning:{gave[k]}never acted within {len(steps)} random steps"
        if seen.plain and isinstance(space, gymnasium.spaces.Box):
            own = obs[:, k, : seen.size]
            outside = ((own < space.low.astype(np.float32)) | (own > space.high.astype(np.float32))) & alive[:, [k]]
            for t, i in _first(outside):
                yield (
                    f"warning: element {i} of an observation{who[k]} was {own[t, i]:g}, outside its declared bounds "
                    f"[{space.low[i]:g}, {space.high[i]:g}]"
                )


def _ends(pool: EnvPool, steps: list[RowStep], lengths: list[int]) -> Iterator[str]:
    """Look for a time limit that calls itself a termination: learners would not bootstrap from its last state."""
    if any((step.terminated & step.truncated).any() for step in steps):
        yield "warning: a step was terminated and truncated at once; it is learned from as terminated"
    if not lengths and pool.limit is not None:
        yield (
            f"warning: no episode ended within {len(steps)} random steps and there is no time limit; "
            f"register it with max_episode_steps, or episodes are cut after {pool.limit} steps (env.step_limit)"
        )
    terminated = sum(int(step.terminated.sum()) for step in steps)
    if len(lengths) == _EPISODES == terminated and len(set(lengths)) == 1 and lengths[0] > 1:
        yield (
            f"warning: each of {_EPISODES} random episodes was terminated at step {lengths[0]}; "
            "if this is a time limit, return truncated instead of terminated"
        )


def _team_ends(steps: list[RowStep], lengths: list[int]) -> Iterator[str]:
    """Look for episodes without an end, and for a time limit that calls itself a termination."""
    if any((step.terminated & step.truncated).any() for step in steps):
        yield "warning: an agent was terminated and truncated at once; it is learned from as terminated"
    if not lengths:
        yield (
            f"warning: no episode ended within {len(steps)} random steps; let the environment truncate all agents "
            "after some number of steps, which PettingZoo's call max_cycles; else episodes may be cut by env.step_limit"
        )
    last = [step for step in steps if step.over[0]]
    limited = len(lengths) == _EPISODES and len({*lengths}) == 1 and lengths[0] > 1
    if limited and all(step.terminated.any() and not step.truncated.any() for step in last):
        yield (
            f"warning: each of {_EPISODES} random episodes was terminated at step {lengths[0]}; "
            "if this is a time limit, return truncations instead of terminations"
        )


def _determinism(pool: EnvPool, first: list[RowStep]) -> Iterator[str]:
    """A resumed run replays its running episodes: needs equal episodes from equal seeds, in a used environment too."""
    why = "a killed run will not continue bit for bit"
    if (t := _differs(first, _roll(pool, 1)[0])) is not None:
        yield f"warning: two environments with one seed and the same actions differ at step {t}: {why}"
    elif (t := _differs(first, _roll(pool, 0)[0])) is not None:
        yield f"warning: an episode depends on what its environment played before (step {t}), not on its seed: {why}"


def _differs(first: list[RowStep], second: list[RowStep]) -> int | None:
    """Return the first step at which two rolls are not bit-identical."""
    for t, (x, y) in enumerate(zip(first, second, strict=False), start=1):
        if any(a.tobytes() != b.tobytes() for a, b in zip(x.parts, y.parts, strict=True)):
            return t
    return None if len(first) == len(second) else min(len(first), len(second)) + 1


def _unlike_twin(cfg: EnvConfig) -> Iterator[str]:
    """Compare a user's environment in C with that of `env.id` in Python: spaces, limits, steps from equal states."""
    named = cfg.model_copy(update={"source": None, "backend": "sync"})
    pool = CompiledPool(cfg, 1, torch.device("cpu"))
    with opened(named) as twin:
        seen, acted = ObservationSpace.of(twin.observation_space), ActionSpace.of(twin.action_space)
        most, solved = (getattr(twin.spec, name, None) for name in ("max_episode_steps", "reward_threshold"))
        pairs = {
            "numbers of an observation": (pool.observations.size, seen.size),
            "kind of actions": (pool.actions.kind, acted.kind),
            "choices or numbers of an action": (pool.actions.size, acted.size),
            "bounds of an action": (str(pool.actions.bounds), str(acted.bounds)),
            "time limit": (None if pool.limit else pool.max_steps, most),
            "reward threshold": (pool.reward_threshold, solved),
        }
        unlike = [
            f"warning: {what}: {own} in C, {theirs} in {cfg.id}"
            for what, (own, theirs) in pairs.items()
            if own != theirs
        ]
        yield from unlike
        if not (unlike or pool.draws_in_steps):
            yield from _steps_unlike(pool, twin, seen, acted)
        elif not unlike:
            yield "warning: a step draws random numbers: steps were not compared with Gymnasium's"


def _steps_unlike(
    pool: CompiledPool, twin: gymnasium.Env[Any, Any], seen: ObservationSpace, acted: ActionSpace
) -> Iterator[str]:
    """Step both from the states that the twin comes to, and tell the first difference."""
    rng, row = np.random.default_rng(_SEED), np.zeros(1, np.int64)
    twin.reset(seed=_SEED)
    for n in range(_TWIN_STEPS):
        inner: Any = twin.unwrapped
        state = getattr(inner, "state", getattr(inner, "s", None))
        pool.reset(row, row + n)
        if not pool.place(state):
            yield (
                "warning: steps were not compared, for the C file has no .place, or the environment in Python neither "
                "`state` nor `s` of numbers"
            )
            return
        before, action = np.asarray(state).tolist(), np.array([acted.sample(np.ones(acted.size, np.bool_), rng)])
        step = pool.step(torch.from_numpy(action))
        obs, reward, terminated, truncated, _ = twin.step(acted.own(action)[0])
        own = np.concatenate([np.ravel(part.numpy()) for part in step[:3]])
        theirs = np.array([*seen.row(obs), reward, terminated])
        for k, _ in _first(~np.isclose(own, theirs, _CLOSE, _CLOSE)[:, None]):
            what = f"observation's number {k}" if k < seen.size else ("reward", "end")[k - seen.size]
            yield (
                f"error: from the state {before} by the action {acted.own(action)[0].tolist()} the "
                f"{what} is {own[k]:g} in C, {theirs[k]:g} in Python"
            )
            return
        if terminated or truncated:
            twin.reset(seed=_SEED + n)


def _first(flags: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Where the first flag stands, if one does."""
    if flags.any():
        t, place = np.argwhere(flags)[0].tolist()
        yield t, place
