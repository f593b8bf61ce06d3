"""LLVM's text while it is written: lines, values, names; calls of the runtime's routines."""

from __future__ import annotations

from sidestep.compiler.faults import (
    ADDRESS_SHIFT,
    ADDRESSES,
    FAULT,
    MOST_SITES,
    NO_ADDRESS,
    NOWHERE,
    SITE_SHIFT,
    Site,
)
from sidestep.compiler.integers import Integer
from sidestep.compiler.ir import Constant, Temporary, Type, Value, Where


def llvm_type(kind: Type) -> str:
    return f"i{kind.bits}" if issubclass(kind, Integer) else "i1"


class LlvmText:
    """The lines of one function. `symbols` are the externals that they name."""

    def __init__(self) -> None:
        self.where = Where("", 0)  # of what is written now
        self.sites = [NOWHERE]
        self.lines: list[str] = []
        self.buffers: dict[str, int] = {}
        self.symbols: dict[str, object] = {}
        self._by_thing: dict[object, str] = {}
        self._fresh = 0

    def fresh(self) -> str:
        self._fresh += 1
        return f"%x{self._fresh}"

    def make(self, text: str) -> str:
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return name

    def labels(self, *names: str) -> list[str]:
        """New labels."""
        self._fresh += 1
        return [f"{name}{self._fresh}" for name in names]

    def value(self, value: Value) -> str:
        if isinstance(value, Constant):
            return (
                str(value.value) if issubclass(value.type, Integer) else ("true" if value.value else "false")
            )
        return f"%t{value.number}"

    def name(self, result: str, temporary: Temporary) -> None:
        """Have a result known as a temporary of the representation."""
        wanted, kind = self.value(temporary), llvm_type(temporary.type)
        head = f"  {result} = "
        if self.lines[-1].startswith(head):
            self.lines[-1] = f"  {wanted} = {self.lines[-1].removeprefix(head)}"
        else:
            self.lines.append(f"  {wanted} = bitcast {kind} {result} to {kind}")

    def symbol(self, thing: object) -> str:
        name = self._by_thing.get(thing)
        if name is None:
            name = self._by_thing[thing] = f"symbol{len(self.symbols)}"
            self.symbols[name] = thing
        return self.make(f"ptrtoint ptr @{name} to i64")

    def pointer(self, address: str) -> str:
        return self.make(f"inttoptr i64 {address} to ptr")

    def buffer(self, name: str, words: int) -> str:
        """The pointer to a buffer on the stack. Those of one name are one, as large as the largest."""
        self.buffers[name] = max(self.buffers.get(name, 0), words)
        return f"%{name}"

    @property
    def allocations(self) -> list[str]:
        """The lines that make the buffers, for the start of the function."""
        return [f"  %{name} = alloca [{words} x i64], align 8" for name, words in self.buffers.items()]

    def fault_if(self, bad: str, what: str, address: str | None = None) -> None:
        """End the handler; `address` is what could not be reached."""
        fault, good = self.labels("fault", "good")
        self.lines.append(f"  br i1 {bad}, label %{fault}, label %{good}, !prof !0")
        self.lines.append(f"{fault}:")
        self.fault(what, address)
        self.lines.append(f"{good}:")

    def fault(self, what: str, address: str | None = None) -> None:
        """What the handler answers at its end by a fault."""
        site = Site(str(self.where), what, address is not None)
        if site not in self.sites:
            self.sites.append(site)
        number = self.sites.index(site)
        assert number < MOST_SITES
        answer = str(number << SITE_SHIFT | FAULT)
        if address is not None:
            possible = self.make(f"icmp ult i64 {address}, {ADDRESSES}")
            known = self.make(f"select i1 {possible}, i64 {address}, i64 {NO_ADDRESS}")
            answer = self.make(f"or i64 {self.make(f'shl i64 {known}, {ADDRESS_SHIFT}')}, {answer}")
        self.lines.append(f"  ret i64 {answer}")


def assembly(result: str, text: str, constraints: str, arguments: str) -> str:
    """A call of assembly that changes memory and flags."""
    clobbered = "~{memory},~{dirflag},~{fpsr},~{flags}"
    return f'call {result} asm sideeffect "{text}", "{constraints},{clobbered}"({arguments})'
