"""Templates of what alerts say. Prometheus and vmalert fill them in; both know these functions.

A phone's lock screen shows the summary: which run, what, since when. The description adds where, what it costs, what to
do and the line that shows it. What the daemon said last is read back for a day, so that a daemon's death takes nothing
from a message.
"""

from __future__ import annotations

from deploy.source.selection import SCOPE

_RUN = "{cluster=%q,run=%q}"
_KIND = "{cluster=%q,run=%q,incident=%q}"
_OF_RUN = "$labels.cluster $labels.run"
_OF_KIND = f"{_OF_RUN} $labels.incident"

SEVERITY = "{{ $labels.severity }}"
BOARD = "/d/megatron-run?var-cluster={{ $labels.cluster | urlquery }}&var-run={{ $labels.run | urlquery }}"
"""Below Grafana's address."""


def asked(query: str, arguments: str, show: str, otherwise: str = "") -> str:
    """`show` of the first sample of a query; `otherwise` where there is none."""
    other = f"{{{{ else }}}}{otherwise}" if otherwise else ""
    return f"{{{{ with printf `{query}` {arguments} | query }}}}{show}{other}{{{{ end }}}}"


def value(form: str) -> str:
    """The value of the first sample through a function of the template."""
    return f"{{{{ . | first | value | {form} }}}}"


def clock(before: str, instant: str, arguments: str) -> str:
    """`before` and an instant as `03:12 UTC`; nothing where it is not known. Two queries, for hour and minute."""
    two = value('printf "%02.0f"')
    minute = asked(f"minute({instant})", arguments, f":{two} UTC")
    return asked(f"hour({instant})", arguments, f"{before}{two}{minute}")


_SINCE = f"max(last_over_time(megatron_incident_since_timestamp_seconds{_KIND}[1d]))"


def since(before: str) -> str:
    """Since when an incident stands, or at which instant it came."""
    return clock(f" {before} ", _SINCE, _OF_KIND)


FOR = asked(f"time() - {_SINCE}", _OF_KIND, " For {{ . | first | value | humanizeDuration }}.")
"""How long it has stood."""

ITERATION = (
    "Last iteration: "
    + asked(f"max(last_over_time(megatron_iteration{_RUN}[1d]))", _OF_RUN, value('printf "%.0f"'), "unknown")
    + "."
)

_INFO = f"megatron_incident_info{_KIND} or last_over_time(megatron_incident_info{_KIND}[1d])"
_TWICE = f"{_OF_KIND} {_OF_KIND}"


def _label(name: str) -> str:
    return f'(. | first | label "{name}")'


def _said(name: str, before: str, after: str = "") -> str:
    return f"{{{{ with {_label(name)} }}}}{before}{{{{ . }}}}{after}{{{{ end }}}}"


DETAILS = asked(
    _INFO,
    _TWICE,
    _said("phase", " Phase ", ".")
    + _said("failure", " Failure ", ".")
    + _said("rank", " Rank ", ".")
    + _said("node", " Node ", ".")
    + _said("advice", " Do: ", ".")
    + _said("line", " Last line: "),
)
"""Where, what to do and the line that shows it, as far as the log tells."""

IDLE = asked(
    f"(time() - {_SINCE}) * max(last_over_time(megatron_world_size{_RUN}[1d])) / 3600",
    f"{_OF_KIND} {_OF_RUN}",
    ' Cost so far: {{ . | first | value | printf "%.1f" }} GPU-hours.',
)
"""What the stop has cost, where the number of GPUs is known."""
AT_RISK = asked(
    f"max(last_over_time(megatron_at_risk_seconds{_RUN}[1d]))", _OF_RUN,
    " A crash now would lose {{ . | first | value | humanizeDuration }}.",
)  # fmt: skip
"""Work since the last checkpoint."""

PAGE = asked(
    f"last_over_time(megatron_monitor_page_info[1d]) and ignoring (url, run, {SCOPE}) "
    f"last_over_time(run:megatron_last_seen_timestamp_seconds:held{_RUN}[1d])",
    _OF_RUN,
    '{{ . | first | label "url" }}runs/?name={{ $labels.run | urlquery }}',
)
"""The daemon's own page of the run; empty where nobody can reach it."""
STATE_NOW = asked(
    f"max by (state) (megatron_run_state{_RUN} == 1)", _OF_RUN, 'It is {{ . | first | label "state" }} now. ',
)  # fmt: skip
