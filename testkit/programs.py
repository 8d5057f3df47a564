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


def installed(*names: str) -> str | None:
    """Return the path of the first of these programs that is installed."""
    folders = os.environ["PATH"].split(os.pathsep)
    if _SYSTEM in folders:
        folders += _OF_ADMINISTRATORS
    return next((path for name in names if (path := shutil.which(name, path=os.pathsep.join(folders)))), None)


def needed(*names: str) -> str:
    """Return the path of the first of these programs that is installed, and skip the test if none is."""
    path = installed(*names)
    if path is None:
        pytest.skip(f"{names[0]} is not installed")
    return path
