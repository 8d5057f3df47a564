"""Passwords: rules for new ones, argon2id hashes, and comparison that takes as long for unknown users."""

import asyncio
import secrets
import unicodedata

import argon2

from services.runtime.errors import BusyError, InputError

_AT_A_TIME = 2
_MOST_WAITING = 32
MIN_LENGTH = 12
MAX_LENGTH = 256


class Passwords:
    """Hashes and compares passwords in threads, two at a time, since each takes 64 MiB and tens of milliseconds.

    BusyError: more than 32 wait already.
    """

    def __init__(self, hasher: argon2.PasswordHasher) -> None:
        self._hasher = hasher
        self._slots = asyncio.Semaphore(_AT_A_TIME)
        self._waiting = 0
        self._nobodys_hash = ""

    async def hash(self, password: str) -> str:
        """Return the hash of a new password. InputError: it is too short or too long."""
        if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
            raise InputError(f"a password must have {MIN_LENGTH} to {MAX_LENGTH} characters")
        return await self._in_thread(password, None)

    async def is_right(self, password: str, stored: str) -> bool:
        """Return whether the stored hash is that of the password.

        For "" it is compared with the hash of a random text, so that the answer takes as long and is False.
        """
        if not self._nobodys_hash:
            self._nobodys_hash = await self._in_thread(secrets.token_hex(), None)
        compared = await self._in_thread(password[: MAX_LENGTH + 1], stored or self._nobodys_hash)
        return bool(compared) and bool(stored)

    async def _in_thread(self, password: str, stored: str | None) -> str:
        """Return the hash of the password, or with a stored one that hash if it is the password's, else ""."""
        if self._waiting >= _MOST_WAITING:
            raise BusyError("too many passwords are being checked; try again")
        self._waiting += 1
        try:
            async with self._slots:
                return await asyncio.to_thread(self._work, unicodedata.normalize("NFKC", password), stored)
        finally:
            self._waiting -= 1

    def _work(self, password: str, stored: str | None) -> str:
        if stored is None:
            return self._hasher.hash(password)
        try:
            self._hasher.verify(stored, password)
        except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
            return ""
        return stored
