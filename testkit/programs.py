"""Programs that tests start and that pip does not install: a browser, Java, HAProxy and others.

`make test` installs what it may and says what it leaves out (`setup/test_programs.py`); a test that needs a program
that is still missing is skipped.
"""

import pytest

from setup.doctor import installed

__all__ = ["BROWSERS", "installed", "needed"]

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def needed(*names: str, path: str | None = None) -> str:
    """Return what `installed` does, and skip the test if none is installed."""
    found = installed(*names, path=path)
    if found is None:
        pytest.skip(f"{names[0]} is not installed")
    return found
