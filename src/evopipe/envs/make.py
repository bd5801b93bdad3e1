"""Which environment: its block of `params.yaml`, how one is constructed, and which spaces are served."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from pydantic import Field, field_validator

from evopipe.errors import EnvironmentFailed, EvopipeError, ParamsError, did_you_mean
from evopipe.types import Schema

if TYPE_CHECKING:
    import gymnasium

_SERVED = "only vector observations (a 1-D Box) and Discrete actions are served yet"
_RESERVED = ("id", "disable_env_checker", "render_mode")
_OVERLOOKED = ("size", "nfiles")
_BAD_KWARGS = re.compile(r"unexpected keyword argument|missing \d+ required|multiple values for (keyword )?argument")


class EnvConfig(Schema):
    """The environment that the population learns in."""

    id: str = Field("LunarLander-v3", min_length=1, description="Gymnasium id, or `module:EnvId` for one's own")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of `gymnasium.make`")
    num_envs: int = Field(16, ge=1, le=4096, description="environments of each member")
    backend: Literal["sync", "envpool"] = Field(
        "sync",
        description="which implementation training steps: `sync`, Gymnasium's; `envpool`, envpool's own build of the "
        "same environments (an extra), faster and not equal in every bit",
    )

    @property
    def on_gymnasium(self) -> EnvConfig:
        """The same environment as Gymnasium builds it, whatever training steps."""
        return self.model_copy(update={"backend": "sync"})

    @field_validator("kwargs")
    @classmethod
    def _all_tracked(cls, kwargs: dict[str, Any]) -> dict[str, Any]:
        for name in _OVERLOOKED:
            if _names(kwargs, name):
                raise ValueError(
                    f"DVC's run cache overlooks keys named {name!r} inside a mapping, so that a change could go "
                    f"unnoticed; register the environment under an id of its own with it, and use 'module:EnvId'"
                )
        return kwargs


def _names(value: Any, name: str) -> bool:
    """Whether a key of this name stands anywhere in nested mappings and lists."""
    if isinstance(value, dict):
        return name in value or any(_names(inner, name) for inner in value.values())
    return isinstance(value, list) and any(_names(inner, name) for inner in value)


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
    import warnings

    import gymnasium

    for key in _RESERVED:
        if key in cfg.kwargs:
            raise ParamsError(f"env.kwargs: {key!r} is set by evopipe and cannot be given; remove it")
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
    return env


def source_of(cfg: EnvConfig) -> list[Path]:
    """Return the file, or the package's folder, of the module in `module:EnvId`; nothing for a registered id.

    The module must have been imported, as `make_env` does.
    """
    module = sys.modules.get(cfg.id.partition(":")[0]) if ":" in cfg.id else None
    file = getattr(module, "__file__", None)
    if file is None:
        return []
    return [Path(file).parent if hasattr(module, "__path__") else Path(file)]


def vector_observation_size(space: object) -> int:
    """Return `O`, the length of a 1-D Box of numbers.

    Raises:
        ParamsError: the space is anything else.
    """
    import gymnasium

    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1 or space.shape[0] == 0:
        raise ParamsError(f"env.id: observation space {_short(space)} is not served: {_SERVED}")
    return int(space.shape[0])


def discrete_actions(space: object) -> int:
    """Return `A`, the number of actions of a Discrete space. The environment's own action is `space.start + index`.

    Raises:
        ParamsError: the space is anything else.
    """
    import gymnasium

    if not isinstance(space, gymnasium.spaces.Discrete):
        raise ParamsError(f"env.id: action space {_short(space)} is not served: {_SERVED}")
    return int(space.n)


def _short(space: object) -> str:
    text = " ".join(repr(space).split())
    return text if len(text) <= 200 else text[:197] + "..."


def _import_module(env_id: str) -> None:
    """Import the module of `module:EnvId`; gymnasium's own import knows nothing of the working folder."""
    if ":" not in env_id:
        return
    module, _, name = env_id.partition(":")
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", module) or not name or ":" in name:
        raise ParamsError(f"env.id: {env_id!r} is not of the form 'module:EnvId'")
    import importlib

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
    from gymnasium import error as known

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
    import gymnasium

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
