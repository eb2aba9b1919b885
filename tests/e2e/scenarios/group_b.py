"""B: rotation and identity. One path is one endless log; a file is read once whatever it is called."""

import gzip
import os
import shutil
import time

from tests.e2e.scenarios.harness import Lab
from tests.e2e.scenarios.registry import WRITERS, scenario


@scenario(24, writers=WRITERS)
def rename(lab: Lab) -> None:
    for _ in range(3):
        lab.grow(5, hold=0)
        lab.path().rename(lab.path(f"x.old{lab.next}"))
        lab.reopen()
        lab.grow(5, hold=0)
    lab.expect()


@scenario(25)
def five_renames_at_once(lab: Lab) -> None:
    log = lab.path("x.rot")
    log.write_bytes(lab.units(3))
    lab.expect(run=f'run="{lab.name}/', hold=0)
    for _ in range(5):
        for number in range(5, 0, -1):
            older = lab.path(f"x.rot.{number}")
            if older.exists():
                older.rename(lab.path(f"x.rot.{number + 1}"))
        log.rename(lab.path("x.rot.1"))
        log.write_bytes(lab.units(3))
    lab.expect(run=f'run="{lab.name}/', hold=1.0)


@scenario(26, writers=WRITERS)
def late_writes(lab: Lab) -> None:
    lab.grow(3, hold=0)
    old = lab.path("x.old")
    lab.path().rename(old)
    with lab.path().open("ab") as new:
        new.write(lab.units(2))
    with old.open("ab") as late:
        late.write(lab.units(2))
    time.sleep(0.1)
    with old.open("ab") as late:
        late.write(lab.units(1))
    lab.expect()


@scenario(27)
def rename_and_compress(lab: Lab) -> None:
    lab.grow(50, hold=0)
    lab.write(lab.units(5))
    rotated = lab.path("x.log.1")
    lab.path().rename(rotated)
    lab.write(lab.units(5))
    time.sleep(0.7)
    with gzip.open(lab.path("x.log.1.gz"), "wb") as packed:
        packed.write(rotated.read_bytes())
    rotated.unlink()
    lab.grow(5)


def _copytruncate(lab: Lab, count: int) -> None:
    lab.grow(20)
    shutil.copy(lab.path(), lab.path("x.copy"))
    os.truncate(lab.path(), 0)
    lab.write(lab.units(count))
    lab.expect(hold=1.0)


@scenario(28, writers=WRITERS)
def copytruncate_smaller(lab: Lab) -> None:
    _copytruncate(lab, 3)


@scenario(29, writers=WRITERS)
def copytruncate_same_size(lab: Lab) -> None:
    _copytruncate(lab, 20)
    assert lab.path().stat().st_size == lab.path("x.copy").stat().st_size


@scenario(30, writers=WRITERS)
def copytruncate_larger(lab: Lab) -> None:
    _copytruncate(lab, 200)


@scenario(31, writers=WRITERS)
def truncated_and_silent(lab: Lab) -> None:
    lab.grow(5)
    os.truncate(lab.path(), 0)
    time.sleep(2.0)
    lab.expect()
    lab.grow(2)


@scenario(32)
def atomic_replace(lab: Lab) -> None:
    data = lab.units(30)
    lab.write(data)
    lab.expect()
    for _ in range(3):  # rsync of a growing file
        data += lab.units(2)
        lab.path("x.tmp").write_bytes(data)
        lab.path("x.tmp").replace(lab.path())
        lab.expect(hold=0.2)
    lab.expect(hold=1.0)


@scenario(33)
def delete(lab: Lab) -> None:
    lab.grow(5)
    lab.path().unlink()
    lab.daemon.wait(lambda: lab.daemon.value("megatron_run_state", lab.run(), 'state="lost"') == 1)
    lab.expect()


@scenario(34)
def same_inode_again(lab: Lab) -> None:
    lab.grow(5)
    inode = lab.path().stat().st_ino
    lab.path().unlink()
    lab.daemon.wait(lambda: not any(f"{lab.name}/x.log" in name for name in lab.daemon.descriptors()))
    made = []
    for number in range(3000):
        one = lab.path(f"t{number}.tmp")
        one.touch()
        made.append(one)
        if one.stat().st_ino == inode:
            one.write_bytes(lab.units(3))
            one.rename(lab.path())
            break
    else:  # the file system gave the number to somebody else: any other inode must do as well
        lab.write(lab.units(3))
    for one in made:
        one.unlink(missing_ok=True)
    lab.expect(hold=1.0)


@scenario(35, own=True)
def recreated_while_down(lab: Lab) -> None:
    for same_size in (True, False):
        lab.write(lab.units(20))
        daemon = lab.follow()
        assert daemon.terminate() == 0
        lab.path().unlink()
        lab.write(lab.units(20 if same_size else 3))
        daemon = lab.follow()
        daemon.terminate()


@scenario(36)
def symlink_swap(lab: Lab) -> None:
    targets = [lab.path(f"job{number}.txt") for number in range(4)]
    for target in targets:
        lab.write(lab.units(3), target)
        lab.path("next").symlink_to(target)
        lab.path("next").replace(lab.path())
        lab.expect(hold=0.2)
        lab.write(lab.units(2), target)
        lab.expect(hold=0)
    lab.expect()


@scenario(37)
def dangling_symlink(lab: Lab) -> None:
    lab.path().symlink_to(lab.path("later.txt"))
    time.sleep(1.5)
    lab.write(lab.units(3), lab.path("later.txt"))
    lab.expect()


@scenario(38)
def symlink_to_outside(lab: Lab) -> None:
    outside = lab.own / "elsewhere.txt"
    outside.write_bytes(lab.units(2))
    lab.path().symlink_to(outside)
    lab.expect(hold=0)
    for _ in range(4):
        with outside.open("ab") as stream:
            stream.write(lab.units(1))
        lab.expect(hold=0, timeout=5)
    lab.expect()


@scenario(39)
def hard_link(lab: Lab) -> None:
    lab.grow(3, hold=0)
    os.link(lab.path(), lab.path("again.log"))
    lab.path("main_x.log").symlink_to(lab.path())  # two globs have this name
    lab.write(lab.units(3))
    lab.expect(run=f'run="{lab.name}/', hold=1.5)


@scenario(40)
def one_banner(lab: Lab) -> None:
    banner = (b"using world size: 64, data-parallel-size: 8, tensor-model-parallel size: 4 " + b"." * 60 + b"\n") * 30
    first, second = lab.path("a.log"), lab.path("b.log")
    first.write_bytes(banner)
    second.write_bytes(banner)
    for _ in range(5):
        lab.write(lab.units(2), first)
    for _ in range(5):
        lab.write(lab.units(1), second)
    lab.expect(10, run=lab.run("a.log"))
    lab.expect(5, run=lab.run("b.log"))


@scenario(41, own=True)
def past_the_fingerprint(lab: Lab) -> None:
    total = 0
    for size in (10, 300, 1500, 5000):
        lab.write(b"n" * size + b"\n" + lab.units(1))
        total += 1
        daemon = lab.start()
        lab.expect(total, hold=0.2)
        daemon.terminate()  # what is only in the renamed file must be in the state
    lab.path().rename(lab.path("x.old"))
    lab.write(lab.units(2))
    lab.follow()


@scenario(42, own=True)
def rotation_during_a_restart(lab: Lab) -> None:
    lab.write(lab.units(10))
    lab.kill(lab.follow())
    lab.write(lab.units(5))
    lab.path().rename(lab.path("x.log.1"))
    lab.write(lab.units(5))
    lab.follow()


@scenario(43)
def parent_renamed(lab: Lab) -> None:
    inside = lab.directory / "job"
    inside.mkdir()
    lab.write(lab.units(5), inside / "y.log")
    lab.expect(run=f'run="{lab.name}/', hold=0)
    inside.rename(lab.directory / "job.done")
    lab.reopen()
    lab.write(lab.units(3), lab.directory / "job.done" / "y.log")
    lab.expect(run=f'run="{lab.name}/', hold=1.5)


@scenario(44)
def nested_directories(lab: Lab) -> None:
    deep = lab.directory.joinpath("a", "b", "c", "d", "e")
    time.sleep(0.7)
    deep.mkdir(parents=True)
    lab.write(lab.units(4), deep / "y.log")
    lab.expect(run=f'run="{lab.name}/')


@scenario(45, writers=WRITERS)
def requeued(lab: Lab) -> None:
    first = lab.units(20)
    lab.write(first)
    lab.expect()
    rows = first.replace(b"(ms): 250.0", b"(ms): 251.3").splitlines(keepends=True)
    lab.write(b"".join(rows[20:]))  # the second half is computed again
    lab.expect(30)
    lab.daemon.wait(lambda: lab.daemon.value("megatron_lost_iterations_total", lab.run()) == 10)
    lab.write(lab.units(1))
    lab.expect(31)


@scenario(46)
def skewed_clock(lab: Lab) -> None:
    for seconds in (86_400, -86_400, 10 * 365 * 86_400):
        lab.write(lab.units(2))
        at = time.time() + seconds  # noqa: TID251
        os.utime(lab.path(), (at, at))
        lab.expect(hold=0.3)
    lab.expect()
