"""The on-policy regime: members learn from rollouts, each of which is used once."""

from __future__ import annotations

import itertools
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from evopipe.algos import by_kernels
from evopipe.core.cohort import Cohort
from evopipe.core.graphs import upload
from evopipe.core.member import Member
from evopipe.envs import backends
from evopipe.envs.pool import EnvPool
from evopipe.envs.rows import RowStep
from evopipe.errors import ParamsError, UsageError
from evopipe.memory.rollout import Rollout, StepLayout
from evopipe.native.rollouts import Ticks
from evopipe.regimes.learn import discount_rate
from evopipe.regimes.learners import LearnerPool, Share
from evopipe.regimes.probe import SPARSE, Probe, rates
from evopipe.regimes.rollouts import probe_rollout, ready
from evopipe.run.act import places_of, step
from evopipe.run.evaluate import Evaluator
from evopipe.run.pace import FASTER, next_count
from evopipe.run.regime import Setup
from evopipe.run.world import TensorWorld, World

_NUMBERS, _FLAGS = ("obs", "reward"), ("terminated", "truncated", "broken")  # of a step that a user records

_SECONDS = 0.01  # that a call of C takes, about: signals are handled between two of them

_Pieces: TypeAlias = dict[tuple[str, int], Tensor]
CollectRollouts: TypeAlias = "Callable[[OnPolicy, int], None]"


@dataclass
class _Playing:
    """A cohort as it plays."""

    cohort: Cohort
    rows: list[int] | None  # its members among those who live; None: all, in order
    ends: list[int]  # the ticks of the generation after which it learns
    rollout: Rollout  # what it did since it last learned
    memory: Tensor  # [P, E, M], what its networks carry to the next step

    def due(self, tick: int) -> int:
        """Return how many ticks the rollout has that ends at a tick of the generation, 0 where none does."""
        i = bisect_left(self.ends, tick)
        return self.place(tick - 1) + 1 if i < len(self.ends) and self.ends[i] == tick else 0

    def left(self, tick: int) -> int:
        """Return how many ticks are to come until it learns, at a tick of the generation."""
        return self.ends[bisect_right(self.ends, tick)] - tick

    def place(self, tick: int) -> int:
        """Return how many ticks of the running rollout were taken at a tick of the generation."""
        i = bisect_right(self.ends, tick)
        return tick - self.ends[i - 1] if i else tick


class OnPolicy:
    """The regime (see `Regime`) of on-policy algorithms: members learn from rollouts, each of which is used once.

    Args:
        setup: the configuration, clock, random keys, dataset and helper processes of the run, see `Setup`.
        collect_rollouts: a user's function (regime, ticks) that collects a rollout of `ticks` ticks (steps of all
            environments). For each tick the function calls `regime.choose()` for actions, steps `regime.pool` with
            these, and calls `regime.record` with the results, in which it may change rewards and ends of episodes. None
            if the regime collects rollouts itself.

    Raises:
        ParamsError: the run is to start with transitions of a dataset, which on-policy algorithms cannot use.
        UsageError: `collect_rollouts` is combined with environments that are tensors.
    """

    warm = 0

    def __init__(self, setup: Setup, collect_rollouts: CollectRollouts | None = None) -> None:
        spec, self.clock, self.keys = setup.spec, setup.clock, setup.keys
        if setup.warm:
            raise ParamsError(f"train.warm_start: {spec.train.algo} learns from its own steps alone; set it to 0")
        self.spec, self.whole = spec, True
        self._collect_rollouts = collect_rollouts
        self._until: int | None = None  # tick at which `collect_rollouts` must end; None: it was never asked
        self.playing: list[_Playing] = []
        self._put_by: dict[int, tuple[int, _Pieces]] = {}  # of a slot that waits, its member's id and what it remembers
        self.world: World | TensorWorld
        if backends.as_tensors(spec.env) is not None:
            if collect_rollouts is not None:
                raise UsageError("collect_rollouts: environments as tensors step by themselves; set env.backend: sync")
            self.world = TensorWorld(spec, self.keys, self.clock)
        else:
            pool = EnvPool(spec.env, len(self.keys) * self.clock.envs, workers=setup.workers)
            self.world = World(spec, self.keys, self.clock, pool)
        self.evaluate = Evaluator(spec, len(self.keys), setup.workers)
        self._probe = Probe(spec, self.clock, apart=SPARSE if isinstance(self.world, TensorWorld) else 1)
        self.threshold = self.pool.reward_threshold
        shape = (len(self.keys), self._rows)
        self.returns = torch.zeros(shape, dtype=torch.float64, device=spec.device)  # discounted, of running episodes
        self._layout = StepLayout(spec.spaces, self.world.masked)
        self.learners = LearnerPool(spec, setup.learners, self._learning, spec.compiled)

    @property
    def _rows(self) -> int:
        """Who acts for a member at a tick: `E`, or `E · K` agents of teams."""
        return self.clock.envs * self.spec.spaces.agents

    @property
    def pool(self) -> Any:
        """The environments of all members, see `EnvPool`."""
        return self.world.pool

    def first(self, member: Member) -> Member:
        return member

    def inherit(self, parents: Sequence[int] | None) -> None:
        """Do nothing, because this regime stores nothing per member that a child could inherit."""

    def renew(self, slots: Sequence[int]) -> None:
        """Begin new episodes in these slots (places in the population), because they get new trials (members with new
        weights). See `Regime.renew`."""
        self.world.renew(slots)
        self.returns[list(slots)] = 0.0

    def reopen(self, kwargs: Mapping[str, Any]) -> None:
        """Make the environments anew with these keyword arguments, which the user's curriculum chose
        (`train.curriculum`)."""
        assert isinstance(self.world, World)
        self.whole = False
        self.world.reopen(kwargs)
        self.returns[:] = 0.0
        self.whole = True

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        """Set the members that act from now on, in groups (cohorts) that are computed as one batch; see `Regime.adopt`.

        Episodes continue. A member keeps its recurrent state. A child takes over the recurrent state of its parent if
        the parent was in the same slot (place in the population) and has the same architecture. The recurrent states of
        members that wait, because they are in no cohort, are stored until these members continue.
        """
        before = {
            member.slot: (member, each.cohort, own)
            for each in self.playing
            for member, own in zip(each.cohort.members, each.memory, strict=True)
        }
        here = {slot for cohort in cohorts for slot in cohort.slots}
        for slot, (member, cohort, held) in before.items():
            if slot not in here and cohort.memory:
                self._put_by[slot] = member.id, {key: piece.clone() for key, piece in cohort.pieces(held).items()}
        self.playing = [self._playing(*each) for each in zip(cohorts, places_of(cohorts), strict=True)]
        self._quick = FASTER  # how many ticks in C take about `_SECONDS`, of these members not known yet
        self.world.adopt(cohorts)
        self._probe.adopt(cohorts)
        rates = [h["epochs"] / min(h["batch_size"], h["learn_step"]) for h in (c.members[0].hyper for c in cohorts)]
        self.learners.adopt(cohorts, rates, [tensor for each in self.playing for tensor in each.rollout.tensors()])
        for each in self.playing:
            for member, own in zip(each.cohort.members, each.memory, strict=True):
                if member.slot in before:
                    old, cohort, held = before[member.slot]
                    if old.id in (member.id, member.parent) and old.arch == member.arch and held.isfinite().all():
                        _keep(each.cohort.pieces(own), cohort.pieces(held))
                elif member.slot in self._put_by:
                    id, pieces = self._put_by.pop(member.slot)
                    if id == member.id:
                        _keep(each.cohort.pieces(own), pieces)

    def _playing(self, cohort: Cohort, place: list[int]) -> _Playing:
        envs, device = self.clock.envs, self.spec.device
        ends = _rollout_ends(int(cohort.members[0].hyper["learn_step"]), envs, self.clock.generation_ticks)
        longest = max(end - first for first, end in itertools.pairwise([0, *ends]))
        members, size = len(cohort.members), cohort.memory
        rows = None if place == list(range(self.clock.living)) else place
        rollout = Rollout(self._layout, members, longest, self._rows, size, device)
        return _Playing(cohort, rows, ends, rollout, torch.zeros(members, self._rows, size, device=device))

    def _learning(self, share: Share, cohort: Cohort, tick: int, due: Sequence[int]) -> Callable[[], Any]:
        rollout = self.playing[share.cohort].rollout
        if share.end - share.first < len(rollout.rows):
            rollout = rollout.part(share.first, share.end)
        return ready(self.spec, cohort, rollout, due[0], tick)

    @property
    def remarks(self) -> list[str]:
        """Warnings for the user: how an unsuitable `learn_step` or `batch_size` is changed, and which settings have no
        effect."""
        p, envs = self.spec, self.clock.envs
        asked, batch, algo = p.algo_config.learn_step, p.algo_config.batch_size, f"algos.{p.train.algo}"
        each, generation = -(-asked // envs) * envs, -(-p.train.evo_steps // envs) * envs
        found = []
        if each > generation:
            found.append(f"{algo}.learn_step: {asked} steps are more than a generation has: members learn once in "
                         f"each, every {generation} steps")  # fmt: skip
        elif each > asked:
            found.append(f"{algo}.learn_step: {asked} steps are no whole number of ticks of {envs} environments: "
                         f"members learn every {each} steps")  # fmt: skip
        if batch > (held := min(each, generation)):
            found.append(f"{algo}.batch_size: {batch} steps are more than a rollout has: a minibatch is all its {held}")
        replay = p.train.replay
        set_anyway = {
            "train.warm_start": p.train.warm_start > 0,
            "train.replay.n_step": replay.n_step > 1,
            "train.replay.prioritised": replay.prioritised,
        }
        if unused := [key for key, given in set_anyway.items() if given]:
            found.append(f"{' and '.join(unused)}: not used, {p.train.algo} learns from its own last steps alone")
        return found

    def ended(self) -> np.ndarray:
        """Return the mean return of the training episodes that ended in this generation, `[P]`, for each of the P slots
        (places in the population); NaN for a slot without such an episode."""
        assert self.world.ended is not None
        return self.world.ended.means()

    def advance(self, most: int = 1) -> None:
        """Take one step in every environment, then learn from the rollouts that are complete.

        In two cases more than one step is taken, but none beyond the end of a rollout. A user's function
        `collect_rollouts` takes all that the rollout still needs. Environments in C take at most `most` steps.

        Raises:
            UsageError: the user's `collect_rollouts` recorded another number of steps than it was asked for.
            EnvironmentFailed: an environment failed. The state can be saved then: the chosen actions stay pending, and
                are taken at the next call.
        """
        if self._collect_rollouts is not None:
            self._let_collect(self._collect_rollouts)
        elif most < 2 or not self._play(most):
            self._enter(self.world.take(self.choose()))
        self.whole = False
        for learn in self.learners.share_of(self.clock.tick, [[each.due(self.clock.here)] for each in self.playing]):
            learn()
        self._tell()
        self.whole = True
        self.world.refuse_broken()

    def _tell(self) -> None:
        """Probe the members that have just learned where it is time, and take note of a generation's end."""
        here, tick = self.clock.here, self.clock.tick
        for each in self.playing:
            if not (ticks := each.due(here)):
                continue
            one = each.cohort.members[0].hyper
            updates = self.clock.generation_ticks * self.clock.envs * one["epochs"] / one["batch_size"]
            if self._probe.due(updates, each.ends.index(here), len(each.ends)):
                probe_rollout(self.spec, each.cohort, each.rollout, ticks, tick, self._probe)
        if self.clock.generation_over:
            self._probe.end([each.cohort for each in self.playing], self._rates, self.world.tally)

    def _rates(self, cohort: Cohort) -> dict[str, Tensor]:
        """Return the learning rates as they are by now."""
        factors = self.spec.algo.schedule(self.spec.algo_config, self.clock.step)
        return rates({name: value * factors.get(name, 1.0) for name, value in cohort.hyper.items()})

    def signals(self, slots: Sequence[int]) -> list[dict[str, tuple[float, float]]]:
        return self._probe.diagnostics.told(slots)

    def _play(self, most: int) -> bool:
        """Take up to `most` ticks in C, with the bits of as many single ones; return whether that is possible."""
        world, play, calls = self.world, by_kernels(self.spec.algo, "play"), []
        if not isinstance(world, TensorWorld) or world.pending is not None or play is None:
            return False
        count = min(most, self._quick, world.bearable, *(each.left(self.clock.here) for each in self.playing))
        for each in self.playing:
            ticks = self._ticks(world, each, count)
            call = ticks and play(self.spec.algo_config, each.cohort.state, ticks)
            if not ticks or call is None:
                return False
            calls.append((each, ticks, call))
        self.whole, began, broken = False, time.perf_counter(), 0
        for each, ticks, call in calls:
            call()
            each.memory = ticks.remembered
            broken += 0 if ticks.broken is None else int(ticks.broken.sum())
        self._quick = next_count(count, time.perf_counter() - began, _SECONDS)
        world.took(count, broken)
        self.whole = True
        return True

    def _ticks(self, world: TensorWorld, each: _Playing, count: int) -> Ticks | None:
        """Return a cohort's next ticks as C takes them; None if it cannot."""
        cohort, spec, pool = each.cohort, self.spec, world.in_c(each.cohort)
        if pool is None or spec.paths.capture != "none":
            return None
        first = each.place(self.clock.here)
        end, held, by = first + count, each.rollout, cohort.normaliser
        return Ticks(
            **pool, keys=cohort.keys, first=self.clock.tick, many=count, rows=held.rows[:, first:end],
            after=held.after[:, first:end], memory=held.memory[:, first : end + 1],
            remembered=each.memory.clone(memory_format=torch.contiguous_format),
            normalise=None if by is None else by.while_playing(cohort.healthy, self.returns, discount_rate(cohort)),
        )  # fmt: skip

    def _let_collect(self, collect_rollouts: CollectRollouts) -> None:
        before = self.clock.here
        ticks = min(end for each in self.playing for end in each.ends if end > before) - before
        self._until = before + ticks
        collect_rollouts(self, ticks)
        if self.clock.here != self._until or self.world.pending is not None:
            raise UsageError(
                f"collect_rollouts recorded {self.clock.here - before} steps of every environment where it was asked "
                f"for {ticks}: call choose() and then record(step) so many times"
            )

    def choose(self) -> Any:
        """Sample an action for every environment, `[P · E, …]`, from the present observations of P members in E
        environments each.

        Further calls return the same actions until this object's method `record` is called.
        """
        if self.world.pending is not None:
            return self.world.pending
        everyone, chosen = self.world.observed(), []
        for each in self.playing:
            cohort, before = each.cohort, each.memory
            obs, legal, begins, *there = self._of(each, everyone)
            if cohort.normaliser is not None:
                cohort.normaliser.update(obs, cohort.healthy, *there)
            obs = cohort.normalised(obs, *there)
            took = step(self.spec, cohort, obs, legal, begins, before, self.clock.tick)
            each.rollout.enter(each.place(self.clock.here), obs, legal, begins, before, took)
            each.memory = took.memory
            chosen.append(took.action)
        actions: Any = self.world.actions(chosen)
        self.world.pending = actions
        return actions

    def record(self, taken: RowStep) -> None:
        """Store the results `taken` of one step in every environment, and begin new episodes where episodes ended.

        Where a reward or an observation is not finite, the member does not learn from the step, and the environment is
        reset.

        Raises:
            UsageError: no action was chosen, or an array is missing or of a wrong shape.
        """
        if self.world.pending is None:
            raise UsageError("no action was chosen: call choose() before record(step)")
        if self.clock.here == self._until:
            raise UsageError("collect_rollouts recorded more steps of every environment than it was asked for")
        self._enter(self._read(taken))

    def _enter(self, taken: Any) -> None:
        self.whole = False
        gave = self.world.gave(taken)
        for each in self.playing:
            cohort = each.cohort
            next_obs, reward, terminated, truncated, bad, *next_alive = self._of(each, gave)
            if cohort.normaliser is not None and cohort.normaliser.returns is not None:
                rows, given = upload(torch.tensor(cohort.slots), self.spec.device), ~bad & cohort.healthy[:, None]
                reward, returns = cohort.normaliser.normalise_rewards(
                    self.returns[rows], reward, discount_rate(cohort), given
                )
                self.returns[rows] = returns.masked_fill(terminated | truncated | bad, 0.0)
            place = each.place(self.clock.here)
            each.rollout.finish(place, cohort.normalised(next_obs), reward, terminated, truncated, bad, *next_alive)
        self.world.end(taken)
        self.whole = True

    def _of(self, each: _Playing, everyone: Sequence[Tensor]) -> list[Tensor]:
        own = everyone if each.rows is None else [x[each.rows] for x in everyone]
        return [upload(x, self.spec.device) for x in own]

    def _read(self, taken: RowStep) -> RowStep:
        kinds: dict[str, type] = dict.fromkeys(_NUMBERS, np.float32) | dict.fromkeys(_FLAGS, np.bool_)
        step = replace(taken, **{name: self._array(name, getattr(taken, name), kinds[name]) for name in kinds})
        finite = np.isfinite(step.obs).all(axis=-1) & np.isfinite(step.reward)
        return replace(step, broken=step.broken | ~finite.reshape(len(finite), -1).all(axis=1))

    def _array(self, name: str, value: Any, kind: type) -> np.ndarray:
        rows, spaces = self.pool.rows, self.spec.spaces
        each = spaces.by_agent if name != "broken" else ()
        shape = (rows, *each, *([spaces.observations] if name == "obs" else []))
        try:
            array = np.asarray(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"step.{name} is no array of numbers ({error}); record NumPy arrays") from error
        if array.shape != shape:
            raise UsageError(f"step.{name} has shape {array.shape}; expected {shape}, one row for each environment")
        if array.dtype.kind not in "biuf":
            raise UsageError(f"step.{name} is no array of numbers (dtype {array.dtype}); record NumPy arrays")
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows float32 becomes infinite: a broken row
            return np.require(array, kind, ("C", "W"))

    def state(self) -> dict[str, Tensor]:
        tensors = self.world.state() | self._probe.diagnostics.state()
        for i, each in enumerate(self.playing):
            filled = each.place(self.clock.here) + (self.world.pending is not None)
            tensors |= {f"rollout.{i}.{name}": tensor for name, tensor in each.rollout.state(filled).items()}
            tensors[f"rollout.{i}.remembered"] = each.memory.to("cpu", copy=True)
        for slot, (id, pieces) in self._put_by.items():
            tensors[f"waits.{slot}"] = torch.tensor(id)
            tensors |= {f"waits.{slot}.{name}.{i}": piece.cpu() for (name, i), piece in pieces.items()}
        if self.spec.train.normalise.rewards:
            tensors["returns"] = self.returns.to("cpu", copy=True)
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> int:
        for i, each in enumerate(self.playing):
            each.rollout.restore({name: tensors[f"rollout.{i}.{name}"] for name in ("rows", "after", "memory")})
            each.memory = tensors[f"rollout.{i}.remembered"].to(self.spec.device)
        self._probe.diagnostics.restore(tensors)
        self._put_by = {}
        for name, tensor in tensors.items():
            match name.split("."):
                case ["waits", slot]:
                    self._put_by[int(slot)] = int(tensor), {}
        for name, tensor in tensors.items():
            match name.split("."):
                case ["waits", slot, network, piece]:
                    self._put_by[int(slot)][1][network, int(piece)] = tensor.to(self.spec.device)
        if "returns" in tensors:
            self.returns.copy_(tensors["returns"])
        lost = self.world.restore(tensors)
        if len(lost):
            self._forget(lost)
        return len(lost)

    def _forget(self, rows: np.ndarray) -> None:
        """Cut the episodes that led there, and choose again: what was chosen was for where they were."""
        agents = self.spec.spaces.agents
        member, env = np.divmod((rows[:, None] * agents + np.arange(agents)).reshape(-1), self._rows)
        self.returns[member, env] = 0.0
        for each in self.playing:
            slots, place = each.cohort.slots, each.place(self.clock.here)
            mine = np.isin(member, slots)
            if place:
                each.rollout.cut(place - 1, [slots.index(slot) for slot in member[mine]], env[mine].tolist())
            if self.world.pending is not None:
                each.memory = each.rollout.memory[:, place].clone()
        self.world.pending = None

    def close(self) -> None:
        self.learners.close()
        self.pool.close()
        self.evaluate.pool.close()


def _keep(places: dict[tuple[str, int], Tensor], held: dict[tuple[str, int], Tensor]) -> None:
    for piece, place in places.items():
        if piece in held:
            width = min(place.shape[-1], held[piece].shape[-1])
            place[..., :width] = held[piece][..., :width]


def _rollout_ends(learn_step: int, envs: int, ticks: int) -> list[int]:
    """Return the ticks of a generation after which a member learns.

    A rollout takes as many ticks as give at least `learn_step` steps in `envs` environments; the generation's last one
    what is left, between half and one and a half of that: members learn from all that they did before evolution
    replaces them.
    """
    each = -(-learn_step // envs)
    count = max(1, int(ticks / each + 0.5))
    return [*(each * i for i in range(1, count)), ticks]
