"""Every bound of a number in either kind of params file, in an algorithm's block and in stored JSON: just inside is
taken, just outside refused, and the bounds are those of a reviewed table."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import pytest
from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen, MultipleOf
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from evopipe import algos, searchers
from evopipe.agents.settings import Agents
from evopipe.errors import ParamsError
from evopipe.params.load import Params, parse_params
from evopipe.params.text import LanguageParams
from evopipe.schema import stored

TABLE = Path(__file__).with_name("bounds.json")
KINDS = (Ge, Gt, Le, Lt, MultipleOf, MinLen, MaxLen)


def metas(field: FieldInfo) -> Iterator[Any]:
    """Constraints of a field: its own, then those within its type, such as of a list's items."""
    yield from field.metadata
    yield from inner(field.annotation)


def inner(annotation: Any) -> Iterator[Any]:
    for part in get_args(annotation):
        if isinstance(part, FieldInfo):
            yield from part.metadata
        elif isinstance(part, KINDS):
            yield part
        else:
            yield from inner(part)


def models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models(part)


def fields(model: type[BaseModel], path: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        yield f"{path}.{name}", field
        for block in models(field.annotation):
            yield from fields(block, f"{path}.{name}")


def everything() -> dict[str, FieldInfo]:
    roots: dict[str, type[BaseModel]] = {"env": Params, "language": LanguageParams, "agents": Agents}
    roots |= {f"algos.{name}": algos.get(name).Config for name in algos.names(None)}
    roots |= {f"search.{name}": searchers.get(name).Config for name in searchers.OWN if name != "tournament"}
    kinds = {name: kind for name, kind in vars(stored).items() if getattr(kind, "__module__", "") == stored.__name__}
    roots |= {f"stored.{name}": kind for name, kind in kinds.items() if hasattr(kind, "model_fields")}
    return {path: field for name, root in roots.items() for path, field in fields(root, name)}


def said(field: FieldInfo) -> list[str]:
    found = []
    for meta in metas(field):
        found += [f"{type(meta).__name__} {dataclasses.astuple(meta)[0]}"] if isinstance(meta, KINDS) else []
    return found


EVERY = everything()


def test_the_bounds_are_those_of_the_table() -> None:
    """A bound that is changed on purpose is changed in the table too: see what `made` of this file gives."""
    assert json.loads(TABLE.read_text()) == made()


def made() -> dict[str, list[str]]:
    return {path: bounds for path, field in sorted(EVERY.items()) if (bounds := said(field))}


def beside(edge: float, towards: float) -> float:
    """The next number; beside 0 the smallest that is no denormal, which a processor may be told to take for 0."""
    return math.nextafter(edge, towards) if edge else math.copysign(sys.float_info.min, towards)


def by_block(paths: Iterable[str]) -> list[Any]:
    """The paths in groups by the two names that they begin with, a case each."""
    groups = groupby(sorted(paths, key=_block), _block)
    return [pytest.param(list(group), id=name) for name, group in groups]


def _block(path: str) -> str:
    return ".".join(path.split(".")[:2])


@pytest.mark.parametrize("paths", by_block(path for path, field in EVERY.items() if said(field)))
def test_just_inside_is_taken_and_just_outside_refused(paths: list[str]) -> None:
    for path in paths:
        _edges_hold(path, EVERY[path])


def _edges_hold(path: str, field: Any) -> None:
    own = {type(meta): dataclasses.astuple(meta)[0] for meta in field.metadata if isinstance(meta, KINDS)}
    whole = "int" in str(field.annotation) and "float" not in str(field.annotation)
    if not own.keys() & {Ge, Gt, Le, Lt} or not ("int" in str(field.annotation) or "float" in str(field.annotation)):
        return
    adapter: Any = TypeAdapter(FieldInfo.from_annotation(field.annotation) and _annotated(field))
    step = own.get(MultipleOf, 1)

    def taken(value: float) -> bool:
        try:
            adapter.validate_python(int(value) if whole else float(value), strict=True)
        except ValidationError:
            return False
        return True

    for kind, edge in own.items():
        if kind in (Ge, Le):
            out = edge - step if kind is Ge else edge + step
            out = out if whole else beside(edge, -math.inf if kind is Ge else math.inf)
            assert edge % step or taken(edge), (path, edge)
            assert not taken(out), (path, out)
        elif kind in (Gt, Lt):
            within = beside(edge, math.inf if kind is Gt else -math.inf)
            assert not taken(edge), (path, edge)
            assert taken(edge + 1 if whole and kind is Gt else edge - 1 if whole else within), (path, within)


def _annotated(field: FieldInfo) -> Any:
    from typing import Annotated

    bounds = [meta for meta in field.metadata if isinstance(meta, KINDS)]
    return Annotated[(field.annotation, *bounds)] if bounds else field.annotation  # type: ignore[valid-type]


# What a number means decides its bounds, whatever a file says of it: by name, (least, most) that may be taken.
UNIT = (0.0, 1.0)
MEANING: dict[str, tuple[float, float]] = {
    **dict.fromkeys("gamma gae_lambda lam tau beta_start eps_start eps_end dropout".split(), UNIT),
    **dict.fromkeys("validation test expectile top_p min_p".split(), UNIT),
    **dict.fromkeys("clip_low clip_high temperature entropy clip lr lr_actor lr_critic".split(), (0.0, math.inf)),
    **dict.fromkeys(
        "batch_size learn_step episodes eval_episodes num_envs layers heads hidden rank rows group_size "
        "epochs capacity n_step updates max_steps evo_steps window threads samples".split(), (0.0, math.inf),
    ),
    **dict.fromkeys("port".split(), (1.0, 65535.0)),
}  # fmt: skip


@pytest.mark.parametrize("paths", by_block(path for path in EVERY if path.rpartition(".")[2] in MEANING))
def test_no_number_is_taken_that_its_meaning_forbids(paths: list[str]) -> None:
    for path in paths:
        _no_nonsense(path, EVERY[path])


def _no_nonsense(path: str, field: Any) -> None:
    low, high = MEANING[path.rpartition(".")[2]]
    if not any(kind in str(field.annotation) for kind in ("int", "float")) or path.startswith("stored."):
        return
    adapter: Any = TypeAdapter(_annotated(field))
    for value in (low - 1, high + 1, low - 1e-3, high + 1e-3):
        if math.isfinite(value):
            for number in {value, int(value)} if float(value).is_integer() else {value}:
                with pytest.raises(ValidationError):
                    adapter.validate_python(number)
                    pytest.fail(f"{path}: {number} is taken")


@pytest.mark.parametrize(
    ("inside", "outside", "said"),
    [
        (
            {"population": {"size": 4096}, "env": {"num_envs": 16}, "train": {"evo_steps": 5000}},
            {"population": {"size": 4096}, "env": {"num_envs": 17}, "train": {"evo_steps": 5000}},
            "population.size: 4096 members with 17 environments each",
        ),
        (
            {"algos": {"dqn": {"evolve": {"lr": {"min": 1e-3, "max": 1e-3}}}}},
            {"algos": {"dqn": {"evolve": {"lr": {"min": 1.1e-3, "max": 1e-3}}}}},
            "algos.dqn.evolve.lr: min (0.0011) is above max (0.001)",
        ),
        (
            {"evolution": {"mutation": {"architecture": {"min_layers": 2, "max_layers": 2}}}},
            {"evolution": {"mutation": {"architecture": {"min_layers": 3, "max_layers": 2}}}},
            "evolution.mutation.architecture: min_layers (3) is above max_layers (2)",
        ),
        (
            {"language": {}, "algos": {"grpo": {"rows": 8, "group_size": 4, "batch_size": 8, "evolve": {}}}},
            {"language": {}, "algos": {"grpo": {"rows": 8, "group_size": 4, "batch_size": 9, "evolve": {}}}},
            "algos.grpo.batch_size: 9 are more than the completions of a step (rows: 8)",
        ),
        (
            {"language": {}, "fetch": {"validation": 0.5, "test": 0.45}},
            {"language": {}, "fetch": {"validation": 0.5, "test": 0.46}},
            "fetch.test: with `validation` it leaves nothing to learn from",
        ),
        (
            {"env": {"num_envs": 16}, "train": {"evo_steps": 16}},
            {"env": {"num_envs": 17}, "train": {"evo_steps": 16}},
            "train.evo_steps: must be at least env.num_envs (17)",
        ),
        (
            {"env": {"num_envs": 128}, "train": {"replay": {"updates": 64}}},
            {"env": {"num_envs": 129}, "train": {"replay": {"updates": 64}}},
            "train.replay.updates: must be at most 63 with 129 environments",
        ),
        (
            {"algos": {"dqn": {"batch_size": 64}}, "train": {"replay": {"capacity": 64}}},
            {"algos": {"dqn": {"batch_size": 65}}, "train": {"replay": {"capacity": 64}}},
            "algos.dqn.batch_size: a memory of 64 transitions",
        ),
        (
            {"train": {"algo": "ppo"}, "algos": {"ppo": {"learn_step": 64, "batch_size": 64}}},
            {"train": {"algo": "ppo"}, "algos": {"ppo": {"learn_step": 64, "batch_size": 65}}},
            "algos.ppo.batch_size: 65 steps are more than a rollout has",
        ),
        (
            {"language": {"tiny": {"hidden": 32, "heads": 16}}},
            {"language": {"tiny": {"hidden": 24, "heads": 16}}},
            "language.tiny: hidden (24) must be a multiple of 2 · heads (32)",
        ),
    ],
)
def test_rules_between_keys_end_where_they_say(inside: dict[str, Any], outside: dict[str, Any], said: str) -> None:
    parse_params(inside)
    with pytest.raises(ParamsError) as refused:
        parse_params(outside)
    assert said in str(refused.value)
