"""The page of the nodes: those that stand out, why, and every node to which something happened."""

from __future__ import annotations

from html import escape
from typing import Any

from monitor.serve.formats import instant
from monitor.serve.page import document
from monitor.snapshot import Snapshot

_HEADS = ("Node", "Launches", "Named (due)", "Times its peers", "In failed (due)", "In slow (due)", "Hung", "Chance")
_WORDS = (
    "Each node's launches, failures that name it, and failed or slow launches with it, against what chance gives if "
    "all nodes are alike. The names of nodes come from the logs; a launch whose log names none is not in the record."
)


def render_nodes(snapshot: Snapshot, now: float) -> str:
    """Every node of the Snapshot, those that stand out first with their evidence."""
    suspects = [node for node in snapshot.nodes if node["stands_out"]]
    said = "".join(f"<li><b>{escape(node['node'])}</b>: {escape(node['evidence'])}</li>" for node in suspects)
    heads = "".join(f"<th scope=col>{escape(head)}" for head in _HEADS)
    body = "".join(_row(node) for node in snapshot.nodes)
    told = f"<ul>{said}</ul>" if said else "<p class=soft>None.</p>"
    empty = f"<tr><td colspan={len(_HEADS)}>Nothing has happened to a node so far.</td></tr>"
    count = f"{len(suspects)} of {snapshot.nodes_in_all} nodes stand out; {instant(now)}"
    return document(
        "Nodes · megatron-monitor",
        "",
        "",
        f"<header><p><a href='./'>All runs</a></p><h1>Nodes</h1><p class=soft>{escape(count)}</p>"
        "<nav aria-label=Links><a href=api/v1/nodes>nodes.json</a></nav></header><main>"
        f"<section aria-labelledby=out><h2 id=out>Stand out</h2>{told}"
        f"<p class=soft>{escape(_WORDS)}</p></section>"
        "<section aria-labelledby=all><h2 id=all>Record</h2><div class=scroll tabindex=0 role=group "
        f"aria-label='Table of nodes'><table class=past><thead><tr>{heads}</tr></thead><tbody>"
        f"{body or empty}</tbody></table></div>"
        "</section></main>",
    )


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
