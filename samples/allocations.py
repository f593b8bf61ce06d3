"""The largest allocations of a program, and who makes most of them: allocations.py PID [SECONDS]"""

import sys

import sidestep
from sidestep import Hash, Histogram, emit, native, u64

LARGE = 1 << 20
sizes = Histogram()
by_caller = Hash(4096)


class Large(sidestep.Event):
    size: u64
    caller: u64


@native
def on_malloc(p, regs):
    size = regs.arg(0)
    sizes.add(size)
    by_caller[regs.return_address] += size
    if size >= LARGE:
        emit(Large(size=size, caller=regs.return_address))


if len(sys.argv) < 2:
    sys.exit(__doc__)

with sidestep.attach(int(sys.argv[1])) as target:
    target.kprobe("libc:malloc")(on_malloc)
    for event in target.events(timeout=float(sys.argv[2]) if len(sys.argv) > 2 else 5):
        print(f"{event.args['size']:>12} bytes from {target.symbolize(event.args['caller'])}")
    print(sizes)
    for caller, total in sorted(by_caller.to_dict().items(), key=lambda item: -item[1])[:10]:
        print(f"{total:>12} bytes by {target.symbolize(caller)}")
