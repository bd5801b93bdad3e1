"""The rows of a dataset as tokens: for each row a prompt and at most two answers, see `Corpus`.

Text is tokenised here, once. Completions that members write are learned from as the tokens that they wrote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, get_args

import numpy as np
import torch

from evopipe import rng
from evopipe.errors import DataError
from evopipe.language import data
from evopipe.language.base import Base, stacked
from evopipe.rng import Purpose
from evopipe.schema.language import Form, LanguageConfig, TextFetch
from evopipe.storage.files import dump_json, parse_json
from evopipe.storage.folders import read_folder, write_folder
from evopipe.storage.tensors import dump_tensors, load_tensors
from evopipe.types import Tensor, Text

Rows: TypeAlias = "Sequence[int] | np.ndarray"
SPLITS = ("train", "validation", "test")
_ANSWERS: dict[str, tuple[str, ...]] = {
    "preference": ("chosen", "rejected"), "labelled": ("completion",), "supervised": ("completion",),
}  # fmt: skip
_BY_PROMPT = {"preference": "pairs", "labelled": "completions"}  # forms of which rows of a prompt share a split
_ROWS, _TENSORS, _ABOUT = "rows.jsonl", "tokens.safetensors", "about.json"


@dataclass(frozen=True)
class _Ragged:
    """Lists of numbers, one behind the other."""

    values: Tensor  # int64
    ends: Tensor  # [n] int64

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> _Ragged:
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        return cls(torch.tensor([x for row in rows for x in row], dtype=torch.int64), lengths.cumsum(0))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i: int) -> list[int]:
        start = int(self.ends[i - 1]) if i else 0
        found: list[int] = self.values[start : int(self.ends[i])].tolist()
        return found


@dataclass(frozen=True)
class Corpus:
    """A dataset of text, as rows of JSON data and as tokens.

    Attributes:
        form: the form of the rows, such as `supervised` or `preference`.
        rows: the rows as they were read.
        prompts: the tokens of each row's prompt.
        answers: one element for each answer of a row, with the tokens of this answer in all rows. The form says how
            many answers a row has. `reasoning`: none. `supervised`: one, the completion or chat. `games`: one, the
            game. `preference`: two, the chosen and the rejected completion. `labelled`: two, the completion, and the
            completion of another row, which KTO needs.
        learned: for each token of the first answer, 1 if members learn to write it, 0 for other text, such as messages
            of the user.
        splits: the indices of rows by split: `train`, `validation` (which scores members during training), `test`.
        left_out: the number of rows that were too long.
        digest: the digest of the base model whose tokenizer made the tokens.
    """

    form: Form
    rows: Sequence[Mapping[str, Any]]
    prompts: _Ragged
    answers: tuple[_Ragged, ...]
    learned: _Ragged
    splits: Mapping[str, np.ndarray]
    left_out: int
    digest: str

    def prompt_batch(self, index: Rows, pad: int) -> tuple[Tensor, Tensor]:
        """Return the prompts of the rows `index` `[n]` as tokens, padded on the left with the token `pad` to a common
        length L, `[n, L]` int64; and a mask `[n, L]` bool that is False for pads."""
        return stacked([self.prompts[int(i)] for i in index], pad, left=True)

    def batch(self, index: Rows, pad: int) -> Text:
        """Return the rows `index` `[n]` as a batch of text for one member, `[1, n, …]`. `pad` is the token that fills
        up shorter rows.

        If rows have two answers, the batch has 2 n rows: first all n with their first answer, then all n with their
        second.

        Rewards are set only if the attribute `form` is `labelled`. In the first n rows of the batch, the reward is 1 if
        the completion is labelled as desirable, else 0. In the last n rows it is 0, because their completions belong to
        other rows of the dataset.
        """
        ids, real = self.prompt_batch(index, pad)
        answers = [answer[int(i)] for answer in self.answers for i in index]
        told, there = stacked(answers, pad, left=False)
        times = len(self.answers)
        learned = there.clone()
        if times == 1:
            marks, _ = stacked([self.learned[int(i)] for i in index], 0, left=False)
            learned &= marks.bool()
        ids = torch.cat((ids.repeat(times, 1), told), dim=1)
        real = torch.cat((real.repeat(times, 1), there), dim=1)
        text = Text(ids[None], real[None], learned[None], torch.zeros_like(told)[None])
        if self.form != "labelled":
            return text
        labels = [float(self.rows[int(i)]["label"]) for i in index]
        return replace(text, reward=torch.tensor(labels + [0.0] * len(labels))[None])


def with_end(text: Text) -> Text:
    """Return a text with one more column of padding at its end. A value head (of a reward model, for example) reads
    there the hidden state that follows the whole text."""

    def longer(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, 1))

    return Text(longer(text.ids), longer(text.real), longer(text.mask), longer(text.turn))


def tokenise(
    rows: Sequence[Mapping[str, Any]], form: Form, base: Base, cfg: LanguageConfig, fetch: TextFetch, seed: int,
    held_out: int | None = None,
) -> Corpus:  # fmt: skip
    """Tokenise the rows of a dataset, and split them into training, validation and test. Rows that are too long are
    left out.

    Args:
        rows: the rows.
        form: the form of the rows, such as `supervised` or `preference`.
        base: the base model with the tokenizer.
        cfg: the block `language`, which says how prompts are shown and how long rows may be.
        fetch: the settings of the dataset: the shares of the splits, and what happens to overlapping rows.
        seed: the run's seed, for the random split.
        held_out: the index from which on rows are for validation; there is then no test split. None to split rows at
            random.

    Raises:
        DataError: a split is empty, or the chat template is missing or refuses a prompt.
    """
    made = [(place, row, *_row(row, form, base, cfg)) for place, row in enumerate(rows)]
    fits = [
        each for each in made
        if len(each[2]) <= cfg.max_prompt and all(len(answer) <= cfg.max_completion for answer in each[3])
    ]  # fmt: skip
    places, kept, prompts, answers, marks = zip(*fits, strict=True) if fits else ((),) * 5
    splits = _split(kept, form, fetch, seed) if held_out is None else _halves(np.array(places), held_out)
    if any(not len(splits[name]) for name in SPLITS[: 3 if held_out is None else 2]):
        raise DataError(_too_few(rows, kept, form, cfg))
    splits = _apart(kept, splits, fetch.overlap)
    if form == "labelled":
        answers = _with_others(kept, answers, splits)
    columns = tuple(_Ragged.of(list(column)) for column in zip(*answers, strict=True))
    left_out = len(rows) - len(kept)
    return Corpus(form, kept, _Ragged.of(prompts), columns, _Ragged.of(marks), splits, left_out, base.digest)


def seen(rows: Sequence[Mapping[str, Any]], splits: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the indices of the rows whose prompt is also the prompt of a training row.

    The result maps the names of the validation split and of the test split to the indices of such rows. `splits` maps
    the name of every split to the indices of all its rows.
    """
    of = {name: [data.asked(rows[i]) for i in index.tolist()] for name, index in splits.items()}
    return {name: splits[name][data.same(of["train"], of[name])] for name in SPLITS[1:]}


def _apart(rows: Sequence[Mapping[str, Any]], splits: dict[str, np.ndarray], overlap: str) -> dict[str, np.ndarray]:
    """Treat held-out rows of which the prompt is learned from as `fetch.overlap` says."""
    if overlap == "keep":
        return splits
    both = seen(rows, splits)
    if overlap == "error" and any(map(len, both.values())):
        named = [f"{name} row {i}: {data.asked(rows[i])!r:.60}" for name, index in both.items() for i in index.tolist()]
        raise DataError(
            f"fetch.overlap: {len(named)} held-out rows have a prompt that is learned from ({'; '.join(named[:5])}"
            f"{'; …' if len(named) > 5 else ''}): remove them, or set it to leave_out"
        )
    left = {**splits, **{name: np.setdiff1d(splits[name], index) for name, index in both.items()}}
    if empty := [name for name in SPLITS[1:] if len(splits[name]) and not len(left[name])]:
        raise DataError(
            f"fetch.overlap: every {empty[0]} row has a prompt that is learned from, and nothing is left: bring rows "
            "with other prompts, or set it to keep"
        )
    return left


def _with_others(
    rows: Sequence[Mapping[str, Any]], answers: Sequence[list[list[int]]], splits: Mapping[str, np.ndarray]
) -> tuple[list[list[int]], ...]:
    """Return the answer of each row and that of another one: the next of its split with another prompt, if there is
    one, else the next."""
    others: dict[int, list[int]] = {}
    prompts = [json.dumps(row["prompt"]) for row in rows]
    for index in splits.values():
        places = index.tolist()
        for n, i in enumerate(places):
            later = [*places[n + 1 :], *places[:n]]
            j = next((j for j in later if prompts[j] != prompts[i]), later[0] if later else i)
            others[i] = answers[j][0]
    return tuple([own[0], others[i]] for i, own in enumerate(answers))


def _too_few(rows: Sequence[Any], kept: Sequence[Mapping[str, Any]], form: Form, cfg: LanguageConfig) -> str:
    """Say why nothing is left of a split."""
    long = len(rows) - len(kept)
    if form in _BY_PROMPT and len(kept) >= len(SPLITS):
        prompts, what = len({json.dumps(row["prompt"]) for row in kept}), _BY_PROMPT[form]
        short = "" if not long else " that are not too long (language.max_prompt, language.max_completion)"
        return (
            f"the {len(kept)} {what}{short} have {prompts} prompt{'s' * (prompts > 1)} in all, {what} of one prompt "
            f"are in one split, and there are three: bring {what} of {len(SPLITS)} prompts or more"
        )
    if not long:
        return f"{len(rows)} rows are too few to split into three: bring more"
    return (
        f"of {len(rows)} rows {long} are longer than language.max_prompt ({cfg.max_prompt}) or language.max_completion "
        f"({cfg.max_completion}) allow, and {len(kept)} are too few to split: raise them, or bring more rows"
    )


def games(rows: Sequence[Mapping[str, Any]], told: Any, base: Base, fetch: TextFetch, seed: int) -> Corpus:
    """Split a dataset of games at random into training, validation and test; return it as a `Corpus`.

    Args:
        rows: the games.
        told: the games as tokens, which the task's `encode` returned.
        base: the base, whose tokens the games have.
        fetch: the settings with the shares of the splits.
        seed: the run's seed, for the random split.

    Raises:
        DataError: there are too few games for three splits.
    """
    splits = _split(rows, "games", fetch, seed)
    if any(not len(index) for index in splits.values()):
        raise DataError(f"{len(rows)} games are too few to split: bring more")
    ids, acts = (
        _Ragged.of([x[real].tolist() for x, real in zip(each, told.real, strict=True)])
        for each in (told.ids, told.acts)
    )
    return Corpus("games", rows, _Ragged.of([[]] * len(rows)), (ids,), acts, splits, 0, base.digest)


def _row(
    row: Mapping[str, Any], form: Form, base: Base, cfg: LanguageConfig
) -> tuple[list[int], list[list[int]], list[int]]:
    """Return a row's prompt, its answers, and which tokens of the first are learned."""
    if form == "supervised" and "messages" in row:
        return _chat(row["messages"], base, cfg.system)
    begun = isinstance(row["prompt"], list) and row["prompt"][-1]["role"] == "assistant"
    names = _ANSWERS.get(form, ())
    prompt, told = base.completed(row["prompt"], [row[name] for name in names], cfg.chat, cfg.system, begun)
    return prompt, told, [1] * len(told[0]) if told else []


def _chat(
    messages: Sequence[Mapping[str, str]], base: Base, system: str | None
) -> tuple[list[int], list[list[int]], list[int]]:
    """Split a chat at the assistant's texts, which are learned; all else is not, and what follows the last is left."""
    prompt, pieces = base.conversation(messages, system)
    answer = [token for tokens, _ in pieces for token in tokens]
    return prompt, [answer], [int(mark) for tokens, mark in pieces for _ in tokens]


def _split(rows: Sequence[Mapping[str, Any]], form: Form, fetch: TextFetch, seed: int) -> dict[str, np.ndarray]:
    """Divide rows at random: a tenth of 10 is 1, and no split is empty where there are 3. Pairs of one prompt share a
    split, and so do its labelled completions: who has learned from one of them knows the others' chosen completion."""
    alike = [json.dumps(row["prompt"]) if form in _BY_PROMPT else i for i, row in enumerate(rows)]
    group = {key: i for i, key in enumerate(dict.fromkeys(alike))}
    of = np.array([group[key] for key in alike])
    order = rng.host(rng.run_key(seed), Purpose.PROMPT).permutation(len(group))
    test, validation = (max(1, round(share * len(group))) for share in (fetch.test, fetch.validation))
    cuts = np.split(order, [test, test + validation])
    return dict(zip(reversed(SPLITS), (np.flatnonzero(np.isin(of, cut)) for cut in cuts), strict=True))


def _halves(places: np.ndarray, held_out: int) -> dict[str, np.ndarray]:
    """Divide rows by the places that they had: from `held_out` on they score members, and none is left for a test."""
    later = np.flatnonzero(places >= held_out)
    return {"train": np.flatnonzero(places < held_out), "validation": later, "test": later[:0]}


# --- as files ---------------------------------------------------------------------------------------------------------


def write_corpus(path: Path, corpus: Corpus) -> None:
    columns = {"prompt": corpus.prompts, "learned": corpus.learned}
    columns |= {f"answer.{i}": answer for i, answer in enumerate(corpus.answers)}
    tensors = {f"{name}.{part}": getattr(each, part) for name, each in columns.items() for part in ("values", "ends")}
    tensors |= {f"split.{name}": torch.from_numpy(index) for name, index in corpus.splits.items()}
    about = {"form": corpus.form, "answers": len(corpus.answers), "left_out": corpus.left_out, "base": corpus.digest}
    files = {
        _ROWS: b"".join(dump_json(dict(row), str(path / _ROWS)) for row in corpus.rows),
        _TENSORS: dump_tensors(tensors),
        _ABOUT: dump_json(about, str(path / _ABOUT), indent=2),
    }
    write_folder(path, files)


def read_corpus(path: Path) -> Corpus:
    """Read a dataset that `write_corpus` wrote.

    Raises:
        DataError: a file is damaged, or holds something else.
    """
    files = read_folder(path, only=(_ROWS, _TENSORS, _ABOUT))
    about = parse_json(files[_ABOUT], str(path / _ABOUT))
    tensors = load_tensors(files[_TENSORS], str(path / _TENSORS))
    try:
        if about["form"] not in get_args(Form):
            raise ValueError(f"form {about['form']!r:.40}")
        rows = [json.loads(line) for line in files[_ROWS].splitlines()]

        def column(name: str) -> _Ragged:
            found = _Ragged(tensors[f"{name}.values"], tensors[f"{name}.ends"])
            if len(found.values) != (int(found.ends[-1]) if len(found) else 0):
                raise ValueError(f"{name} is cut short")
            return found

        return Corpus(
            about["form"], rows, column("prompt"), tuple(column(f"answer.{i}") for i in range(about["answers"])),
            column("learned"), {name: tensors[f"split.{name}"].numpy() for name in SPLITS}, int(about["left_out"]),
            str(about["base"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: holds no rows as tokens ({error}); run `dvc repro buffer` again") from error
