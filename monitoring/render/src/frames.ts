// From Prometheus's series to Grafana's data frames.
import {
  type DataFrame,
  type FieldConfig,
  FieldType,
  type GrafanaTheme2,
  getDisplayProcessor,
  type NumericRange,
  toDataFrame,
} from '@grafana/data';
import type { Panel, Target } from './dashboard';
import { legendOf } from './dashboard';
import { type Series, withGaps } from './prometheus';

export interface Answer {
  target: Target;
  series: Series[];
}

function rangeOf(values: Array<number | null>, { min, max }: FieldConfig): NumericRange {
  const numbers = values.filter((value) => value !== null);
  const low = min ?? numbers.reduce((a, b) => Math.min(a, b), Infinity);
  const high = max ?? numbers.reduce((a, b) => Math.max(a, b), -Infinity);
  return { min: low, max: high, delta: high - low };
}

/** One frame for each series, with the panel's field configuration and Grafana's display processor. */
export function toFrames(
  panel: Panel,
  answers: Answer[],
  step: number,
  theme: GrafanaTheme2,
  colorMode: string
): DataFrame[] {
  const frames: DataFrame[] = [];
  for (const { target, series } of answers) {
    for (const one of series) {
      if (one.points.length === 0) {
        continue;
      }
      const points = withGaps(one.points, step);
      const name = legendOf(target.legendFormat, one.labels);
      const frame = toDataFrame({
        refId: target.refId,
        name,
        fields: [
          {
            name: 'Time',
            type: FieldType.time,
            values: points.map(([at]) => at * 1000),
            config: { interval: step * 1000 },
          },
          {
            name: 'Value',
            type: FieldType.number,
            labels: one.labels,
            values: points.map(([, value]) => value),
            config: {
              color: { mode: colorMode },
              ...panel.fieldConfig.defaults,
              displayNameFromDS: name,
            },
          },
        ],
      });
      const frameIndex = frames.length;
      frame.fields.forEach((field, fieldIndex) => {
        field.state = {
          ...field.state,
          seriesIndex: frameIndex,
          origin: { frameIndex, fieldIndex },
          range: rangeOf(field.values as Array<number | null>, field.config),
          multipleFrames: false,
        };
        field.display = getDisplayProcessor({ field, theme, timeZone: 'utc' });
      });
      frames.push(frame);
    }
  }
  return frames;
}
