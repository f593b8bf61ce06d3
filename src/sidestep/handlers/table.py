"""Slots found by key, which any number of threads enter and take out without waiting for each other.

A table has buckets of at most 32 slots; a key belongs to one bucket. A bucket's control comes first, then its
slots:

    control   u64 members | taken << 32, a bit for each slot; u64 version
    slot      u64 incarnation, u64 value, the words of the key, to a multiple of 16 bytes

Every change of a control is one compare-and-exchange of both words that makes the version one more, so one
that succeeds proves that nothing was entered or taken out since the version was read.

* To enter a key: look for it among the members; take a free slot; write incarnation (the version that took
  it, and the slot's number: never used before in this bucket), value and key; look for the key again; make
  the slot a member. Both times the exchange fails if somebody entered the key meanwhile: no key is there
  twice.
* To take one out, where that is said to be possible: find its slot, and clear its bits. Elsewhere a slot
  stays with its key, and a value is changed by one instruction.
* To change a value of a key that may be taken out: exchange incarnation and value together, so that a slot
  that has been given to another key in the meantime is not touched. A change that comes behind the taking
  out counts as before it.

Whoever is interrupted, or killed, in the middle holds nobody up; a slot that was taken and not made a
member is lost until the table's memory is given back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sidestep.compiler.integers import u64
from sidestep.compiler.intrinsics import add, bit_count, bit_length, cell_add, exchange_pair, load, store
from sidestep.events.layout import WORD
from sidestep.handlers.base import Map

SLOTS = 32  # of a bucket
USUAL_LOAD = 12  # keys for which a bucket is made: one in two million has more than 32 then
MEMBERS = (1 << SLOTS) - 1
TAKEN = 1 << SLOTS  # slot 0 is taken
CONTROL_SIZE = 32  # of which 16 are used: slots of integers do not cross the processor's lines
HEAD_WORDS = 2  # of a slot: incarnation, value
VALUE, KEY = 8, 16  # where they are in a slot
LARGEST_WORDS = 1 << 24
MIXER = 0x9E3779B97F4A7C15


class Entry(NamedTuple):
    """What a slot holds: the words of the key, and the value."""

    key: tuple[int, ...]
    value: int


class Table(Map):
    """The base of maps with keys. A key is a number, or, where the table is `wide`, the address of
    `key_words` words, of which the first `compared` make it what it is."""

    native_parts = (
        "mixed", "bucket", "place", "start", "same", "find", "fill", "enter", "give_back", "put", "change",
        "native_get", "native_set", "native_add",
    )  # fmt: skip

    def __init__(
        self,
        capacity: int,
        key_words: int,
        *,
        wide: bool,
        compared: int | None = None,
        deletable: bool = False,
    ) -> None:
        """Raises ValueError for a capacity that memory is not given for."""
        self.wide, self.key_words, self.deletable = wide, key_words, deletable
        self.compared = key_words if compared is None else compared
        slot_words = HEAD_WORDS + key_words + key_words % 2
        self.buckets = 1 if capacity <= SLOTS else -(-capacity // USUAL_LOAD)
        self.most = min(capacity, SLOTS)  # members of a bucket
        bucket_words = CONTROL_SIZE // WORD + SLOTS * slot_words
        word_count = self.buckets * bucket_words
        if not capacity > 0 or word_count > LARGEST_WORDS:
            largest = LARGEST_WORDS * USUAL_LOAD // bucket_words
            raise ValueError(f"the capacity is 1 to {largest}, not {capacity}")
        self.slot_size, self.bucket_size = WORD * slot_words, WORD * bucket_words
        super().__init__(cell_count=1, word_count=word_count)

    # In handlers

    def mixed(self, key: u64) -> u64:
        """A number from which a key's place follows."""
        if self.wide:
            mixed = u64(0)
            for number in range(u64(self.compared)):
                mixed = (mixed ^ load(key + number * 8)) * MIXER
                mixed ^= mixed >> 29
            return mixed * MIXER
        return key * MIXER

    def bucket(self, mixed: u64) -> u64:
        """The address of the bucket."""
        return self.base + ((mixed >> 32) * self.buckets >> 32) * self.bucket_size

    def place(self, bucket: u64, incarnation: u64) -> u64:
        """The address of a slot."""
        return bucket + CONTROL_SIZE + (incarnation & (SLOTS - 1)) * self.slot_size

    def start(self, mixed: u64) -> u64:
        """The number of the slot that is looked at first."""
        return (mixed >> 27) & (SLOTS - 1)

    def same(self, place: u64, key: u64) -> bool:
        """Whether a slot holds a key."""
        if self.wide:
            for number in range(u64(self.compared)):
                if load(place + KEY + number * 8) != load(key + number * 8):
                    return False
            return True
        return load(place + KEY) == key

    def find(self, bucket: u64, start: u64, key: u64) -> u64:
        """The incarnation of a key's slot; 0 if it was not there at some moment of the search.

        Key, then incarnation, then membership, then the key: only in this order is the key that of the
        incarnation.
        """
        members = load(bucket) & MEMBERS
        left = (members >> start | members << (SLOTS - start)) & MEMBERS
        while left != 0:
            index = (bit_length(left & -left) - 1 + start) & (SLOTS - 1)
            left &= left - 1
            place = self.place(bucket, index)
            if self.same(place, key):
                incarnation = load(place)
                if not self.deletable:
                    return incarnation
                if (load(bucket) >> index) & 1 != 0 and self.same(place, key):
                    return incarnation
        return u64(0)

    def fill(self, place: u64, incarnation: u64, key: u64) -> None:
        """Write a slot that was taken: the incarnation first."""
        store(place, incarnation)
        store(place + VALUE, 0)
        if self.wide:
            for number in range(u64(self.key_words)):
                store(place + KEY + number * 8, load(key + number * 8))
        else:
            store(place + KEY, key)

    def enter(self, bucket: u64, start: u64, key: u64) -> u64:
        """The incarnation of a key's slot; 0 if there is no room for it, which is counted."""
        own = u64(0)  # the incarnation of the slot that was taken for it
        while True:
            version = load(bucket + 8)
            masks = load(bucket)
            found = self.find(bucket, start, key)
            if found != 0:
                if own != 0:
                    self.give_back(bucket, own)
                return found
            free = ~(masks >> SLOTS) & MEMBERS
            if bit_count(masks & MEMBERS) >= self.most or (own == 0 and free == 0):
                if own != 0:
                    self.give_back(bucket, own)
                cell_add(self.cells, 1)
                return u64(0)
            if own == 0:
                free = (free >> start | free << (SLOTS - start)) & MEMBERS
                index = (bit_length(free & -free) - 1 + start) & (SLOTS - 1)
                if exchange_pair(bucket, masks, version, masks | TAKEN << index, version + 1):
                    own = (version + 1) * SLOTS + index
                    self.fill(self.place(bucket, index), own, key)
            elif exchange_pair(bucket, masks, version, masks | 1 << (own & (SLOTS - 1)), version + 1):
                return own

    def give_back(self, bucket: u64, incarnation: u64) -> None:
        """Give back a slot that is no member."""
        while True:
            version = load(bucket + 8)
            masks = load(bucket)
            rest = masks & ~(TAKEN << (incarnation & (SLOTS - 1)))
            if exchange_pair(bucket, masks, version, rest, version + 1):
                return

    def native_get(self, key: u64) -> u64:
        """The value of a key, 0 if it is not there."""
        mixed = self.mixed(key)
        bucket = self.bucket(mixed)
        while True:
            incarnation = self.find(bucket, self.start(mixed), key)
            if incarnation == 0:
                return u64(0)
            place = self.place(bucket, incarnation)
            value = load(place + VALUE)
            if load(place) == incarnation:
                return value

    def put(self, place: u64, amount: u64, adds: bool) -> None:
        """Change the value of a slot that stays with its key."""
        if adds:
            add(place + VALUE, amount)
        else:
            store(place + VALUE, amount)

    def change(self, key: u64, amount: u64, adds: bool) -> None:
        """Add to the value of a key, or set it."""
        mixed = self.mixed(key)
        bucket = self.bucket(mixed)
        if not self.deletable:
            first = self.place(bucket, self.start(mixed))
            if (load(bucket) >> self.start(mixed)) & 1 != 0 and self.same(first, key):  # mostly
                self.put(first, amount, adds)
                return
        while True:
            incarnation = self.enter(bucket, self.start(mixed), key)
            if incarnation == 0:
                return
            place = self.place(bucket, incarnation)
            if not self.deletable:
                self.put(place, amount, adds)
                return
            value = load(place + VALUE)
            changed = value + amount if adds else amount
            if exchange_pair(place, incarnation, value, incarnation, changed):
                return

    def native_set(self, key: u64, value: u64) -> None:
        self.change(key, value, False)

    def native_add(self, key: u64, amount: u64) -> None:
        self.change(key, amount, True)

    def native_contains(self, key: u64) -> bool:
        """Whether a key is there."""
        mixed = self.mixed(key)
        return self.find(self.bucket(mixed), self.start(mixed), key) != 0

    def native_delete(self, key: u64) -> None:
        """Take a key out; nothing if it is not there."""
        mixed = self.mixed(key)
        bucket = self.bucket(mixed)
        while True:
            version = load(bucket + 8)
            masks = load(bucket)
            incarnation = self.find(bucket, self.start(mixed), key)
            if incarnation == 0:
                return
            rest = masks & ~((TAKEN | 1) << (incarnation & (SLOTS - 1)))
            if exchange_pair(bucket, masks, version, rest, version + 1):
                return

    # In Python

    @property
    def drops(self) -> int:
        """New keys that found no room, each time."""
        return self.sums()[0]

    def entries(self) -> Iterator[Entry]:
        """What is there. A key that is entered or taken out meanwhile may be left out."""
        for bucket in range(self.buckets):
            first = bucket * (self.bucket_size // WORD)
            if self.words(first, 1)[0] & MEMBERS:
                yield from self._members(first)

    def _members(self, first: int) -> Iterator[Entry]:
        """The members of the bucket at a word whose slot stayed with them: an incarnation that is a member
        between two looks at it has that key from the first to the second."""
        count, each = self.bucket_size // WORD, self.slot_size // WORD
        before = self.words(first, count)
        (masks,) = self.words(first, 1)
        words, after = self.words(first, count), self.words(first, count)
        for index in range(SLOTS):
            at = CONTROL_SIZE // WORD + index * each
            if masks >> index & 1 and before[at] == after[at]:
                key = words[at + HEAD_WORDS : at + HEAD_WORDS + self.key_words]
                yield Entry(tuple(key), words[at + 1])

    def reset(self) -> None:
        """Start again: everything that is there now is taken out, or where that is not possible set to 0."""
        super().reset()
        for bucket in range(self.buckets):
            self._empty(bucket) if self.deletable else self._clear(bucket)

    def _empty(self, bucket: int) -> None:
        control = self.address + self.bucket_size * bucket
        with self.here() as memory:
            while members := (masks := memory.load(control)) & MEMBERS:
                version = memory.load(control + 8)
                rest = masks & ~(members | members << SLOTS)
                memory.exchange_pair(control, masks, version, rest, version + 1)

    def _clear(self, bucket: int) -> None:
        first = bucket * (self.bucket_size // WORD)
        members = self.words(first, 1)[0] & MEMBERS
        for index in range(SLOTS):
            if members >> index & 1:
                self.set_word(first + (CONTROL_SIZE + index * self.slot_size + VALUE) // WORD, 0)
