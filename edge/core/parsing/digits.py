"""Numbers that the legacy interfaces take as strings of digits too."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from edge.core.parsing.typed import convert

Digits = Annotated[str, msgspec.Meta(pattern="^-?[0-9]{1,20}$")]
Flag = Annotated[int, msgspec.Meta(ge=0, le=1)]
Period = Annotated[int, msgspec.Meta(ge=60, le=604_800)]
"""Time to live in the legacy interfaces, seconds."""


def number(kind: Any, given: int | str | None, at: str) -> int | None:
    """The number, whose bounds are those of the type `kind` however it was written. InputError: out of bounds."""
    return convert(kind, int(given), at) if isinstance(given, str) else given


def numbers(kind: Any, given: Sequence[int | str], at: str) -> list[int]:
    """As `number`, for each entry of a list."""
    return [found for index, each in enumerate(given) if (found := number(kind, each, f"{at}[{index}]")) is not None]
