"""python -m carillon.openapi DIRECTORY: write every document into a file of the directory."""

import sys
from pathlib import Path

from console import calls as console
from edge.openapi.documents import DOCUMENTS, document_bytes


def main(directory: Path) -> None:
    for name in DOCUMENTS:
        (directory / f"{name}.json").write_bytes(document_bytes(name))
    (directory / "console.json").write_bytes(console.written())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
