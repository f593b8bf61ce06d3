"""Sessions in a process, whoever made them: what they have placed, and taking out what a dead one left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sidestep.events.layout import FLAG_HOOK, STATE_DISABLED, ProbeRecord
from sidestep.kprobes.listing import line as list_line
from sidestep.target.process import procfs, remains
from sidestep.target.process.remains import clean


@dataclass(frozen=True, slots=True)
class ListedProbe:
    """A probe as its session has noted it in the process."""

    address: int
    module: str
    symbol: str  # with its offset
    disabled: bool

    @property
    def line(self) -> str:
        """In the kernel's format."""
        mark = "DISABLED" if self.disabled else "OPTIMIZED"
        return list_line(self.address, "k", self.symbol, self.module, [mark])


@dataclass(frozen=True, slots=True)
class ListedSession:
    """A session in a process, by the pid of its controller, and its probes by address."""

    controller: int
    alive: bool
    probes: Sequence[ListedProbe]


def sessions_in(pid: int) -> Sequence[ListedSession]:
    """The sessions in a process, whoever made them: one, or none; that of a dead controller, too. Raises
    TargetError."""
    procfs.check_attachable(pid)
    return [
        ListedSession(
            session.header.controller_pid,
            session.controller_alive,
            [
                _listed(record)
                for record in sorted(session.records, key=lambda record: record.address)
                if not record.flags & FLAG_HOOK
            ],
        )
        for session in remains.sessions(pid)
    ]


def _listed(record: ProbeRecord) -> ListedProbe:
    module, _, symbol = record.name.partition(":")
    return ListedProbe(record.address, module, symbol, record.state == STATE_DISABLED)


def sessions_text(pid: int) -> str:
    """The probes in a process, whoever made them, in the kernel's format; raises TargetError."""
    lines: list[str] = []
    for session in sessions_in(pid):
        state = "" if session.alive else ", which is dead: `sidestep clean` removes its probes"
        lines.append(f"# controller {session.controller}{state}")
        lines += [probe.line for probe in session.probes]
    return "\n".join(lines)


__all__ = ["clean", "sessions_in", "sessions_text"]
