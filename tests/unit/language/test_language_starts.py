"""A run that begins with a trained adapter: it is the base's own, or the run says what it cannot know."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import words
from evopipe.language import peft
from evopipe.language.adapters import Adapted, Full, LoRA
from evopipe.language.policy import CHANGE, POLICY
from evopipe.storage.folders import write_folder
from evopipe.storage.tensors import dump_tensors
from tiny import call


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two bases of one shape and unlike weights, as folders: `one` and `two`."""
    folder: Path = tmp_path_factory.mktemp("models")
    over = words.base()
    for name, seed in (("one", 1), ("two", 2)):
        (folder / name).mkdir()
        for file, data in peft.merged_files(over, LoRA(2), words.row(LoRA(2), seed, over)).items():
            (folder / name / file).write_bytes(data)
    return folder


def elite(folder: Path, model: Path, arch: LoRA | Full) -> None:
    """Write what `evopipe export` does of a member over a base."""
    from evopipe.language.base import load_base

    base = load_base(words.config(model=str(model)), 1)
    row = words.row(arch, 5, base)
    about = {"kind": "language", "base": base.digest, "language": {"model": str(model)}}
    files: dict[str, Any] = {POLICY: json.dumps(about).encode()}
    if isinstance(arch, LoRA):
        files |= peft.adapter_files(base, arch, row)
    else:
        files[CHANGE] = dump_tensors(arch.named(Adapted.of(base), row))
    write_folder(folder, files)


@pytest.mark.parametrize("arch", [LoRA(2), Full()], ids=["adapter", "change of all weights"])
def test_an_elite_over_another_base_of_the_same_shape_begins_no_run(models: Path, tmp_path: Path, arch: Any) -> None:
    elite(tmp_path / "elite", models / "one", arch)
    for model, code in (("one", 0), ("two", 65)):
        words.project(
            tmp_path, language__model=str(models / model), language__full=isinstance(arch, Full),
            evolution__mutation__probabilities__rank=0.0, population__start="elite",
        )  # fmt: skip
        answer = call(tmp_path, "population")
        assert answer.code == code, answer
    said = " ".join(answer.err.split())
    assert f"elite: was trained over another base than {models / 'two'} is now" in said
    assert f"it names {models / 'one'}" in said
    assert "set language.model to its base, or population.start to an elite of this one" in said


def test_an_elite_that_does_not_say_its_base_is_refused(models: Path, tmp_path: Path) -> None:
    elite(tmp_path / "whole", models / "one", LoRA(2))
    files = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir() if path.name != "manifest.json"}
    for text in ("[]", '{"kind": "language"}', "{"):
        shutil.rmtree(tmp_path / "elite", ignore_errors=True)
        write_folder(tmp_path / "elite", {**files, POLICY: text.encode()})
        words.project(tmp_path, language__model=str(models / "one"), population__start="elite")
        answer = call(tmp_path, "population")
        assert answer.code == 65, answer
        assert "policy.json" in answer.err


@pytest.mark.parametrize(
    ("named", "warned"),
    [
        ("same", None),
        ("{models}/one/", None),
        ("somebody/one", "over 'somebody/one'"),
        (None, "does not say over which base"),
        (7, "does not say over which base"),
    ],
)
def test_of_an_adapter_that_peft_wrote_the_bases_name_is_compared(
    models: Path, tmp_path: Path, named: Any, warned: str | None
) -> None:
    from evopipe.language.base import load_base

    base = load_base(words.config(model=str(models / "one")), 1)
    (tmp_path / "adapter").mkdir()
    for name, data in peft.adapter_files(base, LoRA(2), words.row(LoRA(2), 5, base)).items():
        (tmp_path / "adapter" / name).write_bytes(data)
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    if named != "same":
        config["base_model_name_or_path"] = named.format(models=models) if isinstance(named, str) else named
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(config))
    words.project(tmp_path, language__model=str(models / "one"), population__start="adapter")
    answer = call(tmp_path, "population")
    assert answer.code == 0, answer
    said = " ".join(answer.err.split())
    if warned is None:
        assert "warning" not in said
    else:
        assert "warning: adapter/adapter_config.json" in said
        assert warned in said
        assert "PEFT's files do not tell whether these are the same weights" in said
    members = json.loads((tmp_path / "models/population/members.json").read_text())["members"]
    assert [member["arch"]["kind"] for member in members] == ["lora"] * 3
    assert np.isfinite(members[0]["hyper"]["lr"])
