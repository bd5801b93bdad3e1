"""Python reads of `kernels.h` what C does."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import torch

from evopipe.native import build, header

TEXT = header.ENVIRONMENT.read_text() + header.HEADER.read_text()
NAMES = re.findall(r"^} (\w+);", TEXT, re.MULTILINE)


def test_a_struct_has_every_field_where_c_has_it(tmp_path: Path) -> None:
    """A compiler is asked for the size of each struct and the offset of each of its fields."""
    compiler = shutil.which("gcc") or pytest.skip("no gcc is installed here")
    ffi, said = header.declarations(), []
    for name in NAMES:
        fields = [field for field, _ in ffi.typeof(name).fields]
        parts = [f"sizeof({name})", *(f"offsetof({name}, {field})" for field in fields)]
        said.append(f'printf("{name}{" %zu" * len(parts)}\\n", {", ".join(parts)});')
    source, program = tmp_path / "says.c", tmp_path / "says"
    includes = "\n".join(f"#include <{name}.h>" for name in ("stddef", "stdint", "stdio"))
    source.write_text(f'{includes}\n#include "kernels.h"\nint main(void) {{ {" ".join(said)} }}\n')
    subprocess.run([compiler, f"-I{header.HEADER.parent}", "-o", str(program), str(source)], check=True)
    told = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.splitlines()
    assert len(told) == len(NAMES) > 15
    for line in told:
        name, size, *offsets = line.split()
        kind = ffi.typeof(name)
        assert [int(size), *map(int, offsets)] == [ffi.sizeof(kind), *(field.offset for _, field in kind.fields)], name
        assert header.of(name).size == int(size)


def test_what_is_packed_is_what_c_reads() -> None:
    found = header.of("importance_call").pointer(
        header.of("importance_call").packed(members=3, n=-7, filled=1 << 40, beta=0.5)
    )
    assert (found.members, found.n, found.beta, found.chance) == (3, -7, 0.5, header.declarations().NULL)
    assert int(header.declarations().cast("intptr_t", found.filled)) == 1 << 40
    assert header.at(None) == 0


def test_a_field_that_the_header_has_not_is_refused() -> None:
    with pytest.raises(TypeError, match="no field 'lr'"):
        header.of("importance_call").packed(lr=1)
    with pytest.raises(struct.error):
        header.of("draw_call")(1, 2, 3)


def test_every_function_of_the_header_is_in_the_library() -> None:
    kernels = build.load()
    assert len(dir(kernels)) > 20
    assert all(callable(getattr(kernels, name)) for name in dir(kernels))
    drawn = torch.empty(1, 3, dtype=torch.float64)
    key, step = torch.tensor([5]), torch.tensor([1])
    kernels.uniform(header.of("draw_call")(1, 1, 3, key.data_ptr(), 9, step.data_ptr(), drawn.data_ptr()))
    assert ((drawn >= 0) & (drawn < 1)).all()
