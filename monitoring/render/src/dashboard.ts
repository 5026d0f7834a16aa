// The part of Grafana's dashboard schema that the kit's dashboards use. What is not drawn is said, never skipped.
import type { FieldConfig } from '@grafana/data';

export interface Target {
  expr: string;
  legendFormat?: string;
  refId: string;
  format?: string;
}

export interface Panel {
  id: number;
  type: string;
  title: string;
  description?: string;
  gridPos: { x: number; y: number; w: number; h: number };
  fieldConfig: { defaults: FieldConfig; overrides: unknown[] };
  options: Record<string, any>;
  targets: Target[];
  transformations?: unknown[];
}

export interface Variable {
  name: string;
  type: string;
  allValue?: string;
}

export interface Dashboard {
  title: string;
  uid: string;
  description?: string;
  panels: Panel[];
  templating: { list: Variable[] };
  time: { from: string; to: string };
}

export const DRAWN_KINDS = ['stat', 'timeseries', 'heatmap'];

/** Why a panel cannot be drawn as Grafana would; null when it can. */
export function whyNotDrawn(panel: Panel): string | null {
  if (!DRAWN_KINDS.includes(panel.type)) {
    return `this page draws ${DRAWN_KINDS.join(', ')}; not ${panel.type}`;
  }
  if (panel.fieldConfig.overrides.length > 0) {
    return 'this page does not apply field overrides';
  }
  if ((panel.transformations ?? []).length > 0) {
    return 'this page does not apply transformations';
  }
  return null;
}

const UNIT_SECONDS: Record<string, number> = { s: 1, m: 60, h: 3600, d: 86400 };

/** `15m` or `now-15m` as seconds. */
export function durationSeconds(text: string): number {
  const found = /^(?:now-)?(\d+)([smhd])$/.exec(text);
  const seconds = found ? Number(found[1]) * (UNIT_SECONDS[found[2]!] ?? 0) : 0;
  if (seconds <= 0) {
    throw new Error(`not a range: ${text} (such as 15m or 2h)`);
  }
  return seconds;
}

/** Grafana's query step: one point for each two pixels, never below the scrape interval, a round number. */
export function stepSeconds(rangeSeconds: number, widthPixels: number, scrapeSeconds: number): number {
  const wanted = Math.max(rangeSeconds / Math.max(widthPixels / 2, 1), scrapeSeconds);
  const round = [1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400];
  return round.find((step) => step >= wanted) ?? 86400;
}

/** A PromQL expression with the dashboard's variables and Grafana's own ones replaced. A variable that is not
 * known is an error: a query with a `$` in it would find nothing and look like "no data". */
export function interpolate(
  expr: string,
  values: Record<string, string>,
  step: number,
  rangeSeconds: number,
  scrapeSeconds: number
): string {
  const all: Record<string, string> = {
    __interval: `${step}s`,
    __rate_interval: `${Math.max(step + scrapeSeconds, 4 * scrapeSeconds)}s`,
    __range: `${rangeSeconds}s`,
    ...values,
  };
  return expr.replace(/\$\{(\w+)\}|\$(\w+)/g, (whole, braced, bare) => {
    const value = all[braced ?? bare];
    if (value === undefined) {
      throw new Error(`no value for the variable ${whole}`);
    }
    return value;
  });
}

/** `{{label}}` replaced by the series' labels, as in Grafana's legends. */
export function legendOf(format: string | undefined, labels: Record<string, string>): string {
  if (!format || format === '__auto') {
    const pairs = Object.entries(labels).filter(([name]) => name !== '__name__');
    return `${labels.__name__ ?? ''}{${pairs.map(([name, value]) => `${name}="${value}"`).join(', ')}}`;
  }
  return format.replace(/\{\{\s*(.+?)\s*\}\}/g, (_, label: string) => labels[label] ?? '');
}
