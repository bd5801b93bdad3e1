"""What `evopipe verify --lock` says of a lock's kernels and of this machine."""

from __future__ import annotations

from typing import Any

import pytest

from evopipe.verify.bits import promise

HERE = {
    "python": "3.11.7", "torch": "2.13.0", "numpy": "2.4.6", "gymnasium": "1.4.0", "platform": "Linux-x86_64",
    "cpu": "AMD EPYC", "cpu_capability": "AVX512", "threads": 1, "kernels": "native", "device": "cpu", "cuda": None,
    "compiler": "GCC 12.2.0",
}  # fmt: skip
DENSE = {"encoder": [[16, False]], "latent": 16, "head": [], "activation": "ReLU", "layer_norm": True}
INTEL = {"cpu": "Intel Xeon", "cpu_capability": "AVX2"}
OWN, OLD = {"kernels": "native"}, {"cpu": "AMD EPYC", "cpu_capability": "DEFAULT"}


def said(
    algo: str = "dqn", there: dict[str, Any] | None = None, here: dict[str, Any] | None = None, **arch: Any
) -> str:
    elite = {"algo": algo, "arch": DENSE | arch, "provenance": {"fingerprint": HERE | (there or {})}}
    return promise("auto", elite, HERE | (here or {})).removeprefix("dvc.lock was made with ")


@pytest.mark.parametrize("here", [{}, INTEL])
def test_our_own_kernels_bits_are_every_processors(here: dict[str, Any]) -> None:
    assert said(here=here) == (
        "our own kernels, whose bits are the same on every x86 processor with AVX2: "
        "this machine can repeat it to the bit"
    )


def test_another_version_may_change_them() -> None:
    assert said(here={"torch": "2.14.0", "numpy": "2.5.0"}).endswith(
        "this machine can repeat it to the bit, unless another version of torch and numpy changes it"
    )
    for name in ("python", "gymnasium", "platform", "optuna", "scikit-learn"):
        assert said(here={name: "another"}).endswith(f"bit, unless another version of {name} changes it")


def test_another_compiler_may_change_them() -> None:
    """Of another one no run is compared."""
    assert said(here={"compiler": "Clang 14.0.6", **INTEL}).endswith(
        "this machine can repeat it to the bit, unless another compiler (Clang 14.0.6, there GCC 12.2.0) changes it"
    )
    assert said(here={"compiler": "GCC 11.3.0", "torch": "2.14.0"}).endswith(
        "bit, unless another version of torch or another compiler (GCC 11.3.0, there GCC 12.2.0) changes it"
    )
    before = {name: value for name, value in HERE.items() if name != "compiler"}  # elites of before did not say it
    elite = {"algo": "dqn", "arch": DENSE, "provenance": {"fingerprint": before}}
    assert promise("auto", elite, HERE).endswith("another compiler (GCC 12.2.0, there not known) changes it")
    assert "compiler" not in promise("torch", {**elite, "provenance": {"fingerprint": HERE | {"kernels": "torch"}}},
                                     HERE | {"kernels": "torch", "compiler": None})  # fmt: skip


@pytest.mark.parametrize(
    ("algo", "arch"), [("rainbow", {}), ("dqn", {"convs": [[16, 3, 2]]}), ("ppo", {"kind": "lstm"})]
)
def test_what_torch_computes_a_part_of_is_its_processors(algo: str, arch: dict[str, Any]) -> None:
    begin = (
        "our own kernels and, in part, torch itself, whose bits are those of its processor (AMD EPYC): this machine "
    )
    assert said(algo, **arch) == f"{begin}can repeat it to the bit"
    assert said(algo, here=INTEL, **arch) == (
        f"{begin}cannot be expected to repeat it to the bit, for it differs in cpu and cpu_capability"
    )


def test_a_processor_without_their_instructions_and_a_gpu_cannot() -> None:
    assert said(here=OLD).endswith("cannot be expected to repeat it to the bit, for it differs in cpu_capability")
    assert said(here={"device": "H100"}).endswith(
        "cannot be expected to repeat it to the bit, for it differs in device"
    )
    gpu = {"device": "H100"}
    assert said(there=gpu, here=gpu | INTEL).endswith("for it differs in cpu and cpu_capability"), "it is no CPU's run"


def test_other_kernels_cannot() -> None:
    there = {name: value for name, value in HERE.items() if name != "kernels"}  # as elites of before there were two
    elite = {"algo": "dqn", "arch": DENSE, "provenance": {"fingerprint": there}}
    assert promise("auto", elite, HERE) == (
        "dvc.lock was made with torch's kernels, whose bits are those of its processor (AMD EPYC): "
        "this machine cannot repeat it to the bit, for here our own kernels compute"
    )
    assert said(here={"kernels": "torch"}).endswith("cannot repeat it to the bit, for here torch's kernels compute")


def test_without_its_elite_nothing_is_promised() -> None:
    assert promise("portable", {}, HERE).startswith("dvc.lock was made with runtime.kernels: portable; ")
    assert promise("portable", {}, HERE).endswith("whether this machine can repeat it to the bit is not known")
