// A heat map's cells from the cumulative buckets of a Prometheus histogram.
import type { Series } from './prometheus';

export interface Heat {
  /** Seconds since the epoch, ascending. */
  times: number[];
  /** Upper bounds of the rows drawn, ascending; the last may be Infinity. */
  bounds: number[];
  /** The bound below the first row: 0 when the first row is the histogram's first. */
  below: number;
  /** counts[row][column]; null where Prometheus has no sample. */
  counts: Array<Array<number | null>>;
  largest: number;
}

/** Given one series for each `le`, return how many observations fell into each bucket and interval, without
 * the empty rows below the first and above the last used one. Null when nothing was observed. */
export function heatOf(series: Series[]): Heat | null {
  const rows = series
    .map((one) => ({ bound: boundOf(one.labels.le), at: new Map(one.points) }))
    .filter((row) => !Number.isNaN(row.bound))
    .sort((a, b) => a.bound - b.bound);
  const times = [...new Set(rows.flatMap((row) => [...row.at.keys()]))].sort((a, b) => a - b);
  const counts = rows.map((row, index) =>
    times.map((time) => {
      const here = row.at.get(time);
      if (here === undefined) {
        return null;
      }
      const lower = index === 0 ? 0 : rows[index - 1]!.at.get(time);
      // `increase` extrapolates each bucket by itself, so a difference can fall below zero by rounding.
      return lower === undefined ? null : Math.max(here - lower, 0);
    })
  );
  const used = counts.map((row) => row.some((count) => count !== null && count > 1e-9));
  const first = used.indexOf(true);
  if (first < 0) {
    return null;
  }
  const last = used.lastIndexOf(true);
  const kept = counts.slice(first, last + 1);
  return {
    times,
    bounds: rows.slice(first, last + 1).map((row) => row.bound),
    below: first === 0 ? 0 : rows[first - 1]!.bound,
    counts: kept,
    largest: Math.max(...kept.flat().map((count) => count ?? 0)),
  };
}

function boundOf(le: string | undefined): number {
  return le === '+Inf' ? Infinity : Number(le ?? NaN);
}
