"""The same work as handlers.py's, done by native callbacks of frida (its CModule). Needs the package
frida."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator

from victims import Victim

HEAD = """
#include <gum/guminterceptor.h>
extern volatile guint64 count;
extern guint64 numbers[];
void onEnter (GumInvocationContext *context) {
  guint64 first = (guint64) gum_invocation_context_get_nth_argument (context, 0);
"""
PROGRAMS = {
    "c_counter": "count++;",
    "c_histogram": "int bits = 0; for (guint64 n = first; n; n >>= 1) bits++; numbers[bits]++; count++;",
    "c_hash": "numbers[first % 1000]++; count++;",
    "c_filter": "if (first > (guint64) 1 << 60) count++;",
}
"""By the function of the victim that does the same in C. frida's compiler has no intrinsics, and it has no
maps."""
SCRIPT = """
const memory = Memory.alloc(Process.pageSize), numbers = Memory.alloc(8 * 1024);
const module = new CModule(%r, {count: memory, numbers: numbers});
Interceptor.attach(ptr('%#x'), {onEnter: module.onEnter});
Interceptor.flush();
rpc.exports = {count: () => Number(memory.readU64())};
"""


def is_there() -> bool:
    """Whether it is installed."""
    return importlib.util.find_spec("frida") is not None


@contextlib.contextmanager
def intercepted(same: str, victim: Victim, function: str, hits: int | None = None) -> Iterator[None]:
    """What PROGRAMS has for `same`, at the victim's function, which the `with` calls so many times: all must
    have been seen."""
    import frida

    address = victim.number("address", function)
    session = frida.attach(victim.pid)
    try:
        script = session.create_script(SCRIPT % (f"{HEAD}{PROGRAMS[same]}\n}}\n", address))
        script.load()
        yield
        counted = script.exports_sync.count()
        assert hits is None or same == "c_filter" or counted == hits, f"frida counted {counted} of {hits}"
        script.unload()
    finally:
        session.detach()
