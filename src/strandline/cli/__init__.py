"""The `strandline` command. Places are written repository/ref/path; exit codes come from the one error table.

Nothing is imported here before the outermost handler stands: no interrupt, closed pipe or full disk ends in a
traceback, whenever it comes.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from io import TextIOWrapper

INTERRUPTED = 130
NO_OUTPUT = 9
PIPE_CLOSED = 141
"""What a shell says of a program that the closed pipe ended."""
NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF, errno.EFBIG)
TRACEBACK_VARIABLE = "STRANDLINE_TRACEBACK"


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit code. Whatever is raised, one sentence says what happened."""
    code = PIPE_CLOSED
    try:
        try:
            from strandline.cli import app  # noqa: PLC0415 - an interrupt may come while modules load

            code = app.run(arguments)
        finally:
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()  # the reader of the pipe has had enough; a command that had ended is what it was
        return code
    except OSError as error:
        # an error of a file has its name, and those of stores are wrapped: this is one of a print
        if error.filename is not None or error.errno not in NOT_WRITABLE:
            return _unknown(error, arguments)
        _drop_output()
        with suppress(OSError):
            reason = f"error: Standard output cannot be written: {error.strerror}."
            print(f"{reason}\n  What the command was to change, it may have changed.", file=sys.stderr, flush=True)
        return NO_OUTPUT
    except Exception as error:
        return _unknown(error, arguments)


def _unknown(error: Exception, arguments: list[str]) -> int:
    if os.environ.get(TRACEBACK_VARIABLE):
        raise error
    from strandline.cli.output import Output  # noqa: PLC0415 - as above
    from strandline.errors import StrandlineError  # noqa: PLC0415 - as above

    shown = StrandlineError(
        f"strandline met an error that it does not know: {type(error).__name__}: {error}",
        safe="It is unknown whether anything was changed.",
        next=f"Please report it; with {TRACEBACK_VARIABLE}=1 the command shows where it happened.",
    )
    with suppress(OSError):
        Output("--json" in arguments).error(shown)
    return shown.exit_code


def _drop_output() -> None:
    """Keep Python from failing when it flushes what nobody takes."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class _WithoutPandas:
    """A finder that says that pandas is not installed: pyarrow would import it on first use.

    That takes longer than a command. What a finder has to be is in `importlib.abc`, which takes its time to load, too.
    """

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("not needed on the command line", name=fullname)


def main() -> None:
    """What the installed command calls."""
    sys.meta_path.insert(0, _WithoutPandas())
    if sys.stdout is None or sys.stderr is None:  # closed by the caller
        nowhere = open(os.devnull, "w")  # noqa: SIM115 - open until the process ends
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a name that the terminal has no letters for is written with escapes
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))
