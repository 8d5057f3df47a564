"""Writes the lock files beside it: every package of an installation with one version and the hashes of its files.

`make lock` runs it after a change of `pyproject.toml`; `make lock ARGS=--upgrade` also takes the newest versions that
the ranges allow. The files hold for every supported Python and processor and name no registry.
"""

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OF_THIS_REPOSITORY = "carillon-device"
"""A dependency that is installed from `sdk/`; the lock files hold its dependencies."""

_OPTIONS = (
    *("--universal", "--generate-hashes", "--no-config", "--quiet", "--no-strip-extras"),
    *("--custom-compile-command", "make lock"),
)


def compile_lock(name: str, requirements: Sequence[str], options: Sequence[str]) -> None:
    """Resolve the requirements and write `name`.lock; versions already in it stay where the requirements allow."""
    command = [str(Path(sys.executable).parent / "uv"), "pip", "compile", *_OPTIONS, *options]
    subprocess.run(  # noqa: S603
        [*command, "-", "--output-file", f"requirements/{name}.lock"],
        cwd=ROOT,
        input="\n".join(requirements),
        text=True,
        stdout=subprocess.DEVNULL,
        check=True,
    )


def main(options: Sequence[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    runtime = [text for text in project["project"]["dependencies"] if not text.startswith(OF_THIS_REPOSITORY)]
    extras = project["project"]["optional-dependencies"]
    build = project["build-system"]["requires"]
    oldest = ["--python-version", project["project"]["requires-python"].partition(",")[0].removeprefix(">=")]
    compile_lock("dev", [*runtime, *extras["embedded"], *build, *extras["dev"]], [*oldest, *options])
    of_dev = ["--constraints", "requirements/dev.lock"]
    compile_lock("runtime", runtime, [*oldest, *of_dev, *options])
    compile_lock("embedded", [*runtime, *extras["embedded"]], [*oldest, *of_dev, *options])
    compile_lock("build", build, [*oldest, *of_dev, *options])
    compile_lock("tools", extras["tools"], [*oldest, *options])
    compile_lock("node", extras["node"], [*oldest, *options])


if __name__ == "__main__":
    main(sys.argv[1:])
