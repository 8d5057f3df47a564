"""CSV files of the console."""

import csv
import io

from falcon.asgi import Response

from console.shell.csv_file import answer_csv
from services.domain.text import FORMULA_STARTS


def test_texts_are_no_formulas() -> None:
    response = Response()
    answer_csv(response, "a.csv", ["text", "count"], [[f"{start}1", -1] for start in (*FORMULA_STARTS, "a")])
    assert response.data is not None
    rows = list(csv.reader(io.StringIO(response.data.decode("utf-8-sig"), newline="")))
    assert rows[1:] == [*([f"'{start}1", "-1"] for start in FORMULA_STARTS), ["a1", "-1"]]
    assert {"\n", "＝", "＋", "－", "＠"} < {*FORMULA_STARTS}
