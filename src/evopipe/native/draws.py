"""Counter-based random numbers by the native kernels; `evopipe.rng` has the same in NumPy and torch."""

from __future__ import annotations

from typing import Any

from evopipe.native import header
from evopipe.types import Tensor


def kernel(kernels: Any) -> Any:
    """Return a function that draws random numbers by the C kernels. Pass it to `rng.use`.

    The returned function takes (name, keys, salt, steps, found) and returns nothing. It fills `found` `[P, U, n]` with
    n numbers for each of the random keys `keys` `[P]` and each of the counters `steps` `[U]`. `name` is the C function,
    which determines the distribution of the numbers. `salt` is a number that separates draws for different purposes.
    """
    call = header.of("draw_call")

    def draw(name: str, keys: Tensor, salt: int, steps: Tensor, found: Tensor) -> None:
        numbers = keys.shape[0], steps.shape[0], found.shape[-1]
        if getattr(kernels, name)(call(*numbers, keys.data_ptr(), salt, steps.data_ptr(), found.data_ptr())):
            raise MemoryError("the kernels need more for ordering draws than there is")

    return draw
