"""Hashes of passwords (argon2id), and comparison that takes as long for unknown users."""

import asyncio
import contextlib
import os
import secrets
import threading
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import argon2

from services.accounts.log_ins.limits import Acquaintance
from services.accounts.log_ins.password_rules import MAX_LENGTH
from services.runtime.child.slices import PATIENT_NS, choose_slice
from services.runtime.fairness.semaphore import FairSemaphore

_MAX_WAITING = 32
_NICENESS = 10


class Passwords:
    """Hashes and compares passwords one at a time, since each takes 64 MiB and tens of milliseconds of all processors.

    It does so in a thread of low priority, so that in one process with the pushes a flood of log-ins delays none. Known
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

        For "" it is compared with the hash of a random text, so that the answer takes as long and is False.
        """
        if not self._nobodys_hash:
            self._nobodys_hash = await self._in_thread(secrets.token_hex(), None, acquaintance)
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
