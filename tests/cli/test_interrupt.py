"""Signals set a flag and end a wait; nothing is raised, however many come."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from sidestep.cli.interrupt import ENDING, Interrupt


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_sets_the_flag_once(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Interrupt() as interrupt:
        assert not interrupt.requested
        send(number)
        send(signal.SIGTERM)
        send(number)
        assert interrupt.requested
        assert interrupt.signal == number
        assert interrupt.wait(None)
    assert signal.getsignal(number) == before


def test_a_signal_ends_a_wait() -> None:
    with Interrupt() as interrupt:
        timer = threading.Timer(0.05, send, [signal.SIGINT])
        timer.start()
        assert interrupt.wait(30)
        timer.join()


def test_a_wait_ends_in_time_and_by_a_descriptor() -> None:
    reader, writer = os.pipe()
    try:
        with Interrupt() as interrupt:
            assert not interrupt.wait(0.01)
            os.write(writer, b"x")
            start = time.monotonic()
            assert not interrupt.wait(30, reader)
            assert time.monotonic() - start < 30
    finally:
        os.close(reader)
        os.close(writer)


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            send(signal.SIGINT)
            assert not interrupt.requested
    finally:
        signal.signal(signal.SIGINT, before)


def test_rearmed_it_waits_for_another_signal() -> None:
    with Interrupt() as interrupt:
        send(signal.SIGINT)
        interrupt.rearm()
        assert not interrupt.wait(0.01)
        send(signal.SIGTERM)
        assert interrupt.wait(30)
        assert interrupt.signal == signal.SIGTERM


def test_a_signal_that_another_thread_gets_ends_a_wait() -> None:
    def send_to_itself() -> None:
        time.sleep(0.05)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    thread = threading.Thread(target=send_to_itself)
    with Interrupt() as interrupt:
        thread.start()
        assert interrupt.wait(30)
        thread.join()
