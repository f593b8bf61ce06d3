"""Arithmetic, comparisons and conversions, to LLVM's."""

from __future__ import annotations

from sidestep.compiler.integers import Integer
from sidestep.compiler.ir import Operation, Type
from sidestep.compiler.llvm_text import LlvmText, llvm_type

SIMPLE = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}


class Arithmetic(LlvmText):
    """Operations on numbers alone."""

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

    def do_bit_count(self, operation: Operation, values: list[str]) -> str:
        return self.make(f"call i64 @llvm.ctpop.i64(i64 {values[0]})")

    def do_bit_length(self, operation: Operation, values: list[str]) -> str:
        zeros = self.make(f"call i64 @llvm.ctlz.i64(i64 {values[0]}, i1 false)")
        return self.make(f"sub i64 64, {zeros}")

    def do_random(self, operation: Operation, values: list[str]) -> str:
        """The cycle counter, mixed: splitmix64's finaliser."""
        value = self.make("call i64 @llvm.readcyclecounter()")
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = self.make(f"lshr i64 {value}, {shift}")
            value = self.make(f"xor i64 {value}, {mixed}")
            value = self.make(f"mul i64 {value}, {factor - (1 << 64)}")
        mixed = self.make(f"lshr i64 {value}, 31")
        return self.make(f"xor i64 {value}, {mixed}")
