"""The page that shows agents' episodes: what each read and wrote, its rewards, and why it ended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from evopipe.errors import DataError
from evopipe.report import words
from evopipe.storage.files import read_bytes

_MOST = 200  # episodes of a part that are shown
_LONGEST = 20_000  # characters of a piece that are shown


def read_episodes(path: Path) -> list[dict[str, Any]]:
    """Read episodes, one JSON object a line.

    Raises:
        DataError: a line is no episode.
    """
    found = []
    for number, line in enumerate(read_bytes(path).decode("utf-8", "replace").splitlines(), 1):
        try:
            each = json.loads(line)
            if not isinstance(each["trajectories"], list) or not isinstance(each["id"], str):
                raise TypeError
        except (ValueError, TypeError, KeyError):
            raise DataError(f"{path}:{number}: is no episode as `episodes/` has them") from None
        found.append(each)
    return found


def episodes_page(title: str, parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return episodes, grouped by purpose, as the text of one HTML file, which loads nothing and has no script.

    Each episode is as `agents.records` writes it; `title` says where they come from.
    """
    every = [episode for part in parts.values() for episode in part]
    rewards = [reward_of(episode) for episode in every]
    low, high = min(rewards, default=0.0), max(rewards, default=0.0)

    def scale(reward: float | None) -> int:
        """Where a reward stands between the lowest and the highest, in percent."""
        if reward is None or high <= low:
            return 50
        return round(100 * min(1.0, max(0.0, (reward - low) / (high - low))))

    def task(episode: Mapping[str, Any]) -> str:
        return str(episode["id"].rpartition(":")[0])

    known: dict[str, Any] = {"lines": _lines, "brief": _brief, "alike": _alike, "reward_of": reward_of, "scale": scale}
    return words.template("episodes.html.j2", words=words, **known).render(
        title=title,
        parts={name: [(t, [*group]) for t, group in groupby(part[:_MOST], key=task)] for name, part in parts.items()},
        left={name: len(part) - _MOST for name, part in parts.items()},
        low=low,
        high=high,
        count=len(every),
        mean=sum(rewards) / max(1, len(rewards)),
        right=sum(bool(episode.get("is_correct")) for episode in every),
        endings=_endings(every),
        roles=_roles(every),
    )


def reward_of(episode: Mapping[str, Any]) -> float:
    """Return the mean reward of an episode's trajectories; 0 without any."""
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


def _lines(text: str) -> Markup:
    """Escape a text whose lines stay lines."""
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … ({len(text) - _LONGEST} characters more)"
    return escape("\n".join(words.clean(line) for line in text.split("\n")))


def _brief(value: Any) -> str:
    """Return a task or an action in few characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 160 else f"{text[:159]}…"
