"""An archive in a bucket of an S3-compatible store: PREFIX/TOPIC/PARTITION/SEGMENT, objects that never change.

PREFIX/states has the copies of states; a newer copy replaces the older one.
"""

from pathlib import Path

from obstore.exceptions import BaseError
from obstore.store import S3Store

from services.errors import ConflictError, UnavailableError
from services.log.archive.store import NOTHING_REMOVED, STATES_FOLDER, ArchiveBegin, SegmentName, parse_name
from services.log.port import Partition

_TIMEOUT = "30s"
_CONNECT_TIMEOUT = "5s"
_RETRIES = 3
_MAX_TEXT = 500


class ArchiveBucket:
    """The ArchiveStore in a bucket, at a URL `s3://BUCKET/PREFIX`.

    The store's address and log-in are set as for Amazon's own tools: by AWS_ENDPOINT_URL, AWS_REGION,
    AWS_ACCESS_KEY_ID and so on, or by the role of the machine or pod.
    """

    def __init__(self, url: str) -> None:
        self.location = url
        self._store: S3Store = S3Store.from_url(
            url,
            client_options={"timeout": _TIMEOUT, "connect_timeout": _CONNECT_TIMEOUT, "allow_http": True},
            retry_config={"max_retries": _RETRIES},
        )
        self._known: dict[Partition, list[SegmentName]] = {}

    def names(self, partition: Partition, *, anew: bool = False) -> list[SegmentName]:
        """Return the names of a partition's segments. Known names are not listed again: segments are never removed."""
        known = [] if anew else self._known.get(partition, [])
        after = _path(partition, known[-1]) if known else None
        try:
            pages = list(self._store.list(_folder(partition), offset=after))
        except (BaseError, OSError) as error:
            raise self._unavailable(error) from error
        found = [parse_name(each["path"].rpartition("/")[2]) for page in pages for each in page]
        self._known[partition] = sorted([*known, *(name for name in found if name)])
        return list(self._known[partition])

    def read(self, partition: Partition, name: SegmentName) -> bytes:
        try:
            return bytes(self._store.get(_path(partition, name)).bytes())
        except FileNotFoundError as error:
            lost = f"the archive {self.location} has lost the segment {_path(partition, name)}"
            raise ConflictError(f"{lost}. Put a copy from a backup there") from error
        except (BaseError, OSError) as error:
            raise self._unavailable(error) from error

    def write(self, partition: Partition, name: SegmentName, data: bytes) -> None:
        try:
            self._store.put(_path(partition, name), data, use_multipart=False)
        except (BaseError, OSError) as error:
            raise self._unavailable(error) from error

    def begin(self) -> ArchiveBegin:
        """Return NOTHING_REMOVED: CARILLON_ARCHIVE_DAYS is for archives in directories."""
        return NOTHING_REMOVED

    def file_saved_ms(self, name: str) -> int | None:
        try:
            return int(self._store.head(f"{STATES_FOLDER}/{name}")["last_modified"].timestamp() * 1000)
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise self._unavailable(error) from error

    def get_file(self, name: str, target: Path) -> None:
        try:
            with target.open("wb") as file:
                for part in self._store.get(f"{STATES_FOLDER}/{name}").stream():
                    file.write(part)
        except FileNotFoundError as error:
            raise ConflictError(f"the archive {self.location} has no file {STATES_FOLDER}/{name} any more") from error
        except (BaseError, OSError) as error:
            raise self._unavailable(error) from error

    def put_file(self, name: str, source: Path) -> None:
        try:
            self._store.put(f"{STATES_FOLDER}/{name}", source)
        except (BaseError, OSError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> UnavailableError:
        text = " ".join(str(error).partition("\n\nDebug source")[0].split())
        return UnavailableError(f"the archive {self.location} does not work: {text[:_MAX_TEXT]}")


def _folder(partition: Partition) -> str:
    return f"{partition.topic}/{partition.number:04}"


def _path(partition: Partition, name: SegmentName) -> str:
    return f"{_folder(partition)}/{name}"
