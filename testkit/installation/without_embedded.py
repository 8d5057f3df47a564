"""Processes without the packages of the extra `embedded`, as in the smaller image."""

from pathlib import Path

from services.runtime.process.extras import EMBEDDED_PACKAGES


def without_embedded(folder: Path) -> dict[str, str]:
    """Return the setting of a process that cannot import the packages of the extra `embedded`; writes into `folder`."""
    folder.mkdir()
    for name in EMBEDDED_PACKAGES:
        (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError('no {name} here', name='{name}')\n")
    return {"PYTHONPATH": str(folder)}
