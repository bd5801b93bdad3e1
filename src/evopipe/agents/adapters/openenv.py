"""A client of OpenEnv's servers: environments in another process, over a WebSocket that speaks JSON."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any, Self

from evopipe.agents.adapters import AdaptedEnvironment
from evopipe.agents.adapters.text_spaces import seeds
from evopipe.agents.environment import BaseEnv
from evopipe.errors import ParamsError, need_package, one_line, text_of

_SECONDS = 30.0  # that a server has for an answer, and to let us in
_CLOSING = 1.0
_LARGEST = 4_000_000  # bytes of a message
_NO_TEXT = ("metadata", "done", "reward")


class OpenEnvironment(BaseEnv):
    """A session with an OpenEnv server, as an environment. A task holds the arguments of the server's `reset`, for
    example `{"seed": 7}`.

    The agent sees the observation's field `show`, or the whole observation as JSON. The agent's completion becomes the
    action's field `field`; a completion that is a JSON object becomes the whole action.

    Args:
        url: the server's address: `ws://host:port/ws` or `wss://host:port/ws`.
        field: the field of the action that a text is put into.
        show: the field of the observation that the agent sees. None shows the observation's text field if it has
            exactly one, and otherwise the whole observation.
        seconds: time limit for each answer of the server.
        task: the arguments of `reset`.
    """

    def __init__(
        self, url: str, field: str = "message", show: str | None = None, seconds: float = _SECONDS,
        task: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.url, self.field, self.show, self.seconds, self.task = url, field, show, seconds, dict(task or {})
        self._open = contextlib.ExitStack()
        self._socket: Any = None

    @classmethod
    def from_dict(cls, info: Mapping[str, Any]) -> Self:
        own = ("url", "field", "show", "seconds")
        given = {name: info[name] for name in own if name in info}
        return cls(**given, task={name: value for name, value in info.items() if name not in own})

    def reset(self) -> tuple[Any, dict[str, Any]]:
        from websockets.sync.client import connect

        try:
            opening = connect(
                self.url, open_timeout=self.seconds, close_timeout=_CLOSING, max_size=_LARGEST, proxy=None
            )
            self._socket = self._open.enter_context(opening)
        except Exception as error:
            raise ConnectionError(f"{self.url} does not answer as an OpenEnv server: {text_of(error)}") from None
        told = self._ask({"type": "reset", "data": self.task})
        return self._shown(told.get("observation")), {}

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        told = self._ask({"type": "step", "data": self._action(str(action))})
        return self._shown(told.get("observation")), told.get("reward") or 0.0, bool(told.get("done")), {}

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(Exception):
                self._socket.send(json.dumps({"type": "close"}))
            with contextlib.suppress(Exception):
                self._open.close()

    def _action(self, text: str) -> dict[str, Any]:
        if text.lstrip().startswith("{"):
            with contextlib.suppress(ValueError, RecursionError):
                return dict(json.loads(text))
        return {self.field: text}

    def _ask(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the data of a server's answer."""
        until = time.monotonic() + self.seconds
        try:
            self._socket.send(json.dumps(message))
            raw = self._socket.recv(timeout=max(0.0, until - time.monotonic()))
        except TimeoutError:
            raise TimeoutError(f"{self.url} did not answer within {self.seconds:g} seconds") from None
        except Exception as error:
            raise ConnectionError(f"{self.url} closed the session: {text_of(error)}") from None
        try:
            told = json.loads(raw)
            data = dict(told["data"])
        except (ValueError, TypeError, LookupError, RecursionError):
            raise ValueError(
                f"{self.url} answered {one_line(str(raw))[:80]!r}, which is no message of OpenEnv's"
            ) from None
        if told.get("type") == "error":
            hint = ", or set the field that a text becomes (field)" if data.get("code") == "VALIDATION_ERROR" else ""
            raise RuntimeError(f"{self.url}: {one_line(json.dumps(data))[:300]}: mend the task or the server{hint}")
        if told.get("type") != "observation":
            raise ValueError(f"{self.url} answered with the type {told.get('type')!r:.40}, expected 'observation'")
        return data

    def _shown(self, observation: Any) -> str:
        if not isinstance(observation, Mapping):
            return str(observation)
        if self.show is not None:
            if self.show not in observation:
                raise ValueError(
                    f"{self.url}: an observation has no {self.show!r}, it has {', '.join(observation)[:200]}"
                )
            return str(observation[self.show])
        kept = {name: value for name, value in observation.items() if name not in _NO_TEXT}
        texts = [value for value in kept.values() if isinstance(value, str)]
        return texts[0] if len(texts) == 1 else json.dumps(kept, ensure_ascii=False)


def adapted(url: str, key: str) -> AdaptedEnvironment:
    """Return the adapter of the OpenEnv server at an address: `ws://host:port`, or with `http`, `https` or `wss`.

    `key` is the parameter or argument that error messages name.

    Raises:
        ParamsError: the text is no such address.
        MissingInputError: the package websockets is not installed.
    """
    need_package("websockets", "openenv", key)
    kind, sign, rest = url.partition("://")
    secure = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}.get(kind)
    if not sign or secure is None or not rest.strip("/"):
        raise ParamsError(f"{key}: 'openenv:{url}' must have the form openenv:ws://host:port, or http, https, wss")
    place = rest.rstrip("/")
    return AdaptedEnvironment(
        OpenEnvironment, {"url": f"{secure}://{place if place.endswith('/ws') else place + '/ws'}"}, tasks=seeds
    )
