"""For the Prometheus Operator and Grafana's sidecar: the same rules as a PrometheusRule, the dashboards as ConfigMaps, the
daemons beside them, as one kustomize base. Written where they are asked for, and not committed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from deploy.source.rule import Group
from deploy.source.selection import Selection
from deploy.source.settings import Settings

_HEAD = "# Written by `python -m deploy.source`.\n"
_ROOT = Path(__file__).parents[2]
_BOARDS = _ROOT / "grafana" / "dashboards"
KUBERNETES = _ROOT / "deploy" / "kubernetes"
_NAMESPACE = "megatron-monitor"
_LABELS = {"app.kubernetes.io/name": "megatron-monitor"}


class _Dumper(yaml.SafeDumper):
    """Long texts in the form that keeps their lines."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def manifests(groups: Sequence[Group], settings: Settings) -> dict[str, str]:
    """File name -> text. What stands in deploy/kubernetes/ already is taken over as it is."""
    made = {name: (KUBERNETES / name).read_text() for name in ("daemonset.yaml", "podmonitor.yaml")}
    made["prometheusrule.yaml"] = dump(prometheus_rule(groups, settings))
    for name, board in dashboards(settings).items():
        made[f"dashboard-{name}.yaml"] = dump(config_map(name, board))
    base = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": sorted(made)}
    return made | {"kustomization.yaml": dump(base)}


def prometheus_rule(groups: Sequence[Group], settings: Settings) -> dict[str, Any]:
    """All rules as one object of the Operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": _NAMESPACE, "namespace": _NAMESPACE, "labels": {**_LABELS, "role": "alert-rules"}},
        "spec": {"groups": [group.data(settings) for group in groups]},
    }


def dashboards(settings: Settings) -> dict[str, Any]:
    """Name -> the dashboard as it is shipped, with the site's series and its address of the runbook."""
    chosen, made = Selection.of(settings), {}
    for path in sorted(_BOARDS.glob("*.json")):
        text = path.read_text().replace(Settings().runbook, settings.runbook)
        made[path.stem] = chosen.of_dashboard(json.loads(text))
    return made


def config_map(name: str, board: dict[str, Any]) -> dict[str, Any]:
    """A dashboard where Grafana's sidecar finds it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"megatron-dashboard-{name}",
            "namespace": _NAMESPACE,
            "labels": {**_LABELS, "grafana_dashboard": "1"},
        },
        "data": {f"megatron-{name}.json": json.dumps(board, sort_keys=True, separators=(",", ":"))},
    }


def dump(data: dict[str, Any], head: str = _HEAD) -> str:
    """As YAML that people read."""
    return head + yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
