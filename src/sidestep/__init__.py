"""Kprobes for running programs: break into any instruction of a process, see what it does, leave it as it
was."""

from sidestep.errors import ProbeError, ProbeSyntaxError, SidestepError, TargetError
from sidestep.probes import Count, Kprobe, Record
from sidestep.session import Batch, Target, attach, launch
from sidestep.sessions import clean, sessions_text
from sidestep.spec import parse

__all__ = [
    "Batch",
    "Count",
    "Kprobe",
    "ProbeError",
    "ProbeSyntaxError",
    "Record",
    "SidestepError",
    "Target",
    "TargetError",
    "attach",
    "clean",
    "launch",
    "parse",
    "sessions_text",
]
