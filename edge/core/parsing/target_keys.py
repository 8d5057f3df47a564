"""The keys by which a push names its targets: a null one, or a misspelt one, must not reach every device."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from edge.core.parsing.typed import ABSENT, decode
from services.runtime.errors import InputError

MAX_UNKNOWN = 1000
"""Upper bound of the unknown keys beside the targets: each is compared with the targets."""


def check_misspelt(given: Iterable[str], known: Collection[str], targets: Sequence[str], at: str = "") -> None:
    """Check that no unknown key is a misspelt target.

    InputError: one is among `targets` but for its case, a plural s, or one letter; or too many are unknown.

    `known`: all keys of the object that holds the targets; `at`: the path of that object, with a dot.
    """
    longest = max(map(len, targets)) + len("es")
    unknown = [key for key in given if key not in known]
    if len(unknown) > MAX_UNKNOWN:
        raise InputError(f"{at.rstrip('.') or 'the body'} has more than {MAX_UNKNOWN} fields that are not known")
    for key in unknown:
        if len(key) <= longest and (meant := _meant(key.lower(), targets)):
            raise InputError(f"{at}{key} is not known; the field is {at}{meant}")


def check_top(raw: bytes, known: Collection[str], targets: Sequence[str]) -> Mapping[str, msgspec.Raw]:
    """Return the fields at the top of a body. InputError: their keys, as `check_misspelt`, or a target is null."""
    given: dict[str, msgspec.Raw] = decode(dict[str, msgspec.Raw], raw)
    check_misspelt(given, known, targets)
    for target in targets:
        if target in given and given[target] == ABSENT:
            raise InputError(f"{target} must not be null: name whom the push is for, or leave the field out")
    return given


def _meant(key: str, targets: Sequence[str]) -> str | None:
    """Return the target that a lower-case key stands for. Another style or a plural comes before other slips."""
    bare = _without_dashes(key)
    for target in targets:
        if _without_dashes(target) in (bare, bare.removesuffix("s"), bare.removesuffix("es")):
            return target
    return next((target for target in targets if _is_one_letter_off(key, target)), None)


def _without_dashes(key: str) -> str:
    return key.replace("_", "").replace("-", "")


def _is_one_letter_off(key: str, target: str) -> bool:
    """Whether one letter is changed, added or missing."""
    same = next((place for place, pair in enumerate(zip(key, target, strict=False)) if pair[0] != pair[1]), None)
    if same is None:
        return abs(len(key) - len(target)) == 1
    return target[same + 1 :] in (key[same + 1 :], key[same:]) or key[same + 1 :] == target[same:]
