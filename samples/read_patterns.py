"""How a program reads its files, in order or to and fro: read_patterns.py PID [SECONDS]"""

import sys
import time

import sidestep
from sidestep import Counter, Hash, Histogram, native

expected = Hash(1024)  # where the last read of a descriptor ended
in_order, elsewhere = Counter(), Counter()
jumps = Histogram()


@native
def on_pread(p, regs):
    descriptor = regs.arg(0)
    offset = regs.arg(3)
    if descriptor in expected:
        before = expected[descriptor]
        if offset == before:
            in_order.add(1)
        else:
            elsewhere.add(1)
            jumps.add(max(offset, before) - min(offset, before))
    expected[descriptor] = offset + regs.arg(2)


if len(sys.argv) < 2:
    sys.exit(__doc__)

with sidestep.attach(int(sys.argv[1])) as target:
    target.kprobe("libc:pread64")(on_pread)
    time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 5)
    print(f"{in_order} reads where the last one ended, {elsewhere} elsewhere, which jumped by bytes:")
    print(jumps)
