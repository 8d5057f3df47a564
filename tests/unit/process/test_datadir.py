"""One running process per data directory."""

from pathlib import Path

import pytest

from services.runtime.errors import CarillonError, ConflictError
from services.runtime.process.data_directory import lock_directory
from testkit.held_process import holding

HOLD = """
from pathlib import Path
from services.runtime.process.data_directory import lock_directory
hold = lock_directory(Path(sys.argv[1]))
got = hold.__enter__()
"""


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    with holding(HOLD, str(tmp_path)) as other:
        with pytest.raises(ConflictError, match=rf"uses {tmp_path}; .*CARILLON_DATA_DIR"), lock_directory(tmp_path):
            pass
        other.kill()
        with lock_directory(tmp_path):
            pass


def test_two_locks_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    with lock_directory(tmp_path), pytest.raises(ConflictError), lock_directory(tmp_path):
        pass
    with lock_directory(tmp_path), lock_directory(tmp_path, "other.lock"):
        pass


def test_the_directory_is_made(tmp_path: Path) -> None:
    with lock_directory(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()


def test_a_directory_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CarillonError, match=rf"^{tmp_path}/file/data cannot be written: .*CARILLON_DATA_DIR$"):
        lock_directory(tmp_path / "file" / "data").__enter__()
