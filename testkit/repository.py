"""The path of this repository's root, for tests that read files of the repository."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
