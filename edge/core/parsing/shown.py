"""Annotations that say how the published documents show a field. They do not change how a request is decoded."""

from typing import Any


class Shown:
    """The type that documents show of a field in place of the one that decodes it.

    `Annotated[msgspec.Raw, Shown(Tags | None)]` declares the type of a field that is decoded later or checked by code.
    Several kinds mean a value of any of them, structs included, which msgspec has no unions of.
    """

    def __init__(self, *kinds: Any) -> None:
        self.kinds = kinds
