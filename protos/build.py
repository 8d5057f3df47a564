"""Generates the Python code of every contract beside its source; a hatch build hook and a command.

`pip install` runs it as a hook; after editing a .proto run `python protos/build.py`.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent.parent


def generate(root: Path = ROOT) -> None:
    """Compile protos/**/*.proto into *_pb2.py, *_pb2_grpc.py and their type stubs; raises on the first error."""
    from importlib.resources import files

    from grpc_tools import protoc

    folders = os.pathsep.join((os.environ["PATH"], str(Path(sys.executable).parent)))
    plugins = {name: shutil.which(name, path=folders) for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")}
    sources = sorted(str(path.relative_to(root)) for path in (root / "protos").rglob("*.proto"))
    arguments = [
        "protoc",
        f"-I{root}",
        f"-I{files('grpc_tools') / '_proto'}",
        *(f"--plugin={name}={path}" for name, path in plugins.items()),
        f"--python_out={root}",
        f"--grpc_python_out={root}",
        f"--mypy_out={root}",
        f"--mypy_grpc_out={root}",
        *sources,
    ]
    if protoc.main(arguments) != 0:
        raise RuntimeError("the contracts in protos/ do not compile; see the messages above")


class ProtosBuildHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "protos"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sys.path.insert(0, self.root)
        generate(Path(self.root))


if __name__ == "__main__":
    generate()
