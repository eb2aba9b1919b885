"""E: scale and resources: descriptors, watches, many files, large files, and nothing that grows."""

import os
import threading
import time

from tests.e2e.scenarios.harness import Lab, now, slack, units
from tests.e2e.scenarios.registry import scenario


@scenario(65, own=True)
def few_descriptors(lab: Lab) -> None:
    for number in range(500):
        lab.path(f"f{number:03}.log").write_bytes(units(3))
    lab.next = 1 + 3 * 500
    daemon = lab.start(f"{lab.directory}/*.log", descriptors=100)
    lab.expect(timeout=90)
    for number in range(0, 500, 7):
        with lab.path(f"f{number:03}.log").open("ab") as stream:
            stream.write(units(2, 4))
        lab.next += 2
    lab.expect(timeout=90, hold=2.0)
    assert len(daemon.descriptors()) <= 100
    assert len(daemon.samples("megatron_iteration")) == 500
    assert set(daemon.samples("megatron_iterations_total").values()) == {3.0, 5.0}


@scenario(66, own=True)
def no_inotify(lab: Lab) -> None:
    lab.write(lab.units(2))
    daemon = lab.follow(f"{lab.directory}/*.log", no_inotify=True, hold=0)
    lab.grow(2)
    assert daemon.value("megatron_monitor_mount_info", 'mode="poll"') >= 1
    assert daemon.value("megatron_monitor_mount_info", 'mode="inotify"') == 0


@scenario(67, own=True)
def events_lost(lab: Lab) -> None:
    """As after IN_Q_OVERFLOW: no event arrives, for files that are known and for new ones."""
    lab.write(lab.units(2))
    lab.follow(f"{lab.directory}/**/*.log", deaf=True, hold=0)
    for number in range(200):
        lab.write(lab.units(1))
        (lab.directory / f"noise{number}").touch()
    deep = lab.directory / "new" / "y.log"
    deep.parent.mkdir()
    deep.write_bytes(lab.units(3))
    lab.expect()


@scenario(68, own=True)
def many_idle_files(lab: Lab) -> None:
    old = time.time() - 7 * 86_400  # noqa: TID251
    for number in range(10_000):
        path = lab.directory / f"d{number % 100:02}" / f"i{number}.log"
        if number < 100:
            path.parent.mkdir()
        path.write_bytes(b"an old log of nothing\n")
        os.utime(path, (old, old))
    lab.write(lab.units(2))
    daemon = lab.start(
        f"{lab.directory}/**/*.log", "--set", "follow.discovery_interval=8s", "--set", "follow.idle_interval=10s"
    )
    daemon.wait(lambda: daemon.status("/-/ready") == 200, timeout=90)
    lab.expect(hold=0)

    def stats() -> float:
        return daemon.value("megatron_monitor_stat_calls_total")

    def one_walk() -> float:
        """Until the next walk ends, which counts its calls and those since the one before; a training writes on."""
        began, before = now(), stats()
        while stats() == before:
            lab.write(lab.units(1))
            time.sleep(0.5)
        return now() - began

    one_walk()
    shares = []
    while not shares or (min(shares) >= 0.10 and len(shares) < 3):  # others' load makes a second of processor longer
        spent, before = daemon.cpu(), stats()
        passed = one_walk()
        assert (stats() - before) / passed < 650  # 500 a second, and the directories
        shares.append((daemon.cpu() - spent) / passed)
    assert min(shares) < 0.10
    lab.expect()


@scenario(69, own=True)
def many_names(lab: Lab) -> None:
    big = lab.directory / "big"
    big.mkdir()
    for number in range(50_000):
        os.close(os.open(big / f"{number}.pt", os.O_CREAT | os.O_WRONLY))
    lab.write(lab.units(1))
    daemon = lab.follow(f"{lab.directory}/**/*.log", f"{lab.directory}/**/*.out", hold=0)
    worst = 0.0
    for _ in range(12):
        lab.write(lab.units(1))
        wanted = lab.next - 1
        worst = max(worst, daemon.wait(lambda wanted=wanted: daemon.value("megatron_iteration") == wanted))
        time.sleep(0.1)
    assert worst < slack(5.0)  # a busy machine; a walk that blocked would take longer than its files
    lab.expect()


@scenario(70, own=True)
def fair_reads(lab: Lab) -> None:
    noise = b"[rank0]: nothing to see in this line, and many more of the same kind follow it " + b"." * 200 + b"\n"
    with lab.path("a-big.log").open("wb") as stream:
        stream.write(units(1))
        for _ in range(30):
            stream.write(noise * (10_000_000 // len(noise)))
    for number in range(500):
        lab.path(f"f{number:03}.log").write_bytes(units(1))
    lab.next = 502
    daemon = lab.start(f"{lab.directory}/*.log")
    daemon.wait(lambda: len(daemon.samples("megatron_iterations_total")) >= 500, timeout=60)
    # The large file's share is 1 MiB a pass: the small ones are read and shown long before its end.
    assert daemon.value("megatron_monitor_bytes_total") < 250_000_000, "the small files waited for the large one"
    lab.expect(501, timeout=150)


@scenario(71, own=True)
def soak(lab: Lab) -> None:
    """A day of rotations, restarts of runs and scrapes in a quarter of a minute: memory, threads and descriptors stay."""
    daemon = lab.start(f"{lab.directory}/*.log")
    stop = threading.Event()
    files = [lab.path(f"s{number}.log") for number in range(10)]
    counts, rotated = [0] * len(files), [0] * len(files)

    def seen_since(number: int) -> bool:
        return daemon.value("megatron_iterations_total", f'run="s{number}"') > rotated[number]

    def write() -> None:
        turn = 0
        while not stop.wait(0.05):
            turn += 1
            for number, path in enumerate(files):
                with path.open("ab") as stream:
                    stream.write(units(2, counts[number] + 1))
                counts[number] += 2
                if turn % 60 == 6 * number and seen_since(number):  # a file that nobody has seen yet would be lost
                    path.replace(path.with_suffix(".old"))
                    rotated[number] = counts[number]

    writer = threading.Thread(target=write)
    writer.start()
    try:
        time.sleep(5.0)
        seen = []
        for _ in range(16):
            time.sleep(0.7)
            daemon.fetch()
            seen.append((daemon.rss(), daemon.threads(), len(daemon.descriptors())))
    finally:
        stop.set()
        writer.join()
    lab.next = 1 + sum(counts)
    first, last = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert min(one[0] for one in last) - min(one[0] for one in first) < 12, [round(one[0]) for one in seen]
    assert max(one[1] for one in last) <= max(one[1] for one in first) + 1
    assert max(one[2] for one in last) <= max(one[2] for one in first) + 12
    lab.expect(timeout=60)


@scenario(72)
def deleted_files_let_go(lab: Lab) -> None:
    lab.grow(3, hold=0)
    name = f"{lab.name}/x.log"
    lab.path().unlink()
    lab.daemon.wait(lambda: not any(name in one for one in lab.daemon.descriptors()), timeout=10)


@scenario(73, own=True)
def too_many_runs(lab: Lab) -> None:
    old = time.time() - 7 * 86_400  # noqa: TID251
    for number in range(400):
        path = lab.path(f"dead{number:03}.log")
        path.write_bytes(units(2))
        os.utime(path, (old + number, old + number))
    lab.write(lab.units(2))
    daemon = lab.start(f"{lab.directory}/*.log", "--set", "max_runs=100")
    daemon.wait(lambda: daemon.status("/-/ready") == 200, timeout=60)
    lab.expect(run='run="x"', daemon=daemon)
    lab.write(lab.units(1))
    lab.expect(run='run="x"', daemon=daemon)
    assert len(daemon.samples("megatron_iterations_total")) <= 100
    assert daemon.value("megatron_monitor_runs_dropped_total", 'reason="dead"') >= 301
    assert daemon.value("megatron_monitor_runs") <= 100
