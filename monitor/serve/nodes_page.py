"""The page of the nodes: those that stand out, why, and every node to which something happened."""

from __future__ import annotations

from html import escape
from typing import Any

from monitor.serve.formats import instant
from monitor.serve.page import document, filled
from monitor.snapshot import Snapshot

_HEADS = ("Node", "Launches", "Named (due)", "Times its peers", "In failed (due)", "In slow (due)", "Hung", "Chance")


def render_nodes(snapshot: Snapshot, now: float) -> str:
    """Every node of the Snapshot, those that stand out first with their evidence."""
    suspects = [node for node in snapshot.nodes if node["stands_out"]]
    said = "".join(f"<li><b>{escape(node['node'])}</b>: {escape(node['evidence'])}</li>" for node in suspects)
    heads = "".join(f"<th scope=col>{escape(head)}" for head in _HEADS)
    body = "".join(_row(node) for node in snapshot.nodes)
    told = f"<ul>{said}</ul>" if said else "<p class=soft>None.</p>"
    empty = f"<tr><td colspan={len(_HEADS)}>Nothing has happened to a node so far.</td></tr>"
    count = f"{len(suspects)} of {snapshot.nodes_in_all} nodes stand out; {instant(now)}"
    body = filled("nodes", count=escape(count), told=told, heads=heads, body=body or empty)
    return document("Nodes · megatron-monitor", "", "", body)


def _row(node: dict[str, Any]) -> str:
    rate = node["rate"]
    cells = (
        node["node"], str(node["launches"]), _count(node["named"]),
        f"{rate['mean']:.1f} ({rate['low']:.1f} to {rate['high']:.1f})", _count(node["present"]), _count(node["slow"]),
        str(node["hangs"]), "-" if node["chance"] >= 1 else f"{node['chance']:.1g}",
    )  # fmt: skip
    return "<tr>" + "".join(f"<td>{escape(cell)}" for cell in cells) + "</tr>"


def _count(count: dict[str, Any]) -> str:
    return f"{count['seen']} ({count['expected']:.2g})" if count["of"] else "-"
