"""Advantages of tokens, and their log-probabilities after the update, for some episodes of a round."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch

from evopipe.agents.engine import Done
from evopipe.agents.rows import RolloutBatch
from evopipe.core.cohort import Cohort
from evopipe.regimes.dialogue import take
from evopipe.regimes.samples import scored_anew
from evopipe.run.text import TextSpec
from evopipe.types import Text


class TokenValues(NamedTuple):
    """The values of the tokens of one row, a sequence of tokens that members learn from.

    Each list has one value for each token after the row's prompt. Values beyond the end of the row are padding.

    Attributes:
        advantage: the advantages.
        log_prob: the log-probabilities under the member's weights after the update.
    """

    advantage: list[float]
    log_prob: list[float]  # for the members that have learned


def first_of(done: Sequence[Sequence[Done]], most: int) -> list[Done]:
    """Return the first episodes of every member, in one list of about `most` episodes.

    `done` has a list of episodes for each member. Of each list, the first `most` divided by the number of members are
    returned, but at least one. The result is empty if `most` is 0. A round's tasks are in random order, so the first
    episodes are a random sample. A member's episodes of the same task are adjacent.
    """
    each = max(1, most // max(1, len(done)))
    return [one for member in done for one in member[:each]] if most else []


def token_values(
    spec: TextSpec, cohort: Cohort, text: Text, batch: RolloutBatch, wanted: Collection[int]
) -> dict[int, list[TokenValues]]:
    """Return the advantages of the tokens of some trajectories, and the tokens' log-probabilities after the update.

    Args:
        spec: the run's configuration.
        cohort: the members, which have just learned from `text`.
        text: the rows of `batch` with their advantages.
        batch: the rows of tokens, and the trajectory that each row comes from.
        wanted: the `id()` of each trajectory whose values are wanted.

    Returns:
        A mapping from the `id()` of a trajectory to the values of each of its rows, in order; empty if the batch has no
        such trajectory.
    """
    rows = [
        [b for b, i in enumerate(owner) if id(member[i].trajectory) in wanted]
        for owner, member in zip(batch.owner, batch.played, strict=True)
    ]
    width = max(map(len, rows))
    if not width or text.advantage is None:
        return {}
    index = torch.tensor([[*own, *[0] * (width - len(own))] for own in rows], device=text.ids.device)
    some = scored_anew(spec, cohort, take(text, index))
    assert some.advantage is not None
    assert some.log_prob is not None
    found: dict[int, list[TokenValues]] = {}
    told = zip(rows, batch.owner, batch.played, some.advantage.tolist(), some.log_prob.tolist(), strict=True)
    for own, owner, member, advantages, log_probs in told:
        for b, advantage, log_prob in zip(own, advantages, log_probs, strict=False):  # pads stand behind
            found.setdefault(id(member[owner[b]].trajectory), []).append(TokenValues(advantage, log_prob))
    return found
