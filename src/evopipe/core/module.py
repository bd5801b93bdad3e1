"""Members whose networks are the user's own `torch.nn.Module` (`network.module`).

The class is called with the width of its input, the width of its output and `network.kwargs`, once for each of the
algorithm's networks. It maps a batch `[B, inputs]` → `[B, outputs]`. As everywhere, a member's parameters are a flat
row. The forward pass of all members is one call of the module by `torch.func`, mapped over the population axis. That is
general, and slower than evopipe's own layers. A module that cannot be mapped is called once for each member.

The module runs in `eval()` mode: without dropout and without batch statistics. Its buffers are constants, as the
constructor makes them. Its architecture does not mutate unless the class defines `mutations`: see `Module.options`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch

from evopipe.core.structure import Option, ViewOf, Widths
from evopipe.errors import EvopipeError, MissingInputError, ParamsError, said
from evopipe.native.networks import LINE
from evopipe.own import NAME, import_name
from evopipe.schema.evolution import ArchitectureBounds
from evopipe.schema.stored import StoredModule, in_a_sentence
from evopipe.types import Tensor

_WORK = 1 << 14  # multiplications for one input that one counts as: nobody knows
_TRIED = 2  # rows of a batch, and members, that a module is tried with


@dataclass(frozen=True)
class Module:
    """The architecture of a member whose networks are the user's own `torch.nn.Module`.

    The class implements the protocol `Architecture`, which documents the methods that have no docstring here.

    Attributes:
        module: the user's class, as `module:Class`.
        kwargs: the arguments of the class, as JSON text with sorted keys.
        activation: empty, because the activation of such a module does not mutate.
    """

    module: str
    kwargs: str = "{}"
    activation: str = ""

    @classmethod
    def start(cls, module: str, kwargs: Mapping[str, Any], key: str) -> Module:
        """Import the user's class, and return the architecture with the arguments `kwargs`.

        Args:
            module: the class, as `module:Class`.
            kwargs: the arguments of the class.
            key: the parameter that holds the text `module`; it begins error messages.

        Raises:
            ParamsError: the text has another form, or the class does not exist or cannot be called.
            EnvironmentFailed: importing the user's module raised an exception.
        """
        import_name(module, key)
        return cls(module, json.dumps(dict(kwargs), sort_keys=True))

    @property
    def family(self) -> Hashable:
        return "module", self.module, self.kwargs

    signature = family

    def describe(self) -> str:
        """Return a short text with the user's class and its arguments, such as `nets:Net hidden=64`."""
        return " ".join([self.module, *(f"{name}={value}" for name, value in json.loads(self.kwargs).items())])

    def to_json(self) -> dict[str, Any]:
        return {"kind": "module", "module": self.module, "arguments": json.loads(self.kwargs)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Module:
        """Build an architecture from the data that `to_json` returned, without importing anything.

        Raises:
            ValueError: the data is not of that form.
        """
        with in_a_sentence(StoredModule, data):
            told = StoredModule.model_validate(data)
        if not NAME.fullmatch(told.module):
            raise ValueError(f"module: {told.module!r:.80} is not of the form 'module:Class'")
        return cls(told.module, json.dumps(told.arguments, sort_keys=True))

    @property
    def kind(self) -> Callable[..., Any]:
        """The user's class, which must have been imported already.

        Raises:
            MissingInputError: the class's module is not imported. A saved member may come from anybody, so reading it
                must not cause an import.
        """
        home, _, name = self.module.partition(":")
        found: Callable[..., Any] | None = getattr(sys.modules.get(home), name, None)
        if found is None:
            raise MissingInputError(
                f"{self.module}: this network is code of its author's, in a module that is not imported here: install "
                f"it and `import {home}` first, or, if you know where the folder comes from, load it with "
                "--trust (trust=True)"
            )
        return found

    def build(self, widths: Widths, seed: int) -> torch.nn.Module:
        """Return a new module, an instance of the user's class in `eval()` mode, without gradients.

        Args:
            widths: the input and output width of the network.
            seed: the module's random draws depend on it alone. Torch's global generator is left unchanged.

        Raises:
            ValueError: the constructor raised, or its result cannot serve as a network.
        """
        kwargs = json.loads(self.kwargs)
        shown = ", ".join([str(widths.inputs), str(widths.outputs), *(f"{k}={v!r}" for k, v in kwargs.items())])
        with torch.random.fork_rng(devices=[]):
            torch.random.manual_seed(seed)
            try:
                made = self.kind(widths.inputs, widths.outputs, **kwargs)
            except EvopipeError:
                raise
            except (Exception, SystemExit) as error:
                raise ValueError(f"{self.module}({shown}) raised {said(error)}") from error
        if not isinstance(made, torch.nn.Module):
            raise ValueError(f"{self.module}({shown}) gave a {type(made).__name__}, expected a torch.nn.Module")
        found = dict(made.named_parameters())
        if not found:
            raise ValueError(f"{self.module}({shown}) has no parameters, and nothing that could learn")
        odd = next((name for name, part in found.items() if part.dtype != torch.float32), None)
        if odd is not None:
            raise ValueError(f"{self.module}({shown}): {odd} is of {found[odd].dtype}, expected torch.float32")
        return made.eval().requires_grad_(False)

    def shapes(self, widths: Widths) -> dict[str, torch.Size]:
        """Return the shapes of a network's parameters, by the parameters' names, in the order of the flat row. The
        network has the input and output width `widths`."""
        return _prototype(self.kind, self, widths.inputs, widths.outputs).shapes

    def size(self, widths: Widths) -> int:
        return sum(shape.numel() for shape in self.shapes(widths).values())

    def named(self, widths: Widths, row: Tensor) -> dict[str, Tensor]:
        shapes = self.shapes(widths)
        parts = row[: self.size(widths)].split([shape.numel() for shape in shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    def initialise(self, widths: Widths, rng: Any) -> Tensor:
        """Return the initial parameters of a network with these widths, as a flat row `[n]`. The module's own
        constructor draws them, from a seed that `rng`, a `numpy.random.Generator`, draws."""
        return _flat(self.build(widths, int(rng.integers(2**63))))

    @staticmethod
    def work(archs: Sequence[Module]) -> int:
        return _WORK

    @staticmethod
    def stack(archs: Sequence[Module], widths: Widths, device: torch.device) -> Any:
        return _Modules(len(archs), archs[0], widths, device)

    def options(self, bounds: ArchitectureBounds, networks: Sequence[Widths]) -> Iterator[Option]:
        """Yield every possible mutation of the user's module as an `Option`.

        An `Option` is a tuple (mutation method, what changes, value before, value after, architecture after). The
        user's class may define a static function `mutations(kwargs)`, which returns the changes that are possible from
        these arguments as a dict: name of the change → new `kwargs`. Without the function there are no mutations.
        `bounds` and `networks`, which other architectures need, have no effect.
        """
        offers = getattr(self.kind, "mutations", None)
        kwargs = json.loads(self.kwargs)
        for what, new in (offers(dict(kwargs)) if callable(offers) else {}).items():
            after = replace(self, kwargs=json.dumps(new, sort_keys=True))
            if after != self:
                yield str(what), str(what), self.describe(), after.describe(), after

    def carry(self, new: Module, widths: Widths, kind: str, row: Tensor, rng: Any) -> Tensor:
        """Return the flat row `[n']` of a mutated module, with the old row's values where both modules have them.

        A parameter of the mutated module takes over values if the old module has a parameter of the same name with
        equally many dimensions; entries at indices that both shapes have are copied. All other entries are new:
        parameters are those that the module's constructor draws, noise scales and optimiser moments are 0.

        Args:
            new: the mutated module.
            widths: the input and output width of the network.
            kind: what the row holds: `parameters`, `scales` or `moments`, see `core.member`.
            row: `[n]`, the old row.
            rng: a `numpy.random.Generator`, which gives the constructor a seed.
        """
        carried = new.initialise(widths, rng) if kind == "parameters" else torch.zeros(new.size(widths))
        held = self.named(widths, row)
        for name, part in new.named(widths, carried).items():
            if name in held and held[name].ndim == part.ndim:
                corner = tuple(slice(min(a, b)) for a, b in zip(held[name].shape, part.shape, strict=True))
                part[corner] = held[name][corner]
        return carried

    def check(self, networks: Mapping[str, Widths], key: str) -> None:
        """Run every network on a batch of zeros, to find faults of the user's module before training.

        Args:
            networks: the input and output width of every network, by name.
            key: the parameter with which an error message begins.

        Raises:
            ParamsError: a network fails.
        """
        for name, widths in networks.items():
            try:
                found = _prototype(self.kind, self, widths.inputs, widths.outputs)
            except ValueError as error:
                raise ParamsError(f"{key}: {error}; the network is {name!r}") from error
            if found.wrong is not None:
                raise ParamsError(f"{key}: {self.module}: {found.wrong}; the network is {name!r}")


@dataclass(frozen=True)
class _Prototype:
    """A module that lends its forward pass; its own parameters are never used."""

    module: torch.nn.Module
    shapes: dict[str, torch.Size]
    mapped: bool  # whether `vmap` can run it
    wrong: str | None  # what of its forward pass is


@lru_cache(maxsize=64)
def _prototype(kind: Callable[..., Any], arch: Module, inputs: int, outputs: int) -> _Prototype:
    """Return the prototype of a network; `kind` is part of the key, for a module may be imported anew."""
    made = arch.build(Widths(inputs, outputs), 0)
    shapes = {name: part.shape for name, part in made.named_parameters()}
    wrong = _tried(made, inputs, outputs)
    return _Prototype(made, shapes, wrong is None and _can_be_mapped(made, inputs), wrong)


def _tried(module: torch.nn.Module, inputs: int, outputs: int) -> str | None:
    """Run a module on a batch; return what is wrong."""
    given = torch.zeros(_TRIED, inputs)
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        with torch.no_grad():
            out = module(given)
    except (Exception, SystemExit) as error:
        return f"forward() of observations [{_TRIED}, {inputs}] raised {said(error)}"
    if not isinstance(out, torch.Tensor):
        return f"forward() gave a {type(out).__name__}, expected a tensor [{_TRIED}, {outputs}]"
    if out.shape != (_TRIED, outputs) or out.dtype != torch.float32:
        kind = "" if out.dtype == torch.float32 else f" of {out.dtype}"
        return f"forward() of a batch [{_TRIED}, {inputs}] gave {list(out.shape)}{kind}, expected [{_TRIED}, {outputs}]"
    changed = [name for name, buffer in module.named_buffers() if not torch.equal(before[name], buffer)]
    return f"forward() changes its buffer {changed[0]}, and buffers must be constants" if changed else None


def _can_be_mapped(module: torch.nn.Module, inputs: int) -> bool:
    rows = {name: torch.stack([part.detach()] * _TRIED) for name, part in module.named_parameters()}
    x = torch.zeros(_TRIED, _TRIED, inputs)
    try:
        torch.func.vmap(lambda own, seen: torch.func.functional_call(module, own, (seen,)))(rows, x)
    except Exception:
        return False
    return True


def _flat(module: torch.nn.Module) -> Tensor:
    return torch.cat([part.detach().reshape(-1) for part in module.parameters()])


@dataclass(frozen=True)
class _Modules:
    """One network of several members, of one architecture; its methods are those of a `Structure`."""

    rows: int
    arch: Module
    widths: Widths
    device: torch.device
    memory: int = 0
    memory_widths: tuple[int, ...] = ()
    copies: int = 1

    @cached_property
    def shapes(self) -> dict[str, torch.Size]:
        return self.arch.shapes(self.widths)

    @cached_property
    def own(self) -> int:
        """Numbers of a member's own row."""
        return self.arch.size(self.widths)

    @cached_property
    def size(self) -> int:
        return -(-self.own // LINE) * LINE

    @cached_property
    def prototype(self) -> _Prototype:
        return _prototype(self.arch.kind, self.arch, self.widths.inputs, self.widths.outputs)

    @cached_property
    def buffers(self) -> dict[str, Tensor]:
        return {name: buffer.to(self.device) for name, buffer in self.prototype.module.named_buffers()}

    def pack(self, rows: Sequence[Tensor]) -> Tensor:
        packed = torch.zeros(len(rows), self.size)
        for into, row in zip(packed, rows, strict=True):
            into[: self.own] = row
        return packed.to(self.device)

    def unpack(self, packed: Tensor) -> list[Tensor]:
        return [row[: self.own].clone() for row in packed]

    def part(self, first: int, end: int | None, every: int = 1) -> _Modules:
        return replace(self, rows=len(range(self.rows)[first:end:every]))

    def repeat(self, times: int) -> _Modules:
        return replace(self, rows=self.rows * times)

    def views(self, of: ViewOf) -> tuple[Tensor, ...]:
        found, start = [], 0
        for shape in self.shapes.values():
            found.append(of(start, 1, shape.numel()))  # [P, 1, n]
            start += shape.numel()
        return tuple(found)

    def forward(self, views: Sequence[Tensor], x: Tensor) -> Tensor:
        """See `Structure.forward`."""
        rows = len(views[0])
        stacked = {
            name: view.view(rows, *shape) for (name, shape), view in zip(self.shapes.items(), views, strict=True)
        }
        if rows == 1 or not self.prototype.mapped:
            each = [{name: part[i] for name, part in stacked.items()} for i in range(rows)]
            return torch.stack([self._run(own, seen) for own, seen in zip(each, x, strict=True)])
        out: Tensor = torch.func.vmap(self._run)(stacked, x)
        return out

    def _run(self, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(self.prototype.module, {**self.buffers, **own}, (x,))
        return out

    def remember(self, views: Any, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return self.forward(views, x), memory

    def unroll(self, views: Any, x: Tensor, memory: Tensor, begins: Tensor) -> Tensor:
        found: Tensor = self.forward(views, x.flatten(1, 2)).unflatten(1, x.shape[1:3])
        return found
