"""Operations on memory, to LLVM's: on that of maps directly, on the target's through routines."""

from __future__ import annotations

from sidestep.compiler.integers import INTEGERS
from sidestep.compiler.ir import Operation, Space
from sidestep.compiler.llvm_text import assembly
from sidestep.compiler.lower_arithmetic import Arithmetic
from sidestep.events.record import COMM_SIZE


class Memory(Arithmetic):
    """Operations on maps, and on the target's memory."""

    def do_symbol(self, operation: Operation, values: list[str]) -> str:
        return self.symbol(operation.about)

    def do_cell_add(self, operation: Operation, values: list[str]) -> None:
        self.lines.append(f"  call void @cell_add(ptr %block, i64 {values[0]}, i64 {values[1]})")

    def do_cell_max(self, operation: Operation, values: list[str]) -> None:
        self.lines.append(f"  call void @cell_max(ptr %block, i64 {values[0]}, i64 {values[1]})")

    def do_load(self, operation: Operation, values: list[str]) -> str:
        return self.make(f"load atomic i64, ptr {self.pointer(values[0])} acquire, align 8")

    def do_store(self, operation: Operation, values: list[str]) -> None:
        self.lines.append(f"  store atomic i64 {values[1]}, ptr {self.pointer(values[0])} release, align 8")

    def do_add_to(self, operation: Operation, values: list[str]) -> None:
        self.make(f"atomicrmw add ptr {self.pointer(values[0])}, i64 {values[1]} seq_cst")

    def do_exchange_if(self, operation: Operation, values: list[str]) -> str:
        pair = self.make(
            f"cmpxchg ptr {self.pointer(values[0])}, i64 {values[1]}, i64 {values[2]} seq_cst seq_cst"
        )
        return self.make(f"extractvalue {{ i64, i1 }} {pair}, 0")

    def do_exchange_pair(self, operation: Operation, values: list[str]) -> str:
        place, low, high, new_low, new_high = values
        old, new = self._pair(low, high), self._pair(new_low, new_high)
        pointer = self.pointer(place)
        both = self.make(f"cmpxchg ptr {pointer}, i128 {old}, i128 {new} seq_cst seq_cst, align 16")
        return self.make(f"extractvalue {{ i128, i1 }} {both}, 1")

    def _pair(self, low: str, high: str) -> str:
        wide_low, wide_high = self.make(f"zext i64 {low} to i128"), self.make(f"zext i64 {high} to i128")
        return self.make(f"or i128 {wide_low}, {self.make(f'shl i128 {wide_high}, 64')}")

    def do_space(self, operation: Operation, values: list[str]) -> str:
        space: Space = operation.about
        name = self.buffer(f"space{space.number}", space.words)
        for number in range(space.words):
            place = self.make(f"getelementptr i64, ptr {name}, i64 {number}")
            self.lines.append(f"  store i64 0, ptr {place}")
        return self.make(f"ptrtoint ptr {name} to i64")

    def do_read_text(self, operation: Operation, values: list[str]) -> str:
        if len(values) > 1:
            return self.read_memory(values[1], values[0], operation.about)
        self.thread_name(values[0])
        return str(COMM_SIZE)

    def do_read(self, operation: Operation, values: list[str]) -> str:
        """A bad address ends the handler."""
        assert operation.about in INTEGERS
        what = f"{operation.about.__name__} cannot be read"
        return self.read_word(values[0], operation.about.bits // 8, what)

    def read_word(self, address: str, size: int, what: str) -> str:
        """Through the runtime's routine."""
        routine = self.symbol("read_word")
        text = "call *$2\\0Asetne %cl\\0Amovzbl %cl, %ecx"
        arguments = f"i64 {routine}, i64 {address}, i64 {size}"
        call = assembly("{ i64, i64 }", text, "={rax},={rcx},r,{rax},{rdx},~{r11}", arguments)
        pair = self.make(call)
        failed = self.make(f"extractvalue {{ i64, i64 }} {pair}, 1")
        self.fault_if(self.make(f"icmp ne i64 {failed}, 0"), what, address)
        word = self.make(f"extractvalue {{ i64, i64 }} {pair}, 0")
        return word if size == 8 else self.make(f"trunc i64 {word} to i{8 * size}")

    def do_write(self, operation: Operation, values: list[str]) -> None:
        """Through the runtime's routine: memory that cannot be written ends the handler."""
        size = operation.about.bits // 8
        routine = self.symbol("write_word")
        value = values[1]
        if size < 8:
            value = self.make(f"zext i{8 * size} {value} to i64")
        arguments = f"i64 {routine}, i64 {values[0]}, i64 {value}, i64 {size}"
        constraints = "={rax},={rcx},r,{rax},{rcx},{rdx},~{r11}"
        pair = self.make(assembly("{ i64, i64 }", "call *$2", constraints, arguments))
        count = self.make(f"extractvalue {{ i64, i64 }} {pair}, 0")
        what = f"{operation.about.__name__} cannot be written"
        self.fault_if(self.make(f"icmp ne i64 {count}, {size}"), what, values[0])

    def read_memory(self, address: str, where: str, size: int) -> str:
        """Copy from the target's memory; how many bytes could be read."""
        routine = self.symbol("read_memory")
        arguments = f"i64 {routine}, i64 {address}, i64 {where}, i64 {size}"
        constraints = "={rax},={rcx},r,{rax},{rcx},{rdx},~{r11}"
        pair = self.make(assembly("{ i64, i64 }", "call *$2", constraints, arguments))
        return self.make(f"extractvalue {{ i64, i64 }} {pair}, 0")

    def thread_name(self, where: str) -> None:
        """Put the 16 bytes of the thread's name somewhere."""
        routine = self.symbol("thread_name")
        constraints = "={rcx},r,{rcx},~{rax},~{r11}"
        self.make(assembly("i64", "call *$1", constraints, f"i64 {routine}, i64 {where}"))

    def do_same_text(self, operation: Operation, values: list[str]) -> str:
        """Read over a copy of what is wanted: what could not be read is equal, and then it is a fault."""
        wanted: bytes = operation.about
        size = len(wanted) if values else COMM_SIZE
        padded = wanted.ljust(-(-size // 8) * 8, b"\0")
        words = [int.from_bytes(padded[at : at + 8], "little") for at in range(0, len(padded), 8)]
        buffer = self.buffer("text", len(words))
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
        self.fault_if(unknown, "text cannot be read", values[0] if values else None)
        return equal
