"""Policies as ONNX programs, which run wherever an ONNX runtime does."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from evopipe.errors import UsageError, need_package
from evopipe.policies.loading import load
from evopipe.storage.files import write_bytes

INPUTS = ("observation", "memory")


def write(source: str | Path, folder: Path, trust: bool = False) -> list[Path]:
    """Convert an exported policy to ONNX programs: `policy.onnx`, or for each agent of a team `policy.NAME.onnx`.

    A program takes float32 observations `[B, O]`, in the flat rows that `policy.pt2` takes, and normalises them itself.
    The program returns the greedy actions as the environment takes them. The program of a recurrent policy also takes
    the recurrent state, memory `[B, M]`, zeros at first, and returns the next one.

    Args:
        source: the folder of an exported policy.
        folder: the folder to write to, which is made if necessary; programs of the same names are replaced.
        trust: whether to import the module of a user-defined network, if the folder names one. An import runs the
            module's code.

    Returns:
        The paths of the programs.

    Raises:
        MissingInputError: the policy is not there, or the packages onnx and onnxscript are not installed.
        UsageError: the policy is a language model's, or its network has an operator that ONNX lacks.
        DataError: the policy's folder is damaged.
        DiskError: a program cannot be written.
    """
    for package in ("onnx", "onnxscript"):
        need_package(package, "onnx", "an ONNX program")
    policy: Any = load(source, trust=trust)
    modules = getattr(policy, "modules", None)
    if modules is None:
        raise UsageError(f"{source} is a language model: only policies of environments become ONNX programs")
    files = {
        folder / Path(file).with_suffix(".onnx"): _program(module.eval(), observations, policy.memory)
        for file, (module, observations) in modules().items()
    }
    for path, data in files.items():
        write_bytes(path, data)
    return [*files]


def _program(module: torch.nn.Module, observations: int, memory: int) -> bytes:
    inputs = [torch.zeros(2, observations), *([torch.zeros(2, memory)] if memory else [])]
    batch = {0: torch.export.Dim("batch")}
    with _quiet():
        try:
            program = torch.onnx.export(
                module, tuple(inputs), dynamo=True, dynamic_shapes=(*[batch] * len(inputs),), verbose=False,
                input_names=INPUTS[: len(inputs)],
            )  # fmt: skip
        except torch.onnx.errors.OnnxExporterError as error:
            told = str(error).strip().splitlines()[0]
            raise UsageError(f"the policy cannot be an ONNX program: {told:.200}") from error
    assert program is not None
    for output, name in zip(
        program.model.graph.outputs, ("action", "memory_after" if memory else "values"), strict=False
    ):
        output.name = name
    found: bytes = program.model_proto.SerializeToString()
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep PyTorch's exporter from telling of its own deprecations, and of torchvision, which no policy needs."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
