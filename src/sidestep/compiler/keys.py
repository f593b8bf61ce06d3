"""Keys of maps: integers, text of a fixed size, structures; each as words of 8 bytes.

Text is its bytes, with zeros behind them; a structure is one word for each field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from sidestep.compiler.integers import INTEGERS, Integer, u64, wrap
from sidestep.compiler.machine import ALL_BITS
from sidestep.compiler.struct import Struct
from sidestep.compiler.text import COMM_LENGTH, StringType, Text
from sidestep.events.layout import WORD

KeyType: TypeAlias = type[Integer] | StringType | type[Struct]
LARGEST_KEY = 16  # words


def check_key(kind: object) -> None:
    """Raises TypeError for what cannot be a key."""
    if isinstance(kind, StringType):
        if kind.limit > LARGEST_KEY * WORD:
            raise TypeError(f"text has at most {LARGEST_KEY * WORD} bytes in a key, not {kind.limit}")
    elif isinstance(kind, type) and issubclass(kind, Struct):
        if not 0 < len(kind.fields) <= LARGEST_KEY or not all(map(Struct.takes, kind.fields.values())):
            raise TypeError(f"a structure has 1 to {LARGEST_KEY} integers in a key, unlike {kind.label}")
    elif kind not in INTEGERS:
        raise TypeError(f"the key is one of u8 .. u64 and i8 .. i64, string(limit) or a Struct, not {kind!r}")


def is_wide(kind: KeyType) -> bool:
    """Whether handlers have the words in memory, and not the one word itself."""
    return isinstance(kind, StringType) or issubclass(kind, Struct)


def word_count(kind: KeyType) -> int:
    """How many words a key has."""
    if isinstance(kind, StringType):
        return -(-kind.limit // WORD)
    return len(kind.fields) if issubclass(kind, Struct) else 1


def key_words(kind: KeyType, key: Any) -> tuple[int, ...]:
    """A key's words. Raises TypeError for one of another type, ValueError for text that no key can be;
    HandlerFault where text in memory has no end."""
    if isinstance(kind, StringType):
        return _text_words(kind, key)
    if issubclass(kind, Struct):
        if type(key) is not kind:
            raise TypeError(f"the key is {kind.label}; {key!r} was given")
        return tuple(int(getattr(key, name)) & ALL_BITS for name in kind.fields)
    if not isinstance(key, int) or not (type(key) is kind or kind.holds(key)):
        raise TypeError(f"the key is {kind.__name__}; {key!r} was given")
    return (wrap(u64, key),)


def _text_words(kind: StringType, key: Any) -> tuple[int, ...]:
    if isinstance(key, Text):
        limit = key.limit if key.pointer is not None else COMM_LENGTH
        if limit > kind.limit:
            raise TypeError(f"the key is {kind}; text of {limit} bytes was given")
        raw = key.whole()
    elif isinstance(key, str | bytes):
        raw = key.encode() if isinstance(key, str) else key
    else:
        raise TypeError(f"the key is {kind}; {key!r} was given")
    if len(raw) > kind.limit or b"\0" in raw:
        raise ValueError(f"text of at most {kind.limit} bytes is never equal to {key!r}")
    padded = raw.ljust(word_count(kind) * WORD, b"\0")
    return tuple(int.from_bytes(padded[at : at + WORD], "little") for at in range(0, len(padded), WORD))


def key_of(kind: KeyType, words: Sequence[int]) -> Any:
    """The key as Python has it: int, str (bytes where it is no UTF-8), or an instance of the structure."""
    if isinstance(kind, StringType):
        raw = b"".join(word.to_bytes(WORD, "little") for word in words).split(b"\0", 1)[0]
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw
    if issubclass(kind, Struct):
        types = kind.fields.items()
        values = ((name, field(word)) for (name, field), word in zip(types, words, strict=True))  # type: ignore[operator]
        return kind(**dict(values))
    return wrap(kind, words[0])
