"""What `evopipe env check ID` finds in a team: each finding is one sentence."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

import gymnasium
import numpy as np
import numpy.typing as npt

from evopipe.envs.pool import EnvPool
from evopipe.envs.rows import Step
from evopipe.envs.team import TeamEnv, TeamSpace
from evopipe.errors import ParamsError

_CYCLES = 50  # steps that PettingZoo's own test takes of an episode


def spaces(env: TeamEnv) -> Iterator[str]:
    """Look whether the agents' spaces are served."""
    try:
        TeamSpace.of(env)
    except ParamsError as error:
        yield "error: " + str(error).removeprefix("env.id: ")


def pettingzoos(env: TeamEnv, seed: int) -> None:
    """Run PettingZoo's own test, which warns, and raises. It knows no masks but in observations, and no turns."""
    from pettingzoo.test import parallel_api_test

    _, infos = env.reset(seed=seed)
    ruled = {"action_mask", "env_defined_actions"}
    if env.turn is not None or any(ruled & {*(info or ())} for info in infos.values()):
        return
    for number, agent in enumerate(env.ids):
        env.parallel.action_space(agent).seed(seed + number)
    with contextlib.redirect_stdout(io.StringIO()):
        parallel_api_test(env.parallel, num_cycles=_CYCLES)


def values(pool: EnvPool, team: TeamSpace, steps: list[Step]) -> Iterator[str]:
    """Look at what random episodes gave each agent."""
    obs = np.concatenate([step.obs for step in steps])  # [T, K, O]
    reward = np.concatenate([step.reward for step in steps])  # [T, K]
    for bad in _first(~np.isfinite(obs).all(axis=2)):
        yield f"error: step {bad[0] + 1} gave agent {team.ids[bad[1]]!r} an observation that is not finite"
    for bad in _first(~np.isfinite(reward)):
        yield f"error: step {bad[0] + 1} gave agent {team.ids[bad[1]]!r} the reward {reward[bad]}"
    mask = np.concatenate([step.mask for step in steps])  # [T, K, A]
    possible = team.action.possible(mask.reshape(-1, mask.shape[2])).reshape(reward.shape)
    for bad in _first(~possible):
        yield f"error: action_mask left agent {team.ids[bad[1]]!r} no legal action in a running episode"
    env = pool.env(0)
    alive = np.concatenate([step.alive for step in steps if step.alive is not None])  # [T, K]
    shown = alive | np.concatenate([step.terminated | step.truncated for step in steps])
    for place, (agent, seen) in enumerate(zip(team.ids, team.observations, strict=True)):
        if not shown[:, place].any():
            yield f"warning: agent {agent!r} never acted within {len(steps)} random steps"
        space = env.observation_space[agent]  # type: ignore[index]
        if seen.plain and isinstance(space, gymnasium.spaces.Box):
            own = obs[:, place, : seen.size]
            outside = ((own < space.low.astype(np.float32)) | (own > space.high.astype(np.float32))) & shown[:, [place]]
            for t, i in _first(outside):
                yield (
                    f"warning: element {i} of an observation of agent {agent!r} was {own[t, i]:g}, outside its "
                    f"declared bounds [{space.low[i]:g}, {space.high[i]:g}]"
                )


def ends(steps: list[Step], lengths: list[int], episodes: int) -> Iterator[str]:
    """Look for episodes without an end, and for a time limit that calls itself a termination."""
    if any((step.terminated & step.truncated).any() for step in steps):
        yield "warning: an agent was terminated and truncated at once; it is learned from as terminated"
    if not lengths:
        yield (
            f"warning: no episode ended within {len(steps)} random steps; let the environment truncate all agents "
            "after some number of steps, which PettingZoo's call max_cycles"
        )
    last = [step for step in steps if step.over[0]]
    limited = len(lengths) == episodes and len({*lengths}) == 1 and lengths[0] > 1
    if limited and all(step.terminated.any() and not step.truncated.any() for step in last):
        yield (
            f"warning: each of {episodes} random episodes was terminated at step {lengths[0]}; "
            "if this is a time limit, return truncations instead of terminations"
        )


def _first(flags: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Where the first flag stands, if one does."""
    if flags.any():
        t, place = np.argwhere(flags)[0].tolist()
        yield t, place
