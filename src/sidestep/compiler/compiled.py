"""From a handler's representation to machine code, kept on disk from one run to the next."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from sidestep import errors, private_files
from sidestep.compiler import llvm
from sidestep.compiler.helper import HELPER
from sidestep.compiler.ir import Function
from sidestep.compiler.lower import Lowered, lower
from sidestep.compiler.objects import Code, ObjectError, Reference, read_object
from sidestep.errors import ProbeError

KIND = "handlers"
LARGEST_CODE = 16 << 10
MAGIC = b"SDSTNAT4"
_HEAD = struct.Struct("<8s32s32s32sIIII")  # magic, key, LLVM, digest of the rest; entry, size; two lengths
_REFERENCE = struct.Struct("<Iq32s")


@dataclass(frozen=True, slots=True)
class Compiled:
    """A handler's machine code, and what its frame and its references stand for."""

    lowered: Lowered
    code: Code


def compile_native(function: Function) -> Compiled:
    """Raises ProbeError: NO_COMPILER, COMPILER_FAILED, or HANDLER_TOO_LARGE."""
    lowered = lower(function)
    key = hashlib.sha256(f"{_surroundings()}\0{lowered.text}".encode()).digest()
    code = _kept(key)
    if code is None:
        compiler = _llvm()
        if compiler is None:
            raise ProbeError(function.name, errors.NO_COMPILER)
        try:
            code = read_object(HELPER.compile(lowered.text))
        except ObjectError as error:
            detail = f"{error} (an internal error)"
            raise ProbeError(function.name, errors.COMPILER_FAILED, detail) from error
        _keep(key, compiler, code)
    if len(code.code) > LARGEST_CODE:
        detail = f"{len(code.code)} bytes of code, {LARGEST_CODE} at most"
        raise ProbeError(function.name, errors.HANDLER_TOO_LARGE, detail)
    return Compiled(lowered, code)


@cache
def _surroundings() -> str:
    """What machine code depends on beside its text and LLVM: how LLVM is asked, and the processor. Raises
    ProbeError for one that cannot run it."""
    processor = _processor()
    if "cx16" not in processor.split():
        detail = "handlers on a processor without cmpxchg16b"
        raise ProbeError("native handler", errors.NOT_SUPPORTED, detail)
    return f"{Path(llvm.__file__).read_text()}\0{processor}"


def _llvm() -> bytes | None:
    """A digest of the version of LLVM that is installed, None if there is none."""
    try:
        version = metadata.version("llvmlite")
    except metadata.PackageNotFoundError:
        return None
    return hashlib.sha256(version.encode()).digest()


def _processor() -> str:
    """What the kernel says of its name and abilities."""
    with Path("/proc/cpuinfo").open() as lines:
        return "".join([line for line in lines if line.startswith(("model name", "flags"))][:2])


def _kept(key: bytes) -> Code | None:
    """What was compiled before: by the LLVM that is installed, or, where none is, by any."""
    raw = private_files.load(KIND, key.hex())
    if raw is None or len(raw) < _HEAD.size:
        return None
    magic, stored, compiler, digest, entry, length, size, count = _HEAD.unpack_from(raw)
    body = raw[_HEAD.size :]
    if magic != MAGIC or stored != key or len(body) != size + count * _REFERENCE.size:
        return None
    if digest != _digest(compiler, body, entry, length) or _llvm() not in (None, compiler):
        return None
    found = _REFERENCE.iter_unpack(body[size:])
    references = [Reference(offset, name.rstrip(b"\0").decode(), addend) for offset, addend, name in found]
    return Code(body[:size], entry, length, tuple(references))


def _keep(key: bytes, compiler: bytes, code: Code) -> None:
    references = [_REFERENCE.pack(each.offset, each.addend, each.symbol.encode()) for each in code.references]
    body = b"".join([code.code, *references])
    digest = _digest(compiler, body, code.entry, code.size)
    head = _HEAD.pack(
        MAGIC, key, compiler, digest, code.entry, code.size, len(code.code), len(code.references)
    )
    private_files.store(KIND, key.hex(), head + body)


def _digest(compiler: bytes, body: bytes, entry: int, length: int) -> bytes:
    return hashlib.sha256(compiler + struct.pack("<II", entry, length) + body).digest()
