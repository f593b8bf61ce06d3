"""The grammar of a probe text, short enough for a help screen. docs/probes.md explains it."""

GRAMMAR = r"""
PROBE      [p:|r[MAX]:][[GROUP/]EVENT ]WHERE [FETCHARG...] [if CONDITION]
           p: before an instruction; r: when a function returns (MAX calls in flight)
WHERE      [MODULE:]SYMBOL[+OFFSET] | [MODULE:]0xADDRESS
           globs with * ? [abc]; "quotes" around C++ names with blanks
FETCHARG   [NAME=]FETCH[:TYPE]
FETCH      %REG            a register: %di %rdi %r8 %ip %flags
           $argN           an argument of the function, from 1
           $retval         what it returned (r: only)
           $stackN $stack  a word of the stack, from 0; the stack pointer
           $comm           the name of the thread
           @ADDR           memory at an address
           @[MODULE:]SYM[+OFFSET|-OFFSET]    memory at a variable
           +OFFSET(FETCH) -OFFSET(FETCH)     memory where FETCH +- OFFSET points to
           \NUMBER         a constant
TYPE       u8 .. u64, s8 .. s64 (signed), x8 .. x64 (hexadecimal; x64 if none is given),
           string, symbol, b<width>@<offset>/<container> (bits), TYPE[N] (array in memory)
CONDITION  names, fetch arguments and numbers, joined by
           || && ! == != < <= > >= | ^ & << >> + - ( ) with the precedence of C
""".strip("\n")
