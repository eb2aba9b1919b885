r"""Removes what log collectors put around each line: kubectl, docker, journald, syslog, Vector, Fluent Bit, Loki's
logcli, stern.

Text before the line is a prefix like others (engine/prefixes.py). A JSON object that contains the line is replaced by
the line after a text prefix with the same content, so that all other code reads only text. A line without such an
object stays as it is.

Container runtimes cut lines above 16 KiB. Docker ends only the last part with `\n`. containerd and CRI-O tag all parts
but the last with `P`. Parts are joined for each stream separately.
"""

import re
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from megatron_monitor.parsers.patterns import lazy
from megatron_monitor.parsers.redaction import masked

_ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[-+]\d\d:?\d\d)"
_NAME = r"[\w.-]{1,253}"
MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

# One alternative per form, for re.VERBOSE. The last word of a group's name is the field. A pod's name is its owner's
# name and a number, or five characters without vowels (Kubernetes' SafeEncodeString).
TEXT_FORMS: Final = rf"""
    # `[pod/train-worker-0/pytorch] ` kubectl logs --prefix
    \[pod/(?P<pod>{_NAME})/[\w.-]{{1,63}}\](?:[ ]|$)
    # `trainer-1  | ` docker compose
    | (?P<compose_pod>[a-z0-9][\w.-]{{0,100}}[-_]\d{{1,4}})[ ]{{1,40}}\|(?:[ ]|$)
    # `<14>1 2026-05-01T12:00:00.123Z node01 train 4711 - - ` syslog, RFC 5424
    | <\d{{1,3}}>\d[ ](?:(?P<syslog_time>{_ISO})|-)[ ](?:-|(?P<syslog_host>{_NAME}))[ ](?:[!-~]{{1,128}}[ ]){{3}}
      (?:-|(?:\[[^\]"]{{0,200}}(?:"[^"]{{0,500}}"[^\]"]{{0,200}}){{0,32}}\]){{1,8}})(?:[ ](?:\ufeff)?|$)
    # `May  1 12:00:00 node01 train.sh[4711]: ` journalctl, syslog of RFC 3164
    | (?:<\d{{1,3}}>)?(?P<bsd_time>(?:{"|".join(MONTHS)})[ ][ \d]\d[ ]\d\d:\d\d:\d\d(?:\.\d{{1,6}})?)[ ]
      (?P<bsd_host>{_NAME})[ ][^\s:\[\]]{{1,128}}(?:\[\d{{1,10}}\])?:(?:[ ]|$)
    # `2026-05-01T12:00:00+0000 node01 train.sh[4711]: ` journalctl -o short-iso
    | (?P<journal_time>{_ISO})[ ](?P<journal_host>{_NAME})[ ](?:[^\s:\[\]]{{1,128}}\[\d{{1,10}}\]|kernel):(?:[ ]|$)
    # `2026-05-01T12:00:00Z {{namespace="ml", pod="train-worker-0"}} ` logcli
    | (?P<loki_time>{_ISO})[ ](?:(?=\{{[^{{}}]{{0,2000}}\bpod="(?P<loki_pod>{_NAME})")|)
      \{{(?:[A-Za-z_]\w{{0,80}}="[^"]{{0,500}}"(?:,[ ]?|(?=\}}))){{0,64}}\}}(?:[ ]|$)
    # `train-worker-0 pytorch ` stern
    | (?!(?:epoch|iter|iteration|step|stage|rank|phase|zero|batch)-\d)
      (?P<stern_pod>[a-z0-9][a-z0-9.-]{{0,240}}-(?:\d{{1,5}}|[b-df-hj-np-tv-z\d]{{5}}))[ ][a-z][a-z0-9-]{{0,62}}[ ]
"""
_BARE = lazy(rf"{TEXT_FORMS}|(?:{_ISO})[ ]", re.VERBOSE)

# The key of the line -> keys, one of which the object must have: programs print JSON of their own
_REQUIRED_KEYS: Final = {
    "log": frozenset({"stream", "time", "date", "timestamp", "@timestamp", "kubernetes", "_p", "logtag"}),
    "message": frozenset({"source_type", "stream", "kubernetes", "podName", "pod", "agent"}),
    "MESSAGE": frozenset({"__REALTIME_TIMESTAMP", "__CURSOR"}),
    "line": frozenset({"labels"}),
}
# `2026-05-01T12:00:00.1Z stdout P ` from containerd and CRI-O, after a shipper's prefix if one pushed it
_CRI = re.compile(
    rf"(?:\[pod/{_NAME}/[\w.-]{{1,63}}\] |<14>1 \S+ {_NAME} log - - - |{_ISO} ){{0,6}}"
    rf"{_ISO} (?P<stream>std(?:out|err)) (?P<tag>[PF])(?::\S*)? ".encode()
)
_PARTIAL: Final = (b"stdout P ", b"stderr P ")  # in a line that a runtime has cut
_DOCKER = frozenset({"log", "stream", "time", "attrs"})
_PART_LENGTH = 16_000  # characters: docker cuts at 16,384 bytes
_TIME_FIELDS = ("time", "timestamp", "@timestamp", "date", "__REALTIME_TIMESTAMP")
_PODS = ("pod_name", "podName", "pod")
_CONTAINERS = ("container_name", "containerName", "container")
_NODES = ("pod_node_name", "node_name", "nodeName", "host", "hostname", "_HOSTNAME")
_MAX_NESTING = 3  # nested wrappers: Vector reads docker's files


def bare(text: str) -> str:
    """Return the line as its program wrote it."""
    for _ in range(_MAX_NESTING):
        match = _BARE.match(text)
        if match is None:
            break
        text = text[match.end() :]
    return text


def may_carry(line: bytes) -> bool:
    """Return True if the line may carry another one or a part of one. Digits do not decide that."""
    return line.startswith(b'{"') or any(mark in line for mark in _PARTIAL)


class Unwrapper(Struct, omit_defaults=True):
    """Removes JSON wrappers from the lines of one stream and joins lines that runtimes have cut. It holds plain JSON
    values, so that a resume can continue it.
    """

    parts: dict[str, str] = field(default_factory=dict)
    """The parts of a cut line so far, by stream."""
    partial: list[Any] | None = None
    """If the last line is a part in CRI's form: its number, its stream and the text before the part."""
    ends: bool | None = None
    """True if complete lines of this stream end in a line end: some writers of docker's form omit it. None: unknown."""

    def read(self, line: bytes, longest: int, number: int = 0) -> list[bytes] | None:
        """Return the lines of a record: none while parts are collected, None if it is neither a wrapper nor a part.
        Joined lines are cut at `longest` characters. `number` is the number of the physical line.
        """
        prefix, pieces, found = "", list[str](), _fields(line) if line.startswith(b'{"') else None
        if found is None:
            return self._of_runtime(line, longest, number)
        for _ in range(_MAX_NESTING):
            fields, text = found
            whole = self._whole(fields, text, longest)
            pieces = [piece for text in whole for piece in re.split(r"\r?\n|\r", text.rstrip("\r\n"))]
            prefix += _prefix(fields)
            found = _fields(pieces[0].encode("utf-8", "replace")) if pieces and pieces[0].startswith('{"') else None
            if found is None:
                break
        return [(prefix + piece).encode("utf-8", "replace") for piece in pieces]

    def _of_runtime(self, line: bytes, longest: int, number: int) -> list[bytes] | None:
        """Join parts in CRI's form. Return None for a line that is complete by itself. A joined line has the time of
        its last part. Text after a bare line end in a part continues with the part.
        """
        match, text = _CRI.match(line), line.decode("utf-8", "replace")
        if match is None:
            if self.partial is None or self.partial[0] != number:
                return None
            _, stream, head = self.partial
            before, self.parts[stream] = self.parts.get(stream, ""), text
            return [f"{head}{before}".encode("utf-8", "replace")]
        head, part = match[0].decode("utf-8", "replace"), match["tag"] == b"P"
        stream = match["stream"].decode()
        self.partial = [number, stream, head] if part else None
        if not (part or stream in self.parts):
            return None
        whole = self._whole({"stream": stream, "logtag": "P" if part else "F"}, text[len(head) :], longest)
        return [(head + text).encode("utf-8", "replace") for text in whole]

    def rest(self) -> list[bytes]:
        """Return the collected parts as complete lines: the stream has ended."""
        rest = [text.encode("utf-8", "replace") for text in self.parts.values()]
        self.parts = {}
        return rest

    def save(self) -> "Unwrapper | None":
        """Return what a resume needs, or None."""
        if not self.parts and self.partial is None and self.ends is None:
            return None
        return Unwrapper({name: masked(text) for name, text in self.parts.items()}, self.partial, self.ends)

    def _whole(self, fields: dict[str, Any], text: str, longest: int) -> list[str]:
        """Return the lines that this record completes."""
        stream, part = str(fields.get("stream", "")), fields.get("_p", fields.get("logtag")) == "P"
        lines: list[str] = []
        if fields.keys() <= _DOCKER:
            ended = text.endswith("\n")
            if ended:
                self.ends = True
            elif self.ends is None and len(text) < _PART_LENGTH and stream in self.parts:
                self.ends = False
                lines.append(self.parts.pop(stream))
            part = not ended and (self.ends is not False or len(text) >= _PART_LENGTH)
        text = self.parts.pop(stream, "") + text
        if part and len(text) < longest:
            self.parts[stream] = text
            return lines
        return [*lines, text]


def read_json(data: bytes) -> Any:
    """Return the value of JSON from another program. Some agents and damaged files have bytes in strings that are not
    UTF-8: U+FFFD replaces them. Raises msgspec.MsgspecError, also if the value is nested too deeply.
    """
    try:
        try:
            return msgspec.json.decode(data)
        except UnicodeDecodeError:
            return msgspec.json.decode(data.decode("utf-8", "replace"))
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error


def apart(line: bytes, longest: int, moment: str) -> list[bytes] | None:
    """Return the lines of a record for code that keeps each line separately. A part is marked as one in CRI's form.
    `moment` is the time of lines without one. None if it is not a wrapper.
    """
    found, unwrapper = _fields(line), Unwrapper()
    if found is None:
        return None
    fields, text = found
    tag, stream = fields.get("_p", fields.get("logtag")), fields.get("stream")
    if fields.keys() <= _DOCKER:
        tag = "F" if text.endswith("\n") else "P" if len(text) >= _PART_LENGTH else None
    if tag not in ("P", "F") or stream not in ("stdout", "stderr"):
        return [*(unwrapper.read(line, longest) or ()), *unwrapper.rest()]
    moment = _moment(fields) or moment
    head = f"{_prefix(fields).removesuffix(f'{moment} ')}{moment} {stream}"
    *whole, last = text.rstrip("\r\n").split("\n")
    return [line.encode("utf-8", "replace") for line in (*(f"{head} F {one}" for one in whole), f"{head} {tag} {last}")]


def _fields(line: bytes) -> tuple[dict[str, Any], str] | None:
    """Return (fields of the wrapper, its line)."""
    try:
        fields = read_json(line)
    except msgspec.DecodeError:
        return None
    for name, required in _REQUIRED_KEYS.items():
        if name in fields and (fields.keys() == {"log"} or not required.isdisjoint(fields)):
            text = fields[name]
            if isinstance(text, list):  # journald's form of text that is not printable
                try:
                    text = bytes(text).decode("utf-8", "replace")
                except (TypeError, ValueError):
                    return None
            return (fields, text) if isinstance(text, str) else None
    return None


def _prefix(fields: dict[str, Any]) -> str:
    """Return the wrapper's fields as a text prefix."""
    inner = fields.get("kubernetes", fields.get("labels"))
    known = {**fields, **inner} if isinstance(inner, dict) else fields
    pod, container, node = _named(known, _PODS), _named(known, _CONTAINERS) or "container", _named(known, _NODES)
    prefix = f"[pod/{pod}/{container}] " if pod else ""
    moment = _moment(fields)
    if node is not None:
        return f"{prefix}<14>1 {moment or '-'} {node} log - - - "
    return f"{prefix}{moment} " if moment else prefix


def _moment(fields: dict[str, Any]) -> str | None:
    return _iso(next((fields[name] for name in _TIME_FIELDS if name in fields), None))


def _named(fields: dict[str, Any], names: tuple[str, ...]) -> str | None:
    found = next((fields[name] for name in names if name in fields), None)
    if isinstance(found, dict):  # `"host": {"name": "node01"}`
        found = found.get("name")
    return found if isinstance(found, str) and re.fullmatch(_NAME, found) else None


def _iso(moment: object) -> str | None:
    """Return ISO 8601 with zone for a time, or for a count since 1970 in any unit."""
    if isinstance(moment, str) and re.fullmatch(_ISO, moment):
        return moment
    try:
        count = float(moment)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    if not 0 <= count < 1e20:
        return None
    while count > 1e11:  # milli-, micro-, nanoseconds
        count /= 1000
    return unix_time(count, 6)


def unix_time(seconds: float, digits: int) -> str:
    """Return Unix seconds as ISO 8601 with so many digits of a second, 6 at most."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S.%f}"[: 20 + digits] + "Z"
