"""A trained policy by NumPy alone: this file and `policy.npz` are all it takes, whatever else is installed.

    from numpy_policy import Policy
    action = Policy("policy.npz").act(obs)

As a program, `python numpy_policy.py policy.npz`, it reads an observation a line as JSON, and writes the action.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import numpy as np

_erf = np.frompyfunc(math.erf, 1, 1)
ACTIVATIONS: dict[str, Any] = {
    "ReLU": lambda x: np.maximum(x, 0.0),
    "ELU": lambda x: np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0))),
    "GELU": lambda x: 0.5 * x * (1.0 + _erf(x * 0.5**0.5).astype(x.dtype)),
    "Tanh": np.tanh,
    "LeakyReLU": lambda x: np.where(x > 0.0, x, 0.01 * x),
    "SiLU": lambda x: 0.5 * x * (1.0 + np.tanh(0.5 * x)),
    "Softsign": lambda x: x / (1.0 + np.abs(x)),
    "Sigmoid": lambda x: 0.5 * (1.0 + np.tanh(0.5 * x)),
    "Softplus": lambda x: np.logaddexp(x, 0.0),
    "Identity": lambda x: x,
}


class Policy:
    """A trained policy with a perceptron, which needs NumPy alone to act. `path` is the path of `policy.npz`, or that
    file opened in binary mode."""

    def __init__(self, path: Any = "policy.npz") -> None:
        with np.load(path, allow_pickle=False) as held:
            self.held: dict[str, Any] = dict(held)
        name = str(self.held["activation"])
        if name not in ACTIVATIONS:
            raise ValueError(
                f"this file knows no activation {name!r}: take the numpy_policy.py that came with the arrays"
            )
        self.activation = ACTIVATIONS[name]

    def act(self, obs: Any, mask: Any = None) -> Any:
        """Return the greedy actions for one observation `[O]` or a batch `[B, O]`, in the environment's own values.

        Actions are int64, or float32 for a `Box` action space. `mask`, `[A]` or `[B, A]`, says which actions are legal;
        None if all are.

        Raises:
            ValueError: a shape does not fit, or no action is legal.
        """
        held, out = self.held, np.nan_to_num(self.outputs(obs))
        flat = out.reshape(-1, out.shape[-1])
        legal = np.ones(flat.shape, bool) if mask is None else np.broadcast_to(np.asarray(mask, bool), flat.shape)
        if "low" in held:
            low, high = held["low"], held["high"]
            relative = np.clip(np.tanh(flat) if held["squash"] else flat, -1.0, 1.0).astype(np.float64)
            actions = np.clip(low + (relative + 1.0) / 2.0 * (high - low), low, high).astype(np.float32)
        elif held["kind"] == "multibinary":
            actions = ((flat > 0.0) & legal).astype(np.int64)
        else:
            ends = np.cumsum(held["choices"])[:-1]
            if not all(part.any(axis=1).all() for part in np.split(legal, ends, axis=1)):
                raise ValueError("mask leaves no legal action: allow at least one for every observation")
            each = np.split(np.where(legal, flat, -np.inf), ends, axis=1)
            actions = np.stack([part.argmax(axis=1) for part in each], axis=1) + held["starts"]
        return actions.reshape((*out.shape[:-1], *held["shape"]))[()]

    def q_values(self, obs: Any) -> Any:
        """Return the values of all actions, `[A]` for one observation or `[B, A]` for a batch.

        Raises:
            ValueError: the network does not compute action values.
        """
        if not self.held["values"]:
            raise ValueError("this policy's network gives no action values: it has act(obs)")
        return self.outputs(obs)

    def outputs(self, obs: Any) -> Any:
        """Return the outputs of the network, one for each action: `[A]` for one observation or `[B, A]` for a batch.

        The outputs are action values, logits, or the means of a `Box` action's numbers.

        Raises:
            ValueError: `obs` has another shape.
        """
        held, x = self.held, np.array(obs, np.float32)
        if x.ndim not in (1, 2) or x.shape[-1] != held["observations"]:
            raise ValueError(
                f"obs has shape {x.shape}; expected [{held['observations']}] or [B, {held['observations']}]"
            )
        if "mean" in held:
            columns, most = held["columns"], held["clip"]
            x[..., columns] = np.clip((x[..., columns] - held["mean"]) * held["scale"], -most, most)
        for name in held["layers"]:
            layer = {part: held[f"{name}.{part}"] for part in ("gain", "shift", "alpha") if f"{name}.{part}" in held}
            y = x @ held[f"{name}.weight"] + held[f"{name}.bias"]
            if "gain" in layer:
                centred = y - y.mean(axis=-1, keepdims=True)
                y = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-5)
                y = y * layer["gain"] + layer["shift"]
            y = self.activation(y)
            if "alpha" in layer:  # x + alpha (y - x), the narrower one with zeros behind it
                wide = max(x.shape[-1], y.shape[-1])
                x, y = (np.pad(z, [(0, 0)] * (z.ndim - 1) + [(0, wide - z.shape[-1])]) for z in (x, y))
                y = x + layer["alpha"] * (y - x)
            x = y
        return x @ held["output.weight"] + held["output.bias"]


if __name__ == "__main__":
    policy = Policy(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(policy.act(json.loads(line)).tolist()), flush=True)
