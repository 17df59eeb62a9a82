"""The input files as one long table: found, opened, fingerprinted and streamed."""

from __future__ import annotations

import errno
import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from specbatch.errors import EngineError, InputError, SpecbatchError, StorageError

_MAX_BATCH_ROWS = 4096
_BATCH_BYTES = 8 << 20
_GLOB: Mapping[str, str] = MappingProxyType({"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*"})


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One Parquet file of the job.

    Attributes:
        name: As shown in messages.
        path: Inside ``filesystem``.
        first_row: Job-wide index of its first row.
        num_rows: Rows of it that belong to the job (``limit`` may end inside the file).
        size: Bytes.
        mtime_ns: Modification time; 0 where the filesystem keeps none.
        schema: As stored.
    """

    name: str
    path: str
    filesystem: pafs.FileSystem
    first_row: int
    num_rows: int
    size: int
    mtime_ns: int
    schema: pa.Schema

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Stream some columns in order, at most a few megabytes at a time.

        Raises:
            InputError: The file is damaged.
            StorageError: It was deleted or replaced since it was opened.
            EngineError: There is no memory to read it.
        """
        left = self.num_rows
        if not columns:
            yield from _without_columns(left)
            return
        try:
            with pq.ParquetFile(self.path, filesystem=self.filesystem, pre_buffer=False) as file:
                rows = _batch_rows(file.metadata)
                for batch in file.iter_batches(batch_size=rows, columns=list(columns)):
                    if left <= 0:
                        return
                    yield batch.slice(0, left)
                    left -= batch.num_rows
        except (OSError, pa.ArrowException) as error:
            self._check_there()
            raise _unreadable(self.name, error) from None
        if left > 0:
            self._check_there()
            raise InputError(
                f"{self.name}: {left} rows fewer than announced", "the file changed or is damaged"
            )

    def check_unchanged(self) -> None:
        """Compare the file with what it was when it was opened; one that is gone cannot mislead.

        Raises:
            StorageError: It was replaced.
        """
        info = self._info()
        gone = info.type == pafs.FileType.NotFound
        if not gone and (info.size or 0, info.mtime_ns or 0) != (self.size, self.mtime_ns):
            raise StorageError(
                f"{self.name} was changed while the job ran",
                "run the same command again: answers of rows that are still there are kept",
            )

    def _check_there(self) -> None:
        """After a failure to read: a file that somebody took away or replaced was not damaged all along."""
        if self._info().type == pafs.FileType.NotFound:
            raise StorageError(
                f"{self.name} was deleted while the job ran",
                "put it back and run the same command again: finished rows are kept",
            )
        self.check_unchanged()

    def _info(self) -> pafs.FileInfo:
        try:
            return self.filesystem.get_file_info(self.path)
        except OSError as error:
            raise StorageError(f"{self.name}: {error}", "run the same command again") from error

    def fingerprint(self) -> dict[str, object]:
        """What must be equal for the file to count as unchanged without reading it."""
        # Local paths in full: the same command may be started elsewhere next time.
        path = self.name if "://" in self.name else str(Path(self.name).absolute())
        return {"path": path, "size": self.size, "mtime_ns": self.mtime_ns, "rows": self.num_rows}


def open_sources(inputs: Sequence[str], limit: int | None = None) -> tuple[SourceFile, ...]:
    """Find and open all input files; only their footers are read.

    Args:
        inputs: Files, globs, directories or URLs that pyarrow's filesystems open.
        limit: Rows of the job at most.

    Raises:
        InputError: Nothing found, or something is not Parquet.
    """
    sources: list[SourceFile] = []
    first_row = 0
    for spec in inputs:
        for filesystem, info in _find(spec):
            if limit is not None and sources and first_row >= limit:
                return tuple(sources)
            source = _open(spec, filesystem, info, first_row)
            if limit is not None and first_row + source.num_rows > limit:
                source = _open(spec, filesystem, info, first_row, keep=limit - first_row)
            sources.append(source)
            first_row += source.num_rows
    return tuple(sources)


def _open(
    spec: str, filesystem: pafs.FileSystem, info: pafs.FileInfo, first_row: int, keep: int | None = None
) -> SourceFile:
    scheme, separator, _ = spec.rpartition("://")
    name = f"{scheme}{separator}{info.path}"
    try:
        with pq.ParquetFile(info.path, filesystem=filesystem) as file:
            schema: pa.Schema = file.schema_arrow
            num_rows: int = file.metadata.num_rows
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(name, error) from None
    rows = num_rows if keep is None else keep
    return SourceFile(
        name,
        info.path,
        filesystem,
        first_row,
        rows,
        info.size or 0,
        info.mtime_ns or 0,
        schema.remove_metadata(),
    )


def _find(spec: str) -> list[tuple[pafs.FileSystem, pafs.FileInfo]]:
    """Files behind one input, in name order."""
    if "://" in spec:
        filesystem, paths = _find_remote(spec)
    else:
        filesystem = pafs.LocalFileSystem()
        exists = Path(spec).exists()
        # pathlib cannot expand a pattern that is absolute, relative and recursive in one call.
        paths = [spec] if exists or not glob.has_magic(spec) else sorted(glob.glob(spec, recursive=True))  # noqa: PTH207
    if not paths:
        raise InputError(f"{spec}: no file matches", "check the pattern and the place it starts from")
    return [(filesystem, info) for path in paths for info in _files(spec, filesystem, path)]


def _find_remote(spec: str) -> tuple[pafs.FileSystem, list[str]]:
    """Filesystem of an address and the paths in it; ``*`` and ``[`` are patterns, ``?`` begins options."""
    address, mark, options = spec.partition("?")
    start = min((address.find(sign) for sign in "*[" if sign in address), default=-1)
    if start < 0:
        filesystem, path = _filesystem(spec)
        return filesystem, [path]
    root, _, pattern = address[:start].rpartition("/")
    filesystem, path = _filesystem(root + mark + options)
    return filesystem, _matching(spec, filesystem, path, pattern + address[start:])


def _filesystem(uri: str) -> tuple[pafs.FileSystem, str]:
    try:
        filesystem, path = pafs.FileSystem.from_uri(uri)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise InputError(f"{uri}: {error}", "check the address and the credentials") from None
    return filesystem, path


def _matching(spec: str, filesystem: pafs.FileSystem, root: str, pattern: str) -> list[str]:
    """Paths below ``root`` that match; ``*`` stays inside a folder, ``**`` crosses folders."""
    tokens = re.findall(r"\*\*/|\*\*|\*|\[[^\]]+\]|.", pattern)
    matcher = re.compile("".join(_GLOB.get(token) or _literal(token) for token in tokens))
    selector = pafs.FileSelector(root, recursive="/" in pattern or "**" in pattern)
    try:
        found = [info.path for info in filesystem.get_file_info(selector)]
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{spec}: {error}", "check the path and its permissions") from None
    below = len(root.rstrip("/")) + 1
    return sorted(path for path in found if matcher.fullmatch(path[below:]))


def _literal(token: str) -> str:
    """A character, or a set of characters such as ``[0-9]``."""
    return token.replace("[!", "[^") if len(token) > 1 else re.escape(token)


def _files(spec: str, filesystem: pafs.FileSystem, path: str) -> list[pafs.FileInfo]:
    try:
        info = filesystem.get_file_info(path)
        if info.type == pafs.FileType.NotFound:
            raise InputError(f"{spec}: no such file", "check the path and the working directory")
        if info.type == pafs.FileType.Unknown:
            raise InputError(f"{spec}: neither a file nor a directory", "store the table in a file")
        if info.type != pafs.FileType.Directory:
            return [info]
        inside = filesystem.get_file_info(pafs.FileSelector(path, recursive=True))
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{spec}: {error}", "check the path and its permissions") from None
    _refuse_run_directory(spec, path, inside)
    files = [item for item in inside if item.type == pafs.FileType.File and _is_data(item.path, path)]
    if not files:
        raise InputError(
            f"{spec}: no .parquet files in this directory", "name the files or another directory"
        )
    return sorted(files, key=lambda item: str(item.path))


def _refuse_run_directory(spec: str, path: str, inside: Sequence[pafs.FileInfo]) -> None:
    """Parts, results and decisions are no job together, and whoever names them meant something else."""
    held = {item.path[len(path) :].strip("/") for item in inside}
    if "run.json" not in held or not held & {"results.parquet", "parts"}:
        return
    place = path.rstrip("/")
    hint = f"specbatch report {place} shows it; its own input with --out {place} goes on with it"
    if "results.parquet" in held:
        hint += f"; its answers as a table are in {place}/results.parquet"
    raise InputError(f"{spec} is a run directory, the output of specbatch run, and no input", hint)


def _is_data(path: str, root: str) -> bool:
    """Hidden files and bookkeeping of other tools (leading ``.`` or ``_``) are not data."""
    parts = path[len(root) :].strip("/").split("/")
    return parts[-1].endswith((".parquet", ".pq")) and not any(part.startswith((".", "_")) for part in parts)


def _batch_rows(metadata: pq.FileMetaData) -> int:
    """Rows per batch so that a batch of all columns stays near ``_BATCH_BYTES``."""
    total: int = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    per_row = max(1, total // max(1, int(metadata.num_rows)))
    return max(16, min(_MAX_BATCH_ROWS, _BATCH_BYTES // per_row))


def _without_columns(rows: int) -> Iterator[pa.RecordBatch]:
    """Batches that have a length and nothing else."""
    while rows > 0:
        count = min(rows, _MAX_BATCH_ROWS)
        yield pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
        rows -= count


def _unreadable(name: str, error: Exception) -> SpecbatchError:
    """Why a file cannot be read: this process may have no room for it, or it is not a table."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    short = any(os.strerror(code) in reason for code in (errno.ENOMEM, errno.EAGAIN))
    if short or isinstance(error, MemoryError):
        return EngineError(
            f"{name}: no memory or threads left to read it: {reason}",
            "free memory or raise the limits (ulimit -v, ulimit -u); the same command continues",
        )
    hint = "write the file again"
    if name.endswith((".jsonl", ".ndjson")):
        hint = f"OpenAI batch files become tables with: specbatch convert {name} jobs.parquet"
    return InputError(f"{name}: not a readable Parquet file: {reason}", hint)
