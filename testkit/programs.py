"""Programs that tests start and that pip does not install: a browser, Java, HAProxy and others.

`make test` installs what it may and says what it leaves out (`setup/test_programs.py`); a test that needs a program
that is still missing is skipped.
"""

import os
import shutil

import pytest

_SYSTEM = "/usr/bin"
_OF_ADMINISTRATORS = ("/usr/sbin", "/usr/local/sbin")
"""Folders in which Debian has servers such as HAProxy, and which are not on the path of every user."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def installed(*names: str, path: str | None = None) -> str | None:
    """Return the path of the first of these programs that is installed; `path`: where, or else on the user's path."""
    folders = (os.environ["PATH"] if path is None else path).split(os.pathsep)
    if _SYSTEM in folders:
        folders += _OF_ADMINISTRATORS
    return next((found for name in names if (found := shutil.which(name, path=os.pathsep.join(folders)))), None)


def needed(*names: str, path: str | None = None) -> str:
    """Return what `installed` does, and skip the test if none is installed."""
    found = installed(*names, path=path)
    if found is None:
        pytest.skip(f"{names[0]} is not installed")
    return found
