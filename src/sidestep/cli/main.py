"""The application `sidestep`: its commands, and how any of them ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from sidestep.cli import check, clean, count, demo, funcs, trace
from sidestep.cli import list as list_command
from sidestep.cli.interrupt import InterruptedEarlyError
from sidestep.cli.options import Invocation, UsageError
from sidestep.cli.output import OutputClosedError, make_output_safe, os_error, say
from sidestep.cli.plan import planned
from sidestep.errors import ProbeSyntaxError, SidestepError

FAILED, USAGE = 1, 2


class Application(typer.Typer):
    """Takes the words behind `--` away before options are parsed, and turns errors into messages."""

    def __call__(self, args: Sequence[str] | None = None, **_: Any) -> None:
        """Runs the words of `args` (default: those of the process) and exits."""
        make_output_safe()
        words, invocation = Invocation.split(list(sys.argv[1:] if args is None else args))
        sys.exit(self._run(words, invocation))

    def _run(self, words: list[str], invocation: Invocation) -> int:
        try:
            typer.main.get_command(self)(words, prog_name="sidestep", obj=invocation)
        except SystemExit as ending:
            return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        except OutputClosedError:
            return 0
        except InterruptedEarlyError:
            say("interrupted, nothing was changed")
            return FAILED
        except (ProbeSyntaxError, UsageError) as error:
            say(str(error))
            return USAGE
        except SidestepError as error:
            say(str(error))
            return FAILED
        except OSError as error:
            say(os_error(error))
            return FAILED
        return 0


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"sidestep {version('sidestep')}")
        except PackageNotFoundError:
            print("sidestep (not installed)")
        raise typer.Exit


def _show_grammar(wanted: bool) -> None:
    if wanted:
        from sidestep.spec import GRAMMAR

        print(GRAMMAR)
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
    grammar: Annotated[
        bool,
        typer.Option("--grammar", help="Show how a probe is written.", callback=_show_grammar, is_eager=True),
    ] = False,
) -> None:
    """Kprobes for any running process: count and trace its functions and instructions, and leave no trace.

    Try `sidestep demo`. Each command has its own --help.
    """


SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

app = Application(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=SETTINGS,
)
app.callback()(_options)
app.command("trace", context_settings=SETTINGS)(planned(trace.trace))
app.command("count", context_settings=SETTINGS)(planned(count.count))
app.command("funcs", context_settings=SETTINGS)(funcs.funcs)
app.command("check", context_settings=SETTINGS)(check.check)
app.command("list", context_settings=SETTINGS)(list_command.list_probes)
app.command("clean", context_settings=SETTINGS)(clean.clean)
app.command("demo", context_settings=SETTINGS)(demo.demo)
