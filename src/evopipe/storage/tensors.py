"""Tensors in the safetensors format, and arrays in NumPy's.

Neither format has a checksum: publish such files in a folder (`storage/folders.py`).

torch is not imported before a tensor is dumped or loaded.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from evopipe.errors import DataError
from evopipe.storage.files import RESTORE

if TYPE_CHECKING:
    import torch

# Only types whose bytes are the same on every machine we support.
_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
}  # fmt: skip

_NOTE = "note"  # the one key of the header's metadata


def dump_tensors(tensors: Mapping[str, torch.Tensor], note: str | None = None) -> bytes:
    """Return tensors as bytes in the safetensors format, with the text `note` in the header, if given. Equal tensors
    give equal bytes."""
    return b"".join(tensor_pieces(tensors, note))


def tensor_pieces(tensors: Mapping[str, torch.Tensor], note: str | None = None) -> list[bytes | memoryview]:
    """Return tensors of any shapes and devices in the safetensors format, as a list of byte strings to be concatenated.

    `note` is a text that the header stores and `note_of` returns; None for no text.

    The byte strings are views of the memory of contiguous CPU tensors, so write them before the tensors change. Views
    avoid the copy of all bytes that safetensors' own writer makes.

    Raises:
        DataError: the format cannot store a tensor's layout or type.
    """
    header: dict[str, Any] = {} if note is None else {"__metadata__": {_NOTE: note}}
    pieces: list[bytes | memoryview] = []
    end = 0
    # Widest elements first keeps every tensor aligned; the name settles the rest.
    for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)):
        dtype, piece = _piece(name, tensors[name])
        start, end = end, end + piece.nbytes
        header[name] = {"dtype": dtype, "shape": list(tensors[name].shape), "data_offsets": [start, end]}
        pieces.append(piece)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [struct.pack("<Q", len(text)) + text, *pieces]


def _piece(name: str, tensor: torch.Tensor) -> tuple[str, memoryview]:
    import torch

    dtype = _DTYPES.get(str(tensor.dtype).removeprefix("torch."))
    if name == "__metadata__":
        raise DataError("tensor '__metadata__': the name is reserved by the safetensors format: choose another")
    if dtype is None or tensor.layout is not torch.strided:
        raise DataError(
            f"tensor {name!r}: {tensor.dtype} with layout {tensor.layout} cannot be saved: make it dense and real first"
        )
    if tensor.numel() == 0:  # has no stride to view as bytes
        return dtype, memoryview(b"")
    return dtype, tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def load_tensors(data: bytes, where: str = "tensors") -> dict[str, torch.Tensor]:
    """Return the tensors in safetensors bytes by name, on the CPU, each with its own writable memory.

    Raises:
        DataError: the bytes have another format; the message begins with `where`.
    """
    import safetensors
    import safetensors.torch

    try:
        tensors = safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError, AssertionError) as error:
        raise DataError(f"{where}: is not a valid safetensors file ({error}): {RESTORE}") from error
    return dict(sorted(tensors.items()))


def note_of(data: bytes, where: str) -> str:
    """Return the text that `tensor_pieces` stored as `note` in the header of safetensors bytes.

    Raises:
        DataError: the header has no such text; the message begins with `where`.
    """
    try:
        (length,) = struct.unpack_from("<Q", data)
        return str(json.loads(data[8 : 8 + length])["__metadata__"][_NOTE])
    except (struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{where}: its header does not say what its tensors are: {RESTORE}") from error


def dump_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return NumPy arrays as bytes in the `.npz` format. Equal arrays give equal bytes, because no time is written.

    Raises:
        DataError: an array holds Python objects, which would need pickle.
    """
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in sorted(arrays):
            piece = io.BytesIO()
            try:
                np.lib.format.write_array(piece, np.asarray(arrays[name]), allow_pickle=False)
            except ValueError as error:
                raise DataError(f"array {name!r}: cannot be saved ({error}): give it a type of numbers") from error
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), piece.getvalue())
    return stream.getvalue()
