"""Lists in text fields: lines of values between commas, where a value with a comma stands in quotation marks."""

import csv
import io
import re
from collections.abc import Iterable, Sequence

from services.runtime.errors import InputError

_COMPARISON = re.compile(r"(>=|<=|>|<|=)\s*(\d+)", re.ASCII)


def lines_of_values(text: str) -> list[list[str]]:
    """Return the values of each line that is not empty."""
    lines = csv.reader(text.replace("，", ",").splitlines(), skipinitialspace=True)
    found = ([value.strip() for value in line if value.strip()] for line in lines)
    return [line for line in found if line]


def values(text: str) -> list[str]:
    """Return the values of all lines."""
    return [value for line in lines_of_values(text) for value in line]


def numbers(text: str, at: str) -> list[list[int]]:
    """Return the numbers of each line. InputError: something is not a number."""
    return [[_number(value, at) for value in line] for line in lines_of_values(text)]


def text_of(lines: Iterable[Sequence[object]]) -> str:
    """Return the text whose values these are, a line for each list."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().strip("\n")


def comparisons(text: str, at: str) -> dict[str, int]:
    """Return comparisons such as `>= 3, < 50` by their operator. InputError: the text is something else."""
    found: dict[str, int] = {}
    for value in values(text):
        match = _COMPARISON.fullmatch(value)
        if match is None or match[1] in found:
            raise InputError(f"{at} must be comparisons such as >= 3, < 50, each operator once")
        found[match[1]] = int(match[2])
    return found


def models(text: str, at: str) -> dict[str, list[str]]:
    """Return models by brand, from lines such as `brand: one, two`. InputError: a line has another form."""
    found: dict[str, list[str]] = {}
    for line in filter(str.strip, text.splitlines()):
        brand, colon, rest = line.replace("：", ":").partition(":")
        if not colon or not brand.strip() or not values(rest):
            raise InputError(f"{at} must be lines such as brand: model, model")
        found.setdefault(brand.strip(), []).extend(values(rest))
    return found


def _number(value: str, at: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise InputError(f"{at} must be whole numbers, not {value}") from None
