"""Conditions: what stands behind `if`, with the precedence of C.

C lets `flags & 2 == 2` compare first. Whoever writes that means something else, so a comparison (or `!`)
is never taken for a number: such texts are refused with the parentheses that they need.
"""

from __future__ import annotations

import re
from typing import cast

from sidestep.errors import ProbeSyntaxError
from sidestep.spec.cursor import Cursor
from sidestep.spec.fetch import Site, take_typed
from sidestep.spec.nodes import FetchArgument, FetchType
from sidestep.spec.registers import REGISTERS
from sidestep.spec.terms import (
    Arithmetic,
    ArithmeticOperator,
    Comparison,
    ComparisonOperator,
    Condition,
    FetchOperand,
    Logical,
    LogicalOperator,
    Name,
    Not,
    Number,
    Operand,
)
from sidestep.spec.words import did_you_mean

_U64, _S64 = FetchType("u", 64), FetchType("s", 64)
MAX_NESTING = 32  # of parentheses in the text, and of operators in the tree
_OPERATOR = re.compile(r"\|\||&&|==|!=|<<|>>|<=|>=|[|^&<>+-]")
_PRECEDENCE = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, "<=": 7, ">": 7, ">=": 7,
    "<<": 8, ">>": 8, "+": 9, "-": 9,
}  # fmt: skip
_NUMBER = re.compile(r"-?[0-9]")
_DEREFERENCE = re.compile(r"[+-](?:u?[0-9]\w*|u?)\(", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_WORD_OPERATORS = {"and": "&&", "or": "||", "not": "!"}


def take_condition(cursor: Cursor, site: Site, arguments: tuple[FetchArgument, ...]) -> Condition:
    """The condition from the cursor to the end of the text; it may name the `arguments` of its probe."""
    parser = _Parser(cursor, site, arguments)
    condition, _ = parser.expression(0, 0)
    cursor.skip_blanks()
    if not cursor.at_end():
        raise parser.expected_operator()
    return condition


class _Parser:
    """Precedence climbing; each part comes with its height, so that no tree is too high to walk."""

    def __init__(self, cursor: Cursor, site: Site, arguments: tuple[FetchArgument, ...]) -> None:
        self.cursor, self.site = cursor, site
        self.arguments = {argument.name: (index, argument) for index, argument in enumerate(arguments)}

    def expression(self, lowest: int, depth: int) -> tuple[Condition, int]:
        left, height = self.unary(depth)
        while True:
            self.cursor.skip_blanks()
            match = self.cursor.peek(_OPERATOR)
            if match is None or _PRECEDENCE[match.group()] < lowest:
                return left, height
            column, operator = self.cursor.position, match.group()
            self.cursor.position = match.end()
            right, right_height = self.expression(_PRECEDENCE[operator] + 1, depth)
            continued = isinstance(left, Logical) and left.operator == operator
            left = self.join(operator, left, right, column)
            height = max(height if continued else height + 1, right_height + 1)
            self.check_nesting(height, column)

    def unary(self, depth: int) -> tuple[Condition, int]:
        cursor = self.cursor
        cursor.skip_blanks()
        column = cursor.position
        self.check_nesting(depth, column)
        if cursor.take_text("!"):
            term, height = self.unary(depth + 1)
            self.check_nesting(height + 1, column)
            return Not(term, column=column), height + 1
        if cursor.take_text("("):
            inner, height = self.expression(0, depth + 1)
            cursor.skip_blanks()
            if cursor.at_end():
                raise cursor.error("this parenthesis is not closed", column=column)
            if not cursor.take_text(")"):
                raise self.expected_operator()
            return inner, height
        return self.operand(), 0

    def check_nesting(self, depth: int, column: int) -> None:
        if depth > MAX_NESTING:
            raise self.cursor.error(f"a condition with more than {MAX_NESTING} levels", column=column)

    def operand(self) -> Operand:
        cursor = self.cursor
        column = cursor.position
        if cursor.peek(_NUMBER) is not None:
            if cursor.peek(_DEREFERENCE) is None:
                return Number(cursor.signed_number("a number"), column=column)
        elif (name := cursor.peek(_NAME)) is not None:
            return self.name(name.group())
        elif cursor.next() not in ("%", "$", "@", "\\") and cursor.peek(_DEREFERENCE) is None:
            hint = "a condition compares numbers, names of fetch arguments, and fetch arguments"
            if cursor.next() in ('"', "'"):
                raise cursor.error("a condition cannot compare strings", "it compares numbers", column)
            raise cursor.error(f"expected a value, {cursor.found}", hint)
        fetch, type = take_typed(cursor, self.site)
        self.check_number(str(fetch), type, column)
        return FetchOperand(fetch, type, column=column)

    def name(self, name: str) -> Name:
        cursor = self.cursor
        column = cursor.position
        if name not in self.arguments:
            hint = did_you_mean(name, self.arguments)
            if name in _WORD_OPERATORS:
                hint = f"Did you mean {_WORD_OPERATORS[name]}?"
            elif not hint and name in REGISTERS:
                hint = f"Did you mean %{name}?"
            elif not hint:
                names = ", ".join(list(self.arguments)[:8])
                hint = f"its arguments are {names}" if names else f"define it before `if`: {name[:40]}=$arg1"
            raise cursor.error(f"the probe has no argument {name[:40]!r}", hint)
        cursor.position += len(name)
        if cursor.next() == ":":
            hint = f"the type stands where {name} is fetched"
            raise cursor.error("a name takes no type in a condition", hint)
        index, argument = self.arguments[name]
        self.check_number(name, argument.type, column)
        return Name(index, name, argument.type, column=column)

    def check_number(self, shown: str, type: FetchType, column: int) -> None:
        if type.kind == "string":
            raise self.cursor.error(f"{shown} is a string, a condition compares numbers", "", column)
        if type.count is not None:
            message = f"{shown} is an array, a condition compares single numbers"
            raise self.cursor.error(message, f"fetch one element, without [{type.count}]", column)

    def join(self, operator: str, left: Condition, right: Condition, column: int) -> Condition:
        """`left operator right`, checked."""
        if operator in ("&&", "||"):
            terms: list[Condition] = []
            for side in (left, right):
                same = isinstance(side, Logical) and side.operator == operator
                terms += cast(Logical, side).terms if same else [side]
            return Logical(cast(LogicalOperator, operator), tuple(terms), column=column)
        first = self.number_side(left, operator, column)
        second = self.number_side(right, operator, column)
        if operator in ("==", "!=", "<", "<=", ">", ">="):
            comparison = Comparison(cast(ComparisonOperator, operator), first, second, column=column)
            self.check_comparison(comparison)
            return comparison
        if operator in ("<<", ">>") and isinstance(second, Number) and not 0 <= second.value <= 63:
            raise self.cursor.error("a value is shifted by 0 to 63 bits", column=second.column)
        return Arithmetic(cast(ArithmeticOperator, operator), first, second, column=column)

    def number_side(self, side: Condition, operator: str, column: int) -> Operand:
        """`side`, which must be a number."""
        match side:
            case Comparison():
                if operator in ("|", "^", "&"):
                    message = f"{side.operator} binds tighter than {operator}, as in C"
                    hint = f"put parentheses around the part with {operator}; && and || join conditions"
                elif operator in ("+", "-", "<<", ">>"):
                    message, hint = f"{operator} needs numbers, this is a comparison", ""
                else:
                    message, hint = "a comparison has two sides", "join comparisons with &&"
                raise self.cursor.error(message, hint, max(column, side.column))
            case Not():
                message = f"! binds tighter than {operator}, as in C"
                raise self.cursor.error(message, "put parentheses around what ! belongs to", side.column)
            case Logical():
                raise self.cursor.error(f"{operator} needs numbers, this is a condition", "", side.column)
            case _:
                return side

    def check_comparison(self, comparison: Comparison) -> None:
        """Refuse to compare a value with a number when the answer does not depend on the value."""
        left, right, operator = comparison.left, comparison.right, comparison.operator
        if isinstance(left, Number):
            mirrored = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
            left, right, operator = right, left, cast(ComparisonOperator, mirrored.get(operator, operator))
        if not isinstance(right, Number) or isinstance(left, Number):
            return
        number, type = right.value, _S64 if left.signed else _U64
        if not isinstance(left, Arithmetic):
            type = left.type
        # 64 bits are equal to a number if they are the same bits: x64 can be -1.
        inside = type.value_bits == 64 or type.minimum <= number <= type.maximum
        never, always = {
            "==": (not inside, False),
            "!=": (False, not inside),
            "<": (number <= type.minimum, number > type.maximum),
            "<=": (number < type.minimum, number >= type.maximum),
            ">": (number >= type.maximum, number < type.minimum),
            ">=": (number > type.maximum, number <= type.minimum),
        }[operator]
        if never or always:
            hint = f"{type} is {type.minimum} to {type.maximum}"
            if not type.signed and number <= 0:
                hint = "the value is unsigned; signed types are :s64, :s32, ..."
            message = f"{comparison} is {'never' if never else 'always'} true"
            raise self.cursor.error(message, hint, comparison.column)

    def expected_operator(self) -> ProbeSyntaxError:
        """The error for what stands where an operator or the end belongs."""
        cursor = self.cursor
        word = cursor.peek(_NAME)
        if word is not None and word.group() in _WORD_OPERATORS:
            hint = f"Did you mean {_WORD_OPERATORS[word.group()]}?"
        elif cursor.next() == "=":
            hint = "Did you mean ==?"
        elif cursor.next() == "!":
            hint = "Did you mean !=?"
        elif cursor.next() == "(":
            hint = "an operator belongs between two values, also before +OFFSET(FETCH)"
        elif cursor.next() in ("*", "/", "%"):
            hint = "there is no multiplication or division"
        elif cursor.next() == ")":
            return cursor.error("this parenthesis has no opening one")
        else:
            hint = "operators are || && ! == != < <= > >= | ^ & << >> + -"
        return cursor.error(f"expected an operator, {cursor.found}", hint)
