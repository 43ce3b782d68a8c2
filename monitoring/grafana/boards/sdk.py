"""Turns a board into Grafana's own model of a dashboard."""

from __future__ import annotations

from typing import TypeVar

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from boards.panel import Board, Panel

# The reader picks the data source, so that the files work in any Grafana.
DATASOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
# Grafana matches a pattern without slashes against the whole name.
TIER_COLORS = (
    ("/^device$/", "#73BF69"),
    ("/^host$/", "#FF9830"),
    ("/^storage$/", "#B877D9"),
    ("/^computed$/", "#8E8E8E"),
)

PanelBuilder = stat.Panel | timeseries.Panel | table.Panel
Built = TypeVar("Built", stat.Panel, timeseries.Panel, table.Panel)


def dashboard_of(board: Board) -> dashboard.Dashboard:
    """Build the dashboard, with panels numbered in reading order."""
    built = (
        builders.Dashboard(board.title)
        .uid(board.uid)
        .description(board.purpose)
        .tags(["hiqcache"])
        .readonly()
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .time("now-30m", "now")
        .refresh("5s")
        .timezone("browser")
        .with_variable(
            builders.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
        .with_variable(
            builders.QueryVariable("variant")
            .label("Variant")
            .datasource(DATASOURCE)
            .query({"query": "label_values(hiqcache_up, variant)", "refId": "variant"})
            .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            # Not the list of variants: one sidecar for several engines has figures without any.
            .all_value(".*")
            .current(dashboard.VariableOption(selected=True, text=["All"], value=["$__all"]))
        )
    )
    built.links([_Link(board.other)])
    number = 0
    for row in board.rows:
        number += 1
        built.with_row(builders.Row(row.title).id(number))
        for panel in row.panels:
            number += 1
            built.with_panel(_panel(panel).id(number))
    return built.build()


class _Link(builders.DashboardLink):
    """A link to the other board, with the same variables and time."""

    def __init__(self, uid: str) -> None:
        super().__init__(f"{uid.removeprefix('hiqcache-').capitalize()} board")
        self.type(dashboard.DashboardLinkType.LINK).icon("dashboard").url(f"/d/{uid}")
        self.include_vars(True).keep_time(True)
        # The SDK puts every link into a menu; without a placement it stands at the board's top.
        self._internal.placement = None  # type: ignore[assignment]


def _panel(panel: Panel) -> PanelBuilder:
    if panel.kind == "stat":
        return _common(_stat(), panel)
    if panel.kind == "table":
        return _common(_table(), panel)
    return _common(_timeseries(panel), panel)


def _stat() -> stat.Panel:
    return (
        stat.Panel()
        .graph_mode(common.BigValueGraphMode.NONE)
        .color_mode(common.BigValueColorMode.VALUE)
        .text_mode(common.BigValueTextMode.VALUE_AND_NAME)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    )


def _table() -> table.Panel:
    hide = {"Time": True, "Value": True}
    return (
        table.Panel()
        .show_header(True)
        .with_transformation(
            dashboard.DataTransformerConfig(id_val="organize", options={"excludeByName": hide})
        )
    )


def _timeseries(panel: Panel) -> timeseries.Panel:
    built = (
        timeseries.Panel()
        .line_width(2)
        .show_points(common.VisibilityMode.NEVER)
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.TABLE)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
    )
    if panel.kind == "stack":
        built.fill_opacity(40).stacking(
            common_builders.StackingConfig().mode(common.StackingMode.NORMAL)
        )
    elif len(panel.queries) > 1:
        # What belongs together is told apart by more than colour.
        dashed = dashboard.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 6]})
        built.override_by_query("B", [dashed])
    return built


def _common(built: Built, panel: Panel) -> Built:
    built.title(panel.title).description(panel.description).datasource(DATASOURCE)
    built.unit(panel.unit).no_value(panel.no_value)
    built.span(panel.width).height(panel.height)
    if panel.decimals is not None:
        built.decimals(panel.decimals)
    if panel.minimum is not None:
        built.min(panel.minimum)
    if panel.maximum is not None:
        built.max(panel.maximum)
    if panel.steps:
        steps = [dashboard.Threshold(step.value, step.color) for step in panel.steps]
        built.thresholds(
            builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps)
        )
    if panel.words:
        results = {
            value: dashboard.ValueMappingResult(text=text, color=color)
            for value, text, color in panel.words
        }
        built.mappings([dashboard.ValueMap(options=results)])
    if panel.repeat:
        built.repeat("variant").repeat_direction("h").max_per_row(2)
    if panel.kind == "stack":
        for pattern, color in TIER_COLORS:
            fixed = dashboard.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color})
            built.override_by_regexp(pattern, [fixed])
    elif not panel.steps and not panel.words:
        # By name: a variant has one colour wherever it stands, and any variant has one.
        by_name = dashboard.FieldColorModeId.PALETTE_CLASSIC_BY_NAME
        built.color_scheme(builders.FieldColor().mode(by_name))
    for letter, query in zip("ABCD", panel.queries, strict=False):
        target = (
            prometheus.Dataquery()
            .ref_id(letter)
            .datasource(DATASOURCE)
            .expr(query.expr)
            .legend_format(query.legend)
        )
        if panel.kind == "table":
            target.format(PromQueryFormat.TABLE)
        if panel.kind in ("stat", "table"):
            target.instant()
        else:
            target.range()
        built.with_target(target)
    return built
