"""Which environment: its block of `params.yaml`, how one is constructed, and which spaces are served."""

from __future__ import annotations

import importlib
import math
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import gymnasium
import numpy as np

from evopipe.envs.observations import ObservationSpace, brief
from evopipe.errors import EnvironmentFailed, EvopipeError, ParamsError, did_you_mean
from evopipe.schema.blocks import EnvConfig
from evopipe.types import Spaces

if TYPE_CHECKING:
    import numpy.typing as npt

_SERVED = "only Discrete, MultiDiscrete, MultiBinary and bounded Box actions are"
_with_threads: set[str] = set()  # ids whose making started threads in this process
_OVERLOOKED = ("size", "nfiles")
_BAD_KWARGS = re.compile(r"unexpected keyword argument|missing \d+ required|multiple values for (keyword )?argument")


def make_env(cfg: EnvConfig, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """Construct one environment.

    `module:EnvId` imports `module` first (from the working folder or the installed packages), so that a project can
    register its own environments.

    Args:
        cfg: which environment.
        render_mode: how it draws itself, one of its `metadata["render_modes"]`; None: not at all.

    Raises:
        ParamsError: the id is unknown, its package is not installed, or `env.kwargs` does not fit its constructor.
        EnvironmentFailed: the module's import or the constructor raised.
    """
    threads = _count_threads()
    refuse(cfg, ("id", "disable_env_checker", "render_mode"))
    try:
        with warnings.catch_warnings():
            # Box2D's extension crashes the interpreter where a warning of its import is turned into an error.
            warnings.simplefilter("ignore", DeprecationWarning)
            _import_module(cfg.id)
            # Named only where it is wanted: a constructor need not know the argument.
            drawing: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
            env = gymnasium.make(cfg.id, disable_env_checker=True, **drawing, **cfg.kwargs)
    except EvopipeError:
        raise
    except Exception as error:
        _explain(error, cfg)
    exact = env.spec.id if env.spec else cfg.id
    if exact != cfg.id.rpartition(":")[2]:  # Gymnasium took the newest version, which another install may not have
        env.close()
        raise ParamsError(f"env.id: {cfg.id!r} names no version; write {exact!r}")
    if _count_threads() > threads:
        _with_threads.add(cfg.id)
    return env


def refuse(cfg: EnvConfig, names: Iterable[str]) -> None:
    """Raise ParamsError where `env.kwargs` holds one of these names."""
    for name in names:
        if name in cfg.kwargs:
            raise ParamsError(f"env.kwargs: {name!r} is set by evopipe and cannot be given; remove it")


def has_threads(cfg: EnvConfig) -> bool:
    """Return whether making this environment, or importing its module, has ever started threads in this process."""
    return cfg.id in _with_threads


def _count_threads() -> int:
    """Threads of this process, Python's and others'; 0 where the system does not tell."""
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0


def source_of(cfg: EnvConfig) -> list[Path]:
    """Return the file, or the package's folder, of the module in `module:EnvId`; nothing for a registered id.

    The module must have been imported, as `make_env` does.
    """
    module = sys.modules.get(cfg.id.partition(":")[0]) if ":" in cfg.id else None
    file = getattr(module, "__file__", None)
    if file is None:
        return []
    return [Path(file).parent if hasattr(module, "__path__") else Path(file)]


@dataclass(frozen=True, eq=False)
class ActionSpace:
    """An environment's action space, and the way from an algorithm's actions to its own.

    Attributes:
        size: `A`, choices of a Discrete space, of a MultiDiscrete one in all, bits, or numbers in an action of a Box.
        start: the least action of a Discrete space.
        bounds: low and high `[A]` float64 of a Box; None for other spaces.
        shape: of the environment's own action.
        kind: see `Spaces`.
        choices: the same.
        starts: of a MultiDiscrete or MultiBinary space, the least value of each number of an action.
    """

    size: int
    start: int = 0
    bounds: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None = None
    shape: tuple[int, ...] = ()
    kind: str = "discrete"
    choices: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()

    @classmethod
    def of(cls, space: object) -> ActionSpace:
        """Read a Gymnasium space.

        Raises:
            ParamsError: it is neither Discrete, MultiDiscrete, MultiBinary nor a bounded Box of numbers.
        """
        spaces = gymnasium.spaces
        if isinstance(space, spaces.Discrete):
            return cls(int(space.n), int(space.start))
        if isinstance(space, spaces.MultiBinary) and all(space.shape):
            return cls._of_several("multibinary", (2,) * math.prod(space.shape), (), tuple(space.shape))
        if isinstance(space, spaces.MultiDiscrete) and all(space.shape):
            choices, starts = (tuple(int(n) for n in each.reshape(-1)) for each in (space.nvec, space.start))
            return cls._of_several("multidiscrete", choices, starts, tuple(space.shape))
        if not isinstance(space, spaces.Box) or space.dtype.kind != "f" or not all(space.shape):
            raise ParamsError(f"env.id: action space {brief(space)} is not served: {_SERVED}")
        if not space.is_bounded():
            raise ParamsError(
                f"env.id: action space {brief(space)} is unbounded; give it bounds in the environment's own "
                "action_space, or wrap it: gymnasium.wrappers.TransformAction(env, lambda action: action, Box(-1, 1, "
                f"{tuple(space.shape)})), with bounds that suit it"
            )
        low, high = (bound.astype(float).reshape(-1) for bound in (space.low, space.high))
        return cls(len(low), 0, (low, high), space.shape, "continuous")

    @classmethod
    def _of_several(
        cls, kind: str, choices: tuple[int, ...], starts: tuple[int, ...], shape: tuple[int, ...]
    ) -> ActionSpace:
        size = len(choices) if kind == "multibinary" else sum(choices)
        return cls(size, shape=shape, kind=kind, choices=choices, starts=starts or (0,) * len(choices))

    @property
    def continuous(self) -> bool:
        """Whether actions are vectors."""
        return self.bounds is not None

    def spaces(self, observations: ObservationSpace) -> Spaces:
        """Return what an algorithm needs to know."""
        images, one_hot = observations.images, observations.one_hot
        return Spaces(observations.size, self.size, self.continuous, images, self.kind, self.choices, one_hot)

    def empty(self, *shape: int) -> npt.NDArray[Any]:
        """Return zeros for actions in an algorithm's terms: int64 `[…]` or `[…, D]`, or float32 `[…, A]`."""
        if self.continuous:
            return np.zeros((*shape, self.size), np.float32)
        return np.zeros(shape if self.kind == "discrete" else (*shape, len(self.choices)), np.int64)

    def own(self, actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the environment's own actions: from `[n]` or `[n, D]`, or from `[n, A]` in [-1, 1], which are clipped.

        A number that is none counts as 0, the middle: it comes from a member that diverged.
        """
        if self.kind == "discrete":
            return actions + self.start
        if self.bounds is None:
            several: npt.NDArray[np.int64] = actions + np.array(self.starts)
            return several.reshape(-1, *self.shape)
        low, high = self.bounds
        share = (np.clip(np.nan_to_num(actions.astype(np.float64)), -1.0, 1.0) + 1.0) / 2.0
        return np.clip(low + share * (high - low), low, high).astype(np.float32).reshape(-1, *self.shape)

    def relative(self, own: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the inverse of `own`: the environment's actions `[n, …]` as indices, or as `[n, A]` in [-1, 1]."""
        if self.kind == "discrete":
            return own - self.start
        if self.bounds is None:
            several: npt.NDArray[np.int64] = own.reshape(len(own), -1).astype(np.int64) - np.array(self.starts)
            return several
        low, high = self.bounds
        width = np.where(high > low, high - low, 1.0)
        share = (own.reshape(len(own), -1).astype(np.float64) - low) / width
        return np.clip(2.0 * share - 1.0, -1.0, 1.0).astype(np.float32)

    def flat_mask(self, mask: Any) -> Any:
        """Return a mask as an array `[…, A]`; of several choices Gymnasium gives it as a tuple, an array for each.

        Raises:
            ValueError: such a tuple does not fit the choices; the text goes on from "returned".
        """
        if self.kind != "multidiscrete" or not isinstance(mask, tuple):
            return mask
        parts = [np.asarray(part) for part in _leaves(mask)]
        widths = [part.shape[-1] if part.ndim else 0 for part in parts]
        if widths != [*self.choices] or len({part.shape[:-1] for part in parts}) > 1:
            raise ValueError(
                f"an action_mask of {len(parts)} arrays of the shapes {[list(part.shape) for part in parts]}, expected "
                f"one for each choice, of the lengths {[*self.choices]}"
            )
        return np.concatenate(parts, axis=-1)

    def possible(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return whether any action is legal: `[n, A]` → `[n]`. Without any legal bit, no bit set still is one."""
        if self.kind == "multibinary":
            return np.ones(len(mask), np.bool_)
        if self.kind != "multidiscrete":
            return np.asarray(mask.any(axis=1))
        firsts = np.cumsum((0, *self.choices[:-1]))
        return np.asarray(np.logical_or.reduceat(mask, firsts, axis=1).all(axis=1))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data, part of an exported policy's description."""
        if self.kind == "discrete":
            return {"actions": self.size, "action_start": self.start}
        if self.bounds is None:
            numbers = {"action_choices": [*self.choices], "action_starts": [*self.starts]}
            return {"actions": self.size, "action_kind": self.kind, **numbers, "action_shape": [*self.shape]}
        low, high = (bound.tolist() for bound in self.bounds)
        return {"actions": self.size, "action_low": low, "action_high": high, "action_shape": [*self.shape]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ActionSpace:
        """Build from what `to_json` returned."""
        if "action_kind" in data:
            choices, starts, shape = (
                tuple(int(n) for n in data[name]) for name in ("action_choices", "action_starts", "action_shape")
            )
            if data["action_kind"] not in ("multidiscrete", "multibinary"):
                raise ValueError(f"action_kind is {data['action_kind']!r}")
            return cls._of_several(data["action_kind"], choices, starts, shape)
        if "action_low" not in data:
            return cls(int(data["actions"]), int(data.get("action_start", 0)))
        low, high = (np.array(data[name], np.float64) for name in ("action_low", "action_high"))
        return cls(int(data["actions"]), 0, (low, high), tuple(data["action_shape"]), "continuous")


def _leaves(nested: Any) -> Iterator[Any]:
    """What stands in tuples of tuples."""
    for part in nested:
        if isinstance(part, tuple):
            yield from _leaves(part)
        else:
            yield part


def _import_module(env_id: str) -> None:
    """Import the module of `module:EnvId`; gymnasium's own import knows nothing of the working folder."""
    if ":" not in env_id:
        return
    module, _, name = env_id.partition(":")
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", module) or not name or ":" in name:
        raise ParamsError(f"env.id: {env_id!r} is not of the form 'module:EnvId'")
    folder = os.getcwd()
    if folder not in sys.path:  # stays there: the environment's constructor may import from its project too
        sys.path.insert(0, folder)
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if module == missing or module.startswith(missing + "."):
            raise ParamsError(f"env.id: no module named {missing!r} in {folder} or among the packages") from error
        raise ParamsError(f"env.id: module {module!r} needs the package {missing!r}; install it") from error
    except Exception as error:
        raise EnvironmentFailed(f"env.id: importing {module!r} raised {type(error).__name__}: {error}") from error


def _explain(error: Exception, cfg: EnvConfig) -> NoReturn:
    """Turn what `gymnasium.make` raised into an error that says what to do."""
    known = gymnasium.error
    text = " ".join(str(error).split())
    if isinstance(error, known.DependencyNotInstalled):
        raise ParamsError(f"env.id: {cfg.id!r} needs a package that is not installed: {_install(text)}") from error
    if isinstance(error, ModuleNotFoundError):
        raise ParamsError(f"env.id: {cfg.id!r} needs the package {error.name!r}; install it") from error
    if isinstance(error, known.DeprecatedEnv):
        raise ParamsError(f"env.id: {cfg.id!r} is no longer offered: {text}") from error
    if isinstance(error, (known.UnregisteredEnv, known.RegistrationError)) or "alformed environment ID" in text:
        raise ParamsError(f"env.id: unknown environment {cfg.id!r}{_suggest(cfg.id)}") from error
    if isinstance(error, TypeError) and _BAD_KWARGS.search(text):
        raise ParamsError(f"env.kwargs: {cfg.id!r} does not take {cfg.kwargs}: {_first_sentence(text)}") from error
    hint = "; check env.kwargs" if cfg.kwargs else ""
    raise EnvironmentFailed(
        f"environment {cfg.id!r} could not be constructed: {type(error).__name__}: {text}{hint}"
    ) from error


def _suggest(env_id: str) -> str:
    module, colon, name = env_id.rpartition(":")
    near = did_you_mean(name, gymnasium.registry)
    if near and colon:
        near = near.replace("mean '", f"mean '{module}:")
    return near or "; `gymnasium.pprint_registry()` lists the known ones, `module:EnvId` names one's own"


def _install(text: str) -> str:
    found = re.search(r"pip install\s+[\"']?([\w.-]+(?:\[[\w,.-]+\])?)", text)
    return f'`pip install "{found.group(1)}"`' if found else text


def _first_sentence(text: str) -> str:
    return text.split(" was raised from the environment creator", 1)[0]
