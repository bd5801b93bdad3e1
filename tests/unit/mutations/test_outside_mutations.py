"""A mutation of another package: what it gives is looked at, and recorded under its entry point's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import outside
from evopipe import plugins
from evopipe.core.arch import Arch
from evopipe.core.member import Member
from evopipe.core.structure import Widths
from evopipe.errors import DataError, EnvironmentFailed, ParamsError
from evopipe.mutations import NONE, Mutation, Traits, mutate, read_births
from evopipe.mutations.rl_hp import set_values
from evopipe.schema.evolution import MutationConfig

ARCH = Arch((), 8, (), "ReLU", False)
WIDER = Arch((), 16, (), "ReLU", False)
WIDTHS = Widths(4, 2)
TRAITS = Traits({"q": WIDTHS}, ["q"], {"q": ("parameters", "q"), "steps": ("row", "")}, {}, frozenset())
OTHERS = dict.fromkeys(("none", "architecture", "parameters", "activation", "rl_hp"), 0.0)
SIZE = ARCH.size(WIDTHS)


def member() -> Member:
    return Member(2, 7, 3, 9, ARCH, {"lr": 0.1, "gamma": 0.9}, {"q": torch.zeros(SIZE), "steps": torch.tensor(4.0)})


Gives = Callable[[Callable[..., Any]], tuple[Member, Mutation]]


@pytest.fixture
def gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gives]:
    """Mutate by the only kind that has a chance: a package's, which does what a function does."""
    outside.lay(tmp_path, "of-a-friend", {"evopipe.mutations": {"theirs": "friends_mutation:change"}})
    (tmp_path / "friends_mutation.py").write_text("def change(cfg, traits, member, rng): return given(member, rng)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins._all.cache_clear()

    def by(function: Callable[..., Any]) -> tuple[Member, Mutation]:
        import friends_mutation  # type: ignore[import-not-found]

        monkeypatch.setattr(friends_mutation, "given", function, raising=False)
        cfg = MutationConfig.model_validate({"probabilities": {**OTHERS, "theirs": 1.0}})
        return mutate(cfg, TRAITS, member(), np.random.default_rng(0))

    yield by
    plugins._all.cache_clear()


def test_what_it_gives_is_recorded_under_its_own_name(gives: Gives) -> None:
    given = replace(member(), hyper={"lr": 0.2, "gamma": 0.9}), Mutation("another word", "lr", 0.1, 0.2)
    assert gives(lambda one, rng: given) == (given[0], Mutation("theirs", "lr", 0.1, 0.2))
    wider = {"q": torch.ones(WIDER.size(WIDTHS)), "steps": torch.tensor(4.0)}
    grown = replace(member(), arch=WIDER, tensors=wider), Mutation("theirs", "grew")
    assert gives(lambda one, rng: grown) == grown


def test_what_changes_nothing_is_no_mutation(gives: Gives) -> None:
    assert gives(lambda one, rng: None)[1] is NONE
    alike = replace(member(), tensors={name: tensor.clone() for name, tensor in member().tensors.items()})
    assert gives(lambda one, rng: (alike, Mutation("theirs", "nothing")))[1] is NONE
    for changed in (
        {"hyper": {"lr": 0.1, "gamma": 0.8}},
        {"tensors": {"q": torch.zeros(SIZE), "steps": torch.tensor(5.0)}},
        {"arch": replace(ARCH, activation="Tanh")},
    ):
        other = replace(member(), **changed)
        assert gives(lambda one, rng, other=other: (other, Mutation("theirs", "much")))[1].what == "much"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slot": 1}, "of another slot, id, key or parent"),
        ({"id": 1}, "of another slot, id, key or parent"),
        ({"key": 1}, "of another slot, id, key or parent"),
        ({"parent": None}, "of another slot, id, key or parent"),
        ({"hyper": {"lr": 0.1}}, "with other hyper-parameters or tensors"),
        ({"tensors": {"q": torch.zeros(SIZE)}}, "with other hyper-parameters or tensors"),
        (
            {"tensors": {"q": torch.zeros(SIZE - 1), "steps": torch.tensor(4.0)}},
            f"whose q has the shape [{SIZE - 1}], expected [{SIZE}]",
        ),
        (
            {"tensors": {"q": torch.zeros(SIZE, dtype=torch.float64), "steps": torch.tensor(4.0)}},
            f"whose q has the shape [{SIZE}], expected [{SIZE}]",
        ),
        ({"arch": WIDER}, f"whose q has the shape [{SIZE}], expected [{WIDER.size(WIDTHS)}]"),
        (
            {"tensors": {"q": torch.zeros(SIZE), "steps": torch.zeros(2)}},
            "whose steps has the shape [2], expected []",
        ),
        (
            {"arch": WIDER, "tensors": {"q": torch.zeros(WIDER.size(WIDTHS)), "steps": torch.zeros(2)}},
            "whose steps has the shape [2], expected []",
        ),
    ],
)  # fmt: skip
def test_a_member_that_does_not_fit_is_refused(gives: Gives, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(EnvironmentFailed) as caught:
        gives(lambda one, rng: (replace(member(), **changes), Mutation("theirs", "lr")))
    assert said in str(caught.value)
    assert str(caught.value).startswith("evolution.mutation.probabilities.theirs: the package 'of-a-friend'")


def test_what_is_no_mutation_at_all_is_a_sentence(gives: Gives, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match=r"gave int, expected \(member, mutation\) or None"):
        gives(lambda one, rng: 3)
    with pytest.raises(EnvironmentFailed, match=r"theirs: the package 'of-a-friend' .* raised ZeroDivisionError"):
        gives(lambda one, rng: 1 // 0)
    (tmp_path / "friends_mutation.py").write_text("given = None\nchange = 3\n")
    outside.lay(tmp_path, "of-a-friend", {"evopipe.mutations": {"theirs": "friends_mutation:__name__"}})
    plugins._all.cache_clear()
    with pytest.raises(ParamsError, match="names no function but a str"):
        gives(lambda one, rng: None)


def test_births_are_one_for_each_member() -> None:
    said = [{"kind": "rl_hp", "what": "lr", "before": 0.1, "after": 0.2}, NONE.to_json()]
    assert read_births(said, 2) == [Mutation("rl_hp", "lr", 0.1, 0.2), NONE]
    for data, members in ((said, 1), (said, 3), ([{"kind": 3}], 1)):
        with pytest.raises(DataError, match="does not say how each member was mutated"):
            read_births(data, members)


def test_values_that_a_search_sets_are_told_one_by_one() -> None:
    one = member()
    assert set_values(one, {"lr": 0.1, "gamma": 0.9}) == (one, NONE)
    changed, told = set_values(one, {"lr": 0.1, "gamma": 0.8})
    assert (changed.hyper, told) == ({"lr": 0.1, "gamma": 0.8}, Mutation("rl_hp", "gamma", 0.9, 0.8))
    changed, told = set_values(one, {"lr": 0.2, "gamma": 0.8})
    assert (changed.hyper, told) == ({"lr": 0.2, "gamma": 0.8}, Mutation("rl_hp", "gamma 0.9 → 0.8, lr 0.1 → 0.2"))
    assert told.describe() == told.what
    assert one.hyper == {"lr": 0.1, "gamma": 0.9}
