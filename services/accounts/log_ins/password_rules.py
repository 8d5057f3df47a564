"""Rules for new passwords: their length, and what others would guess first."""

import gzip
import unicodedata
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from itertools import pairwise

from services.runtime.errors import InputError

MIN_LENGTH = 12
MAX_LENGTH = 256
MIN_UNFORESEEN = 8
"""Characters of a password that must not follow from those before them."""

_MIN_DIFFERENT = 5
_MAX_REST = 24
_MAX_LETTERS = 3
"""Beside a common password as many letters, or more, are another word."""

_MIN_NAME = 4
"""Characters of a name that is looked for inside passwords: shorter ones stand in many words."""

_PRODUCT = "carillon"
_ROWS = ("1234567890", "qwertyuiop", "asdfghjkl", "zxcvbnm", "qwertzuiop", "azertyuiop")
_PAIRS = frozenset(pair for row in _ROWS for text in (row, row[::-1]) for pair in pairwise(text))
_SPELLINGS = tuple(str.maketrans("0134578@$!|", letters) for letters in ("oleastbasil", "oieastbasil"))
"""Letters for the signs by which people replace them; 1 stands for l or for i."""


def check_new_password(password: str, names: Iterable[str] = ()) -> None:
    """Check a password that a person has chosen; `names`: those of the person and of what the person works with.

    InputError: it is too short or too long, mostly repetition, contains a name, or is one of the commonest passwords,
    as it is or written with signs, repeated, or with a few foreseeable signs before and after it.
    """
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        raise InputError(f"a password must have {MIN_LENGTH} to {MAX_LENGTH} characters")
    text = unicodedata.normalize("NFKC", password).casefold()
    if len(_unit(text)) < MIN_LENGTH or len(set(text)) < _MIN_DIFFERENT or _unforeseen(text) < MIN_UNFORESEEN:
        raise InputError("a password must not be a repetition or a sequence, such as abcabcabcabc or 123456789012")
    if found := _name_inside(text, names):
        raise InputError(f"a password must not contain a name that others know: {found}")
    if _is_common(text):
        raise InputError("a password must not be one of the 10,000 commonest, or one of them with a few signs more")


def _unit(text: str) -> str:
    """Return the shortest text whose repetition this is, the last time perhaps in part (Knuth, Morris and Pratt).

    What is not there twice is no repetition.
    """
    borders = [0] * len(text)
    matched = 0
    for position in range(1, len(text)):
        while matched and text[position] != text[matched]:
            matched = borders[matched - 1]
        matched += text[position] == text[matched]
        borders[position] = matched
    period = len(text) - borders[-1] if text else 0
    return text[:period] if 2 * period <= len(text) else text


def _unforeseen(text: str) -> int:
    """Return how many characters neither repeat the one before them nor go on with its sequence or row of keys."""
    singles = [sign for position, sign in enumerate(text) if position == 0 or sign != text[position - 1]]
    count = min(2, len(singles))
    for before, last, sign in zip(singles, singles[1:], singles[2:], strict=False):
        step = ord(sign) - ord(last)
        is_sequence = abs(step) == 1 and step == ord(last) - ord(before)
        count += not (is_sequence or ((before, last) in _PAIRS and (last, sign) in _PAIRS))
    return count


def _name_inside(text: str, names: Iterable[str]) -> str:
    written = _spelt(text)
    for name in (_PRODUCT, *names):
        plain = unicodedata.normalize("NFKC", name).casefold().strip()
        words = "".join(sign if sign.isalnum() else " " for sign in plain).split()
        for part in (plain, "".join(words), *words):
            if len(part) >= _MIN_NAME and any(part in each for each in written):
                return part
    return ""


def _spelt(text: str) -> set[str]:
    """Return the text as it is, and with letters for the signs that may stand for them."""
    return {text, *(text.translate(spelling) for spelling in _SPELLINGS)}


def _is_common(text: str) -> bool:
    """Return whether a text is a common password, or one repeated, and little beside it would have to be guessed.

    Of a text the parts are looked up that leave fewer than 24 characters, so at most 300 however long it is.
    """
    for start in range(min(_MAX_REST, len(text))):
        for end in range(len(text), max(start, len(text) - _MAX_REST + start), -1):
            part = text[start:end]
            if _is_foreseeable(text[:start] + text[end:]) and any(each in _common() for each in _spelt(part)):
                return True
    first, last = _ends_of_letters(text)
    repeated = [text, text[first:last]] if _is_foreseeable(text[:first] + text[last:]) else [text]
    return any(_unit(each) in _common() for each in repeated)


def _is_foreseeable(rest: str) -> bool:
    return _unforeseen(rest) < MIN_UNFORESEEN and sum(map(str.isalpha, rest)) < _MAX_LETTERS


def _ends_of_letters(text: str) -> tuple[int, int]:
    letters = [position for position, sign in enumerate(text) if sign.isalpha()]
    return (letters[0], letters[-1] + 1) if letters else (0, len(text))


@cache
def _common() -> frozenset[str]:
    """Return the 19,640 commonest passwords in lower case, read when a password is first set in this process."""
    packed = files("services.accounts.log_ins").joinpath("common_passwords.txt.gz").read_bytes()
    return frozenset(gzip.decompress(packed).decode().split("\n")) - {""}
