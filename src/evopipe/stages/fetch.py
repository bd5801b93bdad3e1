"""Stage `fetch`: behaviour data into `data/dataset`, always a Minari dataset, whatever `fetch.source` is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from evopipe.envs.heuristics import GOOD, POOR, Heuristic
from evopipe.envs.pool import EnvPool
from evopipe.envs.rows import Step
from evopipe.envs.spaces import Leaf, ObservationSpace, brief
from evopipe.errors import DataError, EnvironmentFailed, ParamsError
from evopipe.layout import DATASET, FETCHED
from evopipe.machine import configure
from evopipe.rng import Purpose, host
from evopipe.schema.blocks import CollectConfig
from evopipe.schema.params import Params
from evopipe.stages.tell import tell
from evopipe.storage import safeio
from evopipe.storage.dataset import REMEDY, Dataset, Episode, check_spaces, read_d4rl, read_minari, write_minari

if TYPE_CHECKING:
    import gymnasium

MEDIUM_RANDOM = 0.3  # share of random actions of the policy `medium`, so that its data shows what it would not do

Policy = Callable[[EnvPool, np.random.Generator], Any]
"""From a pool of one row and the episode's own generator to an action as an algorithm knows it: an index, or `[A]`."""


def run(params: Params, quiet: bool = False, folder: Path = Path()) -> None:
    """Write `data/dataset` and `reports/fetch.json` below `folder`. Paths in `params` are the working folder's.

    Raises:
        ParamsError: a setting under `fetch` or `env` cannot be used.
        MissingInputError: the source is not there or cannot be reached.
        DataError: the source's content cannot be used, or does not fit the environment.
        EnvironmentFailed: the environment raised or broke its contract.
        DiskError: a file cannot be written.
    """
    pool = EnvPool(params.env.on_gymnasium, 1, what="behaviour")
    try:
        if pool.actions.kind not in ("discrete", "continuous"):
            raise ParamsError(
                f"env.id: {params.env.id} has {pool.actions.kind} actions, which no dataset holds; train in it without "
                "the stages `fetch` and `buffer`, as pipelines/dqn-cartpole does"
            )
        if params.fetch.source == "collect":
            episodes, report = _collect(params, pool)
        else:
            episodes, report = _convert(params, pool)
        write_minari(
            folder / DATASET,
            episodes,
            dataset_id=f"evopipe/{_slug(params.env.id)}/{params.fetch.source}-v0",
            observation_space=pool.row_space,
            action_space=pool.action_space,
            env_spec=pool.env(0).spec,
            algorithm=params.fetch.source,
            description=f"{len(episodes)} episodes of {params.env.id}, fetch.source {params.fetch.source}",
        )
    finally:
        pool.close()
    safeio.write_json(
        folder / FETCHED, {"env": params.env.id, "source": params.fetch.source, **report, **_totals(episodes)}
    )
    for sentence in _summary(params, report, episodes):
        tell(sentence, quiet)


def _totals(episodes: Sequence[Episode]) -> dict[str, Any]:
    return {
        "episodes": len(episodes),
        "transitions": sum(len(episode) for episode in episodes),
        "return": _spread([episode.reward.sum(dtype=np.float64) for episode in episodes]),
    }


def _spread(returns: Sequence[float]) -> dict[str, float]:
    return {"mean": float(np.mean(returns)), "std": float(np.std(returns))}


def _summary(params: Params, report: dict[str, Any], episodes: Sequence[Episode]) -> list[str]:
    """Say in sentences what was fetched."""
    total = _totals(episodes)
    spread = total["return"]
    counts = f"{total['episodes']} episodes, {total['transitions']} transitions of {params.env.id}"
    returns = f"return {spread['mean']:.1f} ± {spread['std']:.1f}"
    notes = [f"{DATASET}: {note}" for note in report["notes"]]
    return [*notes, f"{DATASET}: {counts} from {params.fetch.source}, {returns}"]


def _slug(env_id: str) -> str:
    """An id that Minari accepts as a namespace."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_") else "_" for letter in env_id)


# --- Foreign datasets -------------------------------------------------------------------------------------------------


def _convert(params: Params, pool: EnvPool) -> tuple[list[Episode], dict[str, Any]]:
    """Read another dataset; one that does not fit the environment is refused here rather than a stage later."""
    shown = _Shown(pool.observation_space, pool.observations)
    if params.fetch.source == "minari":
        dataset = read_minari(params.fetch.minari.dataset, shown)
    else:
        dataset = read_d4rl(Path(params.fetch.hdf5.path), shown, pool.actions.kind == "discrete")
    if not sum(len(episode) for episode in dataset.episodes):
        raise DataError(f"{dataset.where}: holds no step; give a dataset with at least one episode")
    check_spaces(dataset, pool.obs_size, pool.num_actions, pool.actions.start, pool.actions.bounds)
    return dataset.episodes, {"notes": [*dataset.notes, *_dropped(dataset)], "dropped_steps": dataset.dropped}


@dataclass(frozen=True)
class _Shown:
    """What the environment shows: its observation space, and the way to rows."""

    space: gymnasium.Space[Any]
    observations: ObservationSpace

    def compare(self, recorded: gymnasium.Space[Any], where: str) -> None:
        """Raise a `DataError` where a dataset's observations would make other rows."""
        try:
            theirs = ObservationSpace.of(recorded)
        except ParamsError as error:
            raise DataError(f"{where}: its observation space {brief(recorded)} is not served") from error
        if self.observations.plain and theirs.plain and theirs.size != self.observations.size:
            raise DataError(
                f"{where}: its observation space has {theirs.size} numbers, env's {self.observations.size}: {REMEDY}"
            )
        mine, others = ({leaf.path: leaf for leaf in space.leaves} for space in (self.observations, theirs))
        if mine != others:
            path = next((p for p, leaf in mine.items() if leaf != others.get(p, leaf)), ())
            name = mine[path].name if path else "observation space"
            has, wanted = (brief(_part(space, path)) for space in (recorded, self.space))
            raise DataError(f"{where}: its {name} is {has}, env's {wanted}: {REMEDY}")

    def rows(self, recorded: Any) -> npt.NDArray[np.float32]:
        """Turn arrays `[n, …]`, nested as in the space, into rows `[n, O]`.

        Raises:
            ValueError: they do not fit the space.
        """
        arrays = [_numbers(leaf, _part(recorded, leaf.path)) for leaf in self.observations.leaves]
        for leaf, array in zip(self.observations.leaves, arrays, strict=True):
            if array.shape[1:] != leaf.shape:
                raise ValueError(f"an {leaf.name} of shape {array.shape[1:]} a step, env's has {leaf.shape}: {REMEDY}")
            if len(array) != len(arrays[0]):
                raise ValueError(f"an {leaf.name} of {len(array)} steps beside others of {len(arrays[0])}")
        columns = [leaf.columns(array) for leaf, array in zip(self.observations.leaves, arrays, strict=True)]
        return np.concatenate(columns, axis=1)


def _part(nested: Any, path: Sequence[str | int]) -> Any:
    """Follow keys and indices into a space or an observation."""
    for key in path:
        nested = nested[key]
    return nested


def _numbers(leaf: Leaf, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Undo what files do to numbers: one a step may stand in a column, and whole ones be stored as floats."""
    if not leaf.shape and array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if leaf.counts and array.dtype.kind == "f":
        if not (np.isfinite(array) & (array == np.rint(array))).all():
            raise ValueError(f"an {leaf.name} of fractions, its space has whole numbers")
        array = array.astype(np.int64)
    return array


def _dropped(dataset: Dataset) -> list[str]:
    if not dataset.dropped:
        return []
    return [f"{dataset.dropped} last steps of cut episodes left out: the file has no next observation for them"]


# --- Behaviour policies -----------------------------------------------------------------------------------------------


def _collect(params: Params, pool: EnvPool) -> tuple[list[Episode], dict[str, Any]]:
    cfg = params.fetch.collect
    if cfg.policies.get("policy"):
        configure(params.runtime)  # the number of threads decides a policy's last bits
    policies, notes = _behaviour(cfg, pool, params.env.id)
    names = sorted(policies)
    weights = np.array([cfg.policies[name] for name in names], np.float64)
    episodes: list[Episode] = []
    played: list[str] = []
    broken = 0
    for number in range(cfg.episodes):
        rng = host(params.seed, Purpose.BEHAVIOUR, number)
        name = names[int(rng.choice(len(names), p=weights / weights.sum()))]
        episode, cut = _roll(pool, policies[name], rng, cfg.max_steps)
        broken += cut
        if len(episode):
            episodes.append(episode)
            played.append(name)
    if not episodes:
        raise EnvironmentFailed(f"behaviour environment {params.env.id!r}: no episode gave a finite first step")
    if broken:
        notes.append(f"{broken} episodes cut where the environment gave a value that is not finite or no legal action")
    return episodes, {"notes": notes, "broken_steps": broken, "policies": _by_policy(names, played, episodes)}


def _by_policy(names: Sequence[str], played: Sequence[str], episodes: Sequence[Episode]) -> dict[str, Any]:
    report = {}
    for name in names:
        own = [episode for episode, player in zip(episodes, played, strict=True) if player == name]
        returns = [episode.reward.sum(dtype=np.float64) for episode in own]
        count = {"episodes": len(own), "transitions": sum(len(episode) for episode in own)}
        report[name] = {**count, "return": _spread(returns) if own else None}
    return report


def _roll(pool: EnvPool, policy: Policy, rng: np.random.Generator, max_steps: int | None) -> tuple[Episode, bool]:
    """Play one episode in the pool's only row; True where a broken step cut it short (that step is left out)."""
    seed = int(rng.integers(2**31))
    pool.reset([0], [seed])
    obs, actions, steps = [pool.obs[0].copy()], [], list[Step]()
    while True:
        action = policy(pool, rng)
        step = pool.step([action])
        if step.broken[0]:
            break
        obs.append(step.obs[0])
        actions.append(action)
        steps.append(step)
        if step.terminated[0] or step.truncated[0] or len(steps) == max_steps:
            break
    terminated = np.array([bool(each.terminated[0]) for each in steps], np.bool_)
    truncated = np.array([bool(each.truncated[0]) for each in steps], np.bool_)
    truncated[-1:] |= ~terminated[-1:]  # a step cap, or a broken step behind it, cuts the episode
    reward = np.array([each.reward[0] for each in steps], np.float32)
    taken = pool.actions.empty(len(actions))
    if actions:
        taken[:] = actions
    own = pool.actions.own(taken).reshape(taken.shape)
    return Episode(np.stack(obs), own, reward, terminated, truncated, seed), bool(step.broken[0])


def _behaviour(cfg: CollectConfig, pool: EnvPool, env_id: str) -> tuple[dict[str, Policy], list[str]]:
    """Return the policies that have a weight, and what there is to say about them."""
    wanted = [name for name, weight in cfg.policies.items() if weight > 0.0]
    rules = {"heuristic": GOOD.get(env_id), "medium": POOR.get(env_id)}
    missing = [name for name in wanted if rules.get(name, _random) is None]
    wanted = [name for name in wanted if name not in missing]
    if not wanted:
        raise ParamsError(
            f"fetch.collect.policies: {env_id} has no {' and no '.join(missing)}; give `random` or `policy` a positive "
            "weight"
        )
    notes = [f"{env_id} has no {name}, its weight went to {', '.join(sorted(wanted))}" for name in missing]
    policies: dict[str, Policy] = {}
    for name in wanted:
        if (rule := rules.get(name)) is not None:
            policies[name] = _ruled(rule, MEDIUM_RANDOM if name == "medium" else 0.0)
        else:
            policies[name] = _random if name == "random" else _exported(cfg.policy_path, pool)
    return policies, notes


def _random(pool: EnvPool, rng: np.random.Generator) -> Any:
    return pool.actions.sample(pool.mask[0], rng)


def _ruled(rule: Heuristic, random: float = 0.0) -> Policy:
    """Follow a rule, with chance `random` act at random instead."""

    def act(pool: EnvPool, rng: np.random.Generator) -> Any:
        if random and rng.random() < random:
            return _random(pool, rng)
        return pool.actions.relative(np.asarray([rule(pool.env(0), pool.obs[0])]))[0]

    return act


def _exported(path: str | None, pool: EnvPool) -> Policy:
    from evopipe.policy import load

    if path is None:
        raise ParamsError("fetch.collect.policy_path: the weight `policy` needs an exported policy's folder")
    policy = load(path).on_rows()
    if (policy.observations, policy.actions) != (pool.obs_size, pool.num_actions):
        raise ParamsError(
            f"fetch.collect.policy_path: {path} takes {policy.observations} observations and {policy.actions} actions, "
            f"the environment has {pool.obs_size} and {pool.num_actions}"
        )
    if policy.action_space.continuous != pool.actions.continuous:
        kinds = ("continuous" if space.continuous else "discrete" for space in (policy.action_space, pool.actions))
        raise ParamsError(
            f"fetch.collect.policy_path: {path} takes {next(kinds)} actions, the environment {next(kinds)} ones"
        )

    memory = None

    def act(pool: EnvPool, rng: np.random.Generator) -> Any:
        nonlocal memory
        before = memory if pool.episode_length[0] else None
        chosen, memory = policy.step(pool.obs[0], before, pool.mask[0] if pool.masked else None)
        return policy.action_space.relative(np.asarray([chosen]))[0]

    return act
