import '@fontsource/inter/latin-400.css';
import '@fontsource/inter/latin-500.css';
import 'uplot/dist/uPlot.min.css';
import { createTheme, ThemeContext } from '@grafana/data';
import { GlobalStyles, PortalContainer } from '@grafana/ui';
import { createRoot } from 'react-dom/client';
import { type Dashboard, durationSeconds, interpolate, stepSeconds } from './dashboard';
import { type Drawn, Page } from './Page';
import { queryRange, rehearsalLabels } from './prometheus';

/** What draw.mjs reads when the page is done. */
interface Report {
  error: string | null;
  panels: Array<{ title: string; type: string; series: number; samples: number }>;
  rehearsal: string[];
}

declare global {
  interface Window {
    report?: Report;
  }
}

async function main(): Promise<Report> {
  const asked = new URLSearchParams(window.location.search);
  const width = Number(asked.get('width') ?? 1600);
  const scrape = Number(asked.get('scrape') ?? 5);
  const dashboard: Dashboard = await (await fetch('./dashboard.json')).json();
  const range = durationSeconds(asked.get('range') ?? dashboard.time.from);
  const to = Math.floor(Number(asked.get('end') ?? Date.now() / 1000));
  const from = to - range;
  const theme = createTheme({ colors: { mode: asked.get('theme') === 'light' ? 'light' : 'dark' } });

  // Each variable takes "All", or the value given for it. The data source is Prometheus whatever it is called.
  const values: Record<string, string> = {};
  for (const variable of dashboard.templating.list) {
    if (variable.type !== 'datasource') {
      values[variable.name] = asked.get(`var-${variable.name}`) ?? variable.allValue ?? '.*';
    }
  }

  const panels: Drawn[] = [];
  for (const panel of dashboard.panels) {
    const step = stepSeconds(range, (width * panel.gridPos.w) / 24, scrape);
    const answers = await Promise.all(
      panel.targets.map(async (target) => ({
        target,
        series: await queryRange(interpolate(target.expr, values, step, range, scrape), from, to, step),
      }))
    );
    panels.push({ panel, answers, step });
  }
  const rehearsal = await rehearsalLabels(from, to, scrape);

  document.body.style.background = theme.colors.background.canvas;
  await document.fonts.load('16px Inter');
  await document.fonts.load('500 16px Inter');
  createRoot(document.getElementById('root')!).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <Page dashboard={dashboard} panels={panels} from={from} to={to} width={width} rehearsal={rehearsal} />
      <PortalContainer />
    </ThemeContext.Provider>
  );
  // Two frames: React's commit, then uPlot's drawing.
  await new Promise((done) => setTimeout(done, 300));
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return {
    error: null,
    panels: panels.map(({ panel, answers }) => {
      const series = answers.flatMap((answer) => answer.series).filter((one) => one.points.length > 0);
      return {
        title: panel.title,
        type: panel.type,
        series: series.length,
        samples: series.reduce((sum, one) => sum + one.points.length, 0),
      };
    }),
    rehearsal: [...rehearsal],
  };
}

main()
  .catch((error: unknown): Report => ({ error: String(error), panels: [], rehearsal: [] }))
  .then((report) => {
    window.report = report;
  });
