"""D: the state over crashes, damage and restarts: each line once, whatever became of the state file."""

import json
import os
import signal
import time

from tests.e2e.scenarios.harness import Lab
from tests.e2e.scenarios.registry import scenario
from tests.programs import now, slack


def _killed(variant: str, *, saved: bool) -> None:
    @scenario(57, variant, own=True)
    def killed_at_every_step(lab: Lab) -> None:
        """The daemon dies before each change of its state directory: of a file that is written anew (open, the header,
        the parts, their end, replace, replace), or of what saves add.
        """
        lab.write(lab.units(3))
        if saved:
            assert lab.follow(hold=0).terminate() == 0
        for step in range(1, 5 if saved else 7):
            daemon = lab.launch(kill_at=step)
            until = now() + slack(30)
            while daemon.process.poll() is None:
                assert now() < until, f"it never came to change {step}"
                lab.write(lab.units(1))
                time.sleep(0.1)
            assert daemon.process.returncode == -signal.SIGKILL
            if step == 2:  # the later start proves the crashes before it
                lab.follow(hold=0.1).kill()
        lab.follow()


_killed("first generation", saved=False)
_killed("later generation", saved=True)


def _damage(lab: Lab, name: str) -> None:
    state = lab.own / "state"
    for path in state.glob("state*"):
        data = path.read_bytes()
        if not data:  # the generation before, which was damaged
            continue
        head, _, body = data.partition(b"\n")
        if name == "cut":
            path.write_bytes(data[: len(data) // 2])
        elif name == "NUL":
            path.write_bytes(bytes(len(data)))
        elif name == "empty":
            path.write_bytes(b"")
        elif name == "flipped":
            path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
        elif name == "future":
            header = json.loads(head) | {"version": 999}
            path.write_bytes(json.dumps(header).encode() + b"\n" + body)
        elif name == "directory":
            path.unlink()
            path.mkdir()
        else:
            path.unlink()


def _damaged(*names: str) -> None:
    @scenario(58, " ".join(names), own=True)
    def damaged(lab: Lab) -> None:
        lab.write(lab.units(10))
        daemon = lab.follow(hold=0)
        for name in names:
            assert daemon.terminate() == 0
            _damage(lab, name)
            lab.write(lab.units(2))
            daemon = lab.follow()  # rebuilt from the log: all of it, once
            rebuilt = daemon.value("megatron_monitor_state_rebuilds_total") > 0
            assert rebuilt is (name != "lost") or name == "cut"  # which may leave a whole save


_damaged("cut", "NUL", "empty", "flipped")
_damaged("lost", "directory")


@scenario(58, "future", own=True)
def of_a_later_version(lab: Lab) -> None:
    lab.write(lab.units(10))
    assert lab.follow(hold=0).terminate() == 0
    _damage(lab, "future")
    before = {path: path.read_bytes() for path in (lab.own / "state").glob("state*")}
    daemon = lab.launch()
    assert daemon.process.wait(timeout=slack(30)) == 1
    assert "it is of version 999" in daemon.log.read_text()  # neither read nor overwritten
    assert {path: path.read_bytes() for path in before} == before


@scenario(58, "cannot be written", own=True)
def not_writable(lab: Lab) -> None:
    (lab.own / "state").write_text("a file where the directory should be")
    lab.write(lab.units(5))
    daemon = lab.follow()
    assert daemon.value("megatron_monitor_state_save_failures_total") > 0
    daemon.kill()
    lab.write(lab.units(2))
    lab.follow()


@scenario(58, "disk full", own=True)
def disk_full(lab: Lab) -> None:
    lab.write(lab.units(5))
    daemon = lab.follow(state_error="ENOSPC", state_error_file=str(lab.own / "full"), hold=1.5)
    (lab.own / "full").touch()
    lab.grow(5)
    daemon.wait(lambda: daemon.value("megatron_monitor_state_save_failures_total") > 0)
    assert daemon.status("/-/healthy") == 200
    daemon.kill()  # what was saved before stands; what came after is read again
    lab.write(lab.units(1))
    lab.follow()


@scenario(58, "read-only", own=True)
def read_only(lab: Lab) -> None:
    lab.write(lab.units(5))
    daemon = lab.follow(hold=0)
    daemon.terminate()
    lab.write(lab.units(5))
    (lab.own / "full").touch()
    daemon = lab.start(state_error="EROFS", state_error_file=str(lab.own / "full"))
    lab.expect()  # read as it was, and watched on
    daemon.wait(lambda: daemon.value("megatron_monitor_state_save_failures_total") > 0)
    (
        lab.own / "full"
    ).unlink()  # writable again: this daemon goes on without a state, as it says, and the next reads anew
    daemon.kill()
    lab.follow()


@scenario(59, own=True)
def state_on_nfs(lab: Lab) -> None:
    """No locks there (ENOLCK) and no fsync of directories (EINVAL): kept all the same."""
    lab.write(lab.units(5))
    lab.kill(lab.follow(no_locks=True))
    lab.path().rename(lab.path("x.old"))  # only the state knows these five
    lab.write(lab.units(2))
    lab.follow(no_locks=True)


@scenario(60, own=True)
def second_daemon(lab: Lab) -> None:
    lab.write(lab.units(2))
    first = lab.start()
    second = lab.launch()
    assert second.process.wait(slack(20)) == 1
    assert "in use" in second.log.read_text()
    lab.expect(daemon=first)


@scenario(63, own=True)
def unseen_is_kept(lab: Lab) -> None:
    lab.write(lab.units(10))
    daemon = lab.follow(mounts={str(lab.directory): "nfs4"}, hold=0)
    daemon.terminate()
    for error in ("EIO", "ENOENT"):
        everything = {"call": ["stat", "open", "scandir"], "path": str(lab.directory), "error": error, "by": "start"}
        daemon = lab.start(mounts={str(lab.directory): "nfs4"}, faults=[everything])
        time.sleep(2.5)
        daemon.terminate()
    lab.write(lab.units(1))
    daemon = lab.follow(mounts={str(lab.directory): "nfs4"})
    assert daemon.value("megatron_monitor_bytes_total") < 2 * os.path.getsize(lab.path())


@scenario(61, own=True)
def killed_at_random(lab: Lab) -> None:
    """Kill -9 again and again while a training writes: the offset and the counters that it belongs to are one."""
    for _ in range(8):
        daemon = lab.launch()
        for _ in range(6):
            lab.write(lab.units(3))
            time.sleep(0.25)
        daemon.kill()
    lab.follow()
