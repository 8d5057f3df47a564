"""Modules and folders are small enough to be taken in at once, as docs/contributing.md says."""

import subprocess
from collections import Counter
from pathlib import Path

from testkit.repository import ROOT

MODULE_LINES = 300
FOLDER_FILES = 15


def committed() -> list[Path]:
    """Return the files of the repository, as paths in it; generated code and files that git ignores are none."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for path in map(Path, listed.splitlines()) if (ROOT / path).is_file()]


def test_every_module_has_fewer_than_300_lines() -> None:
    modules = [path for path in committed() if path.suffix in (".py", ".js")]
    assert len(modules) > 500
    lines = {path: (ROOT / path).read_bytes().count(b"\n") for path in modules}
    assert {str(path): count for path, count in lines.items() if count >= MODULE_LINES} == {}


def test_every_folder_has_at_most_15_files() -> None:
    """`__init__.py` does not count."""
    folders = Counter(path.parent for path in committed() if path.name != "__init__.py")
    assert len(folders) > 100
    assert {str(folder): count for folder, count in folders.items() if count > FOLDER_FILES} == {}
