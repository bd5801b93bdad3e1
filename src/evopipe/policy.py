"""An exported policy: a folder of safetensors and JSON, loaded without pickle and used without the pipeline."""

from __future__ import annotations

import io
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from evopipe.algos import Algorithm, get, on_policy
from evopipe.core.cohort import Cohort, Pace, form
from evopipe.core.member import Member, read_architecture, tensor_kinds
from evopipe.core.normalise import SHOWN
from evopipe.core.structure import Architecture, Widths, acting_networks
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.errors import DataError, UsageError
from evopipe.rng import Purpose, Stream
from evopipe.storage.files import dump_json, parse_json
from evopipe.storage.folders import read_folder, write_folder
from evopipe.storage.tensors import dump_tensors, load_tensors

POLICY, TENSORS, PROGRAM, CARD = "policy.json", "policy.safetensors", "policy.pt2", "README.md"
FORMAT = 1


class Policy:
    """One trained member, ready to act.

    Args:
        algo: its algorithm.
        cfg: the algorithm's configuration.
        member: its architecture and tensors; only the acting network's are used, and its normaliser's.
        about: what `policy.json` says: spaces, scores, provenance.

    Attributes:
        action_space: the environment's, and the way to its own actions.
        observation_space: the environment's, and the way from its own observations.
        memory: how many numbers it keeps from step to step; 0 unless it is recurrent.
    """

    def __init__(self, algo: Algorithm, cfg: Any, member: Member, about: Mapping[str, Any]) -> None:
        self.about, self._algo = dict(about), algo
        self.arch = member.arch
        self.action_space, self.observation_space = ActionSpace.from_json(about), ObservationSpace.from_json(about)
        spaces = self.action_space.spaces(self.observation_space)
        self._cfg = cfg.at(spaces)
        self.observations, self.actions = spaces.observations, spaces.actions
        self.widths: Mapping[str, Widths] = algo.networks(cfg, spaces)
        bare = [_bare(algo, member, self.widths)]
        (self._cohort,) = form(bare, algo.State, self.widths, torch.device("cpu"), lambda _: Pace())
        self.memory = self._cohort.memory

    def act(self, obs: Any, mask: Any = None, epsilon: float = 0.0, seed: int = 0) -> Any:
        """Choose actions: deterministic unless `epsilon` is above 0.

        Args:
            obs: an observation as the environment gives it (a vector, an image, an index, a dict or tuple of such), or
                a batch, whose every array has one dimension more; NumPy or torch.
            mask: legal actions, `[A]` (the same for all observations) or `[B, A]`; None where all are. Of several
                choices it may be a tuple of arrays too, one for each.
            epsilon: above 0 it explores as in training: with the algorithm's own noise, where it has any, and with
                this chance by a random legal action. One that learned on-policy draws from its policy.
            seed: seed of the exploration.

        Returns:
            int64 `[]` or `[B]`, `[*shape]` or `[B, *shape]` where an action is several choices or bits, or the same in
            float32, in the environment's own bounds, where its actions are continuous; of the kind that `obs` was (a
            NumPy scalar or array for one observation, ready for `env.step`).

        Raises:
            UsageError: a shape does not fit, no action is legal, or a value is no number; or the policy keeps a memory.
        """
        if self.memory:
            raise UsageError("this policy keeps a memory: call step(obs, memory), and hand on the memory it returns")
        return self.step(obs, None, mask, epsilon, seed)[0]

    def step(
        self, obs: Any, memory: Any = None, mask: Any = None, epsilon: float = 0.0, seed: int = 0
    ) -> tuple[Any, Any]:
        """Choose actions as `act` does, of a policy that may keep a memory.

        Args:
            obs, mask, epsilon: as in `act`.
            memory: what the last step of these episodes returned, `[B, memory]`; None where they begin. (Zeros in a
                row begin that one anew.) NumPy or torch.
            seed: as in `act`; give each step another.

        Returns:
            Actions as in `act`, and the memory after them, float32 `[B, memory]`, of the kind that `obs` was.

        Raises:
            UsageError: as in `act`, or the memory is of another shape.
        """
        batch, single = self._batch(obs)
        batch, legal, count = self._cohort.shown(batch), self._legal(mask, batch.shape[1]), batch.shape[1]
        before = torch.zeros(count, self.memory) if memory is None else _tensor(memory, "memory").float()
        if before.shape != (count, self.memory):
            raise UsageError(f"memory has shape {tuple(before.shape)}; expected [{count}, {self.memory}]")
        state, draw = self._cohort.state, None
        if epsilon > 0.0:
            draw = Stream(torch.tensor([seed]), Purpose.ACT, torch.zeros(1, dtype=torch.int64))
        if on_policy(self._algo):
            actions, _, _, (before,) = self._algo.step(self._cfg, state, batch, legal, before[None], draw)
        elif draw is None:
            actions = self._algo.greedy(self._cfg, state, batch, legal)
        else:
            actions = self._algo.act(self._cfg, state, batch, legal, torch.tensor([epsilon]), draw)
        own = torch.from_numpy(self.action_space.own(actions[0].numpy()))
        return self._like(obs, single, own), self._like(obs, False, before)

    def q_values(self, obs: Any) -> Any:
        """Return action values `[A]` or `[B, A]`, of the kind that `obs` was.

        Raises:
            UsageError: the algorithm has none, the shape does not fit, or a value is no number.
        """
        values = getattr(self._algo, "values", None)
        if values is None:
            raise UsageError(f"a policy of {self.about.get('algo')} has no action values: call act(obs)")
        batch, single = self._batch(obs)
        return self._like(obs, single, values(self._cfg, self._cohort.state, self._cohort.shown(batch))[0])

    def _batch(self, obs: Any) -> tuple[torch.Tensor, bool]:
        """`[1, B, O]` float32, and whether it is one observation."""
        if not self.observation_space.plain:
            try:
                rows, single = self.observation_space.read(obs)
            except ValueError as error:
                raise UsageError(f"obs holds {error}; pass what the environment gives, or a batch of it") from error
            return torch.from_numpy(rows)[None], single
        x = _tensor(obs, "obs").float()
        if x.ndim not in (1, 2) or x.shape[-1] != self.observations:
            found, expected = tuple(x.shape), f"[{self.observations}] or [B, {self.observations}]"
            raise UsageError(f"obs has shape {found}; expected {expected}")
        return x.reshape(1, -1, self.observations), x.ndim == 1

    def _legal(self, mask: Any, batch: int) -> torch.Tensor:
        if mask is None:
            return torch.ones(1, batch, self.actions, dtype=torch.bool)
        try:
            legal = _tensor(self.action_space.flat_mask(mask), "mask").bool()
        except ValueError as error:
            raise UsageError(f"mask is {error}") from error
        if legal.shape not in ((self.actions,), (batch, self.actions)):
            found, expected = tuple(legal.shape), f"[{self.actions}] or [{batch}, {self.actions}]"
            raise UsageError(f"mask has shape {found}; expected {expected}")
        if not self.action_space.possible(legal.view(-1, self.actions).numpy()).all():
            raise UsageError("mask leaves no legal action: allow at least one for every observation")
        return legal.expand(1, batch, self.actions)

    @staticmethod
    def _like(obs: Any, single: bool, result: torch.Tensor) -> Any:
        if isinstance(obs, torch.Tensor):
            return (result[0] if single else result).to(obs.device)
        array = result.numpy()
        return array[0] if single else array

    def on_rows(self) -> Policy:
        """Return the same policy for observations that are rows already, as `EnvPool.obs` holds them."""
        policy = copy(self)
        policy.observation_space = ObservationSpace.vector(self.observations)
        return policy

    def module(self) -> torch.nn.Module:
        """Return the greedy policy as a plain module: obs `[B, O]` → (actions `[B]`, values `[B, A]`).

        Without action values, actions alone; of more than one number they are `[B, *shape]`.
        A policy that keeps a memory takes it too: (obs `[B, O]`, memory `[B, M]`) → (actions, memory), zeros at first.
        """
        return _Greedy(self._algo, self._cfg, self._cohort, self.action_space)


def _tensor(value: Any, name: str) -> torch.Tensor:
    """Return numbers of any kind as a tensor on the CPU."""
    try:
        return torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{name} is not an array of numbers ({error}); pass NumPy or torch") from error


class _Greedy(torch.nn.Module):
    """The greedy policy without the population axis, for `torch.export`."""

    low: torch.Tensor
    high: torch.Tensor
    starts: torch.Tensor

    def __init__(self, algo: Algorithm, cfg: Any, cohort: Cohort, space: ActionSpace) -> None:
        super().__init__()
        self._algo, self._cfg, self._state, self._space = algo, cfg, cohort.state, space
        self._shown = cohort.shown
        self.register_buffer("weights", getattr(cohort.state, algo.POLICY).values)
        if space.bounds is not None:
            for name, bound in zip(("low", "high"), space.bounds, strict=True):
                self.register_buffer(name, torch.as_tensor(bound, dtype=torch.float32))
        elif space.kind != "discrete":
            self.register_buffer("starts", torch.tensor(space.starts))

    def forward(self, obs: torch.Tensor, memory: torch.Tensor | None = None) -> Any:
        """See `Policy.module`."""
        shown = self._shown(obs[None])
        if memory is not None:
            actions, _, _, after = self._algo.step(self._cfg, self._state, shown, None, memory[None], None)
            return self._own(actions[0]), after[0]
        if self._algo.values is not None:
            values = self._algo.values(self._cfg, self._state, shown)[0]
            return values.argmax(dim=-1) + self._space.start, values
        return self._own(self._algo.greedy(self._cfg, self._state, shown, None)[0])

    def _own(self, actions: torch.Tensor) -> torch.Tensor:
        """Return the environment's own actions, as `ActionSpace.own` does."""
        if self._space.kind == "discrete":
            return actions + self._space.start
        if not self._space.continuous:
            return (actions + self.starts).view(-1, *self._space.shape)
        stretched = self.low + (actions + 1.0) / 2.0 * (self.high - self.low)
        return stretched.clamp(self.low, self.high).view(-1, *self._space.shape)


def save(folder: Path, algo_name: str, member: Member, about: Mapping[str, Any], program: bool, card: str) -> None:
    """Write a policy folder; it is replaced as a whole.

    Args:
        folder: where.
        algo_name: the algorithm.
        member: the member.
        about: the spaces as `ObservationSpace.to_json` and `ActionSpace.to_json` have them, the algorithm's `config`
            where it is not the default one, and whatever else the reader should know.
        program: whether to write a `torch.export` program too.
        card: the model card's text.
    """
    algo = get(algo_name)
    cfg = algo.Config.model_validate(about.get("config", {}))
    policy, tensors = Policy(algo, cfg, member, about), _beside(algo, member.tensors)
    for network in acting_networks(algo.POLICY, policy.widths):  # parts of one architecture share no name
        tensors |= member.arch.named(policy.widths[network], member.tensors[network])
    content = {**about, "format": FORMAT, "algo": algo_name, "network": algo.POLICY, "arch": member.arch.to_json()}
    files: dict[str, bytes] = {
        POLICY: dump_json(content, str(folder / POLICY), indent=2),
        TENSORS: dump_tensors(tensors),
        CARD: card.encode(),
    }
    write_folder(folder, files | ({PROGRAM: _export(policy)} if program else {}))


def _export(policy: Policy) -> bytes:
    """Return the bytes of a `torch.export` program."""
    inputs = [torch.zeros(2, policy.observations), *([torch.zeros(2, policy.memory)] if policy.memory else [])]
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(policy.module(), tuple(inputs), dynamic_shapes=(*[batch] * len(inputs),))
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # names source files by absolute path: another folder, other bytes
    stream = io.BytesIO()
    torch.export.save(program, stream)
    return stream.getvalue()


def load(path: str | Path) -> Policy:
    """Load a policy folder, for example `models/elite`.

    Raises:
        MissingInputError: it is not there.
        DataError: it is damaged, of a newer format, or not a policy.
    """
    folder = Path(path)
    files = read_folder(folder, only=(POLICY, TENSORS))
    about = parse_json(files[POLICY], str(folder / POLICY))
    tensors = load_tensors(files[TENSORS], str(folder / TENSORS))
    if about.get("format") != FORMAT:
        raise DataError(f"{folder / POLICY}: format {about.get('format')!r} is not known to this version of evopipe")
    try:
        algo, arch = get(about["algo"]), read_architecture(about["arch"])
        cfg, space = algo.Config.model_validate(about.get("config", {})), ActionSpace.from_json(about)
        widths = algo.networks(cfg, space.spaces(ObservationSpace.from_json(about)))
        rows = {name: _flat(arch, widths[name], tensors) for name in acting_networks(algo.POLICY, widths)}
        member = Member(0, 0, None, 0, arch, {}, rows | _beside(algo, tensors))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{folder}: tensors and description do not fit: {error}; export it again") from error
    return Policy(algo, cfg, member, about)


def _flat(arch: Architecture, widths: Widths, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Put named tensors into one flat row `[n]`."""
    row = torch.empty(arch.size(widths))
    for name, view in arch.named(widths, row).items():
        view.copy_(tensors[name].view(view.shape))
    return row


def _beside(algo: Algorithm, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what acting reads beside the network: the normaliser's rows, if any, and the rows the algorithm names."""
    seen = SHOWN if set(SHOWN) <= set(tensors) else ()
    return {name: tensors[name] for name in (*seen, *algo.ACTS_WITH)}


def _bare(algo: Algorithm, member: Member, widths: Mapping[str, Widths]) -> Member:
    """Return a member with what acting reads; everything else of its state is zero."""
    acting, tensors = acting_networks(algo.POLICY, widths), _beside(algo, member.tensors)
    for name, (kind, network) in tensor_kinds(algo.State, widths).items():
        if kind == "parameters" and name in acting:
            tensors[name] = member.tensors[name]
        elif kind == "row":
            tensors.setdefault(name, torch.zeros(()))
        else:
            tensors[name] = torch.zeros(member.arch.size(widths[network]))
    return replace(member, tensors=tensors)
