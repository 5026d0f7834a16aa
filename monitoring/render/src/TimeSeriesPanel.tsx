import { TimeSeries } from '@grafana/ui';
import type { PanelProps } from './PanelProps';

// What a row of the legend's table takes, and the share of the panel that the layout gives the legend at most.
const LEGEND_ROW = 23;
const LEGEND_SHARE = 0.35;

/** A time series panel: the TimeSeries component that @grafana/ui publishes (legend, stacking, thresholds). */
export function TimeSeriesPanel({ panel, frames, range, width, height }: PanelProps) {
  // A picture cannot be scrolled: a table that does not fit is written as a list instead.
  const fits = (frames.length + 1) * LEGEND_ROW <= height * LEGEND_SHARE;
  const asked = panel.options.legend;
  const legend = asked.displayMode === 'table' && !fits ? { ...asked, displayMode: 'list', calcs: [] } : asked;
  return (
    <TimeSeries
      frames={frames}
      structureRev={1}
      timeRange={range}
      timeZone="utc"
      legend={legend}
      options={panel.options}
      width={width}
      height={height}
    />
  );
}
