"""The measurements: a folder with the layout of shared/validation, or the archive of a set in this package."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from kernbench.common.errors import UsageError


class DataFolder:
    """The files of one set, by name."""

    def __init__(self, folder: str, data: Path | None = None) -> None:
        self._folder = folder
        self._path = None if data is None else data / folder
        if self._path is not None and not self._path.is_dir():
            raise UsageError(
                f"there is no folder '{self._path}'",
                hint="--data takes the folder that has 1_noc_traces; leave it out for the shipped data",
            )
        self._archive: zipfile.ZipFile | None = None
        if data is None:
            found = files("kernbench.validation") / "data" / f"{folder}.zip"
            self._archive = zipfile.ZipFile(io.BytesIO(found.read_bytes()))

    def text(self, name: str) -> str:
        """The contents of a file."""
        try:
            if self._archive is not None:
                return self._archive.read(name).decode()
            assert self._path is not None
            return (self._path / name).read_text(encoding="utf-8")
        except (KeyError, FileNotFoundError):
            raise UsageError(f"there is no file '{name}' in '{self._path or self._folder}'",
                             hint="the layout is that of the validation data: see its README") from None  # fmt: skip

    def names(self, under: str, suffix: str) -> list[str]:
        """The files of a sub-folder that end in `suffix`, without it, sorted."""
        if self._archive is not None:
            found = [name for name in self._archive.namelist() if name.startswith(f"{under}/")]
        else:
            assert self._path is not None
            found = [path.as_posix() for path in (self._path / under).glob(f"*{suffix}")]
        return sorted(Path(name).name.removesuffix(suffix) for name in found if name.endswith(suffix))

    def rows(self, name: str) -> Iterator[dict[str, str]]:
        """The rows of a CSV file, by column."""
        return csv.DictReader(io.StringIO(self.text(name)))

    def json(self, name: str) -> object:
        try:
            return json.loads(self.text(name))
        except ValueError as error:
            raise UsageError(f"'{name}' is no JSON: {error}", where=str(self._path or self._folder)) from None
