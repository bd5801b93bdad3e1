"""Policies as folders: safetensors and JSON, written by `export`, loaded without pickle and without the pipeline."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from evopipe.algos import Algorithm, get
from evopipe.core import numpy_policy
from evopipe.core.fit import forms_of_networks, forms_of_rows, misfit
from evopipe.core.member import Member, read_architecture
from evopipe.core.module import Module
from evopipe.core.structure import Architecture, Widths, acting_networks
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.envs.team import TeamSpace
from evopipe.errors import DataError, ParamsError, UsageError
from evopipe.imports import uncollected
from evopipe.own import import_name
from evopipe.policies.acting import PROGRAM, Policy, online_networks, other_networks, rows_for_acting
from evopipe.policies.team import TeamPolicy
from evopipe.schema.stored import StoredPolicy, StoredSpaces, StoredTeam, in_a_sentence
from evopipe.storage.files import dump_json, parse_json
from evopipe.storage.folders import read_folder, write_folder
from evopipe.storage.members import read as read_members
from evopipe.storage.tensors import dump_arrays, dump_tensors, load_tensors
from evopipe.types import Spaces

__all__ = [
    "ARRAYS", "CARD", "NUMPY", "POLICY", "PROGRAM", "TENSORS", "Policy", "TeamPolicy", "load", "numpy_files", "save",
    "trained",
]  # fmt: skip

POLICY, TENSORS, CARD = "policy.json", "policy.safetensors", "README.md"
NUMPY, ARRAYS = "numpy_policy.py", "policy.npz"
FORMAT = 1


def save(
    folder: Path, algo_name: str, member: Member, about: Mapping[str, Any], program: bool, card: str,
    critic: bool = False,
) -> None:  # fmt: skip
    """Write the folder of a policy; an existing folder is replaced.

    If the policy can act with NumPy alone, the files for that are written too, see `numpy_files`.

    Args:
        folder: the folder's path.
        algo_name: the algorithm's name.
        member: the member, with the tensors of every network that is written.
        about: content of `policy.json`: the spaces, from `ObservationSpace.to_json` and `ActionSpace.to_json`; the
            algorithm's configuration as `config`, unless it is the default one; and any other facts.
        program: whether to write `torch.export` programs.
        card: the text of the model card.
        critic: whether to write the critics.

    Raises:
        DiskError: the folder cannot be written.
    """
    algo = get(algo_name)
    cfg = algo.Config.model_validate(about.get("config", {}))
    widths = algo.networks(cfg, _spaces(about))
    others = other_networks(algo, widths) if critic else {}
    networks = {name: name for name in acting_networks(algo.POLICY, widths)} | others
    rows, tensors = {name: member.tensors[name] for name in networks.values()}, rows_for_acting(algo, member.tensors)
    kind, acting = kind_of(about), replace(member, tensors=rows | tensors)
    for network, name in networks.items():  # parts of one architecture share no name
        prefix = f"{network}." if network in others else ""
        named = member.arch.named(widths[network], rows[name])
        tensors |= {prefix + part: tensor for part, tensor in named.items()}
    content = {
        **about,
        **({"critic": [*others]} if others else {}),
        "format": FORMAT,
        "algo": algo_name,
        "network": algo.POLICY,
        "arch": member.arch.to_json(),
    }
    data = dump_json(content, str(folder / POLICY), indent=2)
    files = {POLICY: data, TENSORS: dump_tensors(tensors), CARD: card.encode()}
    # Two of them: one that has acted holds views of its weights, which a program would hold once more.
    files |= numpy_files(kind(algo, cfg, acting, about))[0]
    write_folder(folder, files | (_programs(kind(algo, cfg, acting, about)) if program else {}))


def kind_of(about: Mapping[str, Any]) -> type[Policy] | type[TeamPolicy]:
    """Return the class of a policy whose `policy.json` has the content `about`: `TeamPolicy` for a team, else
    `Policy`."""
    return TeamPolicy if "team" in about else Policy


def _spaces(about: Mapping[str, Any]) -> Spaces:
    """Return what an algorithm knows of the spaces that a description names."""
    if "team" in about:
        return TeamSpace.from_json(about).spaces
    return ActionSpace.from_json(about).spaces(ObservationSpace.from_json(about))


def _programs(policy: Policy | TeamPolicy) -> dict[str, bytes]:
    """Return the bytes of `torch.export` programs by file name."""
    with uncollected():  # torch.export imports a thousand modules
        return {file: _export(module, inputs, policy.memory) for file, (module, inputs) in policy.modules().items()}


def _export(module: torch.nn.Module, observations: int, memory: int) -> bytes:
    inputs = [torch.zeros(2, observations), *([torch.zeros(2, memory)] if memory else [])]
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(module, tuple(inputs), dynamic_shapes=(*[batch] * len(inputs),))
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # names source files by absolute path: another folder, other bytes
    stream = io.BytesIO()
    torch.export.save(program, stream)
    return stream.getvalue()


def numpy_files(policy: Policy | TeamPolicy) -> tuple[dict[str, bytes], str]:
    """Return the files by which a policy acts without torch and evopipe, as a pair: a dict name → bytes, and a reason.

    The files are `policy.npz` and the module `core.numpy_policy`; the reason is then empty. If the policy is not a
    plain perceptron with one output for each action, the dict is empty, and the reason says why.
    """
    try:
        data = dump_arrays(policy.arrays())
    except ValueError as error:
        return {}, str(error)
    return {ARRAYS: data, NUMPY: Path(numpy_policy.__file__).read_bytes()}, ""


def load(path: str | Path, member: int | None = None, trust: bool = False) -> Policy | TeamPolicy:
    """Load the policy in a folder, or one of the trained members, for one agent or a team.

    Args:
        path: the folder.
        member: which trained member to load, by its number. None if the folder holds a single policy.
        trust: whether to import the module of a user-defined network, if the folder names one.

    Raises:
        MissingInputError, DataError, UsageError: as for `loading.load`.
    """
    if member is not None:
        return trained(path, member, trust)[0]
    folder = Path(path)
    files = read_folder(folder, only=(POLICY, TENSORS))
    about = parse_json(files[POLICY], str(folder / POLICY))
    return described(about, load_tensors(files[TENSORS], str(folder / TENSORS)), folder / POLICY, trust)


def described(about: Any, tensors: Mapping[str, torch.Tensor], where: Path, trust: bool = False) -> Policy | TeamPolicy:
    """Return the policy that a description and tensors make.

    Args:
        about: the content of `policy.json`.
        tensors: the content of the policy's safetensors file, by name.
        where: a path with which error messages begin.
        trust: whether to import the module of a user-defined network, if the description names one.

    Raises:
        MissingInputError: the network is user-defined, `trust` is False, and the script has not imported the network's
            module itself.
        DataError: the description is invalid or of a newer format, or the tensors do not fit it.
    """
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        found = about.get("format") if isinstance(about, dict) else None
        raise DataError(f"{where}: format {found!r:.40} is not known to this version of evopipe")
    with _fitting(where.parent if where.name == POLICY else where):
        stored, algo, cfg, spaces = _read(about)
        arch, widths = _known(read_architecture(stored.arch), trust), algo.networks(cfg, spaces)
        rows = {name: _flat(arch, widths[name], tensors) for name in acting_networks(algo.POLICY, widths)}
        others = other_networks(algo, widths)
        if set(stored.critic) - others.keys():
            raise ValueError(f"critic: {algo.POLICY} has beside it {', '.join(others) or 'nothing'}")
        for name in stored.critic:
            rows[others[name]] = _flat(arch, widths[name], tensors, f"{name}.")
        loaded = Member(0, 0, None, 0, arch, {}, rows | rows_for_acting(algo, tensors))
        return _built(algo, cfg, loaded, about)


def _known(arch: Architecture, trust: bool) -> Architecture:
    """Import the module of a network that is a user's own if the folder that names it is trusted."""
    if trust and isinstance(arch, Module):
        import_name(arch.module, "arch.module")
    return arch


def trained(path: str | Path, member: int | None = None, trust: bool = False) -> list[Policy | TeamPolicy]:
    """Load the trained members in a folder such as `models/trained` as policies, in the order of their slots (numbers).

    The elite, which the folder stores after the members, is left out.

    Args:
        path: the folder.
        member: the number of the only member to load; None for all members.
        trust: whether to import the module of a user-defined network, if the folder names one.

    Raises:
        MissingInputError: there is no such folder. Or a network is user-defined, `trust` is False, and the script has
            not imported the network's module itself.
        DataError: the folder is damaged, or does not describe its members' policies.
        UsageError: there is no such member.
    """
    folder = Path(path)
    members, about = read_members(folder, {}, "train it again")
    members = members[: len(members) - ("elite" in about)]
    if member is not None and (type(member) is not int or not 0 <= member < len(members)):
        raise UsageError(f"{folder}: there is no member {member!r:.40}: they are 0 to {len(members) - 1}")
    chosen = members if member is None else [members[member]]
    with _fitting(folder):
        described = about.get("policy")
        if not isinstance(described, dict):
            raise ValueError("it does not say what its members' policies are")
        return [of_member(replace(each, arch=_known(each.arch, trust)), described) for each in chosen]


def of_member(member: Member, described: Mapping[str, Any]) -> Policy | TeamPolicy:
    """Return a policy of a member, which may still be in training. The policy has all networks of the member that
    gradients train, also those that acting does not need.

    Args:
        member: the member.
        described: the algorithm, its configuration and the spaces, in the form of `policy.json`.

    Raises:
        ValueError: the member's tensors do not fit the description.
    """
    _, algo, cfg, spaces = _read({**described, "arch": {}})
    online = set(online_networks(algo, algo.networks(cfg, spaces)).values())
    acting = {name: tensor for name, tensor in member.tensors.items() if name in online}
    bare = replace(member, tensors=acting | rows_for_acting(algo, member.tensors))
    about = {"hyper": dict(member.hyper), "arch": member.arch.to_json(), "slot": member.slot, "id": member.id}
    return _built(algo, cfg, bare, {**described, **about})


@contextmanager
def _fitting(folder: Path) -> Iterator[None]:
    try:
        yield
    except (KeyError, ValueError, ParamsError) as error:
        raise DataError(f"{folder}: tensors and description do not fit: {error}; export it again") from error


def _read(about: Mapping[str, Any]) -> tuple[StoredPolicy, Algorithm, Any, Spaces]:
    """Return what a description says: its algorithm, its configuration, and the spaces of its environment."""
    for model in (StoredPolicy, StoredTeam if "team" in about else StoredSpaces):
        with in_a_sentence(model, about):
            model.model_validate(about)
    stored = StoredPolicy.model_validate(about)
    algo = get(stored.algo)
    with in_a_sentence(algo.Config, stored.config):
        cfg = algo.Config.model_validate(stored.config)
    spaces = _spaces(about)
    if (spaces.team is not None) != algo.TEAM:
        serves, these = ("teams", "one agent") if algo.TEAM else ("one agent", "a team")
        raise ValueError(f"{stored.algo} serves {serves}, this is {these}")
    if spaces.kind not in algo.ACTIONS:
        raise ValueError(f"{stored.algo} serves {' and '.join(algo.ACTIONS)} actions, these are {spaces.kind}")
    return stored, algo, cfg, spaces


def _built(algo: Algorithm, cfg: Any, member: Member, about: Mapping[str, Any]) -> Policy | TeamPolicy:
    """Return the policy of a member, whose tensors are checked before anything is allocated for them."""
    spaces = _spaces(about)
    at = cfg.at(spaces)
    widths = algo.networks(cfg, spaces)
    needed = {*acting_networks(algo.POLICY, widths), *algo.ACTS_WITH}
    forms = forms_of_networks(algo.State, member.arch, widths)
    forms |= forms_of_rows(algo.State, partial(algo.init, at), widths, spaces)
    there = {name: form for name, form in forms.items() if name in needed or name in member.tensors}
    wrong = misfit(member.tensors, there, member.arch, spaces, algo.RECURRENT)
    if wrong is not None:
        raise ValueError(wrong)
    return kind_of(about)(algo, cfg, member, about)


def _flat(arch: Architecture, widths: Widths, tensors: Mapping[str, torch.Tensor], prefix: str = "") -> torch.Tensor:
    """Put named tensors into one flat row `[n]`; ValueError where one is missing or of another shape."""
    for name, wanted in arch.named(widths, torch.empty(arch.size(widths), device="meta")).items():
        found = tensors.get(prefix + name)
        if found is None or found.shape != wanted.shape or found.dtype != torch.float32:
            has = "missing" if found is None else f"{found.dtype} of the shape {list(found.shape)}"
            raise ValueError(f"the tensor {prefix + name!r} is {has}, expected float32 {list(wanted.shape)}")
    row = torch.empty(arch.size(widths))
    for name, view in arch.named(widths, row).items():
        view.copy_(tensors[prefix + name])
    return row
