"""Weights & Biases: one run a training, the members' metrics under `member-<slot>/`.

Without an API key the run is written offline, below the DVC root, for `wandb sync` to upload some day. An offline run
can only be added to while it is open, so a delivery that was cut off is written anew by the next one.
"""

from __future__ import annotations

import contextlib
import netrc
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from evopipe.schema.blocks import TrackingConfig
from evopipe.storage import safeio
from evopipe.track.marks import Marks
from evopipe.track.run import (
    ELITE,
    EVALUATION,
    LINEAGE,
    REPORT,
    New,
    Run,
    evaluation_metrics,
    flat_params,
    member_metrics,
    population_metrics,
)

if TYPE_CHECKING:
    import wandb

TAKEN = (LINEAGE, EVALUATION, REPORT, ELITE)
STEPS = "env_steps"
HOST = "https://api.wandb.ai"


class Wandb:
    """Brings runs to Weights & Biases.

    Args:
        config: the `tracking` block.
        root: the DVC root; offline runs go to `.evopipe/wandb/` there.
    """

    def __init__(self, config: TrackingConfig, root: Path) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._config, self._home = config, root / ".evopipe" / "wandb"
        self._marks = Marks(self._home / "delivered")
        self._open: dict[str, tuple[wandb.Run, int]] = {}

    def find(self, run: Run) -> bool:
        """Whether all of this training is there."""
        return self._marks.complete(run)

    def deliver(self, run: Run) -> New:
        """Bring what is not there yet."""
        known = self._marks.known(run)
        if self._marks.complete(run) and all(self._marks.has(run, name) for name in TAKEN):
            return New()
        if run.key not in self._open:
            self._open[run.key] = self._begin(run)
        sent = self._send(run)
        new = New(runs=int(not known), generations=0 if self._marks.complete(run) else sent)
        if run.status != "running":
            self._attach(run)
            handle, _ = self._open.pop(run.key)
            handle.finish(exit_code=0 if run.status == "finished" else 1)
            new.files = self._marks.note(run, TAKEN)
        return new

    def close(self) -> None:
        """Finish what is open: it is not marked as delivered."""
        for handle, _ in self._open.values():
            handle.finish(exit_code=1)
        self._open.clear()

    def _begin(self, run: Run) -> tuple[wandb.Run, int]:
        """Open the run; return it with the last generation that it holds."""
        import wandb

        mode = os.environ.get("WANDB_MODE") or ("online" if _has_key() else "offline")
        safeio.make_folder(self._home)
        if mode == "offline":
            for old in self._home.glob(f"wandb/offline-run-*-{run.key}"):
                shutil.rmtree(old)
        handle = wandb.init(
            project=(self._config.experiment or run.env).replace("/", "-").replace(":", "-"),
            id=run.key,
            name=run.name,
            dir=str(self._home),
            config=flat_params(run),
            mode=mode,  # type: ignore[arg-type]
            resume="allow" if mode == "online" else None,
            settings=wandb.Settings(silent=True, console="off", init_timeout=30, x_disable_stats=True),
        )
        handle.define_metric("*", step_metric=STEPS)
        summary: Any = handle.summary
        held = summary.get("population/generation", 0) if mode == "online" and handle.resumed else 0
        return handle, int(held)

    def _send(self, run: Run) -> int:
        handle, sent = self._open[run.key]
        fresh = [(clock, event) for clock, event in run.generations if event.generation > sent]
        for clock, event in fresh:
            row: dict[str, Any] = {STEPS: event.env_steps, "_timestamp": clock, **population_metrics(event)}
            for member in event.members:
                row |= {f"member-{member.slot}/{name}": value for name, value in member_metrics(member).items()}
            handle.log(row)
            sent = event.generation
        self._open[run.key] = handle, sent
        return len(fresh)

    def _attach(self, run: Run) -> None:
        import wandb

        handle, _ = self._open[run.key]
        handle.summary.update(evaluation_metrics(run))
        for name in (LINEAGE, ELITE):
            if (kept := run.files.get(name)) is not None:
                artifact = wandb.Artifact(f"{name}-{run.key}", type="model" if name == ELITE else name)
                (artifact.add_dir if kept.path.is_dir() else artifact.add_file)(str(kept.path))
                handle.log_artifact(artifact)
        if (report := run.files.get(REPORT)) is not None:
            handle.log({REPORT: wandb.Html(report.path.read_text(encoding="utf-8"), inject=False)})


def _has_key() -> bool:
    """Whether this user is logged in: by the environment, or in the file that `wandb login` writes."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or HOST).hostname or ""
    with contextlib.suppress(OSError, netrc.NetrcParseError, RuntimeError):
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    return False
