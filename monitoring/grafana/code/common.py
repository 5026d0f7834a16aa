"""What every dashboard shares: variables, colours, and panels with unit, legend, thresholds, description."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as board
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, text, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models import prometheus as prometheus_models

DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
INSTANCES = 'instance=~"$instance"'
HOSTS = 'host=~"$host"'
GREEN, AMBER, RED, BLUE, GREY = "#2f9e62", "#d08a1d", "#c4443c", "#3b76c4", "#7d8590"
Query = tuple[str, str]  # expression, legend
Step = tuple[float | None, str]


def dashboard(uid: str, title: str, description: str, *, by: str = "instance") -> board.Dashboard:
    """Return an empty dashboard with the data-source variable and `$instance` or `$host`."""
    variable = (
        ("instance", "Engine", "label_values(deploy_kit_up, instance)")
        if by == "instance"
        else ("host", "Host", "label_values(up, host)")
    )
    return (
        board.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["deploy-kit"])
        .refresh("5s")
        .time("now-30m", "now")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .with_variable(board.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(
            board.QueryVariable(variable[0])
            .label(variable[1])
            .datasource(DATASOURCE)
            .query(variable[2])
            .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .include_all(True)
            .multi(True)
            .all_value(".*")
            .current(models.VariableOption(selected=True, text="All", value="$__all"))
        )
    )


def steps(values: Sequence[Step]) -> Builder[models.ThresholdsConfig]:
    """Given (from value, colour) pairs, the first from minus infinity, return thresholds."""
    return (
        board.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value=value, color=colour) for value, colour in values])
    )


def _queries(panel: Any, queries: Sequence[Query], *, instant: bool = False, table: bool = False) -> Any:
    for index, (expression, legend) in enumerate(queries):
        query = (
            prometheus.Dataquery().ref_id(chr(65 + index)).expr(expression).legend_format(legend)
            .datasource(DATASOURCE)
        )  # fmt: skip
        query = query.instant() if instant else query.range()
        if table:
            query = query.format(prometheus_models.PromQueryFormat.HEATMAP)
        panel = panel.with_target(query)
    return panel


def number(
    title: str, description: str, queries: Sequence[Query], *, unit: str, thresholds: Sequence[Step],
    width: int = 6, height: int = 6, decimals: int = 2, minimum: float | None = None,
    maximum: float | None = None, graph: bool = True,
) -> stat.Panel:  # fmt: skip
    """Return a big number, coloured by thresholds, readable from a distance."""
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .decimals(decimals)
        .thresholds(steps(thresholds))
        .color_mode(common.BigValueColorMode.BACKGROUND)
        .graph_mode(common.BigValueGraphMode.AREA if graph else common.BigValueGraphMode.NONE)
        .text_mode(common.BigValueTextMode.VALUE_AND_NAME)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
        .no_value("no data")
        .span(width)
        .height(height)
    )
    if minimum is not None:
        panel = panel.min(minimum)
    if maximum is not None:
        panel = panel.max(maximum)
    return _queries(panel, queries)  # type: ignore[no-any-return]


def lines(
    title: str, description: str, queries: Sequence[Query], *, unit: str, thresholds: Sequence[Step] = (),
    width: int = 12, height: int = 8, stacked: bool = False, minimum: float | None = 0,
    maximum: float | None = None, bars: bool = False,
) -> timeseries.Panel:  # fmt: skip
    """Return lines over time (or stacked areas, or bars)."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .line_width(2)
        .fill_opacity(70 if stacked else 8)
        .show_points(common.VisibilityMode.NEVER)
        .draw_style(common.GraphDrawStyle.BARS if bars else common.GraphDrawStyle.LINE)
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.TABLE)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
        .no_value("no data")
        .thresholds(steps(thresholds or [(None, BLUE)]))
        .span(width)
        .height(height)
    )
    if thresholds:
        panel = panel.thresholds_style(
            common_builders.GraphThresholdsStyleConfig().mode(common.GraphTresholdsStyleMode.LINE)
        )
    if stacked:
        panel = panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    if minimum is not None:
        panel = panel.min(minimum)
    if maximum is not None:
        panel = panel.max(maximum)
    return _queries(panel, queries)  # type: ignore[no-any-return]


def heat(
    title: str, description: str, expression: str, *, unit: str, width: int = 24, height: int = 10
) -> heatmap.Panel:
    """Return a heat map of a histogram's buckets over time."""
    panel = (
        heatmap.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(common.AxisPlacement.LEFT))
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_models.HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .steps(64)
        )
        .cell_gap(1)
        .show_legend()
        .hide_from(common_builders.HideSeriesConfig().legend(False).tooltip(False).viz(False))
        .thresholds(steps([(None, BLUE)]))
        .span(width)
        .height(height)
    )
    return _queries(panel, [(expression, "{{le}}")], table=True)  # type: ignore[no-any-return]


def note(markdown: str, *, width: int = 24, height: int = 3) -> text.Panel:
    """Return a text panel."""
    return (
        text.Panel()
        .title("")
        .description("Text")
        .content(markdown)
        .span(width)
        .height(height)
        .transparent(True)
    )
