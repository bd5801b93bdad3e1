"""Mutation of children, one file for each kind of mutation.

A file has a pure function `mutate(config, traits, member, generator)`, which returns the changed member and a record of
the change, or None if nothing can change.

Of the kinds drawn by their relative probabilities, one that would change nothing (a bound is reached) is passed over
for another, and never recorded as a mutation. Another package may bring a kind by an entry point of the group
`evopipe.mutations`, the name of a function that is called as those here are. The member given to it must stay as it is.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError

from evopipe import plugins
from evopipe.core.member import Member
from evopipe.errors import DataError, EnvironmentFailed, ParamsError
from evopipe.mutations import activation, architecture, parameters, rl_hp
from evopipe.mutations.values import NONE, Changed, Mutation, Traits, in_random_order
from evopipe.own import foreign
from evopipe.schema.evolution import MutationConfig

__all__ = ["NONE", "OPERATORS", "Changed", "Mutation", "Traits", "mutate", "read_births"]

OPERATORS = {
    "architecture": architecture.mutate,
    "parameters": parameters.mutate,
    "activation": activation.mutate,
    "rl_hp": rl_hp.mutate,
}
"""Evopipe's own, by the kind that `evolution.mutation.probabilities` names."""


def read_births(data: Any, members: int) -> list[Mutation]:
    """Return the mutation that each initial member was created with, from a stored list of `Mutation.to_json` results.

    Raises:
        DataError: the data has another form, or not exactly one mutation for each of `members` members.
    """
    try:
        births = TypeAdapter(list[Mutation]).validate_python(data)
    except ValidationError:
        births = []
    if len(births) != members:
        raise DataError("models/population: does not say how each member was mutated; run `evopipe population` again")
    return births


def mutate(
    cfg: MutationConfig, traits: Traits, member: Member, rng: np.random.Generator, allow_none: bool = True
) -> tuple[Member, Mutation]:
    """Draw a kind of mutation and apply it to a member; return the mutated copy and the record of the mutation.

    If a drawn kind cannot change the member, another kind is drawn. If nothing changed, the member itself and the
    record `NONE` are returned.

    Args:
        cfg: the settings of mutation, with the weights of the kinds.
        traits: the facts about the algorithm: its networks, tensors and hyper-parameters.
        member: the member to be mutated, a child.
        rng: the random generator for the child's slot and generation.
        allow_none: whether the kind `none`, which changes nothing, may be drawn.
    """
    weights = cfg.probabilities.model_dump()
    if not allow_none:
        weights["none"] = 0.0
    for kind in in_random_order(list(weights), list(weights.values()), rng):
        if kind == "none":
            break
        operator = OPERATORS.get(kind) or partial(_outside, kind)
        found = operator(cfg, traits, member, rng)
        if found is not None:
            return found
    return member, NONE


def _outside(kind: str, cfg: MutationConfig, traits: Traits, member: Member, rng: np.random.Generator) -> Changed:
    """Mutate by another package's function; what it gave is looked at, and recorded under the entry point's name.

    Raises:
        ParamsError: no package offers the kind, or two, or the function cannot be imported.
        EnvironmentFailed: it raised, or gave something else than a mutation.
    """
    key = f"evolution.mutation.probabilities.{kind}"
    found = plugins.find(plugins.MUTATIONS, kind, key)
    if found is None:
        raise ParamsError(f"{key}: no package offers this mutation: install the one that did, or set it to 0")
    function = found.load(key)
    if not callable(function):
        raise ParamsError(f"{key}: {found} names no function but a {type(function).__name__}: mend its metadata")
    with foreign(f"{key}: {found}"):
        given = function(cfg, traits, member, rng)
    match given:
        case None:
            return None
        case (Member() as child, Mutation() as mutation):
            wrong = _misshapen(traits, member, child)
            if wrong is not None:
                raise EnvironmentFailed(f"{key}: {found} gave a member {wrong}: mend it")
            return None if _equal(member, child) else (child, replace(mutation, kind=kind))
    raise EnvironmentFailed(f"{key}: {found} gave {type(given).__name__}, expected (member, mutation) or None: mend it")


def _misshapen(traits: Traits, before: Member, after: Member) -> str | None:
    """Return what of a mutated member does not fit; None where all does."""
    if (after.slot, after.id, after.key, after.parent) != (before.slot, before.id, before.key, before.parent):
        return "of another slot, id, key or parent"
    if after.hyper.keys() != before.hyper.keys() or after.tensors.keys() != before.tensors.keys():
        return "with other hyper-parameters or tensors than the one that it was given"
    for name, tensor in after.tensors.items():
        kind, network = traits.kinds[name]
        shape = before.tensors[name].shape
        if kind != "row" and after.arch != before.arch:
            shape = torch.Size([after.arch.size(traits.widths[network])])
        if tensor.shape != shape or tensor.dtype != before.tensors[name].dtype:
            return f"whose {name} has the shape {list(tensor.shape)}, expected {list(shape)}"
    return None


def _equal(a: Member, b: Member) -> bool:
    same = all(torch.equal(a.tensors[name], tensor) for name, tensor in b.tensors.items())
    return a.arch == b.arch and dict(a.hyper) == dict(b.hyper) and same
