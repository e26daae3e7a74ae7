"""``python -m memcalc`` and the ``memcalc`` command: the outermost handler of errors."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from memcalc import shadowing

INTERRUPTED = 130
_GO_ON = (
    "memcalc: interrupted; run it again to resume (answers so far are kept, unless --no-cache)."
)
_NOT_KEPT = "memcalc: interrupted; nothing is kept of a script that has not ended."
BROKEN_PIPE = 141
"""The exit code of shells for a broken pipe: 128 + SIGPIPE."""


def main() -> None:
    """Run the command line and exit with its exit code."""
    _fill_closed_streams()
    code = run(sys.argv[1:])
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError as error:
            # Python would try again, and complain in words and an exit code of its own.
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            if number == 1 and not code:
                code = _report_error(error, simulates=False)
    if sys.flags.inspect:
        # PYTHONINSPECT is for scripts: Python would show how this ends, and wait for more.
        os._exit(code)
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run a command line; print an error as one sentence on stderr; return the exit code.

    1 is the exit code of what is over a budget or limit, and of nothing else.
    """
    try:
        from memcalc.cli.app import COMPLETE, app

        asked = os.environ.get(COMPLETE)
        if asked:
            from memcalc.cli.completion import answer

            return answer(asked)

        with _warning_in_lines(), app.make_context("memcalc", list(arguments)) as context:
            app.invoke(context)
    except BaseException as error:
        return _report_error(error, simulates=arguments[:1] == ["simulate"])
    return 0


def _report_error(error: BaseException, *, simulates: bool) -> int:
    """Print an exception as one sentence on stderr; return the exit code."""
    if isinstance(error, KeyboardInterrupt):
        # Also while the command line is still being imported.
        with contextlib.suppress(OSError, ValueError):
            print(_NOT_KEPT if simulates else _GO_ON, file=sys.stderr, flush=True)
        return INTERRUPTED
    if said := shadowing.describe(error):
        print(f"error: {said}", file=sys.stderr)
        return 2
    import typer

    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, typer.Abort):
        return INTERRUPTED
    # What typer says of a command line has this base in common, which it does not export.
    if isinstance(error, typer.BadParameter.__mro__[2]):
        return _report_usage(error)
    if os.environ.get("MEMCALC_DEBUG"):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    from memcalc.cli.command import say
    from memcalc.errors import exit_code, sentence

    say(f"error: {sentence(error)}")
    return exit_code(error)


@contextlib.contextmanager
def _warning_in_lines() -> Iterator[None]:
    """Print each distinct warning as a line on stderr, inside the block."""
    import warnings

    told: set[str] = set()

    def show(message: object, *_: object, **__: object) -> None:
        from memcalc.cli.command import say

        if str(message) not in told:
            told.add(str(message))
            say(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def _report_usage(error: Any) -> int:
    """Print typer's usage error on stderr, with what to type; return the exit code."""
    message, context = error.format_message(), getattr(error, "ctx", None)
    if "\n" in message:
        # Nothing was typed, and this is the help.
        error.show()
    else:
        from memcalc.cli.command import say

        said = _suggest_option(error, context) if context is not None else None
        if message.startswith("Got unexpected extra argument") and ".py" in message:
            said = (
                "Scripts are run by simulate: type memcalc simulate -o run.json -- python "
                "train.py. explain, report, diff and show take its run.json."
            )
        where = f" Type {context.command_path} --help." if context is not None else ""
        if context is not None and message.startswith("Missing argument"):
            words = " ".join(context.command.collect_usage_pieces(context))
            where = f" Type: {context.command_path} {re.sub('[{}]', '', words)}"
        end = "" if message.endswith((".", "?")) else "."
        say(f"error: {said or f'{message}{end}{where}'}")
    return 2


def _suggest_option(error: Any, context: Any) -> str | None:
    """Return a sentence with memcalc's option for another tool's option, or None."""
    name = getattr(error, "option_name", None)
    if name is None:
        return None
    from memcalc.cli.table import find_instead

    has = {n for one in context.command.get_params(context) for n in (*one.opts, one.metavar) if n}
    ours = find_instead(name, has)
    return None if ours is None else f"There is no option {name}: {ours}."


def _fill_closed_streams() -> None:
    """Open /dev/null in place of closed standard streams."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # Writing an answer there fails, saying nothing succeeds.
            descriptor = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            if descriptor != number:
                os.dup2(descriptor, number)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w"))


def _remove_current_folder() -> None:
    """Remove the current folder from ``sys.path``, where ``python -m`` puts it."""
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with contextlib.suppress(FileNotFoundError):
        if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()] != [own]:
            del sys.path[0]


if __name__ == "__main__":
    _remove_current_folder()
    main()
