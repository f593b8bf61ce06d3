"""The system calls that are named here, by their x86-64 numbers (<asm/unistd_64.h>), and how they restart."""

from __future__ import annotations

from enum import IntEnum


class Syscall(IntEnum):
    """Numbers of system calls."""

    READ = 0
    WRITE = 1
    CLOSE = 3
    POLL = 7
    MMAP = 9
    MPROTECT = 10
    MUNMAP = 11
    RT_SIGACTION = 13
    RT_SIGRETURN = 15
    READV = 19
    WRITEV = 20
    MADVISE = 28
    GETPID = 39
    CONNECT = 42
    ACCEPT = 43
    SENDTO = 44
    RECVFROM = 45
    SENDMSG = 46
    RECVMSG = 47
    WAIT4 = 61
    SEMOP = 65
    MSGSND = 69
    MSGRCV = 70
    RT_SIGTIMEDWAIT = 128
    MUNLOCK = 150
    FUTEX = 202
    IO_GETEVENTS = 208
    RESTART_SYSCALL = 219
    SEMTIMEDOP = 220
    EPOLL_WAIT = 232
    WAITID = 247
    EPOLL_PWAIT = 281
    ACCEPT4 = 288
    RECVMMSG = 299
    SENDMMSG = 307
    KCMP = 312
    MEMFD_CREATE = 319
    IO_PGETEVENTS = 333
    IO_URING_ENTER = 426
    EPOLL_PWAIT2 = 441


# signal(7): interrupted by a stop even without a handler, or never restarted.
NEVER_RESTARTED = frozenset(
    (
        *(Syscall.EPOLL_WAIT, Syscall.EPOLL_PWAIT, Syscall.EPOLL_PWAIT2),
        *(Syscall.SEMOP, Syscall.SEMTIMEDOP, Syscall.MSGSND, Syscall.MSGRCV),
        Syscall.RT_SIGTIMEDWAIT,
        *(Syscall.IO_GETEVENTS, Syscall.IO_PGETEVENTS, Syscall.IO_URING_ENTER),
        # On sockets with a time limit, and inotify.
        *(Syscall.READ, Syscall.WRITE, Syscall.READV, Syscall.WRITEV),
        # On sockets with a time limit.
        *(Syscall.CONNECT, Syscall.ACCEPT, Syscall.ACCEPT4),
        *(Syscall.RECVFROM, Syscall.RECVMSG, Syscall.RECVMMSG),
        *(Syscall.SENDTO, Syscall.SENDMSG, Syscall.SENDMMSG),
    )
)

# What a call returns inside the kernel when it is to be restarted (<linux/errno.h>); EINTR, if it is not.
EINTR = 2**64 - 4
ERESTARTSYS = 2**64 - 512
ERESTARTNOHAND = 2**64 - 514  # restarts, or EINTR when a handler is to run
ERESTART_RESTARTBLOCK = 2**64 - 516
