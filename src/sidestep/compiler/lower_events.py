"""Events, time and backtraces, to LLVM's text."""

from __future__ import annotations

from sidestep.compiler.integers import Integer
from sidestep.compiler.ir import Operation, Value
from sidestep.compiler.llvm_text import assembly, llvm_type
from sidestep.compiler.lower_memory import Memory
from sidestep.compiler.machine import LONGEST_WALK
from sidestep.compiler.record_format import event_program
from sidestep.events import layout
from sidestep.events.record import COMM_SIZE, STRING_LIMIT_SHIFT, Field


class Events(Memory):
    """Operations that look around, and tell."""

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
        pair = self.make(assembly("{ i64, i64 }", "call *$2", constraints, arguments))
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
                self._fill_text(record, place, field, next(left)[0] if limit else None, limit)
        for number in range(emission.depth):
            word = self.make(f"add i64 {values[-1]}, {layout.WORD * (1 + number)}")
            place = self.make(f"add i64 {record}, {form.stack_offset + layout.WORD * number}")
            address = self.make(f"load volatile i64, ptr {self.pointer(word)}")
            self.lines.append(f"  store i64 {address}, ptr {self.pointer(place)}")
        start = self.pointer(record)
        self.lines.append(f"  store atomic i8 {layout.RECORD_MAGIC & 0xFF}, ptr {start} release, align 1")
        self.lines += [f"  br label %{done}", f"{done}:"]

    def _fill_number(self, place: str, value: str, argument: Value) -> None:
        kind = argument.type
        assert issubclass(kind, Integer)
        if kind.bits < 64:
            value = self.make(f"{'sext' if kind.signed else 'zext'} {llvm_type(kind)} {value} to i64")
        self.lines.append(f"  store i64 {value}, ptr {self.pointer(place)}")

    def _fill_text(self, record: str, place: str, field: Field, address: str | None, limit: int) -> None:
        """The number of bytes that could be read, with the limit, and the bytes: one more than the limit, to
        tell that the text goes on; a bit of the record if there were none."""
        behind = self.make(f"add i64 {place}, 8")
        if address is None:
            self.thread_name(behind)
            self.lines.append(f"  store i64 {COMM_SIZE}, ptr {self.pointer(place)}")
            return
        size = self.read_memory(address, behind, limit + 1)
        head = self.make(f"or i64 {size}, {limit << STRING_LIMIT_SHIFT}")
        self.lines.append(f"  store i64 {head}, ptr {self.pointer(place)}")
        assert field.fault_bit is not None
        none = self.make(f"icmp eq i64 {size}, 0")
        bit = self.make(f"select i1 {none}, i64 {1 << field.fault_bit % 64}, i64 0")
        word = layout.RECORD_HEADER_SIZE + field.fault_bit // 64 * 8
        faults = self.pointer(self.make(f"add i64 {record}, {word}"))
        before = self.make(f"load i64, ptr {faults}")
        self.lines.append(f"  store i64 {self.make(f'or i64 {before}, {bit}')}, ptr {faults}")

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

    def do_walk(self, operation: Operation, values: list[str]) -> str:
        """The probepoint, at a function's entry the return address, then what the frame pointers lead to."""
        self.buffer("walked", 1 + LONGEST_WALK)
        entry = self.input("entry")
        first = self.make(f"icmp ne i64 {entry}, 0")
        caller = self.make(f"select i1 {first}, i64 {self.input('stack0')}, i64 0")
        for number, word in enumerate(("0", self.input("ip"), caller, *["0"] * (LONGEST_WALK - 2))):
            self.lines.append(f"  store volatile i64 {word}, ptr {self._walked(str(number))}")
        start = self.make(f"add i64 {entry}, 2")
        where = self.make(f"ptrtoint ptr {self._walked(start)} to i64")
        most = self.make(f"sub i64 {1 + LONGEST_WALK}, {start}")
        arguments = f"i64 {self.symbol('walk_stack')}, i64 {self.input('bp')}, i64 {where}, i64 {most}"
        constraints = "={rax},={rcx},={rdx},r,{rax},{rcx},{rdx},~{r11}"
        self.make(assembly("{ i64, i64, i64 }", "call *$3", constraints, arguments))
        return self.make("ptrtoint ptr %walked to i64")

    def _walked(self, index: str) -> str:
        return self.make(f"getelementptr i64, ptr %walked, i64 {index}")

    def input(self, name: str) -> str:
        """The value at the probepoint."""
        return f'%"in {name}"'
