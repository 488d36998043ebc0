"""Files that appear whole or not at all."""
import errno
import os
import secrets
from pathlib import Path


def write(path, make):
    """Have make(path) write a file whole or not at all; as `checkpoint.save` says."""
    target = Path(os.path.realpath(path))
    check_regular(target)
    unfinished = target.with_name(f".{target.name[:50]}.{secrets.token_hex(4)}.tmp")
    try:
        unfinished.touch(exist_ok=False)
        mode = (target if target.exists() else unfinished).stat().st_mode   # the library would close it to others
        make(unfinished)
        with open(unfinished, "rb+") as file:
            os.fsync(file.fileno())
        os.chmod(unfinished, mode)
        os.replace(unfinished, target)
    except BaseException:                       # Ctrl-C too
        unfinished.unlink(missing_ok=True)
        raise


def put_text(path, text):
    """Write a text file, in UTF-8 and with its line ends as they are, whole or not at all."""
    write(path, lambda unfinished: unfinished.write_text(text, encoding="utf-8", newline=""))


def check_regular(path):
    """OSError where something lies that is no file: it is not opened, which may wait for ever, and not replaced."""
    if os.path.lexists(path) and not os.path.isfile(path):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
