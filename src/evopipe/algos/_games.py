"""What algorithms that learn to play games of tokens have in common: hyper-parameters."""

from __future__ import annotations

from typing import Annotated, Literal

from evopipe.schema.declare import hyper

GamesAnUpdate = Annotated[int, hyper(doc="games an update", raising="steadier gradients, slower updates", ge=1,
    le=1 << 20)]  # fmt: skip
Decoding = Annotated[Literal["sample", "greedy", "beam"], hyper(
    doc="how a turn is written: its tokens drawn, each the likeliest, or the likeliest turn of some")]  # fmt: skip
WritesAt = Annotated[float, hyper(doc="what logits are divided by where tokens are drawn", raising="plays at random",
    evolvable=True, gt=0, le=100)]  # fmt: skip
Beams = Annotated[int, hyper(doc="likeliest beginnings of a turn that `decode: beam` keeps",
    raising="likelier turns, slower", ge=1, le=1 << 10)]  # fmt: skip
