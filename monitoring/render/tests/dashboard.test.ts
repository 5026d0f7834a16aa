import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { heatOf } from '../src/buckets';
import { type Dashboard, durationSeconds, interpolate, legendOf, stepSeconds, whyNotDrawn } from '../src/dashboard';
import { withGaps } from '../src/prometheus';

const FOLDER = new URL('../../grafana/dashboards/', import.meta.url);
const dashboards = readdirSync(FOLDER)
  .filter((name) => name.endsWith('.json'))
  .map((name): [string, Dashboard] => [name, JSON.parse(readFileSync(new URL(name, FOLDER), 'utf8'))]);

describe.each(dashboards)('%s', (_name, dashboard) => {
  it('has only panels that this page draws', () => {
    expect(dashboard.panels.length).toBeGreaterThan(0);
    expect(dashboard.panels.map(whyNotDrawn).filter(Boolean)).toEqual([]);
  });

  it('leaves no variable in any expression', () => {
    const values = Object.fromEntries(dashboard.templating.list.map((variable) => [variable.name, '.*']));
    for (const target of dashboard.panels.flatMap((panel) => panel.targets)) {
      expect(interpolate(target.expr, values, 5, 1800, 5)).not.toContain('$');
    }
  });
});

describe('queries', () => {
  it('replaces both spellings and Grafana’s own variables', () => {
    expect(interpolate('a{i=~"$instance"}[$__rate_interval] ${instance}', { instance: 'x' }, 5, 60, 5)).toBe(
      'a{i=~"x"}[20s] x'
    );
  });

  it('refuses an unknown variable', () => {
    expect(() => interpolate('a{i="$nothing"}', {}, 5, 60, 5)).toThrow('$nothing');
  });

  it('never asks more often than Prometheus scrapes, and for round steps', () => {
    expect(stepSeconds(60, 1600, 5)).toBe(5);
    expect(stepSeconds(86400, 800, 5)).toBe(300);
  });

  it('reads ranges and refuses others', () => {
    expect(durationSeconds('now-30m')).toBe(1800);
    expect(durationSeconds('2h')).toBe(7200);
    expect(() => durationSeconds('30 minutes')).toThrow();
    expect(() => durationSeconds('0m')).toThrow();
  });

  it('writes legends; a label that is absent leaves nothing', () => {
    expect(legendOf('{{phase}}, {{ instance }}{{no}}', { phase: 'verify', instance: 'a/b' })).toBe('verify, a/b');
  });
});

it('breaks a line where a step has no sample', () => {
  expect(withGaps([[0, 1], [5, 2], [20, 3]], 5)).toEqual([[0, 1], [5, 2], [10, null], [20, 3]]);
});

describe('heat map', () => {
  const bucket = (le: string, ...points: Array<[number, number]>) => ({ labels: { le }, points });

  it('takes each bucket out of the cumulative ones, whatever their order, without empty rows at both ends', () => {
    const heat = heatOf([
      bucket('+Inf', [0, 7], [5, 7]),
      bucket('1', [0, 0], [5, 0]),
      bucket('10', [0, 7], [5, 7]),
      bucket('2', [0, 3], [5, 7]),
      bucket('5', [0, 3], [5, 7]),
    ]);
    expect(heat).toEqual({
      times: [0, 5],
      bounds: [2, 5, 10],
      below: 1,
      counts: [
        [3, 7],
        [0, 0],
        [4, 0],
      ],
      largest: 7,
    });
  });

  it('is absent when nothing was observed', () => {
    expect(heatOf([])).toBeNull();
    expect(heatOf([bucket('1', [0, 0]), bucket('+Inf', [0, 0])])).toBeNull();
  });

  it('keeps a missing sample apart from a zero', () => {
    expect(heatOf([bucket('1', [0, 1], [5, 2]), bucket('2', [0, 4])])?.counts).toEqual([
      [1, 2],
      [3, null],
    ]);
  });
});
