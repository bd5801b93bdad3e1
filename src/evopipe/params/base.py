"""The base class for the content of every `params.yaml`, and the validation of the blocks of algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from evopipe import algos as registry
from evopipe import plugins, searchers
from evopipe.errors import suggestion
from evopipe.params.search import SearchConfig
from evopipe.schema.declare import COMPLETE, Problem, Schema, evolvable, explain, located
from evopipe.schema.runtime import NEUTRAL


class RunParams(Schema):
    """The base class of `Params` (members in environments) and `LanguageParams` (language models).

    These classes hold the content of a `params.yaml`.

    Attributes:
        PROBLEM: the kind of members, which is also the name of a module in `problems`, such as `env`.
        ELSEWHERE: the middle of an error message. A user gets this message for an algorithm that trains the other
            kind of members. Before this text stands the name of that algorithm, after it the names of those that can
            be used.
    """

    PROBLEM: ClassVar[str]  # one of `algos.PROBLEMS`
    ELSEWHERE: ClassVar[str]  # what to say of an algorithm of another one

    seed: int = Field(1, ge=0, le=2**31 - 1, description="seed of all random numbers")

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
        """Return the names of the algorithms that can train this class's kind of members (the attribute `PROBLEM`)."""
        return registry.names(cls.PROBLEM)

    @classmethod
    def part(cls, stage: str = "") -> str:
        """Return the name of the module in `problems` for this kind of members, such as `env`.

        With the name of a `stage`, the result is the module for that stage alone, such as `env_export`.
        """
        return f"{cls.PROBLEM}_{stage}" if stage else cls.PROBLEM

    @classmethod
    def refused(cls, algo: str) -> str | None:
        """Return a sentence that says why `train.algo` cannot have the value `algo`; None if it can."""
        if algo in cls.known():
            return registry.refused(algo)
        if algo in registry.names(None):
            return f"{algo} {cls.ELSEWHERE}{', '.join(cls.known())}"
        return f"unknown algorithm {algo!r}{suggestion(algo, cls.known())}"

    @classmethod
    def parse_blocks(
        cls, blocks: Mapping[str, Any], info: ValidationInfo, problems_of: Callable[[str, Any, bool], Iterable[Problem]]
    ) -> dict[str, Any]:
        """Validate the blocks of `algos`; return them by name as `Config` objects, including that of the chosen
        algorithm.

        Args:
            blocks: the blocks as plain data, by the algorithm's name.
            info: pydantic's information about the validation, with the parameters that were validated before.
            problems_of: a function (name, block, chosen) that returns the further mistakes in a block that fits its
                schema, as (key, sentence) pairs. `chosen` is True for the block of the algorithm `train.algo`.

        Raises:
            ValidationError: a block cannot be used, or the block of the chosen algorithm is missing in a file that must
                be complete.
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
        """The block of the algorithm that `train.algo` names, an object of that algorithm's class `Config`."""
        own: Any = self
        return own.algos[own.train.algo]

    def tracked(self, *blocks: str) -> dict[str, Any]:
        """Return, as JSON data, the parameters on which results depend.

        These are the named `blocks`, or all blocks if none is named, and the chosen algorithm's block under the key
        `algo`. Settings that change no result, such as time limits, callbacks and trackers, are left out.
        """
        neutral = {"env": {"step_seconds"}, "train": {"callbacks"}, "runtime": set(NEUTRAL)}
        values = self.model_dump(mode="json", exclude={"algos": True, "tracking": True, **neutral})
        kept = {name: values[name] for name in blocks or values}
        return {**kept, "algo": self.algo_config.model_dump(mode="json")}

    @property
    def network(self) -> str | None:
        """The name of the user's own network, as `module:name`; None if members use evopipe's networks."""
        return None

    @property
    def films(self) -> bool:
        """Whether the report contains a film of the elite playing."""
        return False

    @property
    def needs_dataset(self) -> bool:
        """Whether training reads the outputs of the stages `fetch` and `buffer`."""
        return True

    def points(self) -> list[plugins.Plugin | None]:
        """Return the entry points of other packages that the run uses: algorithm, mutations, search strategy.

        An element is None for a part that belongs to evopipe itself.
        """
        own: Any = self
        key, chances = "evolution.mutation.probabilities", own.evolution.mutation.probabilities.model_extra or {}
        kinds = [plugins.find(plugins.MUTATIONS, kind, key) for kind, weight in chances.items() if weight]
        return [registry.plugin(own.train.algo), *kinds, searchers.plugin(own.search.strategy)]

    def outside(self) -> tuple[list[str], list[Path]]:
        """Return the code outside evopipe on which results depend: a list of texts and a list of source files, both for
        `storage.keys.content_key`.

        The list of texts has one text for each entry point, which also tells the version of its package, and then the
        names of all source files. Trackers are left out, because they change no result.
        """
        points = [point for point in self.points() if point is not None]
        own: Any = self
        users = filter(None, (self.network, getattr(own.train, "curriculum", None)))
        modules = [point.module for point in points] + [name.partition(":")[0] for name in users]
        named, files = plugins.sources(modules)
        return [f"{point} {point.version}" for point in points] + named, files


def evolve_problems(config: Any) -> Iterator[Problem]:
    """Yield a (key, sentence) pair for each mistake in the block `evolve` of an algorithm's configuration.

    A mistake is a hyper-parameter that cannot evolve, or the end of a range that is outside the hyper-parameter's
    bounds.
    """
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
