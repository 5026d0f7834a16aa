import type { DataFrame, TimeRange } from '@grafana/data';
import type { Panel } from './dashboard';
import type { Answer } from './frames';

export interface PanelProps {
  panel: Panel;
  answers: Answer[];
  frames: DataFrame[];
  range: TimeRange;
  width: number;
  height: number;
}
