"""The latest change of each app's and table's rows, from which it follows whether a cached answer is still valid."""

from collections.abc import Collection, Iterable, Mapping

import pyarrow as pa


class StoreChanges:
    """Numbers the changes of the store since this process began; `latest` is the number of the newest one."""

    def __init__(self, apart: Collection[str] = ()) -> None:
        """`apart`: tables from which no answer about an app is made; a change counts for the table's name alone."""
        self.latest = 0
        self._apart = apart
        self._of_all = 0
        self._of_name: dict[str, int] = {}

    def note(self, tables: Mapping[str, pa.Table]) -> None:
        """Note that these rows were inserted."""
        self.latest += 1
        for name, rows in tables.items():
            self._of_name[name] = self.latest
            if name in self._apart:
                continue
            apps = rows["appkey"].unique().to_pylist() if "appkey" in rows.column_names else [""]
            if "" in apps:
                self._of_all = self.latest
            self._of_name |= dict.fromkeys(apps, self.latest)

    def note_app(self, appkey: str) -> None:
        """Note that rows of this app were inserted."""
        self.latest += 1
        self._of_name[appkey] = self.latest

    def note_all(self) -> None:
        """Note that rows of any app may have been inserted."""
        self.latest += 1
        self._of_all = self.latest

    def is_same_since(self, number: int, names: Iterable[str]) -> bool:
        """Return whether no change after `number` concerns these apps or tables.

        Rows without an app concern every app and table.
        """
        return self._of_all <= number and all(self._of_name.get(name, 0) <= number for name in names)
