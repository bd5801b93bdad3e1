"""The stage `export` for environments: the elite as files that run anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evopipe.core import normalise
from evopipe.core.member import Member
from evopipe.params.load import Params
from evopipe.policies import policy
from evopipe.policies.acting import Policy
from evopipe.policies.card import card
from evopipe.policies.team import TeamPolicy
from evopipe.problems.specs import describe, make_spec
from evopipe.run.spec import EnvSpec

SCORES = ("mean", "interval", "std", "median", "iqm")
"""Which of the elite's scores its card shows."""


def spec_of(params: Params) -> EnvSpec:
    """Return the run's configuration, made from its parameters."""
    return make_spec(params)


def write(
    folder: Path, params: Params, spec: EnvSpec, elite: Member, about: Mapping[str, Any], scores: Mapping[str, Any]
) -> None:
    """Export the elite: write policy.safetensors, policy.json, policy.pt2 (if `export.program`) and a model card into a
    folder.

    Args:
        folder: the folder to write.
        params: the parameters.
        spec: the run's configuration.
        elite: the best member.
        about: provenance and other facts as JSON data, which are added to policy.json.
        scores: the content of `evaluation.json`; the part `elite` is added to policy.json.

    Raises:
        DiskError: a file cannot be written.
    """
    told = {
        **describe(spec), "preprocessing": normalise.describe(elite.tensors), **about, "evaluation": scores["elite"]
    }  # fmt: skip
    text = card(policy.kind_of(told)(spec.algo, params.algo_config, elite, told), params.evaluate.episodes)
    policy.save(folder, params.train.algo, elite, told, params.export.program, text, params.export.critic)


def trained(folder: Path) -> list[Policy | TeamPolicy]:
    """Load the members of `models/trained` below the project's folder as policies, in the order of slots (places in the
    population)."""
    return policy.trained(folder)
