"""Random native handlers: texts that the compiler takes, with everything that the language has.

A program is a module: maps, an event class, functions that the handler calls, and the handler itself. Types
of expressions are known while they are made, so that few programs are refused.
"""

from __future__ import annotations

import linecache
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import sidestep
from sidestep.compiler.integers import INTEGERS, Integer

KINDS = {kind.__name__: kind for kind in INTEGERS}
TYPES = tuple(KINDS)
FUEL = 600
DEEPEST = 3
ACCESSES = tuple(f"{what}_{kind}" for what in ("read", "write") for kind in TYPES)
WRITABLE = ("bx", "bp", "r12", "r13", "r14", "r15", "ax", "di", "si", "cx", "dx", "r8", "r9", "r10", "r11")
STACK_WORDS = 4
REGISTERS = ("ax", "bx", "cx", "dx", "si", "di", "bp", *(f"r{n}" for n in range(8, 16)))
PLACES = ("regs.ip", "regs.sp", "regs.return_address", "regs.stack(0)", "p.addr")
FLAGS = 0x8D5  # the arithmetic ones
TEXTS = ("alpha", "alp", "", "bet\u00e4", "a longer one")
"""What programs compare text with; it lies at the start of the memory that they read, each with a NUL."""
ALWAYS_SET = 0x202  # the interrupt flag, and one that is always 1
CONVERSION_ERRORS = (
    "a shift by",
    "division by zero",
    "a value that nobody uses",
    "changes something while an item is changed",
)
"""What the compiler may rightly say of a program: constants that meet by chance."""


@dataclass(slots=True)
class Helper:
    """A native function of a program: its parameters' types, how many have defaults, what it returns."""

    name: str
    parameters: dict[str, str]
    defaults: int
    result: str


@dataclass(slots=True)
class Maps:
    """The types of a program's maps."""

    array: str
    hash_key: str
    hash_value: str
    per_thread: str
    fields: dict[str, str]
    flow: dict[str, str]  # of the structure that is a key
    name_limit: int
    names_go: bool  # they can be deleted, and else structures can

    def __iter__(self) -> Iterator[str]:
        yield "counter = sidestep.Counter()"
        yield f"array = sidestep.Array(8, {self.array})"
        yield f"table = sidestep.Hash(8, {self.hash_key}, {self.hash_value}, deletable=True)"
        yield f"threads = sidestep.PerThread(8, {self.per_thread})"
        yield "stats = sidestep.Stats()"
        yield "powers = sidestep.Histogram()"
        yield "steps = sidestep.Histogram(linear=(10, 200, 7))"
        kinds = f"string({self.name_limit}), {self.hash_value}"
        yield f"names = sidestep.Hash(8, {kinds}, deletable={self.names_go})"
        yield f"stacks = sidestep.Stacks(8, depth={self.name_limit % 5 + 1})"
        for name, base, fields in (("Flow", "Struct", self.flow), ("Happened", "Event", self.fields)):
            yield f"class {name}(sidestep.{base}):"
            yield from (f"    {field}: {kind}" for field, kind in fields.items())
        yield f"flows = sidestep.Hash(8, Flow, {self.hash_value}, deletable={not self.names_go})"


MAP_NAMES = ("array", "table", "threads", "stats", "powers", "steps", "names", "flows", "stacks")


@dataclass(slots=True)
class Generator:
    """Makes one program. `leaves`: how it may end elsewhere, a statement list that goes before `return 1`."""

    source: random.Random
    leave: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    constant: set[str] = field(default_factory=set)  # variables that are not assigned to
    helpers: list[Helper] = field(default_factory=list)
    maps: Maps | None = None
    named: int = 0
    depth: int = 0  # of statements
    in_handler: bool = False

    def program(self) -> str:
        choose = self.source.choice
        fields = {f"f{n}": choose(TYPES) for n in range(self.source.randint(1, 4))}
        flow = {f"k{n}": choose(TYPES) for n in range(self.source.randint(1, 3))}
        if self.chance(0.5):
            fields["text"] = f"string({choose((15, 20))})"
        if self.chance(0.3):
            fields["short"] = "string(15)"
        if self.chance(0.4):
            fields["trace"] = f"stack({choose((1, 4, 7))})"
        kinds = [choose(TYPES) for _ in range(4)]
        self.maps = Maps(*kinds, fields, flow, choose((15, 16, 24)), self.chance(0.5))
        lines = [*self.maps, "LIMIT = 37", ""]
        for _ in range(self.source.randint(0, 3)):
            lines += self.helper()
        return "\n".join([*lines, *self.handler()]) + "\n"

    def name(self, prefix: str) -> str:
        self.named += 1
        return f"{prefix}{self.named}"

    def chance(self, part: float) -> bool:
        return self.source.random() < part

    # Functions

    def helper(self) -> list[str]:
        self.variables, self.constant, self.in_handler = {}, set(), False
        parameters = {self.name("a"): self.source.choice(TYPES) for _ in range(self.source.randint(1, 3))}
        made = Helper(
            self.name("function"),
            parameters,
            self.source.randint(0, len(parameters)),
            self.source.choice((*TYPES, "bool")),
        )
        words = []
        for number, (name, kind) in enumerate(parameters.items()):
            optional = number >= len(parameters) - made.defaults
            words.append(f"{name}: {kind}" + (f" = {self.literal(kind)}" if optional else ""))
        self.variables.update(parameters)
        lines = [f"def {made.name}({', '.join(words)}):", *self.block("    ", self.source.randint(0, 3))]
        if self.chance(0.4):
            lines.append(f"    if {self.condition()}: return {made.result}({self.value(made.result)})")
        lines.append(f"    return {made.result}({self.value(made.result)})")
        self.helpers.append(made)
        return ["@sidestep.native", *lines, ""]

    def handler(self) -> list[str]:
        self.variables, self.constant, self.in_handler = {}, set(), True
        lines = [f"@sidestep.native(fuel={FUEL})", "def handler(p, regs):"]
        for number in range(4):
            name, kind = self.name("v"), self.source.choice(TYPES)
            self.variables[name] = kind
            lines.append(f"    {name} = {kind}(regs.arg({number}))")
        if self.chance(0.5):
            kind = self.source.choice(TYPES)
            pointed = self.name("pointer")
            lines.append(f"    {pointed} = pointer({kind}, regs.arg(4))")
            self.variables[pointed] = f"pointer {kind}"
            self.constant.add(pointed)
        lines += self.block("    ", self.source.randint(3, 9))
        results = [name for name, kind in self.variables.items() if not kind.startswith("pointer")]
        for register, name in zip(WRITABLE, results, strict=False):
            lines.append(f"    regs.{register} = u64({name})")
        if self.leave and self.chance(0.3):
            condition = self.condition()
            lines += [f"    if {condition}:", *(f"        {each}" for each in self.leave), "        return 1"]
        return lines

    # Statements

    def block(self, indent: str, count: int, *, loop: bool = False) -> list[str]:
        lines: list[str] = []
        for _ in range(count):
            lines += [indent + line for line in self.statement(loop=loop)]
        return lines or [f"{indent}pass"]

    def nested(self, count: int, *, loop: bool) -> list[str]:
        """A block whose new variables are not known behind it."""
        before = dict(self.variables)
        self.depth += 1
        lines = self.block("    ", count, loop=loop)
        self.depth -= 1
        self.variables = before
        return lines

    def statement(self, *, loop: bool) -> list[str]:
        makers = [
            (30, self.assignment), (12, self.map_change), (5, self.event), (5, self.assertion),
            (4, self.keyed),
        ]  # fmt: skip
        if self.in_handler:
            makers.append((8, self.register_change))
            makers.append((3, self.early_return))
            makers.append((4, self.write))
        if self.depth < 2:
            makers += [(12, self.choice), (7, self.counted_loop), (5, self.conditional_loop)]
        if loop:
            makers.append((6, self.jump))
        weights, functions = zip(*makers, strict=True)
        return list(self.source.choices(functions, weights)[0]())

    def assignment(self) -> list[str]:
        known = [v for v, k in self.variables.items() if v not in self.constant and " " not in k]
        if known and self.chance(0.5):
            name = self.source.choice(known)
            kind = self.variables[name]
            if kind != "bool" and self.chance(0.4):
                return [f"{name} {self.source.choice(('+', '-', '*', '^', '|', '&'))}= {self.value(kind)}"]
            return [f"{name} = {self.value(kind)}"]
        name, kind = self.name("v"), self.source.choice((*TYPES, "bool"))
        text = self.value(kind)
        if kind != "bool" and self.chance(0.25):
            # A plain number, whose type comes from what it is used with.
            text = self.literal(kind)
            self.variables[name] = kind
            return [f"{name} = {text}", f"{name} = {name} ^ {self.value(kind)}"]
        annotation = f": {kind}" if self.chance(0.2) else ""
        self.variables[name] = kind
        return [f"{name}{annotation} = {text}"]

    def map_change(self) -> list[str]:
        assert self.maps is not None
        maps = self.maps
        key, index = self.small(maps.hash_key), self.small("u64")
        return [
            self.source.choice(
                (
                    f"counter.add({self.value('u64')})",
                    f"array[{index}] = {self.value(maps.array)}",
                    f"array[{index}] {self.source.choice('+-')}= {self.value(maps.array)}",
                    f"table[{key}] = {self.value(maps.hash_value)}",
                    f"del table[{key}]",
                    f"table[{key}] {self.source.choice('+-')}= {self.value(maps.hash_value)}",
                    f"threads.add({self.value('u64')})",
                    f"threads.set({self.value('u64')})",
                    f"stats.add({self.value('u64')})",
                    f"powers.add({self.value('u64')})",
                    f"steps.add({self.small('u64', 256)})",
                )
            )
        ]

    def event(self) -> list[str]:
        assert self.maps is not None
        given = [f"{name}={self.field(kind)}" for name, kind in self.maps.fields.items()]
        self.source.shuffle(given)
        return [f"emit(Happened({', '.join(given)}))"]

    def field(self, kind: str) -> str:
        """A value for a field of an event."""
        room = int(kind.partition("(")[2].rstrip(")") or 0)
        if kind.startswith("stack"):
            return f"stack({self.source.randint(1, room)})"
        return self.text(room) if room else self.value(kind)

    def text(self, limit: int) -> str:
        """Text of the memory, or the thread's name."""
        if not self.in_handler or self.chance(0.2):
            return "comm()"
        offset = self.source.choice(("", f" + {self.source.randrange(8)}", f" + {self.small('u64', 63)}"))
        pointer = self.source.choice((4, 4, 4, 5))
        return f"string(regs.arg({pointer}){offset}, {self.source.randint(1, limit)})"

    def keyed(self) -> list[str]:
        """A change of a map whose keys are no numbers."""
        assert self.maps is not None
        value = self.value(self.maps.hash_value)
        if self.chance(0.2):
            return [f"table[{self.maps.hash_key}(stacks.id())] += {value}"]
        name, key = self.key()
        can_go = self.maps.names_go is (name == "names")
        changes = (f"{name}[{key}] += {value}", f"{name}[{key}] = {value}", f"del {name}[{key}]")
        return [self.source.choice(changes if can_go else changes[:2])]

    def key(self) -> tuple[str, str]:
        """A map whose keys are no numbers, and a key."""
        assert self.maps is not None
        if self.chance(0.5):
            given = [f"{name}={self.small(kind)}" for name, kind in self.maps.flow.items()]
            self.source.shuffle(given)
            return "flows", f"Flow({', '.join(given)})"
        constant = repr(self.source.choice([text for text in TEXTS if len(text.encode()) <= 15]))
        return "names", constant if self.chance(0.3) else self.text(self.maps.name_limit)

    def write(self) -> list[str]:
        kind = self.source.choice(TYPES)
        offset = self.source.choice(("", f" + {self.source.randrange(64)}", f" + {self.small('u64', 64)}"))
        return [f"write_{kind}(regs.arg({self.source.choice((4, 4, 4, 5))}){offset}, {self.value(kind)})"]

    def assertion(self) -> list[str]:
        return [f"assert {self.condition()} or {self.condition()}"]

    def register_change(self) -> list[str]:
        if self.chance(0.1):
            return [f"regs.flags = ({self.value('u64')} & {FLAGS}) | {ALWAYS_SET}"]
        register = self.source.choice(WRITABLE)
        if self.chance(0.3):
            return [f"regs.{register} {self.source.choice(('+', '-', '^'))}= {self.value('u64')}"]
        return [f"regs.{register} = {self.value('u64')}"]

    def early_return(self) -> list[str]:
        return [
            f"if {self.condition()}: return{self.source.choice(('', ' None', ' 0', ' False', ' 1', ' True'))}"
        ]

    def choice(self) -> list[str]:
        lines = [f"if {self.condition()}:", *self.nested(self.source.randint(1, 3), loop=False)]
        if self.chance(0.3):
            lines += [f"elif {self.condition()}:", *self.nested(1, loop=False)]
        if self.chance(0.5):
            lines += ["else:", *self.nested(self.source.randint(1, 2), loop=False)]
        return lines

    def counted_loop(self) -> list[str]:
        kind, name = self.source.choice(TYPES), self.name("turn")
        steps = ["", ", 2", ", 3", ", 7", *([", -1", ", -3"] if KINDS[kind].signed else [])]
        first, last = self.value(kind, DEEPEST), self.value(kind, DEEPEST)
        head = f"for {name} in range({first}, {last}{self.source.choice(steps)}):"
        if self.chance(0.3):
            head = f"for {name} in range({self.small(kind)}):"
        self.variables[name] = kind
        self.constant.add(name)
        lines = [head, *self.nested(self.source.randint(1, 2), loop=True)]
        if self.chance(0.5):
            lines.append(f"    if {self.condition()}: break")
        del self.variables[name]
        if self.chance(0.2):
            lines += ["else:", *self.nested(1, loop=False)]
        return lines

    def conditional_loop(self) -> list[str]:
        name, kind = self.name("w"), self.source.choice(TYPES)
        self.variables[name] = kind
        self.constant.add(name)
        start = f"{name} = {kind}({self.source.randint(0, 9)})"
        lines = [start, f"while {name} < {self.source.randint(1, 12)}:", f"    {name} += 1"]
        if self.chance(0.2):
            lines[1] = "while True:"
            lines.append(f"    if {name} > {self.source.randint(1, 12)}: break")
        lines += self.nested(self.source.randint(1, 2), loop=True)
        if self.chance(0.2) and "True" not in lines[1]:
            lines += ["else:", *self.nested(1, loop=False)]
        return lines

    def jump(self) -> list[str]:
        return [f"if {self.condition()}: {self.source.choice(('break', 'continue'))}"]

    # Expressions

    def literal(self, kind: str) -> str:
        number: type[Integer] = KINDS[kind]
        edges = [0, 1, 2, 3, 7, number.greatest(), number.least(), number.greatest() - 1]
        return str(self.source.choice([*edges, self.source.randint(number.least(), number.greatest())]))

    def small(self, kind: str, limit: int = 9) -> str:
        """A value that is mostly not negative and below the limit."""
        if self.chance(0.3):
            return str(self.source.randrange(limit if KINDS[kind].holds(limit) else 100))
        if self.chance(0.2):
            return self.value(kind)
        return f"({self.value(kind)} & {min(limit | 7, KINDS[kind].greatest())})"

    def value(self, kind: str, depth: int = 0) -> str:
        """An expression of a type."""
        if kind == "bool":
            return self.truth(depth)
        known = [name for name, other in self.variables.items() if other == kind]
        if depth >= DEEPEST or self.chance(0.25):
            if known and self.chance(0.75):
                return self.source.choice(known)
            return f"{kind}({self.literal(kind)})"
        makers = [
            (45, self.operation), (10, self.conversion), (8, self.conditional), (5, self.extreme),
            (3, self.absolute), (5, self.unary), (5, self.read), (5, self.call), (6, self.stored),
        ]  # fmt: skip
        weights, functions = zip(*makers, strict=True)
        return str(self.source.choices(functions, weights)[0](kind, depth + 1))

    def operation(self, kind: str, depth: int) -> str:
        operator = self.source.choice(("+", "-", "*", "//", "%", "&", "|", "^", "<<", ">>"))
        right = self.value(kind, depth) if self.chance(0.6) else self.literal(kind)
        if operator in ("<<", ">>") and self.chance(0.8):
            right = str(self.source.choice((0, 1, 3, 7, 8, 31, 63, 64, 100)))
        if operator in ("//", "%") and right == "0":
            right = "3"
        if operator in ("<<", ">>") and right.startswith("-"):
            right = "1"
        if self.chance(0.1):
            return f"({self.literal(kind)} {operator} {self.value(kind, depth)})"
        return f"({self.value(kind, depth)} {operator} {right})"

    def conversion(self, kind: str, depth: int) -> str:
        return f"{kind}({self.value(self.source.choice((*TYPES, 'bool')), depth)})"

    def conditional(self, kind: str, depth: int) -> str:
        other = self.value(kind, depth) if self.chance(0.7) else self.literal(kind)
        return f"({self.value(kind, depth)} if {self.condition(depth)} else {other})"

    def extreme(self, kind: str, depth: int) -> str:
        values = [self.value(kind, depth) for _ in range(self.source.randint(1, 2))]
        values.append(self.literal(kind))
        return f"{self.source.choice(('min', 'max'))}({self.value(kind, depth)}, {', '.join(values)})"

    def absolute(self, kind: str, depth: int) -> str:
        return f"abs({self.value(kind, depth)})"

    def unary(self, kind: str, depth: int) -> str:
        return f"{self.source.choice('-~+')}{self.value(kind, depth)}"

    def read(self, kind: str, depth: int) -> str:
        """Memory, a word of the stack, a register; in a function without `regs` a conversion."""
        if not self.in_handler:
            return self.conversion(kind, depth)
        pointers = [name for name, other in self.variables.items() if other == f"pointer {kind}"]
        if pointers and self.chance(0.6):
            index = self.source.choice((self.small("u64"), self.small("i8"), "0", "3"))
            return f"{self.source.choice(pointers)}[{index}]"
        word = self.source.choice(
            (
                f"regs.stack({1 + self.source.randrange(STACK_WORDS)})",
                f"regs.arg({6 + self.source.randrange(STACK_WORDS)})",
                f"regs.{self.source.choice((*REGISTERS, 'return_value'))}",
                # Not whole: what is there is no address that the simulated machine knows.
                f"({self.source.choice(PLACES)} & 4095)",
                f"(regs.flags & {FLAGS})",
            )
        )
        if self.chance(0.6):
            return word if kind == "u64" else f"{kind}({word})"
        offset = self.source.choice(("", f" + {self.source.randrange(64)}", f" + {self.small('u64', 64)}"))
        return f"read_{kind}(regs.arg({self.source.choice((4, 4, 4, 5, 0))}){offset})"

    def call(self, kind: str, depth: int) -> str:
        fitting = [helper for helper in self.helpers if helper.result == kind]
        if not fitting:
            return self.conversion(kind, depth)
        helper = self.source.choice(fitting)
        words = []
        named = False
        for number, (name, parameter) in enumerate(helper.parameters.items()):
            if number >= len(helper.parameters) - helper.defaults and self.chance(0.4):
                named = True
                continue
            value = self.literal(parameter) if self.chance(0.2) else self.value(parameter, depth)
            named = named or self.chance(0.2)
            words.append(f"{name}={value}" if named else value)
        return f"{helper.name}({', '.join(words)})"

    def stored(self, kind: str, depth: int) -> str:
        assert self.maps is not None
        found = [f"{kind}(tid())", f"{kind}(pid())"]
        if self.maps.array == kind:
            found += [f"array[{self.small('u64')}]"] * 3
        if self.maps.hash_value == kind:
            found += [f"table[{self.small(self.maps.hash_key)}]"] * 3
            name, key = self.key()
            found += [f"{name}[{key}]"] * 2
        if kind == "u64":
            found += ["threads.get()", "stacks.id()"]
        return self.source.choice(found)

    def truth(self, depth: int = 0) -> str:
        known = [name for name, kind in self.variables.items() if kind == "bool"]
        if known and self.chance(0.3):
            return self.source.choice(known)
        if self.chance(0.1):
            return self.source.choice(("True", "False"))
        if self.chance(0.1):
            return f"bool({self.value(self.source.choice(TYPES), depth + 1)})"
        fitting = [helper for helper in self.helpers if helper.result == "bool"]
        if fitting and self.chance(0.3):
            return self.call("bool", depth + 1)
        return f"({self.comparison(depth + 1)})"

    def comparison(self, depth: int) -> str:
        assert self.maps is not None
        if self.chance(0.05):
            name, key = self.key()
            return f"{key} {self.source.choice(('in', 'not in'))} {name}"
        if self.chance(0.1):
            word = self.source.choice(("in", "not in"))
            return f"{self.small(self.maps.hash_key)} {word} table"
        if self.in_handler and self.chance(0.08):
            wanted = self.source.choice(TEXTS)
            limit = self.source.randint(max(len(wanted.encode()), 1), 14)
            offset = self.source.choice(("", f" + {self.source.randrange(8)}"))
            operator = self.source.choice(("==", "!="))
            return f"string(regs.arg({self.source.choice((4, 5))}){offset}, {limit}) {operator} {wanted!r}"
        kind = self.source.choice(TYPES)
        operators = ("==", "!=", "<", "<=", ">", ">=")
        words = [self.value(kind, depth)]
        for _ in range(self.source.choice((1, 1, 1, 1, 2, 3))):
            right = self.literal(kind) if self.chance(0.3) else self.value(kind, depth)
            words += [self.source.choice(operators), right]
        return " ".join(words)

    def condition(self, depth: int = 0) -> str:
        if depth >= DEEPEST or self.chance(0.5):
            return self.comparison(depth + 1)
        if self.chance(0.2):
            return f"not ({self.condition(depth + 1)})"
        if self.chance(0.3):
            return self.truth(depth + 1)
        words = [f"({self.condition(depth + 1)})"]
        for _ in range(self.source.randint(1, 2)):
            words += [self.source.choice(("and", "or")), f"({self.condition(depth + 1)})"]
        return " ".join(words)


def generate(seed: int, leave: tuple[str, ...] = ()) -> str:
    """The program of a number."""
    return Generator(random.Random(seed), leave).program()


def load(text: str, name: str) -> dict[str, Any]:
    """The program as a module: its names. Raises HandlerError."""
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    names: dict[str, Any] = {"sidestep": sidestep}
    names.update(KINDS)
    for each in ("emit", "pointer", "string", "tid", "pid", "stack", "comm", *ACCESSES):
        names[each] = getattr(sidestep, each)
    exec(compile(text, name, "exec"), names)
    return names
