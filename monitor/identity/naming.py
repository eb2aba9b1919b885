"""Returns the name of a run from its log's path and the configuration. Pure.

The name depends only on the path and the configuration, not on the order in which files are found or on other files. A
name is valid UTF-8 without control characters, at most 200 characters.
"""

import functools
import itertools
import posixpath
import re
import unicodedata
from collections.abc import Sequence
from typing import Final, NamedTuple

from megatron_monitor.config import Watch
from megatron_monitor.follow.patterns import PathPattern, has_magic
from megatron_monitor.owners import owner_at
from megatron_monitor.parsers.redaction import masked_path
from megatron_monitor.pushed import hashed, run_at
from megatron_monitor.scalars import found_group

MAX_NAME: Final = 200

# 2340723.out  main_log.txt  train.log.1  train.log-20261121.gz
_SUFFIX = re.compile(r"\.(?:out|err|log|txt)(?:[.-]\d{1,10})?(?:\.(?:gz|bz2|xz|zst))?$", re.IGNORECASE)
# train_stdout  77.stderr  stdout_77: the two files of a launcher
_STREAM = re.compile(r"(?<=.)[._-]std(?:out|err)$|^std(?:out|err)[._-](?=.)", re.IGNORECASE)
# stderr  77_err  error_77  train.e54745 -> the name of the other file of the pair
_PAIRED = (
    (re.compile(r"^stderr$", re.IGNORECASE), "stdout"),
    (re.compile(r"(?:(?<=^)|(?<=[_-]))err$", re.IGNORECASE), "out"),
    (re.compile(r"^err(?=[_-]\d+$)", re.IGNORECASE), "out"),
    (re.compile(r"^error(?=[_-]\d+$)", re.IGNORECASE), "output"),
    (re.compile(r"\.e(?=\d+$)"), ".o"),
)
# Names that launchers give to the file of each process, in a folder of the job: DIR/ID_k3x9a_1z/attempt_0/7/stdout.log
# (torchrun --log-dir: eight characters of Python's tempfile), DIR/1/rank.07/stdout (mpirun --output-filename),
# DIR/20260401120000_rank7.log (deepspeed --enable_each_rank_log), DIR/workerlog.7 (paddle.distributed.launch --log_dir)
_OF_A_PROCESS = re.compile(
    r"(?:(?<!/none)_[a-z0-9_]{8})?/(?P<attempt>attempt_\d{1,4})/\d{1,5}/std(?:out|err)\.log$|(?<=\d)/rank\.\d{1,5}/std(?:out|err)$"
    r"|(?<=/\d{14})_rank\d{1,5}\.log$|(?<=/workerlog)\.\d{1,5}$"
)
# main_log.1  main_log-20261121.gz: only if the file without the suffix is configured
_ROTATED = re.compile(r"(?:[.-]\d{1,10})?(?:\.(?:gz|bz2|xz|zst))?$")
_PART = re.compile(r"(?<=\.(?:out|err|log|txt))[.-]\d{1,10}$", re.IGNORECASE)
_STREAM_NAME = re.compile(r"std|err|\.e", re.IGNORECASE)
"""A name without a match is neither stdout nor stderr and has no pair."""


class RunName(NamedTuple):
    """The run of a path, the reason, and the pattern that found the path."""

    name: str
    why: str
    pattern: str


class PatternMatch(NamedTuple):
    """The entry of the configuration that found a path."""

    watch: Watch | None
    pattern: str
    """The path itself if no pattern is known."""
    below: str | None
    """The path below the pattern's fixed part. Empty for the file itself. None: it is not below."""


def named(path: str, watches: Sequence[Watch] = ()) -> RunName:
    """Return the run of the log at `path` by the configuration.

    `name:` has priority, then the group `run` of `name_from:`, then for a pod's log `NAMESPACE/OWNER`
    (monitor/owners.py), then the path from the fixed part of the pattern on, without a log's suffix and without the
    word that distinguishes a job's two streams: `2340723.out` and `2340723.err` are one run, as are `train_stdout.log`
    and `train_stderr.log`, `stdout.log` and `stderr.log` of one directory, `job.o77` and `job.e77`. The names that
    launchers give to a process's file are removed as well. A file without a wildcard in the configuration gives its
    stem. If two patterns gave the same names in different directories, the names begin with as many directories as
    distinguish them.
    """
    path = posixpath.normpath(path)
    led = watch_of(path, watches)
    watch, owner = led.watch, owner_at(path)
    if watch is not None and watch.name is not None:
        name, why = watch.name, "name"
    elif watch is not None and watch.labels:
        name, why = run_at(path), "labels"
    elif watch is not None and watch.name_from and (found := found_group(watch.name_from, path, "run")):
        name, why = found, "name_from"
    elif owner is not None and owner.name:
        name, why = owner.name, owner.why
    else:
        name, why = _default(path, led, tuple([other.paths for other in watches if not other.name])), "path"
    return RunName(_clean(name), why, masked_path(led.pattern))


def watch_of(path: str, watches: Sequence[Watch]) -> PatternMatch:
    """Return the watch that found `path`, a path without `.` and `..`, and its pattern: the first match that names its
    runs, else the one with this exact path, else the first match. Without a match, the path itself.
    """
    patterns = [(watch, known) for watch in watches for known in _normal(watch.paths)]
    fit = [PatternMatch(watch, known, below) for watch, known in patterns if (below := _below(path, known)) is not None]
    calls = (
        led for led in fit if led.watch is not None and (led.watch.name or led.watch.name_from or led.watch.labels)
    )
    named = (led for led in fit if led.pattern == path)
    return next(calls, None) or next(named, None) or next(iter(fit), PatternMatch(None, path, _below(path, path)))


def is_of_a_process(path: str) -> bool:
    """Return True if a launcher named the file for one of its processes."""
    return _OF_A_PROCESS.search(path) is not None


def are_of_one_attempt(path: str, other: str) -> bool:
    """Return True if two files are of processes of one attempt, by the names from their launcher."""
    one, two = _OF_A_PROCESS.search(path), _OF_A_PROCESS.search(other)
    return one is not None and two is not None and one["attempt"] == two["attempt"] and _of_job(path) == _of_job(other)


def are_parts_of_one_log(path: str, other: str) -> bool:
    """Return True if one log was rotated into these two files, by their names: train.log.1 and train.log."""
    return _PART.sub("", path) == _PART.sub("", other)


def stem_of(path: str) -> str:
    """Return the file's name without what distinguishes the two files of a job."""
    return _stem(posixpath.basename(path))


@functools.lru_cache(maxsize=256)  # called for each event near a set-up
def experiment_name(log: str, label: str) -> str:
    """Return the name of one of several experiments in the log of the run `log`. The first one, without a label, has
    the log's name.
    """
    return _clean(f"{log}:{label}") if label else log


@functools.lru_cache(maxsize=256)
def _normal(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(posixpath.normpath(pattern) for pattern in paths)


def _default(path: str, led: PatternMatch, patterns: tuple[tuple[str, ...], ...]) -> str:
    pattern, below, job = led.pattern, led.below, _of_job(path)
    if below is None:  # not below the pattern, such as a link's target
        return _stem(posixpath.basename(job))
    stem = _stem(job[len(path) - len(below) :] or posixpath.basename(job if below else _of_job(pattern)))
    return "/".join([*_before(pattern, "" if below else stem, patterns), stem]).lstrip("/")


@functools.lru_cache(maxsize=256)
def _before(pattern: str, stem: str, patterns: tuple[tuple[str, ...], ...]) -> list[str]:
    """Return the directories before the names of files from this pattern, or before the file itself, which has this
    stem.
    """
    known_names = {known for paths in patterns for known in _normal(paths)}
    fixed, rest = _split(pattern)
    if stem:
        files = [_of_job(rival) for rival in known_names if _split(rival)[1] is None]
        same = {posixpath.dirname(file) for file in files if _stem(posixpath.basename(file)) == stem}
        return _distinguishing(posixpath.dirname(_of_job(pattern)), same)
    if rest is not None:
        return _distinguishing(fixed, {_split(rival)[0] for rival in known_names if _split(rival)[1] == rest})
    named = {rival for rival in known_names if _split(rival)[1] is None and not _SUFFIX.search(rival)}
    return _distinguishing(pattern, named)  # in a configured directory


def _below(path: str, pattern: str) -> str | None:
    """Return the part of `path` below the fixed part of `pattern`. Empty for the file itself. None: they do
    not match.
    """
    fixed, rest = _split(pattern)
    if rest is None and path.startswith(pattern) and _ROTATED.fullmatch(path, len(pattern)):
        return ""
    if rest is not None and not _tree(pattern).matches(f"/{path.lstrip('/')}"):
        return None
    base = fixed if fixed.endswith("/") or not fixed else f"{fixed}/"
    return path[len(base) :] or None if path.startswith(base) else None


@functools.lru_cache(maxsize=256)
def _split(pattern: str) -> tuple[str, str | None]:
    """Return `/logs` and `*/x.out` for `/logs/*/x.out`. Without a wildcard the rest is None."""
    parts = pattern.split("/")
    fixed = list(itertools.takewhile(lambda part: not has_magic(part), parts))
    if fixed == parts:
        return pattern, None
    return "/".join(fixed) or ("/" if fixed else ""), "/".join(parts[len(fixed) :])


def _stem(name: str) -> str:
    """Return the name without a log's suffixes and without the word for one of a job's two streams. A file that
    consists of a suffix keeps it.
    """
    folder, slash, base = name.rpartition("/")
    for _ in range(min(2, base.count("."))):  # train.log.err
        base = _SUFFIX.sub("", base) or base
    if _STREAM_NAME.search(base):
        base = _STREAM.sub("", base)
        for pattern, other in _PAIRED:
            base = pattern.sub(other, base)
    return folder + slash + base


def _of_job(path: str) -> str:
    """Return the path without the part that distinguishes the processes of a job: all of them are one run."""
    return _OF_A_PROCESS.sub("", path)


def _distinguishing(directory: str, directories: set[str]) -> list[str]:
    """Return as many last parts of `directory` as no other of `directories` ends with. Empty if it is alone."""
    others = [other.split("/") for other in directories - {directory}]
    parts = directory.split("/")
    count = 0
    while count < len(parts) and any(other[len(other) - count :] == parts[len(parts) - count :] for other in others):
        count += 1
    return parts[len(parts) - count :]


@functools.lru_cache(maxsize=256)
def _tree(pattern: str) -> PathPattern:
    """Return a pattern for all files that the pattern finds, and those below a directory that it finds."""
    return PathPattern(tuple(part for part in pattern.split("/") if part)).tree()


def _clean(name: str) -> str:
    """Return the name printable, encodable and bounded. A shortened name ends with a digest, so that names stay
    different.
    """
    name = masked_path(name)
    replaced = name
    if not name.isprintable():
        replaced = "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") else c for c in name)
    if len(replaced) <= MAX_NAME:
        return replaced or "/"  # only the root directory has no name, and it is not a log
    return f"{replaced[: MAX_NAME - 9]}~{hashed(replaced)}"
