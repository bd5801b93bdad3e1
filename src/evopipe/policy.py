"""An exported policy: a folder of safetensors and JSON, loaded without pickle and used without the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch

from evopipe.algos import Algorithm, get
from evopipe.core.networks import Arch, named, own_layout
from evopipe.core.population import Member, Widths, form, tensor_kinds
from evopipe.errors import DataError, UsageError
from evopipe.storage import safeio

POLICY, TENSORS, PROGRAM, CARD = "policy.json", "policy.safetensors", "policy.pt2", "README.md"
FORMAT = 1


class Policy:
    """One trained member, ready to act.

    Args:
        algo: its algorithm.
        member: its architecture and tensors; only the acting network's are used.
        widths: input and output width of every network.
        about: what `policy.json` says: spaces, scores, provenance.
    """

    def __init__(self, algo: Algorithm, member: Member, widths: Mapping[str, Widths], about: Mapping[str, Any]) -> None:
        self.about, self._algo = dict(about), algo
        self.arch = member.arch
        self.observations, self.actions = widths[algo.POLICY]
        self._cohort = form([member], algo.State, widths, torch.device("cpu"), "exact")[0]

    @overload
    def act(
        self, obs: torch.Tensor, mask: torch.Tensor | None = None, epsilon: float = 0.0, seed: int = 0
    ) -> torch.Tensor: ...
    @overload
    def act(self, obs: Any, mask: Any = None, epsilon: float = 0.0, seed: int = 0) -> Any: ...
    def act(self, obs: Any, mask: Any = None, epsilon: float = 0.0, seed: int = 0) -> Any:
        """Choose actions: deterministic unless `epsilon` is above 0.

        Args:
            obs: `[O]` or `[B, O]`, NumPy or torch.
            mask: legal actions, `[A]` (the same for all observations) or `[B, A]`; None where all are.
            epsilon: chance of a random legal action.
            seed: seed of those random actions.

        Returns:
            int64 `[]` or `[B]`, of the kind that `obs` was (a NumPy scalar for one observation, ready for `env.step`).

        Raises:
            UsageError: a shape does not fit, no action is legal, or a value is no number.
        """
        batch = self._batch(obs)
        legal = self._legal(mask, batch.shape[1])
        generator = np.random.default_rng(seed)
        u = torch.from_numpy(generator.random((1, 2, batch.shape[1])))
        start = int(self.about.get("action_start", 0))
        actions = self._algo.act(self._cohort.state, batch, legal, torch.tensor([epsilon]), u)[0] + start
        return self._like(obs, actions)

    def q_values(self, obs: Any) -> Any:
        """Return action values `[A]` or `[B, A]`, of the kind that `obs` was.

        Raises:
            UsageError: the shape does not fit, or a value is no number.
        """
        return self._like(obs, self._algo.values(self._cohort.state, self._batch(obs))[0])

    def _batch(self, obs: Any) -> torch.Tensor:
        """`[1, B, O]` float32."""
        x = _tensor(obs, "obs").float()
        if x.ndim not in (1, 2) or x.shape[-1] != self.observations:
            raise UsageError(
                f"obs has shape {tuple(x.shape)}; expected [{self.observations}] or [B, {self.observations}]"
            )
        return x.reshape(1, -1, self.observations)

    def _legal(self, mask: Any, batch: int) -> torch.Tensor:
        if mask is None:
            return torch.ones(1, batch, self.actions, dtype=torch.bool)
        legal = _tensor(mask, "mask").bool()
        if legal.shape not in ((self.actions,), (batch, self.actions)):
            raise UsageError(
                f"mask has shape {tuple(legal.shape)}; expected [{self.actions}] or [{batch}, {self.actions}]"
            )
        if not legal.any(dim=-1).all():
            raise UsageError("mask leaves no legal action: allow at least one for every observation")
        return legal.expand(1, batch, self.actions)

    @staticmethod
    def _like(obs: Any, result: torch.Tensor) -> Any:
        if isinstance(obs, torch.Tensor):
            return (result if obs.ndim == 2 else result[0]).to(obs.device)
        array = result.numpy()
        return array if np.ndim(obs) == 2 else array[0]

    def module(self) -> torch.nn.Module:
        """Return the greedy policy as a plain module: obs `[B, O]` → (actions `[B]`, values `[B, A]`)."""
        return _Greedy(self._algo, self._cohort.state, int(self.about.get("action_start", 0)))


def _tensor(value: Any, name: str) -> torch.Tensor:
    """Return numbers of any kind as a tensor on the CPU."""
    try:
        return torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{name} is not an array of numbers ({error}); pass NumPy or torch") from error


class _Greedy(torch.nn.Module):
    """The greedy policy without the population axis, for `torch.export`."""

    def __init__(self, algo: Algorithm, state: Any, start: int) -> None:
        super().__init__()
        self._algo, self._state, self._start = algo, state, start
        self.register_buffer("weights", getattr(state, algo.POLICY).values)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """obs `[B, O]` → (actions `[B]`, values `[B, A]`)."""
        values = self._algo.values(self._state, obs[None])[0]
        return values.argmax(dim=-1) + self._start, values


def save(folder: Path, algo_name: str, member: Member, about: Mapping[str, Any], program: bool, card: str) -> None:
    """Write a policy folder.

    Args:
        folder: where; replaced as a whole.
        algo_name: the algorithm.
        member: the member.
        about: `observations`, `actions`, `action_start` and whatever else the reader should know.
        program: whether to write a `torch.export` program too.
        card: the model card's text.
    """
    algo = get(algo_name)
    widths = algo.networks(int(about["observations"]), int(about["actions"]))
    network = algo.POLICY
    tensors = named(member.arch, widths[network], member.tensors[network])
    content = {**about, "format": FORMAT, "algo": algo_name, "network": network, "arch": member.arch.to_json()}
    files: dict[str, bytes] = {
        POLICY: safeio.dump_json(content, str(folder / POLICY), indent=2),
        TENSORS: safeio.dump_tensors(tensors),
        CARD: card.encode(),
    }
    if program:
        files[PROGRAM] = _export(Policy(algo, member, widths, about))
    safeio.write_folder(folder, files)


def _export(policy: Policy) -> bytes:
    """Return the bytes of a `torch.export` program."""
    import io

    obs = torch.zeros(2, policy.observations)
    program = torch.export.export(policy.module(), (obs,), dynamic_shapes=({0: torch.export.Dim("batch")},))
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
    files = safeio.read_folder(folder, only=(POLICY, TENSORS))
    about = safeio.parse_json(files[POLICY], str(folder / POLICY))
    tensors = safeio.load_tensors(files[TENSORS], str(folder / TENSORS))
    if about.get("format") != FORMAT:
        raise DataError(f"{folder / POLICY}: format {about.get('format')!r} is not known to this version of evopipe")
    try:
        algo, arch = get(about["algo"]), Arch.from_json(about["arch"])
        widths = algo.networks(int(about["observations"]), int(about["actions"]))
        row = _flat(arch, widths[algo.POLICY], tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{folder}: tensors and description do not fit: {error}; export it again") from error
    return Policy(algo, _bare_member(algo, arch, widths, row), widths, about)


def _flat(arch: Arch, widths: Widths, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Put named tensors into one flat row `[n]`."""
    row = torch.empty(own_layout(arch, *widths).size)
    for name, view in named(arch, widths, row).items():
        view.copy_(tensors[name].view(view.shape))
    return row


def _bare_member(algo: Algorithm, arch: Arch, widths: Mapping[str, Widths], row: torch.Tensor) -> Member:
    """Give a member the acting network's weights; everything else of its state, which acting never reads, is zero."""
    tensors = {}
    for name, (kind, network) in tensor_kinds(algo.State).items():
        if kind == "parameters" and network == algo.POLICY:
            tensors[name] = row
        elif kind == "row":
            tensors[name] = torch.zeros(())
        else:
            tensors[name] = torch.zeros(own_layout(arch, *widths[network]).size)
    return Member(slot=0, id=0, parent=None, key=0, arch=arch, hyper={}, tensors=tensors)
