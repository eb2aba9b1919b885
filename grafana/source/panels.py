"""One builder a kind of panel. Each asks for a title, a description and a unit, so that none can be forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from grafana_foundation_sdk.builders import bargauge, common, heatmap, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import common as shape
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_shape
from grafana_foundation_sdk.models import prometheus as query_shape

from grafana.source.layout import DATASOURCE
from grafana.source.queries import SEVERITIES, STATES, UNWATCHED

_SOME = 1e-9
NOT_PRINTED = "Not printed by this log"
UNKNOWN = "unknown"
"""The text of a figure without a value; longer words do not fit."""
GREY = "#8e8e8e"
QUIET = "text"

Steps = Sequence[tuple[float | None, str]]
"""Threshold steps: from which value, which colour; the first begins at None."""


# Published trainings reach 30 to 55 % of the peak; below a fifth something is configured wrong.
MFU_STEPS: Steps = ((None, "orange"), (0.2, "dark-yellow"), (0.35, "green"))
# A week at 95 % loses eight hours.
EFFECTIVE_STEPS: Steps = ((None, "orange"), (0.85, "dark-yellow"), (0.95, "green"))
# The slowdown detector's 2 %, and what nobody may overlook.
SLOW_STEPS: Steps = ((None, "green"), (1.02, "dark-yellow"), (1.10, "orange"))
# Seconds of training without a whole checkpoint.
RISK_STEPS: Steps = ((None, "green"), (3600.0, "dark-yellow"), (3 * 3600.0, "orange"))


class Query(NamedTuple):
    """One expression. `instant` gives the value at the end of the shown range only."""

    expression: str
    legend: str = ""
    instant: bool = False
    format: str = "time_series"
    interval: str = ""


def target(query: Query, place: int) -> prometheus.Dataquery:
    """The SDK's query; refIds are A, B, C ..."""
    made = (
        prometheus.Dataquery()
        .datasource(DATASOURCE)
        .expr(query.expression)
        .legend_format(query.legend or "__auto")
        .format(query_shape.PromQueryFormat(query.format))
        .ref_id(chr(ord("A") + place))
    )
    if query.interval:
        made.interval(query.interval)
    return made.instant() if query.instant else made.range()


def limits(steps: Steps) -> build.ThresholdsConfig:
    """Absolute thresholds."""
    return (
        build.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([model.Threshold(value=at, color=colour) for at, colour in steps])
    )


def fixed(colour: str) -> build.FieldColor:
    """One colour for every series."""
    return build.FieldColor().mode(model.FieldColorModeId.FIXED).fixed_color(colour)


def by_limits() -> build.FieldColor:
    """The colour of the threshold that is reached."""
    return build.FieldColor().mode(model.FieldColorModeId.THRESHOLDS)


def palette() -> build.FieldColor:
    """The classic palette in the order of the series. (By name it picks shades that a light theme swallows.)"""
    return build.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC)


def numbers(names: dict[float, tuple[str, str]]) -> list[model.ValueMapping]:
    """Number -> (text, colour)."""
    return [
        model.ValueMap(
            options={
                f"{number:g}": model.ValueMappingResult(text=text, color=colour, index=place)
                for place, (number, (text, colour)) in enumerate(names.items())
            }
        )
    ]


def nothing(text: str) -> list[model.ValueMapping]:
    """What stands where there is no value, in grey."""
    result = model.ValueMappingResult(text=text, color=GREY)
    return [
        model.SpecialValueMap(
            options=model.DashboardSpecialValueMapOptions(match=model.SpecialValueMatch.NULL_AND_NAN, result=result)
        )
    ]


def state_mapping(*, unwatched: bool = False) -> list[model.ValueMapping]:
    """Every state by its number, each in its one colour; `unwatched`: the one that no daemon exports too."""
    states = (*STATES, UNWATCHED) if unwatched else STATES
    return numbers({state.code: (state.name, state.colour) for state in states})


def state_colours(panel: Any) -> Any:
    """Series that are named by a state in that state's colour."""
    for state in STATES:
        panel.override_by_name(state.name, override(color={"mode": "fixed", "fixedColor": state.colour}))
    return panel


def coloured(panel: Any, **colours: str) -> Any:
    """Series in fixed colours, by their names."""
    for name, colour in colours.items():
        panel.override_by_name(name, override(color={"mode": "fixed", "fixedColor": colour}))
    return panel


def banded(panel: Any, ends: Sequence[str], **colours: str) -> Any:
    """A chart whose series `lowest` and `highest` are the edges of a shaded band, the others in these colours; behind
    each name stands one of `ends`.
    """
    edge = {"mode": "fixed", "fixedColor": next(iter(colours.values()))}
    hidden = {"legend": True, "tooltip": False, "viz": False}
    panel.override_by_regexp("/^(lowest|highest) /", override(color=edge, custom__lineWidth=0, custom__hideFrom=hidden))
    for end in ends:  # an override names the other edge to the letter
        filled = override(custom__fillBelowTo=f"lowest {end}", custom__fillOpacity=18)
        panel.override_by_name(f"highest {end}", filled)
    for name, colour in colours.items():
        panel.override_by_regexp(f"/^{name}/", override(color={"mode": "fixed", "fixedColor": colour}))
    return panel


def severity_mapping(above: int = 0) -> list[model.ValueMapping]:
    """Every severity by its number, which begins after `above`."""
    return numbers({above + code: (name, colour) for name, (code, colour) in SEVERITIES.items()})


def run_link(field: str, cluster: str) -> list[dict[str, Any]]:
    """A link to the run's dashboard; the fields hold the run's name and cluster."""
    return [
        {
            "title": "Open the run",
            "url": f"/d/megatron-run?var-run=${{{field}:percentencode}}"
            f"&var-cluster=${{{cluster}:percentencode}}&${{datasource:queryparam}}&${{__url_time_range}}",
        }
    ]


def override(**properties: Any) -> list[model.DynamicConfigValue]:
    """Properties of an override; `custom__width` is `custom.width`."""
    return [model.DynamicConfigValue(id_val=key.replace("__", "."), value=value) for key, value in properties.items()]


def _common(panel: Any, title: str, description: str, unit: str, queries: Sequence[Query], empty: str) -> Any:
    panel.title(title).description(description).unit(unit).datasource(DATASOURCE).no_value(empty)
    for place, query in enumerate(queries):
        panel.with_target(target(query, place))
    return panel


def number(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    steps: Steps = ((None, QUIET),),
    mappings: list[model.ValueMapping] | None = None,
    empty: str = UNKNOWN,
    decimals: int | None = None,
    text: str = "value",
    background: bool = False,
    calculation: str = "lastNotNull",
    size: int = 28,
) -> Any:
    """A figure. Colour only where a threshold or a mapping means something."""
    panel = _common(stat.Panel(), title, description, unit, queries, empty)
    panel.thresholds(limits(steps)).color_scheme(by_limits())
    panel.graph_mode(shape.BigValueGraphMode.NONE).justify_mode(shape.BigValueJustifyMode.CENTER)
    panel.color_mode(shape.BigValueColorMode.BACKGROUND_SOLID if background else shape.BigValueColorMode.VALUE)
    panel.text_mode(shape.BigValueTextMode(text)).text(common.VizTextDisplayOptions().value_size(size))
    panel.reduce_options(common.ReduceDataOptions().calcs([calculation]).values(False))
    # Without a value the colour of the lowest threshold would state something unknown.
    panel.mappings([*(mappings or ()), *nothing(empty)])
    if decimals is not None:
        panel.decimals(decimals)
    if unit == "percentunit":
        panel.min(0).max(1)
    return panel


def chart(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    colour: str | None = None,
    steps: Steps | None = None,
    stacked: bool = False,
    percent: bool = False,
    steps_line: bool = False,
    fill: int = 0,
    empty: str = NOT_PRINTED,
    interval: str = "",
    legend: str = "list",
    values: Sequence[str] = (),
    log: bool = False,
    minimum: float | None = None,
    bars: bool = False,
    decimals: int | None = None,
    soft: tuple[float, float] | None = None,
    before: bool = False,
) -> Any:
    """Lines over time. `percent` is the axis 0 to 100 %; `steps` draws threshold lines; gaps stay gaps; `soft` is what
    the axis shows at least; `before`: a value stands for the interval that ends at its time.
    """
    panel = _common(timeseries.Panel(), title, description, unit, queries, empty)
    panel.line_width(1 if stacked else 2).fill_opacity(70 if stacked or bars else fill)
    panel.show_points(shape.VisibilityMode.NEVER).span_nulls(False)
    panel.color_scheme(fixed(colour) if colour else palette())
    panel.tooltip(common.VizTooltipOptions().mode(shape.TooltipDisplayMode.MULTI).sort(shape.SortOrder.DESCENDING))
    panel.legend(
        common.VizLegendOptions()
        .show_legend(legend != "hidden")
        .display_mode(shape.LegendDisplayMode(legend))
        .placement(shape.LegendPlacement.BOTTOM)
        .calcs(list(values))
    )
    panel.thresholds(limits(steps or ((None, QUIET),)))
    if steps:
        style = shape.GraphThresholdsStyleMode.DASHED
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(style))
    if stacked:
        panel.stacking(common.StackingConfig().mode(shape.StackingMode.NORMAL).group("A"))
    if steps_line:
        panel.line_interpolation(shape.LineInterpolation.STEP_BEFORE if before else shape.LineInterpolation.STEP_AFTER)
    if soft:
        panel.axis_soft_min(soft[0]).axis_soft_max(soft[1])
    if bars:
        panel.draw_style(shape.GraphDrawStyle.BARS)
    if log:
        panel.scale_distribution(common.ScaleDistributionConfig().type(shape.ScaleDistribution.LOG).log(10))
    if percent:
        panel.min(0).max(1)
    if minimum is not None:
        panel.min(minimum)
    if interval:
        panel.interval(interval)
    if decimals is not None:
        panel.decimals(decimals)
    return panel


def bars(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    steps: Steps = ((None, "blue"),),
    empty: str = NOT_PRINTED,
    maximum: float | None = None,
    decimals: int | None = None,
) -> Any:
    """Horizontal bars, one a series, value and name in text beside them."""
    panel = _common(bargauge.Panel(), title, description, unit, queries, empty)
    # Where there is nothing, or 0, a bar still draws its end: it must not have the colour of trouble.
    panel.thresholds(limits(((None, "transparent"), (_SOME, steps[0][1]), *steps[1:]))).color_scheme(by_limits())
    panel.orientation(shape.VizOrientation.HORIZONTAL).display_mode(shape.BarGaugeDisplayMode.BASIC)
    panel.value_mode(shape.BarGaugeValueMode.TEXT).show_unfilled(True).min(0)
    panel.name_placement(shape.BarGaugeNamePlacement.LEFT)
    panel.sizing(shape.BarGaugeSizing.MANUAL).min_viz_height(12).max_viz_height(26).min_viz_width(40)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    panel.text(common.VizTextDisplayOptions().value_size(15)).display_name("${__series.name}")
    if maximum is not None:
        panel.max(maximum)
    if decimals is not None:
        panel.decimals(decimals)
    return panel


def timeline(
    title: str, description: str, *queries: Query, mappings: list[model.ValueMapping], empty: str, per_page: int = 12
) -> Any:
    """A band a series, coloured by its value's mapping, with the text in it; pages of `per_page` bands."""
    panel = _common(statetimeline.Panel(), title, description, "none", queries, empty)
    panel.mappings(mappings).merge_values(True).show_value(shape.VisibilityMode.AUTO).per_page(per_page)
    panel.row_height(0.85).line_width(0).fill_opacity(85).span_nulls(False)
    # A colour by thresholds would replace the mapping's text by the threshold's range.
    panel.align_value(shape.TimelineValueAlignment.LEFT).color_scheme(fixed("transparent")).thresholds(
        limits(((None, QUIET),))
    )
    panel.legend(
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(shape.LegendDisplayMode.LIST)
        .placement(shape.LegendPlacement.BOTTOM)
    )
    panel.tooltip(common.VizTooltipOptions().mode(shape.TooltipDisplayMode.SINGLE).sort(shape.SortOrder.NONE))
    return panel


def buckets(title: str, description: str, unit: str, query: Query, interval: str = "", empty: str = NOT_PRINTED) -> Any:
    """A heatmap of a Prometheus histogram, with the scale of its colours below it."""
    panel = _common(heatmap.Panel(), title, description, unit, [query], empty)
    panel.calculate(False).cell_gap(1)
    panel.y_axis(heatmap_shape_axis(unit))
    panel.color(heatmap_color().mode(heatmap_shape.HeatmapColorMode.SCHEME).scheme("Oranges").steps(32).exponent(0.5))
    panel.tooltip(heatmap_tooltip().mode(shape.TooltipDisplayMode.SINGLE).y_histogram(True).show_color_scale(True))
    panel.show_legend()
    if interval:
        panel.interval(interval)
    return panel


def heatmap_shape_axis(unit: str) -> Any:
    """The axis of buckets."""
    return heatmap.YAxisConfig().unit(unit).axis_placement(shape.AxisPlacement.LEFT)


heatmap_color = heatmap.HeatmapColorOptions
heatmap_tooltip = heatmap.HeatmapTooltip
