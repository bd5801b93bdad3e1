"""Some completions of each generation's last round, as episodes that are read token by token."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from evopipe.core.cohort import Cohort
from evopipe.core.net import score
from evopipe.types import Text

if TYPE_CHECKING:  # shards of environments hold samples too, and need no language model
    from evopipe.language.base import Base
    from evopipe.run.text import TextSpec

EACH = 8  # completions of each member
_ROUNDS = 3  # latest generations of which they are kept
_CHARACTER = 4  # tokens of one byte each that a character may have
_DIGITS = 5  # behind the point, of an advantage and of a log-probability


class Samples:
    """The completions that a run keeps to be read: of each member the first ones of a generation's last round.

    They are part of a run's state, so that a run that was killed writes the same file as one that was not.
    """

    def __init__(self) -> None:
        self._rounds: dict[int, list[dict[str, Any]]] = {}  # by generation, from 1

    def note(self, generation: int, episodes: Sequence[dict[str, Any]]) -> None:
        """Add episodes, as `episodes_of` returns them, to those of a generation (counted from 0). Only the latest
        generations are kept."""
        self._rounds.setdefault(generation + 1, []).extend(episodes)
        for old in sorted(self._rounds)[:-_ROUNDS]:
            del self._rounds[old]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the kept episodes, in the order of generations (from 1) and members, with the generation as `round`."""
        for generation in sorted(self._rounds):
            for each in sorted(self._rounds[generation], key=lambda episode: int(episode["slot"])):
                yield {"round": generation, **each}

    def state(self) -> dict[str, Tensor]:
        data = json.dumps(self._rounds, sort_keys=True).encode()
        return {"samples": torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        told = json.loads(tensors["samples"].cpu().numpy().tobytes())
        self._rounds = {int(generation): episodes for generation, episodes in told.items()}

    def add(self, tensors: Mapping[str, Tensor], first: int) -> None:
        """Add the episodes of another part of the population: `tensors` is its state, and its slots (places in the
        population) are counted from `first`."""
        other = Samples()
        other.restore(tensors)
        for generation, episodes in other._rounds.items():
            moved = [{**episode, "slot": episode["slot"] + first} for episode in episodes]
            self._rounds.setdefault(generation, []).extend(moved)


def episodes_of(
    base: Base, slots: Sequence[int], text: Text, now: Text, tasks: Sequence[Sequence[Any]], names: Sequence[str],
    ended: Tensor, most: float | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return completions as episodes, in the form of the files that `evopipe agent show` makes a page of.

    Args:
        base: the base model, which has the tokenizer.
        slots: the P members, as places in the population.
        text: their completions, R of each, with rewards, advantages, and the log-probabilities of when they were drawn.
        now: the same with the log-probabilities after the update.
        tasks: for each member, the rows of the dataset that its completions answer.
        names: a name of each of the R completions.
        ended: `[P, R]` bool, whether a completion ended by itself, not by its limit of tokens.
        most: the reward from which on a completion counts as right; None if there is none.
    """
    assert text.reward is not None
    kept = torch.ones_like(ended) if text.keep is None else text.keep
    found = []
    for p, slot in enumerate(slots):
        for r, name in enumerate(names):
            reward = float(text.reward[p, r])
            ids = text.ids[p, r, -text.mask.shape[-1] :][text.mask[p, r]].tolist()
            rows = [_pieces(base, text, now, p, r)] if ids else []
            step = {
                "model_output": {"completion_ids": ids}, "model_response": base.show(ids), "reward": rounded(reward),
                "done": True, "action": None,
            }  # fmt: skip
            found.append({
                "slot": slot, "attempts": 1, "counts": bool(kept[p, r]), "id": name, "task": tasks[p][r],
                "termination_reason": "ended" if ended[p, r] else "max_response_length_exceeded",
                "is_correct": most is not None and reward >= most, "metrics": {}, "info": {},
                "trajectories": [
                    {"name": "completion", "reward": rounded(reward), "steps": [step], "rows": rows}
                ],
            })  # fmt: skip
    return found


def _pieces(base: Base, text: Text, now: Text, p: int, r: int) -> list[dict[str, Any]]:
    """Return a row as pieces of text: what was shown, and what was written with the numbers of its tokens."""
    width = text.mask.shape[-1]
    ids, real, mask = text.ids[p, r], text.real[p, r], text.mask[p, r]
    before: list[int] = ids[:-width][real[:-width]].tolist()
    marked = [(False, token, -1) for token in before]
    there = (mask | real[-width:]).tolist()
    every = zip(mask.tolist(), ids[-width:].tolist(), range(width), strict=True)
    marked += [each for each, is_there in zip(every, there, strict=True) if is_there]
    told = {"log_prob": text.log_prob, "new_log_prob": now.log_prob, "advantage": text.advantage}
    found = []
    for written, group in groupby(marked, key=lambda each: each[0]):
        _, tokens, places = zip(*group, strict=True)
        piece = {"text": base.show(tokens), "written": written, "step": 0}
        if written:
            piece["tokens"] = token_texts(base, tokens)
            for name, x in told.items():
                piece[name] = [None if x is None else rounded(float(x[p, r, place])) for place in places]
        found.append(piece)
    return found


def scored_anew(spec: TextSpec, cohort: Cohort, text: Text) -> Text:
    """Return a text with the log-probabilities of its tokens under the present weights of the members in `cohort`.
    `spec` is the run's configuration.

    The text's own log-probabilities differ from these if older weights or another program generated it.
    """
    with torch.no_grad():
        # Rows that nobody learns from would not be computed.
        now = score(getattr(cohort.state, spec.algo.POLICY).frozen, replace(text, keep=None))
    return replace(text, log_prob=now.log_prob.masked_fill(~text.mask, 0.0))


def token_texts(base: Base, ids: Sequence[int]) -> list[str]:
    """Return the text of each token in `ids`, such that the texts add up to the text of all tokens. `base` has the
    tokenizer.

    If several tokens make up one character, the last of them has the whole character, and the others an empty text.
    """
    found, start = [], 0
    for end in range(1, len(ids) + 1):
        before = base.show(ids[start - 1 : start]) if start else ""  # some tokenizers drop a space where a text begins
        both = base.show(ids[max(0, start - 1) : end])
        text = both[len(before) :] if both.startswith(before) else base.show(ids[start:end])
        whole = not text.endswith("\ufffd") or end == len(ids) or end - start >= _CHARACTER
        found.append(text if whole else "")
        start = end if whole else start
    return found


def rounded(value: float) -> float | None:
    """Return a number with five digits behind the point; None if it is not finite."""
    return round(value, _DIGITS) if math.isfinite(value) else None
