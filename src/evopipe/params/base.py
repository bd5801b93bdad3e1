"""What every `params.yaml` has in common, and how it reads the blocks of algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from evopipe import algos as registry
from evopipe import plugins, searchers
from evopipe.errors import suggestion
from evopipe.params.search import SearchConfig
from evopipe.schema.blocks import NEUTRAL
from evopipe.schema.declare import COMPLETE, Problem, Schema, evolvable, explain, located


class RunParams(Schema):
    """What every `params.yaml` has, for members in environments and for language models."""

    PROBLEM: ClassVar[str]  # one of `algos.PROBLEMS`
    ELSEWHERE: ClassVar[str]  # what to say of an algorithm of another one

    seed: int = Field(1, ge=0, le=2**31 - 1, description="seed of everything random")

    @field_validator("search", check_fields=False)
    @classmethod
    def _search_fits(cls, search: SearchConfig, info: ValidationInfo) -> SearchConfig:
        about = info.data
        if {"train", "population", "evolution"} <= about.keys():
            size, tournament = about["population"].size, about["evolution"].tournament
            if problems := list(search.problems(about["train"], size, tournament)):
                raise located(problems)
        return search

    @classmethod
    def known(cls) -> tuple[str, ...]:
        """Return the names of the algorithms that serve this kind of members."""
        return registry.names(cls.PROBLEM)

    @classmethod
    def part(cls, stage: str = "") -> str:
        """Return the name of the module of `problems` that serves this kind of members, or of its part for a stage."""
        return f"{cls.PROBLEM}_{stage}" if stage else cls.PROBLEM

    @classmethod
    def refused(cls, algo: str) -> str | None:
        """Return why `train.algo` cannot be this, as a sentence; None if it can."""
        if algo in cls.known():
            return registry.refused(algo)
        if algo in registry.names(None):
            return f"{algo} {cls.ELSEWHERE}{', '.join(cls.known())}"
        return f"unknown algorithm {algo!r}{suggestion(algo, cls.known())}"

    @classmethod
    def parse_blocks(
        cls, blocks: Mapping[str, Any], info: ValidationInfo, problems_of: Callable[[str, Any, bool], Iterable[Problem]]
    ) -> dict[str, Any]:
        """Return the blocks of `algos` as their `Config`s, including that of the chosen algorithm.

        `problems_of(name, block, chosen)` returns what is wrong with a block beyond its own schema.

        Raises:
            ValidationError: a block cannot be used, or the chosen one is missing in a file that must be complete.
        """
        chosen = info.data["train"].algo if "train" in info.data else None
        parsed: dict[str, Any] = {}
        problems: list[Problem] = []
        for name, block in blocks.items():
            if name not in (known := cls.known()):
                problems.append(((name,), f"unknown key{suggestion(name, known)}"))
                continue
            if (refused := registry.refused(name)) is not None:
                if chosen is not None:  # else `train` says so
                    problems.append(((name,), refused))
                continue
            schema = registry.get(name).Config
            try:
                parsed[name] = schema.model_validate(block, context=info.context if name == chosen else None)
                found = list(problems_of(name, parsed[name], name == chosen))
            except ValidationError as error:
                found = explain(error, schema, block)
            problems += [((name, *path), sentence) for path, sentence in found]
        if chosen in parsed and "search" in info.data and not parsed[chosen].evolve:
            strategy = info.data["search"].strategy
            if searchers.get(strategy).DRAWS:
                nothing = f"search.strategy {strategy} draws values from these ranges, and there are none"
                problems.append(((chosen, "evolve"), f"{nothing}: give at least one hyper-parameter a range"))
        if chosen is not None and chosen not in blocks:
            parsed[chosen] = registry.get(chosen).Config()
            problems += [((chosen, *path), sentence) for path, sentence in problems_of(chosen, parsed[chosen], True)]
            if info.context == COMPLETE:
                sentence = f"missing block: put what `evopipe params block {chosen}` prints below `algos:`"
                problems.append(((chosen,), sentence))
        if problems:
            raise located(problems)
        return parsed

    @property
    def algo_config(self) -> Any:
        """The chosen algorithm's `Config`."""
        own: Any = self
        return own.algos[own.train.algo]

    def tracked(self, *blocks: str) -> dict[str, Any]:
        """Return the parameters that results depend on as JSON data: the chosen algorithm's block as `algo`, and the
        named `blocks`, or all blocks if none is named."""
        neutral = {"env": {"step_seconds"}, "runtime": set(NEUTRAL)}
        values = self.model_dump(mode="json", exclude={"algos": True, "tracking": True, **neutral})
        kept = {name: values[name] for name in blocks or values}
        return {**kept, "algo": self.algo_config.model_dump(mode="json")}

    @property
    def network(self) -> str | None:
        """The user's own network, `module:name`; None where members are made of evopipe's."""
        return None

    @property
    def films(self) -> bool:
        """Whether the report shows films of the elite at play."""
        return False

    @property
    def needs_dataset(self) -> bool:
        """Whether training reads what `fetch` and `buffer` write."""
        return True

    def points(self) -> list[plugins.Plugin | None]:
        """Return the entry points of other packages that the run uses; None stands for a part that is evopipe's own."""
        own: Any = self
        key, chances = "evolution.mutation.probabilities", own.evolution.mutation.probabilities.model_extra or {}
        kinds = [plugins.find(plugins.MUTATIONS, kind, key) for kind, weight in chances.items() if weight]
        return [registry.plugin(own.train.algo), *kinds, searchers.plugin(own.search.strategy)]

    def outside(self) -> tuple[list[str], list[Path]]:
        """Return what results depend on in other packages, for `storage.keys.content_key`: texts and files.

        The texts are the entry points with their packages' versions, then the names of all source files. The files are
        these source files. Trackers are left out, because they change no result.
        """
        points = [point for point in self.points() if point is not None]
        network = self.network
        modules = [point.module for point in points] + ([network.partition(":")[0]] if network else [])
        named, files = plugins.sources(modules)
        return [f"{point} {point.version}" for point in points] + named, files


def evolve_problems(config: Any) -> Iterator[Problem]:
    """Yield what is wrong with a block's `evolve`: hyper-parameters that cannot evolve, and ends of ranges that are out
    of bounds."""
    able = evolvable(type(config))
    for hyper in config.evolve:
        if hyper in able:
            yield from _out_of_bounds(config, hyper)
        else:
            yield ("evolve", hyper), f"no hyper-parameter of that name can evolve{suggestion(hyper, able)}"


def _out_of_bounds(config: Any, name: str) -> Iterator[Problem]:
    """Tell ends of a hyper-parameter's range that it could not be set to by hand."""
    whole = type(config).model_fields[name].annotation is int
    for end in ("min", "max"):
        value = getattr(config.evolve[name], end)
        if whole and not value.is_integer():
            yield ("evolve", name, end), f"{name} is a whole number, got {value}"
            continue
        try:
            type(config).model_validate({**dict(config), name: int(value) if whole else value})
        except ValidationError as error:
            yield ("evolve", name, end), f"{name} cannot be {value:g}: {error.errors()[0]['msg']}"
