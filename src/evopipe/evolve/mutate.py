"""Mutation: what changes in a child. Pure functions: (member, generator) → (member, what changed).

Of the kinds drawn by their relative probabilities, one that would change nothing (a bound is reached) is passed over
for another, and never recorded as a mutation. Another package may bring a kind by an entry point of the group
`evopipe.mutations`, the name of a function that is called as those here are: `(config, traits, member, generator) →
(member, mutation)`, or None where it would change nothing. The member given to it must stay as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError

from evopipe import plugins
from evopipe.core.member import Member
from evopipe.core.structure import Architecture, Widths
from evopipe.errors import DataError, EnvironmentFailed, ParamsError
from evopipe.own import foreign
from evopipe.schema.blocks import MutationConfig
from evopipe.schema.declare import Evolve

_POSITIONS = 0.1  # share of a weight matrix that a parameter mutation touches
_RESET = 0.05  # share of those drawn anew
_LARGEST = 1e6


@dataclass(frozen=True)
class Traits:
    """What mutation must know of the algorithm."""

    widths: Mapping[str, Widths]  # of every network
    acting: Sequence[str]  # the networks that act: parameter noise goes there
    kinds: Mapping[str, tuple[str, str]]  # how each tensor changes with the architecture: `tensor_kinds`
    evolve: Mapping[str, Evolve]  # which hyper-parameters may mutate
    whole: frozenset[str]  # those of them that are whole numbers


@dataclass(frozen=True, slots=True)
class Mutation:
    """What one mutation changed: `kind`, `what` exactly, and the values before and after."""

    kind: str
    what: str = ""
    before: Any = None
    after: Any = None

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "what": self.what, "before": self.before, "after": self.after}

    def describe(self) -> str:
        """Return a short text for people; an empty one if nothing changed."""
        if self.before is None:
            return self.what
        values = (f"{v:.3g}" if isinstance(v, float) else str(v) for v in (self.before, self.after))
        return f"{self.what} {' → '.join(values)}"


NONE = Mutation("none")
_Change: TypeAlias = "tuple[Member, Mutation] | None"  # None where nothing can change


def read_births(data: Any, members: int) -> list[Mutation]:
    """Return the mutations that a population was born with, one a member, from what `Mutation.to_json` gave; what is
    something else is a `DataError`."""
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
    """Mutate one child, which is not changed; return what changed too, `NONE` where nothing did. The generator is that
    of this slot and generation. Without `allow_none` the kind `none` takes no part."""
    operators = {
        "architecture": _mutate_architecture,
        "parameters": _mutate_parameters,
        "activation": _mutate_activation,
        "rl_hp": _mutate_hyper,
    }
    weights = cfg.probabilities.model_dump()
    if not allow_none:
        weights["none"] = 0.0
    for kind in _in_random_order(list(weights), list(weights.values()), rng):
        if kind == "none":
            break
        operator = operators.get(kind) or partial(_outside, kind)
        found = operator(cfg, traits, member, rng)
        if found is not None:
            return found
    return member, NONE


def _outside(kind: str, cfg: MutationConfig, traits: Traits, member: Member, rng: np.random.Generator) -> _Change:
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


def _in_random_order(items: Sequence[Any], weights: Sequence[float], rng: np.random.Generator) -> Iterator[Any]:
    left = [(item, weight) for item, weight in zip(items, weights, strict=True) if weight > 0]
    while left:
        total = np.cumsum([weight for _, weight in left])
        i = int(np.searchsorted(total, rng.random() * total[-1], side="right"))
        yield left.pop(min(i, len(left) - 1))[0]


def _mutate_architecture(cfg: MutationConfig, traits: Traits, member: Member, rng: np.random.Generator) -> _Change:
    """Add or remove a layer, or change a width or whatever else the architecture offers."""
    options = list(member.arch.options(cfg.architecture, list(traits.widths.values())))
    layers = [option for option in options if option[0].endswith("_layer")]
    others = [option for option in options if not option[0].endswith("_layer")]
    for group in _in_random_order([layers, others], [cfg.new_layer_prob, 1 - cfg.new_layer_prob], rng):
        if group:
            methods = sorted({name for name, *_ in group})
            method = methods[int(rng.integers(len(methods)))]
            chosen = [option for option in group if option[0] == method]
            _, what, before, after, arch = chosen[int(rng.integers(len(chosen)))]
            return _carry(traits, member, arch, rng), Mutation("architecture", what, before, after)
    return None


def _carry(traits: Traits, member: Member, arch: Architecture, rng: np.random.Generator) -> Member:
    seeds = {network: int(rng.integers(2**63)) for network in sorted(traits.widths)}
    tensors = {}
    for name, tensor in member.tensors.items():
        kind, network = traits.kinds[name]
        if kind != "row":  # one seed a network: online and target receive the same new weights
            fresh = np.random.Generator(np.random.Philox(seeds[network]))
            tensor = member.arch.carry(arch, traits.widths[network], kind, tensor, fresh)
        tensors[name] = tensor
    return replace(member, arch=arch, tensors=tensors)


def _mutate_parameters(cfg: MutationConfig, traits: Traits, member: Member, rng: np.random.Generator) -> _Change:
    """Disturb some weights of the policy, a shared encoder's too. Of 1 to all weight matrices a tenth of the positions
    each: 95 % receive noise of standard deviation `sd · |w|`, 5 % are drawn anew from N(0, 1)."""
    if cfg.sd == 0:
        return None
    values, matrices = {}, []
    for network in traits.acting:
        name = next(n for n, kind in traits.kinds.items() if kind == ("parameters", network))
        values[name] = member.tensors[name].clone()
        parts = member.arch.named(traits.widths[network], values[name])
        matrices += [tensor for tensor in parts.values() if tensor.ndim == 2]
    if not matrices:  # a module of the user's own may have none
        return None
    chosen = rng.permutation(len(matrices))[: int(rng.integers(1, len(matrices) + 1))]
    touched = sum(_disturb(matrices[int(i)], cfg.sd, rng) for i in sorted(chosen))
    return replace(member, tensors={**member.tensors, **values}), Mutation("parameters", f"{touched} weights")


def _disturb(matrix: torch.Tensor, sd: float, rng: np.random.Generator) -> int:
    flat = matrix.view(-1)
    positions = torch.from_numpy(rng.choice(len(flat), math.ceil(_POSITIONS * len(flat)), replace=False))
    noise = torch.from_numpy(rng.standard_normal(len(positions))).float()
    anew = torch.from_numpy(rng.random(len(positions)) < _RESET)
    old = flat[positions]
    flat[positions] = torch.where(anew, noise, old + sd * old.abs() * noise).clamp(-_LARGEST, _LARGEST)
    return len(positions)


def _mutate_activation(cfg: MutationConfig, traits: Traits, member: Member, rng: np.random.Generator) -> _Change:
    """Choose another activation for all hidden layers."""
    old: Any = member.arch
    others = [name for name in cfg.activations if name != old.activation]
    if not others or not old.activation:
        return None
    new = others[int(rng.integers(len(others)))]
    return replace(member, arch=replace(old, activation=new)), Mutation("activation", "activation", old.activation, new)


def _mutate_hyper(cfg: MutationConfig, traits: Traits, member: Member, rng: np.random.Generator) -> _Change:
    """Grow or shrink one RL hyper-parameter."""
    names = sorted(traits.evolve)
    for i in rng.permutation(len(names)):
        name = names[int(i)]
        old, whole = member.hyper[name], name in traits.whole
        grow = bool(rng.random() < 0.5)
        for up in (grow, not grow):
            new = _scaled(old, traits.evolve[name], up, whole)
            if new != old:
                return replace(member, hyper={**member.hyper, name: new}), Mutation("rl_hp", name, old, new)
    return None


def _scaled(old: float, evolve: Evolve, up: bool, whole: bool) -> float:
    """Multiply by grow or shrink and clip; a whole number moves by at least 1."""
    new, low, high = old * (evolve.grow if up else evolve.shrink), evolve.min, evolve.max
    if whole:
        new = max(round(new), old + 1) if up else min(round(new), old - 1)
        low, high = math.ceil(low), math.floor(high)
    new = min(max(new, low), high)
    # A value outside its range (set by hand) must not jump against the drawn direction.
    if (new < old) if up else (new > old):
        return old
    return int(new) if whole else float(new)
