"""java: compiled code that faults on purpose, many threads, safepoints, garbage collection."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from harness.programs import run_through, run_until_done
from harness.running import Running
from harness.untouched import read_state
from real.conftest import check_nothing_remains, find_program, probing
from sidestep.kprobes.placer import Request

Run = Callable[..., Running]

SLEEPS = 50

PROGRAM = """
import java.util.*;
import java.util.concurrent.*;
import java.util.zip.*;

public class Program {
    static String[] words = {"one", null, "three"};

    static void waitFor(String word) throws Exception {
        System.out.println(word);
        while (System.in.read() != '\\n') { }
    }

    static int length(int index) { return words[index].length(); }

    static int faults() {
        int caught = 0, sum = 0;
        for (int turn = 0; turn < 300000; turn++)
            try { sum += length(turn % 100 == 0 ? 1 : 0); } catch (NullPointerException e) { caught++; }
        return caught * 1000 + sum % 1000;
    }

    static long garbage() {
        Map<Integer, List<Integer>> table = new HashMap<>();
        long sum = 0;
        for (int turn = 0; turn < 400000; turn++) {
            List<Integer> list = table.computeIfAbsent(turn % 1000, key -> new ArrayList<>());
            list.add(turn);
            if (list.size() > 50) { for (int value : list) sum += value; list.clear(); }
        }
        System.gc();
        return sum;
    }

    static long threads() throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(6);
        List<Future<Long>> results = new ArrayList<>();
        for (int task = 0; task < 30; task++) {
            final int seed = task;
            results.add(pool.submit(() -> {
                byte[] data = new byte[20000];
                new Random(seed).nextBytes(data);
                CRC32 sum = new CRC32();
                for (int turn = 0; turn < 20; turn++) sum.update(data);
                synchronized (words) { return sum.getValue(); }
            }));
        }
        long total = 0;
        for (Future<Long> result : results) total += result.get();
        pool.shutdown();
        return total;
    }

    static int depth(int level) { return depth(level + 1) + 1; }

    static boolean overflow() {
        try { return depth(0) < 0; } catch (StackOverflowError error) { return true; }
    }

    public static void main(String[] arguments) throws Exception {
        faults();
        waitFor("ready");
        System.out.println("faults " + faults());
        System.out.println("garbage " + garbage());
        System.out.println("threads " + threads());
        System.out.println("overflow " + overflow());
        for (int turn = 0; turn < SLEEPS; turn++) Thread.sleep(1);
        Process child = new ProcessBuilder("sh", "-c", "exit 9").start();
        System.out.println("child " + child.waitFor());
        waitFor("done");
        System.exit(6);
    }
}
"""


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("java")
    source = folder / "Program.java"
    source.write_text(PROGRAM.replace("SLEEPS", str(SLEEPS)))
    subprocess.run([find_program("javac"), "-d", str(folder), str(source)], check=True, timeout=100)
    return folder


@pytest.fixture
def start(run: Run, classes: Path) -> Callable[[], Running]:
    words = [find_program("java"), "-Xmx256m", "-XX:-UsePerfData", "-cp", str(classes), "Program"]
    return lambda: run(*words, time_limit=100)


@pytest.mark.parametrize(
    "probes",
    [
        ("libjvm:JVM_*",),
        ("libjava:*", "libzip:*", "libnio:*"),
        ("libc:mem*", "libc:*alloc", "libc:pthread_*"),
    ],
    ids=["jvm", "java", "libc"],
)
def test_results_are_the_same(
    sidestep: ModuleType, start: Callable[[], Running], probes: tuple[str, ...]
) -> None:
    expected = run_through(start())
    assert expected.status == 6, str(expected)
    running = start()
    running.expect("ready")
    loaded = Path(f"/proc/{running.pid}/maps").read_text()
    present = [probe for probe in probes if f"/{probe.partition(':')[0]}." in loaded]
    with probing(sidestep, running.pid, *present, makes_code=True) as found:
        running.send()
        assert run_until_done(running)
        assert found
    running.send()
    outcome = running.finish()
    assert (outcome.output, outcome.status) == (expected.output, expected.status), str(outcome)


def test_native_calls_are_counted(sidestep: ModuleType, start: Callable[[], Running]) -> None:
    """The functions of the JVM that the class library calls: one for each Thread.sleep."""
    running = start()
    running.expect("ready")
    target = sidestep.attach(running.pid)
    (probe,) = target.count("libjvm:JVM_Sleep").probes
    running.send()
    assert run_until_done(running)
    assert probe.hits == SLEEPS
    target.detach()
    running.send()
    assert running.finish().status == 6


def test_functions_of_the_jvm_that_may_fault(sidestep: ModuleType, start: Callable[[], Running]) -> None:
    """A tenth of all that have an unwind entry, named or not, and what its own handlers look at: the program
    faults, comes to safepoints and fills its stack."""
    expected = run_through(start())
    running = start()
    running.expect("ready")
    before = read_state(running.pid)
    with sidestep.attach(running.pid) as target:
        (jvm,) = (module for module in target.modules if module.name == "libjvm.so")
        starts = jvm.functions.frames.starts
        probes = [sidestep.Kprobe(addr=start + jvm.bias) for start in starts[::10]]
        requests = [Request(probe) for probe in probes]
        refused = {each.refusal.reason.name for each in target._prepared().register(requests, partly=True)}
        assert "may-fault" not in refused
        running.send()
        assert run_until_done(running)
        assert sum(probe.hits for probe in probes if probe.registered) > 1000
    check_nothing_remains(before, running.pid, makes_code=True)
    running.send()
    outcome = running.finish()
    assert (outcome.output, outcome.status) == (expected.output, expected.status), str(outcome)
