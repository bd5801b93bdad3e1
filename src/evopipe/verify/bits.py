"""Whether this machine can reproduce, to the bit, the results in a committed dvc.lock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PORTABLE = frozenset({"dqn", "cqn", "ppo", "ddpg", "td3", "sac"})
"""Algorithms of which our own kernels compute whole runs, if networks are dense: with the same bits on every x86
processor that knows AVX2, whatever else it knows, if one compiler made them (`test_native_bits.py` for what
the kernels compute, `tests/pipeline/test_portable.py` for runs). The last digits of signals, which torch computes for
people, are each processor's."""
_DENSE = {"encoder", "latent", "head", "activation", "layer_norm"}  # all that such an architecture's JSON has
_PROCESSOR = ("cpu", "cpu_capability", "threads", "device", "cuda")
_AVX2 = ("AVX2", "AVX512")
_VERSIONS = ("python", "torch", "numpy", "gymnasium", "platform")
SEARCH = ("optuna", "scikit-learn", "scipy")
"""Packages that choose hyper-parameters in some searches (`searchers.packages`)."""
_WHOSE = {"native": "our own kernels", "torch": "torch's kernels"}


def promise(asked: str, elite: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Return a sentence that says with which kernels the results in a dvc.lock were computed, and whether this machine
    can reproduce them bit for bit.

    Args:
        asked: the value of `runtime.kernels` in the dvc.lock.
        elite: the content of the `policy.json` that belongs to the dvc.lock, which describes the elite; empty if it is
            not available.
        here: this machine's fingerprint under the same parameters, as `machine.fingerprint` returns it.
    """
    if not elite:
        return (
            f"dvc.lock was made with runtime.kernels: {asked}; which processor computed it is said by its elite, which "
            "is neither in git nor in the cache: whether this machine can repeat it to the bit is not known"
        )
    there = elite["provenance"]["fingerprint"]
    kernels = there.get("kernels", "torch")  # elites of before there were others do not say it
    own = kernels == "native"
    portable = own and elite["algo"] in PORTABLE and elite["arch"].keys() <= _DENSE and there["device"] == "cpu"
    made = f"dvc.lock was made with {_WHOSE[kernels]}"
    if portable:
        made += ", whose bits are the same on every x86 processor with AVX2"
    else:
        made += f"{' and, in part, torch itself' * own}, whose bits are those of its processor ({there['cpu']})"
    others = [name for name in _PROCESSOR if there.get(name) != here.get(name)]
    if portable:
        others = ["device"] * ("device" in others) + ["cpu_capability"] * (here["cpu_capability"] not in _AVX2)
    if kernels != here["kernels"]:
        return f"{made}: this machine cannot repeat it to the bit, for here {_WHOSE[here['kernels']]} compute"
    if others:
        return f"{made}: this machine cannot be expected to repeat it to the bit, for it differs in {_and(others)}"
    versions = [name for name in (*_VERSIONS, *SEARCH) if there.get(name) != here.get(name)]
    changed = [f"another version of {_and(versions)}"] if versions else []
    if own and there.get("compiler") != here.get("compiler"):
        changed.append(f"another compiler ({here.get('compiler')}, there {there.get('compiler', 'not known')})")
    but = f", unless {' or '.join(changed)} changes it" if changed else ""
    return f"{made}: this machine can repeat it to the bit{but}"


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
