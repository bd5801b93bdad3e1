"""Mixed actions: a Dict or Tuple of choices and numbers, which one policy takes at once.

As algorithms encode them, an action is one row of float32 numbers: the indices of all choices, then all numbers of
Boxes in [−1, 1], each in the order of the parts. Masks and a policy's outputs have a column for every value of every
choice, then one for each number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium
import numpy as np

from evopipe.errors import ParamsError, UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

    from evopipe.envs.spaces import ActionSpace

Path: TypeAlias = "tuple[str | int, ...]"
KINDS = ("discrete", "multidiscrete", "continuous")
"""The kinds of the parts."""


@dataclass(frozen=True, eq=False)
class ActionPart:
    """One of the spaces that a mixed action consists of.

    Attributes:
        path: the keys of Dicts and the indices of Tuples that lead to it.
        space: the space itself: `discrete`, `multidiscrete` or `continuous`.
    """

    path: Path
    space: ActionSpace

    @property
    def name(self) -> str:
        """The part's name in messages, such as `action['gear']`."""
        return "action" + "".join(f"[{key!r}]" for key in self.path)


def parts_of(space: object, of: Callable[[object], ActionSpace]) -> tuple[ActionPart, ...]:
    """Return the parts of a Dict or Tuple, nested ones too; `of` reads a space that is neither.

    Raises:
        ParamsError: a part is not served, or a Dict or Tuple is empty or has keys that are no texts.
    """
    return tuple(ActionPart(path, found) for path, found in _walk(space, (), of))


def _walk(space: object, path: Path, of: Callable[[object], ActionSpace]) -> Iterator[tuple[Path, ActionSpace]]:
    spaces = gymnasium.spaces
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        found = of(space)
        if found.kind not in KINDS:
            raise ParamsError(
                f"env.id: the action space has a {type(space).__name__} among its parts, which is not served: only "
                "Discrete, MultiDiscrete and bounded Box parts are"
            )
        yield path, found
        return
    held: list[tuple[Any, Any]] = [
        *(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))
    ]
    keys = str if isinstance(space, spaces.Dict) else int
    if not held or not all(isinstance(key, keys) for key, _ in held):
        raise ParamsError(
            f"env.id: the action space has a {type(space).__name__} without parts, or with keys that are no texts, "
            "which is not served: give its parts names"
        )
    for key, part in held:
        yield from _walk(part, (*path, key), of)


def nested(parts: Sequence[ActionPart], values: Sequence[Any]) -> Any:
    """Return a value for each part as the environment's own structure of dicts and tuples."""
    return _nested([(part.path, value) for part, value in zip(parts, values, strict=True)])


def _nested(items: Sequence[tuple[Path, Any]]) -> Any:
    if not items[0][0]:
        return items[0][1]
    groups: dict[str | int, list[tuple[Path, Any]]] = {}
    for path, value in items:
        groups.setdefault(path[0], []).append((path[1:], value))
    made = {key: _nested(group) for key, group in groups.items()}
    return tuple(made.values()) if isinstance(items[0][0][0], int) else made


def well_formed(parts: Sequence[ActionPart]) -> bool:
    """Return whether paths that were read from a file name a structure of dicts and tuples, each place once."""
    try:
        made = nested(parts, [*range(len(parts))])
        return [find(made, part) for part in parts] == [*range(len(parts))]
    except (ValueError, IndexError):
        return False


def find(structure: Any, part: ActionPart) -> Any:
    """Return what a structure of dicts and tuples holds for a part.

    Raises:
        ValueError: it holds nothing there. The error's text continues a sentence such as "action holds".
    """
    try:
        for key in part.path:
            structure = structure[key]
    except (LookupError, TypeError) as error:
        raise ValueError(f"no {part.name}, which its space has") from error
    return structure


def own(parts: Sequence[ActionPart], actions: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Convert n encoded actions `[n, D + C]` to the environment's own, an array `[n, …]` for each part."""
    found, index, number = [], 0, sum(len(part.space.choices) for part in parts)
    for part in parts:
        if part.space.continuous:
            found.append(part.space.own(actions[:, number : number + part.space.size]))
            number += part.space.size
        else:
            width = len(part.space.choices)
            taken = actions[:, index : index + width].astype(np.int64)
            found.append(part.space.own(taken[:, 0] if part.space.kind == "discrete" else taken))
            index += width
    return found


def each(parts: Sequence[ActionPart], actions: npt.NDArray[Any]) -> list[Any]:
    """Convert n encoded actions `[n, D + C]` to n structures, one for each environment."""
    arrays = own(parts, actions)
    return [nested(parts, [array[i] for array in arrays]) for i in range(len(actions))]


def relative(parts: Sequence[ActionPart], values: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
    """Encode n of the environment's own actions, given as an array `[n, …]` for each part: `[n, D + C]`."""
    encoded = [part.space.relative(value) for part, value in zip(parts, values, strict=True)]
    rows = [np.asarray(x, np.float32).reshape(len(x), -1) for x in encoded]
    order = sorted(range(len(parts)), key=lambda i: parts[i].space.continuous)  # stable: choices first
    return np.concatenate([rows[i] for i in order], axis=1)


def encoded(parts: Sequence[ActionPart], action: Any, batch: int) -> npt.NDArray[np.float32]:
    """Encode an action that a user gave, or a batch of B, in the environment's own structure: `[B, D + C]`.

    Raises:
        UsageError: a part is missing, has another shape, or holds a value that is not in its space.
    """
    arrays = []
    for part in parts:
        try:
            value = find(action, part)
            own = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value, np.float64)
        except (ValueError, TypeError) as error:
            raise UsageError(f"action holds {error}; pass what the environment takes") from error
        if own.shape not in (part.space.shape, (batch, *part.space.shape)):
            one, many = list(part.space.shape), [batch, *part.space.shape]
            raise UsageError(f"{part.name} has shape {own.shape}; expected {one} or {many}")
        own = np.broadcast_to(own, (batch, *part.space.shape))
        if not _within(part.space, own).all():
            raise UsageError(f"{part.name} holds a value that is not in the environment's action space")
        arrays.append(own)
    return relative(parts, arrays)


def _within(space: ActionSpace, values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Whether each of the values `[B, …]` is a number, of a choice one of its whole numbers."""
    if space.continuous:
        return np.isfinite(values)
    index = values.reshape(len(values), len(space.choices)) - np.array(space.starts)
    inside: npt.NDArray[np.bool_] = (index >= 0) & (index < np.array(space.choices)) & (index == np.floor(index))
    return inside


def flat_mask(parts: Sequence[ActionPart], mask: Any) -> Any:
    """Join the masks of all choices, a structure like that of the action, to one array `[…, A]`.

    Boxes have no mask: theirs is None, or left out of a dict. A mask that is an array is returned as it is.

    Raises:
        ValueError: a mask is missing, does not fit its choices, or belongs to a Box. The error's text continues a
            sentence such as "The environment returned".
    """
    if not isinstance(mask, Mapping | tuple):
        return mask
    found, numbers = [], 0
    for part in parts:
        if part.space.continuous:
            numbers += part.space.size
            if _given(mask, part) is not None:
                raise ValueError(f"an action_mask of {part.name}, whose actions are numbers: it must be None")
            continue
        own = np.asarray(part.space.flat_mask(find(mask, part)))
        if own.dtype.kind not in "biu" or not own.ndim or own.shape[-1] != part.space.size:
            raise ValueError(
                f"an action_mask of {part.name} that is {own.dtype}{[*own.shape]}, expected {part.space.size} numbers"
            )
        found.append(own)
    lead = found[0].shape[:-1] if found else ()
    if any(own.shape[:-1] != lead for own in found):
        raise ValueError(f"an action_mask whose parts have the shapes {[[*own.shape] for own in found]}")
    return np.concatenate([*(own.astype(np.bool_) for own in found), np.ones((*lead, numbers), np.bool_)], axis=-1)


def _given(mask: Any, part: ActionPart) -> Any:
    try:
        return find(mask, part)
    except ValueError:
        return None


def sample(
    parts: Sequence[ActionPart], legal: npt.NDArray[np.bool_], rng: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Draw one encoded action `[D + C]`, uniformly among what is legal, `[A]`."""
    choices, numbers, start = [], [], 0
    for part in parts:
        if part.space.continuous:
            numbers.append(part.space.sample(legal[:0], rng))
        else:
            drawn = part.space.sample(legal[start : start + part.space.size], rng)
            choices.append(np.atleast_1d(drawn).astype(np.float32))
            start += part.space.size
    return np.concatenate([*choices, *numbers], dtype=np.float32)


def bounds(parts: Sequence[ActionPart]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the lowest and the highest value of each of the C numbers of all Boxes, `[C]` each."""
    held = [part.space.bounds for part in parts if part.space.bounds is not None]
    low, high = (np.concatenate([np.zeros(0), *(bound[i] for bound in held)]) for i in range(2))
    return low, high
