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
    """One entry point of an installed package."""

    group: str
    name: str
    value: str  # `module`, or `module:name`
    package: str
    version: str

    def __str__(self) -> str:
        return f"the package {self.package!r} (entry point {self.name!r} of {self.group!r}, {self.value})"

    @property
    def module(self) -> str:
        """The module that the entry point names."""
        found = _VALUE.fullmatch(self.value)
        return found["module"] if found else ""

    def file(self) -> Path | None:
        """Return the module's file without importing it, although packages above it are imported; None if there is
        none."""
        return file_of(self.module)

    def load(self, key: str) -> Any:
        """Import what the entry point names.

        Raises:
            ParamsError: that fails; the message names the key, the package and the entry point.
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
    """Discard the list of installed entry points, so that the next question finds a package that was installed
    since."""
    _all.cache_clear()


def names(group: str, own: Collection[str] = ()) -> list[str]:
    """Return the names that packages add to a group, sorted, without evopipe's `own`."""
    return sorted(name for name in _all().get(group, {}) if name not in own)


def offered(group: str, name: str) -> Plugin | None:
    """Return the entry point of this name; the first, if several packages offer it."""
    return next(iter(_all().get(group, {}).get(name, ())), None)


def find(group: str, name: str, key: str, own: Collection[str] = ()) -> Plugin | None:
    """Return the entry point of this name; None if there is none.

    Raises:
        ParamsError: two packages offer the name, or one offers a name that is evopipe's `own`; the message says which.
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
    """Return the file of a module without importing it, although packages above it are imported; None if there is
    none."""
    try:
        spec = importlib.util.find_spec(module) if module else None
    except (Exception, SystemExit):  # a package above it raised; who loads it is told
        return None
    return Path(spec.origin) if spec is not None and spec.origin and os.path.isfile(spec.origin) else None


def sources(modules: Iterable[str]) -> tuple[list[str], list[Path]]:
    """Return the names and paths of the Python files of other packages' modules.

    A package counts with all its files, because a module may use its neighbours; a module in no package is one file.
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
