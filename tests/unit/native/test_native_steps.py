"""What the CPU's own kernels do between updates, by hand-set cases and plain NumPy: how a step is entered, how it ends,
the next episodes' seeds, gradient clipping, trees of sums, and the ends of steps that count as one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from crews import Crewed
from evopipe import rng
from evopipe.core import optim
from evopipe.core.arch import Arch
from evopipe.core.layout import Block
from evopipe.core.net import Net
from evopipe.core.optim import Adam
from evopipe.core.structure import Widths
from evopipe.memory.priorities import Priorities
from evopipe.memory.replay import Replay, RowLayout
from evopipe.memory.rollout import Rollout, StepLayout
from evopipe.native import actor_critic, build, optimiser, policy, replay
from evopipe.ops.policy import epsilon_greedy, or_random
from evopipe.rng import Purpose, Stream, member_keys, salt
from evopipe.types import Batch, Chosen, Spaces, Team, Tensor
from kernel_cases import Draw, alone, drawn_lessons

pytestmark = pytest.mark.numerical
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    build.use(build.load())
    yield
    build.use(None)


# ------------------------------------------------------------------------------------------------------------ rollouts

P, T, E, O = 2, 3, 4, 5  # noqa: E741
ENDS = [(a, b, c) for a in (False, True) for b in (False, True) for c in (False, True)]
"""Terminated, truncated, broken: all that a step may be."""


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("ends", ENDS)
def test_a_step_ends_as_it_ended(ends: tuple[bool, bool, bool]) -> None:
    """Only one environment of one member ends so, and only its numbers show it. A broken step gave what was expected,
    is followed by nothing, and is not learned from."""
    terminated, truncated, broken = (torch.zeros(P, E, dtype=torch.bool) for _ in range(3))
    terminated[1, 2], truncated[1, 2], broken[1, 2] = ends
    rollout = Rollout(StepLayout(Spaces(O, 3), False), P, T, E, 0, CPU)
    rollout.rows.copy_(numbers(*rollout.rows.shape, seed=1))
    rollout.after.fill_(77.0)
    next_obs, reward = numbers(P, E, O, seed=2), numbers(P, E, seed=3)
    rollout.finish(1, next_obs, reward, terminated, truncated, broken)
    expected = torch.cat((next_obs, reward[..., None], torch.tensor([0.0, 0.0, 1.0]).expand(P, E, 3)), dim=-1)
    over, cut, gone = (float(x) for x in (ends[0] or ends[2], any(ends), ends[2]))
    expected[1, 2, O + 1 :] = torch.tensor([over, cut, 1.0 - gone])
    if ends[2]:
        expected[1, 2, :O] = 0.0
        expected[1, 2, O] = rollout.rows[1, 1, 2, rollout.layout.log_prob + 1]
    assert torch.equal(rollout.after[:, 1], expected)
    assert (rollout.after[:, ::2] == 77.0).all(), "other ticks are not touched"


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "spaces",
    [
        Spaces(O, 3),
        Spaces(O, 2, continuous=True),
        Spaces(O, 5, kind="multidiscrete", choices=(2, 3)),
        Spaces(O, 4, kind="multibinary"),
    ],
    ids=lambda spaces: str(spaces.kind),
)
def test_what_is_known_before_a_step_is_entered_in_its_place(spaces: Spaces, masked: bool) -> None:
    rollout = Rollout(StepLayout(spaces, masked), P, T, E, 0, CPU)
    rollout.rows.fill_(77.0)
    draw = torch.Generator().manual_seed(4)
    obs, log_prob, value = numbers(P, E, O, seed=5), numbers(P, E, seed=6), numbers(P, E, seed=7)
    begins, legal = (torch.rand(P, E, *more, generator=draw) < 0.5 for more in ((), (spaces.actions,)))
    shape = (P, E, *spaces.action_shape)
    action = numbers(*shape, seed=8) if spaces.continuous else torch.randint(9, shape, generator=draw)
    rollout.enter(2, obs, legal, begins, numbers(P, E, 0), Chosen(action, log_prob, value, numbers(P, E, 0)))
    for p in range(P):
        for e in range(E):
            right = [*obs[p, e].tolist(), *action[p, e].flatten().tolist(), float(log_prob[p, e]), float(value[p, e])]
            right += [float(begins[p, e]), 0.0, 0.0, 0.0, *(legal[p, e].float().tolist() if masked else [])]
            assert rollout.rows[p, 2, e].tolist() == torch.tensor(right).tolist()
    assert (rollout.rows[:, :2] == 77.0).all()


@pytest.mark.parametrize("said", [0.0, torch.nan])
def test_of_equal_choices_the_first_legal_one_is_the_likeliest(said: float) -> None:
    """As torch has it; what is no number counts as 0."""
    given = Crewed("ppo", Spaces(O, 7, kind="multidiscrete", choices=(4, 3)))
    cohort = given.cohort()
    cohort.state.actor.values.fill_(said)
    legal = torch.ones(3, E, 7, dtype=torch.bool)
    legal[1, 2, [0, 1, 4]] = False
    found = given.algo.greedy(given.cfg, cohort.state, numbers(3, E, O), legal)
    right = torch.zeros(3, E, 2, dtype=torch.int64)
    right[1, 2] = torch.tensor([2, 1])
    assert torch.equal(found, right)


@pytest.mark.parametrize("agents", [1, 2])
def test_advantages_are_those_of_torch_to_the_bit(agents: int) -> None:
    """Of the first ticks alone, of one agent and of a team, where steps end in every way."""
    team = Team(("a_0", "a_1"), (O, O), (3, 3)) if agents > 1 else None
    spaces, ticks = Spaces(O, 3, team=team), 7
    found = []
    for by in (build.chosen(), None):
        build.use(by)
        rollout = Rollout(StepLayout(spaces, True), P, ticks + 2, E, 0, CPU)
        rollout.rows.copy_(numbers(*rollout.rows.shape, seed=1))
        rollout.after.copy_(numbers(*rollout.after.shape, seed=2))
        rollout.after[..., O + 1 : O + 4] = (rollout.after[..., O + 1 : O + 4] > 0.5).float()
        gamma, lam = torch.tensor([0.99, 0.7]), torch.tensor([0.95, 0.123])
        rollout.estimate(ticks, numbers(P, ticks * E, seed=3), gamma, lam)
        found.append(rollout.rows)
    by_kernels, by_torch = found
    assert by_kernels.numpy().tobytes() == by_torch.numpy().tobytes()
    at = rollout.layout.log_prob
    assert (by_torch[:, :ticks, :, at + 3] != numbers(*rollout.rows.shape, seed=1)[:, :ticks, :, at + 3]).all()
    assert (by_torch[:, ticks:] == numbers(*rollout.rows.shape, seed=1)[:, ticks:]).all()


@pytest.mark.parametrize("n", [1, 7, 8, 100])
def test_draws_of_several_steps_are_those_of_each(n: int) -> None:
    """As a round's completions are drawn: every member's tokens of all times at once."""
    keys, steps = torch.tensor([3, -5, 2**62]), torch.tensor([4, 0, -7, 2**40])
    kinds = rng.uniform, rng.normal
    every = [draw(keys, Purpose.GENERATE, steps, n) for draw in kinds]
    for draw, found in zip(kinds, every, strict=True):
        for u in range(4):
            assert torch.equal(found[:, u : u + 1], draw(keys, Purpose.GENERATE, steps[u : u + 1], n))
    build.use(None)
    assert torch.equal(every[0], rng.uniform(keys, Purpose.GENERATE, steps, n))
    torch.testing.assert_close(every[1], rng.normal(keys, Purpose.GENERATE, steps, n), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("n", [1, 2, 255, 1000, 40_000])
def test_places_are_shuffled_as_torch_orders_the_draws(n: int) -> None:
    keys, steps = torch.tensor([3, -5, 2**62]), torch.tensor([0, -7])
    found = rng.shuffled(keys, Purpose.REPLAY, steps, n)
    build.use(None)
    right = rng.uniform(keys, Purpose.REPLAY, steps, n).argsort(dim=2)
    assert found.dtype == right.dtype
    assert torch.equal(found, right)
    assert torch.equal(rng.shuffled(keys, Purpose.REPLAY, steps, n), right)


# ------------------------------------------------------------------------------------------------------------ episodes

MASK = 2**64 - 1


def mixed(x: int) -> int:
    """SplitMix64's finaliser (Steele et al., 2014), on Python's whole numbers."""
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def seed_of(key: int, env: int, begun: int) -> int:
    golden, x = 0x9E3779B97F4A7C15, mixed((key + salt(Purpose.EPISODE)) & MASK)
    for counter in (env, begun):
        x = mixed((x + (counter + 1) * golden) & MASK)
    return x >> 33


@pytest.mark.parametrize("over", [[], [0], [4], [1, 3], [0, 1, 2, 3, 4]])
def test_the_next_episodes_seeds_are_their_own(over: list[int]) -> None:
    keys = torch.tensor([3, -5, 2**62, 0, -1])
    envs, begun = torch.tensor([0, 1, 2, 7, 1000]), torch.tensor([0, 1, 5, 2, 40])
    was, ended = begun.clone(), torch.zeros(5, dtype=torch.bool)
    ended[over] = True
    found = policy.next_episodes(ended, keys, envs, begun)
    assert found is not None
    rows, seeds = found
    assert rows.tolist() == over
    assert seeds.tolist() == [seed_of(int(keys[r]), int(envs[r]), int(was[r])) for r in over]
    assert (begun - was).tolist() == [int(r in over) for r in range(5)]


def unmixed(x: int) -> int:
    """What `mixed` makes this of."""
    x ^= x >> 31 ^ x >> 62
    x = x * pow(0x94D049BB133111EB, -1, 2**64) & MASK
    x ^= x >> 27 ^ x >> 54
    x = x * pow(0xBF58476D1CE4E5B9, -1, 2**64) & MASK
    return x ^ x >> 30 ^ x >> 60


def test_noise_of_the_rarest_draw_is_finite() -> None:
    """A key whose first draw is 0, the logarithm of whose logarithm is -infinity."""
    golden, step = 0x9E3779B97F4A7C15, 11
    key = (unmixed((unmixed(-golden & MASK) - step * golden) & MASK) - salt(Purpose.UPDATE)) & MASK
    keys = torch.tensor([key - 2**64 if key >= 2**63 else key])
    draw = Stream(keys, Purpose.UPDATE, torch.tensor([step]))
    assert float(draw.uniform(1)) == 0.0
    assert float(actor_critic.gumbels(draw, 1)) == -40.0
    assert float(draw.normal(1)) == 0.0


# ------------------------------------------------------------------------------------------------- acting and storing


@pytest.mark.parametrize("actions", [1, 2, 7])
def test_chance_and_choice_are_torchs(actions: int) -> None:
    """Ties, values that are no numbers, members without a legal action, and no chance or nothing but chance."""
    members, envs, g = 5, 3, torch.Generator().manual_seed(actions)
    keys = torch.from_numpy(member_keys(3, range(members)))
    for step in range(200):
        q = numbers(members, envs, actions, seed=step).mul(2).round()
        q[0, 0], q[1, 0, 0], q[2, 0, 0], q[4] = torch.nan, torch.inf, -torch.inf, -torch.inf
        q[3] = torch.where(torch.rand(q[3].shape, generator=g) < 0.3, torch.nan, -q[3].abs())  # it counts as 0
        legal, epsilon = torch.rand(q.shape, generator=g) < 0.7, torch.tensor([0.0, 1.0, 0.5, 0.1, 0.9])
        draw = Stream(keys, Purpose.ACT, torch.tensor([step]))
        ours = epsilon_greedy(q, legal, epsilon, draw), or_random(q / 3, epsilon, draw)
        build.use(None)
        theirs = epsilon_greedy(q, legal, epsilon, draw), or_random(q / 3, epsilon, draw)
        build.use(build.load())
        assert torch.equal(ours[0], theirs[0])
        assert ours[1].numpy().tobytes() == theirs[1].numpy().tobytes()


def test_rows_are_stored_as_without_kernels() -> None:
    """One memory or several, rows that are left out or not finite, more rows than a memory holds; each first priority
    too."""
    layout, size, g = RowLayout(2, 3, masked=False), RowLayout(2, 3, masked=False).size, np.random.default_rng(3)
    for memories in (1, 3):
        ours, theirs = (
            Replay(layout, memories, 7, CPU, Priorities(3, 7, 0.6, CPU), each=3 // memories) for _ in range(2)
        )
        for n in (1, 4, 3, 9, 2, 30):
            rows, keep = g.standard_normal((memories, n, size)).astype(np.float32), g.random((memories, n)) < 0.8
            rows[g.random(rows.shape) < 0.02] = [np.nan, np.inf, -np.inf][n % 3]
            ours.add(rows, keep)
            build.use(None)
            theirs.add(rows, keep)
            build.use(build.load())
            assert {name: value.tolist() for name, value in ours.state().items()} == {
                name: value.tolist() for name, value in theirs.state().items()
            }
    assert ours.size.tolist() == [7, 7, 7]


# ------------------------------------------------------------------------------------------------------------- updates


def batch_of(spaces: Spaces, rows: int = 9) -> Batch:
    return alone(Draw(5), spaces, rows, False)


@pytest.mark.parametrize("least", [1e-7, 0.3])
def test_the_last_row_counts_however_little_and_pads_do_not(least: float) -> None:
    spaces = Spaces(O, 3)
    given, batch = Crewed("dqn", spaces), batch_of(spaces)
    batch.weight[:, -3:] = torch.tensor([least, 0.0, 0.0])
    errors = given.update(given.cohort(), batch, 0, 0).errors
    assert errors is not None
    assert errors[:, -3].all()
    assert not errors[:, -2:].any()


def test_an_action_value_that_is_no_number_is_the_best_one() -> None:
    """As torch has it: the member is healthy no more, though nobody took that action."""
    spaces = Spaces(O, 3)
    given, batch = Crewed("dqn", spaces, double=False), batch_of(spaces)
    batch.action.fill_(0)
    batch.discount.fill_(0.9)
    for chosen in (build.load(), None):
        build.use(chosen)
        cohort = given.cohort()
        target = cohort.state.target
        target.values[1, target.structure.index[1][-1]] = torch.nan  # the bias of the last action
        assert given.update(cohort, batch, 0, 0).healthy.tolist() == [True, False, True]


def test_of_equal_action_values_the_first_ones_is_what_follows() -> None:
    """All that the network says is 0, and its target's values are 1, 2 and 3: those are of the first action."""
    spaces = Spaces(O, 3)
    given, batch = Crewed("dqn", spaces, double=True), batch_of(spaces)
    for chosen in (build.load(), None):
        build.use(chosen)
        cohort = given.cohort()
        cohort.state.q.values.zero_()
        cohort.state.target.values.zero_()
        cohort.state.target.views[-1].bias[..., :3] = torch.tensor([1.0, 2.0, 3.0])
        errors = given.update(cohort, batch, 0, 0).errors
        counts = batch.weight > 0
        torch.testing.assert_close(errors[counts], -(batch.reward + batch.discount)[counts])


def test_equal_twins_share_the_gradient() -> None:
    """Where both say the same, half goes through each, as torch has it."""
    spaces, found = Spaces(O, 2, continuous=True), []
    given, batch = Crewed("sac", spaces), batch_of(spaces)
    for chosen in (build.load(), None):
        build.use(chosen)
        cohort = given.cohort()
        for values in (cohort.state.critics.values, cohort.state.critics_target.values):
            twins = values.view(3, 2, -1)
            twins[:, 1] = twins[:, 0]
        assert given.update(cohort, batch, 0, 0).healthy.all()
        found.append(cohort.state.actor.values)
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=2e-6)


def test_who_rested_learns_again_from_the_next_rollout() -> None:
    """Rests are of one rollout: the second member's policy goes too far again, the others' may go far."""
    spaces = Spaces(O, 3)
    given = Crewed("ppo", spaces)
    cohort = given.cohort()
    cohort.state.resting.fill_(1.0)
    lessons = drawn_lessons(Draw(3), spaces, 4, 5, False, 0)._replace(batches=[4] * 3, sizes=[5] * 3, epochs=[2] * 3)
    found = given.algo.learn(given.cfg, cohort.state, cohort.hyper, lessons, cohort.healthy)
    assert found is not None
    assert cohort.state.resting.tolist() == [0.0, 1.0, 0.0]
    assert cohort.state.updates.tolist() == [8.0, 0.0, 8.0]


# ----------------------------------------------------------------------------------------------------------- gradients


def small(members: int = 3) -> Net:
    arch = Arch((Block(9),), 6, (), "ReLU", False)
    structure = Arch.stack([arch] * members, Widths(4, 2), CPU)
    rows = [numbers(len(index), seed=i) for i, index in enumerate(structure.index)]
    return Net(structure, structure.pack(rows), trainable=True)


@pytest.mark.parametrize("around", [0.5, 1 - 1e-3, 1 + 1e-3, 2.0, 0.0, np.inf])
def test_a_gradient_is_clipped_at_its_limit_and_not_before(around: float) -> None:
    """Limits just above and below the norm; a norm of 0 stays."""
    net = small()
    net.grad.copy_(net.structure.pack([numbers(len(i), seed=9 + k) for k, i in enumerate(net.structure.index)]))
    net.grad[2] = 0.0
    before, norms = net.grad.clone(), net.grad.double().norm(dim=1)
    limit = (norms * around).float() if around < np.inf else torch.full((3,), torch.inf)
    limit[2] = 1.0
    healthy = torch.ones(3, dtype=torch.bool)
    optimiser.clip(net, limit, torch.zeros(3), healthy)
    share = (limit.double() / (norms + 1e-6)).clamp(max=1.0)
    torch.testing.assert_close(net.grad.double(), before.double() * share[:, None], rtol=2e-6, atol=0.0)
    if around > 1:
        assert torch.equal(net.grad, before)
    assert healthy.all()


@pytest.mark.parametrize("spoiled", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_who_is_not_finite_is_healthy_no_more(spoiled: float, where: str) -> None:
    net, losses, healthy = small(), torch.zeros(3), torch.tensor([False, True, True])
    net.grad.fill_(0.0)
    if where == "loss":
        losses[1] = spoiled
    else:
        net.grad[1, int(net.structure.index[1][-1])] = spoiled
    optimiser.clip(net, torch.ones(3), losses, healthy)
    assert healthy.tolist() == [False, False, True]
    if where == "gradient" and np.isnan(spoiled):
        assert net.grad[1, net.structure.index[1]].isnan().all(), "as torch's: a norm that is no number spoils it all"
    assert not net.grad[[0, 2]].any()


def test_adam_and_averages_are_those_of_their_papers() -> None:
    """Five steps with changing gradients; a member that rests keeps everything."""
    net = small()
    adam, target = Adam.start(net), Net(net.structure, net.values.clone())
    value, mean, square = (x.double().clone() for x in (net.values, adam.mean, adam.square))
    follows, lr = target.values.double().clone(), torch.tensor([1e-2, 3e-3, 1e-1])
    own = net.structure.pack([torch.ones(len(i)) for i in net.structure.index])
    for step in range(1, 6):
        net.grad.copy_(own * numbers(*net.values.shape, seed=20 + step))
        optim.step(net, adam, lr, torch.tensor([True, False, True]))
        optim.polyak(target, net, torch.tensor([0.3, 0.0, 0.8]))
        g = net.grad.double()
        mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g * g
        change = lr[:, None] * (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
        value[[0, 2]] -= change[[0, 2]]
        follows += torch.tensor([0.3, 0.0, 0.8])[:, None].double() * (value - follows)
    for rows in (0, 2):
        for ours, right in ((net.values, value), (adam.mean, mean), (adam.square, square), (target.values, follows)):
            torch.testing.assert_close(ours[rows].double(), right[rows], rtol=1e-4, atol=1e-6)
    assert adam.steps.tolist() == [5.0, 0.0, 5.0]
    assert torch.equal(net.values[1], target.values[1])
    assert not adam.mean[1].any()
    assert not adam.square[1].any()


@pytest.mark.parametrize("how", ["kernels", "torch"])
def test_all_rows_of_a_member_step_or_rest_together(how: str) -> None:
    """Twin critics are two rows of each member: rate, limit, share and health are the member's, not a row's."""
    build.use(build.load() if how == "kernels" else None)
    net, rested, limit = small(6), torch.tensor([True, False, True]), torch.tensor([0.5, 1.0, 100.0])
    own = net.structure.pack([torch.ones(len(i)) for i in net.structure.index])
    slope = own * numbers(*net.values.shape, seed=3)
    adam, target, before = Adam.start(net), Net(net.structure, torch.zeros_like(net.values)), net.values.clone()
    weights = net.values.detach().requires_grad_(True)
    weights.grad = net.grad
    losses = (weights * slope).view(3, -1).sum(dim=1)
    healthy = optim.descend(losses, rested, limit, (net, adam, torch.tensor([1e-2, 3e-3, 1e-1])))
    optim.polyak(target, net, torch.tensor([0.25, 0.5, 1.0]))
    assert torch.equal(healthy, rested)
    norms = slope.norm(dim=1).minimum(limit.repeat_interleave(2))
    torch.testing.assert_close(net.grad.norm(dim=1), norms, rtol=1e-5, atol=0.0)
    moved = (net.values - before).abs().amax(dim=1)  # a first step is of the rate's length
    torch.testing.assert_close(moved, torch.tensor([1e-2, 1e-2, 0.0, 0.0, 1e-1, 1e-1]), rtol=1e-3, atol=1e-6)
    assert adam.steps.tolist() == [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    shares = torch.tensor([0.25, 0.25, 0.5, 0.5, 1.0, 1.0])[:, None]
    torch.testing.assert_close(target.values, shares * net.values)


# ------------------------------------------------------------------------------------------------------------ memory


def trees(priorities: Tensor) -> Priorities:
    found = Priorities(*priorities.shape, 0.6, CPU)
    found.restore({"priorities": priorities, "largest": priorities.amax(dim=1)})
    return found


@pytest.mark.parametrize("capacity", [1, 31, 32, 33, 1023, 1024, 1025, 3000])
def test_a_tree_leads_to_the_row_that_a_share_falls_on(capacity: int) -> None:
    """Priorities are whole numbers, so that sums are exact: each share has one right row, at its very borders too.
    Rows of priority 0 are never drawn, nor are members' mixed up."""
    sizes = torch.from_numpy(np.random.default_rng(capacity).integers(0, 4, (2, capacity))).float()
    sizes[:, -1] = 2.0
    tree, slots = trees(sizes), torch.tensor([1, 0])
    for place, slot in enumerate(slots.tolist()):
        ends = np.cumsum(sizes[slot].numpy().astype(np.float64))
        total = float(ends[-1])
        starts = np.concatenate(([0.0], ends[:-1]))
        sought = np.unique(np.concatenate((starts, starts + 0.5, ends - 0.25)))
        sought = sought[(sought >= 0) & (sought < total)]
        u = torch.zeros(2, len(sought), dtype=torch.float64)
        # In the middle of a place's rounding: u · total is exactly what is sought, or a hair above.
        u[place] = torch.from_numpy(np.nextafter(sought / total, 2.0))
        index, chance = replay.draw(tree.levels, slots, u)
        right = np.searchsorted(ends, sought, side="right")
        assert index[place].tolist() == right.tolist()
        torch.testing.assert_close(chance[place], sizes[slot][right] / total, rtol=1e-6, atol=0.0)


def test_importances_count_what_counts() -> None:
    """weight · (N p)^−β over the largest of those with a weight: a pad's may be larger."""
    chance = torch.tensor([[0.5, 0.01, 0.2, 1e-9], [0.1, 0.2, 0.3, 0.4]])
    weight = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.25] * 4])
    filled, beta = torch.tensor([100, 7]), 0.4
    found = replay.importances(filled, chance, weight, torch.tensor(beta))
    raw = (filled[:, None] * chance.double()) ** -beta
    largest = torch.where(weight > 0, raw, 0.0).amax(dim=1, keepdim=True)
    torch.testing.assert_close(found.double(), weight * raw / largest, rtol=1e-5, atol=0.0)


def test_priorities_are_set_by_hand() -> None:
    """(|error| + least)^α, at most the most; NaN keeps the old one, of equal rows the largest counts; and the largest
    that a member has had stays."""
    sizes = torch.zeros(2, 40)
    sizes[:, :34] = 1.0
    tree = trees(sizes)
    index = torch.tensor([[0, 33, 33, 5, 6], [1, 2, 3, 32, 31]])
    errors = torch.tensor([[-2.0, 1.0, -3.0, torch.nan, 0.0], [torch.inf, 0.25, -0.25, 4.0, 1e-3]])
    largest = torch.tensor([1.5, 1.0])
    levels = tree.levels
    replay.update(levels, torch.tensor([1, 0]), index, errors, 0.5, 0.01, 100.0, largest)
    right = sizes.clone()
    for place, slot in enumerate((1, 0)):
        fresh = (errors[place].abs() + 0.01).sqrt().clamp(max=100.0)
        for row in set(index[place].tolist()):
            mine = fresh[index[place] == row]
            right[slot, row] = 1.0 if mine.isnan().any() else mine.max()
    torch.testing.assert_close(levels[0][:, :40], right, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(largest, torch.tensor([100.0, max(1.0, float(np.sqrt(3.01)))]), rtol=1e-6, atol=0.0)
    for level in range(1, len(levels)):
        sums = levels[level - 1].view(2, -1, 32).sum(dim=2)
        torch.testing.assert_close(levels[level][:, : sums.shape[1]], sums, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize("agents", [0, 2])
def test_steps_that_count_as_one_end_where_they_ended(steps: int, agents: int) -> None:
    """r₀ + γ r₁ + …, then γ^taken of what comes after, 0 where an episode terminated; every row of the memory, of
    members whose place is not their slot."""
    layout = RowLayout(
        obs=2 * max(agents, 1),
        actions=3 * max(agents, 1),
        masked=True,
        continuous=False,
        steps=steps,
        legal=True,
        agents=agents,
    )
    capacity, each = 6, layout.each
    memory: Any = Replay(layout, 2, capacity, CPU, None)
    g = torch.Generator().manual_seed(steps)
    memory.rows.copy_(torch.randint(0, 2, memory.rows.shape, generator=g))
    first = layout._reward
    reward = torch.randint(-8, 9, (2, capacity, steps, each), generator=g).float()
    over = torch.randint(0, 2, (2, capacity, each), generator=g).float()
    taken = torch.randint(1, steps + 1, (2, capacity, each), generator=g).float()
    rows = memory.rows.view(2, -1, memory.rows.shape[-1])[:, :capacity]
    rows[..., first : first + steps * each] = reward.flatten(2)
    rows[..., first + steps * each : first + (steps + 1) * each] = over
    if steps > 1:
        rows[..., first + (steps + 1) * each : first + (steps + 2) * each] = taken
    gamma, slots = torch.tensor([0.5, 0.25]), [1, 0]
    draw = Stream(torch.from_numpy(member_keys(3, range(2))), Purpose.REPLAY, torch.tensor([7]))
    filled, weight = torch.tensor([capacity, 4]), torch.full((2, 64), 1 / 64)
    batch, index = memory.batch(
        draw, torch.tensor(slots), memory.first(slots), filled, weight, torch.tensor(0.0), gamma
    )  # fmt: skip
    assert index.amax(dim=1).tolist() == [capacity - 1, 3]
    assert index.amin(dim=1).tolist() == [0, 0]
    for place, slot in enumerate(slots):
        at = index[place]
        powers = float(gamma[place]) ** torch.arange(steps)
        right = (reward[slot][at] * powers[:, None]).sum(dim=1)
        last = float(gamma[place]) ** (taken[slot][at] if steps > 1 else torch.ones(64, each))
        torch.testing.assert_close(batch.reward[place].view(64, each), right, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(batch.discount[place].view(64, each), last * (1 - over[slot][at]), rtol=1e-6, atol=0)
