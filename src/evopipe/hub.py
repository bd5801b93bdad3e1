"""Elites on the Hugging Face hub: what `evopipe push` and `evopipe pull` do.

A repository holds an exported policy's folder, with its manifest, and beside it what one reads before one trusts it: a
card with scores that leaderboards read, a film, the lineage, and the parameters that rebuild it. Its description and
tensors are JSON and safetensors; no file of it is ever unpickled, and no code in it is run.
"""

from __future__ import annotations

import contextlib
import logging
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from evopipe import layout
from evopipe.core import numpy_policy
from evopipe.errors import DataError, EvopipeError, HubError, MissingInputError, UsageError
from evopipe.language.hub import REACH_SECONDS, first_line, reach
from evopipe.params.load import load_params
from evopipe.policies import film, play
from evopipe.policies.card import render
from evopipe.policies.policy import CARD, POLICY, Policy, TeamPolicy, load
from evopipe.report import draw, figures
from evopipe.report.read import read
from evopipe.storage.files import parse_json, read_bytes, read_json
from evopipe.storage.folders import MANIFEST, read_folder, write_folder
from evopipe.storage.keys import content_key

FILM, LINEAGE, PARAMS = "replay.gif", "lineage.svg", "params.yaml"
_WIDTH = 960  # pixels of the lineage
_HALO = ".halo { paint-order: stroke; stroke: var(--surface); stroke-width: 4px; }"  # as on the page
_FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_Tell = Callable[[str], None]


def push(folder: Path, repo: str, dry_run: Path | None, private: bool, filmed: bool, tell: _Tell, warn: _Tell) -> None:
    """Push an elite (the best member of a run) to a repository of the Hugging Face hub, in one commit that replaces all
    files there.

    Args:
        folder: the folder of an exported policy, such as `models/elite`, or the folder of its run.
        repo: the repository's name, `USER/NAME`; it is made if necessary.
        dry_run: a folder to which the files are written in place of the repository, so that nothing leaves this
            machine; None to push.
        private: whether a repository that is made is private.
        filmed: whether to add a film of one episode of the elite.
        tell: a function that is called with a sentence that says what was done.
        warn: a function that is called with a sentence for each file that is left out, which says why.

    Raises:
        UsageError: `repo` is no name of a repository, the folder `dry_run` is not empty, or nobody is logged in.
        MissingInputError, DataError: the folder holds no elite, or a damaged one.
        HubError: the hub cannot be reached, or refuses the request.
    """
    _check_name(repo)
    if dry_run is not None:
        _check_free("push", dry_run)
    files = assemble(folder, repo, filmed, warn)
    size = f"{len(files)} files, {sum(map(len, files.values())) / 1e6:.1f} MB"
    if dry_run is not None:
        write_folder(dry_run, files)
        tell(f"written: {dry_run}, {size}, as it would be pushed to {repo}")
        return
    with tempfile.TemporaryDirectory(prefix="evopipe-push-") as temporary, _client(repo) as api:
        whole = Path(temporary) / "elite"
        write_folder(whole, files)
        api.create_repo(repo, private=private, exist_ok=True)
        pushed = api.upload_folder(
            repo_id=repo, folder_path=whole, delete_patterns="*", commit_message=f"evopipe: {_title(files)}"
        )
    tell(f"pushed: {repo}, {size}: {pushed.commit_url}")


def pull(repo: str, folder: Path, revision: str | None, tell: _Tell, warn: _Tell) -> None:
    """Fetch an elite (the best member of a run) from a repository of the Hugging Face hub into a folder that
    `evopipe.load` can read.

    The files are checked before the folder is written: every file against the repository's manifest, and the policy's
    description against its tensors. Files that the manifest does not name are not fetched.

    Args:
        repo: the repository's name, `USER/NAME`.
        folder: the folder to write. If it exists, it must be empty.
        revision: a branch, tag or commit of the repository; None for its default branch.
        tell: a function that is called with a sentence that says what was done.
        warn: a function that is called with a sentence for each Python file that is not a copy of evopipe's own.

    Raises:
        UsageError: `repo` is no name of a repository, or the folder is not empty.
        MissingInputError: there is no such repository or revision, or the repository holds no elite.
        DataError: a file is damaged, or differs from the manifest.
        HubError: the hub cannot be reached.
    """
    _check_name(repo)
    _check_free("pull", folder)
    with tempfile.TemporaryDirectory(prefix="evopipe-pull-") as temporary, _client(repo) as api:
        whole = Path(temporary) / "elite"
        fetch = partial(api.hf_hub_download, repo, revision=revision, local_dir=whole)
        if MANIFEST not in api.list_repo_files(repo, revision=revision):
            raise MissingInputError(f"pull: {repo} has no {MANIFEST}: it holds no elite that evopipe pushed")
        fetch(MANIFEST)
        read_folder(whole, only=())  # whether its names are safe
        for name in read_json(whole / MANIFEST)["files"]:
            fetch(name)
        files = read_folder(whole)
        policy = load(whole)
    write_folder(folder, files)
    for name in files:
        if name.endswith(".py") and files[name] != Path(numpy_policy.__file__).read_bytes():
            warn(f"pull: {folder / name} is code that is not this version's own: read it before you run it")
    tell(f"pulled: {repo} to {folder}: {policy!r}")


def assemble(folder: Path, repo: str, filmed: bool, warn: _Tell) -> dict[str, bytes]:
    """Return the files to push by name: the exported policy, its model card, and, if they can be made, the run's
    parameters, its lineage (the members of all generations), and a film.

    Args:
        folder: the folder of an exported policy, or the folder of its run.
        repo: the repository's name, which the model card shows.
        filmed: whether to add a film of one episode.
        warn: a function that is called with a sentence for each file that is left out.

    Raises:
        MissingInputError, DataError: the folder holds no exported policy, or a damaged one.
    """
    elite = folder if (folder / POLICY).exists() else folder / layout.ELITE
    if not (elite / POLICY).is_file():
        raise MissingInputError(
            f"push: {folder} holds no elite (no {POLICY}): name an exported policy's folder, such as models/elite"
        )
    about = parse_json(read_bytes(elite / POLICY), str(elite / POLICY))
    if not isinstance(about, dict) or not isinstance(about.get("env"), dict):
        raise DataError(f"push: {elite} is of no environment; a language model is pushed by the library of its base")
    files, policy = read_folder(elite), load(elite)
    files = {name: data for name, data in files.items() if name not in (FILM, LINEAGE, PARAMS)}
    run = elite.absolute().parents[len(layout.ELITE.parts) - 1]
    made: dict[str, bytes] = {}
    makers: dict[str, Callable[[], bytes]] = {
        PARAMS: partial(_params, run, about),
        LINEAGE: partial(_lineage, run, elite),
        FILM: partial(_film, policy),
    }
    if not filmed:
        del makers[FILM]
    for name, make in makers.items():
        try:
            made[name] = make()
        except EvopipeError as error:
            warn(f"push: {name} is left out: {error}")
    card = _card(about, files[CARD].decode(), repo, made.keys())
    return {**files, **made, CARD: card.encode()}


def _params(run: Path, about: dict[str, Any]) -> bytes:
    """Return the parameters that made an elite."""
    if content_key(load_params(str(run / PARAMS)).tracked()) != about["provenance"]["params_hash"]:
        raise DataError(f"{run / PARAMS} has other parameters than made the elite")
    return read_bytes(run / PARAMS)


def _lineage(run: Path, elite: Path) -> bytes:
    """Return the picture of the lineage that the report has, with the page's colours inside itself."""
    if (run / layout.ELITE).resolve() != elite.resolve():
        raise MissingInputError(f"{elite} does not lie in the folder of its run, which has the reports")
    with draw.style():
        svg = str(figures.lineage(read(run), _WIDTH, Markup("The lineage")))
    colours = "".join(f"--{name}: {colour}; " for name, colour in draw.PALETTE.items())
    looks = f'style="{colours}background: {draw.PALETTE["surface"]}; font-family: sans-serif"'
    begin, _, rest = svg.partition(">")
    begin = begin.replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" {looks} ')
    return f"{begin}><style>{_HALO}</style>{rest}".encode()


def _film(policy: Policy | TeamPolicy) -> bytes:
    """Return a film of one episode."""
    with tempfile.TemporaryDirectory(prefix="evopipe-film-") as temporary:
        path = Path(temporary) / FILM
        play.watch(policy, play.environment_of(policy), [partial(film.gif, path)])
        return read_bytes(path)


def _card(about: dict[str, Any], body: str, repo: str, made: Any) -> str:
    """Return the card of a repository: what the exported one says, behind what leaderboards read."""
    from huggingface_hub import EvalResult, ModelCardData

    env, scores = str(about["env"]["id"]), about["evaluation"]
    result = EvalResult(
        task_type="reinforcement-learning", task_name="reinforcement-learning",
        dataset_type=env, dataset_name=env, metric_type="mean_reward", metric_name="mean_reward",
        metric_value=f"{scores['mean']:.2f} +/- {scores['std']:.2f}", verified=False,
    )  # fmt: skip
    front = ModelCardData(
        library_name="evopipe", pipeline_tag="reinforcement-learning", model_name=f"{about['algo'].upper()} on {env}",
        tags=["reinforcement-learning", "deep-reinforcement-learning", about["algo"], env], eval_results=[result],
    )  # fmt: skip
    return render(
        "hub.md.j2", front=front.to_yaml(), body=_FRONT.sub("", body).strip(), about=about, repo=repo, made=made,
        film=FILM, lineage=LINEAGE, params=PARAMS,
    )  # fmt: skip


def _title(files: dict[str, bytes]) -> str:
    about = parse_json(files[POLICY], POLICY)
    return f"{about['algo']} on {about['env']['id']}"


def _check_name(repo: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repo)
    except HFValidationError:
        repo, wrong = repo[:60], True
    else:
        wrong = repo.count("/") != 1
    if wrong:
        raise UsageError(f"hub: {repo!r} is no name of a repository: write USER/NAME, of letters, digits, -, _ and .")


def _check_free(what: str, folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{what}: {folder} is there, and nothing is overwritten; name a folder that is not there yet")


@contextlib.contextmanager
def _client(repo: str) -> Iterator[Any]:
    """Yield the hub's client in a `with` block, once it was seen to answer; its errors become ours."""
    from huggingface_hub import HfApi, errors
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its warnings tell each of its tries
    api = HfApi(library_name="evopipe")

    def ask() -> None:
        with contextlib.suppress(errors.HfHubHTTPError):  # that there is none is an answer
            api.repo_info(repo, timeout=REACH_SECONDS / 2)

    if (failed := reach(ask)) is not None:
        raise HubError(f"hub: {api.endpoint} cannot be reached ({failed}): try again later; nothing was changed")
    try:
        yield api
    except EvopipeError:
        raise
    except errors.RevisionNotFoundError:
        raise MissingInputError(f"hub: {repo} has no such revision; correct it") from None
    except (errors.RepositoryNotFoundError, errors.EntryNotFoundError) as error:
        raise MissingInputError(
            f"hub: {repo} is not there, lacks a file, or is private and nobody is logged in ({first_line(error)})"
        ) from None
    except (errors.LocalTokenNotFoundError, errors.HfHubHTTPError) as error:
        status = getattr(getattr(error, "response", None), "status_code", 401)
        if status in (401, 403):
            raise UsageError(
                f"hub: {repo} is not open to this user ({first_line(error)}): log in with `hf auth login`"
            ) from None
        raise HubError(f"hub: {repo}: the hub refused ({first_line(error)}): try again later") from None
    except OSError as error:
        raise HubError(f"hub: {repo}: the hub stopped answering ({first_line(error)}): try again later") from None
