"""`python -m evopipe.compat.agilerl FILE`: train as one of AgileRL's YAML files says."""

from __future__ import annotations

import argparse
import sys

from evopipe.errors import EvopipeError
from evopipe.formats import score


def main(arguments: list[str] | None = None) -> int:
    """Train, print every generation's best fitness; return the exit code, see `evopipe.errors`."""
    parser = argparse.ArgumentParser("python -m evopipe.compat.agilerl", description=__doc__)
    parser.add_argument("file", help="a YAML file of AgileRL's: INIT_HP …, or a manifest")
    parser.add_argument("--max-steps", type=int, help="environment steps of each agent")
    parser.add_argument("--evo-steps", type=int, help="environment steps of each agent between evolutions")
    parser.add_argument("--elite", metavar="FOLDER", help="where the best agent is written, as `evopipe.load` reads it")
    given = parser.parse_args(arguments)
    more = {"max_steps": given.max_steps, "evo_steps": given.evo_steps}
    more |= {} if given.elite is None else {"save_elite": True, "elite_path": given.elite}
    try:
        from evopipe.compat.agilerl.configs import train_from_config

        _, fitnesses = train_from_config(given.file, **{key: value for key, value in more.items() if value is not None})
    except EvopipeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    for generation, each in enumerate(fitnesses, 1):
        print(f"generation {generation}: best fitness {score(max(each))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
