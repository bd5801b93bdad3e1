"""A shard: some slots of a population in their own process, and the messages that control it.

A message is bytes: JSON data, and tensors in the safetensors format. Nothing in it is ever executed.
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
from evopipe.run.spec import Spec
from evopipe.scale.changes import changes
from evopipe.storage import members as stored
from evopipe.storage.files import dump_json, parse_json
from evopipe.storage.tensors import load_tensors, tensor_pieces

_ABOUT = "about"

Make: TypeAlias = Callable[[Mapping[str, Any]], tuple[Spec, Regime, Clock]]
"""What a shard lives on, from what its first message says."""


def pack(
    about: Mapping[str, Any],
    tensors: Mapping[str, Tensor] | None = None,
    state: Mapping[str, Tensor] | None = None,
) -> bytes:
    """Return a message as bytes, in two parts that can be read separately, because few readers need the state.

    Args:
        about: JSON data, in the first part of the message.
        tensors: tensors by name, in the first part.
        state: a state as tensors by name, the second part.
    """
    text = torch.frombuffer(bytearray(dump_json(about, "message")), dtype=torch.uint8)
    first = tensor_pieces({**(tensors or {}), _ABOUT: text})
    size = sum(memoryview(piece).nbytes for piece in first)
    return b"".join([size.to_bytes(8, "little"), *first, *tensor_pieces(state or {})])


def split_message(message: bytes) -> tuple[bytes, bytes]:
    """Split a message into the two parts that `pack` joined: JSON data with tensors, and the state of the shard."""
    end = 8 + int.from_bytes(message[:8], "little")
    return message[:end], message[end:]


def unpack(message: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the JSON data (`about`) and the tensors of a message. If the message also has a state, the state is not
    read, see `state_of`.

    Raises:
        DataError: the bytes are no message.
    """
    tensors = load_tensors(split_message(message)[0][8:], "message")
    if _ABOUT not in tensors:
        raise DataError("message: does not say what it is about; let all processes run the same version of evopipe")
    return parse_json(tensors.pop(_ABOUT).numpy().tobytes(), "message"), tensors


def state_of(message: bytes) -> dict[str, Tensor]:
    """Return the tensors of the state in a message; empty if the message has no state."""
    return load_tensors(split_message(message)[1], "message")


class Shard:
    """One shard: a part of the population that trains in a process of its own, by its own training loop (regime).

    Other processes control it by messages: it executes each message, and answers it by another one. Its members' slots
    (places in the population) are counted from 0.

    Args:
        make: a function that makes the three attributes from the first message.

    Attributes:
        spec: the run's configuration.
        regime: the training loop of the shard's members.
        clock: the counters of the shard.
    """

    spec: Spec
    regime: Regime
    clock: Clock

    def __init__(self, make: Make) -> None:
        self._make = make
        self._cohorts: list[Cohort] = []
        self._told: tuple[int, Mapping[str, Tensor]] = 0, {}  # how often the state was told, and a copy of what it was
        self._worked = 0.0  # seconds of this message that the members lived: the others are what being apart costs

    def answer(self, message: bytes, stopped: Callable[[], bool] = lambda: False) -> bytes:
        """Execute a message, and return the answer as a message.

        An error is returned as an answer too. Only `Stopped` is raised, if `stopped` returned True during an
        evaluation.
        """
        about, tensors = unpack(message)
        self._worked = 0.0
        try:
            match about["do"]:
                case "begin":
                    told = self._begin(about)
                case "first":
                    member = stored.unpack(tensors, about["members"], "members")[0]
                    told = _members([self.regime.first(member)])
                case "go on":
                    told = self._go_on(about, tensors)
                case "ended":
                    told = {}, {"means": torch.from_numpy(self.regime.ended().copy())}
                case "evaluate":
                    told = self._evaluate(about, tensors, stopped)
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
        state = self._changed(told[0]["after"]) if told[0].get("do") == "restore" else {}
        return pack({**told[0], **where, "number": self._told[0], "seconds": self._worked}, told[1], state)

    def close(self) -> None:
        """Close the shard's environments and end their processes."""
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
            "sampled": hasattr(self.regime, "samples"),
        }, {}

    @property
    def _slots(self) -> list[int]:
        """The slots of members that live, in the order of their cohorts."""
        return [slot for cohort in self._cohorts for slot in cohort.slots]

    def _form(self, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self._cohorts = self.spec.form(stored.unpack(tensors, about["members"], "members"))
        self.regime.adopt(self._cohorts)

    def _go_on(
        self, about: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Take ticks up to a number of them, with the members that were sent along; tell all where it is asked for."""
        if "members" in about:
            if about["parents"] is not None:
                self.regime.inherit(about["parents"] or None)
            if about["new"]:
                self.regime.renew(about["new"])
            vars(self.clock).update(about["clock"])
            self._form(about, tensors)
        self.clock.broken_here = about["broken"]
        began = time.perf_counter()
        while self.clock.tick < about["tick"]:
            self.regime.advance(about["tick"] - self.clock.tick)
        self._worked = time.perf_counter() - began
        if about["after"] is None:
            return {}, {}
        told, members = _members(dissolve(self._cohorts))
        slots = torch.tensor(self._slots)
        losses = torch.cat([torch.empty(0), *(cohort.losses.cpu() for cohort in self._cohorts)])[slots.argsort()]
        after = about["after"] if about["after"] == self._told[0] else 0  # else another was told of it
        signals = self.regime.signals(range(self.clock.members))
        said = [{name: [repr(x) for x in both] for name, both in each.items()} for each in signals]
        return {"do": "restore", "after": after, "signals": said, **told}, {**members, "losses": losses}

    def _changed(self, after: int) -> dict[str, Tensor]:
        """Return the part of the regime's state that changed since the last message; all of it in the first."""
        number, before = self._told
        self._told = number + 1, self.regime.state()
        return changes(before if after else {}, self._told[1])

    def _restore(
        self, about: Mapping[str, Any], tensors: Mapping[str, Tensor], state: Mapping[str, Tensor]
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        vars(self.clock).update(about["clock"])
        self._form(about, tensors)
        places = {slot: place for place, slot in enumerate(sorted(self._slots))}
        for cohort in self._cohorts:
            cohort.losses.copy_(tensors["losses"][[places[slot] for slot in cohort.slots]])
        return {"lost": self.regime.restore(state)}, {}

    def _evaluate(
        self, about: Mapping[str, Any], tensors: Mapping[str, Tensor], stopped: Callable[[], bool]
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        cohorts, slots = self._cohorts, about["slots"]
        watch = getattr(self.regime.evaluate, "watch", None)
        if about["torn"] and watch is not None:
            watch.forget()
        if "members" in about:  # one that may be another shard's, or some that do not live now
            members = stored.unpack(tensors, about["members"], "members")
            cohorts = self.spec.form_alone(members[0]) if about["alone"] else self.spec.form(members)
        elif len(slots) < len(self._slots):
            cohorts = self.spec.form([member for member in dissolve(cohorts) if member.slot in slots])
        began = time.perf_counter()
        played = self.regime.evaluate(cohorts, tensors["seeds"].numpy(), stopped)
        self._worked = time.perf_counter() - began
        each = {"returns": played.returns, "lengths": played.lengths, **played.more}
        return {"steps": played.steps, "cut": played.cut}, {name: torch.from_numpy(x) for name, x in each.items()}


def _members(members: list[Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors, described = stored.pack(members, "members")
    return {"members": described}, tensors
