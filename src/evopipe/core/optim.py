"""Adam and gradient clipping over flat rows: every member has its own learning rate, step count and norm."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from evopipe.core.net import Net, Nets
from evopipe.core.structure import Structure
from evopipe.native import optimiser as native
from evopipe.native.networks import BETA1, BETA2, EPS
from evopipe.types import Tensor


@dataclass(frozen=True)
class Adam:
    """Adam's moments for one network of several members (Kingma & Ba, 2015).

    Attributes:
        structure: the layout of the network's rows.
        mean, square: `[P, N]`, the first and second moments, for P rows of N parameters.
        steps: `[P]` float32, the number of each row's steps.
    """

    structure: Structure
    mean: Tensor
    square: Tensor
    steps: Tensor

    @classmethod
    def start(cls, net: Net) -> Adam:
        zeros = torch.zeros_like(net.values)
        return cls(net.structure, zeros, zeros.clone(), torch.zeros(len(zeros), device=zeros.device))

    def part(self, first: int, end: int) -> Adam:
        """Return the moments of the rows `first` to `end` (exclusive); they share memory with these moments."""
        kept = (tensor[first:end] for tensor in (self.mean, self.square, self.steps))
        return Adam(self.structure.part(first, end), *kept)


def start(*nets: Net) -> tuple[Any, ...]:
    """Return a tuple: zero Adam moments for each network, and last a tensor of zeros `[P]`, which will count the
    members' updates."""
    values = nets[0].values
    return *map(Adam.start, nets), torch.zeros(len(values), device=values.device)


def start_encoder(nets: Nets) -> tuple[Net | None, Net | None, Adam | None]:
    """Return the shared encoder, a copy of it as target network, and its zero Adam moments. `nets` are the networks by
    name.

    All three are None if the networks have no shared encoder.
    """
    encoder = nets.get("encoder")
    return (None, None, None) if encoder is None else (encoder, encoder.copy(), Adam.start(encoder))


def leaf(value: Tensor) -> Tensor:
    """Return a leaf of autograd that shares memory with `value`, a tensor of the algorithm's state.

    The leaf's `.grad` is allocated, and zeros.
    """
    found: Tensor = value.detach().requires_grad_(True)
    found.grad = torch.zeros_like(found)
    return found


_watched: list[tuple[Tensor, Tensor]] | None = None


@contextlib.contextmanager
def watched() -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Record gradient norms while the `with` block lasts, in the list that the context manager yields.

    Each time gradients are clipped, the list gets a pair: the norms before clipping, `[P]` float64 for P members, and
    whether each norm was above the limit, `[P]` bool.
    """
    global _watched
    found: list[tuple[Tensor, Tensor]] = []
    _watched = found
    try:
        yield found
    finally:
        _watched = None


def _watch(grads: Sequence[Tensor], limit: Tensor) -> None:
    """Take note of gradients `[P · K, n]` that are clipped together, if someone wants to know."""
    if _watched is None:
        return
    each = [torch.linalg.vector_norm(grad, dim=1, dtype=torch.float64) for grad in grads]
    norms = torch.stack(each, dim=1).square().sum(dim=1).view(len(limit), -1)  # [P, K], squared
    over = norms.sqrt() + 1e-6 > limit[:, None]
    _watched.append((norms.sum(dim=1).sqrt(), over.any(dim=1)))


def backward(losses: Tensor, *nets: Net) -> None:
    """Compute the gradients of the members' losses `[P]` by backpropagation, into `net.grad` of each network.

    The losses are summed over members only here. No member's loss depends on another member's parameters, so each
    gradient is that of the member's own loss.
    """
    if not torch.compiler.is_compiling():
        _take_layout_warning()
    for net in nets:
        net.grad.zero_()
    losses.sum().backward()  # a gradient given from outside would cost an import of a fifth of a second once a process


@lru_cache(maxsize=1)
def _take_layout_warning() -> None:
    """Let torch say here, unheard, what it says once a process: that it would like gradients contiguous, to steal them.
    Ours are preset views that it adds to. Unlike a filter this changes nothing for anyone else."""
    leaf = torch.zeros(2, 2)[:, :1].requires_grad_(True)
    leaf.grad = torch.zeros(2, 2)[:, :1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        leaf.sum().backward()


def clip_gradients(net: Net, limit: Tensor) -> Tensor:
    """Clip the gradient norm of every row of a network to its member's `limit` `[P]`, in place.

    Return each member's norm before clipping, `[P]`; for a member with several rows, the sum of the rows' norms. Rows
    are clipped separately, so that a NaN of one member does not reach others.
    """
    norms: Tensor = torch.linalg.vector_norm(net.grad, dim=1)
    net.grad.mul_((_by_row(limit, net) / (norms + 1e-6)).clamp(max=1.0)[:, None])
    return norms if len(norms) == len(limit) else norms.view(len(limit), -1).sum(dim=1)


def clip_together(grads: list[Tensor], limit: Tensor) -> Tensor:
    """Clip the joint norm of several gradients of each member, `[P, n]` each, to `limit` `[P]`, in place.

    Return each member's joint norm before clipping, `[P]`.
    """
    _watch(grads, limit)
    each = [torch.linalg.vector_norm(grad, dim=1) for grad in grads]
    norms: Tensor = torch.linalg.vector_norm(torch.stack(each, dim=1), dim=1)  # along 0, bits would depend on P
    scale = (limit / (norms + 1e-6)).clamp(max=1.0)[:, None]
    for grad in grads:
        grad.mul_(scale)
    return norms


def _by_row(values: Tensor, net: Net) -> Tensor:
    """Members' values `[P]` for every row of a network that has K rows a member, `[P · K]`."""
    each = len(net.values) // len(values)
    return values if each == 1 else values.repeat_interleave(each)


def step(net: Net, adam: Adam, lr: Tensor, active: Tensor, beta1: float = BETA1) -> None:
    """Take one Adam step, in place, for the members for which `active` `[P]` is True. Other members are unchanged.

    `lr` `[P]` are learning rates, and `beta1` is the decay of the first moment; the gradients are those in `net.grad`.
    """
    if native.serve(net, net.values, net.grad, adam.mean):
        native.adam(net, adam.mean, adam.square, adam.steps, lr, active, (beta1, BETA2), EPS)
        return
    lr, active = _by_row(lr, net), _by_row(active, net)
    # A compiler fuses the plain formula itself, and cannot look into the kernel.
    if net.values.device.type == "cpu" and not torch.compiler.is_compiling() and _fused_is_sound():
        _fused_step(net, adam, lr, active, beta1)
    else:
        _plain_step(net, adam, lr, active, beta1)


def descend(
    losses: Tensor, healthy: Tensor, limit: Tensor,
    *learners: tuple[Net | None, Adam | None, Tensor], beta1: float = BETA1,
) -> Tensor:  # fmt: skip
    """Take one gradient step on each member's loss, in place; return which members took the step, `[P]` bool.

    A member takes the step if it was healthy before, and its loss and gradients are finite.

    Args:
        losses: `[P]`, the members' losses.
        healthy: `[P]` bool, the members that were healthy before.
        limit: `[P]`, the largest gradient norm of each network.
        learners: triples of a network, its Adam moments and its learning rates `[P]`. A triple whose network is None,
            such as an absent shared encoder, is skipped.
        beta1: the decay of Adam's first moment.
    """
    found = [(net, adam, lr) for net, adam, lr in learners if net is not None and adam is not None]
    backward(losses, *(net for net, _, _ in found))
    for net, _, _ in found:
        _watch([net.grad], limit)
    if all(native.serve(net, net.grad) for net, _, _ in found):
        healthy = healthy.clone()
        for net, _, _ in found:
            native.clip(net, limit, losses, healthy)
    else:
        for net, _, _ in found:
            healthy = healthy & ((losses + clip_gradients(net, limit)).abs() < torch.inf)
    for net, adam, lr in found:
        step(net, adam, lr, healthy, beta1)
    return healthy


def _plain_step(net: Net, adam: Adam, lr: Tensor, active: Tensor, beta1: float = BETA1) -> None:
    """Adam as written in the paper: no host synchronisation, so that a CUDA graph can hold it."""
    on = active.to(lr.dtype)[:, None]
    grad = torch.where(active[:, None], net.grad, 0.0)
    adam.steps.add_(on[:, 0])
    adam.mean.lerp_(grad, (1 - beta1) * on)
    adam.square.lerp_(grad * grad, (1 - BETA2) * on)
    count = adam.steps.clamp(min=1.0)[:, None]
    unbias1, unbias2 = (-torch.expm1(count * math.log(beta)) for beta in (beta1, BETA2))  # 1 − βⁿ cancels in float32
    denominator = (adam.square / unbias2).sqrt_().add_(EPS)
    net.values.sub_(lr[:, None] * on * (adam.mean / unbias1) / denominator)


def _fused_step(net: Net, adam: Adam, lr: Tensor, active: Tensor, beta1: float = BETA1) -> None:
    """Adam by torch's fused CPU kernel: a fraction of the plain formula's time.

    A call knows one learning rate and one step count: neighbours that agree in both go in together. Rows are whole
    cache lines long, so that a row's arithmetic does not depend on its neighbours.
    """
    adam.steps.add_(active)
    for rate, a, b in _equal_runs(lr.tolist(), adam.steps.tolist(), active.tolist()):
        _fused(net.values[a:b], net.grad[a:b], adam.mean[a:b], adam.square[a:b], adam.steps[a], rate, beta1)


def _fused(
    values: Tensor, grad: Tensor, mean: Tensor, square: Tensor, count: Tensor, lr: float, beta1: float = BETA1
) -> None:
    torch._fused_adam_(
        [values], [grad], [mean], [square], [], [count], lr=lr, beta1=beta1, beta2=BETA2, weight_decay=0.0, eps=EPS,
        amsgrad=False, maximize=False, grad_scale=None, found_inf=None,
    )  # fmt: skip


def _equal_runs(rates: list[float], steps: list[float], active: list[bool]) -> list[tuple[float, int, int]]:
    """(rate, first, end) of neighbouring active rows with equal rates and step counts."""
    runs: list[tuple[float, int, int]] = []
    for i, on in enumerate(active):
        if not on:
            continue
        if runs and runs[-1][2] == i and (runs[-1][0], steps[runs[-1][1]]) == (rates[i], steps[i]):
            runs[-1] = (rates[i], runs[-1][1], i + 1)
        else:
            runs.append((rates[i], i, i + 1))
    return runs


@lru_cache(maxsize=1)
def _fused_is_sound() -> bool:
    """Whether torch's fused kernel is there and agrees with the formula on a small example."""
    grad = torch.tensor([0.5, -0.25, 0.0, 3.0])
    values, mean, square, count = torch.zeros(4), torch.zeros(4), torch.zeros(4), torch.ones(())
    try:
        _fused(values, grad, mean, square, count, 0.5)
    except (AttributeError, TypeError, RuntimeError):
        return False
    expected = -0.5 * grad / (grad.abs() + EPS)  # at step 1 both bias corrections cancel
    return bool(torch.allclose(values, expected, atol=1e-6) and torch.allclose(mean, (1 - BETA1) * grad))


class ScalarAdam:
    """Adam for single numbers of each member, `[P]` or `[P, n]`, such as a temperature.

    The optimiser state of one number consists of 3 numbers: two moments and the step count.
    """

    @staticmethod
    def start(value: Tensor) -> Tensor:
        """Return the initial optimiser state, zeros `[…, 3]`, for values `[…]`."""
        return torch.zeros(*value.shape, 3, device=value.device)

    @staticmethod
    def step(value: Tensor, state: Tensor, grad: Tensor, lr: Tensor, active: Tensor) -> None:
        """Take one Adam step, in place, where `active` is True.

        Args:
            value: `[…]`, the numbers to change.
            state: `[…, 3]`, the optimiser state, which is changed too.
            grad: `[…]`, the gradients.
            lr, active: learning rates and bool, which broadcast to `[…]`.
        """
        mean, square, steps = state.unbind(dim=-1)
        mean, square, steps = torch.lerp(mean, grad, 1 - BETA1), torch.lerp(square, grad * grad, 1 - BETA2), steps + 1
        unbias1, unbias2 = (-torch.expm1(steps * math.log(beta)) for beta in (BETA1, BETA2))
        moved = value - lr * (mean / unbias1) / ((square / unbias2).sqrt() + EPS)
        value.copy_(torch.where(active, moved, value))
        state.copy_(torch.where(active[..., None], torch.stack((mean, square, steps), dim=-1), state))


def learn_temperature(
    state: Any, lr: Tensor, weight: Tensor, entropy: Tensor, aim: float | Tensor, active: Tensor,
) -> None:  # fmt: skip
    """Move log α, the logarithm of the entropy's weight, so that the entropy nears its target; in place.

    The gradient is the weighted mean of entropy − target (Haarnoja et al., "Soft actor-critic algorithms and
    applications", 2018).

    Args:
        state: the algorithm's state. Its `log_alpha` `[P]` and `log_alpha_adam` `[P, 3]` change.
        lr: `[P]`, the learning rates.
        weight: `[P, B]`, the weights of a minibatch's B transitions.
        entropy: `[P, B]`, the policy's entropy in each state, without gradient.
        aim: the target of the entropy, one number or `[P, B]`.
        active: `[P]` bool, the members that learn.
    """
    ScalarAdam.step(state.log_alpha, state.log_alpha_adam, (weight * (entropy - aim)).sum(dim=1), lr, active)


def polyak(target: Net | None, online: Net | None, weight: Tensor) -> None:
    """Move a target network towards the online network, in place: target ← target + weight · (online − target).

    `weight` is `[P]` for P members. Weight 1 copies the online network and weight 0 keeps the target, both exactly. But
    where an online parameter is not finite, the target's is not finite afterwards, even with weight 0. If a network is
    None, nothing happens.
    """
    if target is None or online is None:
        return
    if native.serve(target, target.values, online.values):
        native.polyak(target, online, weight)
        return
    target.values.lerp_(online.values, _by_row(weight, target)[:, None])
