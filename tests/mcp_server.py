"""An MCP server for tests, over standard input and output: it adds, fails, hangs and dies."""

from __future__ import annotations

import os
import time

from mcp.server.fastmcp import FastMCP

app = FastMCP("sums")


@app.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@app.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("no sum")


@app.tool()
def die() -> str:
    """Die."""
    os._exit(3)


@app.tool()
def hang() -> str:
    """Hang."""
    time.sleep(600)
    return ""


@app.tool()
def who() -> int:
    """Say which process this is."""
    return os.getpid()


if __name__ == "__main__":
    app.run()
