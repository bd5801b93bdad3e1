"""Completions: what each row writes hangs on its own member, prompt and key alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import templates
import words
from evopipe import rng
from evopipe.core.net import Net, score
from evopipe.language.adapters import LoRA
from evopipe.language.base import Base
from evopipe.language.generate import Sampling, Stops, Written, _stopped, before, chances, choose, generate, texts
from evopipe.types import Text

KEYS = torch.tensor([5, 6, 7])
LIMIT = 8


def prompts(pads: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts `[3, 4, 6]`, one of them shorter, with so many pads more before all of them."""
    ids = torch.randint(7, 21, (3, 4, 6), generator=torch.Generator().manual_seed(3))
    real = torch.ones(3, 4, 6, dtype=torch.bool)
    real[:, 1, :2] = False
    more = torch.zeros(3, 4, pads, dtype=torch.int64)
    return torch.cat((more, ids), dim=-1), torch.cat((more.bool(), real), dim=-1)


def write(
    net: Net, ids: torch.Tensor, real: torch.Tensor, keys: torch.Tensor = KEYS, group: int = 3, leave: bool = True,
    temperature: float = 2.0, when: int = 4, base: Base | None = None, stop: Stops = (), how: Sampling | None = None,
) -> Written:  # fmt: skip
    structure: Any = net.structure
    members = len(net.values)
    how = how or Sampling(torch.full((members,), temperature), torch.zeros(members).long(), torch.ones(members))
    active, base = (lambda: structure.active(net.views)), base or words.base()
    return generate(base, active, ids, real, group, LIMIT, how, keys, when, leave, stop)


@pytest.fixture(scope="module")
def net() -> Net:
    return words.net([LoRA(2), LoRA(4), LoRA(3)], words.base())


def test_log_probabilities_as_written_are_those_that_learning_finds(net: Net) -> None:
    ids, real = prompts()
    told = write(net, ids, real)
    text = Text(
        torch.cat((ids.repeat_interleave(3, 1), told.ids), -1),
        torch.cat((real.repeat_interleave(3, 1), told.mask), -1),
        told.mask, torch.zeros_like(told.ids),
    )  # fmt: skip
    with torch.no_grad():
        now = score(net, text, entropy=True)
    assert 0 < int((~told.mask).sum()) < told.mask.numel()  # some end before the limit
    torch.testing.assert_close(now.log_prob[told.mask], told.log_prob[told.mask], atol=1e-5, rtol=0)
    torch.testing.assert_close(now.entropy[told.mask], told.entropy[told.mask], atol=1e-5, rtol=0)
    assert not told.log_prob[~told.mask].any()


def test_a_completion_ends_with_the_token_that_ends_it_and_pads_follow(net: Net) -> None:
    told = write(net, *prompts())
    (end,), pad = words.base().ends, words.base().pad
    for ids, mask in zip(told.ids.flatten(0, 1).tolist(), told.mask.flatten(0, 1).tolist(), strict=True):
        n = ids.index(end) + 1 if end in ids else LIMIT
        assert mask == [True] * n + [False] * (LIMIT - n)
        assert ids[n:] == [pad] * (LIMIT - n)


@pytest.mark.parametrize("leave", [True, False])
def test_each_prompts_own_texts_end_its_completions_and_are_no_part_of_them(net: Net, leave: bool) -> None:
    free = write(net, *prompts(), leave=leave)
    own = [("99", "0="), (), ("a",), ("no such",)] * 2 + [()] * 4
    told, known = write(net, *prompts(), leave=leave, stop=own), words.base()
    cut, whole = (texts(known, each, stop) for each, stop in ((told, own), (free, ())))
    stopped = 0
    for p in range(3):
        for r in range(12):
            asked, text = own[4 * p + r // 3], whole[p][r]
            places = [text.find(each) for each in asked if each in text]
            assert cut[p][r] == text[: min(places, default=len(text))]
            n = int(told.lengths[p, r])
            # It was stopped at the first token with which its text was there.
            known_so_far = [known.decode(free.ids[p, r, :k].tolist()) for k in range(1, int(free.lengths[p, r]) + 1)]
            first = next((k for k, so_far in enumerate(known_so_far, 1) if any(e in so_far for e in asked)), None)
            assert n == (first or int(free.lengths[p, r]))
            assert torch.equal(told.ids[p, r, :n], free.ids[p, r, :n])
            assert bool(told.ended[p, r]) == (first is not None or known.ends[0] in free.ids[p, r].tolist())
            stopped += first is not None
    assert 0 < stopped < 36


def test_a_text_of_several_bytes_a_character_stops_with_its_last_one() -> None:
    """Though each is a token by itself."""
    base = templates.base("bytes", "zephyr")
    ids = torch.tensor([[base.encode("ab é漢")]])
    one, stop = torch.tensor([[0]]), [("é漢",)]
    n = ids.shape[-1]
    found = [bool(_stopped(base, ids[..., :k], one, one == 0, 1, stop)) for k in range(1, n + 1)]
    assert len(base.encode("é漢")) == 5
    assert found == [False] * (n - 1) + [True]


def test_so_many_rows_at_once_write_the_same(net: Net) -> None:
    whole = write(net, *prompts())
    for rows in (1, 6, 9):
        same(write(net, *prompts(), base=replace(words.base(), rows_at_once=rows)), whole)


def test_a_text_ends_before_the_first_place_of_any_text_that_stops_it() -> None:
    found = [before("abcabc", stop) for stop in (("c", "b"), ("bca", "x"), ("a", "c"), ("x",), ())]
    assert found == ["a", "a", "", "abcabc", "abcabc"]


def test_the_longest_of_a_prompts_texts_says_how_far_back_is_looked() -> None:
    base = words.base()
    ids, place = torch.tensor([[base.encode("01234"), base.encode("4a321")]]), torch.tensor([[0, 1]])
    alive = torch.tensor([[True, True]])
    for stop, found in (
        ([("b", "1234"), ("1",)], [True, True]), ([("234",), ("4a", "b")], [True, False]),
        ([("b",), ("4a321", "x")], [False, True]), ([(), ("4a3",)], [False, False]),
    ):  # fmt: skip
        assert _stopped(base, ids, place, alive, 1, stop)[0].tolist() == found
    assert _stopped(base, ids, place, torch.tensor([[True, False]]), 1, [("4",), ("1",)])[0].tolist() == [True, False]
    turned = _stopped(base, ids.flip(1), place.flip(1), alive, 1, [("4",), ("1",)])  # rows may stand elsewhere
    assert turned[0].tolist() == [False, False]


def test_no_more_rows_of_a_member_are_computed_at_once_than_fit(net: Net) -> None:
    """Completions count, not prompts; of a prompt all are."""
    seen: list[int] = []
    base = words.base()
    hook = base.model.register_forward_pre_hook(
        lambda module, args, given: seen.append(given["input_ids"].shape[0] // 3), with_kwargs=True
    )
    try:
        for rows, most in ((1, 3), (6, 6), (8, 6), (9, 9), (12, 12)):
            seen.clear()
            write(net, *prompts(), base=replace(base, rows_at_once=rows))
            assert max(seen) == most
    finally:
        hook.remove()


def test_so_many_rows_at_once_keep_the_settings_of_each(net: Net) -> None:
    hot = torch.tensor([0.0, 2.0, 1.0, 0.5]).repeat_interleave(3).expand(3, -1)
    how = Sampling(hot, torch.zeros(3, 12).long(), torch.ones(3, 12))
    whole = write(net, *prompts(), how=how)
    assert len({tuple(row) for row in whole.ids[0, :3].tolist()}) == 1 < len({tuple(x) for x in whole.ids[0].tolist()})
    same(write(net, *prompts(), how=how, base=replace(words.base(), rows_at_once=3)), whole)


def test_rows_that_stay_while_others_leave_keep_their_own_settings(net: Net) -> None:
    """The likeliest tokens beside wild ones, of which the first rows end at once."""
    hot = torch.tensor([2.0, 0.0] * 6).expand(3, -1)
    how = Sampling(hot, torch.tensor([0, 1, 2] * 4).expand(3, -1), torch.ones(3, 12))
    stop = [tuple("0123456789"), ("no such",)] * 6
    left, stayed = (write(net, *prompts(), how=how, stop=stop, leave=leave) for leave in (True, False))
    assert (left.lengths.amin(dim=1) < LIMIT).all()
    same(left, stayed)


def test_no_number_is_drawn_at_two_times(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor by a token and a later one of the round before."""
    seen: list[set[int]] = []
    true = rng.uniform

    def uniform(keys: Any, purpose: Any, steps: torch.Tensor, n: int) -> torch.Tensor:
        assert (purpose, n) == (rng.Purpose.GENERATE, 12)
        seen.append({*steps.tolist()})
        return true(keys, purpose, steps, n)

    monkeypatch.setattr(rng, "uniform", uniform)
    for when in (4, 5):
        write(net, *prompts(), when=when)
    assert [len(steps) for steps in seen] == [LIMIT, LIMIT]
    assert not seen[0] & seen[1]


def same(one: Written, two: Written) -> None:
    assert torch.equal(one.ids, two.ids)
    torch.testing.assert_close(one.log_prob, two.log_prob, atol=1e-5, rtol=0)


def test_a_member_writes_alone_what_it_writes_among_others(net: Net) -> None:
    ids, real = prompts()
    together, own = write(net, ids, real), net.part(1, 2)
    same(write(own, ids[1:2], real[1:2], KEYS[1:2]), Written(*(getattr(together, f)[1:2] for f in told_fields())))


def told_fields() -> tuple[str, ...]:
    return "ids", "mask", "log_prob", "entropy", "ended"


def test_pads_and_neighbours_change_nothing(net: Net) -> None:
    ids, real = prompts()
    whole = write(net, ids, real)
    same(write(net, *prompts(pads=5)), whole)
    few = write(net, ids[:, :2], real[:, :2])
    torch.testing.assert_close(few.log_prob[:, :, 0], whole.log_prob[:, :6, 0], atol=1e-5, rtol=0)
    same(few, Written(*(getattr(whole, f)[:, :6] for f in told_fields())))


def test_what_is_finished_may_leave_or_stay(net: Net) -> None:
    same(write(net, *prompts(), leave=False), write(net, *prompts()))


def test_where_nothing_leaves_a_neighbour_that_is_not_finite_changes_no_bit(net: Net) -> None:
    spoilt = Net(net.structure, net.values.clone())
    spoilt.values[1] = torch.nan
    before, after = (write(each, *prompts(), leave=False) for each in (net, spoilt))
    for name in told_fields():
        assert torch.equal(getattr(before, name)[[0, 2]], getattr(after, name)[[0, 2]])
    assert int(after.ids.max()) < words.base().words.vocabulary


def test_another_time_or_key_draws_others(net: Net) -> None:
    first = write(net, *prompts())
    assert not torch.equal(write(net, *prompts(), when=5).ids, first.ids)
    assert not torch.equal(write(net, *prompts(), keys=KEYS + 1).ids, first.ids)
    assert torch.equal(write(net, *prompts()).ids, first.ids)


def test_without_temperature_the_likeliest_is_written_whatever_the_key(net: Net) -> None:
    ids, real = prompts()
    told = write(net, ids, real, group=1, temperature=0.0)
    assert torch.equal(write(net, ids, real, KEYS + 9, group=1, temperature=0.0).ids, told.ids)
    structure: Any = net.structure
    with torch.no_grad():
        logits = structure.forward(net.views, ids[:, :1])
    assert torch.equal(told.ids[:, 0, 0], logits[:, 0, -1].argmax(dim=-1))


def chosen(chances: list[float], u: list[float], temperature: float = 1.0, k: int = 0, p: float = 1.0) -> list[int]:
    n = len(u)
    how = Sampling(torch.full((1, n), temperature), torch.full((1, n), k), torch.full((1, n), p))
    log_probs = torch.tensor(chances).log().expand(1, n, -1)
    found: list[int] = choose(log_probs, how, torch.tensor([u], dtype=torch.float64))[0].tolist()
    return found


def test_tokens_are_drawn_by_their_chances() -> None:
    chances, u = [0.1, 0.4, 0.2, 0.3], [0.0, 0.09, 0.11, 0.49, 0.51, 0.69, 0.71, 0.999]
    assert chosen(chances, u) == [0, 0, 1, 1, 2, 2, 3, 3]
    # 1/T = 2 squares them: .01 .16 .04 .09 of .3, summed .033 .567 .7 1
    assert chosen(chances, [0.03, 0.04, 0.56, 0.57, 0.69, 0.71], temperature=0.5) == [0, 1, 1, 2, 2, 3]
    # the two likeliest: .4 and .3 of .7, by place 1, then 3
    assert chosen(chances, [0.0, 0.57, 0.58, 0.999], k=2) == [1, 1, 3, 3]
    # .4 + .3 reach .7, not .65 alone: three with .75
    assert chosen(chances, [0.0, 0.57, 0.58, 0.999], p=0.65) == [1, 1, 3, 3]
    assert set(chosen(chances, [i / 50 for i in range(50)], p=0.75)) == {1, 2, 3}
    assert chosen(chances, [0.0, 0.999], p=1e-9) == [1, 1]
    assert chosen(chances, [0.0, 0.5, 0.999], temperature=0.0) == [1, 1, 1]


@pytest.mark.parametrize("ties", [False, True], ids=["apart", "near"])
def test_top_k_and_top_p_give_the_chances_of_transformers_warpers(ties: bool) -> None:
    """Temperature, then the k likeliest, then of these as many as reach p: as `generate` of transformers has it."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    draws = torch.Generator().manual_seed(4)
    ids = torch.zeros(1, 1, dtype=torch.int64)
    for _ in range(60):
        logits = 3 * torch.randn(1, 24, generator=draws, dtype=torch.float64)
        if ties:
            logits = logits.round() + 1e-5 * torch.arange(24)  # nearly equal ones
        k, p = int(torch.randint(1, 24, (), generator=draws)), float(torch.rand((), generator=draws)) * 0.98 + 0.01
        t = float(torch.rand((), generator=draws)) + 0.5
        wanted = logits
        for warper in (TemperatureLogitsWarper(t), TopKLogitsWarper(k), TopPLogitsWarper(p)):
            wanted = warper(ids, wanted)
        how = Sampling(
            torch.full((1, 1), t, dtype=torch.float64),
            torch.full((1, 1), k),
            torch.full((1, 1), p, dtype=torch.float64),
        )
        found = chances(logits[None].log_softmax(dim=-1), how)[0, 0]
        torch.testing.assert_close(found, wanted.softmax(dim=-1)[0], atol=1e-9, rtol=0)
        # What is drawn has these chances: at the middle of each token's share it is that token.
        edges = found.cumsum(dim=-1)
        for token in found.nonzero().flatten().tolist():
            u = (edges[token] - found[token] / 2).view(1, 1)
            assert choose(logits[None].log_softmax(dim=-1), how, u).item() == token


def test_all_tokens_that_share_the_last_place_stay() -> None:
    assert set(chosen([0.25, 0.25, 0.25, 0.25], [i / 50 for i in range(50)], k=2)) == {0, 1, 2, 3}
    assert set(chosen([0.4, 0.2, 0.2, 0.2], [i / 50 for i in range(50)], k=1)) == {0}


def test_rows_may_be_drawn_unlike() -> None:
    log_probs = torch.tensor([0.1, 0.4, 0.2, 0.3]).log().expand(1, 3, -1)
    how = Sampling(torch.tensor([[0.0, 1.0, 1.0]]), torch.tensor([[0, 0, 1]]), torch.ones(1, 3))
    assert choose(log_probs, how, torch.full((1, 3), 0.05, dtype=torch.float64)).tolist() == [[1, 0, 1]]


def test_each_row_without_temperature_has_its_own_likeliest_token_beside_one_that_is_drawn() -> None:
    log_probs = torch.tensor([[[0.1, 0.9], [0.8, 0.2], [0.5, 0.5]]]).log()
    how = Sampling(torch.tensor([[0.0, 0.0, 1.0]]), torch.zeros(1, 3).long(), torch.ones(1, 3))
    for u, drawn in ((0.4, 0), (0.6, 1)):
        assert choose(log_probs, how, torch.full((1, 3), u, dtype=torch.float64)).tolist() == [[1, 0, drawn]]


def test_any_of_the_bases_ends_ends_a_completion_and_no_other_token(net: Net) -> None:
    """A base may have several, as of the end of a turn and of a text."""
    ids, real = prompts()
    plain = words.base()
    two = write(net, ids, real, base=replace(plain, ends=(plain.ends[0], 9)))
    lengths = two.lengths.flatten().tolist()
    last = [row[n - 1] for row, n in zip(two.ids.flatten(0, 1).tolist(), lengths, strict=True)]
    inside = {token for row, n in zip(two.ids.flatten(0, 1).tolist(), lengths, strict=True) for token in row[: n - 1]}
    assert 9 in last
    assert not inside & {9, plain.ends[0]}
    assert two.ended.flatten().tolist() == [token in (9, plain.ends[0]) for token in last]


def test_the_likeliest_tokens_that_reach_p_are_enough() -> None:
    """What stands behind those that reach it exactly is left out; of ties for the k-th place all stay."""

    def chance(p: float, k: int = 0, *probabilities: float) -> list[float]:
        how = Sampling(torch.ones(1, 1), torch.full((1, 1), k), torch.full((1, 1), p))
        return chances(torch.tensor([[probabilities]]).log(), how)[0, 0].tolist()

    assert chance(0.5, 0, 1.0, 1.0) == [1.0, 0.0]
    assert chance(0.51, 0, 1.0, 1.0) == [0.5, 0.5]
    assert chance(1.0, 2, 0.5, 0.25, 0.25) == pytest.approx([0.5, 0.25, 0.25])
    assert chance(1.0, 1, 0.5, 0.25, 0.25) == [1.0, 0.0, 0.0]
    assert chance(0.5, 2, 0.25, 0.5, 0.125, 0.125) == pytest.approx([0.0, 1.0, 0.0, 0.0])
