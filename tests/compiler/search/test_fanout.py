"""Workers that die, hang, or raise; drivers that are killed, and two at once: no result is lost, none is made twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, wait
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from kernels_hub.compiler.runtime.toolchain import usable_cpus
from kernels_hub.compiler.search.candidate import Measured
from kernels_hub.compiler.search.fanout import Progress, fan_out, measure_together
from kernels_hub.compiler.search.journal import Journal
from kernels_hub.compiler.search.quiet import BusyError, building, measuring
from kernels_hub.compiler.search.workers import WorkerLostError, Workers
from tests.combinations import all_but
from tests.compiler.search.fake_evaluator import Fake, Heavy, candidate

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def locks_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others measure on this machine does not stop a test."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    (tmp_path / "calls").mkdir()
    return Fake(str(tmp_path / "calls"))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal({"graph": "g"}, tmp_path / "journals")


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(2) as workers:
        yield workers


def pool(kind: str) -> Executor:
    if kind == "threads":
        return ThreadPoolExecutor(2)
    if kind == "processes":
        return ProcessPoolExecutor(2, mp_context=get_context("spawn"))
    return Workers(2)


def statuses(found: list[Measured]) -> list[str]:
    return [one.status for one in found]


# -- any executor -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["threads", "processes", "workers"])
def test_results_come_in_the_order_of_candidates(kind: str, fake: Fake, journal: Journal):
    candidates = [candidate(f"c{place}", ms=place + 1) for place in range(5)]
    candidates += [candidates[0], candidate("bad", "raise"), candidate("off", "wrong")]
    steps: list[Progress] = []
    with pool(kind) as executor:
        found = fan_out(candidates, fake, executor, journal=journal, stage="timed", on_progress=steps.append)
    assert [one.digest for one in found] == [one.digest for one in candidates]
    assert [one.seconds for one in found[:6]] == [0.001, 0.002, 0.003, 0.004, 0.005, 0.001]
    assert found[6] == Measured(candidates[6].digest, "failed", reason="ValueError: no such loop")
    assert found[7].status == "wrong"
    assert all(fake.calls(one) == ["time"] for one in candidates)
    assert [one.done for one in steps] == [1, 2, 3, 4, 5, 6, 7] and steps[-1].total == 7
    again = Journal({"graph": "g"}, journal.path.parent).known("timed")
    assert again == {one.digest: one for one in found}


DEADLY = {
    "exit": "ended with status 3",
    "segfault": "was ended by SIGSEGV",
}


@pytest.mark.parametrize("do", DEADLY)
def test_a_candidate_that_ends_its_worker_costs_no_other(
    do: str, fake: Fake, journal: Journal, workers: Workers
):
    candidates = [candidate("a"), candidate("deadly", do), candidate("b"), candidate("c")]
    steps: list[Progress] = []
    found = fan_out(
        candidates, fake, workers, journal=journal, stage="timed", retries=1, on_progress=steps.append
    )
    assert statuses(found) == ["slower", "failed", "slower", "slower"]
    assert found[1].reason.startswith("given up after it was tried 2 times: its worker")
    assert DEADLY[do] in found[1].reason
    assert [fake.calls(one) for one in candidates] == [["time"], ["time", "time"], ["time"], ["time"]]
    assert [one.note for one in steps if one.note] == [
        f"candidate {candidates[1].digest[:8]} is tried again: its worker {DEADLY[do]}"
    ]
    # It is not tried again by the next.
    assert fan_out(candidates, fake, workers, journal=journal, stage="timed") == found
    assert len(fake.calls(candidates[1])) == 2


def test_a_worker_that_dies_once_costs_an_attempt(fake: Fake, workers: Workers):
    (found,) = fan_out([candidate("x", "exit once")], fake, workers)
    assert found.status == "slower"
    first, second = fake.processes(candidate("x", "exit once"))
    assert first != second


def test_a_pool_that_breaks_is_replaced(fake: Fake, journal: Journal, caplog: pytest.LogCaptureFixture):
    candidates = [candidate(f"c{place}") for place in range(3)]
    candidates.insert(1, candidate("deadly", "exit"))
    with pool("processes") as executor:
        found = fan_out(candidates, fake, executor, journal=journal, retries=1)
    assert statuses(found) == ["slower", "failed", "slower", "slower"]
    assert "the ProcessPoolExecutor broke" in caplog.text
    assert "the rest runs in 2 processes of their own" in caplog.text


@pytest.mark.parametrize("kind", all_but(["threads", "processes", "workers"], "threads", "processes"))
def test_what_hangs_is_ended(
    kind: str, fake: Fake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("kernels_hub.compiler.search.fanout.PATIENCE_S", 0.0)
    # In threads "wait" stands for what hangs, so that they end with the test.
    hangs = candidate("stuck", "wait" if kind == "threads" else "hang")
    candidates = [candidate("a"), hangs, candidate("b"), candidate("c")]
    executor = pool(kind)
    wait(
        [executor.submit(time.sleep, 0.3) for _ in range(2)]
    )  # a pool's clock runs while its processes start
    started = time.monotonic()
    try:
        found = fan_out(candidates, fake, executor, timeout=2.0, retries=0)
    finally:
        Path(fake.folder, "go").touch()
        executor.shutdown()
    assert statuses(found) == ["slower", "failed", "slower", "slower"]
    assert found[1].reason == "given up after it was tried once: it took more than 2 s"
    assert time.monotonic() - started < 30
    if kind != "threads":
        (process,) = fake.processes(hangs)
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_a_worker_killed_from_outside(fake: Fake, journal: Journal, workers: Workers):
    """SIGKILL by its number, in the middle."""
    candidates = [candidate("waits", "wait"), *(candidate(f"c{place}") for place in range(4))]

    def kill() -> None:
        while not fake.processes(candidates[0]):
            time.sleep(0.01)
        os.kill(fake.processes(candidates[0])[0], signal.SIGKILL)
        Path(fake.folder, "go").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    found = fan_out(candidates, fake, workers, journal=journal)
    killer.join()
    assert statuses(found) == ["slower"] * 5
    assert len(fake.calls(candidates[0])) == 2


def test_what_cannot_be_sent(workers: Workers, fake: Fake):
    (found,) = fan_out([candidate("x")], lambda one: fake(one), workers)
    assert found.status == "failed" and "it cannot be sent to a worker" in found.reason
    (found,) = fan_out([candidate("x", "raise what cannot be pickled")], fake, workers)
    assert found == Measured(found.digest, "failed", reason="EngineError: Odd: odd")
    (found,) = fan_out([candidate("x", "lie")], fake, workers)
    assert found.status == "failed" and "told of other candidates" in found.reason


def test_workers_keep_the_evaluator(tmp_path: Path):
    """Its weights travel once; what it worked out is there for building and for timing."""
    heavy = Heavy("x" * (2 << 20), str(tmp_path))
    with Workers(1) as workers:
        candidates = [candidate("a"), candidate("b")]
        fan_out(candidates, partial(heavy, build_only=True), workers)
        measure_together(candidates, heavy, workers)
    assert (tmp_path / "loaded").read_text() == "x\n"
    assert (tmp_path / "worked").read_text() == "once\n"
    assert [one.name for one in tmp_path.iterdir() if "sent" in one.name] == []


def test_nothing_begins_after_the_deadline(fake: Fake):
    with ThreadPoolExecutor(1) as executor:
        assert fan_out([candidate("x")], fake, executor, until=time.monotonic()) == []
        assert fake.calls(candidate("x")) == []


# -- timing -----------------------------------------------------------------------------------------


def test_times_are_taken_together(fake: Fake, journal: Journal, workers: Workers):
    candidates = [candidate("a", ms=2), candidate("b", ms=1)]
    build = partial(fake, build_only=True)
    assert [one.seconds for one in fan_out(candidates, build, workers, journal=journal)] == [None, None]
    found = measure_together(candidates, fake, workers, journal=journal)
    assert [one.seconds for one in found] == [0.002, 0.001]
    assert [fake.calls(one) for one in candidates] == [["build", "together"]] * 2
    # The next driver gets what this one measured: the first time, and the second.
    measure_together(candidates, fake, workers, journal=journal)
    calls = [["build", "together", "together"]] * 2
    assert [fake.calls(one) for one in candidates] == calls
    after = Journal({"graph": "g"}, journal.path.parent)
    for _ in range(2):
        assert measure_together(reversed(candidates), fake, workers, journal=after) == found[::-1]
    assert [fake.calls(one) for one in candidates] == calls
    # One more: all again, since times compare only with those of the same minutes.
    measure_together([*candidates, candidate("c")], fake, workers, journal=after)
    assert fake.calls(candidates[0]) == ["build", *["together"] * 3]


def test_one_that_dies_in_company_is_found(fake: Fake, journal: Journal, workers: Workers):
    deadly = candidate("deadly", "exit where timed together")
    candidates = [candidate("a"), deadly, candidate("worse", "exit"), candidate("b")]
    found = measure_together(candidates, fake, workers, journal=journal, retries=0)
    assert statuses(found) == ["slower", "slower", "failed", "slower"]
    assert fake.calls(candidates[3])[-1] == "time"


def test_many_build_and_one_measures(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kernels_hub.compiler.search.quiet.PATIENCE_S", 0.05)
    with building(), building(), pytest.raises(BusyError, match="another process measures or builds"):
        measuring().__enter__()
    with measuring():
        for other in (measuring, building):
            with pytest.raises(BusyError):
                other().__enter__()
    with building():
        pass


def test_a_driver_waits_while_another_measures(
    fake: Fake, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    caplog.set_level("INFO", logger="kernels_hub")
    monkeypatch.setattr("kernels_hub.compiler.search.quiet.PATIENCE_S", 0.05)
    held = threading.Event()

    def other() -> None:
        with measuring():
            held.set()
            until(lambda: "waits: another process measures or builds" in caplog.text, 20)

    thread = threading.Thread(target=other)
    thread.start()
    assert held.wait(20)

    with ThreadPoolExecutor(1) as executor:
        (found,) = fan_out([candidate("x")], fake, executor, retries=0)
    thread.join()
    assert found.status == "slower" and fake.calls(candidate("x")) == ["time"]
    assert "waits: another process measures or builds" in caplog.text


# -- the journal ------------------------------------------------------------------------------------


def test_a_damaged_journal_loses_what_was_damaged(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    def journal() -> Journal:
        return Journal({"graph": "g"}, tmp_path)

    rows = [Measured(f"{place:032x}", "slower", 1.0 + place, facts={"kernels": 2}) for place in range(4)]
    first = journal()
    for row in rows[:3]:
        first.add("timed", row)
    whole = first.path.read_bytes()
    first.path.write_bytes(whole[:-20])  # cut short
    second = journal()
    assert list(second.known("timed").values()) == rows[:2] and second.damaged == 0
    second.add("timed", rows[3])
    third = journal()
    assert list(third.known("timed").values()) == [*rows[:2], rows[3]]
    assert third.damaged == 1
    lines = third.path.read_bytes().splitlines(keepends=True)
    third.path.write_bytes(b"".join([lines[0], lines[1].replace(b"1.0", b"0.1"), *lines[2:]]))
    assert list(journal().known("timed").values()) == [rows[1], rows[3]], "a line that was changed"
    third.path.write_bytes(b"\xff\x00 no journal\n" * 3)
    assert journal().known("timed") == {} and journal().known("built") == {}
    # No folder to write in: a warning, once.
    (tmp_path / "file").touch()
    lost = Journal({"graph": "g"}, tmp_path / "file")
    lost.add("timed", rows[0])
    lost.add("timed", rows[1])
    assert list(lost.known("timed").values()) == rows[:2]
    assert caplog.text.count("what is found is not kept") == 1


def test_a_journal_can_begin_anew(tmp_path: Path):
    one, other = (Measured("0" * 32, "slower", seconds) for seconds in (1.0, 2.0))
    journal = Journal({}, tmp_path)
    journal.add("timed", one)
    journal.begin_anew()
    assert journal.known("timed") == {}
    journal.add("timed", other)
    assert Journal({}, tmp_path).known("timed") == {"0" * 32: other}


def test_questions_are_kept_apart(tmp_path: Path):
    from kernels_hub.compiler.engines.devices import find_device

    cpu = find_device("cpu")
    same = [Journal.of("graph a", cpu, 0, folder=tmp_path) for _ in range(2)]
    assert same[0].path == same[1].path
    others = [
        Journal.of("graph b", cpu, 0, folder=tmp_path),
        Journal.of("graph a", cpu, 1, folder=tmp_path),
        Journal.of("graph a", cpu, 0, {"sizes": {"n": 2}}, folder=tmp_path),
    ]
    assert len({one.path for one in (same[0], *others)}) == 4


WRITER = """
import sys
from kernels_hub.compiler.search.candidate import Measured
from kernels_hub.compiler.search.journal import Journal
journal = Journal({"graph": "g"}, sys.argv[1])
for place in range(60):
    journal.add("timed", Measured(f"{sys.argv[2]}{place:031x}", "slower", 1.0, "x" * 5000))
"""


def test_processes_write_at_a_time(tmp_path: Path):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name], cwd=ROOT) for name in "abc"
    ]
    assert [one.wait(60) for one in writers] == [0, 0, 0]
    journal = Journal({"graph": "g"}, tmp_path)
    assert len(journal.known("timed")) == 180 and journal.damaged == 0


# -- drivers that end -------------------------------------------------------------------------------

DRIVER = """
import json, signal, sys
from kernels_hub.compiler.search.fanout import fan_out
from kernels_hub.compiler.search.journal import Journal
from kernels_hub.compiler.search.workers import Workers
from tests.compiler.search.fake_evaluator import Fake, candidate

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background of a shell
    folder, names = sys.argv[1], sys.argv[2:]
    candidates = [candidate(name, "wait" if name.startswith("w") else "run") for name in names]
    with Workers(2) as workers:
        found = fan_out(candidates, Fake(f"{folder}/calls"), workers, journal=Journal({"graph": "g"}, folder))
    print(json.dumps([one.to_dict() for one in found]))
"""


def driver(folder: Path, *names: str) -> subprocess.Popen[str]:
    (folder / "driver.py").write_text(DRIVER)
    return subprocess.Popen(
        [sys.executable, str(folder / "driver.py"), str(folder), *names],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def until(what: object, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not what():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_driver_that_ends_is_resumed(how: signal.Signals, tmp_path: Path, fake: Fake):
    names = ["a", "b", "wait", "c"]
    candidates = [candidate(name, "wait" if name == "wait" else "run") for name in names]
    first = driver(tmp_path, *names)
    until(lambda: fake.calls(candidates[2]) and fake.calls(candidates[3]))
    journal = Journal({"graph": "g"}, tmp_path)
    until(lambda: len(journal.known("built")) == 3)
    (worker,) = fake.processes(candidates[2])
    first.send_signal(how)
    out, err = first.communicate(timeout=30)
    assert first.returncode != 0 and out == ""
    if how is signal.SIGINT:
        assert "KeyboardInterrupt" in err
    until(lambda: not Path(f"/proc/{worker}").exists(), 10)  # its workers end with it
    Path(fake.folder, "go").touch()
    second = driver(tmp_path, *names)
    out, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    assert [row["digest"] for row in json.loads(out)] == [one.digest for one in candidates]
    assert [len(fake.calls(one)) for one in candidates] == [1, 1, 2, 1]


def test_two_drivers_at_once(tmp_path: Path, fake: Fake):
    """They write into one journal, and what one has found the other does not repeat."""
    names = ["w1", "w2", *(f"c{place}" for place in range(6))]
    candidates = [candidate(name, "wait" if name.startswith("w") else "run") for name in names]
    first = driver(tmp_path, *names)
    until(lambda: fake.calls(candidates[0]) and fake.calls(candidates[1]))
    second = driver(tmp_path, *reversed(names))
    journal = Journal({"graph": "g"}, tmp_path)
    until(lambda: len(journal.known("built")) >= 6)
    Path(fake.folder, "go").touch()
    outputs = [one.communicate(timeout=60) for one in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert [row["digest"] for row in json.loads(outputs[0][0])] == [one.digest for one in candidates]
    assert [row["digest"] for row in json.loads(outputs[1][0])] == [
        one.digest for one in reversed(candidates)
    ]
    assert [len(fake.calls(one)) for one in candidates[2:]] == [1] * 6
    assert journal.known("built").keys() == {one.digest for one in candidates} and journal.damaged == 0


# -- workers ----------------------------------------------------------------------------------------


def test_workers_are_an_executor(workers: Workers):
    assert list(workers.map(divmod, [7, 8], [2, 3])) == [(3, 1), (2, 2)]
    with pytest.raises(ZeroDivisionError) as caught:
        workers.submit(divmod, 1, 0).result()
    assert "ZeroDivisionError" in caught.value.__notes__[0]
    pid = workers.submit(os.getpid).result()
    assert pid != os.getpid()
    lost = workers.submit(os._exit, 7)
    with pytest.raises(WorkerLostError, match="its worker ended with status 7"):
        lost.result()


def test_tasks_that_wait_are_cancelled():
    workers = Workers(1)
    first, second = workers.submit(time.sleep, 3600), workers.submit(time.sleep, 0)
    until(first.running)
    assert workers.where(first).rpartition(":")[2].isdigit() and workers.where(second) == ""
    workers.shutdown(wait=False, cancel_futures=True)
    assert second.cancelled()
    workers.abandon(first)
    with pytest.raises(WorkerLostError, match="was ended by SIGKILL"):
        first.result(timeout=10)
    with pytest.raises(RuntimeError, match="shut down"):
        workers.submit(time.sleep, 0)
    with pytest.raises(ValueError, match="at least one worker"):
        Workers(-1)


def test_a_worker_takes_its_compiler_along(tmp_path: Path):
    workers = Workers(1)
    sleeper = tmp_path / "pid"
    future = workers.submit(subprocess.run, ["sh", "-c", f"echo $$ > {sleeper}; sleep 3600; true"])
    until(lambda: sleeper.exists() and sleeper.read_text().strip())
    workers.abandon(future)
    with pytest.raises(WorkerLostError):
        future.result(timeout=10)
    workers.shutdown()
    until(lambda: not _lives(int(sleeper.read_text())), 10)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_journal_that_an_earlier_version_began_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path))
    new = Journal({"graph": "new"})
    assert new.path.parent == tmp_path / "tuning" / "journals"
    former = tmp_path / "compiled" / "tuning" / "journals"
    measured = Measured("0" * 32, "slower", 1.0)
    Journal({"graph": "old"}, former).add("timed", measured)
    again = Journal({"graph": "old"})
    assert again.known("timed") == {"0" * 32: measured}
    assert again.path.parent == former


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_there_are_no_more_workers_than_cpus_that_may_be_used():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cpus() == Workers().max_workers == 1
    finally:
        os.sched_setaffinity(0, before)
    assert usable_cpus() == len(before)
