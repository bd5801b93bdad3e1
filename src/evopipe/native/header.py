"""Reads `kernels.h` and `environment.h`, the headers that C and Python share, with cffi, and packs their structs.

A struct is packed in one call: setting one field at a time costs as much as a short kernel.
"""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import Any

from evopipe.types import Tensor

HEADER, ENVIRONMENT = (Path(__file__).with_name(name) for name in ("kernels.h", "environment.h"))


@cache
def declarations() -> Any:
    """Return the declarations of the C headers `kernels.h` and `environment.h` as a `cffi.FFI`."""
    import cffi  # commands that compute nothing do not read it

    found = cffi.FFI()
    lines = (path.read_text(encoding="utf-8") for path in (ENVIRONMENT, HEADER))
    found.cdef("\n".join(line for text in lines for line in text.splitlines() if not line.startswith("#")))
    return found


@cache
def own_declarations() -> Any:
    """Return the C declarations that are needed to load a user's compiled environment, as a `cffi.FFI`.

    These are the declarations in the C headers, and that of `the_environment`: the struct which every file of a user
    defines.
    """
    found = type(declarations())()
    found.include(declarations())
    found.cdef("extern environment the_environment;")  # of a constant, cffi would not tell where it lies
    return found


def at(tensor: Tensor | None) -> int:
    """Return the memory address of a tensor's data. For None it is 0, which C reads as NULL."""
    return 0 if tensor is None else tensor.data_ptr()


def address(pointer: Any) -> int:
    """Return the memory address of the C struct at `pointer` as a number, which is valid only as long as `pointer`
    exists."""
    return int(declarations().cast("intptr_t", pointer))


class Struct:
    """The packer of one struct type of the headers, which converts field values to bytes and to pointers.

    `name` is the struct's name in the headers.

    Pointer fields take addresses, and nested structs take bytes that `packed` returned. The caller must keep alive what
    the pointer fields refer to.
    """

    def __init__(self, name: str) -> None:
        ffi = declarations()
        kind = ffi.typeof(name)
        self.fields = tuple(field for field, _ in kind.fields)
        parts, end = ["="], 0
        for _, field in kind.fields:
            parts += [f"{field.offset - end}x", _letter(ffi, field.type)]
            end = field.offset + ffi.sizeof(field.type)
        self._nothing = [b"" if part.endswith("s") else 0 for part in parts[2::2]]
        self._packer = struct.Struct("".join([*parts, f"{ffi.sizeof(kind) - end}x"]))
        self.pack, self.size = self._packer.pack, self._packer.size
        self._pointer, self._point = ffi.typeof(f"{name} *"), ffi.from_buffer

    def __call__(self, *values: Any) -> Any:
        """Return a pointer to one with these values, in the header's order; it holds what it points to."""
        return self._point(self._pointer, self.pack(*values))

    def packed(self, **values: Any) -> bytes:
        """Return the bytes of a struct with these field values. Fields that are not named are 0."""
        if unknown := values.keys() - set(self.fields):
            raise TypeError(f"the header has no field {sorted(unknown)[0]!r} there")
        return self.pack(*map(values.get, self.fields, self._nothing))

    def changed(self, packed: bytes, **values: Any) -> bytes:
        """Return a copy of a packed struct in which the fields named in `values` have new values.

        The other fields keep their values. The argument `packed` holds the bytes of the struct, as a call of the method
        `packed` returned them.
        """
        named = dict(zip(self.fields, self._packer.unpack(packed), strict=True))
        assert values.keys() <= named.keys()
        return self.pack(*(named | values).values())

    def pointer(self, packed: bytes) -> Any:
        """Return a pointer to a struct with the bytes `packed`, which the method `packed` returned. The pointer keeps
        the bytes alive."""
        return self._point(self._pointer, packed)


def _letter(ffi: Any, kind: Any) -> str:
    """How `struct` writes a type."""
    size = ffi.sizeof(kind)
    if kind.kind in ("struct", "array"):
        return f"{size}s"
    if kind.kind == "pointer":
        return {4: "I", 8: "Q"}[size]
    return {"float": "f", "double": "d"}.get(kind.cname) or {4: "i", 8: "q"}[size]


@cache
def of(name: str) -> Struct:
    """Return the `Struct` for the C struct `name` of the headers, which packs values into the bytes of such structs."""
    return Struct(name)
