"""Storages of the Python SDK."""

import asyncio
import json
import os
import threading
from pathlib import Path

import pytest

from carillon_device import FileStorage, MemoryStorage, Saved, Storage
from carillon_device.storage import DeviceState
from testkit.gateway.scripted_gateway import BOUND_S
from testkit.waiting import run_ready_tasks


@pytest.fixture(params=["file", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return FileStorage(tmp_path / "device.json") if request.param == "file" else MemoryStorage()


async def test_the_last_saved_state_is_loaded(storage: Storage) -> None:
    assert await storage.load() == Saved()
    await storage.save(Saved("t", "k", (1, 2)))
    await storage.save(Saved("t", "k", (2, 2**53 - 1)))
    assert await storage.load() == Saved("t", "k", (2, 2**53 - 1))


async def test_a_file_is_private_and_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "device.json"
    (tmp_path / "device.json.new").write_text("left by a crash")
    storage = FileStorage(path)
    await storage.save(Saved("t", "k"))
    held = path.open()
    await storage.save(Saved("t", "k", (1,)))
    assert json.load(held)["msgids"] == []
    held.close()
    assert os.listdir(tmp_path) == ["device.json"]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "[]", '{"token": "t"}', '{"token": "t", "key": "k", "msgids": 1}'])
async def test_the_error_names_a_damaged_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "device.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"device\.json is not what a device has saved"):
        await FileStorage(path).load()


@pytest.mark.parametrize("version", [2, None])
async def test_the_error_names_a_file_in_a_later_form(tmp_path: Path, version: int | None) -> None:
    path = tmp_path / "device.json"
    path.write_text(json.dumps({"version": version, "other": 1}))
    with pytest.raises(ValueError, match=r"device\.json was saved by a later version of the SDK"):
        await FileStorage(path).load()


class SlowStorage(MemoryStorage):
    """Saves in a thread once `may_save` is set. `saving` is the number of saves now, `most_saving` the greatest."""

    def __init__(self) -> None:
        super().__init__()
        self.may_save = threading.Event()
        self.saving = self.most_saving = 0

    async def save(self, saved: Saved) -> None:
        self.saving += 1
        self.most_saving = max(self.most_saving, self.saving)
        await asyncio.to_thread(self._save, saved)

    def _save(self, saved: Saved) -> None:
        assert self.may_save.wait(BOUND_S)
        self.saved = saved
        self.saving -= 1


async def test_saves_do_not_overlap_when_one_is_cancelled() -> None:
    storage = SlowStorage()
    state = DeviceState(storage)
    cancelled = asyncio.create_task(state.save())
    await run_ready_tasks()
    state.add(7)
    waiting = asyncio.create_task(state.save())
    await run_ready_tasks()
    cancelled.cancel()
    await asyncio.wait([cancelled])
    await run_ready_tasks()
    storage.may_save.set()
    await waiting
    assert cancelled.cancelled()
    assert (storage.most_saving, storage.saved.msgids) == (1, (7,))


def test_a_key_is_not_printed() -> None:
    assert "secret" not in repr(Saved("t", "secret"))
