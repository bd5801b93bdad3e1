"""The block `train.callbacks`, of runs of either kind."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from evopipe.own import import_name, well_formed
from evopipe.schema.declare import Schema

KINDS = ("on_generation", "on_best", "on_tick")
"""The moments at which a callback can be called."""


FunctionName = Annotated[str, Field(max_length=200), AfterValidator(well_formed)]
"""The name of a user's function, `module:function`."""


class CallbacksConfig(Schema):
    """Settings of the user's functions that are called while a run trains; they change no result. The block and each of
    its keys may be left out; see docs/callbacks.md."""

    on_generation: FunctionName | None = Field(
        None,
        validate_default=True,
        description="function, as `module:function`, that is called with a snapshot of the run when a generation has "
        "ended; null: none",
    )
    on_best: FunctionName | None = Field(
        None,
        validate_default=True,
        description="function, as `module:function`, that is called before `on_generation` when a generation has a new "
        "best member; null: none",
    )
    on_tick: FunctionName | None = Field(
        None,
        validate_default=True,
        description="function, as `module:function`, that is called within generations, every `tick_steps`; null: none",
    )
    tick_steps: int = Field(
        1_000,
        ge=1,
        le=10**12,
        validate_default=True,
        description="training steps of each member between two calls of `on_tick`",
    )

    def functions(self) -> dict[str, tuple[str, Any]]:
        """Import the functions; return them as a dict: kind of callback, such as `on_best` → (name, function).

        Raises:
            ParamsError: a function does not exist, or cannot be called.
            EnvironmentFailed: importing a module raised an exception.
        """
        named = {kind: name for kind in KINDS if (name := getattr(self, kind)) is not None}
        return {kind: (name, import_name(name, f"train.callbacks.{kind}")) for kind, name in named.items()}
