"""The row of hardware by node on *run*: what NVIDIA's DCGM exporter or AMD's device metrics exporter tells of the nodes that
the log or Slurm names.

Metrics and labels as the exporters print them: `etc/default-counters.csv` of NVIDIA/dcgm-exporter (`Hostname`, `gpu`; the
errors of NVLink are commented out there), `docs/configuration/metricslist.md` of ROCm/device-metrics-exporter (`hostname`,
`gpu_id`; names in lower case). Both print the host's name, logs its short form: names are joined by what stands before the
first dot. An address, or a name that only the scrape knows, is taken from `instance`.
"""

from __future__ import annotations

from typing import Any

from grafana.source.layout import Line, Section
from grafana.source.panels import Query, bars, chart, override
from grafana.source.tables import Column, limit_look, rows

EMPTY = "No DCGM or AMD exporter is scraped for this run's nodes, or nothing names them"
ON = "on (cluster, node)"
_FEW = 5
_NONE = 1e18
"""DCGM prints numbers next to 2^63 for what a GPU does not have."""
_SHORT = '"node", "$1", "node", "([^.]*[a-zA-Z][^.]*)[.].+"'
_CLOCK = ("DCGM_FI_DEV_SM_CLOCK", 'gpu_clock{clock_type="GPU_CLOCK_TYPE_SYSTEM"}')
_PRIMARY = '{partition_id=~"0?"}'  # the other partitions of a GPU print 0 W
_POWER = ("DCGM_FI_DEV_POWER_USAGE", f"gpu_package_power{_PRIMARY}", f"gpu_average_package_power{_PRIMARY}")
_TEMPERATURE = ("DCGM_FI_DEV_GPU_TEMP", "gpu_junction_temperature", "gpu_edge_temperature")
_XID = ("DCGM_FI_DEV_XID_ERRORS",)
_MEMORY = ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "gpu_ecc_uncorrect_total")
_LINK = (
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    "gpu_ecc_correct_xgmi_wafl", "gpu_ecc_uncorrect_xgmi_wafl",
)  # fmt: skip
HOT: tuple[tuple[float | None, str], ...] = ((None, "text"), (83.0, "dark-yellow"), (90.0, "orange"))
"""Degrees at which H100 and A100 begin to slow down (87 to 92), and a little before."""


def _nodes(select: str) -> str:
    """The run's nodes by their short names."""
    return f"label_replace(max by (cluster, node) (megatron_run_node_info{{{select}}}), {_SHORT})"


def _named(series: str, metric: str) -> str:
    """A metric of an exporter with the short name of its host as `node`; `metric` keeps those apart that are added up."""
    made = f'label_replace({series}, "metric", "{metric}", "", "")'
    made = f'label_replace({made}, "node", "$1", "instance", "(.+?)(?::[0-9]+)?")'
    for label in ("hostname", "Hostname"):
        made = f'label_replace({made}, "node", "$1", "{label}", "(.+)")'
    return f"label_replace({made}, {_SHORT})"


def _by_node(how: str, metrics: tuple[str, ...], select: str, *, form: str = "{}") -> str:
    """One series a node of the run; `form`: what is done to each metric's series, such as an increase."""
    every = {metric.partition("{")[0]: _cluster(metric) for metric in metrics}
    series = " or ".join(_named(f"({form.format(one)} and {one} < {_NONE:g})", name) for name, one in every.items())
    return f"({how} by (cluster, node) ({series}) and {ON} {_nodes(select)})"


def _cluster(metric: str) -> str:
    name, _, where = metric.partition("{")
    return f'{name}{{cluster=~"$cluster"{", " + where if where else "}"}'


def _outliers(pick: str, over: str, how: str, metrics: tuple[str, ...], scale: str, select: str) -> str:
    """The few nodes that are farthest out in the shown range, and the median of all."""
    each = _by_node(how, metrics, select)
    ends = _by_node(how, metrics, select, form=f"{over}({{}}[$__range] @ end())")
    few = f"{scale} * {each} and {ON} {pick}({_FEW}, {ends})"
    median = f'label_replace({scale} * quantile by (cluster) (0.5, {each}), "node", "median of all", "", "")'
    return f"{few} or {median}"


def _grown(metrics: tuple[str, ...], select: str, over: str = "$__range") -> str:
    return _by_node("sum", metrics, select, form=f"increase({{}}[{over}])")


def of_run(select: str) -> Section:
    """Collapsed: no query is asked until somebody opens it."""
    median = {"custom__lineWidth": 3, "color": {"mode": "fixed", "fixedColor": "#8e8e8e"}}

    def outliers(title: str, text: str, unit: str, decimals: int, expression: str) -> Any:
        panel = chart(title, text, unit, Query(expression, "{{node}}"), empty=EMPTY).decimals(decimals)
        return panel.override_by_name("median of all", override(**median))

    return Section("Hardware by node (where DCGM's or AMD's exporter is scraped)", [
        Line(9, [
            (24, rows("Nodes, worst first", "The run's nodes: one with an XID, uncorrectable memory errors, or a clock and power "
                      "below the others' is what the run waits for. Leave it out of the next launch. XID 0: none since the "
                      "driver was loaded. Link errors want the exporter's NVLink counters, which are off by default.",
                      [Query(_by_node("max", _XID, select)),
                       Query(f"1e6 * {_by_node('min', _CLOCK, select)}"),
                       Query(_by_node("avg", _POWER, select)),
                       Query(_by_node("max", _TEMPERATURE, select)),
                       Query(_by_node("sum", _MEMORY, select)),
                       Query(_grown(_LINK, select))],
                      [Column("node", "Node"),
                       Column("A", "Last XID", "none", look=limit_look(((None, "text"), (1.0, "red")))),
                       Column("B", "Slowest clock", "hertz", look={"decimals": 2}),
                       Column("C", "Power a GPU", "watt", look={"decimals": 0}),
                       Column("D", "Hottest", "celsius", look=limit_look(HOT)),
                       Column("E", "Bad memory", "none", look=limit_look(((None, "text"), (1.0, "orange")))),
                       Column("F", "Link errors", "none", look=limit_look(((None, "text"), (1.0, "orange"))))],
                      hidden=("cluster",), empty=EMPTY, sort="Last XID", then="Link errors")),
        ]),
        Line(8, [
            (12, outliers("SM clock, the slowest nodes", "The slowest GPU of each node: the five lowest of the shown range, and the "
                          "median of all. One line below the others is a GPU that is hot or capped: the whole run waits "
                          "for it.", "hertz", 2,
                          _outliers("bottomk", "min_over_time", "min", _CLOCK, "1e6", select))),
            (12, outliers("Power, the lowest nodes", "Watts a GPU, the five lowest of the shown range and the median of all. All "
                          "low together is a run that waits (a hang, a save); one low alone is the node that the others wait "
                          "for, or one that waits for nobody.", "watt", 0,
                          _outliers("bottomk", "min_over_time", "avg", _POWER, "1", select))),
        ]),
        Line(8, [
            (8, outliers("Temperature, the hottest nodes", "The hottest GPU of each node: the five hottest of the shown range, and the "
                         "median of all. From 83 degrees on GPUs begin to slow down: look at the fans and the room.", "celsius",
                         0, _outliers("topk", "max_over_time", "max", _TEMPERATURE, "1", select))),
            (8, bars("XID of each node", "The driver's last error of each node. 63, 64, 79, 94 and 95 mean a GPU to be drained; "
                     "13, 31, 43 and 45 are mostly the program's own.", "none",
                     Query(f"sort_desc({_by_node('max', _XID, select)} > 0)", "{{node}}"),
                     steps=((None, "red"),), empty="No XID, or no DCGM exporter").decimals(0)),
            (8, bars("Link errors, the worst nodes", "Errors of NVLink or xGMI in the shown range, the twelve worst nodes. They are "
                     "repeated by the hardware and cost speed; a node that stands out has a bad link or bridge.", "none",
                     Query(f"sort_desc(topk(12, {_grown(_LINK, select)} > 0))", "{{node}}"),
                     steps=((None, "orange"),), empty="None, or not exported").decimals(0)),
        ]),
    ], collapsed=True)  # fmt: skip
