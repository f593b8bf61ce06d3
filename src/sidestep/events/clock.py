"""The processor's time stamp counter (tsc), and how it maps to CLOCK_MONOTONIC.

Records carry the tsc. To read it, Python needs one machine instruction: a few bytes of code in a mapping that
is written first and made executable then. (perf's mmap page would give the kernel's own factors, but
perf_event_open is often forbidden; waiting for the target's records would give no time before the first.)

Each `calibrate()` notes the tsc and the monotonic time at one moment, to a fraction of a microsecond. Times
in between are interpolated, so an error never grows with time; the factor comes from the whole window of the
last minute, which takes in how NTP steers the clock.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from sidestep.errors import NOT_SUPPORTED, TargetError

# rdtsc; shl $32, %rdx; or %rdx, %rax; ret
_READ_TSC = bytes.fromhex("0f31 48c1e220 4809d0 c3")
_TRIES = 8
_WINDOW = 60_000_000_000  # ns
_SHORTEST_BASE = 2_000_000  # ns between the first two moments
_LARGEST_DOUBT = 5_000  # ns
_LONGEST_WAIT = 1_000_000_000  # ns, after which a doubtful moment is better than none
_STEP = 1_000_000  # ns off the expected time: the counter or the clock was set, by a suspend or a migration


class Moment(NamedTuple):
    """One point in time on both clocks: CLOCK_MONOTONIC, and the tsc give or take `doubt` / 2."""

    tsc: int
    nanoseconds: int
    doubt: int


class TscReader:
    """Calling it returns the tsc, in 0.3 us. TargetError: no code can be made executable here."""

    def __init__(self) -> None:
        self._code = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._code.write(_READ_TSC)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._code))
        libc = ctypes.CDLL(None, use_errno=True)
        protect = libc.mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        if protect(start, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
            detail = "the system does not let Python make code executable, so event times cannot be read"
            raise TargetError("clock", NOT_SUPPORTED, detail)
        # PyDLL-style: the global lock is kept, which is faster and not interrupted by other Python threads.
        self._read = ctypes.PYFUNCTYPE(ctypes.c_uint64)(start)

    def __call__(self) -> int:
        return int(self._read())


class Clock:
    """Turns tsc values into seconds of CLOCK_MONOTONIC."""

    def __init__(
        self,
        read_tsc: Callable[[], int] | None = None,
        read_nanoseconds: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Takes about 2 ms, for the first factor."""
        self.tsc = TscReader() if read_tsc is None else read_tsc
        self._nanoseconds = read_nanoseconds
        self._moments: deque[Moment] = deque()
        first = self._moment()
        self._moments.append(first)
        second = self._moment()
        while second.nanoseconds - first.nanoseconds < _SHORTEST_BASE:
            second = self._moment()
        self._moments.append(second)
        self._factor = (second.nanoseconds - first.nanoseconds) / max(second.tsc - first.tsc, 1)
        self._anchor = second

    @property
    def frequency(self) -> float:
        """Ticks of the tsc a second."""
        return 1e9 / self._factor

    def calibrate(self) -> None:
        """Notes the present moment. To be called now and then (each time the rings are read): 5 us."""
        moment = self._moment()
        age = moment.nanoseconds - self._anchor.nanoseconds
        if moment.doubt * self._factor > _LARGEST_DOUBT and 0 <= age < _LONGEST_WAIT:
            return  # the machine is busy: the next time will do
        expected = self.nanoseconds(moment.tsc)
        if abs(moment.nanoseconds - expected) > _STEP:
            self._moments.clear()
            self._moments.append(moment)
            self._anchor = moment
            return
        first = self._moments[0]
        if moment.nanoseconds - first.nanoseconds > _SHORTEST_BASE:
            self._factor = (moment.nanoseconds - first.nanoseconds) / max(moment.tsc - first.tsc, 1)
        self._anchor = moment
        if moment.nanoseconds - self._moments[-1].nanoseconds > _WINDOW // 64:
            self._moments.append(moment)
            while self._moments[-1].nanoseconds - self._moments[0].nanoseconds > _WINDOW:
                self._moments.popleft()

    def nanoseconds(self, tsc: int) -> int:
        """CLOCK_MONOTONIC at that tsc, near the last calibration."""
        return self._anchor.nanoseconds + round((tsc - self._anchor.tsc) * self._factor)

    @property
    def line(self) -> tuple[int, float, float]:
        """(tsc, seconds, seconds a tick): seconds + (X - tsc) * factor is the time at tsc X."""
        return self._anchor.tsc, self._anchor.nanoseconds / 1e9, self._factor / 1e9

    def _moment(self) -> Moment:
        """Both clocks at one moment: of several tries the one that took the shortest time."""
        moments: list[Moment] = []
        for _ in range(_TRIES):
            before = self.tsc()
            nanoseconds = self._nanoseconds()
            after = self.tsc()
            moments.append(Moment((before + after) // 2, nanoseconds, after - before))
        return min(moments, key=lambda moment: moment.doubt)
