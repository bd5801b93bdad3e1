"""The model card of an exported policy: what it is, how good, how to use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from evopipe.algos import get
from evopipe.envs.spaces import Leaf
from evopipe.formats import score
from evopipe.policies.policy import Policy, TeamPolicy, numpy_files


def card(policy: Policy | TeamPolicy, episodes: int) -> str:
    """Return the model card of a policy as Markdown.

    `episodes` is the number of held-out episodes from which the policy's score comes.
    """
    return render(
        "card.md.j2",
        about=policy.about,
        arch=policy.arch,
        episodes=episodes,
        memory=policy.memory,
        no_numpy=numpy_files(policy)[1],
        space=policy.observation_space,
        team=policy.team,
        values=get(policy.about["algo"]).values is not None,
    )


def render(template: str, **known: Any) -> str:
    """Return the Markdown template of this name in the folder `policies`, filled in with the values `known`."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=False,
        keep_trailing_newline=True,
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"columns": _columns, "score": score}
    return environment.get_template(template).render(score=score, **known)


def _columns(leaf: Leaf) -> str:
    """Say how an array becomes columns."""
    if leaf.counts:
        firsts = set(leaf.firsts)
        begin = firsts.pop() if len(firsts) == 1 else list(leaf.firsts)
        each = "" if len(leaf.counts) == 1 else " each"
        return f"one-hot{each}, {', '.join(map(str, leaf.counts))} values from {begin} on"
    if leaf.channels is None:
        return "its numbers"
    first = "channels first" if leaf.channels == 0 else "its channels moved to the front"
    if (leaf.low, leaf.high) == (0.0, 1.0):
        return first
    above = "x" if leaf.low == 0.0 else f"(x {'-' if leaf.low > 0.0 else '+'} {abs(leaf.low):g})"
    return f"{first}, {above} / {leaf.high - leaf.low:g}"
