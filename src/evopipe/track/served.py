"""The elite as MLflow serves it. A copy of this file lies in every registered model, and imports nothing of evopipe.

It runs the `torch.export` program of `models/elite`. It reads observations as rows, float32 `[B, O]`, and returns
`action` and, if the algorithm has them, action `values`. A recurrent policy reads a mapping of `obs` and `memory`
`[B, M]`, zeros at first, and returns `action` and `memory`. A team reads a mapping of each agent's name to its rows,
and of `NAME.memory` to its memory, and returns each agent's actions and memories by the same names.
"""

from __future__ import annotations

from collections.abc import Mapping

import mlflow.models
import numpy as np
import torch
from mlflow.pyfunc.model import PythonModel, PythonModelContext


class _Elite(PythonModel):
    def load_context(self, context: PythonModelContext) -> None:
        self._programs = {name: torch.export.load(path).module() for name, path in context.artifacts.items()}

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]  # mlflow reads types its way
        if [*self._programs] != ["program"]:
            gave: dict[str, np.ndarray] = {}
            for name in self._programs:
                words = [word for word in (name, f"{name}.memory") if word in model_input]
                if words:
                    gave |= zip(words, self._run(name, [model_input[word] for word in words]), strict=True)
            return gave
        recurrent = isinstance(model_input, Mapping)
        given = [model_input["obs"], model_input["memory"]] if recurrent else [model_input]
        names = ("action", "memory" if recurrent else "values")
        return dict(zip(names, self._run("program", given), strict=False))

    def _run(self, name: str, given: list[np.ndarray]) -> list[np.ndarray]:
        with torch.no_grad():
            gave = self._programs[name](*(torch.from_numpy(np.asarray(each, np.float32)) for each in given))
        return [each.numpy() for each in (gave if isinstance(gave, tuple) else (gave,))]


mlflow.models.set_model(_Elite())
