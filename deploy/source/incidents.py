"""What the daemon reports, relayed: one alert an incident kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from deploy.source.rule import Rule
from deploy.source.settings import Settings
from deploy.source.texts import AT_RISK, BOARD, DETAILS, FOR, IDLE, ITERATION, PAGE, SEVERITY, since

Cost = Literal["idle", "at risk", ""]


class Incident(NamedTuple):
    """A kind: its summary after the run's name, what it means, which cost it has, and whether it lasts or came."""

    kind: str
    is_: str
    means: str
    cost: Cost = ""
    when: Literal["since", "at"] = "since"


INCIDENTS = (
    Incident("hang", "hangs", "Its log shows no progress for longer than its phase ever needs, and it has neither crashed nor finished.", "idle"),
    Incident("slowdown", "has become slower", "Its iterations take longer than the normal that was learned from the same run, batch size and topology."),
    Incident("loss_spike", "has a loss spike", "The loss or the gradient norm left its recent range. Most spikes recover by themselves within some hundred iterations.", when="at"),
    Incident("divergence", "diverges", "The loss rises and does not come back. The iterations from here on will probably have to be repeated.", "at risk"),
    Incident("nan_loss", "has a loss that is no number", "The loss is NaN or infinite, or its field has vanished from the log, which is how some forks print NaN.", "at risk"),
    Incident("loss_scale_collapse", "has a collapsing loss scale", "The dynamic loss scale of fp16 was halved again and again or is at its minimum. An explosion of the loss often follows within some tens of iterations.", "at risk"),
    Incident("overflow_storm", "skips iterations by overflowing gradients", "Several gradient overflows within a few iterations; these iterations change no weights."),
    Incident("crash", "has crashed", "Its log names the cause.", "idle", when="at"),
    Incident("crash_without_exit", "has crashed without exit", "One process failed, the others still hold their GPUs. The scheduler will call the job running until its time limit.", "idle", when="at"),
    Incident("crash_loop", "crashes again and again", "Several launches in a row ended soon after their start. Restarting once more will not help."),
    Incident("memory_pressure", "is close to the end of its GPU memory", "The reserved memory leaves little room, or grows towards the size of the device.", "at risk"),
    Incident("checkpoint_failed", "could not save a checkpoint", "A save began and did not end well.", "at risk", when="at"),
    Incident("checkpoint_overdue", "is overdue with its checkpoint", "More iterations have passed since the last whole checkpoint than between the saves before.", "at risk"),
    Incident("resume_discontinuity", "did not go on where it had stopped", "After a restart the learning rate, the batch size, the samples or the iteration do not continue what stood before.", when="at"),
    Incident("configuration", "has settings that contradict themselves", "Sizes in its log do not fit each other, for example the world size and tp x pp x dp."),
    Incident("launch_blocking", "has a costly or changed CUDA_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING, which the log prints: set, it may cost some per cent; unset, some runs hang that did not hang with it."),
    Incident("straggler", "has a rank that computes longer than its peers", "The others wait for it, or soon will. The evidence on the monitor's page names the rank where the log prints each rank's timers."),
    Incident("source_lost", "has a log that cannot be read", "A file of this run cannot be read. Whether the run hangs is unknown until it can."),
)  # fmt: skip
_COSTS: dict[Cost, str] = {"idle": IDLE, "at risk": AT_RISK, "": ""}


def alert_name(kind: str) -> str:
    """`MegatronNanLoss` of `nan_loss`: the daemon's own notifier for Alertmanager calls it the same."""
    return "Megatron" + "".join(part.title() for part in kind.split("_"))


def relayed(settings: Settings) -> Iterator[Rule]:
    """The alerts, and one for kinds that a newer daemon has."""
    for incident in INCIDENTS:
        severity = ', severity="critical"' if incident.kind == "hang" else ""
        yield Rule(
            alert_name(incident.kind),
            f'run:megatron_incident:held{{incident="{incident.kind}"{severity}}} == 1',
            labels={"severity": SEVERITY},
            annotations=run_notes(
                settings,
                f"{{{{ $labels.run }}}} {incident.is_}{since(incident.when)}",
                f"{incident.means} {ITERATION}{FOR}{_COSTS[incident.cost]}{DETAILS}",
                incident.kind.replace("_", "-"),
            ),
        )
    kinds = "|".join(incident.kind for incident in INCIDENTS)
    yield Rule(
        "MegatronIncident",
        f'run:megatron_incident:held{{\n  incident!~"{kinds}"\n}} == 1',
        comment="Incident kinds of a newer monitor that these rules do not list.",
        labels={"severity": SEVERITY},
        annotations=run_notes(
            settings,
            f"{{{{ $labels.run }}}}: {{{{ $labels.incident }}}}{since('since')}",
            "The monitor reports an incident of a kind that these rules do not know yet; they are older than the "
            f"monitor. {ITERATION}{DETAILS}",
            "other-incidents",
        ),
    )


def run_notes(settings: Settings, summary: str, description: str, section: str) -> dict[str, str]:
    """The annotations of an alert about a run."""
    return {
        "summary": summary,
        "description": description,
        "runbook_url": f"{settings.runbook}#{section}",
        "dashboard_url": settings.grafana + BOARD,
        "page_url": PAGE,
    }
