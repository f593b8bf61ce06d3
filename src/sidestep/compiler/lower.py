"""From the intermediate representation to LLVM's, as text.

The handler is one function:

    i64 @handler(i64 di, si, dx, cx, r8, r9, ptr nest frame)

It keeps all registers but rax and r11 (preserve_mostcc). The integer arguments' registers are its parameters,
as they are at the probepoint. r10 points to the thread's counter block; or, if `slots` are used, to a frame:
the block's address, then a word for each other register, word of the stack or fact. It returns 0, 1 (the
handler returned true) or 2 (a fault). Addresses are external symbols, filled in where the code is placed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sidestep.compiler.integers import INTEGERS, Integer
from sidestep.compiler.intrinsics import LONGEST_WALK
from sidestep.compiler.ir import (
    COMPARISONS,
    Branch,
    Constant,
    Fault,
    Function,
    Jump,
    Operation,
    Return,
    Type,
    Value,
)
from sidestep.compiler.record_format import event_program
from sidestep.compiler.registers import ARGUMENTS
from sidestep.compiler.support import SUPPORT
from sidestep.events import layout
from sidestep.events.record import COMM_SIZE, Field

FACTS = ("tid", "pid", "cpu")
WALKING = ("ip", "bp", "stack0", "entry")
FAULT = 2
FAULTING = ("read", "write", "same_text", "stack")
SIMPLE = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}


@dataclass(frozen=True, slots=True)
class Lowered:
    """LLVM text with what its frame and symbols stand for.

    `slots`: names behind the counter block, one word each; `written`: those that the handler changes;
    `arguments`: the arguments' registers that it reads where they are.
    `symbols` maps the names of externals to what they are.
    """

    text: str
    slots: tuple[str, ...]
    written: tuple[str, ...]
    arguments: tuple[str, ...]
    symbols: dict[str, object]
    returns: bool  # whether it may return 1
    faults: bool  # whether it may return 2


def lower(function: Function) -> Lowered:
    return _Lowering(function).finish()


def llvm_type(kind: Type) -> str:
    return f"i{kind.bits}" if issubclass(kind, Integer) else "i1"


class _Lowering:
    def __init__(self, function: Function) -> None:
        self.function = function
        self.lines: list[str] = []
        self.allocations: list[str] = []
        self.symbols: dict[str, object] = {}
        self._by_thing: dict[object, str] = {}
        self._fresh = 0
        self.written = tuple(sorted({op.about for op in function.operations() if op.name == "set_register"}))
        used = dict.fromkeys(self._inputs())
        self.slots = tuple(dict.fromkeys([*used, *self.written]))

    def _inputs(self) -> Iterator[str]:
        for operation in self.function.operations():
            if operation.name == "register" and operation.about not in ARGUMENTS:
                yield operation.about
            elif operation.name == "stack":
                yield "sp" if operation.about else "stack0"
            elif operation.name in FACTS:
                yield operation.name
            elif operation.name == "probe_address":
                yield "ip"
            elif operation.name == "walk":
                yield from WALKING

    def finish(self) -> Lowered:
        self.head()
        allocated = len(self.lines) - 1
        for block in self.function.blocks:
            self.lines.append(f"b{block.number}:")
            for operation in block.operations:
                self.operation(operation)
            self.end(block.end)
        self.lines.append("}")
        self.lines[allocated:allocated] = self.allocations
        declared = [f"@{name} = external global i8" for name in self.symbols]
        fixed = [
            f"@{name} = external global i8" for name in ("scratch_block", "shared_block", "process_page")
        ]
        text = "\n".join([*fixed, *declared, SUPPORT, *self.lines]) + "\n"
        faults = any(isinstance(block.end, Fault) for block in self.function.blocks) or any(
            operation.name in FAULTING for operation in self.function.operations()
        )
        return Lowered(
            text, self.slots, self.written, self._arguments(), self.symbols, self._may_return_true(), faults
        )

    def _arguments(self) -> tuple[str, ...]:
        read = {each.about for each in self.function.operations() if each.name == "register"}
        return tuple(name for name in ARGUMENTS if name in read)

    def _may_return_true(self) -> bool:
        operations = list(self.function.operations())
        returned = {block.end.value for block in self.function.blocks if isinstance(block.end, Return)}
        results = {each.about for each in operations if each.result in returned}
        stored = (each for each in operations if each.name == "set_local" and each.about in results)
        return any(not isinstance(each.arguments[0], Constant) or each.arguments[0].value for each in stored)

    def head(self) -> None:
        parameters = ", ".join(f"i64 %{name}" for name in ARGUMENTS)
        # Tables of jumps or of results would be data beside the code.
        attributes = 'nounwind noredzone noimplicitfloat "no-jump-tables"="true" "no-builtins"'
        self.lines.append(
            f"define preserve_mostcc i64 @handler({parameters}, ptr nest %frame) {attributes} {{"
        )
        self.lines.append("entry:")
        load = "load ptr, ptr %frame" if self.slots else "getelementptr i8, ptr %frame, i64 0"
        self.lines.append(f"  %block = {load}")
        for name, kind in self.function.locals.items():
            self.lines.append(f'  %"local {name}" = alloca {llvm_type(kind)}')
        for name in dict.fromkeys([*ARGUMENTS, *self.slots]):
            if name in self.written or name in ARGUMENTS:
                self.lines.append(f'  %"register {name}" = alloca i64')
        for name in ARGUMENTS:
            self.lines.append(f'  store i64 %{name}, ptr %"register {name}"')
        for name in self.slots:
            if name not in ARGUMENTS:
                value = self.load_slot(name)
                if name in self.written:
                    self.lines.append(f'  store i64 {value}, ptr %"register {name}"')
        self.lines.append("  br label %b0")

    def load_slot(self, name: str) -> str:
        offset = 8 * (1 + self.slots.index(name))
        self.lines.append(f'  %"at {name}" = getelementptr i8, ptr %frame, i64 {offset}')
        self.lines.append(f'  %"in {name}" = load i64, ptr %"at {name}"')
        return f'%"in {name}"'

    # Values

    def fresh(self) -> str:
        self._fresh += 1
        return f"%x{self._fresh}"

    def make(self, text: str) -> str:
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return name

    def value(self, value: Value) -> str:
        if isinstance(value, Constant):
            return (
                str(value.value) if issubclass(value.type, Integer) else ("true" if value.value else "false")
            )
        return f"%t{value.number}"

    def symbol(self, thing: object) -> str:
        name = self._by_thing.get(thing)
        if name is None:
            name = self._by_thing[thing] = f"symbol{len(self.symbols)}"
            self.symbols[name] = thing
        return self.make(f"ptrtoint ptr @{name} to i64")

    def end(self, end: object) -> None:
        match end:
            case Jump(target=target):
                self.lines.append(f"  br label %b{target}")
            case Branch(condition=condition, then=then, otherwise=otherwise):
                self.lines.append(f"  br i1 {self.value(condition)}, label %b{then}, label %b{otherwise}")
            case Return(value=value):
                self.write_back()
                self.lines.append(f"  ret i64 {self.value(value)}")
            case Fault():
                self.lines.append(f"  ret i64 {FAULT}")
            case _:
                raise AssertionError(end)

    def write_back(self) -> None:
        for name in self.written:
            offset = 8 * (1 + self.slots.index(name))
            value = self.make(f'load i64, ptr %"register {name}"')
            place = self.make(f"getelementptr i8, ptr %frame, i64 {offset}")
            self.lines.append(f"  store i64 {value}, ptr {place}")

    def operation(self, operation: Operation) -> None:
        name = operation.name
        values = [self.value(argument) for argument in operation.arguments]
        if name in COMPARISONS:
            result = self.compare(name, operation.arguments[0].type, values)
        elif name in ("add", "sub", "mul", "and", "or", "xor", "div", "mod", "shl", "shr"):
            assert operation.result is not None
            result = self.arithmetic(name, operation.result.type, values)
        else:
            found = getattr(self, f"do_{name}")(operation, values)
            result = found or ""
        if operation.result is not None:
            kind = llvm_type(operation.result.type)
            self.lines.append(f"  %t{operation.result.number} = bitcast {kind} {result} to {kind}")

    def compare(self, name: str, kind: Type, values: list[str]) -> str:
        signed = issubclass(kind, Integer) and kind.signed
        sign = "" if name in ("eq", "ne") else ("s" if signed else "u")
        return self.make(f"icmp {sign}{name} {llvm_type(kind)} {values[0]}, {values[1]}")

    def arithmetic(self, name: str, kind: Type, values: list[str]) -> str:
        text, (a, b) = llvm_type(kind), values
        if name in SIMPLE:
            return self.make(f"{SIMPLE[name]} {text} {a}, {b}")
        assert issubclass(kind, Integer)
        if name in ("shl", "shr"):
            return self.shift(name, kind, a, b)
        if not kind.signed:
            return self.make(f"{'udiv' if name == 'div' else 'urem'} {text} {a}, {b}")
        # The least number by -1 is a fault of the processor; rounding is down, not towards 0.
        minus_one = self.make(f"icmp eq {text} {b}, -1")
        safe = self.make(f"select i1 {minus_one}, {text} 1, {text} {b}")
        rest = self.make(f"srem {text} {a}, {safe}")
        some = self.make(f"icmp ne {text} {rest}, 0")
        mixed = self.make(f"xor {text} {rest}, {b}")
        differ = self.make(f"icmp slt {text} {mixed}, 0")
        down = self.make(f"and i1 {some}, {differ}")
        if name == "mod":
            adjusted = self.make(f"add {text} {rest}, {b}")
            result = self.make(f"select i1 {down}, {text} {adjusted}, {text} {rest}")
            return self.make(f"select i1 {minus_one}, {text} 0, {text} {result}")
        quotient = self.make(f"sdiv {text} {a}, {safe}")
        less = self.make(f"sub {text} {quotient}, 1")
        result = self.make(f"select i1 {down}, {text} {less}, {text} {quotient}")
        opposite = self.make(f"sub {text} 0, {a}")
        return self.make(f"select i1 {minus_one}, {text} {opposite}, {text} {result}")

    def shift(self, name: str, kind: type[Integer], a: str, b: str) -> str:
        text = llvm_type(kind)
        small = self.make(f"icmp ult {text} {b}, {kind.bits}")
        count = self.make(f"select i1 {small}, {text} {b}, {text} {kind.bits - 1}")
        if name == "shr" and kind.signed:
            return self.make(f"ashr {text} {a}, {count}")
        shifted = self.make(f"{'shl' if name == 'shl' else 'lshr'} {text} {a}, {count}")
        return self.make(f"select i1 {small}, {text} {shifted}, {text} 0")

    # Operations

    def do_get_local(self, operation: Operation, values: list[str]) -> str:
        kind = llvm_type(self.function.locals[operation.about])
        return self.make(f'load {kind}, ptr %"local {operation.about}"')

    def do_set_local(self, operation: Operation, values: list[str]) -> None:
        kind = llvm_type(self.function.locals[operation.about])
        self.lines.append(f'  store {kind} {values[0]}, ptr %"local {operation.about}"')

    def do_convert(self, operation: Operation, values: list[str]) -> str:
        assert operation.result is not None
        source, target = operation.arguments[0].type, operation.result.type
        a, b = llvm_type(source), llvm_type(target)
        if not issubclass(target, Integer):
            return self.make(f"icmp ne {a} {values[0]}, 0")
        width = source.bits if issubclass(source, Integer) else 1
        if width == target.bits:
            return values[0]
        if width > target.bits:
            return self.make(f"trunc {a} {values[0]} to {b}")
        extension = "sext" if issubclass(source, Integer) and source.signed else "zext"
        return self.make(f"{extension} {a} {values[0]} to {b}")

    def do_register(self, operation: Operation, values: list[str]) -> str:
        name = operation.about
        if name in self.written or name in ARGUMENTS:
            return self.make(f'load i64, ptr %"register {name}"')
        return f'%"in {name}"'

    def do_probe_address(self, operation: Operation, values: list[str]) -> str:
        return self._input("ip")

    def do_set_register(self, operation: Operation, values: list[str]) -> None:
        self.lines.append(f'  store i64 {values[0]}, ptr %"register {operation.about}"')

    def do_stack(self, operation: Operation, values: list[str]) -> str:
        """The word at the stack pointer is there; others may lie behind the end of a stack."""
        if not operation.about:
            return self._input("stack0")
        return self._read_word(self.make(f"add i64 {self._input('sp')}, {8 * operation.about}"), 8)

    def _fact(self, operation: Operation, values: list[str]) -> str:
        return self.make(f'trunc i64 %"in {operation.name}" to i32')

    do_tid = do_pid = do_cpu = _fact

    def do_walk(self, operation: Operation, values: list[str]) -> None:
        """The probepoint, at a function's entry the return address, then what the frame pointers lead to."""
        if not any("%walked" in line for line in self.allocations):
            self.allocations.append(f"  %walked = alloca [{LONGEST_WALK} x i64], align 8")
        for number in range(LONGEST_WALK):
            self.lines.append(f"  store volatile i64 0, ptr {self._walked(str(number))}")
        self.lines.append(f"  store volatile i64 {self._input('ip')}, ptr {self._walked('0')}")
        entry = self._input("entry")
        first = self.make(f"icmp ne i64 {entry}, 0")
        caller = self.make(f"select i1 {first}, i64 {self._input('stack0')}, i64 0")
        self.lines.append(f"  store volatile i64 {caller}, ptr {self._walked('1')}")
        start = self.make(f"add i64 {entry}, 1")
        where = self.make(f"ptrtoint ptr {self._walked(start)} to i64")
        most = self.make(f"sub i64 {LONGEST_WALK}, {start}")
        arguments = f"i64 {self.symbol('walk_stack')}, i64 {self._input('bp')}, i64 {where}, i64 {most}"
        constraints = "={rax},={rcx},={rdx},r,{rax},{rcx},{rdx},~{r11}"
        self.make(_assembly("{ i64, i64, i64 }", "call *$3", constraints, arguments))

    def _input(self, name: str) -> str:
        """The value at the probepoint."""
        return f'%"in {name}"'

    def _walked(self, index: str) -> str:
        return self.make(f"getelementptr i64, ptr %walked, i64 {index}")

    def do_frame(self, operation: Operation, values: list[str]) -> str:
        return self.make(f"load volatile i64, ptr {self._walked(values[0])}")

    def do_now(self, operation: Operation, values: list[str]) -> str:
        """(cycles - base) * scale >> 32 + start, in 128 bits."""
        cycles = self.make("call i64 @llvm.readcyclecounter()")
        since = self.make(f"sub i64 {cycles}, {self.symbol('clock_base')}")
        wide = self.make(f"zext i64 {since} to i128")
        scale = self.make(f"zext i64 {self.symbol('clock_scale')} to i128")
        product = self.make(f"mul i128 {wide}, {scale}")
        shifted = self.make(f"lshr i128 {product}, 32")
        nanoseconds = self.make(f"trunc i128 {shifted} to i64")
        return self.make(f"add i64 {nanoseconds}, {self.symbol('clock_start')}")

    def do_random(self, operation: Operation, values: list[str]) -> str:
        """The cycle counter, mixed: splitmix64's finaliser."""
        value = self.make("call i64 @llvm.readcyclecounter()")
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = self.make(f"lshr i64 {value}, {shift}")
            value = self.make(f"xor i64 {value}, {mixed}")
            value = self.make(f"mul i64 {value}, {factor - (1 << 64)}")
        mixed = self.make(f"lshr i64 {value}, 31")
        return self.make(f"xor i64 {value}, {mixed}")

    def do_bit_length(self, operation: Operation, values: list[str]) -> str:
        zeros = self.make(f"call i64 @llvm.ctlz.i64(i64 {values[0]}, i1 false)")
        return self.make(f"sub i64 64, {zeros}")

    def do_symbol(self, operation: Operation, values: list[str]) -> str:
        return self.symbol(operation.about)

    def do_cell_add(self, operation: Operation, values: list[str]) -> None:
        self.lines.append(f"  call void @cell_add(ptr %block, i64 {values[0]}, i64 {values[1]})")

    def do_cell_max(self, operation: Operation, values: list[str]) -> None:
        self.lines.append(f"  call void @cell_max(ptr %block, i64 {values[0]}, i64 {values[1]})")

    def do_load(self, operation: Operation, values: list[str]) -> str:
        return self.make(f"load atomic i64, ptr {self.pointer(values[0])} monotonic, align 8")

    def do_store(self, operation: Operation, values: list[str]) -> None:
        self.lines.append(f"  store atomic i64 {values[1]}, ptr {self.pointer(values[0])} release, align 8")

    def do_add_to(self, operation: Operation, values: list[str]) -> None:
        self.make(f"atomicrmw add ptr {self.pointer(values[0])}, i64 {values[1]} seq_cst")

    def do_exchange_if(self, operation: Operation, values: list[str]) -> str:
        pair = self.make(
            f"cmpxchg ptr {self.pointer(values[0])}, i64 {values[1]}, i64 {values[2]} seq_cst seq_cst"
        )
        return self.make(f"extractvalue {{ i64, i1 }} {pair}, 0")

    def pointer(self, address: str) -> str:
        return self.make(f"inttoptr i64 {address} to ptr")

    def do_read(self, operation: Operation, values: list[str]) -> str:
        """A bad address ends the handler."""
        assert operation.about in INTEGERS
        return self._read_word(values[0], operation.about.bits // 8)

    def _read_word(self, address: str, size: int) -> str:
        """Through the runtime's routine."""
        routine = self.symbol("read_word")
        assembly = "call *$2\\0Asetne %cl\\0Amovzbl %cl, %ecx"
        arguments = f"i64 {routine}, i64 {address}, i64 {size}"
        call = _assembly("{ i64, i64 }", assembly, "={rax},={rcx},r,{rax},{rdx},~{r11}", arguments)
        pair = self.make(call)
        failed = self.make(f"extractvalue {{ i64, i64 }} {pair}, 1")
        self._fault_if(self.make(f"icmp ne i64 {failed}, 0"))
        word = self.make(f"extractvalue {{ i64, i64 }} {pair}, 0")
        return word if size == 8 else self.make(f"trunc i64 {word} to i{8 * size}")

    def _fault_if(self, bad: str) -> None:
        fault, good = self.labels("fault", "good")
        self.lines.append(f"  br i1 {bad}, label %{fault}, label %{good}, !prof !0")
        self.lines += [f"{fault}:", f"  ret i64 {FAULT}", f"{good}:"]

    def labels(self, *names: str) -> list[str]:
        """New labels."""
        self._fresh += 1
        return [f"{name}{self._fresh}" for name in names]

    def do_write(self, operation: Operation, values: list[str]) -> None:
        """Through the runtime's routine: memory that cannot be written ends the handler."""
        size = operation.about.bits // 8
        routine = self.symbol("write_word")
        value = values[1]
        if size < 8:
            value = self.make(f"zext i{8 * size} {value} to i64")
        arguments = f"i64 {routine}, i64 {values[0]}, i64 {value}, i64 {size}"
        constraints = "={rax},={rcx},r,{rax},{rcx},{rdx},~{r11}"
        pair = self.make(_assembly("{ i64, i64 }", "call *$2", constraints, arguments))
        count = self.make(f"extractvalue {{ i64, i64 }} {pair}, 0")
        self._fault_if(self.make(f"icmp ne i64 {count}, {size}"))

    def do_emit(self, operation: Operation, values: list[str]) -> None:
        """Through the runtime's routine: a place in a ring, or null where it is full."""
        emission = operation.about
        form = event_program(emission.event).format
        index = self.symbol(emission.event)
        word = self.make(f"shl i64 {index}, 32")
        head = self.make(f"or i64 {word}, {form.header_word(0, layout.PENDING_MAGIC)}")
        routine = self.symbol("reserve")
        arguments = f"i64 {routine}, ptr %block, i64 {head}"
        constraints = "={rax},={rcx},r,{rax},{rcx},~{rdx},~{r11}"
        pair = self.make(_assembly("{ i64, i64 }", "call *$2", constraints, arguments))
        record = self.make(f"extractvalue {{ i64, i64 }} {pair}, 0")
        some = self.make(f"icmp ne i64 {record}, 0")
        fill, done = self.labels("fill", "filled")
        self.lines += [f"  br i1 {some}, label %{fill}, label %{done}", f"{fill}:"]
        left = iter(zip(values, operation.arguments, strict=True))
        for field, limit in zip(form.fields, emission.limits, strict=True):
            place = self.make(f"add i64 {record}, {field.offset}")
            if limit is None:
                self._fill_number(place, *next(left))
            else:
                # One more where there is room for it, to tell that the text goes on.
                size = limit + (limit == form.string_limit)
                self._fill_text(record, place, field, next(left)[0] if limit else None, size)
        start = self.pointer(record)
        self.lines.append(f"  store atomic i8 {layout.RECORD_MAGIC & 0xFF}, ptr {start} release, align 1")
        self.lines += [f"  br label %{done}", f"{done}:"]

    def _fill_number(self, place: str, value: str, argument: Value) -> None:
        kind = argument.type
        assert issubclass(kind, Integer)
        if kind.bits < 64:
            value = self.make(f"{'sext' if kind.signed else 'zext'} {llvm_type(kind)} {value} to i64")
        self.lines.append(f"  store i64 {value}, ptr {self.pointer(place)}")

    def _fill_text(self, record: str, place: str, field: Field, address: str | None, most: int) -> None:
        """The number of bytes that could be read, and the bytes; a bit of the record if there were none."""
        behind = self.make(f"add i64 {place}, 8")
        if address is None:
            self.thread_name(behind)
            self.lines.append(f"  store i64 {COMM_SIZE}, ptr {self.pointer(place)}")
            return
        size = self.read_memory(address, behind, most)
        self.lines.append(f"  store i64 {size}, ptr {self.pointer(place)}")
        assert field.fault_bit is not None
        none = self.make(f"icmp eq i64 {size}, 0")
        bit = self.make(f"select i1 {none}, i64 {1 << field.fault_bit % 64}, i64 0")
        word = layout.RECORD_HEADER_SIZE + field.fault_bit // 64 * 8
        faults = self.pointer(self.make(f"add i64 {record}, {word}"))
        before = self.make(f"load i64, ptr {faults}")
        self.lines.append(f"  store i64 {self.make(f'or i64 {before}, {bit}')}, ptr {faults}")

    def read_memory(self, address: str, where: str, size: int) -> str:
        """Copy from the target's memory; how many bytes could be read."""
        routine = self.symbol("read_memory")
        arguments = f"i64 {routine}, i64 {address}, i64 {where}, i64 {size}"
        constraints = "={rax},={rcx},r,{rax},{rcx},{rdx},~{r11}"
        pair = self.make(_assembly("{ i64, i64 }", "call *$2", constraints, arguments))
        return self.make(f"extractvalue {{ i64, i64 }} {pair}, 0")

    def thread_name(self, where: str) -> None:
        """Put the 16 bytes of the thread's name somewhere."""
        routine = self.symbol("thread_name")
        constraints = "={rcx},r,{rcx},~{rax},~{r11}"
        self.make(_assembly("i64", "call *$1", constraints, f"i64 {routine}, i64 {where}"))

    def do_same_text(self, operation: Operation, values: list[str]) -> str:
        """Read over a copy of what is wanted: what could not be read is equal, and then it is a fault."""
        wanted: bytes = operation.about
        size = len(wanted) if values else COMM_SIZE
        padded = wanted.ljust(-(-size // 8) * 8, b"\0")
        words = [int.from_bytes(padded[at : at + 8], "little") for at in range(0, len(padded), 8)]
        self._fresh += 1
        buffer = f"%text{self._fresh}"
        self.allocations.append(f"  {buffer} = alloca [{len(words)} x i64], align 8")
        for number, word in enumerate(words):
            place = self.make(f"getelementptr i64, ptr {buffer}, i64 {number}")
            self.lines.append(f"  store volatile i64 {word}, ptr {place}")
        where = self.make(f"ptrtoint ptr {buffer} to i64")
        if values:
            count = self.read_memory(values[0], where, size)
        else:
            self.thread_name(where)
            count = str(size)
        equal = "true"
        for number, word in enumerate(words):
            place = self.make(f"getelementptr i64, ptr {buffer}, i64 {number}")
            found = self.make(f"load volatile i64, ptr {place}")
            mask = (1 << 8 * min(8, len(wanted) - 8 * number)) - 1 if len(wanted) > 8 * number else 0
            differing = self.make(f"xor i64 {found}, {word}")
            counted = self.make(f"and i64 {differing}, {mask}")
            same = self.make(f"icmp eq i64 {counted}, 0")
            equal = self.make(f"and i1 {equal}, {same}")
        short = self.make(f"icmp ult i64 {count}, {size}")
        unknown = self.make(f"and i1 {equal}, {short}")
        self._fault_if(unknown)
        return equal


def _assembly(result: str, text: str, constraints: str, arguments: str) -> str:
    """A call of assembly that changes memory and flags."""
    clobbered = "~{memory},~{dirflag},~{fpsr},~{flags}"
    return f'call {result} asm sideeffect "{text}", "{constraints},{clobbered}"({arguments})'
