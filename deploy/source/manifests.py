"""What a site copies; and for the Prometheus Operator and Grafana's sidecar the same rules as a PrometheusRule, the
dashboards as ConfigMaps, the daemons beside them: one kustomize base, or a Helm chart.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from deploy.source.rules import files, groups
from deploy.source.selection import Selection, Settings
from deploy.source.shapes import filled

_HEAD = "# Written by `python -m deploy.source`.\n"
_ROOT = Path(__file__).parents[2]
_KUBERNETES = _ROOT / "deploy" / "kubernetes"
_HELM = _ROOT / "deploy" / "helm"
_SHAPES = yaml.safe_load((Path(__file__).parent / "shapes.yaml").read_text())


class _Dumper(yaml.SafeDumper):
    """Long texts in the form that keeps their lines."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def site(settings: Settings) -> dict[str, str]:
    """Path below a folder -> text: what a site copies, its dashboards with the rules."""
    made = files(settings)
    for name, board in dashboards(settings).items():
        made[f"grafana/dashboards/{name}.json"] = json.dumps(board, indent=2, sort_keys=True) + "\n"
    made["grafana/library.json"] = json.dumps(_library(dashboards(settings).values()), indent=2, sort_keys=True) + "\n"
    return made | {"grafana/alerts.yaml": alerts(settings)}


def _library(boards: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each panel as Grafana's API takes it for its library: for a site's own boards, with our variables on them."""
    return [
        {"uid": f"{board['uid']}-{one['id']}", "name": f"{board['title']}: {one['title']}", "kind": 1, "model": one}
        for board in boards for row in board["panels"] for one in (row, *row.get("panels", [])) if one["type"] != "row"
    ]  # fmt: skip


def alerts(settings: Settings) -> str:
    """The rules' alerts as Grafana evaluates them: a file for its provisioning/alerting, instead of Alertmanager.
    What the rules record, and ALERTS, which some of them read, stay Prometheus's.
    """
    made = [
        # Grafana takes multiples of 10 s
        {
            "orgId": 1,
            "name": group["name"],
            "folder": "Megatron",
            "interval": group.get("interval", "10s"),
            "rules": rules,
        }
        for group in groups(settings)
        if (rules := [_managed(rule) for rule in group["rules"] if "alert" in rule])
    ]
    return _dump({"apiVersion": 1, "groups": made})


def _managed(rule: dict[str, Any]) -> dict[str, Any]:
    """One alert. Grafana's `$value` is a text of all values, and `$` in labels is a variable of its environment."""
    texts = {name: re.sub(r"\$value\b", "$values.A.Value", text) for name, text in rule["annotations"].items()}
    made: dict[str, Any] = filled(
        _SHAPES["alert"],
        name=rule["alert"],
        expr=rule["expr"],
        unanswered="OK" if rule["alert"] == "MegatronWatchdog" else "KeepLast",
        lasting=rule.get("for", "0s"),
        labels={name: text.replace("$labels", ".Labels") for name, text in rule["labels"].items()},
        annotations=texts,
    )
    return made | ({"keepFiringFor": rule["keep_firing_for"]} if "keep_firing_for" in rule else {})


def kubernetes(settings: Settings) -> dict[str, str]:
    """File name -> text: a kustomize base, for `kubectl apply -k`, with deploy/kubernetes/ as it is."""
    made = {name: (_KUBERNETES / name).read_text() for name in ("monitor.yaml", "forwarder.yaml", "podmonitor.yaml")}
    made["prometheusrule.yaml"] = _dump(filled(_SHAPES["rules"], groups=groups(settings)))
    for name, board in dashboards(settings).items():
        data = {f"megatron-{name}.json": _compact(board)}
        made[f"dashboard-{name}.yaml"] = _dump(
            filled(_SHAPES["dashboard"], name=f"megatron-dashboard-{name}", data=data)
        )
    return made | {"kustomization.yaml": _dump(filled(_SHAPES["base"], resources=sorted(made)))}


def helm(settings: Settings) -> dict[str, str]:
    """Path -> text: the chart in deploy/helm/, for `helm install`. Rules and dashboards lie in it as files, which Helm
    does not read as templates: their `{{ }}` are Prometheus's and Grafana's. Its values replace two marks in them.
    """
    made = {path.relative_to(_HELM).as_posix(): path.read_text() for path in _HELM.rglob("*.*")}
    for usual, address in ((Settings().grafana, settings.grafana), (Settings().runbook, settings.runbook)):
        made["values.yaml"] = made["values.yaml"].replace(json.dumps(usual), json.dumps(address))
    marked = replace(settings, grafana="@GRAFANA@", runbook="@RUNBOOK@")
    made["rules.json"] = json.dumps({"groups": groups(marked)})
    return made | {f"dashboards/megatron-{name}.json": _compact(board) for name, board in dashboards(marked).items()}


def dashboards(settings: Settings) -> dict[str, Any]:
    """Name -> the dashboard as it is shipped, with the site's series and its address of the runbook."""
    chosen, made = Selection.of(settings), {}
    for path in sorted((_ROOT / "grafana" / "dashboards").glob("*.json")):
        text = path.read_text().replace(Settings().runbook, settings.runbook)
        made[path.stem] = chosen.of_dashboard(json.loads(text))
    return made


def _compact(board: dict[str, Any]) -> str:
    return json.dumps(board, sort_keys=True, separators=(",", ":"))


def _dump(data: dict[str, Any]) -> str:
    return _HEAD + yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
