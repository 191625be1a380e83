"""What the command-line programs share: one line per error, and the exit codes."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from tensoralg.core.errors import TensorAlgError

if TYPE_CHECKING:
    import typer

__all__ = [
    "BAD_INPUT",
    "DONE",
    "FAILED",
    "INTERRUPTED",
    "component_count",
    "one_line_errors",
    "run_app",
    "say",
    "show",
    "stop",
]

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def say(line: str) -> None:
    """Write one line to the error stream, after the program's name.

    Parameters
    ----------
    line : str
        The text; line ends in it become blanks.

    Examples
    --------
    >>> from tensoralg.studies.program import say
    >>> say("the columns are a, b")
    """
    import typer

    typer.echo(f"tensoralg: {' '.join(line.split())}", err=True)


def show(text: str) -> None:
    r"""Write to the output stream; a reader that has gone (``| head``) ends no work.

    Parameters
    ----------
    text : str
        The text, with its line ends.

    Examples
    --------
    >>> from tensoralg.studies.program import show
    >>> show("done\n")
    done
    """
    if sys.stdout is None:  # closed by the shell
        return
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        # what is buffered goes nowhere, here and when the interpreter ends
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def stop(message: str, code: int = BAD_INPUT) -> NoReturn:
    """Say what is wrong and end the program.

    Parameters
    ----------
    message : str
        What is wrong and what would be accepted.
    code : int
        The exit code.

    Raises
    ------
    typer.Exit
        Always.

    Examples
    --------
    >>> import typer
    >>> from tensoralg.studies.program import stop
    >>> try:
    ...     stop("no such column")
    ... except typer.Exit as ending:
    ...     ending.exit_code
    2
    """
    import typer

    say(message)
    raise typer.Exit(code)


def component_count(text: str) -> int | str:
    """Read what stands after ``--components``.

    Parameters
    ----------
    text : str
        A number, or "auto".

    Returns
    -------
    int or str
        The number, or "auto".

    Raises
    ------
    typer.Exit
        Anything else, after a line that says so.

    Examples
    --------
    >>> from tensoralg.studies.program import component_count
    >>> component_count("3"), component_count("auto")
    (3, 'auto')
    """
    if text == "auto":
        return text
    if not (text.isdecimal() and int(text) >= 1):
        stop(f"--components must be a whole number from 1 on, or auto; got {text!r}")
    return int(text)


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn what the user can mend into one line and an exit code; a bug keeps its traceback.

    Examples
    --------
    >>> from tensoralg.studies.program import one_line_errors
    >>> with one_line_errors():
    ...     pass
    """
    import typer

    try:
        yield
    except KeyboardInterrupt:
        say("interrupted; a study keeps its finished cells, and the same command goes on with it")
        raise typer.Exit(INTERRUPTED) from None
    except TensorAlgError as error:
        stop(str(error))
    except OSError as error:
        stop(_in_one_line(error))


def _in_one_line(error: OSError) -> str:
    place = f"{error.filename}: " if error.filename is not None else ""
    return f"{place}{error.strerror or error}"


def run_app(app: "typer.Typer", name: str, arguments: Sequence[str] | None = None) -> int:
    """Run a typer program and return its exit code; wrong arguments are named in one line.

    Parameters
    ----------
    app : typer.Typer
        The program.
    name : str
        Its name in the help.
    arguments : sequence of str, optional
        What follows the name; ``sys.argv[1:]`` when None.

    Returns
    -------
    int
        The exit code.

    Examples
    --------
    >>> import typer
    >>> from tensoralg.studies.program import run_app
    >>> app = typer.Typer()
    >>> @app.command()
    ... def greet(name: str) -> None:
    ...     print("hello", name)
    >>> run_app(app, "greet", ["world"])
    hello world
    0
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result = app(given, prog_name=name, standalone_mode=False)
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:  # the output stream's: a full disk
        say(_in_one_line(error))
        return BAD_INPUT
    except Exception as error:
        # some versions of typer carry their own copy of click: known by what the errors offer
        if not hasattr(error, "format_message"):
            raise
        say(error.format_message())
        return int(getattr(error, "exit_code", BAD_INPUT))
    return result if isinstance(result, int) else DONE
