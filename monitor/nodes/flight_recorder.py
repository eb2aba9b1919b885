"""Reads the dumps of PyTorch's flight recorder, one per rank: which rank is behind, in which collective, where. Pure.

Format: torch/csrc/distributed/c10d/FlightRecorder.hpp, versions 2.0 to 2.10, as pickle or JSON: `pg_config` (group ->
name, desc, ranks), `pg_status` (group -> last enqueued, started, completed collective) and `entries` (the last
collectives: process_group, collective_seq_id, profiling_name, state, frames). A rank waits in its first operation that
is not completed; operations enqueued later wait for that one. Point-to-point operations count only as waiting, because
their numbers belong to a pair of ranks. A file that is not a dump raises NoDumpError. Unexpected values are ignored:
only text and integers become text, because lists that refer to each other may be 251 bytes long and endless as text.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from megatron_monitor.nodes.collectives import Missing, Report, missing
from megatron_monitor.nodes.plain_pickle import NotPlainError, read_plain

LARGEST = 128 * 2**20  # bytes: 20,000 entries with deep stacks take some 60 MB
_RANKS = 100_000  # of a group
_ALL_RANKS = 20_000_000  # elements or characters of all groups' ranks: each of 100,000 ranks is in some 20 groups
_FRAMES = 8
_TEXT = 200  # characters of a name
_LARGEST_NUMBER = 2**63 - 1
_LARGEST_RANK = 10_000_000
_RANK = re.compile(r"(?:rank_?|_)(\d{1,7})(?:\.(?:json|pickle|pkl))?$")
_COMPLETED = "completed"
_PAIRS = "point-to-point"  # the group of all these operations


class NoDumpError(ValueError):
    """The file is not a flight recorder dump, for the reason in the message."""


@dataclass(slots=True)
class Dump:
    """One rank's dump."""

    rank: int
    reports: list[Report] = field(default_factory=list)
    """The rank's state in each group; `work` is set only in the group in which it waits."""
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Group -> its ranks."""
    stacks: dict[str, list[str]] = field(default_factory=dict)
    """Group -> stack of the call of the first uncompleted collective, otherwise the last; innermost frame first."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of all dumps."""

    dumps: int
    missing: Missing | None
    stacks: Mapping[int, list[str]]
    """Missing rank -> stack of its last call of a collective in that group, if recorded."""


def rank_of(name: str) -> int | None:
    """Return the rank in a file name such as nccl_trace_rank_37, comm_lib_trace_rank_37, _dump_37, trace_37.json."""
    match = _RANK.search(name)
    return int(match[1]) if match else None


def read_dump(data: bytes, rank: int) -> Dump:
    """Return the dump of a file's bytes. Raises NoDumpError."""
    value = _plain(data)
    if not isinstance(value, dict) or not isinstance(value.get("entries"), list | tuple):
        raise NoDumpError("it has no `entries`, so it is not a flight recorder dump")
    dump = Dump(rank)
    left = _ALL_RANKS
    for config in _mappings(value.get("pg_config")):
        name, members = _text(config.get("name")), config.get("ranks")
        left -= len(members) + 1 if isinstance(members, str | list | tuple) else 1
        ranks = _ranks(members) if left > 0 else ()
        if name and ranks:
            dump.groups[name] = ranks
    reports = _from_entries(dump, value["entries"])
    groups = _groups_by_id(value)
    for key, status in _items(value.get("pg_status")):
        group = groups.get(key)
        if group is not None:
            report = reports.setdefault(group, Report(rank, group))
            report.enqueued = _larger(report.enqueued, status.get("last_enqueued_collective"))
            if report.completed is None:
                report.completed = _larger(None, status.get("last_completed_collective"))
    for config in _mappings(value.get("pg_config")):
        known = reports.get(_text(config.get("name")))
        if known is not None and not known.name:
            known.name = _text(config.get("desc"))
    dump.reports = list(reports.values())
    return dump


def diagnose(dumps: Iterable[Dump]) -> Diagnosis:
    """Return the missing ranks and their stacks."""
    known: dict[int, Dump] = {}
    members: dict[str, tuple[int, ...]] = {}
    for dump in dumps:
        known[dump.rank] = dump
        for name, ranks in dump.groups.items():
            members.setdefault(name, ranks)
        dump.groups = {}  # 16,384 dumps with 16,384 ranks each would need gigabytes
    reports = [report for dump in known.values() for report in dump.reports]
    everybody = set[int]().union(*members.values())
    found = missing(reports, len(everybody) or None, members)
    if found is None:
        return Diagnosis(len(known), None, {})
    key = found.group_key
    stacks = {rank: stack for rank in found.ranks if rank in known and (stack := known[rank].stacks.get(key))}
    return Diagnosis(len(known), found, stacks)


def _plain(data: bytes) -> Any:
    if len(data) > LARGEST:
        raise NoDumpError(f"it has {len(data)} bytes; at most {LARGEST} are read")
    if data[:1] == b"\x80":
        try:
            return read_plain(data)
        except NotPlainError as error:
            raise NoDumpError(str(error)) from error
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NoDumpError("it is neither JSON nor a pickle of plain values") from error


def _from_entries(dump: Dump, entries: Iterable[Any]) -> dict[str, Report]:
    """Return group -> state of the rank, from the entries, which are in chronological order."""
    reports: dict[str, Report] = {}
    pending: dict[str, int] = {}
    waits = False
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        place, number = entry.get("process_group"), _number(entry.get("collective_seq_id"))
        done = entry.get("state") == _COMPLETED
        if not isinstance(place, list | tuple) or not place or number is None:
            continue
        if entry.get("is_p2p"):
            if not (done or waits):
                waits = True
                reports[_PAIRS] = Report(dump.rank, _PAIRS, work=0)
            continue
        group = _text(place[0])
        report = reports.setdefault(group, Report(dump.rank, group, _text(place[1]) if len(place) > 1 else ""))
        report.enqueued = _larger(report.enqueued, number)
        if done:
            report.completed = _larger(report.completed, number)
        elif number < pending.get(group, number + 1):
            pending[group] = number
            if not waits:
                waits, report.work, report.operation = True, number, _text(entry.get("profiling_name"))
        if pending.get(group, number) == number:
            dump.stacks[group] = _frames(entry.get("frames"))
    for group, first in pending.items():
        reports[group].completed = first - 1  # a later one that ended on another CUDA stream does not count
    return reports


def _groups_by_id(value: dict[str, Any]) -> dict[str, str]:
    """Return number -> name of the groups: `pg_status` uses numbers local to the process.

    The order of creation gives the numbers if it agrees with the entries; otherwise the entries do.
    """
    members = {
        _text(entry.get("pg_id")): _text(entry["process_group"][0])
        for entry in value["entries"]
        if isinstance(entry, dict) and isinstance(entry.get("process_group"), list | tuple) and entry["process_group"]
    }
    names = [_text(config.get("name")) for config in _mappings(value.get("pg_config"))]
    if all(name.isdecimal() for name in names):
        ordered = {str(place): name for place, name in enumerate(sorted(names, key=int))}
        if all(ordered.get(key) == name for key, name in members.items()):
            return ordered
    return members


def _larger(known: int | None, new: Any) -> int | None:
    number = _number(new)
    return known if number is None or (known is not None and known > number) else number


def _frames(frames: Any) -> list[str]:
    """`name (file:line)`, innermost first."""
    return [
        f"{_text(frame.get('name'))} ({_text(frame.get('filename'))}:{_text(frame.get('line'))})"[:300]
        for frame in (frames[:_FRAMES] if isinstance(frames, list | tuple) else ())
        if isinstance(frame, dict)
    ]


def _number(value: Any) -> int | None:
    known = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST_NUMBER
    return value if known else None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value[:_TEXT]
    number = _number(value)
    return "" if number is None else str(number)


def _ranks(value: Any) -> tuple[int, ...]:
    """`[0, 1, 2]`, as a list or as text."""
    if isinstance(value, str):
        value = [int(number) for number in re.findall(r"[0-9]{1,7}", value[: 9 * _RANKS])]
    if not isinstance(value, list | tuple):
        return ()
    return tuple(rank for rank in value[:_RANKS] if _number(rank) is not None and 0 <= rank < _LARGEST_RANK)


def _items(value: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(_text(k), v) for k, v in value.items() if isinstance(v, dict)] if isinstance(value, dict) else []


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [one for _, one in _items(value)]
