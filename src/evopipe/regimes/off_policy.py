"""The off-policy regime: members act, store transitions in a replay buffer, and learn from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from evopipe.algos import MASKED, ONE_AGENT
from evopipe.core import pixels
from evopipe.core.cohort import Cohort
from evopipe.envs import backends
from evopipe.envs.goals import Goals
from evopipe.envs.pool import EnvPool
from evopipe.envs.rows import RowStep
from evopipe.errors import ParamsError
from evopipe.memory.hindsight import Hindsight
from evopipe.memory.nstep import NStep
from evopipe.memory.replay import Incoming, RowLayout
from evopipe.native import build
from evopipe.regimes.in_c import WholeTicks
from evopipe.regimes.learn import ReplayLearning
from evopipe.regimes.probe import APART, SPARSE, Probe
from evopipe.regimes.watched import Watched
from evopipe.run.evaluate import Evaluator
from evopipe.run.regime import Setup
from evopipe.run.world import TensorWorld, World
from evopipe.types import Image

if TYPE_CHECKING:
    from evopipe.data.transitions import Transitions

_BYTES = ((0.0, 255.0), (0.0, 1.0))  # bounds of images whose pixels are whole


class OffPolicy:
    """The regime (see `Regime`) of off-policy algorithms: members act, store transitions, and learn from a replay
    buffer.

    `setup` holds the configuration, clock, random keys, dataset and helper processes of the run, see `Setup`. The
    attribute `remarks` is empty, because there are no warnings for the user.

    Raises:
        ParamsError: the run starts with transitions of a dataset, but the environment is for a team or masks actions,
            and datasets record neither agents nor masks. Or evaluation episodes are to be stored in the replay buffer,
            but observations have images, or the environment is for a team.
    """

    remarks: Sequence[str] = ()

    def __init__(self, setup: Setup) -> None:
        spec, self.clock, self.keys, warm = setup.spec, setup.clock, setup.keys, setup.warm
        self.spec, self.whole = spec, True
        self.world: World | TensorWorld
        if backends.as_tensors(spec.env) is not None and spec.train.replay.n_step == 1:
            self.world = TensorWorld(spec, self.keys, self.clock)
        else:  # steps are put together on the host
            envs = len(self.keys) * self.clock.envs
            pool = EnvPool(spec.env, envs, workers=setup.workers, overlapped=spec.overlapped)
            self.world = World(spec, self.keys, self.clock, pool)
        self.evaluate = Evaluator(spec, len(self.keys), setup.workers, on_host=spec.train.replay.evaluation)
        pool = self.world.pool
        self.threshold = pool.reward_threshold
        if spec.spaces.team and warm:
            raise ParamsError(ONE_AGENT)
        if self.world.masked and warm:
            raise ParamsError(MASKED["online"])
        cfg = spec.train.replay
        memories = len(self.keys) // cfg.members(len(self.keys))
        layout = RowLayout.of(spec.spaces, self.world.masked, cfg.n_step, spec.algo.MASKED_LOSS)
        self.learning = ReplayLearning(setup, layout, memories, cfg.capacity, byte_images(pool, warm))
        self.replay, self.learners = self.learning.replay, self.learning.learners
        self._probe = Probe(spec, self.clock, apart=SPARSE if isinstance(self.world, TensorWorld) else APART)
        self._probed_from = 0  # the tick from which on a probe is due: asking at every tick costs more than probes
        self.first, self.inherit = self.learning.first, self.learning.inherit
        self.nstep = NStep(layout, pool.rows) if cfg.n_step > 1 else None
        self._goals = None if cfg.hindsight is None else Goals(spec.env)
        self._hindsight: Hindsight | None = None
        if cfg.hindsight is not None and self._goals is not None:
            asked = cfg.hindsight.goals, cfg.hindsight.strategy
            self._hindsight = Hindsight(layout, self._goals, self.keys, self.clock.envs, *asked)
        self._incoming: Incoming | None = None
        self._whole_ticks: WholeTicks | None = None
        if isinstance(self.world, TensorWorld):
            self._whole_ticks = WholeTicks(spec, self.clock, self.world, self.learning)
        self._windows = self.nstep  # of the environments that step
        self._watched: Watched | None = None
        if cfg.evaluation:
            if spec.spaces.team or self.replay.frames is not None:
                what = "a team" if spec.spaces.team else "images"
                raise ParamsError(f"train.replay.evaluation: not served where there are {what}: set it to false")
            self._watched = Watched(layout, self.evaluate.pool.rows)
            self.evaluate.watch = self._watched
        self.warm, self._begins_with = min(len(warm or ()), cfg.capacity), warm
        self._fill(range(memories))

    def _fill(self, memories: Sequence[int]) -> None:
        """Put the transitions that members begin with into these memories."""
        warm, layout, replay = self._begins_with, self.replay.layout, self.replay
        if not warm:
            return
        rows = layout.pack(warm.obs, warm.action, warm.reward, warm.terminated, warm.next_obs)
        keep = np.zeros((replay.memories, len(rows)), bool)
        keep[list(memories)] = True
        replay.add(np.repeat(rows[None], replay.memories, axis=0), keep, each=len(rows))
        if not self.spec.strategy.RENEWS:
            self._begins_with = None  # no member begins any more

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        """Set the members that act from now on, in groups (cohorts) that are computed as one batch; see `Regime.adopt`.

        If evaluation episodes are to be stored, the transitions of the previous evaluation are first added to the
        replay buffers.
        """
        self._gather_windows()
        if self._watched is not None:
            self._watched.into(self.replay)
        self.cohorts = cohorts
        self.world.adopt(cohorts)
        self.learning.adopt(cohorts)
        self._probe.adopt(cohorts)
        self._probed_from = 0
        if self.nstep is not None:
            self._windows = self.nstep if self.world.rows is None else self.nstep.part(self.world.rows)
        if isinstance(self.world, World) and self._hindsight is None:
            self._incoming = self.replay.incoming(self.world.pool.rows, self.world.rows)
        if self._whole_ticks is not None:
            self._whole_ticks.adopt(cohorts)

    def _gather_windows(self) -> None:
        """Take the windows of those who lived back among all."""
        rows, windows = self.world.rows, self._windows
        if self.nstep is not None and windows is not None and windows is not self.nstep and rows is not None:
            self.nstep.put(rows, windows)

    def renew(self, slots: Sequence[int]) -> None:
        """Begin new episodes in these slots (places in the population), because they get new trials (members with new
        weights). See `Regime.renew`.

        A replay buffer that belongs to one of these slots alone is emptied.
        """
        rows = self.world.renew(slots)
        if self._whole_ticks is not None:
            self._whole_ticks.adopt(self.cohorts)
        if self.nstep is not None:
            self._gather_windows()
            self._windows = self.nstep
            self.nstep.forget(rows)
        if self._hindsight is not None:
            self._hindsight.forget(rows)
        if self.spec.train.replay.sharing in ("own", 1):
            if self._watched is not None:  # what those did who were there before
                self._watched.into(self.replay)
            self.replay.clear(slots)
            self._fill(slots)

    def reopen(self, kwargs: Mapping[str, Any]) -> None:
        """Make the environments anew with these keyword arguments, which the user's curriculum chose
        (`train.curriculum`). The replay buffer stays."""
        assert isinstance(self.world, World)
        self.whole = False
        self.world.reopen(kwargs)
        if self.nstep is not None:
            self._gather_windows()
            self._windows = self.nstep
            self.nstep.forget(np.arange(self.world.pool.rows))
        if self._hindsight is not None:
            self._hindsight.forget(np.arange(self.world.pool.rows))
        if self._goals is not None:
            self._goals.reopen(kwargs)
        self.whole = True

    def ended(self) -> np.ndarray:
        """Return the mean return of the training episodes that ended in this generation, `[P]`, for each of the P slots
        (places in the population); NaN for a slot without such an episode."""
        assert self.world.ended is not None
        return self.world.ended.means()

    def advance(self, most: int = 1) -> None:
        """Take one step in every environment, store the transitions, and make the updates that are due.

        Environments in C may take up to `most` steps. Members learn while the environments step, from the replay buffer
        as it was before this step.

        Raises:
            EnvironmentFailed: an environment failed. The state can be saved then: the chosen actions stay pending, and
                are taken at the next call.
        """
        world, clock = self.world, self.clock
        chosen = world.pending is None
        if most > 1 and self._whole_ticks is not None:
            self.whole = False
            taken = self._whole_ticks.take(min(most, self.learning.ahead(self._probe)))
            if taken:
                self._tell()
            self.whole = True
            if taken:
                world.refuse_broken()
                return
        if chosen:
            world.decide(self.cohorts, self.spec.algo.explore(self.spec.algo_config, clock.step))
        world.send()
        if chosen:
            self.whole = False
            if clock.step + clock.envs > self.spec.train.learning_delay:
                for learn in self.learning.updates():
                    learn()
            self.whole = True
        if isinstance(world, TensorWorld):
            self._step_tensors(world)
        else:
            self._step(world)
        self._tell()
        world.refuse_broken()

    def _tell(self) -> None:
        """Probe members at the end of a tick where it is time, and take note of a generation's end."""
        clock = self.clock
        if clock.step > self.spec.train.learning_delay and clock.tick >= self._probed_from:
            self.learning.probe(self._probe)
            self._probed_from = clock.tick + self.learning.ahead(self._probe)
        if clock.generation_over:
            self._probe.end(self.cohorts, self._at_the_end, self.world.tally)

    def _at_the_end(self, cohort: Cohort) -> dict[str, Tensor]:
        chance = self.spec.algo.explore(self.spec.algo_config, self.clock.step)
        return self.learning.size(cohort) | {"charts/epsilon": torch.full_like(cohort.losses, chance)}

    def signals(self, slots: Sequence[int]) -> list[dict[str, tuple[float, float]]]:
        return self._probe.diagnostics.told(slots)

    def _step(self, world: World) -> None:
        pool, incoming = world.pool, self._incoming
        if incoming is not None and build.chosen() is not None:
            incoming.before(world.own(pool.obs), world.own(pool.mask))
            step, actions = pool.receive(), world.pending
            assert actions is not None
            self.whole = False
            incoming.after(actions, step.reward, step.terminated, step.obs, step.mask, step.broken)
            world.end(step)
            self.whole = True
            return
        obs = world.own(pool.obs).copy()
        legal = world.own(pool.mask).copy() if self.replay.layout.legal else None
        alive = world.own(pool.alive).copy() if self.spec.spaces.team else None
        step = pool.receive()
        assert world.pending is not None
        self.whole = False
        self._store(obs, legal, world.pending, step, alive)
        world.end(step)
        self.whole = True

    def _step_tensors(self, world: TensorWorld) -> None:
        """Take a step whose transitions never leave the device, unless something of them is not finite, or they have
        images, which are kept as bytes."""
        obs, *_ = world.observed()
        assert world.pending is not None
        self.whole = False
        step = world.take(world.pending)
        layout, memories = self.replay.layout, self.replay.memories
        rows, bad = world.packed(layout, obs, world.pending, step), world.broken(step)
        together = world.rows is None and self.replay.evenly_filled and self.replay.frames is None
        if together and (bad is None or bool(rows.isfinite().all())):
            self.replay.add_all(rows.view(memories, -1, layout.size))
        else:
            keep = np.ones((len(rows), 1), bool) if bad is None else ~bad.cpu().numpy()[:, None]
            self._remember(rows.cpu().numpy()[:, None], keep)
        world.end(step)
        self.whole = True

    def _store(
        self, obs: np.ndarray, legal: np.ndarray | None, actions: np.ndarray, step: RowStep, alive: np.ndarray | None
    ) -> None:
        layout = self.replay.layout
        taken = obs, actions, step.reward, step.terminated
        if self._windows is None:
            next_alive = step.next_alive if layout.agents else None
            rows = layout.pack(*taken, step.obs, step.mask, legal=legal, alive=alive, next_alive=next_alive)[:, None]
            keep = ~step.broken[:, None]
        else:
            of_team = (alive, step.over, step.next_alive) if layout.agents else ()
            rows, keep = self._windows.add(*taken, step.truncated, step.obs, step.mask, step.broken, legal, *of_team)
        self._remember(rows, keep)
        if self._hindsight is not None:
            self._look_back(self._hindsight, rows[:, 0], keep[:, 0], step.over)

    def _look_back(self, hindsight: Hindsight, rows: np.ndarray, keep: np.ndarray, over: np.ndarray) -> None:
        """Record the step of those who live, and store the episodes that it ended again, with other goals."""
        assert isinstance(self.world, World)
        at = np.arange(self.world.pool.rows) if self.world.rows is None else self.world.rows
        found, envs = hindsight.add(at, rows, keep, over, self.world.begun[at])
        if len(found):
            self.replay.add_of(self.replay.memory_of(envs // self.clock.envs), found)

    def _remember(self, rows: np.ndarray, keep: np.ndarray) -> None:
        """Put rows `[R, n, size]` of those who live into their memories, but those that `keep` `[R, n]` leaves out."""
        if self.world.rows is not None:
            every, those = self.world.pool.rows, keep
            rows, found = np.zeros((every, *rows.shape[1:]), np.float32), rows
            keep = np.zeros((every, keep.shape[1]), bool)
            rows[self.world.rows], keep[self.world.rows] = found, those
        memories = self.replay.memories
        self.replay.add(rows.reshape(memories, -1, rows.shape[-1]), keep.reshape(memories, -1))

    def state(self) -> dict[str, Tensor]:
        tensors = {f"replay.{k}": v for k, v in self.replay.state().items()} | self.world.state()
        tensors |= self._probe.diagnostics.state()
        self._gather_windows()
        if self.nstep is not None:
            tensors |= {f"nstep.{k}": torch.from_numpy(v) for k, v in self.nstep.state().items()}
        if self._hindsight is not None:
            tensors |= {f"hindsight.{k}": torch.from_numpy(v) for k, v in self._hindsight.state().items()}
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> int:
        self._probe.diagnostics.restore(tensors)
        self.replay.restore({k.removeprefix("replay."): v for k, v in tensors.items() if k.startswith("replay.")})
        if self.nstep is not None:
            self.nstep.restore({k: tensors[f"nstep.{k}"].numpy() for k in self.nstep.state()})
        if self._hindsight is not None:
            self._hindsight.restore({k: tensors[f"hindsight.{k}"].numpy() for k in self._hindsight.state()})
        lost = self.world.restore(tensors)
        if self._hindsight is not None:
            self._hindsight.forget(lost)
        if self._whole_ticks is not None:
            self._whole_ticks.adopt(self.cohorts)
        if self.nstep is not None:
            self.nstep.forget(lost)
            self._windows = self.nstep if self.world.rows is None else self.nstep.part(self.world.rows)
        return len(lost)

    def close(self) -> None:
        self.learners.close()
        self.world.pool.close()
        if self._goals is not None:
            self._goals.close()
        self.evaluate.pool.close()


def byte_images(pool: Any, data: Transitions | None = None) -> list[Image]:
    """Return the images of an observation that can be stored as bytes without loss; none for a team.

    An image can be stored as bytes if every pixel is k / 255 for a whole number k from 0 to 255. This holds for images
    of uint8 with the bounds 0 and 255 (or 0 and 1), and for images of bools.

    Args:
        pool: the environments, whose observation space says which images have such pixels.
        data: transitions whose observations are checked too, or None. Images with other pixels are left out.
    """
    found, start = [], 0
    if pool.spaces.team is not None:  # their images are kept as numbers
        return []
    for leaf in pool.observations.leaves:
        space: Any = pool.observation_space
        for key in leaf.path:
            space = space[key]
        if leaf.channels is not None and space.dtype in (np.uint8, np.bool_) and (leaf.low, leaf.high) in _BYTES:
            found.append(leaf.image(start))
        start += leaf.size
    shown = () if data is None else (data.obs, data.next_obs)
    return [
        image
        for image in found
        if all(pixels.exact(obs[:, image.start : image.start + image.size]) is not None for obs in shown)
    ]
