"""CSV files for spreadsheets."""

import csv
import io
from collections.abc import Iterable, Sequence

from falcon.asgi import Response

from services.domain.text import FORMULA_STARTS


def answer_csv(response: Response, name: str, head: Sequence[str], rows: Iterable[Sequence[str | int | float]]) -> None:
    """Answer with a file for people: UTF-8 with the mark by which spreadsheets know it.

    A text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(head)
    writer.writerows([_cell(cell) for cell in row] for row in rows)
    response.content_type = "text/csv; charset=utf-8"
    response.downloadable_as = name
    response.data = text.getvalue().encode("utf-8-sig")


def _cell(cell: str | int | float) -> str | int | float:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell
