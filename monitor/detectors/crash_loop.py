"""The rule `crash_loop`: several attempts in a row fail without progress, often because of the same node.

tr1, a 13B training before BLOOM, was given the node with the ECC error again in its next job and failed at start-up
(docs/development/incident-record.md, "Crashes", C3).
"""

from operator import attrgetter

from msgspec.structs import replace

from megatron_monitor.detectors.base import CLEAR, Finding, Rule, RuleSettings
from megatron_monitor.run.ending import PLANNED
from megatron_monitor.run.records import AttemptEnd
from megatron_monitor.run.restarts import end_of
from megatron_monitor.run.state import RunState

_CRASHES = 3  # Attempts in a row that failed without a new checkpoint; two may be chance.
_CRASHES_SAME_NODE = 2  # Attempts in a row that failed on the same named node: that is not chance.
_WINDOW = 86400.0  # Seconds between the first and the last: a crash per week is MTBF, not a loop.


class CrashLoop(Rule):
    """Has no memory: the run's state has the ends of its attempts."""

    name = "crash_loop"
    outlives = True

    def evaluate(self, state: RunState, _now: float, _settings: RuleSettings) -> Finding:
        """Fire while the last attempts failed in a row. An attempt that saves a checkpoint or gets further
        resolves it.
        """
        attempt = state.attempt
        if not state.live or attempt.phase == "finished":
            return CLEAR
        ends = list(state.ends)
        if attempt.phase == "crashed" and attempt.failure is not None and not attempt.unconfirmed:
            end = end_of(state, attempt.failure.at, died=True)
            ends.append(replace(end, planned=end.failure in PLANNED))
        elif _got_further(state):
            return CLEAR
        row = _row(ends)
        if len(row) < min(_CRASHES, _CRASHES_SAME_NODE):
            return CLEAR
        last = row[-_CRASHES_SAME_NODE:]
        common = sorted(set(last[0].nodes).intersection(*map(attrgetter("nodes"), last)))
        # the nodes that failed, not all nodes of the attempt
        named = common if len(common) <= 8 and all(end.culprit for end in last) else []
        if len(row) < _CRASHES and not named:
            return CLEAR
        evidence = {
            "crashes": len(row),
            "failures": list(map(attrgetter("failure"), row)),
            "messages": list(map(attrgetter("message"), row)),
            "common_nodes": named,
            "nodes": named,
            "iterations": list(map(attrgetter("iterations"), row)),
        }
        return Finding(
            "firing", "critical", _summary(row, named), evidence, onset=row[0].last_iteration, since=row[0].at
        )


def _summary(row: list[AttemptEnd], named: list[str]) -> str:
    kinds = ", ".join(dict.fromkeys(end.failure for end in row))
    where = "no node is named in each of them; compare the first fatal lines"
    if named:
        where = f"each time on {', '.join(named)}: exclude it (sbatch --exclude={','.join(named)})"
    reached = max((end.last_iteration or 0) for end in row)
    progress = f"none got further than iteration {reached}" if reached else "none reached its first iteration"
    return f"{len(row)} attempts in a row have crashed ({kinds}) without a new checkpoint; {progress}; {where}"


def _row(ends: list[AttemptEnd]) -> list[AttemptEnd]:
    """Return the last attempts that failed in a row with the same last checkpoint, within the window."""
    row: list[AttemptEnd] = []
    for end in reversed(ends):
        if end.planned or (row and (end.checkpoint != row[-1].checkpoint or row[0].at - end.at > _WINDOW)):
            break
        row.append(end)
    return row[::-1]


def _got_further(state: RunState) -> bool:
    """Return True if the present attempt got further than the last ones."""
    if not state.ends:
        return True
    last = state.ends[-1]
    reached = max((end.last_iteration or 0) for end in state.ends[-3:])
    saved = state.learned.checkpoints.last_iteration != last.checkpoint
    return saved or (state.attempt.last_iteration or 0) > reached
