"""A Helm chart of the same manifests: what a site sets while installing are its values, everything else is as it is written.

Rules and dashboards lie in the chart as files, which Helm does not read as templates: their `{{ }}` are Prometheus's and
Grafana's. The two addresses in them are marks that the chart's values replace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import yaml

from deploy.source.manifests import KUBERNETES, config_map, dashboards, dump, prometheus_rule
from deploy.source.rule import Group
from deploy.source.settings import Settings

_NAME = "megatron-monitor"
_NAMESPACE = "{{ .Release.Namespace }}"
_GRAFANA, _RUNBOOK = "@GRAFANA@", "@RUNBOOK@"
_FILLED = "".join(
    f' | replace "{mark}" (toJson .Values.{name} | trimAll "\\"")'
    for mark, name in ((_GRAFANA, "grafana"), (_RUNBOOK, "runbook"))
)
_VALUES_HEAD = """\
# Values of the chart. Written by `python -m deploy.source FOLDER --helm`, with the settings given there: --job, --selector,
# --goodput and --runs are in the rules already.
"""
_ABOUT = {
    "grafana": "Address of Grafana, for links in alerts.",
    "runbook": "Address of runbook.md, or of a copy of it whose sections have the same anchors.",
    "image": "Built by deploy/container/Dockerfile.",
    "nodeSelector": "Only where trainings run.",
    "tolerations": "",
    "resources": "",
    "config": "config.yaml of the daemons: which logs, what a run is called, notifiers. Merged with what you set.",
    "podMonitor": "The Prometheus Operator's. trainings: the namespace of pods with the sidecar (deploy/kubernetes/sidecar.yaml).",
    "prometheusRule": "labels: what your Prometheus selects its rules by.",
    "dashboards": "For the sidecar of Grafana's own chart. label: what it looks for.",
}


def marked(settings: Settings) -> Settings:
    """Settings with marks for what the chart's values say."""
    return replace(settings, grafana=_GRAFANA, runbook=_RUNBOOK)


def chart(groups: Sequence[Group], settings: Settings) -> dict[str, str]:
    """Path -> text. `groups` are made of `marked(settings)`."""
    _, config, daemons = yaml.safe_load_all((KUBERNETES / "daemonset.yaml").read_text())
    own, trainings = yaml.safe_load_all((KUBERNETES / "podmonitor.yaml").read_text())
    pod = daemons["spec"]["template"]["spec"]
    container = pod["containers"][0]
    version = container["image"].rpartition(":")[2]
    rules = prometheus_rule(groups, marked(settings))
    values: dict[str, Any] = {
        "grafana": settings.grafana,
        "runbook": settings.runbook,
        "image": container["image"],
        "nodeSelector": pod["nodeSelector"],
        "tolerations": pod["tolerations"],
        "resources": container["resources"],
        "config": yaml.safe_load(config["data"]["config.yaml"]),
        "podMonitor": {"enabled": True, "trainings": trainings["metadata"]["namespace"]},
        "prometheusRule": {"enabled": True, "labels": rules["metadata"]["labels"]},
        "dashboards": {"enabled": True, "label": "grafana_dashboard"},
    }
    for place, name in ((container, "image"), (pod, "nodeSelector"), (pod, "tolerations"), (container, "resources")):
        place[name] = _Template(f"{{{{ toJson .Values.{name} }}}}")
    config["data"]["config.yaml"] = _Template("{{ toYaml .Values.config | toJson }}")
    trainings["metadata"]["namespace"] = _Template("{{ .Values.podMonitor.trainings }}")
    rules["metadata"]["labels"] = _Template("{{ toJson .Values.prometheusRule.labels }}")
    rules["metadata"]["namespace"] = _Template(_NAMESPACE)
    spec, rules["spec"] = rules["spec"], _Template(f'{{{{ .Files.Get "rules.json"{_FILLED} }}}}')
    for one in (config, daemons, own):
        one["metadata"]["namespace"] = _Template(_NAMESPACE)
    about = {
        "apiVersion": "v2", "name": _NAME, "version": version, "appVersion": version, "type": "application",
        "description": "Tells hangs, crashes and slowdowns of Megatron and DeepSpeed trainings by their logs",
    }  # fmt: skip
    made = {
        "Chart.yaml": dump(about),
        "values.yaml": _values(values),
        "rules.json": json.dumps(spec),
        "templates/configmap.yaml": _template(config),
        "templates/daemonset.yaml": _template(daemons),
        "templates/podmonitor.yaml": _when(own, "podMonitor.enabled")
        + _when(trainings, "podMonitor.enabled", "podMonitor.trainings"),
        "templates/prometheusrule.yaml": _when(rules, "prometheusRule.enabled"),
        "templates/dashboards.yaml": _boards(),
    }
    boards = dashboards(marked(settings))
    return made | {f"dashboards/megatron-{name}.json": _compact(board) for name, board in boards.items()}


class _Template(str):
    """A text that Helm fills in: stands in the YAML as it is."""

    __slots__ = ()


def _template(data: dict[str, Any]) -> str:
    """An object as a template: what is none of ours to fill in must hold no braces of Helm's."""
    templates: list[str] = []

    def marks(value: Any) -> Any:
        if isinstance(value, _Template):
            templates.append(value)
            return f"@{len(templates) - 1}@"
        if isinstance(value, dict):
            return {key: marks(one) for key, one in value.items()}
        return [marks(one) for one in value] if isinstance(value, list) else value

    text = dump(marks(data))
    assert "{{" not in text, text
    return re.sub(r"'?@(\d+)@'?", lambda found: templates[int(found[1])], text)


def _when(data: dict[str, Any], *values: str) -> str:
    asked = " ".join(f".Values.{value}" for value in values)
    return f"---\n{{{{- if and {asked} }}}}\n{_template(data)}{{{{- end }}}}\n"


def _boards() -> str:
    """One ConfigMap a file, shaped by the manifests' own."""
    one = config_map("NAME", {})
    labels = {name: text for name, text in one["metadata"]["labels"].items() if name != "grafana_dashboard"}
    one["metadata"] |= {
        "name": _Template(
            '{{ printf "megatron-dashboard-%s" (base $path | trimPrefix "megatron-" | trimSuffix ".json") }}'
        ),
        "namespace": _Template("{{ $.Release.Namespace }}"),
        "labels": _Template(
            f'{{{{ toJson (merge (dict $.Values.dashboards.label "1") (fromJson `{json.dumps(labels)}`)) }}}}'
        ),
    }
    one["data"] = _Template(
        "{{ toJson (dict (base $path) ($.Files.Get $path" + _FILLED.replace(".Values", "$.Values") + ")) }}"
    )
    each = '{{- range $path, $_ := .Files.Glob "dashboards/*.json" }}'
    return f"{{{{- if .Values.dashboards.enabled }}}}\n{each}\n---\n{_template(one)}{{{{- end }}}}\n{{{{- end }}}}\n"


def _values(values: dict[str, Any]) -> str:
    parts = [_VALUES_HEAD]
    for name, value in values.items():
        about = f"# {_ABOUT[name]}\n" if _ABOUT[name] else ""
        parts.append(about + dump({name: value}, head=""))
    return "\n".join(parts)


def _compact(board: dict[str, Any]) -> str:
    return json.dumps(board, sort_keys=True, separators=(",", ":"))
