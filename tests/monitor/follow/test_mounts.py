"""The mount table: which type a path is on, and which reader has which part of a pattern."""

import os

import pytest

from megatron_monitor.follow.discovery import mount_that_finds, plan
from megatron_monitor.follow.mounts import Mount, Mounts, parse_mountinfo, read_mounts
from megatron_monitor.follow.patterns import WatchedPath

TABLE = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:25 / /scratch rw - lustre mds:/scratch rw
31 22 0:26 / /home rw master:3 - autofs auto.home rw
32 31 0:27 / /home/me rw - nfs4 server:/home/me rw,vers=4.2
33 22 0:28 / /mnt/a\040b rw - fuse.sshfs host:/ rw
34 30 0:29 / /scratch/local rw - xfs /dev/nvme0n1 rw
35 22 0:30 / /proc rw - proc proc rw
36 22 0:31 / /twice rw - ext4 /dev/sdb rw
37 36 0:32 / /twice rw - nfs server:/twice rw
a line of another kernel
"""


@pytest.mark.parametrize(
    ("path", "file_system", "local"),
    [
        ("/var/log/x", "ext4", True),
        ("/scratch/run/log", "lustre", False),
        ("/scratchy/log", "ext4", True),
        ("/scratch/local/log", "xfs", True),
        ("/home/you/log", "autofs", False),
        ("/home/me/log", "nfs4", False),
        ("/mnt/a b/log", "fuse.sshfs", False),
        ("/twice/log", "nfs", False),
    ],
)
def test_longest_prefix_decides(path, file_system, local):
    """The deepest and latest mount holds the path; only types known to be local wake."""
    mount = parse_mountinfo(TABLE).of(path)
    assert (mount.file_system, mount.local) == (file_system, local)


def test_device_decides_for_a_file_that_a_link_leads_to():
    """A file's own device number says whether it is local; an unknown one is as its path."""
    mounts = parse_mountinfo(TABLE)
    default = Mount("/", "gpfs")
    assert mounts.is_local(os.makedev(0, 29), default)
    assert not mounts.is_local(os.makedev(0, 25), default)
    assert not mounts.is_local(os.makedev(9, 9), default)


def test_without_a_table_everything_is_polled():
    """No /proc means unknown, and unknown means poll."""
    assert not Mounts([]).of("/logs").local
    assert read_mounts().of("/").file_system


def jobs_by_mount(*patterns, resolve=lambda path: path):
    """The roots that each mount's reader walks."""
    found = plan([WatchedPath(pattern) for pattern in patterns], parse_mountinfo(TABLE), resolve)
    return {mount.point: [job.root for job in jobs] for mount, jobs in found.items()}


def test_each_mount_has_its_part_of_a_pattern():
    """A pattern is walked from its fixed directory and from each mount point below that it can reach."""
    assert jobs_by_mount("/scratch/**/*.log") == {"/scratch": ["/scratch"], "/scratch/local": ["/scratch/local"]}
    assert jobs_by_mount("/scratch/*/*/x.log") == {"/scratch": ["/scratch"], "/scratch/local": ["/scratch/local"]}
    assert jobs_by_mount("/scratch/run*/x.log") == {"/scratch": ["/scratch"]}
    assert jobs_by_mount("/scratch/run/x.log") == {"/scratch": ["/scratch/run/x.log"]}
    assert jobs_by_mount("/home/*/x.log") == {"/home": ["/home"], "/home/me": ["/home/me"]}
    assert "/proc" not in jobs_by_mount("/**/*.log")


def test_directory_given_reaches_the_mounts_below():
    """A directory's tree is split at mount points as a pattern's is."""
    assert jobs_by_mount("/scratch") == {"/scratch": ["/scratch"], "/scratch/local": ["/scratch/local"]}


def test_link_to_another_mount():
    """The mount of a link's target reads it, under the name that was given."""
    found = jobs_by_mount("/data/**", resolve=lambda path: path.replace("/data", "/scratch/local"))
    assert found == {"/scratch/local": ["/data"]}


def test_owner_of_a_path_that_is_not_there():
    """A position is resumed by the reader whose walk would find its path."""
    jobs = plan(
        [WatchedPath("/scratch/**/*.log", ("no*",)), WatchedPath("/var/log")], parse_mountinfo(TABLE), lambda path: path
    )
    points = {
        path: getattr(mount_that_finds(jobs, path), "point", None)
        for path in ("/scratch/a.log", "/scratch/local/b/a.log", "/scratch/no.log", "/scratch/a.txt", "/var/log/a/b")
    }
    assert list(points.values()) == ["/scratch", "/scratch/local", None, None, "/"]
