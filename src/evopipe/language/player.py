"""Exported players of games: `models/elite` of a pipeline whose members are small GPTs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from pydantic import ValidationError

from evopipe import rng
from evopipe.core.member import Member, tensor_kinds
from evopipe.core.net import Net
from evopipe.errors import DataError, UsageError
from evopipe.formats import score
from evopipe.language import tasks
from evopipe.language.base import tokens_alone
from evopipe.language.gpt import GPT
from evopipe.language.writing import Writer, joint_writer
from evopipe.rng import Purpose
from evopipe.schema.language import LanguageConfig
from evopipe.schema.stored import in_a_sentence
from evopipe.storage.folders import read_folder
from evopipe.storage.tensors import dump_tensors, load_tensors
from evopipe.types import Hyper, Words

POLICY, WEIGHTS = "policy.json", "weights.safetensors"


class GamePolicy:
    """A trained player of a task's games, such as Wordle.

    Args:
        about: the content of the player's `policy.json`: scores, lineage and provenance.
        task: the task, whose method `play` plays games.
        algo: the module of the algorithm.
        cfg: the algorithm's configuration.
        hyper: the member's hyper-parameters as tensors, by name.
        nets: the networks that choose tokens, by name.
    """

    def __init__(
        self, about: Mapping[str, Any], task: Any, algo: Any, cfg: Any, hyper: Hyper, nets: Mapping[str, Net]
    ) -> None:
        self.about, self.task, self._algo = dict(about), task, algo
        self._cfg, self._hyper, self._nets = cfg, hyper, nets

    def __repr__(self) -> str:
        env = self.about.get("env")
        place = f", {env['id']}" if isinstance(env, dict) and "id" in env else ""
        return f"<GamePolicy {self.about.get('algo', '')}{place}>"

    def act(self, seeds: np.ndarray) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """Return a function that chooses the next token of each of `n` games. `seeds` `[n]` seed the games' random
        draws.

        The function takes the tokens of the games so far, padded to L tokens, `[n, L]`, and the number of tokens in
        each game, `[n]`. It returns a token for each game, `[n]` int64.
        """
        return joint_writer([(self._writer(seeds, self._cfg, self._hyper), np.arange(len(seeds)))], self.task.guess)

    def play(self, games: int = 1, seed: int = 0) -> Any:
        """Play some games, and return the result of the task's method `play`.

        The result has, for each game, the return, the number of tries and whether it was won, and also the games as
        data.

        Args:
            games: the number of games.
            seed: the seed of the games' random draws.
        """
        seeds = rng.seeds(np.full(games, rng.run_key(seed)), Purpose.EPISODE, np.arange(games))
        return self.task.play(seeds, self.act(seeds))

    def perform(
        self, games: int, seed: int, ask: Callable[[], str], show: Callable[[str], None], tell: Callable[[str], None]
    ) -> None:
        """Play games for a user. After each game, `show` is called with the game as text, and `tell` with its return.
        At the end, `tell` is called with the mean return and the share of games won. `ask` is not used."""
        played = self.play(games, seed)
        for row, total in zip(played.rows, played.returns, strict=True):
            show("\n".join(squares(row)) if "guesses" in row else json.dumps(row))
            tell(f"return {score(total)}")
        mean, won = score(played.returns.mean()), played.won.mean()
        tell(f"{self.about['env']['id']}: mean return {mean} of {games} game{'s' * (games > 1)}, {won:.0%} won")

    def generate(
        self, prompts: str | Sequence[str], max_tokens: int | None = None, temperature: float | None = None,
        seed: int = 0,
    ) -> Any:  # fmt: skip
        """Continue games from their first tokens.

        Args:
            prompts: a text, or a list of texts, of the task's tokens: `<s>ab<g><b>` is one turn of a game.
            max_tokens: the number of tokens to write; None for one turn.
            temperature: the divisor of logits in sampling; 0 for the most likely token; None for that of training.
            seed: seed of the random draws.

        Returns:
            The new tokens as text, or a list of texts for a list of prompts.

        Raises:
            UsageError: a value is out of its range, or a prompt has unknown tokens or is too long.
        """
        many, limit = [prompts] if isinstance(prompts, str) else list(prompts), max_tokens or self.task.guess
        if type(limit) is not int or limit < 1 or (temperature is not None and not temperature >= 0):
            raise UsageError("generate: max_tokens must be a whole number of at least 1, temperature at least 0")
        rows = [self._tokens(prompt) for prompt in many]
        longest = max(map(len, rows), default=0)
        if longest + limit > self.task.length:
            told = f"{longest} tokens, and {limit} to be written"
            raise UsageError(f"generate: a game has {self.task.length} tokens at most, a prompt has {told}")
        ids, used = np.zeros((len(rows), self.task.length), np.int64), np.array([len(row) for row in rows])
        for place, row in zip(ids, rows, strict=True):
            place[: len(row)] = row
        cfg, hyper = self._cfg, self._hyper
        if temperature is not None:
            cfg = cfg.model_copy(update={"decode": "sample"})
            hyper = {**hyper, "temperature": torch.full((1,), float(temperature))}
        keys = rng.seeds(np.full(len(rows), rng.run_key(seed)), Purpose.GENERATE, np.arange(len(rows)))
        writer, begun = self._writer(keys, cfg, hyper), used.copy()
        for _ in range(limit if rows else 0):
            ids[np.arange(len(ids)), used] = writer(ids, used, limit)
            used += 1
        tokens = self.task.tokens
        found = ["".join(tokens[i] for i in row[a:b]) for row, a, b in zip(ids.tolist(), begun, used, strict=True)]
        return found[0] if isinstance(prompts, str) else found

    def _writer(self, seeds: np.ndarray, cfg: Any, hyper: Hyper) -> Writer:
        return Writer(self._nets, partial(self._algo.logits, cfg, hyper), cfg, hyper, seeds)

    def _tokens(self, prompt: str) -> list[int]:
        """Return the tokens of a text, the longest that fits each time."""
        found, at = [], 0
        known = sorted(enumerate(self.task.tokens), key=lambda token: -len(token[1]))
        while at < len(prompt):
            token = next(((i, text) for i, text in known if prompt.startswith(text, at)), None)
            if token is None:
                raise UsageError(
                    f"generate: no token begins with {prompt[at:]!r:.40}; there are {' '.join(self.task.tokens)}"
                )
            found.append(token[0])
            at += len(token[1])
        if not found:
            raise UsageError(f"generate: a prompt is empty; a game begins with {self.task.tokens[1]}")
        return found


def _networks(algo: Any, cfg: Any, words: Words) -> dict[str, Any]:
    """Return the widths of the parts of the state that write."""
    widths = algo.networks(cfg, words)
    kinds = tensor_kinds(algo.State, widths)
    return {name: widths[kinds[name][1]] for name in (algo.POLICY, *algo.ACTS_WITH)}


def files(algo: Any, cfg: Any, words: Words, member: Member) -> dict[str, bytes]:
    """Return the weights of the networks that choose tokens, for export: file contents by name.

    Args:
        algo: the module of the algorithm.
        cfg: the algorithm's configuration.
        words: the sizes of the vocabulary and of the hidden states.
        member: the member whose weights are exported.
    """
    found: dict[str, torch.Tensor] = {}
    for part, widths in _networks(algo, cfg, words).items():
        named = member.arch.named(widths, member.tensors[part])
        found |= {f"{part}.{name}": tensor.contiguous() for name, tensor in named.items()}
    return {WEIGHTS: dump_tensors(found)}


def read(
    folder: Path, about: Mapping[str, Any], algo: Any
) -> tuple[LanguageConfig, Any, Any, GPT, dict[str, torch.Tensor]]:
    """Read an exported player from its folder. `about` is the content of its `policy.json`, and `algo` the module of
    the algorithm.

    Returns:
        The block `language` of the parameters, the task, the algorithm's configuration, the architecture, and by name
        each network that chooses tokens, as a flat row (all its weights in one vector).

    Raises:
        DataError: a file is damaged, or the tokens of the task have changed since the training.
    """
    try:
        config = LanguageConfig.model_validate(about["language"])
        with in_a_sentence(algo.Config, about["config"]):
            cfg = algo.Config.model_validate({**about["config"], **about["hyper"]})
        arch, digest = GPT.from_json(about["arch"]), str(about["base"])
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise DataError(f"{folder / POLICY}: does not say what it is ({error}); export it again") from None
    task: Any = tasks.get(config.task, config.kwargs)
    base = tokens_alone(task.tokens, task.length, arch.hidden)
    if base.digest != digest or arch.length != task.length:
        raise DataError(f"{folder}: was trained over other tokens than {config.task} has now; export it again")
    tensors = load_tensors(read_folder(folder, only=(WEIGHTS,))[WEIGHTS], str(folder / WEIGHTS))
    rows = {}
    for part, widths in _networks(algo, cfg, base.words).items():
        rows[part] = torch.zeros(arch.size(widths))
        for name, place in arch.named(widths, rows[part]).items():
            held = tensors.get(f"{part}.{name}")
            if held is None or held.shape != place.shape:
                raise DataError(f"{folder / WEIGHTS}: does not fit its architecture at {part}.{name}; export it again")
            place.copy_(held)
    return config, task, cfg, arch, rows


def load(folder: Path, about: Mapping[str, Any], algo: Any) -> GamePolicy:
    """Load an exported player from its folder as a `GamePolicy`. `about` is the content of its `policy.json`, and
    `algo` the module of the algorithm.

    Raises:
        DataError: a file is damaged, or the task now has other tokens.
    """
    _, task, cfg, arch, rows = read(folder, about, algo)
    nets = {}
    for part, widths in _networks(algo, cfg, Words(len(task.tokens), arch.hidden)).items():
        structure = arch.stack([arch], widths, torch.device("cpu"))
        nets[part] = Net(structure, structure.pack([rows[part]]))
    hyper = {name: torch.tensor([float(value)]) for name, value in cfg if type(value) in (int, float)}
    return GamePolicy(about, task, algo, cfg, hyper, nets)


def squares(row: Mapping[str, Any]) -> list[str]:
    """Return one line of text for each turn of a word game, for terminals: the guess on coloured squares, then its
    colours as letters. `row` is the game as data, with `guesses` and `colours`."""
    shades = {"g": "green", "y": "yellow", "b": "bright_black"}
    turns = []
    for guess, told in zip(row["guesses"], row["colours"], strict=True):
        squares = zip(guess.upper(), told or " " * len(guess), strict=True)
        drawn = [typer.style(f" {letter} ", fg="white", bg=shades.get(mark), bold=True) for letter, mark in squares]
        turns.append(f"{''.join(drawn)}  {told or 'no word'}")
    return turns
