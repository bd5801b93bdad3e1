"""Returns and lengths of training episodes. They are shown to users; no result depends on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from evopipe.core.graphs import upload
from evopipe.ops.signals import agent_names
from evopipe.run.diagnostics import Diagnostics

_TICKS, _NUMBERS = 1024, 1 << 20  # that are added up together: ticks, and rewards


class Tally:
    """The statistics of training episodes that ended in this generation: sums of returns and lengths, and counts, for
    `P` slots.

    Environments on the host report whole episodes (`ended`). Environments on a device report each tick's rewards
    (`add`), which are summed after many ticks, so that a tick costs little.

    Args:
        members: `P`, the number of slots (places in the population).
        rows: `R`, the number of environments that report by `add`.
        device: the device of these environments.
        agents: the names of a team's `K` agents, each of which has returns of its own.

    Attributes:
        sums: `[3 + K, P]` float64: returns, lengths, number of episodes, and each agent's returns.
        running: `[2 + K, R]` float64: return and length so far of the running episodes, and each agent's return.
            `sums` and `running` are changed in place, and never replaced by other tensors.
        score: whether a team's return is the `sum` or the `mean` of the agents' returns.
    """

    score: Literal["sum", "mean"] = "sum"

    def __init__(self, members: int, rows: int, device: torch.device, agents: Sequence[str] = ()) -> None:
        self._names = ["charts/episodic_return", "charts/episodic_length"]
        self._names += [f"agents/{agent}/episodic_return" for agent in agent_names(agents)]
        self.sums = torch.zeros(3 + len(agents), members, dtype=torch.float64, device=device)
        self.running = torch.zeros(2 + len(agents), rows, dtype=torch.float64, device=device)
        self._lost = torch.zeros(members, dtype=torch.float64)  # steps of broken episodes, of what the kernels took
        self._ticks: list[tuple[Tensor, Tensor]] = []  # rewards, and where an episode ended
        self._whole: list[tuple[np.ndarray, ...]] = []  # of episodes slots, returns, lengths, and agents' returns
        self._rows: Tensor | None = None  # of those who live, None if all do

    def ended(self, slots: np.ndarray, returns: np.ndarray, lengths: np.ndarray, *agents: np.ndarray) -> None:
        """Add `n` whole episodes.

        Args:
            slots: `[n]`, the slots (places in the population) of the members that played them.
            returns: `[n]`, the returns.
            lengths: `[n]`, the lengths.
            agents: for a team, an array `[n]` for each agent: its returns.
        """
        self._whole.append((slots, returns, lengths, *agents))

    def add(self, reward: Tensor, over: Tensor, bad: Tensor | None = None) -> None:
        """Add the rewards of one step of R environments, `[R]`, or `[R, K]` for a team of K agents.

        `over` `[R]` bool says which episodes ended. `bad` `[R]` bool says which episodes were broken by the
        environment; these do not count.
        """
        if bad is not None:
            self.settle()
        self._ticks.append((reward, over if bad is None else over | bad))
        if bad is not None:
            self.settle(over & ~bad)
        elif len(self._ticks) >= min(_TICKS, _NUMBERS // reward.numel()):
            self.settle()

    def settle(self, good: Tensor | None = None) -> None:
        """Add to `sums` the episodes that ended since the last call, and to `running` the rewards and lengths of the
        episodes that go on.

        `good` `[R]` bool says in which of the R environments an episode ended and counts. If it is None, all ended
        episodes count. `good` may be given only if exactly one step was added since the last call.
        """
        if self._whole:
            slots, returns, lengths, *own = (np.concatenate(each) for each in zip(*self._whole, strict=True))
            self._whole.clear()
            for sums, added in zip(self.sums.numpy(), (returns, lengths, np.ones(len(slots)), *own), strict=True):
                np.add.at(sums, slots, added)
        if not self._ticks:
            return
        reward, ends = (torch.stack(each) for each in zip(*self._ticks, strict=True))  # [T, R, …]
        self._ticks.clear()
        agents = reward[..., : len(self.running) - 2] if reward.ndim == 3 else reward[..., None][..., :0]  # [T, R, K]
        if reward.ndim == 3:
            reward = reward.sum(dim=2) if self.score == "sum" else reward.mean(dim=2)
        running = (self.running if self._rows is None else self.running[:, self._rows]).T
        each = torch.stack((reward.double(), torch.ones_like(reward, dtype=torch.float64)), dim=-1)
        each = torch.cat((each, agents.double()), dim=-1)
        so_far = running + each.cumsum(dim=0)  # [T, R, 2 + K], as if none had ended
        tick = torch.arange(1, len(ends) + 1, device=ends.device)[:, None]
        last = (ends * tick).amax(dim=0)  # [R], when an episode ended last, 0 for never
        # All episodes that ended are together what came until the last end.
        until = so_far.gather(0, (last - 1).clamp(min=0)[None, :, None].expand(1, -1, so_far.shape[2]))[0]
        counts = last > 0 if good is None else good
        number = ends.sum(dim=0) if good is None else good
        found = torch.where(counts[:, None], until, 0.0)
        found = torch.cat((found[:, :2], number[:, None].double(), found[:, 2:]), dim=1)
        left = torch.where((last > 0)[:, None], so_far[-1] - until, so_far[-1])
        left = torch.where((last == len(ends))[:, None], 0.0, left)
        if self._rows is None:
            self.running.copy_(left.T)
        else:
            self.running[:, self._rows] = left.T
            found = found.new_zeros(self.running.shape[1], len(self.sums)).index_copy_(0, self._rows, found)
        self.sums += found.view(self.sums.shape[1], -1, len(self.sums)).sum(dim=1).T

    def adopt(self, slots: Sequence[int], rows: Tensor | None = None) -> None:
        """Begin a generation: clear the sums of these slots (places in the population).

        `rows` has the indices of the environments whose rewards `add` receives from now on; None for all environments.
        """
        self.settle()
        self._rows = rows
        self.sums[:, list(slots)] = 0.0

    def renew(self, rows: np.ndarray) -> None:
        """Discard the unfinished episodes of the environments with the indices `rows`."""
        self.settle()
        self.running[:, upload(torch.from_numpy(rows), self.running.device)] = 0.0

    def in_c(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the tensors into which the C kernels add episodes. Call `settle` before the kernels run.

        The first tensor, `[R]`, has the returns so far of the running episodes of R environments. The others, `[P]`,
        have for each of P members the sum of the returns of its ended episodes, their number, and the number of steps
        in its broken episodes, which do not count. An episode is broken if a step gave a number that is not finite.
        """
        return self.running[0], self.sums[0], self.sums[2], self._lost

    def took(self, steps: int, living: Sequence[int], length: Tensor) -> None:
        """Add the lengths of finished episodes to `sums`, after the C kernels stepped environments.

        The steps of finished episodes are all steps minus the steps of unfinished episodes. Broken episodes, in which
        a number was not finite, are left out.

        Args:
            steps: the number of environment steps that each trained member took, in all its environments together.
            living: the slots (places in the population) of the members that trained.
            length: `[R]`, the length so far of the unfinished episode in each of the R environments.
        """
        gone = (self.running[1] - length).view(self.sums.shape[1], -1).sum(dim=1)
        gone[list(living)] += steps
        self.sums[1] += gone - self._lost
        self._lost.zero_()
        self.running[1] = length.double()

    def into(self, diagnostics: Diagnostics, slots: Sequence[int]) -> None:
        """Record the episodes of these slots (places in the population) as training signals in `diagnostics`.

        The signals are the number of episodes that ended and, if any did, their mean return and length, and each
        agent's mean return.
        """
        self.settle()
        sums = self.sums[:, list(slots)]
        diagnostics.note(slots, {"charts/episodes": sums[2]})
        some = [place for place, count in enumerate(sums[2].tolist()) if count]
        if len(some) < len(slots):
            slots, sums = [slots[place] for place in some], sums[:, some]
        if some:
            means = torch.cat((sums[:2], sums[3:])) / sums[2]
            diagnostics.note(slots, dict(zip(self._names, means, strict=True)))

    def state(self) -> dict[str, Tensor]:
        self.settle()
        return {"tally.sums": self.sums.to("cpu", copy=True), "tally.running": self.running.to("cpu", copy=True)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self._ticks.clear()
        self._whole.clear()
        self.sums.copy_(tensors["tally.sums"])
        self.running.copy_(tensors["tally.running"])
