"""Settings of a process that cannot import the packages of the extra `embedded`, as in the image without them."""

from pathlib import Path

from services.process.build import EMBEDDED_PACKAGES


def without_embedded(folder: Path) -> dict[str, str]:
    """Make `folder` with modules that fail on import; return the setting that puts it before the packages."""
    folder.mkdir()
    for name in EMBEDDED_PACKAGES:
        (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError('no {name} here', name='{name}')\n")
    return {"PYTHONPATH": str(folder)}
