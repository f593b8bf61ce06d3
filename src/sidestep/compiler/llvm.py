"""LLVM, in a process of its own: it ends the process on some errors, and costs memory.

It reads requests (u32 length, text) on its standard input and answers with
(u32 length, status byte, object file or message) on its standard output.
"""

from __future__ import annotations

import struct
import sys
from typing import Any, BinaryIO

LENGTH = struct.Struct("<I")
OK, REFUSED = b"\0", b"\1"
# General registers only: the program's vector registers stay as they are.
WITHOUT = ["x87", "mmx", "sse", "sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "avx", "avx2", "avx512f"]
TRIPLE = "x86_64-unknown-linux-gnu"


def _machine() -> Any:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.initialize_native_asmparser()
    features = ",".join([*(f"-{each}" for each in WITHOUT), "+cx16", *_bit_counting(binding)])
    target = binding.Target.from_triple(TRIPLE)
    return target.create_target_machine(
        cpu="x86-64", features=features, opt=2, reloc="static", codemodel="large"
    )


def _bit_counting(binding: Any) -> list[str]:
    features = binding.get_host_cpu_features()
    return [f"+{name}" for name in ("lzcnt", "bmi", "bmi2", "popcnt") if features.get(name)]


def compile_text(machine: Any, text: str) -> bytes:
    """The object file of a module. Raises RuntimeError with LLVM's message."""
    from llvmlite import binding

    module = binding.parse_assembly(text)
    module.verify()
    options = binding.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    code: bytes = machine.emit_object(module)
    return code


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more."""
    machine = _machine()
    while len(head := requests.read(LENGTH.size)) == LENGTH.size:
        text = requests.read(LENGTH.unpack(head)[0]).decode()
        try:
            answer = OK + compile_text(machine, text)
        except RuntimeError as error:
            answer = REFUSED + str(error).encode()
        answers.write(LENGTH.pack(len(answer)) + answer)
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
