"""What algorithms that learn to play games of tokens have in common: hyper-parameters."""

from __future__ import annotations

from typing import Annotated, Literal

from evopipe.schema.declare import hyper

GamesAnUpdate = Annotated[int, hyper(doc="games in a minibatch", raising="steadier gradients, slower updates", ge=1,
    le=1 << 20)]  # fmt: skip
Decoding = Annotated[Literal["sample", "greedy", "beam"], hyper(
    doc="decoding of a turn: `sample` (draws tokens), `greedy` (likeliest tokens), `beam` (beam search)")]  # fmt: skip
WritesAt = Annotated[float, hyper(doc="temperature at which tokens are drawn", raising="plays more at random",
    evolvable=True, gt=0, le=100)]  # fmt: skip
Beams = Annotated[int, hyper(doc="number of beams (partial turns) of `decode: beam`",
    raising="likelier turns, slower", ge=1, le=1 << 10)]  # fmt: skip
