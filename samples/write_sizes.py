"""A histogram of what a program writes, by system call: write_sizes.py PID [SECONDS]"""

import sys
import time

import sidestep
from sidestep import Histogram, Stats, native, pointer, u64

sizes = Histogram()
total = Stats()


@native
def on_write(p, regs):
    sizes.add(regs.arg(2))
    total.add(regs.arg(2))


@native
def on_writev(p, regs):
    parts = pointer(u64, regs.arg(1))  # struct iovec: base, length
    size = u64(0)
    for number in range(u64(regs.arg(2))):
        size += parts[2 * number + 1]
    sizes.add(size)
    total.add(size)


if len(sys.argv) < 2:
    sys.exit(__doc__)

with sidestep.attach(int(sys.argv[1])) as target:
    target.kprobe("libc:write")(on_write)
    target.kprobe("libc:send")(on_write)
    target.kprobe("libc:writev")(on_writev)
    time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 5)
    print(sizes)
    print(total)
