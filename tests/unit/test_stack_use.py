"""How much stack code uses."""

from __future__ import annotations

import pytest

from sidestep.arch.x86_64.recording import Rings
from sidestep.arch.x86_64.reserve import reserve
from sidestep.arch.x86_64.runtime import STACK_OF_ROUTINE, Runtime
from sidestep.arch.x86_64.stack_use import UnknownStack, stack_use
from sidestep.arch.x86_64.writer import Assembler

CASES = {
    "nothing": ("c3", 0),
    "push rax; pop rax; ret": ("50 58 c3", 8),
    "sub rsp, 32; push rbx; pop rbx; add rsp, 32; ret": ("4883ec20 53 5b 4883c420 c3", 40),
    "lea rsp, [rsp-16]; lea rsp, [rsp+16]; ret": ("488d6424f0 488d642410 c3", 16),
    "push rax; call rcx; pop rax; ret": ("50 ffd1 58 c3", 8 + 8 + 100),
    "je over the push; push; pop; ret": ("7402 50 58 c3", 8),
    "two ways, one deeper: je 1f; push; push; pop; pop; ret; 1: push; pop; ret": (
        "7405 50 50 58 58 c3 50 58 c3", 16,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_own_and_callees(what: str) -> None:
    code, expected = CASES[what]
    assert stack_use(bytes.fromhex(code), 0, [], 100) == expected


def test_other_functions_of_the_code_count_when_something_is_called() -> None:
    code = bytes.fromhex("ffd1 c3 50 50 58 58 c3")  # call rcx; ret; then a function with two pushes
    assert stack_use(code, 0, [3], 0) == 8 + 24


@pytest.mark.parametrize(
    "code",
    [
        "488be5 c3",  # mov rsp, rbp
        "4883e4f0 c3",  # and rsp, -16
        "ffe0",  # jmp rax
        "7401 50 c3",  # two depths at one place
        "ebff",  # jmp into an instruction
    ],
)
def test_what_cannot_be_followed(code: str) -> None:
    with pytest.raises(UnknownStack):
        stack_use(bytes.fromhex(code), 0, [], 0)


@pytest.mark.parametrize("tid_offset", [None, 0x2D0])
def test_routines_use_what_is_promised(tid_offset: int | None) -> None:
    runtime = Runtime(0x10000, 0x20000, 0x30000)
    assembler = Assembler(0)
    reserve(assembler, runtime, Rings(0x50000, 4, 1 << 16, threads=2), tid_offset)
    assert stack_use(assembler.finish(), 0, [], 0) <= STACK_OF_ROUTINE["reserve"]
    first = runtime.thread_block - runtime.address
    memory = STACK_OF_ROUTINE["read_memory"]
    for name in STACK_OF_ROUTINE.keys() - {"reserve"}:
        start = getattr(runtime, name) - runtime.thread_block
        assert stack_use(runtime.code[first:], start, [], memory) <= STACK_OF_ROUTINE[name], name
