"""Where the command `sidestep` begins: what a Ctrl-C means is said before anything that takes time.

Imports only what the interpreter has at its start.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

_MESSAGE = b"sidestep: interrupted, nothing was changed\n"


def main() -> None:
    """Runs the command line of this process, and exits."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    from sidestep.cli.main import app

    app()


def _end(_: int, __: FrameType | None) -> None:
    """At once: an exception could come up in the middle of an import, or in a callback that swallows it.

    Whoever has a target by then has put something else in this place (cli/interrupt.py).
    """
    try:
        os.write(2, _MESSAGE)
    finally:
        os._exit(1)
