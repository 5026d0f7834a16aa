// @grafana/ui publishes no heat map. This one is ours: the cells are drawn by a hook of Grafana's uPlot chart,
// with Grafana's axes and the colour scheme that the panel names.
import { type GrafanaTheme2, getValueFormat, formattedValueToString } from '@grafana/data';
import { AxisPlacement, ScaleDirection, ScaleOrientation, UPlotChart, UPlotConfigBuilder, useTheme2 } from '@grafana/ui';
import * as schemes from 'd3-scale-chromatic';
import { useMemo } from 'react';
import type uPlot from 'uplot';
import { type Heat, heatOf } from './buckets';
import type { PanelProps } from './PanelProps';

const SCALE_HEIGHT = 22;

/** From dark to light on a dark page, the other way round on a light one, as Grafana does. */
function colourOf(scheme: string, theme: GrafanaTheme2): (share: number) => string {
  const found = (schemes as Record<string, unknown>)[`interpolate${scheme}`];
  if (typeof found !== 'function') {
    throw new Error(`no colour scheme ${scheme}`);
  }
  return (share) => (found as (at: number) => string)(theme.isDark ? 1 - share : share);
}

export function HeatmapPanel({ panel, answers, range, width, height }: PanelProps) {
  const theme = useTheme2();
  const heat = useMemo(() => heatOf(answers.flatMap((answer) => answer.series)), [answers]);
  const colour = colourOf(panel.options.color.scheme, theme);
  if (heat === null) {
    return null;
  }
  const unit = getValueFormat(panel.options.yAxis.unit);
  const label = (bound: number): string =>
    bound === Infinity ? '+Inf' : formattedValueToString(unit(bound, bound < 10 ? undefined : 0));
  const from = range.from.valueOf();
  const to = range.to.valueOf();
  return (
    <div>
      <UPlotChart
        config={configOf(heat, from, to, label, colour, panel.options.cellGap ?? 1, theme)}
        data={[heat.times.map((time) => time * 1000), heat.times.map(() => 0)]}
        width={width}
        height={height - SCALE_HEIGHT}
      />
      <ColourScale colour={colour} largest={heat.largest} />
    </div>
  );
}

function configOf(
  heat: Heat,
  from: number,
  to: number,
  label: (bound: number) => string,
  colour: (share: number) => string,
  gap: number,
  theme: GrafanaTheme2
): UPlotConfigBuilder {
  const rows = heat.bounds.length;
  // A row lies between two edges; edge i is the upper bound of the row below it.
  const edges = [heat.below, ...heat.bounds];
  const builder = new UPlotConfigBuilder('utc');
  builder.addScale({
    scaleKey: 'x',
    isTime: true,
    orientation: ScaleOrientation.Horizontal,
    direction: ScaleDirection.Right,
    range: () => [from, to],
  });
  builder.addScale({
    scaleKey: 'y',
    orientation: ScaleOrientation.Vertical,
    direction: ScaleDirection.Up,
    range: () => [0, rows],
  });
  builder.addAxis({ scaleKey: 'x', isTime: true, placement: AxisPlacement.Bottom, timeZone: 'utc', theme });
  builder.addAxis({
    scaleKey: 'y',
    placement: AxisPlacement.Left,
    theme,
    grid: { show: false },
    splits: (u) => {
      const every = Math.max(1, Math.ceil((rows * 16) / (u.bbox.height / devicePixelRatio)));
      return edges.map((_, index) => index).filter((index) => index % every === 0);
    },
    values: (_u, splits) => splits.map((index) => label(edges[index]!)),
  });
  builder.addSeries({ scaleKey: 'y', pathBuilder: () => null, pointsBuilder: () => false, theme });
  builder.addHook('draw', (u: uPlot) => {
    const step = Math.min(...heat.times.slice(1).map((time, index) => time - heat.times[index]!)) * 1000;
    const { ctx } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    ctx.clip();
    heat.counts.forEach((row, rowIndex) => {
      const top = u.valToPos(rowIndex + 1, 'y', true);
      const bottom = u.valToPos(rowIndex, 'y', true);
      row.forEach((count, column) => {
        if (count === null || count <= 1e-9) {
          return;
        }
        const right = u.valToPos(heat.times[column]! * 1000, 'x', true);
        const left = u.valToPos(heat.times[column]! * 1000 - step, 'x', true);
        const space = right - left > 4 * gap ? gap : 0;
        ctx.fillStyle = colour(count / heat.largest);
        ctx.fillRect(left, top, right - left - space, bottom - top - gap);
      });
    });
    ctx.restore();
  });
  return builder;
}

function ColourScale({ colour, largest }: { colour: (share: number) => string; largest: number }) {
  const theme = useTheme2();
  const stops = Array.from({ length: 17 }, (_, index) => colour(index / 16));
  return (
    <div
      style={{
        display: 'flex',
        alignItems: 'center',
        gap: 8,
        height: SCALE_HEIGHT,
        paddingLeft: 12,
        ...theme.typography.bodySmall,
        color: theme.colors.text.secondary,
      }}
    >
      0
      <div style={{ width: 220, height: 8, background: `linear-gradient(to right, ${stops.join(', ')})` }} />
      {largest.toFixed(largest < 10 ? 1 : 0)} in one bucket and interval
    </div>
  );
}
