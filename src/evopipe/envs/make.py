"""Construction of environments from the block `env` of `params.yaml`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import gymnasium

from evopipe.envs.games import file_of
from evopipe.envs.names import HOMES, OF_PETTINGZOO, extra_of, import_home, suggested
from evopipe.envs.single import OneRow, RowInC, is_tensor_class
from evopipe.envs.team import TeamEnv
from evopipe.errors import EnvironmentFailed, EvopipeError, ParamsError, did_you_mean, said, text_of
from evopipe.own import import_module
from evopipe.schema.env import EnvConfig, WrapperConfig
from evopipe.watchdog import Hung, Watchdog

_CLOSING = 10.0  # seconds that closing the environments of a pool may take
_QUICK = 0.1  # of those that one may take after another one hung
_TASKS, _MARK = Path("/proc/self/task"), "evopipe-making"  # a name has 15 bytes at most
_with_threads: set[str] = set()  # ids whose making started threads in this process
_BAD_KWARGS = re.compile(r"unexpected keyword argument|missing \d+ required|multiple values for (keyword )?argument")


def make_env(cfg: EnvConfig, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """Make one environment from the block `env` of `params.yaml`.

    For the id `module:EnvId`, `module` is imported first, from the installed packages or the working folder, so that a
    project can register its own environments. An environment of several agents is returned as a `TeamEnv`.

    Args:
        cfg: the block `env`.
        render_mode: one of the environment's `metadata["render_modes"]`, if it is to be rendered; else None.

    Raises:
        ParamsError: the id is unknown, its package is not installed, `env.kwargs` does not fit its constructor, or a
            wrapper of `env.wrappers` does not fit.
        EnvironmentFailed: the module's import or the constructor raised an exception, or did not return in time.
    """
    refuse(cfg, ("id", "disable_env_checker", "render_mode"))
    with _watched_threads(cfg.id):
        return _made(cfg, render_mode)


def _made(cfg: EnvConfig, render_mode: str | None) -> gymnasium.Env[Any, Any]:
    """Do what `make_env` says, but for the look at threads."""
    try:
        with guard(cfg), warnings.catch_warnings():
            # Box2D's extension crashes the interpreter where a warning of its import is turned into an error.
            warnings.simplefilter("ignore", DeprecationWarning)
            if cfg.source is None:
                import_home(cfg.id)
            # Named only where it is wanted: a constructor need not know the argument.
            drawing: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
            if cfg.source is not None:
                env: gymnasium.Env[Any, Any] = RowInC(cfg.source, cfg.id, cfg.kwargs)
            elif (kind := tensor_class(cfg.id)) is not None:
                env = OneRow(kind, cfg.id, cfg.kwargs)
            elif (function := _find_team(cfg.id)) is not None:
                env = _make_team(function, cfg.id, drawing | cfg.kwargs)
            else:
                env = gymnasium.make(cfg.id, disable_env_checker=True, **drawing, **cfg.kwargs)
    except EvopipeError:
        raise
    except (Exception, SystemExit) as error:
        _explain(error, cfg)
    except Hung as hung:
        raise EnvironmentFailed(f"environment {cfg.id!r}: its module or its constructor {hung}") from None
    name = cfg.id.rpartition(":")[2]
    exact = env.spec.id if env.spec else name
    if exact != name:  # Gymnasium took the newest version, which another install may not have
        close(env)
        raise ParamsError(f"env.id: {cfg.id!r} names no version; write {exact!r}")
    for number, wrapper in enumerate(cfg.wrappers):
        env = _wrapped(env, wrapper, cfg, f"env.wrappers.{number}")
    return env


@contextlib.contextmanager
def opened(cfg: EnvConfig) -> Iterator[gymnasium.Env[Any, Any]]:
    """Make an environment from the block `env` for a `with` block, and close it at the end.

    Raises:
        ParamsError: the environment is unknown, or its arguments cannot be used.
        EnvironmentFailed: the environment's constructor raised an exception.
    """
    env = make_env(cfg)
    try:
        yield env
    finally:
        close(env)


def names_limit(env: gymnasium.Env[Any, Any]) -> bool:
    """Return whether an environment declares a time limit: `max_episode_steps` of its spec, or a team's
    `max_cycles`."""
    if isinstance(env, TeamEnv):
        return getattr(getattr(env.parallel, "unwrapped", None), "max_cycles", None) is not None
    return env.spec is not None and env.spec.max_episode_steps is not None


def guard(cfg: EnvConfig, progress: Callable[[], object] = lambda: None, factor: float = 1.0) -> Watchdog:
    """Return a context that limits the time that environments may take inside it.

    The limit is `factor` times `step_seconds` of the block `env` (`cfg`). The time starts again whenever the value that
    `progress` returns changes.
    """
    return Watchdog(factor * cfg.step_seconds, "env.step_seconds", progress)


def close(*envs: gymnasium.Env[Any, Any]) -> None:
    """Close environments within 10 seconds in all. Errors of closing are ignored.

    An environment that hangs while it closes is abandoned, and the next environments are closed in the remaining time.
    """
    end, most = time.monotonic() + _CLOSING, _CLOSING / 2
    for env in envs:
        seconds = min(most, end - time.monotonic())
        if seconds <= 0:
            return
        try:
            with contextlib.suppress(Exception, SystemExit), Watchdog(seconds):
                env.close()
        except Hung:
            most = _QUICK


def refuse(cfg: EnvConfig, names: Iterable[str]) -> None:
    """Raise a ParamsError if `env.kwargs` has one of these names, which evopipe sets itself."""
    for name in names:
        if name in cfg.kwargs:
            raise ParamsError(f"env.kwargs: {name!r} is set by evopipe and cannot be given; remove it")


def has_threads(cfg: EnvConfig) -> bool:
    """Return whether making this environment, or importing its module, has started threads in this process at
    any time."""
    return cfg.id in _with_threads


@contextlib.contextmanager
def _watched_threads(env_id: str) -> Iterator[None]:
    """Take note of an environment that starts threads within the `with` block.

    Other threads of this process may start some of their own meanwhile. A thread has the name of the one that started
    it, so this thread has a name of its own for that time; who gives its threads other names is found by these. Where
    the system has no such names, nothing is noted.
    """
    if not _TASKS.is_dir():
        yield
        return
    before, mine = _names_of_threads(), _TASKS / str(threading.get_native_id()) / "comm"
    name = mine.read_text()
    mine.write_text(_MARK)
    try:
        yield
    finally:
        mine.write_text(name)
        after = _names_of_threads()
        others = {*before.values()} - {_MARK}  # which threads of environments made before keep
        if any(after[task] not in others for task in after.keys() - before.keys()):
            _with_threads.add(env_id)


def _names_of_threads() -> dict[str, str]:
    """Return the names of this process's threads, Python's and others', by their numbers."""
    found = {}
    for task in _TASKS.iterdir():
        with contextlib.suppress(OSError):  # it has ended
            found[task.name] = (task / "comm").read_text().strip()
    return found


def source_of(cfg: EnvConfig) -> list[Path]:
    """Return the source files of an environment, without repetitions.

    They are the files, or package folders, of the modules in the environment's id (`module:EnvId`) and in the names of
    its wrappers (`module:Wrapper`). Only modules that are already imported count; `make_env` imports them. The arrays
    of an elite that `env.kwargs.opponent` names are among them. For an environment in C, the result is its C file.
    """
    if cfg.source is not None:
        return [Path(cfg.source)]
    names = [cfg.id, *(wrapper.name for wrapper in cfg.wrappers)]
    modules = [sys.modules.get(name.partition(":")[0]) for name in names if ":" in name]
    found = [(module, Path(module.__file__)) for module in modules if module is not None and module.__file__]
    files = [file.parent if hasattr(module, "__path__") else file for module, file in found]
    opponent = cfg.kwargs.get("opponent")
    if isinstance(opponent, str) and (arrays := file_of(opponent)).is_file():
        files.append(arrays)
    return list(dict.fromkeys(files))


def tensor_class(env_id: str) -> type[Any] | None:
    """Return the class of a user's own tensor environment from its id `env_id`, written as `module:Class`; None if the
    id names something else.

    The module must have been imported.
    """
    module, _, name = env_id.rpartition(":")
    found = getattr(sys.modules.get(module), name, None) if module and name not in gymnasium.registry else None
    return found if is_tensor_class(found) else None


def is_team(cfg: EnvConfig) -> bool:
    """Return whether an id names a team, an environment of several agents.

    The id of a team is a function of a module (`module:function`), a module of PettingZoo or mpe2 (`name_v0`), or an id
    registered with PettingZoo (`home/name-v0`). An id that is registered with Gymnasium is no team.

    Raises:
        ParamsError: the module of the id does not exist.
        EnvironmentFailed: importing the module raised an exception, or did not end in time.
    """
    if ":" not in cfg.id and not OF_PETTINGZOO.fullmatch(cfg.id):  # nothing need be imported
        return False
    try:
        with guard(cfg), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            import_home(cfg.id)
            return _find_team(cfg.id) is not None
    except Hung as hung:
        raise EnvironmentFailed(f"environment {cfg.id!r}: its module {hung}") from None


def team_function(env_id: str) -> Callable[..., Any]:
    """Return the function that makes the team (the environment of several agents) with this id.

    An id is `module:function`, a module of PettingZoo or mpe2 (`name_v0`), or one that is registered with PettingZoo
    (`home/name-v0`).

    Raises:
        ParamsError: the id names no team.
    """
    import_home(env_id)
    found = _find_team(env_id)
    if found is None:
        raise ParamsError(f"{env_id!r} names no environment of PettingZoo")
    return found


def _find_team(env_id: str) -> Callable[..., Any] | None:
    """Return what makes the team of this name; its module must have been imported. None where it is no team."""
    module, _, name = env_id.rpartition(":")
    if name in gymnasium.registry:
        return None
    if module and name.isidentifier():
        found: Any = getattr(sys.modules[module], name, None)
        if is_tensor_class(found):
            return None
        return found if callable(found) and not (isinstance(found, type) and issubclass(found, gymnasium.Env)) else None
    if not module and not OF_PETTINGZOO.fullmatch(name):
        return None
    known = importlib.util.find_spec("pettingzoo") is not None  # mpe2 needs it too
    for home in () if module or "/" in name or not known else HOMES:
        if importlib.util.find_spec(home) is not None and importlib.util.find_spec(f"{home}.{name}") is not None:
            source = import_module(f"{home}.{name}", "env.id")
            function: Callable[..., Any] = getattr(source, "parallel_env", None) or source.env
            return function
    # What is registered by a module of one's own has imported PettingZoo.
    pettingzoo: Any = importlib.import_module("pettingzoo") if known and not module else sys.modules.get("pettingzoo")
    registries = () if pettingzoo is None else ("parallel", "aec")
    kinds = [kind for kind in registries if name in getattr(pettingzoo, f"{kind}_registry")]
    return partial(pettingzoo.make, kinds[0], name) if kinds else None


def _make_team(function: Callable[..., Any], env_id: str, arguments: dict[str, Any]) -> TeamEnv:
    """Make a team. An AECEnv becomes parallel by PettingZoo's converter: by that of games whose agents take turns,
    unless the environment's `metadata["is_parallelizable"]` says that all act in one cycle. Raises ParamsError if what
    `function` gave is no environment of PettingZoo, or does not say who its agents are."""
    from pettingzoo import AECEnv, ParallelEnv
    from pettingzoo.utils.conversions import aec_to_parallel, aec_to_parallel_wrapper, turn_based_aec_to_parallel
    from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, OrderEnforcingWrapper

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PettingZoo's, of what an environment leaves to its base class
        env, turns = function(**arguments), None
        if isinstance(env, AECEnv):
            if env.metadata.get("is_parallelizable", False):
                env = aec_to_parallel(env)
            else:
                env, turns = turn_based_aec_to_parallel(env), env
        if not isinstance(env, ParallelEnv):
            instead = "'module:function' must name what makes one"
            if isinstance(env, gymnasium.Env):
                env.close()
                instead = "gymnasium.register it, and use 'module:EnvId'"
            name = type(env).__name__
            raise ParamsError(f"env.id: {env_id!r} gave no environment of PettingZoo but {name}; {instead}")
        if type(env) is aec_to_parallel_wrapper:
            # Each of its steps reads attributes some fifty times, through wrappers that only check what holds here
            # anyway: the converter keeps the order, and an action is one of the space's. They take a third of a step.
            while type(env.aec_env) in (OrderEnforcingWrapper, AssertOutOfBoundsWrapper):
                env.aec_env = env.aec_env.env
        return TeamEnv(env, turns)


def _wrapped(env: gymnasium.Env[Any, Any], wrapper: WrapperConfig, cfg: EnvConfig, key: str) -> gymnasium.Env[Any, Any]:
    """Put one wrapper around an environment, which is closed where it does not fit."""
    module, _, name = wrapper.name.rpartition(":")
    if isinstance(env, TeamEnv) and not module:
        close(env)
        raise ParamsError(
            f"{key}: {name} wraps environments of Gymnasium, and {cfg.id!r} is one of PettingZoo; name a wrapper of "
            "such ones as 'module:Wrapper'"
        )
    # YAML has no tuples, which Gymnasium's shapes must be.
    kwargs = {name: tuple(value) if isinstance(value, list) else value for name, value in wrapper.kwargs.items()}
    try:
        with guard(cfg):
            source = import_module(module or "gymnasium.wrappers", key)
            if not hasattr(source, name):
                raise ParamsError(f"{key}: the module {module!r} has no {name!r}{did_you_mean(name, vars(source))}")
            kind = getattr(source, name)
            made = env.wrapped(kind, kwargs) if isinstance(env, TeamEnv) else kind(env, **kwargs)
        if not isinstance(made, gymnasium.Env):
            raise TypeError(f"it gave no environment but {type(made).__name__}")
    except EvopipeError:
        close(env)
        raise
    except (Exception, SystemExit, Hung) as error:
        close(env)
        given = f" with {wrapper.kwargs}" if wrapper.kwargs else ""
        text = said(error)
        raise ParamsError(f"{key}: {wrapper.name}{given} cannot be put around {cfg.id!r}: {text}") from error
    return made


def _explain(error: BaseException, cfg: EnvConfig) -> NoReturn:
    """Turn what `gymnasium.make` raised into an error that says what to do."""
    known = gymnasium.error
    text = text_of(error)
    if isinstance(error, known.DependencyNotInstalled):
        found = re.search(r"pip install\s+[\"']?([\w.-]+(?:\[[\w,.-]+\])?)", text)
        extra = extra_of(cfg.id)
        install = f"pip install 'evopipe[{extra}]'" if extra else f'`pip install "{found[1]}"`' if found else text
        raise ParamsError(f"env.id: {cfg.id!r} needs a package that is not installed: {install}") from error
    for missing in (error, error.__cause__):  # PettingZoo says what is missing in an error of its own
        if isinstance(missing, ModuleNotFoundError):
            raise ParamsError(f"env.id: {cfg.id!r} needs the package {missing.name!r}; install it") from error
    if isinstance(error, known.DeprecatedEnv):
        raise ParamsError(f"env.id: {cfg.id!r} is no longer offered: {text}") from error
    if isinstance(error, (known.UnregisteredEnv, known.RegistrationError)) or "alformed environment ID" in text:
        raise ParamsError(f"env.id: unknown environment {cfg.id!r}{suggested(cfg.id)}") from error
    if isinstance(error, TypeError) and _BAD_KWARGS.search(text):
        text = text.partition(" was raised from the environment creator")[0]
        raise ParamsError(f"env.kwargs: {cfg.id!r} does not take {cfg.kwargs}: {text}") from error
    hint = "; check env.kwargs" if cfg.kwargs else ""
    raise EnvironmentFailed(
        f"environment {cfg.id!r} could not be constructed: {type(error).__name__}: {text}{hint}"
    ) from error
