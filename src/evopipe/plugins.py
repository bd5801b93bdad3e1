"""Entry points of other installed packages: algorithms, mutations, search strategies, trackers, environment backends,
kinds of agents' environments.

A package names them in its metadata, for example `[project.entry-points."evopipe.algos"]` with `mine = "mypkg.mine"`.
They are searched once in a process, when a name is asked for that could be one; none is imported before it is used. A
name that two packages offer, or that evopipe has itself, is refused with a message.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from evopipe.errors import ParamsError, said

ALGOS, MUTATIONS, TRACKERS, BACKENDS, SEARCHERS, ENVIRONMENTS = (
    f"evopipe.{kind}" for kind in ("algos", "mutations", "trackers", "backends", "searchers", "environments")
)
_VALUE = re.compile(r"(?P<module>[\w.]+)\s*(:\s*(?P<name>[\w.]+))?\s*")


@dataclass(frozen=True)
class Plugin:
    """One entry point of an installed package.

    Attributes:
        group: the entry point's group, such as `evopipe.searchers`.
        name: the entry point's name.
        value: the module or object that the entry point refers to, as `module` or `module:name`.
        package, version: the name and the version of the package.
    """

    group: str
    name: str
    value: str  # `module`, or `module:name`
    package: str
    version: str

    def __str__(self) -> str:
        return f"the package {self.package!r} (entry point {self.name!r} of {self.group!r}, {self.value})"

    @property
    def module(self) -> str:
        """The name of the module that the entry point refers to; empty if the entry point's value is malformed."""
        found = _VALUE.fullmatch(self.value)
        return found["module"] if found else ""

    def file(self) -> Path | None:
        """Return the path of the entry point's module without importing the module; None if no file is found.

        Parent packages of the module are imported.
        """
        return file_of(self.module)

    def load(self, key: str) -> Any:
        """Import and return the module or object that the entry point refers to.

        Raises:
            ParamsError: the import fails; the message names `key`, the package and the entry point.
        """
        found = _VALUE.fullmatch(self.value)
        if found is None:
            raise ParamsError(f"{key}: {self} names neither a module nor a module's name: mend its metadata")
        try:
            value: Any = importlib.import_module(found["module"])
            for step in (found["name"] or "").split("."):
                value = getattr(value, step) if step else value
        except (Exception, SystemExit) as error:
            raise ParamsError(f"{key}: {self} cannot be imported: {said(error)}; mend or uninstall it") from error
        return value


@cache
def _all() -> Mapping[str, Mapping[str, tuple[Plugin, ...]]]:
    """Return every entry point of evopipe's groups: group → name → those of this name, sorted by package. A package
    that is found twice on the path counts once, the first time."""
    listed: dict[str, dict[str, list[Plugin]]] = defaultdict(lambda: defaultdict(list))
    seen: set[str] = set()
    for folder in _named_by():
        from importlib.metadata import PathDistribution

        package = PathDistribution(folder)
        if package.name not in seen:
            seen.add(package.name)
            for point in package.entry_points:
                found = Plugin(point.group, point.name, point.value, package.name, package.version)
                listed[point.group][point.name].append(found)
    return {
        group: {name: tuple(sorted(each, key=lambda found: found.package)) for name, each in names.items()}
        for group, names in listed.items()
    }


def _named_by() -> Iterator[Path]:
    """Yield the metadata's folders of installed packages that name a group of evopipe's. `importlib.metadata` would
    read them all, which takes three times as long, and light commands are to answer at once."""
    for place in dict.fromkeys(sys.path):
        try:
            named = os.listdir(place or ".")
        except OSError:
            continue
        for name in named:
            if name.endswith((".dist-info", ".egg-info")):
                try:
                    with open(os.path.join(place, name, "entry_points.txt"), "rb") as stream:
                        if b"[evopipe." in stream.read():
                            yield Path(place, name)
                except OSError:
                    continue


def forget() -> None:
    """Clear the cached list of entry points, so that the next lookup also finds packages installed in the meantime."""
    _all.cache_clear()


def names(group: str, own: Collection[str] = ()) -> list[str]:
    """Return the sorted names of a group's entry points in installed packages, without the names in `own`.

    `own` are evopipe's built-in names of that group.
    """
    return sorted(name for name in _all().get(group, {}) if name not in own)


def offered(group: str, name: str) -> Plugin | None:
    """Return the entry point with this group and name; None if no package offers it.

    If several packages offer the name, the first of their entry points is returned."""
    return next(iter(_all().get(group, {}).get(name, ())), None)


def find(group: str, name: str, key: str, own: Collection[str] = ()) -> Plugin | None:
    """Return the entry point with this group and name; None if no package offers it.

    `own` are evopipe's built-in names of the group; `key` is the parameter that holds the name, for the message.

    Raises:
        ParamsError: two packages offer the name, or the name is one of `own`; the message says which packages.
    """
    found = _all().get(group, {}).get(name, ())
    if found and name in own:
        raise ParamsError(
            f"{key}: {name!r} is evopipe's own, and {found[0]} offers it too: rename or uninstall that one"
        )
    if len(found) > 1:
        first, second = found[:2]
        raise ParamsError(f"{key}: {name!r} is offered twice, by {first} and by {second}: uninstall one of the two")
    return found[0] if found else None


def file_of(module: str) -> Path | None:
    """Return the path of a module's file without importing the module; None if no file is found.

    Parent packages of the module are imported.
    """
    try:
        spec = importlib.util.find_spec(module) if module else None
    except (Exception, SystemExit):  # a package above it raised; who loads it is told
        return None
    return Path(spec.origin) if spec is not None and spec.origin and os.path.isfile(spec.origin) else None


def sources(modules: Iterable[str]) -> tuple[list[str], list[Path]]:
    """Return the Python files that modules of other packages may run, as two lists: the files' names and their paths.

    If a module is inside a package, it may import any file of the top-level package, so all these files are listed. If
    it is in no package, only its own file is listed. `modules` are the modules' names, such as `package.module`.
    """
    named: dict[str, Path] = {}
    for module in modules:
        top = file_of(module.partition(".")[0])
        if top is not None and top.name == "__init__.py":
            home = top.parent
            named |= {f"{home.name}/{file.relative_to(home).as_posix()}": file for file in sorted(home.rglob("*.py"))}
        elif (file := file_of(module)) is not None:  # of no package, or of one without a file: a namespace
            named[module] = file
    return [*named], [*named.values()]
