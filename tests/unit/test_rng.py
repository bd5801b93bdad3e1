"""Counter-based draws: a function of key, purpose and step alone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from evopipe import rng
from evopipe.rng import Purpose, Stream

KEYS = torch.from_numpy(rng.member_keys(7, range(8)))
STEPS = torch.arange(5)


def test_the_same_arguments_draw_the_same_bits() -> None:
    assert torch.equal(rng._bits(KEYS, Purpose.ACT, STEPS, 9), rng._bits(KEYS.clone(), Purpose.ACT, STEPS.clone(), 9))


def test_the_bits_never_change_between_versions() -> None:
    keys = rng.member_keys(0, [0, 1])
    assert keys.tolist() == [-4616330145664149646, 6869446166584666695]
    assert rng._bits(torch.from_numpy(keys), Purpose.ACT, torch.tensor([3]), 1).flatten().tolist() == [
        -4490682894596206784,
        -3216198871278744821,
    ]


def test_a_subset_of_keys_steps_and_positions_draws_the_same_rows() -> None:
    full = rng._bits(KEYS, Purpose.REPLAY, STEPS, 33)
    assert torch.equal(rng._bits(KEYS[[3, 6]], Purpose.REPLAY, STEPS[2:3], 17), full[[3, 6], 2:3, :17])
    assert torch.equal(rng.uniform(KEYS[5:], Purpose.ACT, STEPS, 4), rng.uniform(KEYS, Purpose.ACT, STEPS, 4)[5:])
    np.testing.assert_array_equal(rng.member_keys(7, [3]), rng.member_keys(7, range(8))[3:4])


def test_torch_and_numpy_hash_alike() -> None:
    x = np.random.default_rng(0).integers(-(2**63), 2**63, 10_000)
    np.testing.assert_array_equal(rng._mix(torch.from_numpy(x)).numpy(), rng._mix(x))


def test_the_hash_is_splitmix64() -> None:
    mask = 2**64 - 1
    for value in (1, 2**63, 0x123456789ABCDEF0):
        z = value
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        assert int(rng._mix(np.array([rng._signed(value)]))[0]) & mask == z ^ (z >> 31)


def test_uniform_draws_are_in_range_and_uniform() -> None:
    u = rng.uniform(KEYS, Purpose.ACT, torch.arange(50), 500).flatten().numpy()
    assert u.dtype == np.float64
    assert u.min() >= 0.0
    assert u.max() < 1.0
    counts, _ = np.histogram(u, bins=100, range=(0, 1))
    expected = len(u) / 100
    chi_square = ((counts - expected) ** 2 / expected).sum()  # 99 degrees of freedom: mean 99, sd 14
    assert 50 < chi_square < 170


def test_no_correlation_between_purposes_steps_members_or_positions() -> None:
    n = 20_000
    centred = {p: rng.uniform(KEYS, p, STEPS, n) - 0.5 for p in (Purpose.ACT, Purpose.REPLAY, Purpose.INIT)}
    act = centred[Purpose.ACT]
    pairs = [
        (act[0, 0], centred[Purpose.REPLAY][0, 0]),
        (centred[Purpose.REPLAY][0, 0], centred[Purpose.INIT][0, 0]),
        *((a, b) for a, b in pairwise(act[0])),
        *((a, b) for a, b in pairwise(act[:, 0])),
        (act[0, 0, 1:], act[0, 0, :-1]),
    ]
    for a, b in pairs:
        assert abs(float((a * b).mean() * 12)) < 5 / n**0.5


def test_neighbouring_seeds_give_unlike_keys() -> None:
    keys = np.concatenate([rng.member_keys(seed, range(-1, 64)) for seed in range(200)])
    assert len(np.unique(keys)) == len(keys)
    flips = np.unpackbits((keys[:-1] ^ keys[1:]).view(np.uint8)).mean()
    assert abs(flips - 0.5) < 0.01


def test_large_seeds_are_seeds() -> None:
    assert len({int(rng.member_keys(seed, [0])[0]) for seed in (0, 2**31, 2**32 - 1, 2**63, -1)}) == 5


def test_environment_seeds_are_31_bits_and_differ_by_every_counter() -> None:
    keys = np.repeat(rng.member_keys(3, range(4)), 2500)
    envs, episodes = np.tile(np.repeat(np.arange(50), 50), 4), np.tile(np.tile(np.arange(50), 50), 4)
    seeds = rng.seeds(keys, Purpose.EPISODE, envs, episodes)
    assert seeds.min() >= 0
    assert seeds.max() < 2**31
    assert len(np.unique(seeds)) >= len(seeds) - 2  # 10⁴ of 2³¹: the expected number of collisions is 0.02
    assert (rng.seeds(keys, Purpose.EPISODE, episodes, envs) != seeds).mean() > 0.97  # counters do not commute
    assert not np.array_equal(rng.seeds(keys, Purpose.EVALUATE, envs, episodes), seeds)


def test_host_generators_depend_on_key_purpose_and_step() -> None:
    draws = {
        float(rng.host(*arguments).random())
        for arguments in ((1, Purpose.MUTATE, 0), (1, Purpose.MUTATE, 1), (1, Purpose.SELECT, 0), (-1, Purpose.MUTATE))
    }
    assert len(draws) == 4
    assert rng.host(-5, Purpose.INIT, 2).random() == rng.host(-5, Purpose.INIT, 2).random()


def test_numpy_and_torch_draw_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, steps = torch.from_numpy(rng.member_keys(3, range(5))), torch.tensor([0, 7, -3, 2**62])
    draws = rng._bits, rng.uniform
    on_host = [draw(keys, Purpose.ACT, steps, 37) for draw in draws]
    monkeypatch.setattr(rng, "_on_host", lambda keys: False)
    for draw, host in zip(draws, on_host, strict=True):
        plain = draw(keys, Purpose.ACT, steps, 37)
        assert host.dtype == plain.dtype
        assert torch.equal(host, plain)


def test_tensors_and_arrays_give_the_same_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = torch.from_numpy(rng.member_keys(3, range(4)))[:, None]
    envs, episodes = torch.arange(7), torch.tensor([0, 1, 5, 2**31, 2**40, -1, 3])
    found = rng.seeds(keys, Purpose.EPISODE, envs, episodes)
    arrays = rng.seeds(keys.numpy(), Purpose.EPISODE, envs.numpy(), episodes.numpy())
    assert torch.equal(found, torch.from_numpy(arrays))
    monkeypatch.setattr(rng, "_on_host", lambda _: False)  # as on another device
    assert torch.equal(found, rng.seeds(keys, Purpose.EPISODE, envs, episodes))


@pytest.mark.parametrize("on_host", [True, False])
def test_the_parts_of_a_stream_are_other_draws_side_by_side(on_host: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Part after part, member by member in each; the same on the host and on a device."""
    stream = Stream(KEYS, Purpose.UPDATE, torch.tensor([5]))
    expected = [stream.part(name).uniform(4) for name in (1, 2, 3)]
    if not on_host:
        monkeypatch.setattr(rng, "_on_host", lambda _: False)
    assert torch.equal(stream.parts(3).uniform(4), torch.cat(expected))
    drawn = torch.cat([stream.uniform(4), *expected])
    assert len(drawn.unique()) == drawn.numel() == 4 * 4 * len(KEYS)


def test_a_window_of_a_stream_is_what_its_last_steps_drew() -> None:
    now = Stream(KEYS, Purpose.ACT, torch.tensor([9]))
    window = now.normal_window(4, 3)
    for back in range(4):
        assert torch.equal(window[:, back], Stream(KEYS, Purpose.ACT, torch.tensor([9 - back])).normal(3))


def test_normal_draws_are_those_of_box_and_muller() -> None:
    stream = Stream(KEYS, Purpose.ACT, torch.tensor([2]))
    u = stream.uniform(2 * 500).numpy().reshape(len(KEYS), 500, 2)
    by_hand = np.sqrt(-2.0 * np.log1p(-u[..., 0])) * np.cos(2.0 * np.pi * u[..., 1])
    drawn = stream.normal(500)
    assert drawn.dtype == torch.float32
    np.testing.assert_allclose(drawn.numpy(), by_hand, rtol=1e-5, atol=1e-5)
    assert torch.equal(stream.normal(3), drawn[:, :3]), "a draw does not depend on how many follow"


def test_seeds_and_generators_never_change_between_versions() -> None:
    """They name the episodes of every run that was reported."""
    keys = rng.member_keys(3, [0, 1])
    assert rng.seeds(keys, Purpose.HELD_OUT, np.array([0, 5])).tolist() == [834593096, 1379428722]
    assert rng.run_key(3) == 5157820216294074299
    assert rng.host(5157820216294074299, Purpose.BOOTSTRAP, 2).integers(2**62) == 3414112264909234927
    assert {purpose.name: int(purpose) for purpose in Purpose} == {
        "MEMBER": 1, "INIT": 2, "ACT": 3, "REPLAY": 4, "EPISODE": 5, "MUTATE": 6, "SELECT": 7, "EVALUATE": 8,
        "CONFIRM": 9, "HELD_OUT": 10, "BEHAVIOUR": 11, "BOOTSTRAP": 12, "UPDATE": 13, "PROPOSE": 14,
        "PROBE": 15, "HINDSIGHT": 16,
        "PROMPT": 20, "GENERATE": 21,
    }  # fmt: skip
