"""Sessions in a process, whoever made them: what they have placed, and taking out what a dead one left."""

from __future__ import annotations

from sidestep.events.layout import STATE_DISABLED
from sidestep.kprobes.listing import line as list_line
from sidestep.target.process import procfs, remains
from sidestep.target.process.remains import clean


def sessions_text(pid: int) -> str:
    """The probes of all sessions in a process, whoever made them; raises TargetError."""
    procfs.check_attachable(pid)
    lines: list[str] = []
    for session in remains.sessions(pid):
        controller = session.header.controller_pid
        state = "" if session.controller_alive else ", which is dead: `sidestep clean` removes its probes"
        lines.append(f"# controller {controller}{state}")
        for record in sorted(session.records, key=lambda record: record.address):
            module, _, symbol = record.name.partition(":")
            mark = "DISABLED" if record.state == STATE_DISABLED else "OPTIMIZED"
            lines.append(list_line(record.address, "k", symbol, module, [mark]))
    return "\n".join(lines)


__all__ = ["clean", "sessions_text"]
