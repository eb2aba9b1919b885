"""C: network file systems, by faults injected at the follower's system calls.

Proved: what the follower does with these answers. Not proved: that a real client gives exactly these, in this order.
"""

import os
import time
from pathlib import Path

from tests.e2e.scenarios.harness import Daemon, Lab, now, slack
from tests.e2e.scenarios.registry import scenario

ERRORS = ("ESTALE", "EIO", "ETIMEDOUT", "EHOSTDOWN", "EACCES", "ENOENT")


def network(lab: Lab, *patterns: str, kind: str = "nfs4") -> Daemon:
    """A daemon for which the scenario's directory is a network mount; it has counted all that was written."""
    return lab.follow(*(patterns or (str(lab.path()),)), mounts={str(lab.directory): kind})


@scenario(47, own=True)
def polled_by_itself(lab: Lab) -> None:
    lab.write(lab.units(2))
    daemon = network(lab, kind="lustre")
    for _ in range(5):
        lab.grow(1, hold=0, timeout=5)
    mount = f'mount="{lab.directory}"'
    assert daemon.value("megatron_monitor_mount_info", mount, 'mode="poll"', 'file_system="lustre"') == 1
    assert daemon.value("megatron_monitor_mount_info", mount, 'mode="inotify"') == 0


def _wrong_size(number: int, more: int, **size: int) -> None:
    @scenario(number, own=True)
    def wrong_size(lab: Lab) -> None:
        """The client shows another size than the file has, until it does not; `more` units are written then."""
        lab.write(lab.units(5))
        daemon = network(lab)
        lab.fault(daemon, call=["stat", "fstat"], path="x.log", **size)
        lab.write(lab.units(2))
        time.sleep(2.0)
        lab.heal(daemon)
        lab.write(lab.units(more))
        lab.expect()
        assert daemon.value("megatron_monitor_truncations_total") == 0


_wrong_size(48, 0, size=100)
_wrong_size(49, 2, plus=100_000)


@scenario(50, own=True)
def stale(lab: Lab) -> None:
    lab.write(lab.units(5))
    daemon = network(lab, f"{lab.directory}/*.log")
    for calls in (["pread"], ["stat"], ["scandir"], ["stat", "fstat", "open", "pread", "scandir"]):
        lab.fault(daemon, call=calls, path=str(lab.directory), error="ESTALE")
        lab.write(lab.units(1))
        began, spent = now(), daemon.cpu()
        time.sleep(3.0)
        share = (daemon.cpu() - spent) / (now() - began)
        assert share < 0.15, f"{calls}: {share:.0%} of a core"
        lab.heal(daemon)
        lab.expect(timeout=60)
    assert daemon.value("megatron_monitor_io_errors_total", 'errno="ESTALE"') > 0


@scenario(51, own=True)
def mount_fails_and_comes_back(lab: Lab) -> None:
    lab.write(lab.units(5))
    daemon = network(lab, f"{lab.directory}/*.log")
    for error in ERRORS:
        lab.fault(daemon, call=["stat", "fstat", "open", "pread", "scandir"], path=str(lab.directory), error=error)
        lab.write(lab.units(1))
        time.sleep(1.5)
        assert daemon.value("megatron_iteration") >= 5, f"{error}: the series went"
        lab.heal(daemon)
        lab.expect(timeout=60)
        lab.write(lab.units(1))
    lab.expect()
    assert daemon.value("megatron_monitor_rotations_total") == 0
    assert daemon.value("megatron_monitor_truncations_total") == 0


@scenario(52, own=True)
def hanging_call(lab: Lab) -> None:
    """Four mounts hang at once, each in another call; the healthy one beside them does not notice."""
    lab.write(lab.units(2))
    mounts, faults = {}, []
    for call in ("stat", "open", "pread", "scandir"):
        place = lab.directory / call
        place.mkdir()
        (place / "y.log").write_bytes(b"nothing\n")
        mounts[str(place)] = "nfs4"
        faults.append({"call": [call], "path": str(place), "hang": True, "by": "start"})
    daemon = lab.follow(str(lab.path()), *(f"{place}/*.log" for place in mounts), hold=0, mounts=mounts, faults=faults)
    lab.write(lab.units(2))

    def hung() -> bool:
        busy = daemon.samples("megatron_monitor_mount_busy_seconds")
        return sum(seconds > 1.5 for seconds in busy.values()) == len(mounts)

    daemon.wait(hung)
    lab.expect(timeout=5)
    began = now()
    assert daemon.status("/-/healthy") == 200
    assert daemon.status("/metrics") == 200
    assert now() - began < slack(2.0)
    assert daemon.terminate(timeout=5.0) == 0


@scenario(53, own=True)
def device_changes(lab: Lab) -> None:
    lab.write(lab.units(10))
    daemon = network(lab, f"{lab.directory}/*.log")
    lab.fault(daemon, call=["stat", "fstat"], path=str(lab.directory), device=7)
    lab.grow(2, hold=2.0)


@scenario(54, own=True)
def scandir_lies(lab: Lab) -> None:
    lab.write(lab.units(3))
    lab.path("z.log").write_bytes(b"noise\n")
    daemon = network(lab, f"{lab.directory}/*.log")
    lab.fault(daemon, call=["scandir"], path=str(lab.directory), repeat=True)
    lab.grow(2, hold=1.5)
    lab.heal(daemon)
    lab.fault(daemon, call=["scandir"], path=str(lab.directory), hide="x.log")
    lab.grow(2, hold=1.5)


@scenario(55)
def nfs_leftovers(lab: Lab) -> None:
    hidden = lab.directory / ".snapshot" / "hourly.0"
    hidden.mkdir(parents=True)
    lab.write(lab.units(3))
    (hidden / "x.log").write_bytes(lab.path().read_bytes())
    os.link(lab.path(), lab.path(".nfs00000000012345"))
    lab.expect(run=f'run="{lab.name}/', hold=1.5)


@scenario(56, own=True)
def file_system_types(lab: Lab) -> None:
    kinds = {
        "nfs": "poll", "nfs4": "poll", "lustre": "poll", "gpfs": "poll", "beegfs": "poll", "fuse.sshfs": "poll",
        "fuse.gpfs": "poll", "ceph": "poll", "cifs": "poll", "9p": "poll", "wekafs": "poll", "never-heard-of": "poll",
        "overlay": "inotify", "ext4": "inotify", "xfs": "inotify", "tmpfs": "inotify",
    }  # fmt: skip
    mounts = {}
    for kind in kinds:
        place = lab.directory / f"on-{kind}"
        place.mkdir()
        mounts[str(place)] = kind
        (place / "x.log").write_bytes(lab.units(1))
    daemon = lab.follow(f"{lab.directory}/*/x.log", mounts=mounts)

    def shown() -> dict[str, str]:
        found = {}
        for labels in daemon.samples("megatron_monitor_mount_info"):
            parts = dict(part.split("=", 1) for part in labels.split(","))
            found[Path(parts["mount"].strip('"')).name.removeprefix("on-")] = parts["mode"].strip('"')
        return {kind: mode for kind, mode in found.items() if kind in kinds}

    daemon.wait(lambda: shown() == kinds, what=str(shown()))
