"""The elite as MLflow serves it: a copy of this file lies in every registered model and imports nothing of evopipe.

It runs the `torch.export` program of `models/elite`. It takes observations as rows, float32 `[B, O]`, and returns
`action` and, if the algorithm has them, action `values`. A policy that keeps a memory takes a mapping of `obs` and
`memory` `[B, M]`, zeros at first, and returns `action` and `memory`.
"""

from __future__ import annotations

from collections.abc import Mapping

import mlflow.models
import numpy as np
import torch
from mlflow.pyfunc.model import PythonModel, PythonModelContext


class _Elite(PythonModel):
    def load_context(self, context: PythonModelContext) -> None:
        self._program = torch.export.load(context.artifacts["program"]).module()

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]  # mlflow reads types its way
        recurrent = isinstance(model_input, Mapping)
        given = [model_input["obs"], model_input["memory"]] if recurrent else [model_input]
        with torch.no_grad():
            gave = self._program(*(torch.from_numpy(np.asarray(each, np.float32)) for each in given))
        names = ("action", "memory" if recurrent else "values")
        gave = gave if isinstance(gave, tuple) else (gave,)
        return {name: each.numpy() for name, each in zip(names, gave, strict=False)}


mlflow.models.set_model(_Elite())
