"""One builder a kind of panel, from what its YAML says."""

from collections.abc import Iterable, Sequence
from typing import Any

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    heatmap,
    stat,
    statetimeline,
    timeseries,
    trend,
)
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import common as shape
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_shape

from grafana.source.schema import Bars, BoardError, Chart, Figure, Heatmap, Mapping, Steps, Timeline, Trend, shared

DATASOURCE = shape.DataSourceRef(type_val="prometheus", uid="${datasource}")
GREY = "#8e8e8e"
ENDS = ("·", "(log)")
"""Behind the names of series while the axis is to be linear or logarithmic (`$scale`): overrides see names alone."""
_SOME = 1e-9
_DRAWN = {"steps": shape.LineInterpolation.STEP_AFTER, "intervals": shape.LineInterpolation.STEP_BEFORE}
"""`intervals`: a value stands for the interval that ends at its time."""


def named(known: dict[str, Any], value: Any, what: str) -> Any:
    """What shared.yaml has under a name; what is spelt out as it is."""
    if isinstance(value, str) and value not in known:
        raise BoardError(f"no {what} is called {value!r}: {', '.join(known)}")
    return known[value] if isinstance(value, str) else value


def limits(steps: str | Steps) -> build.ThresholdsConfig:
    """Absolute thresholds."""
    found: list[model.Threshold] = []
    for step in named(shared().steps, steps, "steps"):
        pairs = {None: step} if isinstance(step, str) else step  # the first one begins at the least
        found += [model.Threshold(value=at, color=colour) for at, colour in pairs.items()]
    return build.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(found)


def numbers(mapping: str | Mapping) -> list[model.ValueMapping]:
    """Number -> (text, colour)."""
    names: Mapping = named(shared().mappings, mapping, "mapping")
    results = {
        f"{number:g}": model.ValueMappingResult(text=text, color=colour, index=place)
        for place, (number, (text, colour)) in enumerate(names.items())
    }
    return [model.ValueMap(options=results)] if results else []


def nothing(text: str) -> list[model.ValueMapping]:
    """What stands where there is no value, in grey."""
    result = model.ValueMappingResult(text=text, color=GREY)
    empty = model.DashboardSpecialValueMapOptions(match=model.SpecialValueMatch.NULL_AND_NAN, result=result)
    return [model.SpecialValueMap(options=empty)]


def run_link(field: str, cluster: str) -> tuple[str, str]:
    """Title and address of a link to the run's dashboard; the fields hold the run's name and cluster."""
    chosen = f"var-run=${{{field}:percentencode}}&var-cluster=${{{cluster}:percentencode}}"
    return "Open the run", f"/d/megatron-run?{chosen}&${{datasource:queryparam}}&${{__url_time_range}}"


def override(panel: Any, matcher: str, **properties: Any) -> None:
    """Properties of the series or column of a name, or of a `/regular expression/`."""
    values = [model.DynamicConfigValue(id_val=name, value=value) for name, value in properties.items()]
    (panel.override_by_regexp if matcher.startswith("/") else panel.override_by_name)(matcher, values)


def _coloured(panel: Any, colours: str | dict[str, str]) -> None:
    for series, colour in named(shared().colours, colours, "colours").items():
        override(panel, series, color={"mode": "fixed", "fixedColor": colour})


def transformed(panel: Any, steps: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """What Grafana does with the answers before it shows them: name and options of each step."""
    for name, options in steps:
        panel.with_transformation(model.DataTransformerConfig(id_val=name, options=options))


def _fixed(colour: str) -> build.FieldColor:
    return build.FieldColor().mode(model.FieldColorModeId.FIXED).fixed_color(colour)


def _by_limits() -> build.FieldColor:
    return build.FieldColor().mode(model.FieldColorModeId.THRESHOLDS)


def _palette() -> build.FieldColor:
    """The classic palette in the order of the series. (By name it picks shades that a light theme swallows.)"""
    return build.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC)


def _legend(mode: str = "list", values: Sequence[str] = ()) -> common.VizLegendOptions:
    """Below the panel, with these figures of each series; `hidden`: none."""
    made = common.VizLegendOptions().show_legend(mode != "hidden").display_mode(shape.LegendDisplayMode(mode))
    return made.placement(shape.LegendPlacement.BOTTOM).calcs(list(values))


def _plain(panel: Any) -> None:
    """A legend without figures, a tooltip of the one series that is pointed at, no threshold."""
    tooltip = common.VizTooltipOptions().mode(shape.TooltipDisplayMode.SINGLE).sort(shape.SortOrder.NONE)
    panel.legend(_legend()).tooltip(tooltip).thresholds(limits(("text",)))


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


def figure(panel: stat.Panel, spec: Figure) -> None:
    """Colour only where a threshold or a mapping means something."""
    panel.thresholds(limits(spec.steps)).color_scheme(_by_limits())
    panel.graph_mode(shape.BigValueGraphMode.NONE).justify_mode(shape.BigValueJustifyMode.CENTER)
    panel.color_mode(shape.BigValueColorMode.BACKGROUND_SOLID if spec.background else shape.BigValueColorMode.VALUE)
    panel.text_mode(shape.BigValueTextMode.VALUE).text(common.VizTextDisplayOptions().value_size(spec.size))
    panel.reduce_options(_last())
    # Without a value the colour of the lowest threshold would state something unknown.
    panel.mappings([*numbers(spec.mapping), *nothing(spec.empty)])
    if spec.unit == "percentunit":
        panel.min(0).max(1)


def chart(panel: timeseries.Panel, spec: Chart) -> None:
    """Gaps stay gaps."""
    panel.line_width(1 if spec.stacked else 2).fill_opacity(70 if spec.stacked or spec.draw == "bars" else 0)
    panel.show_points(shape.VisibilityMode.NEVER).span_nulls(False)
    one = spec.colour or spec.alone
    panel.color_scheme(_fixed(one) if one else _palette())
    panel.tooltip(common.VizTooltipOptions().mode(shape.TooltipDisplayMode.MULTI).sort(shape.SortOrder.DESCENDING))
    panel.legend(_legend("hidden" if spec.alone else "list", spec.legend_values))
    panel.thresholds(limits(spec.steps or ("text",)))
    if spec.steps:
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(shape.GraphThresholdsStyleMode.DASHED))
    if spec.stacked:
        panel.stacking(common.StackingConfig().mode(shape.StackingMode.NORMAL).group("A"))
    if spec.draw in _DRAWN:
        panel.line_interpolation(_DRAWN[spec.draw])
    elif spec.draw == "bars":
        panel.draw_style(shape.GraphDrawStyle.BARS)
    if spec.band:
        _banded(panel, spec.band)
    _coloured(panel, spec.colours)
    if spec.scale == "log":
        panel.scale_distribution(common.ScaleDistributionConfig().type(shape.ScaleDistribution.LOG).log(10))
    elif spec.scale == "chosen":
        override(panel, "/[(]log[)]$/", **{"custom.scaleDistribution": {"type": "log", "log": 10}})


def _banded(panel: timeseries.Panel, colour: str) -> None:
    """The series `lowest` and `highest` are the edges of a shaded band."""
    edge = {
        "color": {"mode": "fixed", "fixedColor": colour},
        "custom.lineWidth": 0,
        "custom.hideFrom": {"legend": True, "tooltip": False, "viz": False},
    }
    override(panel, "/^(lowest|highest) /", **edge)
    for end in ENDS:  # an override names the other edge to the letter
        override(panel, f"highest {end}", **{"custom.fillBelowTo": f"lowest {end}", "custom.fillOpacity": 18})


def bars(panel: bargauge.Panel, spec: Bars) -> None:
    """Value and name stand in text beside each bar."""
    panel.orientation(shape.VizOrientation.HORIZONTAL).display_mode(shape.BarGaugeDisplayMode.BASIC)
    panel.value_mode(shape.BarGaugeValueMode.TEXT).show_unfilled(True).min(0)
    panel.name_placement(shape.BarGaugeNamePlacement.LEFT)
    panel.sizing(shape.BarGaugeSizing.MANUAL).min_viz_height(12).max_viz_height(26).min_viz_width(40)
    panel.reduce_options(_last())
    panel.text(common.VizTextDisplayOptions().value_size(15)).display_name("${__series.name}")
    # Where there is nothing, or 0, a bar still draws its end: it must not have the colour of trouble.
    least, *others = named(shared().steps, spec.steps, "steps")
    panel.thresholds(limits(("transparent", {_SOME: least}, *others))).color_scheme(_by_limits())
    _coloured(panel, spec.colours)


def timeline(panel: statetimeline.Panel, spec: Timeline) -> None:
    """Pages of twelve bands."""
    _plain(panel)
    tables = spec.mapping if isinstance(spec.mapping, list) else [spec.mapping]
    panel.mappings([one for table in tables for one in numbers(table)])
    panel.merge_values(True).show_value(shape.VisibilityMode.AUTO).per_page(12)
    panel.row_height(0.85).line_width(0).fill_opacity(85).span_nulls(False)
    # A colour by thresholds would replace the mapping's text by the threshold's range.
    panel.align_value(shape.TimelineValueAlignment.LEFT).color_scheme(_fixed("transparent"))


def buckets(panel: heatmap.Panel, spec: Heatmap) -> None:
    """A minute a column at least, so that a short range has some, with the scale of its colours below it."""
    panel.calculate(False).cell_gap(1).interval("1m").show_legend()
    panel.y_axis(heatmap.YAxisConfig().unit(spec.unit).axis_placement(shape.AxisPlacement.LEFT))
    colours = heatmap.HeatmapColorOptions().mode(heatmap_shape.HeatmapColorMode.SCHEME).scheme("Oranges")
    panel.color(colours.steps(32).exponent(0.5))
    tooltip = heatmap.HeatmapTooltip().mode(shape.TooltipDisplayMode.SINGLE).y_histogram(True)
    panel.tooltip(tooltip.show_color_scale(True))


def over_x(panel: trend.Panel, spec: Trend) -> None:
    """The rows of `by_x`, parted by run and joined by x, one column a run. Of an x that stands still, as that of a run
    that hangs, or comes again after a restart, the last value: the panel wants an x that grows.
    """
    _plain(panel)
    key: dict[str, Any] = {"operation": "groupby", "aggregations": []}
    last: dict[str, Any] = {"operation": "aggregate", "aggregations": ["lastNotNull"]}
    value = "Value (lastNotNull)"
    order = {"indexByName": {"x": 0, value: 1, "run": 2}, "excludeByName": {}, "renameByName": {value: spec.y}}
    transformed(panel, (
        ("convertFieldType", {"conversions": [{"targetField": "x", "destinationType": "number"}], "fields": {}}),
        ("groupBy", {"fields": {"x": key, "run": key, "Value": last}}),
        ("sortBy", {"fields": {}, "sort": [{"field": "x"}]}),  # a restart goes back, and other iterations are seen
        ("sortBy", {"fields": {}, "sort": [{"field": "run"}]}),  # so that a run has the colour of the chart beside it
        ("organize", order),
        ("partitionByValues", {"fields": ["run"], "keepFields": False, "naming": {"asLabels": True}}),
        ("joinByField", {"byField": "x", "mode": "outer"}),
    ))  # fmt: skip
    panel.color_scheme(_palette()).axis_label(spec.y)
    panel.draw_style(shape.GraphDrawStyle.POINTS if spec.points else shape.GraphDrawStyle.LINE).line_width(2)
    panel.show_points(shape.VisibilityMode.ALWAYS if spec.points else shape.VisibilityMode.NEVER).point_size(10)
    panel.span_nulls(not spec.points).display_name("${__field.labels.run}")
    override(panel, "x", **{"custom.axisLabel": spec.x, "displayName": spec.x})
