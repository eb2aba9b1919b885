"""Texts about the cause of a slowdown, evidence and advice, and how to make the program print timers or finer ones.

The programs' options are in parsers/programs.toml and parsers/formats/*.yaml.
"""

from typing import Any, Final

from megatron_monitor.breakdown.attribution import Attribution
from megatron_monitor.breakdown.profile import OUTSIDE, WHOLE, Profile
from megatron_monitor.parsers.declared.schema import built_in
from megatron_monitor.parsers.programs import BY_NAME
from megatron_monitor.parsers.tables import rows_of

ADVICE: Final[dict[tuple[str, str], str]] = {
    (kind, of or ""): text for kind, of, text in rows_of("megatron_monitor", "advice.csv", tuple[str, str | None, str])
}


def advice_for(incident: str, of: str = "", message: object = "") -> str:
    """Return the advice for a kind of cause. Raises KeyError if there is none."""
    if of == "killed" and "SIGHUP" in str(message):
        of = "hangup"
    return ADVICE.get((incident, of)) or ADVICE[incident, ""]


_PART_NAMES = {
    "compute": "compute", "communication": "communication", "data": "the data loader", "optimizer": "the optimizer",
    "rollout": "generation (rollout)", "reward": "scoring (rewards, advantages)",
    "logprobs": "log probabilities and values",
    "sync": "sending the weights to the generator", "other": "timers of unknown names",
    WHOLE: "the forward and backward pass as a whole", OUTSIDE: "no timer at all",
}  # fmt: skip
_SCOPE = {
    "all": " on all ranks",
    "one": " on one rank, the others wait for it",
    "some": " on some ranks",
    "unknown": "",
}


def sentence(found: Attribution) -> str:
    """Return what took the added time: `92 % of it in the data loader on all ranks (batch-generator 0.02 s, now 0.23
    s)`.
    """
    if not found.part:
        return _unexplained(found)
    text = f"{min(100.0, 100 * found.share):.0f} % of it in {_PART_NAMES.get(found.part, found.part)}"
    text += _SCOPE[found.scope] if found.rank is None else f" on rank {found.rank}, the others wait for it"
    if found.cause == "communication":
        text += ": the network, or a slow rank that the others wait for"
    if found.part == WHOLE:
        text += ": compute, the data loader or waiting, --timing-log-level 2 shows which"
    if found.timers:
        text += " (" + ", ".join(f"{name} {old:.3g} s, now {new:.3g} s" for name, old, new in found.timers) + ")"
    return text


def _unexplained(found: Attribution) -> str:
    if found.early:
        return "too few lines with timers to determine the cause yet"
    if not found.grown:
        return "the log's timers do not explain it"
    parts = ", ".join(
        f"{_PART_NAMES.get(item.part, item.part)} {100 * item.high / found.added:.0f} %" for item in found.grown[:3]
    )
    return f"the log's timers name no single cause: of the added time {parts}"


def evidence(found: Attribution | None, before: Profile | None) -> dict[str, Any]:
    """Return figures for programs, in seconds per iteration. `cause` is one of attribution.Cause."""
    if found is None:
        return {"cause": "unknown"}
    facts: dict[str, Any] = {"cause": found.cause, "cause_scope": found.scope}
    if found.rank is not None:
        facts["cause_rank"] = found.rank
    if found.part:
        facts["cause_share"] = round(found.share, 3)
        facts["cause_timers"] = {name: [round(old, 5), round(new, 5)] for name, old, new in found.timers}
    if before is not None:
        facts["breakdown_before"] = {part: round(span.high, 5) for part, span in sorted(before.parts.items())}
        facts["breakdown_added"] = {item.part: round(item.high, 5) for item in found.grown}
    return facts


_NOT_KNOWN = "a profile of a few slow iterations (torch.profiler, py-spy) can show it"


def explained(found: Attribution | None, format_name: str | None) -> list[str]:
    """Return what took the added time and what to examine first; without timers, how the program can print them."""
    if found is None:
        return [f"the log has no timers that show the cause: {_timers(format_name)}", advice_for("slowdown", "unknown")]
    known = BY_NAME.get(format_name or "") if found.cause == "communication" else None
    which = f"; {known.timers_of_ranks} shows which" if known is not None and known.timers_of_ranks else ""
    return [sentence(found), advice_for("slowdown", found.cause) + which]


def _timers(format_name: str | None) -> str:
    known = BY_NAME.get(format_name or "")
    if known is not None:
        return known.timers
    return next((found.timers for found in built_in() if found.name == format_name), "") or _NOT_KNOWN
