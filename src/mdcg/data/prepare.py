"""The images of a record: read from their source or the cache, and checked."""

from __future__ import annotations

from mdcg.data.cache import cached, write_cache
from mdcg.data.content import Arrays, check
from mdcg.data.record import DatasetRecord, Source
from mdcg.errors import MdcgError, machine_trouble


def content_of(record: DatasetRecord, source: Source) -> Arrays:
    """The images of a dataset: from the cache where they lie there already, else from their source."""
    if source.path is None:
        return read_anew(record, source)
    return cached(source.label, source.path, source.stamp(), lambda file: write_cache(file, read_anew(record, source)))


def read_anew(record: DatasetRecord, source: Source) -> Arrays:
    """Read the images from their source, not from the cache."""
    try:
        content = source.read()
        check(content, record.shape)
    except MdcgError:
        raise
    except Exception as error:  # a reader is anybody's code
        if trouble := machine_trouble(error):
            raise trouble from error
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        kind = "" if type(error) is ValueError and reason else f"{type(error).__name__}: "
        raise MdcgError(f"the dataset {record.name} cannot be read ({kind}{reason}); fix its 'read'.") from error
    return content
