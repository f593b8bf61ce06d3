"""Makes libraries with many functions: `many_00000` and so on, of shapes that compilers make every day.

`many_all(x)` calls each of them once. They are written in assembly: a compiler takes minutes for as many.
`turns` is how often each function repeats a piece of arithmetic of 20 bytes, which makes the library large.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

HEAD = """
.macro work
    .rept {turns}
    mov %rax, %rdx
    shr $7, %rdx
    xor %rdx, %rax
    imul $19088743, %rdi, %rdx
    add %rdx, %rax
    .endr
.endm
.macro function name
    .text
    .balign 16
    .globl \\name
    .type \\name, @function
\\name: .L\\name:
    .cfi_startproc
.endm
.macro end name
    .cfi_endproc
    .size \\name, . - \\name
.endm
"""

# {n}: the function's number, {other}: a function made before.
SHAPES = {
    "leaf": """
    lea (%rdi,%rdi,2), %rax
    lea {n}(%rax,%rsi), %rax
    work
    lea (%rax,%rdi,4), %rax
    ret
""",
    "early return": """
    mov %rsi, %rax
    cmp ${n}, %rdi
    je 1f
    xor %rdi, %rax
    work
    cmp %rsi, %rax
    cmova %rdi, %rax
1:  ret
""",
    "array and loop": """
    mov %rdi, %rdx
    xor %eax, %eax
1:  mov %eax, %ecx
    add $1, %eax
    mov %rdx, -40(%rsp,%rcx,8)
    xor -40(%rsp,%rcx,8), %rsi
    add ${n}, %rdx
    cmp $4, %eax
    jne 1b
    mov %rsi, %rax
    work
    ret
""",
    "call": """
    push %rbp
    .cfi_adjust_cfa_offset 8
    push %rbx
    .cfi_adjust_cfa_offset 8
    lea {n}(%rdi), %rax
    mov %rsi, %rbp
    mov %rdi, %rbx
    cmp $1000, %rsi
    jbe 1f
    mov %rsi, %rdi
    shr $1, %rdi
    mov %rbx, %rsi
    sub $8, %rsp
    .cfi_adjust_cfa_offset 8
    call {other}
    add $8, %rsp
    .cfi_adjust_cfa_offset -8
1:  mov %rbx, %rdi
    work
    imul %rbp, %rbx
    add %rbx, %rax
    pop %rbx
    .cfi_adjust_cfa_offset -8
    pop %rbp
    .cfi_adjust_cfa_offset -8
    ret
""",
    "switch": """
    mov %rdi, %rcx
    and $7, %edi
    cmp $5, %rdi
    ja 9f
    lea 8f(%rip), %rdx
    movslq (%rdx,%rdi,4), %rax
    add %rdx, %rax
    jmp *%rax
    .section .rodata
    .balign 4
8:  .long 1f - 8b, 2f - 8b, 3f - 8b, 4f - 8b, 5f - 8b, 9f - 8b
    .text
1:  add ${n}, %rsi
    jmp 9f
2:  lea (%rsi,%rsi,4), %rsi
    jmp 9f
3:  sub %rcx, %rsi
    jmp 9f
4:  xor ${n}, %rsi
    jmp 9f
5:  shl $2, %rsi
9:  mov %rsi, %rax
    work
    ret
""",
}

ALL_HEAD = "function many_all\n push %rbx\n .cfi_adjust_cfa_offset 8\n mov %rdi, %rbx\n"
ALL_CALL = " mov %rbx, %rdi\n and $1023, %edi\n mov $1, %esi\n call .Lmany_{:05}\n add %rax, %rbx\n"
ALL_END = " mov %rbx, %rax\n pop %rbx\n .cfi_adjust_cfa_offset -8\n ret\nend many_all\n"


def build(folder: Path, functions: int, turns: int = 1) -> Path:
    """A library with so many functions, in `folder`; made once."""
    library = folder / f"libmany_{functions}_{turns}.so"
    if not library.exists():
        source = folder / f"{library.stem}.s"
        source.write_text(_source(functions, turns))
        unfinished = library.with_suffix(".unfinished")
        subprocess.run(["gcc", "-shared", str(source), "-o", str(unfinished)], check=True)
        unfinished.rename(library)
    return library


def _source(functions: int, turns: int) -> str:
    text = [HEAD.format(turns=turns)]
    shapes = list(SHAPES.values())
    for number in range(functions):
        other = f".Lmany_{max(number - 1 - number % 11, 0):05}"
        body = shapes[number % len(shapes)].format(n=number, other=other)
        text.append(f"function many_{number:05}{body}end many_{number:05}\n")
    calls = "".join(ALL_CALL.format(number) for number in range(functions))
    return "".join(text) + ALL_HEAD + calls + ALL_END + '.section .note.GNU-stack, "", @progbits\n'
