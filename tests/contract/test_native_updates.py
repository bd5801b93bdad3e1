"""Whole updates of actors and critics by the CPU's own kernels: what torch makes of them, from a member alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from crews import GROUPS, SPACES, B, Crewed, P, transitions
from evopipe import algos
from evopipe.core.arch import Arch
from evopipe.core.cohort import Cohort, dissolve
from evopipe.core.layout import Block
from evopipe.native import actor_critic, build, update
from evopipe.ops.distributions import gumbel
from evopipe.rng import Purpose, Stream, member_keys
from evopipe.types import Batch, Learned, Spaces
from populations import LONG, advance, same, unlike

pytestmark = pytest.mark.numerical
ALONE = {"continuous": Spaces(4, 3, continuous=True), "discrete": Spaces(4, 3)}
CASES: dict[str, tuple[str, str, bool, dict[str, Any]]] = {
    **{
        f"{name}:{kind}:{share}": (name, kind, False, {"share": share, "temperature": 0.7, "output_penalty": 0.1})
        for name in ("maddpg", "matd3")
        for kind in SPACES
        for share in GROUPS
    },
    "maddpg:masked": ("maddpg", "discrete", True, {"share": "group"}),
    "matd3:masked": ("matd3", "discrete", True, {"share": "all", "policy_delay": 3}),
    "ddpg": ("ddpg", "continuous", False, {"policy_delay": 2}),
    "td3": ("td3", "continuous", False, {"target_noise": 0.6}),
    "td3bc": ("td3bc", "continuous", False, {}),
    "sac:continuous": ("sac", "continuous", False, {}),
    "sac:discrete": ("sac", "discrete", False, {"target_entropy": 0.4}),
    "sac:masked": ("sac", "discrete", True, {}),
}
QUICK = {
    "maddpg:discrete:group",
    "matd3:continuous:all",
    "matd3:masked",
    "ddpg",
    "td3bc",
    "sac:continuous",
    "sac:masked",
}
each_case = pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK else pytest.mark.thorough) for case in CASES]
)


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    build.use(build.load())
    yield
    build.use(None)


class Case:
    """Three unlike members of an algorithm, in the middle of learning."""

    def __init__(self, case: str, **options: Any) -> None:
        name, kind, self.masked, config = CASES[case]
        self.spaces = (SPACES if name.startswith("ma") else ALONE)[kind]
        self.given = Crewed(name, self.spaces, **config, **options)
        g = torch.Generator().manual_seed(5)
        for member in self.given.members:
            if case == "sac:continuous":  # deviations far beyond what they are clamped to
                bias = member.arch.named(self.given.widths["actor"], member.tensors["actor"])["output.bias"]
                bias[3:] += (0.0, 4.0, -30.0)[member.slot]
            for tensor, x in member.tensors.items():
                if tensor.endswith(".mean"):
                    x.copy_(0.01 * torch.randn(x.shape, generator=g))
                elif tensor.endswith(".square"):
                    x.copy_(1e-4 * (0.5 + torch.rand(x.shape, generator=g)))
                elif tensor.endswith(".steps"):
                    x.fill_(40.0 + member.slot)

    def cohort(self, *slots: int) -> Cohort:
        return self.given.cohort(*slots)

    def batch(self, at: int, members: list[int] | None = None) -> Batch:
        """Random transitions of all members or some, with pads at the last ones' end."""
        found = self.team_batch(at) if self.spaces.team else self.batch_alone(at)
        weight = found.weight.clone()
        weight[1, B - 2 :] = 0.0
        return cut(replace(found, weight=weight), members)

    def team_batch(self, at: int) -> Batch:
        return transitions(self.spaces, at, self.masked)

    def batch_alone(self, at: int) -> Batch:
        g, o, a = torch.Generator().manual_seed(at), self.spaces.observations, self.spaces.actions
        rows = torch.randn(P, B, 2 * o + a, generator=g)  # parts of longer rows, as a memory gives them
        legal = (torch.rand(P, B, a, generator=g) < 0.5).scatter(-1, torch.randint(a, (P, B, 1), generator=g), True)
        action = rows[..., 2 * o :].clamp(-1, 1) if self.spaces.continuous else legal.int().argmax(-1)
        weight = torch.rand(P, B, generator=g)
        return Batch(
            obs=rows[..., :o], next_obs=rows[..., o : 2 * o], action=action, reward=torch.randn(P, B, generator=g),
            discount=0.9 * (torch.rand(P, B, generator=g) > 0.3), weight=weight / weight.sum(dim=1, keepdim=True),
            next_legal=legal.roll(1, 1) if self.masked else None, legal=legal if self.masked else None,
        )  # fmt: skip

    def turns(self) -> list[int]:
        period = int(getattr(self.given.cfg, "policy_delay", 1))
        return [*range(period), *range(period)]

    def learn(self, cohort: Cohort, members: list[int] | None = None) -> list[Learned]:
        return [
            self.given.update(cohort, self.batch(at, members), turn, at) for at, turn in enumerate(self.turns())
        ]  # fmt: skip


def cut(batch: Batch, members: list[int] | None) -> Batch:
    if members is None:
        return batch
    found = {name: getattr(batch, name) for name in Batch.__dataclass_fields__}
    return Batch(**{name: None if x is None else x[members] for name, x in found.items()})


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many updates the kernels took."""
    taken: list[int] = []
    original = update.learn

    def watched(*args: Any, **options: Any) -> Any:
        taken.append(1)
        return original(*args, **options)

    monkeypatch.setattr(update, "learn", watched)
    return taken


@each_case
def test_an_update_is_torchs(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, states, told, it = counted(monkeypatch), [], [], Case(case)
    for kernels in (build.load(), None):
        build.use(kernels)
        cohort = it.cohort()
        told.append(it.learn(cohort))
        states.append(cohort.tensors())
        assert taken == [True] * len(it.turns())
    for at, (ours, theirs) in enumerate(zip(*told, strict=True)):
        assert ours.healthy.tolist() == theirs.healthy.tolist() == [True] * P
        torch.testing.assert_close(ours.losses, theirs.losses, rtol=2e-5, atol=2e-5)
        assert ours.errors is not None
        assert theirs.errors is not None
        counts = it.batch(at).weight > 0
        torch.testing.assert_close(ours.errors[counts], theirs.errors[counts].abs(), rtol=2e-5, atol=2e-5)
    for ours, theirs in zip(*states, strict=True):
        assert (ours - theirs).abs().max() <= 2e-5 * theirs.abs().max()


def test_where_no_action_is_legal_the_policy_learns_nothing_and_critics_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a step, and after another one, whose end is none: all actions count alike there, as torch has it."""
    taken, it, found = counted(monkeypatch), Case("sac:masked"), []
    batch = it.batch(0)
    assert batch.legal is not None
    assert batch.next_legal is not None
    batch.legal[:, 2], batch.next_legal[:, 4], batch.discount[:, 4] = False, False, 0.9
    for kernels in (build.load(), None):
        build.use(kernels)
        cohort = it.cohort()
        learned = it.given.update(cohort, batch, 0, 0)
        assert learned.errors is not None
        errors = torch.where(batch.weight > 0, learned.errors.abs(), 0.0)
        found.append((learned.losses.detach(), errors, *cohort.tensors()))
    assert taken == [True]
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).abs().max() <= 2e-5 * theirs.abs().max()


EVOLVED: dict[str, dict[str, tuple[float, ...]]] = {
    case: {"target_noise": (0.0, 0.7, 2.0), "target_clip": (0.5, 0.05, 1.5)}
    for case in ("td3", "td3bc", "matd3:continuous:group")
}


@pytest.mark.parametrize("case", EVOLVED)
def test_numbers_that_evolve_are_each_members_own(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels take a row of them, and a member alone gets the bits that it has among others."""
    taken, it, states = counted(monkeypatch), Case(case), []
    evolved = {name: torch.tensor(values) for name, values in EVOLVED[case].items()}

    def learned(*slots: int) -> Cohort:
        cohort = it.cohort(*slots)
        rows = {name: row[list(cohort.slots)] for name, row in evolved.items()}
        assert cohort.hyper.keys() >= rows.keys(), "mutation may change them"
        cohort = replace(cohort, hyper={**cohort.hyper, **rows})
        it.learn(cohort, cohort.slots if slots else None)
        return cohort

    for kernels in (None, build.load()):
        build.use(kernels)
        together = learned()
        states.append(together.tensors())
    assert taken == [True] * len(it.turns())
    for theirs, ours in zip(*states, strict=True):
        assert (ours - theirs).abs().max() <= 2e-5 * theirs.abs().max()
    before = it.cohort()
    it.learn(before)
    assert any((one != other).any() for one, other in zip(before.tensors(), states[1], strict=True))
    (alone,) = dissolve([learned(1)])
    assert same(alone, dissolve([together])[1])


def test_normalised_and_blended_networks_are_torchs() -> None:
    arch = Arch((Block(9), Block(6, True)), 7, (), "GELU", True)
    it, states = Case("matd3:continuous:group", arch=arch), []
    for kernels in (build.load(), None):
        build.use(kernels)
        cohort = it.cohort()
        it.learn(cohort)
        states.append(cohort.tensors())
    for ours, theirs in zip(*states, strict=True):
        assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


@each_case
def test_a_members_bits_are_its_own(case: str) -> None:
    it = Case(case)
    together = it.cohort()
    told = it.learn(together)
    for slots in ([0], [1, 2]):
        few = it.cohort(*slots)
        rows = [together.slots.index(slot) for slot in few.slots]
        own = it.learn(few, few.slots)
        for ours, theirs in zip(own, told, strict=True):
            assert torch.equal(ours.losses, theirs.losses[rows])
        for a, b in zip(dissolve([few]), [dissolve([together])[slot] for slot in few.slots], strict=True):
            assert same(a, b)
    halves = it.cohort()
    for part, rows in ((halves.part(0, 1), [0]), (halves.part(1, P), [1, 2])):
        it.learn(part, rows)
    assert all(torch.equal(a, b) for a, b in zip(halves.tensors(), together.tensors(), strict=True))


SOME = {"dqn", "rainbow", "td3", "ppo"}
COMPILED = [name for name in algos.names() if algos.get(name).COMPILED]


@pytest.mark.parametrize(
    ("algo", "backend"),
    [
        *(pytest.param(x, "sync", marks=() if x in SOME else pytest.mark.thorough) for x in COMPILED),
        ("ppo", "torch"),
    ],
)
@pytest.mark.thorough
def test_unlike_members_share_one_cohort_and_learn_what_they_learn_among_like_ones(
    algo: str, backend: str, run: Callable[..., Any]
) -> None:
    """Of unlike widths, layers, activations and batches: nothing that one has shifts what is another's."""
    found = []
    for mode in ("exact", "merged"):
        p = unlike(algo, norm=algo != "ppo", cohorts=mode, **LONG)
        found.append(run(replace(p, env=p.env.model_copy(update={"backend": backend})), 5))
    for each in found:
        advance(each, 50)
    apart, together = found
    assert len(apart.cohorts) > len(together.cohorts) == 1
    for slot in range(5):
        assert same(apart.members[slot], together.members[slot])
        assert float(together.members[slot].tensors["updates"]) > 0


@each_case
def test_who_diverges_freezes_alone(case: str) -> None:
    it = Case(case)
    sound, broken = it.cohort(), it.cohort()
    policy = broken.state.actor.values
    policy[1, policy[1].nonzero()[0]] = torch.nan
    before = [x.clone() for x in broken.tensors()]
    it.learn(sound)
    told = it.learn(broken)
    assert all(learned.healthy.tolist() == [True, False, True] for learned in told)
    for at, was, alone in zip(broken.tensors(), before, sound.tensors(), strict=True):
        each = len(at) // P
        rows, frozen = [i for i in range(len(at)) if i // each != 1], slice(each, 2 * each)
        assert torch.equal(at[rows], alone[rows])
        assert same_bits(at[frozen], was[frozen]) or at[frozen].isnan().any()


@each_case
def test_a_loss_that_is_no_number_freezes_its_member_alone(case: str) -> None:
    it = Case(case)
    sound, broken = it.cohort(), it.cohort()
    before = [x.clone() for x in broken.tensors()]
    for at, turn in enumerate(it.turns()):
        it.given.update(sound, it.batch(at), turn, at)
        batch = it.batch(at)
        batch.reward[2, 0] = torch.nan
        batch.weight[2, 0] = 0.5
        assert it.given.update(broken, batch, turn, at).healthy.tolist() == [True, True, False]
    for at, was, alone in zip(broken.tensors(), before, sound.tensors(), strict=True):
        first = 2 * (len(at) // P)
        assert torch.equal(at[:first], alone[:first])
        assert torch.equal(at[first:], was[first:])


@pytest.mark.parametrize("case", ["td3bc", "sac:continuous", "maddpg:discrete:group"])
def test_a_loss_that_overflows_freezes_its_member_though_its_gradient_does_not(case: str) -> None:
    """The square of what one transition pays is no float, the number itself is."""
    it, batch = Case(case), Case(case).batch(0)
    batch.reward[1, 0], batch.discount[1, 0], batch.weight[1, 0] = 2e19, 0.0, 0.01
    for kernels in (build.load(), None):
        build.use(kernels)
        assert it.given.update(it.cohort(), batch, 0, 0).healthy.tolist() == [True, False, True]


@pytest.mark.parametrize("case", ["maddpg:discrete:group", "matd3:masked"])
def test_a_target_that_acts_and_is_no_number_freezes_its_member(case: str) -> None:
    for kernels in (build.load(), None):
        build.use(kernels)
        it = Case(case)
        cohort = it.cohort()
        target = cohort.state.actor_target
        target.values[target.values.shape[0] // P, :] = torch.nan  # the first of the second member's networks
        assert it.given.update(cohort, it.batch(0), 0, 0).healthy.tolist() == [True, False, True]


def test_a_temperature_that_is_not_learned_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = counted(monkeypatch)
    monkeypatch.setitem(CASES, "constant", ("sac", "continuous", False, {"learn_alpha": False}))
    it, states = Case("constant"), []
    for kernels in (build.load(), None):
        build.use(kernels)
        cohort = it.cohort()
        it.learn(cohort)
        assert torch.equal(cohort.state.log_alpha, it.cohort().state.log_alpha)
        states.append(cohort.tensors())
    assert taken == [True] * len(it.turns())
    for ours, theirs in zip(*states, strict=True):
        assert (ours - theirs).abs().max() <= 2e-5 * theirs.abs().max()


def test_an_agent_without_a_legal_action_is_as_in_torch() -> None:
    it, found = Case("maddpg:masked"), []
    batch = it.batch(0)
    assert batch.legal is not None
    assert batch.next_legal is not None
    batch.legal[:, 2, 0], batch.next_legal[:, 4, 1] = False, False
    for kernels in (build.load(), None):
        build.use(kernels)
        cohort = it.cohort()
        learned = it.given.update(cohort, batch, 0, 0)
        found.append((learned.losses.detach(), learned.healthy.float(), *cohort.tensors()))
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).abs().max() <= 2e-5 * theirs.abs().max()


@pytest.mark.parametrize("n", [1, 7, 8, 10_001])
def test_draws_are_those_of_torch(n: int) -> None:
    draw = Stream(torch.from_numpy(member_keys(3, range(5))), Purpose.UPDATE, torch.tensor([77]))
    ours, parts, shares, many = draw.normal(n), draw.parts(2).keys, draw.uniform(n), draw.normal_window(3, n)
    assert torch.equal(many[:, 0], ours)
    build.use(None)
    theirs = draw.normal(n)
    assert torch.equal(parts, draw.parts(2).keys)
    assert torch.equal(shares, draw.uniform(n))
    torch.testing.assert_close(many, draw.normal_window(3, n), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    assert (ours == theirs).float().mean() > 0.999  # rarely one rounds the other way
    build.use(build.load())
    torch.testing.assert_close(actor_critic.gumbels(draw, n), gumbel(draw, n).float(), rtol=1e-6, atol=1e-7)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.numpy().tobytes() == b.numpy().tobytes()
