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
LOGARITHMIC = common.ScaleDistributionConfig().type(shape.ScaleDistribution.LOG).log(10)
ENDING = shape.LineInterpolation.STEP_BEFORE
"""A value stands for the interval that ends at its time."""

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


def _legend(mode: str = "list", values: Sequence[str] = ()) -> common.VizLegendOptions:
    """Below the panel, with these figures of each series; `hidden`: none."""
    made = common.VizLegendOptions().show_legend(mode != "hidden").display_mode(shape.LegendDisplayMode(mode))
    return made.placement(shape.LegendPlacement.BOTTOM).calcs(list(values))


def plain(panel: Any) -> Any:
    """A legend without figures, a tooltip of the one series that is pointed at, no threshold."""
    tooltip = common.VizTooltipOptions().mode(shape.TooltipDisplayMode.SINGLE).sort(shape.SortOrder.NONE)
    return panel.legend(_legend()).tooltip(tooltip).thresholds(limits(((None, QUIET),)))


def transformed(panel: Any, *steps: tuple[str, dict[str, Any]]) -> Any:
    """What Grafana does with the answers before it shows them: name and options of each step."""
    for name, options in steps:
        panel.with_transformation(model.DataTransformerConfig(id_val=name, options=options))
    return panel


def figure(
    title: str,
    description: str,
    unit: str,
    expression: str,
    *,
    steps: Steps = ((None, QUIET),),
    mappings: Sequence[model.ValueMapping] = (),
    empty: str = UNKNOWN,
    background: bool = False,
    size: int = 28,
) -> Any:
    """A figure. Colour only where a threshold or a mapping means something."""
    panel = _common(stat.Panel(), title, description, unit, [Query(expression, instant=True)], empty)
    panel.thresholds(limits(steps)).color_scheme(by_limits())
    panel.graph_mode(shape.BigValueGraphMode.NONE).justify_mode(shape.BigValueJustifyMode.CENTER)
    panel.color_mode(shape.BigValueColorMode.BACKGROUND_SOLID if background else shape.BigValueColorMode.VALUE)
    panel.text_mode(shape.BigValueTextMode.VALUE).text(common.VizTextDisplayOptions().value_size(size))
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    # Without a value the colour of the lowest threshold would state something unknown.
    panel.mappings([*mappings, *nothing(empty)])
    return panel.min(0).max(1) if unit == "percentunit" else panel


def chart(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    colour: str = "",
    alone: str = "",
    steps: Steps = (),
    stacked: bool = False,
    steps_line: bool = False,
    bars: bool = False,
    values: Sequence[str] = (),
    empty: str = NOT_PRINTED,
) -> Any:
    """Lines over time; gaps stay gaps. `alone`: the colour of a single series, which needs no legend; `steps` draws
    threshold lines; `values` are figures of each series in the legend.
    """
    panel = _common(timeseries.Panel(), title, description, unit, queries, empty)
    panel.line_width(1 if stacked else 2).fill_opacity(70 if stacked or bars else 0)
    panel.show_points(shape.VisibilityMode.NEVER).span_nulls(False)
    panel.color_scheme(fixed(colour or alone) if colour or alone else palette())
    panel.tooltip(common.VizTooltipOptions().mode(shape.TooltipDisplayMode.MULTI).sort(shape.SortOrder.DESCENDING))
    panel.legend(_legend("hidden" if alone else "list", values)).thresholds(limits(steps or ((None, QUIET),)))
    if steps:
        style = shape.GraphThresholdsStyleMode.DASHED
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(style))
    if stacked:
        panel.stacking(common.StackingConfig().mode(shape.StackingMode.NORMAL).group("A"))
    if steps_line:
        panel.line_interpolation(shape.LineInterpolation.STEP_AFTER)
    if bars:
        panel.draw_style(shape.GraphDrawStyle.BARS)
    return panel


def bars(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    steps: Steps = ((None, "blue"),),
    empty: str = NOT_PRINTED,
) -> Any:
    """Horizontal bars, one a series, value and name in text beside them; the values at the end of the shown range."""
    at_end = [query._replace(instant=True) for query in queries]
    panel = _common(bargauge.Panel(), title, description, unit, at_end, empty)
    # Where there is nothing, or 0, a bar still draws its end: it must not have the colour of trouble.
    panel.thresholds(limits(((None, "transparent"), (_SOME, steps[0][1]), *steps[1:]))).color_scheme(by_limits())
    panel.orientation(shape.VizOrientation.HORIZONTAL).display_mode(shape.BarGaugeDisplayMode.BASIC)
    panel.value_mode(shape.BarGaugeValueMode.TEXT).show_unfilled(True).min(0)
    panel.name_placement(shape.BarGaugeNamePlacement.LEFT)
    panel.sizing(shape.BarGaugeSizing.MANUAL).min_viz_height(12).max_viz_height(26).min_viz_width(40)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    return panel.text(common.VizTextDisplayOptions().value_size(15)).display_name("${__series.name}")


def timeline(title: str, description: str, *queries: Query, mappings: list[model.ValueMapping], empty: str) -> Any:
    """A band a series, coloured by its value's mapping, with the text in it; pages of twelve bands."""
    panel = plain(_common(statetimeline.Panel(), title, description, "none", queries, empty))
    panel.mappings(mappings).merge_values(True).show_value(shape.VisibilityMode.AUTO).per_page(12)
    panel.row_height(0.85).line_width(0).fill_opacity(85).span_nulls(False)
    # A colour by thresholds would replace the mapping's text by the threshold's range.
    return panel.align_value(shape.TimelineValueAlignment.LEFT).color_scheme(fixed("transparent"))


def buckets(title: str, description: str, unit: str, series: str, *, empty: str) -> Any:
    """A heatmap of a Prometheus histogram, five minutes a column, with the scale of its colours below it."""
    query = Query(f"sum by (le) (increase({series}[$__rate_interval]))", "{{le}}", format="heatmap")
    panel = _common(heatmap.Panel(), title, description, unit, [query], empty)
    panel.calculate(False).cell_gap(1).interval("5m").show_legend()
    panel.y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(shape.AxisPlacement.LEFT))
    colours = heatmap.HeatmapColorOptions().mode(heatmap_shape.HeatmapColorMode.SCHEME).scheme("Oranges")
    panel.color(colours.steps(32).exponent(0.5))
    tooltip = heatmap.HeatmapTooltip().mode(shape.TooltipDisplayMode.SINGLE).y_histogram(True).show_color_scale(True)
    return panel.tooltip(tooltip)
