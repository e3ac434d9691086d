"""The file of `--oplog`, written atomically: after the run it is complete, or unchanged if the run failed.

Records are written to a temporary file next to it, which is renamed at the end, or removed on an error. A device or a
pipe cannot be renamed and is written directly.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kernbench.common.errors import UsageError
from kernbench.sim_engine.op_stream import StreamingOpLog


@contextmanager
def op_log_file(name: str) -> Iterator[StreamingOpLog]:
    """A log that becomes `name` if the block succeeds; raises UsageError for a name that cannot be written."""
    target = Path(os.path.realpath(name))  # the target of a link is replaced, not the link
    _check(target, name)
    plain = not target.exists() or target.is_file()
    part = target.with_name(f".{target.name}.{os.getpid()}.part") if plain else target
    log = StreamingOpLog(part)
    try:
        yield log
        log.close()
        if plain:
            part.replace(target)
    except BaseException:
        with suppress(Exception):
            log.close()
        if plain:
            part.unlink(missing_ok=True)
        raise


def _check(target: Path, name: str) -> None:
    why = None
    if not name.strip() or target.is_dir():
        why = "it is a folder" if name.strip() else "it has no name"
    elif not target.parent.is_dir():
        why = f"there is no folder {target.parent}"
    elif not os.access(target if target.exists() else target.parent, os.W_OK):
        why = "permission denied"
    if why is not None:
        raise UsageError(
            f"the op log file cannot be written: {why}",
            where=f"--oplog {name}",
            hint="name a file in a folder that exists",
        )
