"""Evaluation by the native kernels: members play episodes greedily in environments in C, many ticks in one call.

A tick gives the bits of `run.evaluate_tensors`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from evopipe.native import build, header, policy, update
from evopipe.native.build import kernels
from evopipe.native.header import at
from evopipe.native.ticks import CHOOSE, Choice
from evopipe.types import Tensor


class Normalised(NamedTuple):
    """A fixed copy of the mean and scale that normalise members' observations, for kernels; see `core.normalise`."""

    columns: Tensor  # [N] int64
    mean: Tensor  # [members, N] float32
    scale: Tensor  # [members, N] float32
    limit: Tensor  # [members] float32, the largest size of a normalised number


class Played(NamedTuple):
    """The evaluation of `P` members: their `n` episodes, the `W` environments in which each plays, and the results so
    far.

    The kernels change all tensors but `seeds` in place.
    """

    pool: bytes  # all rows, see `native.environment.States.packed`
    seeds: Tensor  # [n] int64
    cap: int | None  # the most steps of an episode
    sound: bool  # whether no number can be other than finite
    playing: Tensor  # [P, W] int64, which episode each row plays; n and above: none
    waiting: Tensor  # [P] int64, the next one
    total: Tensor  # [P, W] float64, returns of running episodes
    returns: Tensor  # [P, n + 1] float64; the last number is not written
    lengths: Tensor  # [P, n + 1] int64, too
    steps: Tensor  # [P] int64, counted on


def by_policy(
    cfg: Any, state: Any, places: Tensor, memory: Tensor, of: Played, shown: Normalised | None = None
) -> Callable[[int], None] | None:
    """Return a function that plays evaluation episodes greedily by the C kernels; None if the kernels cannot.

    The function takes an integer, the largest number of steps to take before it returns. It serves on-policy
    algorithms, whose policy may be recurrent.

    Args:
        cfg, state: the algorithm's configuration and state, of some members.
        places: `[members]` int64, the indices of these members among the `P` members in `of`.
        memory: `[members, W, M]`, the recurrent states; changed in place.
        of: the evaluation.
        shown: the normalisation of observations; None for none.
    """
    found = policy.described(cfg, state, None)
    if found is None or found.memory != memory.shape[2]:
        return None
    return _calls(of, places, memory, found.pointer, 0, found, shown)


def by_choice(
    choice: Choice, actions: int, observations: int, places: Tensor, of: Played, shown: Normalised | None = None
) -> Callable[[int], None] | None:
    """Return a function that plays evaluation episodes greedily by the C kernels; None if the kernels cannot.

    It is like `by_policy`, for off-policy algorithms, whose members choose actions by the network in `choice`.
    """
    if build.chosen() is None:
        return None
    fields = update.network(choice.net, None, observations, len(places))
    if fields is None:
        return None
    kind = header.of("chooser")
    pointer = kind.pointer(kind.packed(
        net=header.of("network").packed(**fields), how=CHOOSE.index(choice.how), members=len(places), actions=actions,
    ))  # fmt: skip
    return _calls(of, places, None, 0, pointer, (choice.net, fields), shown)


def _calls(
    of: Played, places: Tensor, memory: Tensor | None, policy: Any, chooser: Any, held: Any, shown: Normalised | None
) -> Callable[[int], None]:
    kind, null = header.of("evaluation_call"), header.declarations().NULL
    fixed = {
        "pool": of.pool, "places": at(places), "seeds": at(of.seeds), "width": of.playing.shape[1],
        "episodes": len(of.seeds), "cap": of.cap or 1 << 62, "sound": of.sound, "playing": at(of.playing),
        "waiting": at(of.waiting), "total": at(of.total), "returns": at(of.returns), "lengths": at(of.lengths),
        "steps": at(of.steps), "memory": at(memory),
    }  # fmt: skip
    if shown is not None:
        shown = Normalised(*(x.contiguous() for x in shown))
        fixed |= dict(zip(("which", "mean", "scale", "limit"), map(at, shown), strict=True))
        fixed["columns"] = len(shown.columns)
    kept = of, places, memory, held, shown

    def go(ticks: int) -> None:
        assert kept
        build.done(
            kernels().play_episodes(policy or null, chooser or null, kind.pointer(kind.packed(**fixed, ticks=ticks)))
        )

    return go
