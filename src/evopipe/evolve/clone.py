"""Cloning: children from parents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evopipe.core.population import Member
from evopipe.evolve.select import Selection


def clone(members: Sequence[Member], selection: Selection, next_id: int) -> list[Member]:
    """Fill every slot with a clone of its parent.

    Args:
        members: the population in slot order.
        selection: parents.
        next_id: first free id.

    Returns:
        Children in slot order, each with its slot's own key. Nothing is shared with a parent.
    """
    return [
        members[parent].clone(slot, next_id + slot, members[slot].key) for slot, parent in enumerate(selection.parents)
    ]


def keep_identity(child: Member, survivor: Member) -> Member:
    """Return a surviving elite's copy under the elite's own id and ancestry."""
    return replace(child, id=survivor.id, parent=survivor.parent)
