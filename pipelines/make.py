"""Write dvc.yaml, the files of `pipelines/*` and the template of `evopipe new`: `python pipelines/make.py`.

The stages are those of `evopipe.layout`, and nowhere else written down.

With `--check` it says what is stale.

Each is a DVC project of its own, so that `dvc exp` in one folder speaks of that one alone; those that build on each
other are folders of one. Its link `src` makes the code part of it: a .dvcignore, which leaves bytecode out, holds for
what lies inside a project.

A pipeline's own `changes.yaml` says what it wants otherwise than `shapes.yaml` here and the root's `params.yaml`:

    heading: what it is, as text
    shape: of shapes.yaml; `online` where it is not given; `language`: the root is the schema's defaults; `agent`: these
        with the block `agents`, and the first of its files has the function `make`, which returns an AgentTrainer
    base: a model's folder that the stages depend on, which may be another pipeline's export
    start: a folder that the population begins with, on which that stage depends
    behaviour: a folder of the policy whose play is the dataset, on which `fetch` depends
    files: modules of its own, which every stage depends on
    params: the parameters that differ from the root's; a comment behind one replaces the root's
    algos: the algorithms it lists, each with the hyper-parameters that differ from `evopipe params block`; {}: none
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

from evopipe import algos, layout
from evopipe.agents.settings import Agents
from evopipe.params.text import LanguageParams
from evopipe.schema.read import parse_yaml
from evopipe.schema.write import block, commented, dump_yaml, entries

FOLDER = Path(__file__).parent
KEYS = {"heading", "shape", "base", "reward", "start", "behaviour", "files", "params", "algos"}
AS_AT_THE_TOP = (".dvc/config", ".dvcignore")
TEMPLATE = "src/evopipe/new/template"
ENTRY = re.compile(r"(?P<key>\s*[\w-]+): *(?P<value>.*?)(?P<comment>  #.*)?")
MADE = "Made by `python pipelines/make.py` from {}: edit those."
HEAD = """\
The stages of evopipe. requirements.txt stands for the code they run: another version of evopipe reruns them.
If a stage comes to read another file of yours, add it to its deps, and an edit of it reruns the stage.
"""
OWN_ENVIRONMENT: dict[str, Any] = {
    "env.id": "my_env:Catch-v0",
    "env.num_envs": 4,
    "fetch.collect.policies.heuristic": 0.0,
    "fetch.collect.policies.random": 1.0,
    "train.max_steps": 20000,
    "train.evo_steps": 400,
    "train.learning_delay": 200,
    "train.warm_start": 500,
    "train.replay.capacity": 20000,
    "algos.dqn.eps_steps": 1500,
    "algos.dqn.network.encoder": [64],
    "algos.dqn.network.latent": 64,
}
"""What the example of `evopipe new` wants otherwise than the root's params.yaml."""


def render(name: str) -> dict[str, str]:
    """Return the texts of a pipeline's files by their names.

    Raises:
        SystemExit: `changes.yaml` has an unknown key, or names a value that would be the same without it.
    """
    changes = _load(FOLDER / name / "changes.yaml")
    if set(changes) - KEYS:
        raise SystemExit(f"pipelines/{name}/changes.yaml: no key is called {', '.join(set(changes) - KEYS)}")
    source, top = f"pipelines/{name}/changes.yaml", "../" if "/" in name else ""
    made = f"# {MADE}\n".replace("{}", f"{{}} and {source}")
    return {
        "dvc.yaml": made.format("evopipe.layout, pipelines/shapes.yaml") + _dvc(changes),
        "params.yaml": made.format("params.yaml") + _params(changes, source),
        **{f"{top}{file}": (FOLDER.parent / file).read_text(encoding="utf-8") for file in AS_AT_THE_TOP},
    }


def render_new() -> dict[str, str]:
    """Return what new projects are made of: stages and parameters, of the root for either kind of environment, and of a
    language model and an agent."""
    params = (FOLDER.parent / "params.yaml").read_text(encoding="utf-8")
    own = _load(FOLDER / "new.yaml")
    return {
        "stages.yaml": _new_dvc(),  # DVC would take a dvc.yaml for a pipeline of this repository
        "params.yaml": _with_values(params, OWN_ENVIRONMENT),
        "params-installed.yaml": _with_values(params, {"env.id": "ENV_ID"}),
        "stages-language.yaml": _new_language_dvc("requirements.txt", "my_task.py"),
        "params-language.yaml": _params(own["language"], "pipelines/new.yaml"),
        "stages-start.yaml": _new_language_dvc("../requirements.txt", "demonstrations.py"),
        "params-start.yaml": _params(own["start"], "pipelines/new.yaml"),
        "stages-agent.yaml": _new_agent_dvc(),
        "params-agent.yaml": _params(own["agent"], "pipelines/new.yaml"),
    }


def render_root() -> str:
    """Return the root's dvc.yaml, whose stages depend on the code that they compute with."""
    shape = _load(FOLDER / "shapes.yaml")["root"]
    heading = f"{MADE.format('evopipe.layout and pipelines/shapes.yaml')}\n{shape['heading']}"
    return _with_descriptions(lambda stage: [f"src/evopipe/{code}" for code in stage.sources], heading, shape["plots"])


def _new_dvc() -> str:
    """The same stages, which depend on evopipe's version and the user's own module, not on its source."""

    def code(stage: layout.Stage) -> list[str]:
        return ["requirements.txt", *([] if stage.name == "buffer" else ["my_env.py"])]  # it reads the dataset alone

    return _with_descriptions(code, HEAD, _load(FOLDER / "shapes.yaml")["root"]["plots"])


def _new_language_dvc(version: str, module: str) -> str:
    """The stages of a language model, which depend on evopipe's version and on the module of the user's task."""

    def code(stage: layout.Stage) -> list[str]:
        return [version, *([] if stage.name == "report" else [module])]

    return _with_descriptions(code, HEAD, _load(FOLDER / "shapes.yaml")["language"]["plots"], text=True)


def _new_agent_dvc() -> str:
    """The one stage of an agent, and what it begins with: the export of the stages in `start`."""
    shape = json.loads(json.dumps(_load(FOLDER / "shapes.yaml")["agent"]))
    (stage,) = shape["stages"].values()
    stage["cmd"] = stage["cmd"].format(module="my_agent")
    stage["deps"] = ["start/models/elite/merged", "requirements.txt", "my_agent.py"]
    stages = {name: {"desc": "Let the agent play and learn", **stage} for name, stage in shape["stages"].items()}
    return _written(stages, HEAD, shape["plots"])


def _with_descriptions(code: Callable[[layout.Stage], list[str]], heading: str, plots: Any, text: bool = False) -> str:
    stages = {}
    for stage in layout.STAGES:
        made = _stage(stage, stage.text if text else stage.env)
        made["deps"] += code(stage)
        made["plots"] = [
            {path: {**how, "title": "Held-out episodes"}}
            for each in made.get("plots", ())
            for path, how in each.items()
        ]
        stages[stage.name] = {"desc": stage.help, **{key: value for key, value in made.items() if value}}
    return _written(stages, heading, plots)


def _written(stages: Any, heading: str, plots: Any) -> str:
    yaml = commented()
    yaml.indent(mapping=2, sequence=4, offset=2)
    out = StringIO()
    yaml.dump({"stages": stages, "plots": plots}, out)
    lines = "".join(f"# {line}".rstrip() + "\n" for line in heading.splitlines())
    return (
        lines
        + re.sub(r"\n(?=  \w+:\n    desc:|plots:)", "\n\n", out.getvalue().rstrip()).replace("stages:\n\n", "stages:\n")
        + "\n"
    )


def _stage(stage: layout.Stage, files: layout.Files) -> dict[str, Any]:
    """Return a stage as DVC reads it, without the code that it depends on."""
    made: dict[str, Any] = {
        "cmd": f"python -m evopipe {stage.name}",
        "deps": sorted(path.as_posix() for path in files.reads),
        "params": [*files.params],
    }
    for out in files.writes:
        path = out.as_posix()
        if out in layout.METRICS:
            made.setdefault("metrics", []).append({path: {"cache": False}})
        elif out == layout.EPISODES:
            made["plots"] = [{path: {"cache": False, "template": "scatter", "x": "length", "y": "return"}}]
        else:
            made.setdefault("outs", []).append(path)
    order = ("cmd", "deps", "params", "outs", "metrics", "plots")
    return {key: made[key] for key in order if key in made}


def _with_values(text: str, values: dict[str, Any]) -> str:
    """Return a params.yaml with other values, by dotted keys; all else stays as it is."""
    parsed, lines = parse_yaml(text, "params.yaml"), text.splitlines()
    for key, value in values.items():
        number = parsed.mark(tuple(key.split(".")))[0] - 1
        found = ENTRY.fullmatch(lines[number])
        if found is None or found["key"].strip() != key.rpartition(".")[2]:
            raise SystemExit(f"params.yaml has no {key!r} on a line of its own")
        lines[number] = f"{found['key']}: {dump_yaml(value, on_one_line=True).strip()}{found['comment'] or ''}"
    return "\n".join(lines) + "\n"


def _dvc(changes: Any) -> str:
    name = changes.get("shape", "online")
    shape = json.loads(json.dumps(_load(FOLDER / "shapes.yaml")[name]))
    heading, stages = shape["heading"], shape.get("stages") or _stages(name)
    for stage, made in stages.items():
        base = [changes["base"]] if "base" in changes and stage not in ("fetch", "report") else []
        reward = [changes["reward"]] if "reward" in changes and stage in ("train", "evaluate") else []
        start = [changes["start"]] if "start" in changes and stage == "population" else []
        behaviour = [changes["behaviour"]] if "behaviour" in changes and stage == "fetch" else []
        made["deps"][1:1] = [*changes.get("files", []), *base, *reward, *start, *behaviour]
        made["cmd"] = made["cmd"].format(module=Path(changes.get("files", [""])[0]).stem)
    if "self_play" in changes["params"].get("train", {}):  # its league is an out as well
        stages["train"]["outs"].insert(0, layout.LEAGUE.as_posix())
    data = {"stages": stages, "plots": shape["plots"]}
    return f"# {heading}\n" + re.sub(r"\n(?=  \w+:\n    cmd:|plots:)", "\n\n", dump_yaml(data))


def _stages(shape: str) -> dict[str, Any]:
    """Return the stages of a pipeline, which depend on evopipe as a whole; without a dataset where it is `online`."""
    made, datasets = {}, {out for stage in layout.STAGES if stage.dataset for out in stage.env.writes}
    for stage in layout.STAGES:
        files = stage.text if shape == "language" else stage.env
        if shape == "online":
            if stage.dataset:
                continue
            params = tuple(key for key in files.params if not key.startswith("fetch."))
            files = files._replace(params=params, reads=tuple(path for path in files.reads if path not in datasets))
        made[stage.name] = _stage(stage, files)
        made[stage.name]["deps"].insert(0, "src/evopipe")
    return made


def _params(changes: Any, source: str) -> str:
    own = {"language": _language, "agent": _agent}.get(changes.get("shape"))
    root = own() if own else _load(FOLDER.parent / "params.yaml")
    root.pop("algos", None)
    _change(root, changes["params"], source)
    out = StringIO()
    commented().dump(root, out)
    # A comment stood where its former value ended.
    body = re.sub(r"(?<=\S) +# ", "  # ", out.getvalue().rstrip("\n"))
    blocks = []
    for algo, differing in changes["algos"].items():
        values = algos.get(algo).Config().model_dump(mode="json")
        _change(values, differing, source)
        text = block(algo, algos.get(algo).Config.model_validate(values))
        if algo != root["train"]["algo"]:
            text = text.replace(":\n", f":  # in place of the first: dvc exp run -S train.algo={algo}\n", 1)
        blocks.append(text)
    heading = "".join(f"# {line}\n" for line in changes["heading"].splitlines())
    return f"{heading}# Run it here: dvc repro\n\n{body}\n\nalgos:\n" + "\n".join(blocks)


def _language() -> Any:
    """Return the defaults of a file whose members are language models, with their descriptions as comments."""
    return commented().load("\n".join(entries(LanguageParams(), but=("algos",))) + "\n")


def _agent() -> Any:
    """Return the defaults of a run of agents: as `_language`, without what says where rows come from."""
    lines = [*entries(LanguageParams(), but=("algos", "fetch")), "agents:", *entries(Agents(), "  ")]
    return commented().load("\n".join(lines) + "\n")


def _change(values: Any, differing: Any, source: str) -> None:
    """Set in `values` what differs, block by block, in place."""
    for key, value in differing.items():
        if isinstance(value, dict) and isinstance(values.get(key), dict) and values[key]:
            _change(values[key], value, source)
        elif key in values and values[key] == value:
            raise SystemExit(f"{source}: {key}: {value} is what it is without being named here: delete it")
        else:
            values[key] = value
            _comment(values, differing, key)


def _comment(values: Any, differing: Any, key: str) -> None:
    """Let a comment that stands behind a changed value replace the one that stood there; blank lines stay."""
    if not hasattr(values, "ca") or key not in differing.ca.items:
        return
    text = differing.ca.items[key][2].value.strip()
    if key in values.ca.items:
        token = values.ca.items[key][2]
        token.value = text + token.value[len(token.value.rstrip("\n")) :]
    else:
        values.yaml_add_eol_comment(text, key)


def _load(path: Path) -> Any:
    return commented().load(path.read_text(encoding="utf-8"))


def main(arguments: list[str] | None = None) -> int:
    """Write or check the files."""
    parser = argparse.ArgumentParser(description="Write dvc.yaml, and the files of pipelines/ and of a new project.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file is stale")
    check = parser.parse_args(arguments).check
    top, stale = FOLDER.parent, 0
    folders = [changes.parent for pattern in ("*", "*/*") for changes in sorted(FOLDER.glob(f"{pattern}/changes.yaml"))]
    rendered = ((folder, render(folder.relative_to(FOLDER).as_posix())) for folder in folders)
    made = {Path(os.path.normpath(folder / name)): text for folder, texts in rendered for name, text in texts.items()}
    made |= {top / TEMPLATE / name: text for name, text in render_new().items()}
    made[top / "dvc.yaml"] = render_root()
    for path, text in made.items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            stale += 1
            print(f"{path.relative_to(top)}: stale, run `python pipelines/make.py`", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for folder in folders:
        if not (check or (folder / "src").is_symlink()):
            (folder / "src").symlink_to(Path(os.path.relpath(FOLDER.parent / "src", folder)))
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main())
