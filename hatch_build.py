"""The build of wheels: with EVOPIPE_PREBUILT=1 a wheel has portable kernels for this platform, beside their sources."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the kernels for `EVOPIPE_PREBUILT=1`; otherwise the wheel is for every platform, and has none."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if os.environ.get("EVOPIPE_PREBUILT") != "1" or version == "editable":
            return
        sources = _sources(Path(self.root))
        library = sources.prebuilt()
        self._folder = tempfile.TemporaryDirectory(prefix="evopipe-wheel-")
        made = Path(self._folder.name) / library.name
        compiler = shlex.split(os.environ.get("CC", "cc"))
        flags = (*sources.FLAGS, *sources.TARGETS["portable"])
        subprocess.run([*compiler, *flags, "-o", str(made), str(sources.MAIN), "-lm"], check=True)
        digest = made.with_suffix(".sha256")
        digest.write_text(hashlib.sha256(made.read_bytes()).hexdigest())
        for file in (made, digest):
            build_data["force_include"][str(file)] = f"evopipe/native/prebuilt/{file.name}"
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"  # a library of C alone, which every Python 3 loads

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _sources(root: Path) -> Any:
    """Return the module that says what the kernels are compiled of, without importing the package."""
    spec = importlib.util.spec_from_file_location("sources", root / "src/evopipe/native/sources.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
