"""Random choices of actions by the native kernels; `ops.policy` has the same in torch, to the bit."""

from __future__ import annotations

import torch

from evopipe.native import build, header
from evopipe.native.header import at
from evopipe.rng import Stream, salt
from evopipe.types import Tensor


def best_or_random(q: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor | None:
    """Choose ε-greedy actions by the C kernels; return the actions `[P, E]` int64.

    The result is None if the kernels cannot do this; the caller then uses `ops.policy.epsilon_greedy`.

    Args:
        q: `[P, E, A]`, the values of A actions, for P members with E environments each.
        legal: `[P, E, A]` bool, the legal actions.
        epsilon: `[P]`, the probability ε of a uniformly random legal action.
        draw: the stream of random numbers.
    """
    found = torch.empty(q.shape[:2], dtype=torch.int64)
    return found if _filled("best_or_random", q, legal, epsilon, draw, found) else None


def clipped_or_random(action: Tensor, epsilon: Tensor, draw: Stream) -> Tensor | None:
    """Clip continuous actions to [−1, 1] with the C kernels; with probability ε, replace each by a uniform draw.

    The result has the shape of `action`. It is None if the kernels cannot be used; the caller then uses torch, by
    `ops.policy.or_random`.

    Args:
        action: `[P, E, A]`, the actions of P members with E environments each.
        epsilon: `[P]`, the probability ε.
        draw: the stream of random numbers.
    """
    found = torch.empty(action.shape)
    return found if _filled("clipped_or_random", action, None, epsilon, draw, found) else None


def squashed(mean: Tensor, log_std: Tensor | None = None, noise: Tensor | None = None) -> Tensor | None:
    """Return the tanh of Gaussian means or samples, by the C kernels.

    With `log_std` and `noise`, the result is tanh(mean + exp(log_std) · noise), a sample; without them, tanh(mean). The
    result is None if the kernels cannot compute it; then torch does. See `ops.distributions.squashed` and
    `ops.distributions.squashed_draw`.

    Args:
        mean: the means, of any shape.
        log_std: the log standard deviations, which broadcast to the shape of `mean`; None for no sample.
        noise: standard normal numbers, which broadcast to the shape of `mean`; None for no sample.
    """
    given = [x for x in (mean, log_std, noise) if x is not None]
    if not build.serve(*given) or any(x.dtype != torch.float32 or x.requires_grad for x in given):
        return None
    own = [None if x is None else x.expand(mean.shape).contiguous() for x in (mean, log_std, noise)]
    found = torch.empty(mean.shape)
    build.kernels().squash(header.of("squash_call")(found.numel(), *map(at, own), at(found)))
    return found


def _filled(
    name: str, values: Tensor, legal: Tensor | None, epsilon: Tensor, draw: Stream, found: Tensor
) -> bool:  # fmt: skip
    if not build.serve(values) or not values.dtype == epsilon.dtype == torch.float32:
        return False
    values, epsilon, keys = values.contiguous(), epsilon.contiguous(), draw.keys.contiguous()
    legal = None if legal is None else legal.contiguous()
    getattr(build.kernels(), name)(header.of("explore_call")(
        *values.shape, at(keys), salt(draw.purpose), at(draw.step), at(epsilon), at(values), at(legal), at(found)
    ))  # fmt: skip
    return True
