"""Files that commands write: whole or not at all, and what is no plain file stays what it is."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written(file: Path) -> Iterator[Path]:
    """Yield a path to write to; at the end of the block `file` has its content.

    A plain file is replaced at once and keeps its mode; of a link the target is. Pipes, devices, standard output, and
    files in a folder where nothing can be created are written through. If the block fails, nothing is written.
    """
    if _is_replaced(file):
        target = Path(os.path.realpath(file))
        part = target.with_name(f".{target.name}.part")
        try:
            yield part
            if target.exists():
                shutil.copymode(target, part)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        return
    with tempfile.TemporaryDirectory(prefix="batchyard-") as folder:
        part = Path(folder) / file.name
        yield part
        # A descriptor opened anew would begin at the start of a file to which standard output is redirected.
        with part.open("rb") as source, os.fdopen(os.dup(1), "wb") if is_stdout(file) else file.open("wb") as to:
            shutil.copyfileobj(source, to)


def _is_replaced(file: Path) -> bool:
    """True if another file can take the place of this one."""
    if not file.exists():
        return not file.is_symlink() or not os.path.realpath(file).startswith("/proc/")
    parent = Path(os.path.realpath(file)).parent
    return stat.S_ISREG(file.stat().st_mode) and not is_stdout(file) and os.access(parent, os.W_OK)


def is_stdout(file: Path) -> bool:
    """True if a path names this process's standard output."""
    return is_open_as(file, 1)


def is_open_as(file: Path, descriptor: int) -> bool:
    """True if a path names what this process has open as this descriptor."""
    try:
        return os.path.samestat(file.stat(), os.fstat(descriptor))
    except OSError:
        return False
