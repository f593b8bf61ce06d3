"""Cases that compare code with its relocated copy, and the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from differential.execution import REGISTERS, SIGALRM, SIGTRAP, SIGVTALRM, Case, End, Result, run_from
from sidestep.arch.x86_64 import insn
from sidestep.arch.x86_64.relocate import Relocator
from sidestep.arch.x86_64.writer import Assembler


@dataclass(slots=True)
class Relocated:
    """A DCR at `address` and its copy."""

    address: int
    code: bytes
    instructions: list[insn.Instruction]
    relocator: Relocator
    copy_code: bytes

    @property
    def copy_address(self) -> int:
        return self.relocator.assembler.address


def relocate(address: int, code: bytes, copy_address: int, *, keep_bytes: bool = True) -> Relocated:
    """ProbeError: it cannot be relocated there."""
    instructions = insn.decode(code, address)
    assert instructions, code.hex()
    assert instructions[-1].next_ip == address + len(code), code.hex()
    relocator = Relocator(Assembler(copy_address), instructions, code if keep_bytes else None)
    for index in range(len(instructions)):
        relocator.copy(index)
    relocator.leave()
    return Relocated(address, code, instructions, relocator, relocator.assembler.finish())


def compare_case(
    relocated: Relocated,
    registers: dict[str, int],
    seed: int = 0,
    pokes: Sequence[tuple[int, int]] = (),
    start: int = 0,
) -> Case:
    """Run the original from its instruction `start`, then the copy from there, from equal registers.

    As where a probe is armed, a jump to the copy then stands in the place of the original, with int3 behind
    it, if there is room for one.
    """
    old = relocated.instructions[start].ip
    size = len(relocated.code)
    relay = Assembler(relocated.address + 0x800)
    relay.jump_to(relocated.copy_address)
    jump = Assembler(relocated.address)
    jump.jump_to(relay.address)
    armed = jump.finish().ljust(size, b"\xcc") if size >= 5 else relocated.code
    return Case(
        [
            (relocated.address, relocated.code),
            (relocated.copy_address, relocated.copy_code),
            (relay.address, relay.finish()),
        ],
        (run_from(old, registers), run_from(relocated.relocator.arrivals[old], registers)),
        seed,
        pokes,
        (relocated.address, armed),
    )


def differences(relocated: Relocated, result: Result) -> list[str]:
    """What the copy did other than the original, in words; the copy's addresses are taken back first.

    Where both ran on and on until an alarm, nothing can be said.
    """
    first, second = result.ends
    if is_endless(result):
        return []
    pushed = 0
    copy_end = relocated.copy_address + len(relocated.copy_code)
    if relocated.copy_address <= second.ip < copy_end:
        point = relocated.relocator.original(second.ip)
        if point is None:
            return [f"ended at {second.ip:#x}, which stands for nothing"]
        pushed = point.pushed
        second = _taken_back(second, point.old, pushed)
        behind = relocated.relocator.original(second.register("rcx"))
        if second.signal == SIGALRM and behind is not None:
            # In a blocked system call rcx holds the copy's address still, which the program never sees.
            second = _with(second, "rcx", behind.old)
    found = [
        f"{name}: {one:#x}, relocated {other:#x}"
        for name, one, other in zip(REGISTERS, first.registers, second.registers, strict=True)
        if one != other
    ]
    for name in ("signal", "code", "fault_address", "trap", "error", "ip"):
        one, other = getattr(first, name), getattr(second, name)
        if one != other:
            found.append(f"{name}: {one:#x}, relocated {other:#x}")
    if result.vectors:
        found.append(f"components of the extended state differ: {result.vectors:#x}")
    slot = range(second.register("rsp") - pushed, second.register("rsp"))
    if result.memory and not (result.memory.start in slot and result.memory[-1] in slot):
        found.append(f"memory differs from {result.memory.start:#x} to {result.memory.stop:#x}")
    return found


def _taken_back(end: End, old: int, pushed: int) -> End:
    fault_address = old if end.fault_address == end.ip else end.fault_address
    end = _with(end, "rsp", end.register("rsp") + pushed)
    return end._replace(ip=old, fault_address=fault_address)


def _with(end: End, name: str, value: int) -> End:
    registers = list(end.registers)
    registers[REGISTERS.index(name)] = value
    return end._replace(registers=tuple(registers))


def describe(relocated: Relocated, case: Case, result: Result) -> str:
    """Both codes as assembly, the registers at the start, and the ends."""
    lines = ["original:"]
    lines += [f"  {i.ip:#x}  {insn.text(i)}" for i in relocated.instructions]
    lines.append("relocated:")
    lines += [
        f"  {i.ip:#x}  {insn.text(i)}" for i in insn.decode(relocated.copy_code, relocated.copy_address)
    ]
    lines.append("bytes: " + relocated.code.hex())
    start = zip(REGISTERS, case.runs[0].registers, strict=True)
    lines.append("from: " + " ".join(f"{name}={value:#x}" for name, value in start))
    lines += [f"{word}: {end}" for word, end in zip(("original", "relocated"), result.ends, strict=True)]
    return "\n".join(lines)


def failures(cases: Sequence[tuple[Relocated, Case]], results: Sequence[Result]) -> list[str]:
    """A description of every case in which the copy behaved differently."""
    found = []
    for (relocated, case), result in zip(cases, results, strict=True):
        wrong = differences(relocated, result)
        if wrong:
            found.append("\n".join((*wrong, describe(relocated, case, result))))
    return found


def ended_by_int3(result: Result) -> bool:
    """Both runs left the code and met an int3 outside."""
    return all(end.signal == SIGTRAP for end in result.ends)


def is_endless(result: Result) -> bool:
    return all(end.signal == SIGVTALRM for end in result.ends)
