import { dateTime, type TimeRange } from '@grafana/data';
import { Badge, PanelChrome, useTheme2 } from '@grafana/ui';
import { type Dashboard, type Panel, whyNotDrawn } from './dashboard';
import { type Answer, toFrames } from './frames';
import { HeatmapPanel } from './HeatmapPanel';
import { StatPanel } from './StatPanel';
import { TimeSeriesPanel } from './TimeSeriesPanel';

export interface Drawn {
  panel: Panel;
  answers: Answer[];
  step: number;
}

export interface PageProps {
  dashboard: Dashboard;
  panels: Drawn[];
  from: number;
  to: number;
  width: number;
  /** What `deploy_kit_plan_info` says in the range; empty when no plan was served. */
  rehearsal: Set<string>;
}

const COLUMNS = 24;
const GAP = 8;
const ROW = 30 + GAP;
const HEADER = 92;

export function Page({ dashboard, panels, from, to, width, rehearsal }: PageProps) {
  const range: TimeRange = {
    from: dateTime(from * 1000),
    to: dateTime(to * 1000),
    raw: { from: dateTime(from * 1000), to: dateTime(to * 1000) },
  };
  const column = (width - 2 * GAP + GAP) / COLUMNS;
  const rows = Math.max(...dashboard.panels.map((panel) => panel.gridPos.y + panel.gridPos.h));
  return (
    <div style={{ position: 'relative', width, height: HEADER + rows * ROW + GAP }}>
      <Header dashboard={dashboard} from={from} to={to} rehearsal={rehearsal} />
      {panels.map(({ panel, answers, step }) => (
        <div
          key={panel.id}
          style={{
            position: 'absolute',
            left: GAP + panel.gridPos.x * column,
            top: HEADER + panel.gridPos.y * ROW,
          }}
        >
          <OnePanel
            panel={panel}
            answers={answers}
            step={step}
            range={range}
            width={panel.gridPos.w * column - GAP}
            height={panel.gridPos.h * ROW - GAP}
          />
        </div>
      ))}
    </div>
  );
}

function Header({ dashboard, from, to, rehearsal }: Pick<PageProps, 'dashboard' | 'from' | 'to' | 'rehearsal'>) {
  const theme = useTheme2();
  const at = (seconds: number): string => new Date(seconds * 1000).toISOString().slice(0, 16).replace('T', ' ');
  return (
    <div style={{ padding: '12px 16px 0', display: 'flex', alignItems: 'center', gap: 20 }}>
      <div>
        <div style={{ ...theme.typography.h2, marginBottom: 2 }}>{dashboard.title}</div>
        <div style={{ color: theme.colors.text.secondary }}>{dashboard.description}</div>
      </div>
      <RehearsalMark rehearsal={rehearsal} />
      <div style={{ marginLeft: 'auto', textAlign: 'right', color: theme.colors.text.secondary }}>
        <div>
          {at(from)} to {at(to).slice(11)} UTC
        </div>
        <div>drawn from a live Prometheus with Grafana&rsquo;s npm components; not a Grafana server</div>
      </div>
    </div>
  );
}

function RehearsalMark({ rehearsal }: { rehearsal: Set<string> }) {
  const theme = useTheme2();
  if (rehearsal.size === 1 && rehearsal.has('false')) {
    return null;
  }
  if (!rehearsal.has('true')) {
    return <Badge color="orange" text="no plan in this range: rehearsal or not is unknown" />;
  }
  return (
    <div
      style={{
        background: theme.colors.warning.main,
        color: theme.colors.warning.contrastText,
        padding: '6px 16px',
        borderRadius: 4,
        lineHeight: 1.25,
      }}
    >
      <div style={{ fontSize: 22, fontWeight: 500, letterSpacing: 2 }}>REHEARSAL</div>
      <div style={{ fontSize: 12 }}>a tiny model on a CPU: no number here says anything about a GPU</div>
    </div>
  );
}

function OnePanel({
  panel,
  answers,
  step,
  range,
  width,
  height,
}: Drawn & { range: TimeRange; width: number; height: number }) {
  const theme = useTheme2();
  const refused = whyNotDrawn(panel);
  const frames = toFrames(panel, answers, step, theme, panel.type === 'stat' ? 'thresholds' : 'palette-classic');
  return (
    <PanelChrome title={panel.title} width={width} height={height} padding={panel.type === 'stat' ? 'none' : 'md'}>
      {(innerWidth, innerHeight) => {
        const props = { panel, answers, frames, range, width: innerWidth, height: innerHeight };
        if (refused !== null) {
          return <Words text={`Not drawn: ${refused}`} height={innerHeight} />;
        }
        if (frames.length === 0) {
          return <Words text={panel.fieldConfig.defaults.noValue ?? 'No data'} height={innerHeight} />;
        }
        switch (panel.type) {
          case 'stat':
            return <StatPanel {...props} />;
          case 'heatmap':
            return <HeatmapPanel {...props} />;
          default:
            return <TimeSeriesPanel {...props} />;
        }
      }}
    </PanelChrome>
  );
}

function Words({ text, height }: { text: string; height: number }) {
  const theme = useTheme2();
  return (
    <div
      style={{
        height,
        display: 'flex',
        alignItems: 'center',
        justifyContent: 'center',
        color: theme.colors.text.secondary,
      }}
    >
      {text}
    </div>
  );
}
