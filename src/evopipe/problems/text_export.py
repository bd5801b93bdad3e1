"""The stage `export` for language models: the elite's adapter, and the base with it merged in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evopipe import layout
from evopipe.core.member import Member
from evopipe.language import peft, player
from evopipe.language.adapters import Adapted, LoRA
from evopipe.language.policy import CHANGE, HEAD, MERGED, POLICY
from evopipe.params.text import LanguageParams
from evopipe.policies.card import render
from evopipe.problems.text import describe, make_spec
from evopipe.run.text import TextSpec
from evopipe.storage.files import dump_json
from evopipe.storage.folders import write_folder
from evopipe.storage.tensors import dump_tensors

SCORES = ("mean", "interval")
"""Which of the elite's scores its card shows."""


def spec_of(params: LanguageParams) -> TextSpec:
    """Return the run's configuration, made from its parameters, with the base model loaded."""
    return make_spec(params)


def write(
    folder: Path, params: LanguageParams, spec: TextSpec, elite: Member, about: Mapping[str, Any],
    scores: Mapping[str, Any],
) -> None:  # fmt: skip
    """Export the elite: its adapter in PEFT's format, the merged model (if `export.merged`), policy.json and a model
    card.

    Args:
        folder: the folder to write.
        params: the parameters.
        spec: the run's configuration, with the base model.
        elite: the best member.
        about: provenance and other facts as JSON data, which are added to policy.json.
        scores: the content of `evaluation.json`; the parts `elite` and `base` are added to policy.json.

    Raises:
        DiskError: a file cannot be written.
    """
    told = {
        **describe(spec),
        "format": 1,
        "arch": elite.arch.to_json(),
        "merged": params.export.merged and spec.base.length == 0,
        "head": spec.base.length == 0 and "end" in spec.algo.asks(spec.algo_config),
        **about,
        "evaluation": scores["elite"],
        "before": scores.get("base"),
    }
    write_policy(folder, spec, elite, told)


def write_policy(
    folder: Path, spec: TextSpec, member: Member, about: Mapping[str, Any], called: str = str(layout.ELITE)
) -> None:
    """Write a member and a model card into a folder that `evopipe.load` can read.

    `about` is the content of policy.json; `called` is the folder's name in the model card.

    Raises:
        DiskError: a file cannot be written.
    """
    arch: Any = member.arch
    row = member.tensors[spec.algo.POLICY]
    text = render("card_language.md.j2", about=about, base=spec.base.name, called=called)
    files = {POLICY: dump_json(dict(about), POLICY, indent=2), "README.md": text.encode()}
    if spec.base.length:
        files |= player.files(spec.algo, spec.algo_config, spec.base.words, member)
    elif isinstance(arch, LoRA):
        files |= peft.adapter_files(spec.base, arch, row)
    else:
        files[CHANGE] = dump_tensors(arch.named(Adapted.of(spec.base), row))
    if about.get("head"):
        files[HEAD] = dump_tensors(arch.named(spec.widths["value"], member.tensors["value"]))
    if about["merged"]:
        merged = peft.merged_files(spec.base, arch, row)
        files |= {f"{MERGED}/{name}": data for name, data in merged.items()}
    write_folder(folder, files)


def trained(folder: Path) -> list[Any]:
    """Return an empty list: members of language models are not loaded as policies, because each would hold the base
    model again."""
    return []
