"""A store, as an MCP server over standard input and output: `python store.py`.

It remembers nothing of one call in the next, so that calls of all episodes may share a process.
"""

from __future__ import annotations

import random
from itertools import product

SHELVES = [f"{letter}{digit}" for letter in "vwxyz" for digit in range(10)]
ITEMS = ["".join(pair) for pair in product("abcdefghijklmnopqrstu", repeat=2)]
_chance = random.Random(7)
_SHELF = {item: _chance.choice(SHELVES) for item in ITEMS}
_COUNT = {shelf: str(count) for shelf, count in zip(SHELVES, _chance.sample(range(10, 100), len(SHELVES)), strict=True)}


def find(item: str) -> str:
    """Say on which shelf an item lies.

    Args:
        item: its name, of two letters.
    """
    return _SHELF.get(item, "-")


def count(shelf: str) -> str:
    """Count what lies on a shelf.

    Args:
        shelf: its name, a letter and a digit.
    """
    return _COUNT.get(shelf, "-")


if __name__ == "__main__":
    from mcp.server.fastmcp import FastMCP

    app = FastMCP("store", log_level="ERROR")
    app.add_tool(find)
    app.add_tool(count)
    app.run()
