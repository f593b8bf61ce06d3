"""What redis-server hashes, and how often each key: hashed_keys.py PID [SECONDS]"""

import collections
import sys

import sidestep
from sidestep import Histogram, emit, native, string, u32

lengths = Histogram(linear=(0, 64, 4))


class Hashed(sidestep.Event):
    key: string(48)
    length: u32


@native
def on_hash(p, regs):
    lengths.add(regs.arg(1))
    emit(Hashed(key=string(regs.arg(0), 48), length=u32(regs.arg(1))))


keys: collections.Counter[str] = collections.Counter()
if len(sys.argv) < 2:
    sys.exit(__doc__)

with sidestep.attach(int(sys.argv[1])) as target:
    target.kprobe("dictGenHashFunction")(on_hash)
    for event in target.events(timeout=float(sys.argv[2]) if len(sys.argv) > 2 else 5):
        keys[event.args["key"][: event.args["length"]]] += 1
for key, count in keys.most_common(10):
    print(f"{count:>8} {key}")
print(lengths)
