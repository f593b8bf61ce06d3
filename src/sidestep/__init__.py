"""Kprobes for running programs: break into any instruction of a process, see what it does, leave it as it
was."""

from __future__ import annotations

TYPE_CHECKING = False  # and not typing's: importing that alone takes a while
if TYPE_CHECKING:
    from typing import Any

    from sidestep.compiler.backtrace import stack
    from sidestep.compiler.diagnostics import HandlerError
    from sidestep.compiler.event import Event, emit
    from sidestep.compiler.integers import i8, i16, i32, i64, u8, u16, u32, u64
    from sidestep.compiler.intrinsics import (
        cpu,
        now,
        pid,
        read_i8,
        read_i16,
        read_i32,
        read_i64,
        read_u8,
        read_u16,
        read_u32,
        read_u64,
        tid,
        write_i8,
        write_i16,
        write_i32,
        write_i64,
        write_u8,
        write_u16,
        write_u32,
        write_u64,
    )
    from sidestep.compiler.intrinsics import (
        random as random,
    )
    from sidestep.compiler.machine import HandlerFault, Machine
    from sidestep.compiler.native import native
    from sidestep.compiler.pointer import pointer
    from sidestep.compiler.registers import Registers
    from sidestep.compiler.struct import Struct
    from sidestep.compiler.text import comm
    from sidestep.compiler.text import string as string
    from sidestep.errors import ProbeError, ProbeSyntaxError, SidestepError, TargetError
    from sidestep.events.decode import FAULT, Text
    from sidestep.handlers.hash import Hash
    from sidestep.handlers.histogram import Histogram
    from sidestep.handlers.maps import Array, Counter, PerThread, Stats
    from sidestep.handlers.stacks import Stacks
    from sidestep.kprobes.texts import Batch
    from sidestep.opening import attach, launch
    from sidestep.probes import Count, Kprobe, Record
    from sidestep.session import DetachError, Target
    from sidestep.sessions import clean, sessions_text
    from sidestep.spec import parse

# Each is imported when it is asked for: no command needs all of them, and what a Ctrl-C means must be said
# before the first of them is there. A program that will give up its privileges, or its root, should first
# name what it needs: `from sidestep import attach`.
_LATER = {
    "sidestep.compiler.backtrace": ("stack",),
    "sidestep.compiler.diagnostics": ("HandlerError",),
    "sidestep.compiler.event": ("Event", "emit"),
    "sidestep.compiler.integers": ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"),
    "sidestep.compiler.intrinsics": (
        "cpu", "now", "pid", "random", "tid",
        "read_i8", "read_i16", "read_i32", "read_i64", "read_u8", "read_u16", "read_u32", "read_u64",
        "write_i8", "write_i16", "write_i32", "write_i64", "write_u8", "write_u16", "write_u32", "write_u64",
    ),
    "sidestep.compiler.machine": ("HandlerFault", "Machine"),
    "sidestep.compiler.native": ("native",),
    "sidestep.compiler.pointer": ("pointer",),
    "sidestep.compiler.registers": ("Registers",),
    "sidestep.compiler.struct": ("Struct",),
    "sidestep.compiler.text": ("comm", "string"),
    "sidestep.events.decode": ("FAULT", "Text"),
    "sidestep.handlers.histogram": ("Histogram",),
    "sidestep.handlers.stacks": ("Stacks",),
    "sidestep.handlers.hash": ("Hash",),
    "sidestep.handlers.maps": ("Array", "Counter", "PerThread", "Stats"),
    "sidestep.errors": ("ProbeError", "ProbeSyntaxError", "SidestepError", "TargetError"),
    "sidestep.kprobes.texts": ("Batch",),
    "sidestep.opening": ("attach", "launch"),
    "sidestep.probes": ("Count", "Kprobe", "Record"),
    "sidestep.session": ("DetachError", "Target"),
    "sidestep.sessions": ("clean", "sessions_text"),
    "sidestep.spec": ("parse",),
}  # fmt: skip
_MODULES = {name: module for module, names in _LATER.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(module), name)


# `from sidestep import *` leaves out `random` and `string`, which are modules of the standard library.
__all__ = [
    "FAULT",
    "Array",
    "Batch",
    "Count",
    "Counter",
    "DetachError",
    "Event",
    "HandlerError",
    "HandlerFault",
    "Hash",
    "Histogram",
    "Kprobe",
    "Machine",
    "PerThread",
    "ProbeError",
    "ProbeSyntaxError",
    "Record",
    "Registers",
    "SidestepError",
    "Stacks",
    "Stats",
    "Struct",
    "Target",
    "TargetError",
    "Text",
    "attach",
    "clean",
    "comm",
    "cpu",
    "emit",
    "i8",
    "i16",
    "i32",
    "i64",
    "launch",
    "native",
    "now",
    "parse",
    "pid",
    "pointer",
    "read_i8",
    "read_i16",
    "read_i32",
    "read_i64",
    "read_u8",
    "read_u16",
    "read_u32",
    "read_u64",
    "sessions_text",
    "stack",
    "tid",
    "u8",
    "u16",
    "u32",
    "u64",
    "write_i8",
    "write_i16",
    "write_i32",
    "write_i64",
    "write_u8",
    "write_u16",
    "write_u32",
    "write_u64",
]
