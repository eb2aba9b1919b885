"""C: network file systems, by faults injected at the follower's system calls.

Proved: what the follower does with these answers. Not proved: that a real client gives exactly these, in this order.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.e2e.scenarios.harness import Daemon, Lab, slack
from tests.e2e.scenarios.registry import scenario

ERRORS = ("ESTALE", "EIO", "ETIMEDOUT", "EHOSTDOWN", "EACCES", "ENOENT")


def network(lab: Lab, *patterns: str, kind: str = "nfs4", **control: object) -> Daemon:
    """A daemon for which the scenario's directory is a network mount."""
    return lab.start(*(patterns or (str(lab.path()),)), mounts={str(lab.directory): kind}, **control)


@scenario(47, own=True)
def polled_by_itself(lab: Lab) -> None:
    lab.write(lab.units(2))
    daemon = network(lab, kind="lustre")
    lab.expect(run="run=", daemon=daemon, hold=0)
    for _ in range(5):
        lab.write(lab.units(1))
        lab.expect(run="run=", daemon=daemon, hold=0, timeout=5)
    mount = f'mount="{lab.directory}"'
    assert daemon.value("megatron_monitor_mount_info", mount, 'mode="poll"', 'file_system="lustre"') == 1
    assert daemon.value("megatron_monitor_mount_info", mount, 'mode="inotify"') == 0


@scenario(48, own=True)
def size_lags(lab: Lab) -> None:
    lab.write(lab.units(5))
    daemon = network(lab)
    lab.expect(run="run=", daemon=daemon)
    lab.fault(daemon, call=["stat", "fstat"], path="x.log", size=100)
    lab.write(lab.units(2))
    time.sleep(3.0)
    lab.heal(daemon)
    lab.expect(run="run=", daemon=daemon)
    assert daemon.value("megatron_monitor_truncations_total") == 0


@scenario(49, own=True)
def size_ahead(lab: Lab) -> None:
    lab.write(lab.units(5))
    daemon = network(lab)
    lab.expect(run="run=", daemon=daemon)
    lab.fault(daemon, call=["stat", "fstat"], path="x.log", plus=100_000)
    lab.write(lab.units(2))
    time.sleep(2.0)
    lab.heal(daemon)
    lab.write(lab.units(2))
    lab.expect(run="run=", daemon=daemon)
    assert daemon.value("megatron_monitor_truncations_total") == 0


@scenario(50, own=True)
def stale(lab: Lab) -> None:
    lab.write(lab.units(5))
    daemon = network(lab, f"{lab.directory}/*.log")
    lab.expect(run="run=", daemon=daemon)
    for calls in (["pread"], ["stat"], ["scandir"], ["stat", "fstat", "open", "pread", "scandir"]):
        lab.fault(daemon, call=calls, path=str(lab.directory), error="ESTALE")
        lab.write(lab.units(1))
        began, spent = time.monotonic(), daemon.cpu()  # noqa: TID251
        time.sleep(3.0)
        share = (daemon.cpu() - spent) / (time.monotonic() - began)  # noqa: TID251
        assert share < 0.15, f"{calls}: {share:.0%} of a core"
        lab.heal(daemon)
        lab.expect(run="run=", daemon=daemon, timeout=60)
    assert daemon.value("megatron_monitor_io_errors_total", 'errno="ESTALE"') > 0


@scenario(51, own=True)
def mount_fails_and_comes_back(lab: Lab) -> None:
    lab.write(lab.units(5))
    daemon = network(lab, f"{lab.directory}/*.log")
    lab.expect(run="run=", daemon=daemon)
    for error in ERRORS:
        lab.fault(daemon, call=["stat", "fstat", "open", "pread", "scandir"], path=str(lab.directory), error=error)
        lab.write(lab.units(1))
        time.sleep(1.5)
        assert daemon.value("megatron_iteration") >= 5, f"{error}: the series went"
        lab.heal(daemon)
        lab.expect(run="run=", daemon=daemon, timeout=60)
        lab.write(lab.units(1))
    lab.expect(run="run=", daemon=daemon)
    assert daemon.value("megatron_monitor_rotations_total") == 0
    assert daemon.value("megatron_monitor_truncations_total") == 0


@scenario(52, own=True)
def hanging_call(lab: Lab) -> None:
    other = lab.directory / "other"
    other.mkdir()
    healthy, hung = lab.path(), other / "y.log"
    lab.write(lab.units(2))
    hung.write_bytes(b"nothing\n")
    for call in (["stat"], ["open"], ["pread"], ["scandir"]):
        daemon = lab.start(
            str(healthy), f"{other}/*.log", mounts={str(other): "nfs4"},
            faults=[{"call": call, "path": str(other), "hang": True, "by": "start"}],
        )  # fmt: skip
        before = lab.next - 1
        daemon.wait(lambda daemon=daemon, before=before: daemon.value("megatron_iterations_total") == before)
        lab.write(lab.units(2))
        mount = f'mount="{other}"'
        daemon.wait(lambda daemon=daemon, mount=mount: daemon.value("megatron_monitor_mount_busy_seconds", mount) > 1.5)
        lab.expect(run="run=", daemon=daemon, timeout=5)
        began = time.monotonic()  # noqa: TID251
        assert daemon.status("/-/healthy") == 200
        assert daemon.status("/metrics") == 200
        assert time.monotonic() - began < slack(2.0)  # noqa: TID251
        assert daemon.terminate(timeout=5.0) == 0


@scenario(53, own=True)
def device_changes(lab: Lab) -> None:
    lab.write(lab.units(10))
    daemon = network(lab, f"{lab.directory}/*.log")
    lab.expect(run="run=", daemon=daemon)
    lab.fault(daemon, call=["stat", "fstat"], path=str(lab.directory), device=7)
    lab.write(lab.units(2))
    lab.expect(run="run=", daemon=daemon, hold=2.0)


@scenario(54, own=True)
def scandir_lies(lab: Lab) -> None:
    lab.write(lab.units(3))
    lab.path("z.log").write_bytes(b"noise\n")
    daemon = network(lab, f"{lab.directory}/*.log")
    lab.expect(run="run=", daemon=daemon)
    lab.fault(daemon, call=["scandir"], path=str(lab.directory), repeat=True)
    lab.write(lab.units(2))
    lab.expect(run="run=", daemon=daemon, hold=1.5)
    lab.heal(daemon)
    lab.fault(daemon, call=["scandir"], path=str(lab.directory), hide="x.log")
    lab.write(lab.units(2))
    lab.expect(run="run=", daemon=daemon, hold=1.5)


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
    daemon = lab.start(f"{lab.directory}/*/x.log", mounts=mounts)
    lab.expect(run="run=", daemon=daemon)

    def shown() -> dict[str, str]:
        found = {}
        for labels in daemon.samples("megatron_monitor_mount_info"):
            parts = dict(part.split("=", 1) for part in labels.split(","))
            found[Path(parts["mount"].strip('"')).name.removeprefix("on-")] = parts["mode"].strip('"')
        return {kind: mode for kind, mode in found.items() if kind in kinds}

    daemon.wait(lambda: shown() == kinds, what=str(shown()))
