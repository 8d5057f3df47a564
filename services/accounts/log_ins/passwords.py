"""Passwords: rules for new ones, their hashes (argon2id), and comparison that takes as long for unknown users."""

import asyncio
import contextlib
import gzip
import os
import secrets
import threading
import unicodedata
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.resources import files
from itertools import pairwise

import argon2

from services.accounts.log_ins.limits import Acquaintance
from services.errors import Code, InputError
from services.net.fairness import FairSemaphore
from services.process.slices import PATIENT_NS, choose_slice

# Rules for new passwords: their length, and which ones are easy to guess.

MIN_LENGTH = 12
MAX_LENGTH = 256
MIN_UNFORESEEN = 8
"""Lower bound of the characters of a password that do not follow from the ones before them."""

_MIN_DIFFERENT = 5
_MAX_REST = 24
_MAX_LETTERS = 3
"""Letters beside a common password from which on they count as a word of their own."""

_MIN_NAME = 4
"""Characters of a name that is looked for inside passwords: shorter ones stand in many words."""

_PRODUCT = "carillon"
_ROWS = ("1234567890", "qwertyuiop", "asdfghjkl", "zxcvbnm", "qwertzuiop", "azertyuiop")
_PAIRS = frozenset(pair for row in _ROWS for text in (row, row[::-1]) for pair in pairwise(text))
_SPELLINGS = tuple(str.maketrans("0134578@$!|", letters) for letters in ("oleastbasil", "oieastbasil"))
"""Letters for the signs by which people replace them; 1 stands for l or for i."""


def check_new_password(password: str, names: Iterable[str] = ()) -> None:
    """Check a password that a person has chosen; `names`: of the user, the user's teams and their apps.

    InputError: the password is too short or too long, mostly repetition, contains a name, or is a common password. A
    common password is found also where digits and signs replace letters (`p@ssw0rd`), where it is repeated, and where a
    few characters before or after it are easy to guess.
    """
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        raise InputError(Code.WRONG_LENGTH, at="a password", least=MIN_LENGTH, most=MAX_LENGTH)
    text = unicodedata.normalize("NFKC", password).casefold()
    if len(_unit(text)) < MIN_LENGTH or len(set(text)) < _MIN_DIFFERENT or _unforeseen(text) < MIN_UNFORESEEN:
        raise InputError(Code.PASSWORD_REPETITION, at="a password")
    if found := _name_inside(text, names):
        raise InputError(Code.PASSWORD_HAS_NAME, at="a password", name=found)
    if _is_common(text):
        raise InputError(Code.PASSWORD_COMMON, at="a password")


def _unit(text: str) -> str:
    """Return the shortest text whose repetition this is, the last time perhaps in part (Knuth, Morris and Pratt).

    A text without two whole repetitions is returned as it is.
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
    """Return how many characters neither repeat the one before them nor continue a sequence or a row of keys."""
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
    """Return whether a text is a common password, once or repeated, with little beside it that is hard to guess.

    Only parts that leave fewer than 24 characters of the text are looked up: 300 at most, however long it is.
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


_MAX_WAITING = 32
_NICENESS = 10


class Passwords:
    """Hashes and compares passwords one at a time, since each takes 64 MiB and tens of milliseconds of all processors.

    It does so in a thread of low priority, so that a flood of log-ins delays no push in the same process. Known
    browsers, known networks and strangers take turns. BusyError: more than 32 of the same kind wait already.
    """

    def __init__(self, hasher: argon2.PasswordHasher) -> None:
        self._hasher = hasher
        self._turns = FairSemaphore("passwords", 1, max_waiting=_MAX_WAITING)
        self._thread = ThreadPoolExecutor(1, "passwords", _lower_priority)
        self._nobodys_hash = ""

    async def hash(self, password: str) -> str:
        """Return the hash of a new password, which `check_new_password` has accepted."""
        return await self._in_thread(password, None, Acquaintance.BROWSER)

    async def is_right(self, password: str, stored: str, acquaintance: Acquaintance = Acquaintance.BROWSER) -> bool:
        """Return whether the stored hash is that of the password.

        For "" the password is compared with the hash of a random text, so that the answer takes as long and is False.
        """
        if not self._nobodys_hash:
            self._nobodys_hash = await self._in_thread(secrets.token_hex(), None, acquaintance)
        # One character above the bound, so that the beginning of a longer text is never accepted.
        compared = await self._in_thread(password[: MAX_LENGTH + 1], stored or self._nobodys_hash, acquaintance)
        return bool(compared) and bool(stored)

    async def _in_thread(self, password: str, stored: str | None, acquaintance: Acquaintance) -> str:
        """Return the hash of the password, or with a stored one that hash if it is the password's, else ""."""
        async with self._turns.slot(acquaintance):
            normal = unicodedata.normalize("NFKC", password)
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._work, normal, stored)

    def _work(self, password: str, stored: str | None) -> str:
        if stored is None:
            return self._hasher.hash(password)
        try:
            self._hasher.verify(stored, password)
        except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
            return ""
        return stored


def _lower_priority() -> None:
    """Lower the thread's priority and lengthen its slices, so that a thread of pushes interrupts it when it wakes.

    The threads of argon2 inherit both, where the system has them for threads.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
    choose_slice(PATIENT_NS)
