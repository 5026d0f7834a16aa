// Prometheus's HTTP API, reached through draw.mjs under ./prometheus (the same origin).

export interface Series {
  labels: Record<string, string>;
  /** Seconds since the epoch, and the value; steps without a sample are absent. */
  points: Array<[number, number]>;
}

async function ask(path: string, fields: Record<string, string>): Promise<any> {
  const answer = await fetch(`./prometheus/api/v1/${path}?${new URLSearchParams(fields)}`);
  const text = await answer.text();
  let body: any;
  try {
    body = JSON.parse(text);
  } catch {
    throw new Error(`Prometheus answered ${answer.status}: ${text.slice(0, 200)}`);
  }
  if (body.status !== 'success') {
    throw new Error(`Prometheus: ${body.error ?? answer.status}`);
  }
  return body.data;
}

export async function queryRange(expr: string, from: number, to: number, step: number): Promise<Series[]> {
  const data = await ask('query_range', {
    query: expr,
    start: String(from),
    end: String(to),
    step: String(step),
  });
  return data.result.map((series: any) => ({
    labels: series.metric,
    // Prometheus writes +Inf, -Inf and NaN as words; none of them can be drawn.
    points: series.values
      .map(([at, value]: [number, string]): [number, number] => [at, Number(value)])
      .filter(([, value]: [number, number]) => Number.isFinite(value)),
  }));
}

/** Which plans were served in the range, by their label `rehearsal`. */
export async function rehearsalLabels(from: number, to: number, step: number): Promise<Set<string>> {
  const series = await queryRange('deploy_kit_plan_info', from, to, step);
  return new Set(series.filter((one) => one.points.length > 0).map((one) => one.labels.rehearsal ?? ''));
}

/** The points with a null after each one whose next step has no sample, so that no line crosses the hole. */
export function withGaps(points: Series['points'], step: number): Array<[number, number | null]> {
  return points.flatMap(([at, value], index): Array<[number, number | null]> => {
    const next = points[index + 1];
    const hole = next !== undefined && next[0] - at > 1.5 * step;
    return hole ? [[at, value], [at + step, null]] : [[at, value]];
  });
}
