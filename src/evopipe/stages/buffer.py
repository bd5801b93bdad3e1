"""Stage `buffer`: `data/dataset` into packed transitions with statistics."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from evopipe.data.episodes import check_fits
from evopipe.data.minari import read_own
from evopipe.data.transitions import pack, statistics, write_transitions
from evopipe.envs.pool import EnvPool
from evopipe.layout import BUFFERED, DATASET, TRANSITIONS, need
from evopipe.schema.params import Params
from evopipe.stages.tell import tell
from evopipe.storage.files import write_json


def run(params: Params, quiet: bool = False, folder: Path = Path()) -> None:
    """Write `data/transitions.h5` and `reports/buffer.json`."""
    source = need(folder, DATASET)
    with closing(EnvPool(params.env.on_gymnasium, 1, what="described")) as pool:
        dataset = read_own(source)
        check_fits(dataset, pool.obs_size, pool.action_space)
        transitions = pack(dataset.episodes, pool.actions.relative)
        stats = statistics(transitions, pool.num_actions)
    write_transitions(folder / TRANSITIONS, transitions, stats)
    write_json(folder / BUFFERED, stats)
    tell(
        f"{TRANSITIONS}: {stats['transitions']} transitions of {stats['episodes']} episodes, "
        f"{stats['terminations']} terminated, {stats['truncations']} truncated",
        quiet,
    )
