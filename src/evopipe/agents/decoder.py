"""Waves of requests as batches: what members' completions are, each drawn by its episode and call alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from evopipe import rng
from evopipe.agents.model import Reply, Request, Sampled
from evopipe.core.cohort import Cohort
from evopipe.language.base import stacked
from evopipe.language.generate import Sampling, generate
from evopipe.rng import Purpose
from evopipe.run.language import LanguageSpec

_AT_ONCE = 512  # completions of each member that are decoded at a time


@dataclass(frozen=True)
class Decoder:
    """Answers the requests of a wave by the members that they are of."""

    spec: LanguageSpec
    cohorts: Sequence[Cohort]
    purpose: Purpose
    when: int

    def __call__(self, wave: Sequence[Request]) -> list[Reply]:
        found: dict[int, Reply] = {}
        for cohort in self.cohorts:
            own = [[i for i, request in enumerate(wave) if request.slot == slot] for slot in cohort.slots]
            for start in range(0, max(len(each) for each in own), _AT_ONCE):
                parts = [each[start : start + _AT_ONCE] for each in own]
                found |= self._part(cohort, wave, parts)
        return [found[i] for i in range(len(wave))]

    @torch.no_grad()
    def _part(self, cohort: Cohort, wave: Sequence[Request], parts: Sequence[Sequence[int]]) -> dict[int, Reply]:
        """Complete requests `parts` of each member; where a member has fewer, pads stand and are thrown away."""
        base, device, width = self.spec.base, self.spec.device, max(len(part) for part in parts)
        keys = cohort.keys.cpu().tolist()
        prompts: list[list[int]] = []
        how: list[Sampled] = []
        seeds: list[tuple[int, int, int]] = []
        stop: list[tuple[str, ...]] = []
        limit = 1
        for part, key in zip(parts, keys, strict=True):
            own = [wave[i] for i in part]
            limit = max(limit, *(request.limit for request in own)) if own else limit
            pads = width - len(own)
            prompts += [*(request.ids for request in own), *([[base.pad]] * pads)]
            how += [*(request.how for request in own), *([Sampled(0.0)] * pads)]
            stop += [*(request.stop for request in own), *([()] * pads)]
            seeds += [*((key, request.job, request.call) for request in own), *([(key, 0, 0)] * pads)]
        ids, real = (x.view(len(parts), width, -1).to(device) for x in stacked(prompts, base.pad, left=True))
        told = np.array(seeds, dtype=np.int64)
        tick = np.full(len(told), self.when, dtype=np.int64)
        drawn = torch.from_numpy(rng.seeds(told[:, 0], self.purpose, tick, told[:, 1], told[:, 2]))
        temperature, top_k, top_p = (
            torch.tensor(each, device=device).view(len(parts), width) for each in zip(*how, strict=True)
        )
        policy = getattr(cohort.state, self.spec.algo.POLICY)
        structure: Any = policy.structure

        def active() -> AbstractContextManager[Any]:
            context: AbstractContextManager[Any] = structure.active(policy.frozen.views)
            return context

        written = generate(
            base, active, ids, real, 1, limit, Sampling(temperature, top_k.long(), top_p),
            drawn.view(len(parts), width).to(device), 0, self.spec.cohorts == "merged",
            stop if any(stop) else (),
        )  # fmt: skip
        lengths, tokens = written.lengths.tolist(), written.ids.tolist()
        log_probs, entropies = written.log_prob.tolist(), written.entropy.tolist()
        found = {}
        for p, part in enumerate(parts):
            for b, i in enumerate(part):
                n = min(lengths[p][b], wave[i].limit)
                found[i] = Reply(tokens[p][b][:n], log_probs[p][b][:n], entropies[p][b][:n])
        return found
