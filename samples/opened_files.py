"""Which files a program opens, from its start: opened_files.py COMMAND [ARGUMENT...]"""

import sys

import sidestep
from sidestep import comm, emit, i32, native, string


class Opened(sidestep.Event):
    path: string(200)
    flags: i32
    by: string(15)


@native
def on_open(p, regs):
    emit(Opened(path=string(regs.arg(0), 200), flags=i32(regs.arg(1)), by=comm()))


@native
def on_openat(p, regs):
    emit(Opened(path=string(regs.arg(1), 200), flags=i32(regs.arg(2)), by=comm()))


if len(sys.argv) < 2:
    sys.exit(__doc__)

with sidestep.launch(sys.argv[1:]) as target:
    target.kprobe("libc:open64")(on_open)
    target.kprobe("libc:openat64")(on_openat)
    target.resume()
    for event in target.events():
        print(f"{event.args['by']}: {event.args['path']} ({event.args['flags']:#o})", file=sys.stderr)
