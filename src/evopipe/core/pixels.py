"""Images of bytes: a byte b represents the float32 number b / 255 of an observation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

_ROWS = 256  # looked at at once


def nearest(x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Return the byte b for which b / 255 is nearest to each number in [0, 1]. The array x is overwritten."""
    np.clip(x, 0, 1, out=x)
    x *= np.float32(255)
    return np.rint(x, out=x).astype(np.uint8)


def numbers(pixels: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return the numbers b / 255 that bytes b represent, as float32."""
    found: npt.NDArray[np.float32] = np.divide(pixels, np.float32(255), dtype=np.float32)
    return found


def exact(x: npt.NDArray[Any]) -> npt.NDArray[np.uint8] | None:
    """Return the bytes b for which b / 255 equals each number of x, `[n, …]` float32; None if a number of x is not b /
    255 for any byte b."""
    found = np.empty(x.shape, np.uint8)
    for at in range(0, len(x), _ROWS):
        part = x[at : at + _ROWS]
        found[at : at + _ROWS] = nearest(part.copy())
        if numbers(found[at : at + _ROWS]).tobytes() != part.tobytes():
            return None
    return found
