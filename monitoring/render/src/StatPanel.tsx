import { type FieldDisplay, getDisplayValueAlignmentFactors, getFieldDisplayValues, VizOrientation } from '@grafana/data';
import { BigValue, BigValueGraphMode, useTheme2, VizRepeater } from '@grafana/ui';
import type { PanelProps } from './PanelProps';

/** A stat panel: Grafana's BigValue, one tile for each series, with Grafana's own reduction and thresholds. */
export function StatPanel({ panel, frames, width, height }: PanelProps) {
  const theme = useTheme2();
  const { reduceOptions, colorMode, graphMode, justifyMode, textMode } = panel.options;
  const getValues = (): FieldDisplay[] =>
    getFieldDisplayValues({
      data: frames,
      fieldConfig: { defaults: panel.fieldConfig.defaults, overrides: [] },
      reduceOptions: { ...reduceOptions, values: false },
      replaceVariables: (text) => text,
      sparkline: graphMode !== BigValueGraphMode.None,
      theme,
      timeZone: 'utc',
    });
  return (
    <VizRepeater
      getValues={getValues}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={({ value, width, height, count, alignmentFactors }) => (
        <BigValue
          value={value.display}
          sparkline={value.sparkline}
          width={width}
          height={height}
          count={count}
          alignmentFactors={alignmentFactors}
          colorMode={colorMode}
          graphMode={graphMode}
          justifyMode={justifyMode}
          textMode={textMode}
          theme={theme}
        />
      )}
      source={frames}
      renderCounter={0}
      width={width}
      height={height}
      orientation={VizOrientation.Auto}
      autoGrid
    />
  );
}
