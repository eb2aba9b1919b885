"""Pushed streams: the paths of their files, and what the receiver states about the agents that send them. Pure.

The receiver (monitor/receiver) writes each stream to a file of its directory, and the observer follows these files.
"""

import re
from collections.abc import Collection, Mapping
from hashlib import blake2s
from typing import NamedTuple
from urllib.parse import quote, unquote

from msgspec import Struct, field

STAMP = 30
"""Characters of the time before each line of a pushed stream."""
PATTERN = "*/*/*.log"
"""The files of all streams, below the directory: TENANT/RUN/STREAM."""
REFUSED = "lines refused"
"""Value of the label `heartbeat` while a forwarder sends lines again that the receiver has refused."""
LATE = 7.5
"""Seconds without a heartbeat after which an agent is stale: it sends one every 5 s, and one may be on its way."""
CLOCK_TOLERANCE = 5.0
"""Seconds: clocks set by NTP are nearer, and smaller differences are network delay."""
_MAX_READABLE = 150  # maximum bytes of a readable part: a name may have 255


def quoted(text: str) -> str:
    """Return a readable part of a file name without `/` and `~` that does not begin with a dot."""
    return re.sub(r"^\.", "%2E", quote(text, safe="").replace("~", "%7E"))


def shortened(text: str) -> str:
    """Return the text, or its beginning with a hash of the rest if a file name cannot hold it."""
    if len(quoted(text)) <= _MAX_READABLE:
        return text
    return unquote(re.sub("%.?$", "", quoted(text)[:_MAX_READABLE]), errors="ignore") + f"-{hashed(text)}"


def hashed(text: str) -> str:
    """Return eight digits that distinguish two texts."""
    return blake2s(text.encode("utf-8", "replace"), digest_size=4).hexdigest()


def path_of(tenant: str, run: str, stream: str) -> str:
    """Return the file of a stream, relative to the directory. No sender chooses a name: the folder of a run ends with a
    hash, so that it is never the name of a file, never hidden, and has no part that a search for logs excludes.
    """
    return f"{tenant or '_'}/{quoted(run)}~{hashed(run)}/{stream}.log"


def run_at(path: str) -> str:
    """Return the run of a stream by the path of its file. A tenant's run is `TENANT/RUN`."""
    tenant, folder = path.split("/")[-3:-1]
    run = unquote(folder.rpartition("~")[0])
    return run if tenant == "_" else f"{tenant}/{run}"


def agent_at(path: str) -> str:
    """Return the agent that sent a stream by the path of its file."""
    return path.rpartition("/")[2].partition("~")[0]


class Agent(Struct, omit_defaults=True):
    """An agent that sends heartbeats."""

    seen: float
    """Its last heartbeat, or lines, by the receiver's clock. Unix seconds."""
    refused: float = 0.0
    """Its last heartbeat while the receiver refused its lines, by the receiver's clock. Unix seconds."""
    behind: float | None = None
    """Seconds by which its clock is behind the receiver's. None: unknown."""
    shift: float = 0.0
    """Seconds by which its clock was set back since its first heartbeat."""


class AgentStates(NamedTuple):
    """What is known now about the agents, to judge silence. Unix seconds."""

    stale: Mapping[str, float]
    """Agents without a recent heartbeat -> their last one."""
    agents: Mapping[str, Agent]
    """All agents that send heartbeats."""
    states: Mapping[str, int]
    """State -> number of agents: active, stale, or refused."""
    others_behind: float = 0.0
    """Seconds by which the clocks of agents without heartbeat are behind ours, which was set in the meantime."""
    observed_until: float | None = None
    """The last instant at which a stale receiver was alive. No pushed stream is observed since then. None: it is not
    stale.
    """
    refused: Collection[str] = ()
    """Those of `stale` whose lines the receiver refuses, as they report."""

    def clock_offset(self, agent: str) -> float:
        """Return the seconds to add to a time of the agent."""
        if (known := self.agents.get(agent)) is None:
            return self.others_behind
        behind = known.behind or 0.0
        return behind if abs(behind) > CLOCK_TOLERANCE else 0.0


class AgentReport(Struct):
    """What the receiver writes about its agents each second: the file `agents.json` of its directory."""

    written_at: float = 0.0
    """By the receiver's clock. Unix seconds."""
    agents: dict[str, Agent] = field(default_factory=dict)
    others_behind: float = 0.0
    origin: tuple[str, float] = ("", 0.0)
    """Of the receiver's SteadyClock, whose offset is `others_behind`."""

    def states(self, now: float, age: float = 0.0) -> AgentStates:
        """Return the states at `now` (Unix seconds) from a report of `age` seconds ago."""
        silent = {name: self.written_at - one.seen + age for name, one in self.agents.items()}
        stale = {name: now - seconds for name, seconds in silent.items() if seconds > LATE}
        refused = [name for name in stale if self.written_at - self.agents[name].refused + age <= LATE]
        states = {
            "active": len(silent) - len(stale), "stale": len(stale) - len(refused), "refused": len(refused)
        }  # fmt: skip
        return AgentStates(stale, self.agents, states, self.others_behind, None, refused)
