"""The type of a planted bug: a named change of production code."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from tests.simulation.planted.edit import Edit

Kind = Literal["backends", "hand-overs", "installation"]


class PlantedBug(NamedTuple):
    """One bug. `text` says what is wrong; `kind` is the kind of world that looks for it (see search.KINDS)."""

    name: str
    text: str
    kind: Kind
    edits: Sequence[Edit]


def planted_bug(name: str, text: str, kind: Kind, *edits: tuple[str, str, str]) -> PlantedBug:
    """Return a bug with these edits; each names the function, the fragment of its source, and the replacement."""
    return PlantedBug(name, text, kind, [Edit(*edit) for edit in edits])
