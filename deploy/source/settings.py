"""What a site sets: everything else in rules and dashboards is the same everywhere."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """One for rules, what they record, dashboards, manifests and the chart."""

    grafana: str = "https://grafana.example"
    """Address of Grafana."""
    runbook: str = "https://runbooks.example/megatron-monitor/runbook.md"
    """Address of runbook.md, or of a copy of it whose sections have the same anchors."""
    job: str = "(.+/)?megatron-monitor"
    """Regular expression over the label `job` of the daemons' targets; of the Operator: NAMESPACE/megatron-monitor.
    Another one chooses all that is read, and not the daemons' own targets alone."""
    selector: str = ""
    """Label matchers for every scraped series, such as `env="prod"`: where one Prometheus serves several teams."""
    goodput: float = 0.9
    """Objective: effective training time over wall time, of three days."""
    runs: int = 0
    """Runs that should be under way in each cluster; fewer are reported. 0: not reported."""
