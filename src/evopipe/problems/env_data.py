"""The stages `fetch` and `buffer` for environments: a dataset of behaviour, then packed transitions with statistics."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

from evopipe.data.collect import collect, totals
from evopipe.data.d4rl import read_d4rl
from evopipe.data.episodes import RecordedEpisode, check_fits
from evopipe.data.minari import read_minari, read_own, write_minari
from evopipe.data.rlds import read_rlds
from evopipe.data.table import read_table
from evopipe.data.transitions import pack, statistics, write_transitions
from evopipe.envs.pool import EnvPool
from evopipe.errors import ParamsError, UsageError
from evopipe.formats import score
from evopipe.layout import BUFFERED, DATASET, FETCHED, TRANSITIONS, need
from evopipe.machine import configure
from evopipe.own import import_network
from evopipe.params.load import Params
from evopipe.storage.files import write_json


def fetch(params: Params, folder: Path) -> list[str]:
    """Run the stage `fetch`: write `data/dataset`, always as a Minari dataset, and `reports/fetch.json`.

    `folder` is the project's folder. The result is a list of remarks for the user.
    """
    env, source = params.env.id, params.fetch.source
    import_network(params.network, params.train.algo)  # of the policy that may be collected by
    with closing(EnvPool(params.env.on_gymnasium, 1, what="behaviour")) as pool:
        if pool.team is not None:
            raise ParamsError(
                f"env.id: {env} is a team, whose steps no dataset holds; train in it without the stages `fetch` and "
                "`buffer`, with one of the algorithms that are for teams"
            )
        if pool.actions.kind not in ("discrete", "continuous"):
            raise ParamsError(
                f"env.id: {env} has {pool.actions.kind} actions, which no dataset holds; train in it without "
                "the stages `fetch` and `buffer`, as pipelines/dqn-cartpole does"
            )
        episodes, report = (_collect if source == "collect" else _convert)(params, pool)
        write_minari(
            folder / DATASET,
            episodes,
            name=f"{re.sub('[^A-Za-z0-9_-]', '_', env)}/{source}",
            observation_space=pool.row_space,
            action_space=pool.action_space,
            env_spec=pool.spec,
            algorithm=source,
            description=f"{len(episodes)} episodes of {env}, fetch.source {source}",
        )
    report = {"env": env, "source": source, **report, **totals(episodes)}
    write_json(folder / FETCHED, report)
    counts = f"{report['episodes']} episodes, {report['transitions']} transitions of {env} from {source}"
    returns = f"return {score(report['return']['mean'])} ± {score(report['return']['std'])}"
    return [f"{DATASET}: {sentence}" for sentence in (*report["notes"], f"{counts}, {returns}")]


def buffer(params: Params, folder: Path) -> list[str]:
    """Run the stage `buffer`: convert `data/dataset` to `data/transitions.h5`, and write `reports/buffer.json`.

    `folder` is the project's folder. The result is a list of remarks for the user.
    """
    source = need(folder, DATASET)
    with closing(EnvPool(params.env.on_gymnasium, 1, what="described")) as pool:
        dataset = read_own(source)
        check_fits(dataset, pool.obs_size, pool.action_space)
        transitions = pack(dataset.episodes, pool.actions.relative)
        stats = statistics(transitions, pool.num_actions)
    write_transitions(folder / TRANSITIONS, transitions, stats)
    write_json(folder / BUFFERED, stats)
    counts = f"{stats['transitions']} transitions of {stats['episodes']} episodes"
    return [f"{TRANSITIONS}: {counts}, {stats['terminations']} terminated, {stats['truncations']} truncated"]


def _collect(params: Params, pool: EnvPool) -> tuple[list[RecordedEpisode], dict[str, Any]]:
    cfg, exported = params.fetch.collect, None
    if cfg.policies.get("policy") and cfg.policy_path is not None:
        from evopipe.policies.policy import load

        configure(params.runtime)  # the number of threads decides a policy's last bits
        try:
            exported = load(cfg.policy_path).on_rows()
        except UsageError as error:
            raise ParamsError(f"fetch.collect.policy_path: {error}") from None
    return collect(cfg, pool, params.env.id, params.seed, exported)


def _convert(params: Params, pool: EnvPool) -> tuple[list[RecordedEpisode], dict[str, Any]]:
    """Read another dataset; one that does not fit the environment is refused here rather than a stage later."""
    fetch, space, discrete = params.fetch, pool.observation_space, pool.actions.kind == "discrete"
    match fetch.source:
        case "minari":
            dataset = read_minari(fetch.minari.dataset, space)
        case "table":
            dataset = read_table(fetch.table, space, discrete)
        case "rlds":
            dataset = read_rlds(fetch.rlds, space, discrete)
        case _:
            dataset = read_d4rl(Path(fetch.hdf5.path), space, discrete)
    check_fits(dataset, pool.obs_size, pool.action_space)
    return dataset.episodes, {"notes": list(dataset.notes), "dropped_steps": dataset.dropped}
