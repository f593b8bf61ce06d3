"""The text grammar of probes: `parse(text)` gives a ProbeSpec, or a ProbeSyntaxError with the column.

No part of this package looks at a target: whether a symbol exists is found out later, and reported with
the columns that the nodes keep.
"""

from __future__ import annotations

from sidestep.spec.grammar import GRAMMAR
from sidestep.spec.nodes import (
    Argument,
    BitField,
    Comm,
    Dereference,
    Fetch,
    FetchArgument,
    FetchType,
    Immediate,
    Memory,
    Node,
    Register,
    ReturnValue,
    StackPointer,
    StackSlot,
    SymbolMemory,
    Where,
)
from sidestep.spec.parser import format_spec, parse, parse_where
from sidestep.spec.probe import ProbeSpec, fetches, only_recorded
from sidestep.spec.terms import (
    Arithmetic,
    Comparison,
    Condition,
    FetchOperand,
    Logical,
    Name,
    Not,
    Number,
    Operand,
    operands,
)

__all__ = [
    "GRAMMAR",
    "Argument",
    "Arithmetic",
    "BitField",
    "Comm",
    "Comparison",
    "Condition",
    "Dereference",
    "Fetch",
    "FetchArgument",
    "FetchOperand",
    "FetchType",
    "Immediate",
    "Logical",
    "Memory",
    "Name",
    "Node",
    "Not",
    "Number",
    "Operand",
    "ProbeSpec",
    "Register",
    "ReturnValue",
    "StackPointer",
    "StackSlot",
    "SymbolMemory",
    "Where",
    "fetches",
    "format_spec",
    "only_recorded",
    "operands",
    "parse",
    "parse_where",
]
