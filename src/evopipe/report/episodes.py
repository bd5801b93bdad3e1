"""The page that shows agents' episodes: what each read and wrote, token by token, its rewards, and why it ended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import exp, isfinite
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from evopipe.errors import DataError
from evopipe.report import words
from evopipe.storage.files import read_bytes

_MOST = 200  # episodes of a part that are shown
_LONGEST = 20_000  # characters of a piece that are shown
_TOKENS = 60_000  # tokens of a page that have colours of their own: a span takes a hundred bytes
_LEVELS = 5  # shades on each side of 0
_BANDS = 5  # ranges of rewards that one can choose
_FOLDED = 70  # characters of what is folded that stand in its place


def read_episodes(path: Path) -> list[dict[str, Any]]:
    """Read agents' episodes from a file that has one JSON object per line.

    Raises:
        DataError: a line is no episode in the layout that `agents.records` writes.
    """
    found = []
    for number, line in enumerate(read_bytes(path).decode("utf-8", "replace").split("\n"), 1):
        if not line.strip():
            continue
        try:
            each = json.loads(line)
            if not isinstance(each["trajectories"], list) or not isinstance(each["id"], str):
                raise TypeError
        except (ValueError, TypeError, KeyError):
            raise DataError(f"{path}:{number}: is no episode as `episodes/` has them") from None
        found.append(each)
    return found


def episodes_page(title: str, parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return a page that shows agents' episodes, as the text of one HTML file without scripts or external resources.

    Each part of the page is a table with one row per episode, which can be sorted and filtered. A row unfolds to show
    the episode's tokens.

    Args:
        title: the page's title, which says where the episodes come from.
        parts: each part's heading, with its episodes in the layout that `agents.records` writes.
    """
    every = [episode for part in parts.values() for episode in part]
    shown = {name: part[:_MOST] for name, part in parts.items()}
    rewards = [reward_of(episode) for episode in every]
    low, high = min(rewards, default=0.0), max(rewards, default=0.0)

    def scale(reward: float | None) -> int:
        """Where a reward stands between the lowest and the highest, in percent."""
        if reward is None or high <= low:
            return 50
        return round(100 * min(1.0, max(0.0, (reward - low) / (high - low))))

    values = Shades.of([episode for part in shown.values() for episode in part])
    bands = _bands(rewards)
    known: dict[str, Any] = {"lines": _lines, "brief": _brief, "calls": _calls, "scale": scale, "levels": _LEVELS}
    return words.template("episodes.html.j2", words=words, **known).render(
        title=title,
        parts={name: _rows(part, bands) for name, part in shown.items()},
        left={name: len(part) - _MOST for name, part in parts.items()},
        low=low,
        high=high,
        count=len(every),
        mean=sum(rewards) / max(1, len(rewards)),
        right=sum(bool(episode.get("is_correct")) for episode in every),
        endings=_endings(every),
        roles=_roles(every),
        bands=[words.figure(a) if a == b else f"{words.figure(a)} to {words.figure(b)}" for a, b in bands],
        values=values,
    )


# --- the table --------------------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """An episode as a row of the table."""

    episode: Mapping[str, Any]
    reward: float
    length: int  # tokens that the model wrote
    turns: int
    kinds: str  # what it can be chosen by, as classes
    best: int  # its place where the highest reward comes first
    worst: int
    longest: int
    alike: bool  # whether the rewards of its task's episodes are all equal


def _rows(episodes: Sequence[Mapping[str, Any]], bands: Sequence[tuple[float, float]]) -> list[_Row]:
    groups: dict[tuple[Any, str], list[Mapping[str, Any]]] = {}
    for episode in episodes:
        groups.setdefault(_group(episode), []).append(episode)
    rewards, lengths = [reward_of(each) for each in episodes], [length_of(each) for each in episodes]
    best, worst, longest = _places(rewards, True), _places(rewards, False), _places(lengths, True)
    return [
        _Row(
            each, rewards[i], lengths[i], sum(len(one["steps"]) for one in each["trajectories"]),
            _kinds(each, rewards[i], bands), best[i], worst[i], longest[i], _alike(groups[_group(each)]),
        )
        for i, each in enumerate(episodes)
    ]  # fmt: skip


def _group(episode: Mapping[str, Any]) -> tuple[Any, str]:
    return episode.get("slot"), str(episode["id"].rpartition(":")[0])


def _places(values: Sequence[float], descending: bool) -> list[int]:
    """Return the place of each value where they are sorted; equal ones keep their order."""
    order = sorted(range(len(values)), key=lambda i: -values[i] if descending else values[i])
    places = [0] * len(values)
    for place, i in enumerate(order):
        places[i] = place
    return places


def _kinds(episode: Mapping[str, Any], reward: float, bands: Sequence[tuple[float, float]]) -> str:
    reason = str(episode.get("termination_reason"))
    found = [f"b{next((i for i, (_, high) in enumerate(bands) if reward <= high), len(bands) - 1)}"]
    found.append("right" if episode.get("is_correct") else "wrong-answer")
    found += ["cut"] * (reason.endswith("_exceeded") or reason == "timeout")
    return " ".join(found)


def _bands(rewards: Sequence[float]) -> list[tuple[float, float]]:
    """Return the ranges of rewards that one can choose: each reward, if there are few, else as wide ones."""
    different = sorted(set(rewards))
    if len(different) <= _BANDS:
        return [(each, each) for each in different]
    low, wide = different[0], (different[-1] - different[0]) / _BANDS
    ends = [*(low + wide * i for i in range(1, _BANDS)), different[-1]]
    return list(zip([low, *ends[:-1]], ends, strict=True))


def length_of(episode: Mapping[str, Any]) -> int:
    """Return how many tokens the model wrote in an episode."""
    outs = [step.get("model_output") or {} for one in episode["trajectories"] for step in one["steps"]]
    return sum(len(out.get("completion_ids") or ()) for out in outs)


# --- tokens -----------------------------------------------------------------------------------------------------------


@dataclass
class Shades:
    """The colour scales of a page's tokens: one for advantages, one for the change of log-probability by the update.

    Attributes:
        advantage: the largest advantage on the page, without sign; 0 if there are none.
        ratio: the largest change of log-probability on the page, without sign.
        coloured: a counter: `next(coloured)` is the number of tokens coloured so far, of which a page has a limit.
    """

    advantage: float
    ratio: float
    coloured: Iterator[int]

    @classmethod
    def of(cls, episodes: Sequence[Mapping[str, Any]]) -> Shades:
        pieces = [
            piece for episode in episodes for one in episode["trajectories"] for row in one.get("rows", ())
            for piece in row if piece.get("tokens")
        ]  # fmt: skip
        advantages = [abs(each) for piece in pieces for each in piece["advantage"] if each is not None]
        ratios = [abs(each) for piece in pieces for each in _ratios(piece) if each is not None]
        return cls(max(advantages, default=0.0), max(ratios, default=0.0), count())

    @property
    def any(self) -> bool:
        return self.advantage > 0 or self.ratio > 0

    def marked(self, piece: Mapping[str, Any]) -> Markup:
        """Return the tokens of `piece`, a piece of text with the numbers of its tokens, as HTML.

        Each token is coloured and has its numbers in a tooltip. A page has a budget of coloured tokens; when it is used
        up, further tokens are plain text.
        """
        found: list[str] = []
        rest: list[str] = []
        told = zip(piece["tokens"], piece["advantage"], piece["log_prob"], _ratios(piece), strict=True)
        for text, advantage, log_prob, ratio in told:
            if rest or next(self.coloured) >= _TOKENS:
                rest.append(text)
                continue
            classes = f"a{_level(advantage, self.advantage)} r{_level(ratio, self.ratio)}"
            found.append(
                f'<i class="{classes}" title="{_numbers(advantage, log_prob, ratio)}">{_lines(text, _LONGEST)}</i>'
            )
        return Markup("").join([*map(Markup, found), _lines("".join(rest))])

    def summed(self, rows: Sequence[Sequence[Mapping[str, Any]]]) -> str:
        """Return a text with the mean advantage of a trajectory's tokens and the range of their log-probability ratios;
        empty if either is unknown.

        `rows` has the trajectory's rows of text, each as a list of pieces in the layout that `agents.records` writes.
        """
        pieces = [piece for row in rows for piece in row if piece.get("tokens")]
        advantages = [each for piece in pieces for each in piece["advantage"] if each is not None]
        ratios = [each for piece in pieces for each in _ratios(piece) if each is not None]
        if not advantages or not ratios:
            return ""
        mean = sum(advantages) / len(advantages)
        return (
            f"mean advantage {words.figure(mean, True)}; log-probability ratios from {words.figure(min(ratios), True)} "
            f"to {words.figure(max(ratios), True)}"
        )


def _ratios(piece: Mapping[str, Any]) -> list[float | None]:
    """Return of each token by how much its log-probability has grown."""
    both = zip(piece["new_log_prob"], piece["log_prob"], strict=True)
    return [None if new is None or old is None else new - old for new, old in both]


def _level(value: float | None, most: float) -> int:
    """Return the shade of a value: 0 to twice `_LEVELS`, which is in the middle where the value is 0."""
    if value is None or most <= 0 or not isfinite(value):
        return _LEVELS
    found = round(_LEVELS * value / most)
    return _LEVELS + (found or (value > 0) - (value < 0))  # the lightest shade is still one


def _numbers(advantage: float | None, log_prob: float | None, ratio: float | None) -> str:
    """Return a token's numbers, as they stand beside a pointer."""
    a, old = ("–" if each is None else words.figure(each, True) for each in (advantage, log_prob))
    if ratio is None or log_prob is None:
        return f"advantage {a}, log-probability {old}"
    by = words.figure(exp(min(ratio, 50.0)))
    return f"advantage {a}, log-probability {old}, then {words.figure(log_prob + ratio, True)}: ratio {by}"


def _calls(step: Mapping[str, Any]) -> str:
    """Return the calls of tools that a step made, as text; nothing, if it made none."""
    out, action = step.get("model_output"), step.get("action")
    found = []
    for call in (out.get("tool_calls") if isinstance(out, Mapping) else None) or ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            found.append(f"{function.get('name')}({function.get('arguments', '')})")
    if not found and isinstance(action, Mapping) and isinstance(action.get("tool"), str):
        found.append(f"{action['tool']}({action.get('input', '')})")
    return _brief(", ".join(found), _FOLDED)


# --- sums -------------------------------------------------------------------------------------------------------------


def reward_of(episode: Mapping[str, Any]) -> float:
    """Return the mean reward of an episode's trajectories; 0 if the episode has none."""
    rewards = [float(each.get("reward") or 0.0) for each in episode["trajectories"]]
    return sum(rewards) / len(rewards) if rewards else 0.0


def _alike(episodes: Sequence[Mapping[str, Any]]) -> bool:
    """Whether several episodes of a task have equal rewards, role by role: nothing is learned from such a group."""
    rewards: dict[str, set[float]] = {}
    for episode in episodes:
        for each in episode["trajectories"]:
            rewards.setdefault(str(each.get("name")), set()).add(float(each.get("reward") or 0.0))
    return len(episodes) > 1 and all(len(own) == 1 for own in rewards.values())


def _endings(episodes: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, float]]:
    """Return why episodes ended: how many, and their mean reward, the most frequent first."""
    found = Counter(str(episode.get("termination_reason")) for episode in episodes)
    return [
        (name, n, sum(reward_of(e) for e in episodes if str(e.get("termination_reason")) == name) / n)
        for name, n in found.most_common()
    ]


def _roles(episodes: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, float, float]]:
    """Return of each role its trajectories, their mean reward and their mean steps."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for episode in episodes:
        for each in episode["trajectories"]:
            found.setdefault(str(each.get("name", "")), []).append(each)
    return [
        (name, len(own), sum(float(each.get("reward") or 0.0) for each in own) / len(own),
         sum(len(each["steps"]) for each in own) / len(own))
        for name, own in sorted(found.items())
    ]  # fmt: skip


def _lines(text: str, most: int = _LONGEST) -> Markup:
    """Escape a text whose lines stay lines."""
    text = text if len(text) <= most else f"{text[:most]} … ({len(text) - most} characters more)"
    return escape("\n".join(words.clean(line) for line in text.split("\n")))


def _brief(value: Any, most: int = 160) -> str:
    """Return a task or an action in few characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= most else f"{text[: most - 1]}…"
