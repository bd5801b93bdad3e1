"""Write `pipelines/*/dvc.yaml` and `params.yaml`: `python pipelines/make.py`; with `--check` say what is stale.

A pipeline's own `changes.yaml` says what it wants otherwise than `shapes.yaml` here and the root's `params.yaml`:

    heading: what it is, as text
    shape: of shapes.yaml; `online` where it is not given
    files: modules of its own, which every stage depends on
    params: the parameters that differ from the root's; a comment behind one replaces the root's
    algos: the algorithms it lists, each with the hyper-parameters that differ from `evopipe params block`; {}: none
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from evopipe import algos
from evopipe.schema.write import block, dump_yaml

FOLDER = Path(__file__).parent
KEYS = {"heading", "shape", "files", "params", "algos"}


def render(name: str) -> dict[str, str]:
    """Return the texts of a pipeline's files by their names.

    Raises:
        SystemExit: `changes.yaml` has an unknown key, or names a value that would be the same without it.
    """
    changes = _load(FOLDER / name / "changes.yaml")
    if set(changes) - KEYS:
        raise SystemExit(f"pipelines/{name}/changes.yaml: no key is called {', '.join(set(changes) - KEYS)}")
    source = f"pipelines/{name}/changes.yaml"
    made = "# Made by `python pipelines/make.py` from {} and " + source + ": edit those.\n"
    return {
        "dvc.yaml": made.format("pipelines/shapes.yaml") + _dvc(changes),
        "params.yaml": made.format("params.yaml") + _params(changes, source),
    }


def _dvc(changes: Any) -> str:
    shape = json.loads(json.dumps(_load(FOLDER / "shapes.yaml")[changes.get("shape", "online")]))
    heading = shape.pop("heading")
    for stage in shape["stages"].values():
        stage["deps"][1:1] = changes.get("files", [])
    return f"# {heading}\n" + re.sub(r"\n(?=  \w+:\n    cmd:|plots:)", "\n\n", dump_yaml(shape))


def _params(changes: Any, source: str) -> str:
    root = _load(FOLDER.parent / "params.yaml")
    del root["algos"]
    _change(root, changes["params"], source)
    out = StringIO()
    _yaml().dump(root, out)
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


def _yaml() -> YAML:
    yaml = YAML()  # keeps comments
    yaml.width = 4096
    yaml.representer.add_representer(type(None), lambda to, _: to.represent_scalar("tag:yaml.org,2002:null", "null"))
    return yaml


def _load(path: Path) -> Any:
    return _yaml().load(path.read_text(encoding="utf-8"))


def main(arguments: list[str] | None = None) -> int:
    """Write or check the files."""
    parser = argparse.ArgumentParser(description="Write the files of pipelines/ from what differs.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file is stale")
    check = parser.parse_args(arguments).check
    stale = 0
    for changes in sorted(FOLDER.glob("*/changes.yaml")):
        for name, text in render(changes.parent.name).items():
            path = changes.with_name(name)
            if path.is_file() and path.read_text(encoding="utf-8") == text:
                continue
            if check:
                stale += 1
                where = path.relative_to(FOLDER.parent)
                print(f"{where}: stale, run `python pipelines/make.py`", file=sys.stderr)
            else:
                path.write_text(text, encoding="utf-8")
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main())
