"""A device's state that outlives a restart, and the storages for it."""

import asyncio
import contextlib
import json
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from carillon_device.errors import UnavailableError

MAX_MSGIDS = 1000
"""Handled message ids that a device stores, so that it shows no push twice."""

VERSION = 1
"""Form of the stored state, which one without a `version` has; a later form has a greater one."""


@dataclass(frozen=True)
class Saved:
    """The stored state: `token` and `key` are the device's identity, `msgids` the handled pushes, oldest first."""

    token: str | None = None
    key: str | None = field(default=None, repr=False)
    msgids: tuple[int, ...] = ()


class Storage(Protocol):
    """Stores the state of one device; an app may implement it in its own way."""

    async def load(self) -> Saved:
        """Return the state that was saved last; `Saved()` when none was."""
        ...

    async def save(self, saved: Saved) -> None:
        """Return once the state survives a power cut, for pushes are acknowledged after that.

        Calls never overlap.
        """
        ...


class MemoryStorage:
    """Stores the state in memory; it is lost at the end of the process."""

    def __init__(self, saved: Saved | None = None) -> None:
        self.saved = saved or Saved()

    async def load(self) -> Saved:
        return self.saved

    async def save(self, saved: Saved) -> None:
        self.saved = saved


class FileStorage:
    """Stores the state in a JSON file of mode 600, which is replaced atomically. Only one device may use the file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    async def load(self) -> Saved:
        """Read the file. ValueError: it is damaged, or of a later version of the SDK."""
        return await asyncio.to_thread(self._read)

    async def save(self, saved: Saved) -> None:
        text = json.dumps({"token": saved.token, "key": saved.key, "msgids": saved.msgids})
        await asyncio.to_thread(self._write, text.encode())

    def _read(self) -> Saved:
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return Saved()
        try:
            found = json.loads(text)
            is_known = found.get("version", VERSION) == VERSION
            saved = Saved(found["token"], found["key"], tuple(map(int, found["msgids"]))) if is_known else None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ValueError(f"{self._path} is not what a device has saved") from None
        if saved is None:
            raise ValueError(f"{self._path} was saved by a later version of the SDK")
        return saved

    def _write(self, text: bytes) -> None:
        new = self._path.with_name(f"{self._path.name}.new")
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        _sync_directory(self._path.parent)


class DeviceState:
    """The state of a running device; `save` writes it to the storage."""

    def __init__(self, storage: Storage) -> None:
        self.token: str | None = None
        self.key: str | None = None
        self._msgids: OrderedDict[int, None] = OrderedDict()
        self._storage = storage
        self._saving = asyncio.Lock()

    async def load(self) -> None:
        saved = await self._storage.load()
        self.token, self.key = saved.token, saved.key
        self._msgids = OrderedDict.fromkeys(saved.msgids)

    async def save(self) -> None:
        """Write the state. UnavailableError: the storage failed.

        A cancelled call leaves its write going on, and the next write waits for it.
        """
        await asyncio.shield(asyncio.create_task(self._save()))

    async def _save(self) -> None:
        async with self._saving:
            try:
                await self._storage.save(Saved(self.token, self.key, tuple(self._msgids)))
            except Exception as error:
                raise UnavailableError(f"the state of the device could not be saved: {error}") from error

    def has(self, msgid: int) -> bool:
        return msgid in self._msgids

    def add(self, msgid: int) -> None:
        self._msgids[msgid] = None
        if len(self._msgids) > MAX_MSGIDS:
            self._msgids.popitem(last=False)


def _sync_directory(directory: Path) -> None:
    """Make a rename survive a power cut, on systems where directories can be synced."""
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
