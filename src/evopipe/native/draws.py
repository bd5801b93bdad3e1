"""Draws by counter by the native kernels, for `evopipe.rng`, which has the same in NumPy and torch."""

from __future__ import annotations

from typing import Any

from evopipe.native import header
from evopipe.types import Tensor


def kernel(kernels: Any) -> Any:
    """Return what `rng.use` asks for."""
    call = header.of("draw_call")

    def draw(name: str, keys: Tensor, salt: int, steps: Tensor, found: Tensor) -> None:
        getattr(kernels, name)(
            call(
                keys.shape[0],
                steps.shape[0],
                found.shape[-1],
                keys.data_ptr(),
                salt,
                steps.data_ptr(),
                found.data_ptr(),
            )
        )

    return draw
