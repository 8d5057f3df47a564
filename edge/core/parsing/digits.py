"""Numbers of the legacy interfaces, which accept strings of digits as well."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from edge.core.parsing.typed import convert

Digits = Annotated[str, msgspec.Meta(pattern="^-?[0-9]{1,20}$")]
Flag = Annotated[int, msgspec.Meta(ge=0, le=1)]
Period = Annotated[int, msgspec.Meta(ge=60, le=604_800)]
"""Time to live in the legacy interfaces, seconds."""


def number(kind: Any, given: int | str | None, at: str) -> int | None:
    """Return the number. The bounds of the type `kind` hold for digit strings too. InputError: out of bounds."""
    return convert(kind, int(given), at) if isinstance(given, str) else given


def numbers(kind: Any, given: Sequence[int | str], at: str) -> list[int]:
    """Return each entry of a list as `number` does."""
    return [found for index, each in enumerate(given) if (found := number(kind, each, f"{at}[{index}]")) is not None]
