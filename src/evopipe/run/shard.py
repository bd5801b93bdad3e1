"""A shard: some slots of a population in a process of their own, and the messages that tell it what to do.

A message is bytes: JSON data and tensors in the safetensors format. Nothing in it is ever executed.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from evopipe.core.cohort import Cohort, dissolve
from evopipe.errors import DataError, EvopipeError, said
from evopipe.run.clock import Clock
from evopipe.run.evaluate import Stopped
from evopipe.run.regime import Regime
from evopipe.run.spec import Job
from evopipe.storage import members as stored
from evopipe.storage.files import dump_json, parse_json
from evopipe.storage.tensors import load_tensors, tensor_pieces

_ABOUT = "about"

Make: TypeAlias = Callable[[Mapping[str, Any]], tuple[Job, Regime, Clock]]
"""What a shard lives on, from what its first message says."""


def pack(
    about: Mapping[str, Any],
    tensors: Mapping[str, Tensor] | None = None,
    state: Mapping[str, Tensor] | None = None,
) -> bytes:
    """Return a message: its first part holds `about` and the tensors, a second one a state that few need to read."""
    text = torch.frombuffer(bytearray(dump_json(about, "message")), dtype=torch.uint8)
    first = tensor_pieces({**(tensors or {}), _ABOUT: text})
    size = sum(memoryview(piece).nbytes for piece in first)
    return b"".join([size.to_bytes(8, "little"), *first, *tensor_pieces(state or {})])


def unpack(message: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return what `pack` was given but the state; DataError if it is no message."""
    first = message[8 : 8 + int.from_bytes(message[:8], "little")]
    tensors = load_tensors(first, "message")
    if _ABOUT not in tensors:
        raise DataError("message: does not say what it is about; let all processes run the same version of evopipe")
    return parse_json(tensors.pop(_ABOUT).numpy().tobytes(), "message"), tensors


def state_of(message: bytes) -> dict[str, Tensor]:
    """Return the state that `pack` was given."""
    return load_tensors(message[8 + int.from_bytes(message[:8], "little") :], "message")


class Shard:
    """A regime and its members, whose slots count from 0. It does what a message says, and answers with another."""

    spec: Job
    regime: Regime
    clock: Clock

    def __init__(self, make: Make) -> None:
        self._make = make
        self._cohorts: list[Cohort] = []

    def answer(self, message: bytes, stopped: Callable[[], bool] = lambda: False) -> bytes:
        """Do what a message says. What goes wrong is an answer too; Stopped alone is raised."""
        began = time.perf_counter()
        about, tensors = unpack(message)
        try:
            match about["do"]:
                case "begin":
                    told = self._begin(about)
                case "first":
                    member = stored.unpack(tensors, about["members"], "members")[0]
                    told = _members([self.regime.first(member)])
                case "adopt":
                    told = self._adopt(about, tensors)
                case "go on":
                    told = self._go_on(about)
                case "evaluate":
                    told = self._evaluate(about, tensors["seeds"], stopped)
                case "restore":
                    told = self._restore(about, tensors, state_of(message))
                case unknown:
                    raise DataError(f"message: nothing is called {unknown!r}; run the same version everywhere")
        except EvopipeError as error:
            told = {"error": type(error).__name__, "text": str(error)}, {}
        except Stopped:
            raise
        except Exception as error:
            told = {"error": "RuntimeError", "text": said(error) + "\n" + traceback.format_exc()}, {}
        where = {"clock": vars(self.clock), "whole": self.regime.whole} if hasattr(self, "regime") else {}
        state = self.regime.state() if told[0].get("do") == "restore" else {}
        return pack({**told[0], **where, "seconds": time.perf_counter() - began}, told[1], state)

    def close(self) -> None:
        """Let processes and environments go."""
        if hasattr(self, "regime"):
            self.regime.close()

    def _begin(self, about: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
        self.spec, self.regime, self.clock = self._make(about)
        measures = getattr(self.regime, "measures", None)
        return {
            "warm": self.regime.warm,
            "threshold": self.regime.threshold,
            "remarks": list(self.regime.remarks),
            "measured": None if measures is None else list(measures.names),
        }, {}

    def _adopt(
        self, about: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        vars(self.clock).update(generation=about["generation"], here=0, broken_here=0)
        if about["parents"] is not None:
            self.regime.hand_down(about["parents"] or None)
        self._form(about, tensors)
        return {}, {}

    def _form(self, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self._cohorts = self.spec.form(stored.unpack(tensors, about["members"], "members"))
        self.regime.adopt(self._cohorts)

    def _go_on(self, about: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Take ticks up to a number of them; tell the whole state where it is asked for."""
        if about["whole"]:
            self.clock.broken_here = 0
        while self.clock.tick < about["tick"]:
            self.regime.advance()
        return self._state() if about["state"] else ({}, {})

    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return all that this shard is, but for the regime's own state, as a message that restores it."""
        told, members = _members(dissolve(self._cohorts))
        slots = torch.tensor([slot for cohort in self._cohorts for slot in cohort.slots])
        losses = torch.cat([cohort.losses.cpu() for cohort in self._cohorts])[slots.argsort()]
        return {"do": "restore", **told}, {**members, "losses": losses}

    def _restore(
        self, about: Mapping[str, Any], tensors: Mapping[str, Tensor], state: Mapping[str, Tensor]
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        vars(self.clock).update(about["clock"])
        self._form(about, tensors)
        for cohort in self._cohorts:
            cohort.losses.copy_(tensors["losses"][cohort.slots])
        return {"lost": self.regime.restore(state)}, {}

    def _evaluate(
        self, about: Mapping[str, Any], seeds: Tensor, stopped: Callable[[], bool]
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        slots, cohorts = about["slots"], self._cohorts
        if len(slots) < self.clock.members:
            [member] = [member for member in dissolve(cohorts) if member.slot in slots]
            cohorts = self.spec.form_alone(member)
        played = self.regime.evaluate(cohorts, seeds.numpy(), stopped)
        each = {name: getattr(played, name) for name in ("returns", "lengths", "agents")}
        return {"steps": played.steps}, {name: torch.from_numpy(x) for name, x in each.items() if x is not None}


def _members(members: list[Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors, described = stored.pack(members, "members")
    return {"members": described}, tensors
