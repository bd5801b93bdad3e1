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
    """A fixed copy of the mean and scale that normalise members' observations, for kernels; see `core.normalise`.

    Attributes:
        columns: `[N]` int64, the indices of the normalised columns of an observation.
        mean: `[members, N]` float32, the mean of each column.
        scale: `[members, N]` float32, the factor by which the distance from the mean is multiplied.
        limit: `[members]` float32, the largest absolute value of a normalised number; larger ones are clipped to it.
    """

    columns: Tensor
    mean: Tensor
    scale: Tensor
    limit: Tensor


class Played(NamedTuple):
    """An evaluation of `P` members: each plays the same `n` episodes in `W` environments of its own.

    The kernels change all tensors but `seeds` in place.

    Attributes:
        pool: the C struct of all environments, see `native.environment.States.packed`.
        seeds: `[n]` int64, the seed of each episode.
        cap: the most steps of an episode; None for no limit.
        sound: whether all observations and rewards are certain to be finite, so that the kernels need not check it.
        playing: `[P, W]` int64, the number of the episode that each environment plays; n or more if it plays none.
        waiting: `[P]` int64, the number of the next episode that each member is to begin.
        total: `[P, W]` float64, the returns of the running episodes.
        returns, lengths: `[P, n + 1]` float64 and int64, the returns and lengths of the ended episodes. The last column
            belongs to no episode and is not written.
        steps: `[P]` int64, the number of environment steps so far.
    """

    pool: bytes
    seeds: Tensor
    cap: int | None
    sound: bool
    playing: Tensor
    waiting: Tensor
    total: Tensor
    returns: Tensor
    lengths: Tensor
    steps: Tensor


def by_policy(
    cfg: Any, state: Any, places: Tensor, memory: Tensor, of: Played, shown: Normalised | None = None
) -> Callable[[int], None] | None:
    """Return a function that plays evaluation episodes greedily by the C kernels; None if the kernels cannot.

    The returned function takes one integer, the most steps that each environment takes before the function returns. It
    returns nothing, and updates the tensors in `of` and `memory` in place. It must be called until no environment plays
    an episode any more, see `Played.playing`. `by_policy` serves on-policy algorithms, whose policy may be recurrent.

    Args:
        cfg: the algorithm's configuration.
        state: the algorithm's state (its networks), with one row for each playing member.
        places: `[members]` int64, the indices of the playing members among the `P` members in `of`.
        memory: `[members, W, M]`, the M recurrent state values in each member's W environments; changed in place.
        of: the evaluation: its environments, its episodes, and the results so far.
        shown: the normalisation of observations; None for none.
    """
    found = policy.described(cfg, state, None)
    if found is None or found.memory != memory.shape[2]:
        return None
    return _calls(of, places, memory, found.pointer, 0, found, shown)


def by_choice(
    choice: Choice, actions: int, observations: int, places: Tensor, of: Played, shown: Normalised | None = None
) -> Callable[[int], None] | None:
    """Return a function that plays a part of an evaluation by the C kernels; None if the kernels cannot play it.

    The returned function takes an integer n. Each environment then takes at most n greedy steps, and the results are
    written into the tensors in `of`. Call it again until no environment is within an episode (`Played.playing`).
    `by_choice` is for off-policy algorithms, whose networks are not recurrent.

    Args:
        choice: the way in which members choose actions.
        actions: the number of discrete actions, or the width of a continuous action.
        observations: the width of an observation.
        places: `[members]` int64, the members that play. Each is an index among the `P` members in `of`.
        of: the evaluation: its environments, its episodes, and the results so far.
        shown: the normalisation of observations; None for none.
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
