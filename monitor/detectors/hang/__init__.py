"""The rule `hang`: no progress for longer than the progress timeout of the phase.

Only progress counts, not any new line. Each phase has a progress timeout, learned from the run, with a default at the
beginning. After half of it the run is late (only shown), after all of it the run hangs (notified). Ended and historical
runs do not hang.
"""

from typing import Any

from megatron_monitor.detectors import slowdown
from megatron_monitor.detectors.base import CLEAR, UNKNOWN, Finding, Rule, ahead, missing_evidence, stated
from megatron_monitor.detectors.hang.timeout import HangSettings, Timeout, lawful, progress_timeout
from megatron_monitor.run.job import evidence as job_evidence
from megatron_monitor.run.phases import ENDED, PARTS, Phase
from megatron_monitor.run.state import Attempt, RunState

__all__ = ["Hang", "HangSettings", "Timeout", "deadline", "lawful", "progress_timeout", "watched"]

_BLOCKING_HELPS = 160  # GPUs from which BLOOM hung without the variable (docs/development/incident-record.md)
_BETWEEN: frozenset[Phase] = frozenset({"training", "evaluating", "saving"})
"""Phases between steps: in a run without lines of steps their silence means nothing, because the loop may continue."""
_KILL_DELAY = 1.0  # seconds after the line about processes killed at exit


def watched(state: RunState) -> bool:
    """Return True if silence of this run means anything."""
    attempt = state.attempt
    if not state.live or not state.proven or state.progress_at is None or attempt.phase in ENDED:
        return False
    if attempt.phase in _BETWEEN and not state.iterations_total and attempt.step_source is None:
        return bool(attempt.pace.predicted() or attempt.boundaries)
    # After the last iteration a log may simply end. Ended processes prove that the others hang.
    return attempt.phase != "exiting" or attempt.ending.ended > 0


def _since(state: RunState, at: float | None = None) -> float | None:
    """Return the instant from which a meaningful silence counts, as observed by `at`; None without one."""
    return state.silent_since(at) if watched(state) else None


def deadline(state: RunState, settings: HangSettings) -> float | None:
    """Return the instant at which silence becomes a hang; None while silence means nothing."""
    since = _since(state)
    return None if since is None else since + progress_timeout(state, settings).seconds


class Hang(Rule):
    """Has no memory: learned silences are part of the run's state (run/silence.py)."""

    name = "hang"
    outlives = True
    settings = HangSettings
    inhibited_by = ("crash", "crash_without_exit")  # a crash explains the silence
    is_timed = True

    def evaluate(self, state: RunState, now: float, settings: HangSettings) -> Finding:
        """Return a display-only warning after half the timeout, and a critical finding after all of it."""
        attempt, since, unobserved = state.attempt, _since(state, now), state.coverage.unobserved(now)
        killed_at = attempt.ending.killed_at
        if state.suspended:
            return UNKNOWN
        if killed_at is not None and state.live:
            return _killed_at_exit(attempt, killed_at, next_check=ahead(killed_at + _KILL_DELAY, now))
        if since is None:
            return CLEAR
        allowed = progress_timeout(state, settings)
        late_at, hung_at = since + allowed.late_after, since + allowed.seconds
        if now < late_at:
            return Finding("clear" if state.coverage.until is None else "unknown", next_check=late_at)
        hung = now >= hung_at
        facts = _facts(state, now - since, unobserved, allowed)
        summary = (
            f"{'hung' if hung else 'late'} in {_where(attempt)}: no progress for {now - since:.1f} s, "
            f"progress timeout {allowed.seconds:.1f} s ({allowed.reason})"
        )
        if state.no_heartbeat:
            summary += "; its agents send no heartbeat: an agent may have died instead of the run (docs/pushed-logs.md)"
        if hung:
            summary += _suspects(state, facts)
            facts["advice"] = _advice(attempt, attempt.environment.get("CUDA_LAUNCH_BLOCKING"))
        return Finding(
            "firing", "critical" if hung else "warning", summary, facts, onset=attempt.latest.iteration,
            since=since - unobserved, display_only=not hung, next_check=None if hung else hung_at,
        )  # fmt: skip


def _facts(state: RunState, silence: float, unobserved: float, allowed: Timeout) -> dict[str, Any]:
    attempt = state.attempt
    return stated({
        "phase": attempt.phase,
        "silence_seconds": round(silence, 3),
        "unobserved_seconds": round(unobserved, 3) or None,
        "timeout_seconds": round(allowed.seconds, 3),
        "timeout_reason": allowed.reason,
        "last_progress_at": state.unix(state.progress_at),
        "last_line": attempt.last_line,
        **job_evidence(state),
        "expected_gap_seconds": None if allowed.expected is None else round(allowed.expected, 4),
        "cuda_launch_blocking": attempt.environment.get("CUDA_LAUNCH_BLOCKING"),
    })  # fmt: skip


def _where(attempt: Attempt) -> str:
    """Return the phase, the phases that the log does not distinguish from it, and the iteration."""
    others = attempt.parts.reported_with(attempt.phase) if attempt.phase in PARTS and attempt.parts.reported else []
    apart = f" (or {', '.join(others)}: no line distinguishes them)" if others else ""
    after = "" if attempt.latest.iteration is None else f" after iteration {attempt.latest.iteration}"
    apart += " or in steps whose format is unknown" if attempt.inferred and attempt.step_source is None else ""
    return attempt.phase + apart + after


def _killed_at_exit(attempt: Attempt, at: float, next_check: float | None) -> Finding:
    """Return the finding for a completed training with processes that did not exit and had to be killed."""
    done = attempt.ending.done_at or at
    line = attempt.failure.line if attempt.failure else ""
    summary = (
        f"hung in exiting: training reported completion, but its processes had not exited {at - done:.0f} s later "
        "and were killed. Look for a process that waits for the others at exit"
    )
    evidence = {"phase": "exiting", "silence_seconds": round(at - done, 3), "last_line": line}
    onset = attempt.latest.iteration
    return Finding("firing", "critical", summary, evidence, onset=onset, since=done, next_check=next_check)


def _suspects(state: RunState, evidence: dict[str, Any]) -> str:
    """Return a text about the possible cause: watchdog time-outs, a traceback, the pace before; empty without any."""
    attempt = state.attempt
    found = ""
    if attempt.watchdog_ranks:
        evidence |= {"watchdog_ranks": attempt.watchdog_ranks, "watchdog_nodes": attempt.watchdog_nodes}
        found += f"; the watchdogs of {len(attempt.watchdog_ranks)} ranks timed out"
        found += f" on {', '.join(attempt.watchdog_nodes[:8])}" if attempt.watchdog_nodes else ""
    absent = missing_evidence(state)
    if absent:
        evidence.update(absent)
        found += f"; {absent['missing']}"
    failure = attempt.failure or attempt.ending.hint
    if failure is not None:
        evidence["failure"], evidence["failure_line"] = failure.failure, failure.line
        rank = f" on rank {failure.rank}" if failure.rank is not None else ""
        found += (
            f"; before it {failure.failure}{rank}: {failure.message[:120]}; it may have crashed without ending the job"
        )
    if pace := slowdown.before_hang(state):
        found += f"; before it {pace}"
        evidence["pace_before"] = pace
    return found


def _advice(attempt: Attempt, blocking: str | None) -> str:
    """Return the advice: what to do first while the processes still exist."""
    steps = [
        "before you cancel: py-spy dump --pid PID for every rank on every node (srun --overlap), and look for ranks "
        "with a stack that differs from the majority",
        "with TORCH_NCCL_TRACE_BUFFER_SIZE set, torchfrtrace shows the rank that the others wait for",
    ]
    world = attempt.topology.world_size
    if blocking not in ("1", "true") and (world is None or world >= _BLOCKING_HELPS):
        known = "the log does not show CUDA_LAUNCH_BLOCKING" if blocking is None else f"CUDA_LAUNCH_BLOCKING={blocking}"
        steps.append(f"{known}: without =1 runs of 160 GPUs and more have hung; it cost them 0 to 6 %")
    if attempt.phase in ("rollout", "reward"):
        steps.append(
            "ray summary tasks names the call that does not return: an engine whose requests get no tokens, a tool, an "
            "environment, or a scorer"
        )
    if attempt.phase == "evaluating":
        steps.append(
            "data loader workers that copied a held lock hang evaluations: try one worker, or a barrier before it"
        )
    return "; ".join(steps)
