"""Names of environments: imports the module that registers one, and suggests which known name an unknown one may
mean."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import sys
from importlib.metadata import entry_points

import gymnasium

from evopipe.errors import ParamsError, did_you_mean
from evopipe.own import import_module

OF_PETTINGZOO = re.compile(r"[a-z]\w*_v\d+|[a-z]+/[a-z]\w*-v\d+")
HOMES = ("mpe2", "pettingzoo.butterfly", "pettingzoo.classic", "pettingzoo.sisl", "pettingzoo.atari")
# How ids begin that a package registers when it is imported, and what pip calls it.
_PACKAGES = {
    "ALE/": ("ale_py", "ale-py"),
    "BabyAI-": ("minigrid", "minigrid"),
    "MiniGrid-": ("minigrid", "minigrid"),
    "MinAtar/": ("minatar", "MinAtar"),
    "PandaReach": ("panda_gym", "panda-gym"),
    "PandaPush": ("panda_gym", "panda-gym"),
    "Fetch": ("gymnasium_robotics", "gymnasium-robotics"),
    "HandManipulate": ("gymnasium_robotics", "gymnasium-robotics"),
    "AntMaze": ("gymnasium_robotics", "gymnasium-robotics"),
    "PointMaze": ("gymnasium_robotics", "gymnasium-robotics"),
    "FrankaKitchen": ("gymnasium_robotics", "gymnasium-robotics"),
    **dict.fromkeys(
        ("exit-", "highway-", "intersection-", "lane-keeping-", "merge-", "parking-", "racetrack-", "roundabout-",
         "two-way-", "u-turn-"),
        ("highway_env", "highway-env"),
    ),
}  # fmt: skip
# How the code begins that makes an environment, and the extra that installs it.
_EXTRAS = {
    "gymnasium.envs.box2d": "box2d",
    "gymnasium.envs.mujoco": "mujoco",
    "minigrid": "minigrid",
    "minatar": "minatar",
    "ale_py": "atari",
    "highway_env": "highway",
    "lbforaging": "foraging",
    "evopipe.envs:from_openspiel": "openspiel",
    "evopipe.envs:from_pettingzoo": "teams",
}
_BY_ENTRY_POINT = "MinAtar/"  # its id needs no module before it


def import_home(env_id: str) -> None:
    """Import the module that registers an environment.

    For an id `module:EnvId` this is `module`, which may also be a file in the working folder.

    For an id `Namespace/EnvId` that is not registered, entry points of installed packages are called: those with the
    name `Namespace` in the group `gymnasium.envs`. Gymnasium before 1.0 did the same.

    Raises:
        ParamsError: the id is malformed, or the module does not exist.
    """
    if ":" not in env_id:
        namespace, slash, _ = env_id.partition("/")
        if slash and env_id not in gymnasium.registry:
            for found in entry_points(group="gymnasium.envs", name=namespace):
                found.load()()
        return
    module, _, name = env_id.partition(":")
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", module) or not name or ":" in name:
        raise ParamsError(f"env.id: {env_id!r} is not of the form 'module:EnvId'")
    try:
        import_module(module, "env.id")
    except ParamsError as error:
        cause = error.__cause__
        extra = _EXTRAS.get(cause.name or "") if isinstance(cause, ModuleNotFoundError) else None
        if extra is None:
            raise
        install = f"pip install 'evopipe[{extra}]'"
        raise ParamsError(f"env.id: {env_id!r} needs a package that is not installed: {install}") from cause


def extra_of(env_id: str) -> str | None:
    """Return the extra of evopipe that installs an environment's package: `box2d` for LunarLander. None if there is
    none, or if the environment needs no package of its own."""
    if OF_PETTINGZOO.fullmatch(env_id):
        return "teams"
    spec = gymnasium.registry.get(env_id.rpartition(":")[2])
    made_by = spec.entry_point if spec is not None and isinstance(spec.entry_point, str) else ""
    return next((extra for begin, extra in _EXTRAS.items() if made_by.startswith(begin)), None)


def suggested(env_id: str) -> str:
    """Return the end of an error message about an unknown id: a similar id, the package to install, or where to
    look."""
    module, colon, name = env_id.rpartition(":")
    known = [*gymnasium.registry]
    if colon:
        known += [key for key, value in vars(sys.modules[module]).items() if callable(value)]
    elif OF_PETTINGZOO.fullmatch(env_id):
        if importlib.util.find_spec("pettingzoo") is None:
            return "; teams need PettingZoo, which is not installed: pip install 'evopipe[teams]'"
        pettingzoo = importlib.import_module("pettingzoo")
        known += [*pettingzoo.parallel_registry, *pettingzoo.aec_registry]
        homes = [spec for home in HOMES if (spec := importlib.util.find_spec(home)) is not None]
        paths = [path for spec in homes for path in spec.submodule_search_locations or ()]
        known += [found.name for found in pkgutil.iter_modules(paths) if OF_PETTINGZOO.fullmatch(found.name)]
    near = did_you_mean(name, known)
    if near and colon:
        near = near.replace("mean '", f"mean '{module}:")
    bare = name.startswith(_BY_ENTRY_POINT)
    package = next((names for begin, names in _PACKAGES.items() if name.startswith(begin)), None)
    if package is not None and (bare or not colon):
        module, pip = package
        meant = name if bare else f"{module}:{name}"
        there = importlib.util.find_spec(module) is not None
        install = f"pip install 'evopipe[{_EXTRAS[module]}]'" if module in _EXTRAS else f"pip install {pip}"
        return f", did you mean {meant!r}?" if there else f"; it is of the package {pip}: `{install}`, then {meant!r}"
    return near or "; `gymnasium.pprint_registry()` lists the known ones, `module:EnvId` names one's own"
