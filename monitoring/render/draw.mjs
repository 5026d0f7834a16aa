// npm run draw -- --prometheus URL --dashboard NAME --out FILE.png
//
// Serves the built page, one dashboard's JSON and Prometheus's query API on a free loopback port, opens the page
// in headless Chromium and keeps the picture. Exit codes: 0 drawn; 1 the page or Chromium failed; 2 wrong
// options; 5 no such dashboard, or it cannot be read; 15 Prometheus does not answer.
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { basename, dirname, extname, join, resolve, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { chromium } from 'playwright-core';
import { PNG } from 'pngjs';

const HERE = dirname(fileURLToPath(import.meta.url));
const DIST = join(HERE, 'dist');
const DASHBOARDS = resolve(HERE, '../grafana/dashboards');
const SCRAPE_SECONDS = '5'; // the data source's timeInterval in monitoring/grafana/provisioning
const PAGE_LIMIT_MS = 180_000;
const KINDS = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.woff2': 'font/woff2' };
const USAGE = `npm run draw -- --dashboard NAME --out FILE.png [options]
  --dashboard NAME   a file of monitoring/grafana/dashboards, without .json
  --out FILE         the picture (PNG)
  --prometheus URL   default http://127.0.0.1:9090
  --range 15m        how far back; default: the dashboard's own
  --end SECONDS      the end, seconds since the epoch; default: now
  --var NAME=REGEX   a dashboard variable; may be repeated; default: all
  --theme dark|light default dark
  --width PIXELS     default 1600
  --chromium FILE    default /usr/bin/chromium, or $CHROMIUM
  --json             print what was drawn as JSON
Example: npm run draw -- --dashboard verdict --range 15m --out verdict.png`;

class Refusal extends Error {
  constructor(message, code) {
    super(message);
    this.code = code;
  }
}

function readOptions() {
  let values;
  try {
    ({ values } = parseArgs({
      options: {
        prometheus: { type: 'string', default: 'http://127.0.0.1:9090' },
        dashboard: { type: 'string' },
        out: { type: 'string' },
        range: { type: 'string' },
        end: { type: 'string' },
        var: { type: 'string', multiple: true, default: [] },
        theme: { type: 'string', default: 'dark' },
        width: { type: 'string', default: '1600' },
        chromium: { type: 'string', default: process.env.CHROMIUM ?? '/usr/bin/chromium' },
        json: { type: 'boolean', default: false },
        help: { type: 'boolean', default: false },
      },
    }));
  } catch (error) {
    throw new Refusal(`${error.message}\n${USAGE}`, 2);
  }
  if (values.help) {
    console.log(USAGE);
    process.exit(0);
  }
  if (!values.dashboard || !values.out) {
    throw new Refusal(`--dashboard and --out are needed\n${USAGE}`, 2);
  }
  if (!/^\d+$/.test(values.width) || Number(values.width) < 600 || Number(values.width) > 4000) {
    throw new Refusal(`--width ${values.width}: 600 to 4000`, 2);
  }
  if (!['dark', 'light'].includes(values.theme)) {
    throw new Refusal(`--theme ${values.theme}: dark or light`, 2);
  }
  if (values.range !== undefined && !/^[1-9]\d*[smhd]$/.test(values.range)) {
    throw new Refusal(`--range ${values.range}: such as 15m or 2h`, 2);
  }
  if (values.end !== undefined && !/^\d+(\.\d+)?$/.test(values.end)) {
    throw new Refusal(`--end ${values.end}: seconds since the epoch`, 2);
  }
  for (const pair of values.var) {
    if (!/^\w+=/.test(pair)) {
      throw new Refusal(`--var ${pair}: NAME=REGEX`, 2);
    }
  }
  if (!URL.canParse(values.prometheus)) {
    throw new Refusal(`--prometheus ${values.prometheus}: an address such as http://127.0.0.1:9090`, 2);
  }
  return values;
}

async function readDashboard(name) {
  const file = join(DASHBOARDS, `${basename(name, '.json')}.json`);
  try {
    const text = await readFile(file, 'utf8');
    JSON.parse(text);
    return text;
  } catch (error) {
    throw new Refusal(`dashboard ${name}: ${error.message}`, 5);
  }
}

async function refuseDeadPrometheus(base) {
  try {
    const answer = await fetch(new URL('/api/v1/query?query=1', base), { signal: AbortSignal.timeout(10_000) });
    if (answer.ok && (await answer.json()).status === 'success') {
      return;
    }
    throw new Error(`answered ${answer.status}`);
  } catch (error) {
    throw new Refusal(`Prometheus at ${base}: ${error.cause?.message ?? error.message}`, 15);
  }
}

/** Only what the page needs, on loopback: its files, the dashboard, and queries passed on to Prometheus. */
function serve(dashboard, prometheus) {
  const server = createServer(async (request, response) => {
    const url = new URL(request.url, 'http://localhost');
    try {
      if (url.pathname === '/dashboard.json') {
        response.writeHead(200, { 'content-type': 'application/json' }).end(dashboard);
      } else if (url.pathname === '/prometheus/api/v1/query_range') {
        const answer = await fetch(new URL('/api/v1/query_range', prometheus), {
          method: 'POST',
          body: url.searchParams,
        });
        response.writeHead(answer.status, { 'content-type': 'application/json' }).end(await answer.text());
      } else {
        const file = resolve(DIST, `.${url.pathname === '/' ? '/index.html' : decodeURIComponent(url.pathname)}`);
        if (!file.startsWith(DIST + sep)) {
          response.writeHead(404).end();
          return;
        }
        const body = await readFile(file);
        response.writeHead(200, { 'content-type': KINDS[extname(file)] ?? 'application/octet-stream' }).end(body);
      }
    } catch (error) {
      response.writeHead(error.code === 'ENOENT' ? 404 : 502).end(String(error.message));
    }
  });
  return new Promise((done, fail) => {
    server.once('error', fail);
    server.listen(0, '127.0.0.1', () => done(server));
  });
}

async function draw(options, port) {
  const fields = new URLSearchParams({ width: options.width, theme: options.theme, scrape: SCRAPE_SECONDS });
  if (options.range) fields.set('range', options.range);
  if (options.end) fields.set('end', options.end);
  for (const pair of options.var) {
    const [name, ...rest] = pair.split('=');
    fields.set(`var-${name}`, rest.join('='));
  }
  const profile = await mkdtemp(join(tmpdir(), 'deploy-kit-draw-'));
  let browser;
  try {
    browser = await chromium.launchPersistentContext(profile, {
      executablePath: options.chromium,
      headless: true,
      timeout: PAGE_LIMIT_MS,
      viewport: { width: Number(options.width), height: 1000 },
      args: [
        '--no-sandbox', // the page is our own and reaches nothing but this process
        '--disable-gpu',
        '--disable-quic',
        '--no-first-run',
        '--disable-background-networking',
        '--disable-component-update',
        '--disable-sync',
      ],
    });
    const page = await browser.newPage();
    const faults = [];
    page.on('pageerror', (error) => faults.push(error.message));
    await page.goto(`http://127.0.0.1:${port}/?${fields}`, { timeout: PAGE_LIMIT_MS });
    await page.waitForFunction(() => window.report !== undefined, null, { timeout: PAGE_LIMIT_MS });
    const report = await page.evaluate(() => window.report);
    if (report.error !== null || faults.length > 0) {
      throw new Error([report.error, ...faults].filter(Boolean).join('\n'));
    }
    return { report, picture: await page.screenshot({ fullPage: true, timeout: PAGE_LIMIT_MS }) };
  } finally {
    await browser?.close();
    await rm(profile, { recursive: true, force: true });
  }
}

/** The picture in fewer bytes. Chromium dithers gradients, which do not compress: each channel is rounded to an
 * even value (no eye sees it), a third less. It also compresses fast rather than well: the best of three filters. */
function pack(picture) {
  const pixels = PNG.sync.read(picture);
  pixels.data = pixels.data.map((value) => value & 0xfe);
  const tries = [0, 1, 4].map((filterType) =>
    PNG.sync.write(pixels, { colorType: 2, filterType, deflateLevel: 9, deflateStrategy: 0 })
  );
  return tries.reduce((best, next) => (next.length < best.length ? next : best));
}

async function main() {
  const options = readOptions();
  const dashboard = await readDashboard(options.dashboard);
  if (!existsSync(join(DIST, 'index.html'))) {
    throw new Refusal('the page is not built: npm run build', 1);
  }
  if (!existsSync(options.chromium)) {
    throw new Refusal(`no Chromium at ${options.chromium}: install Debian's package chromium, or give --chromium`, 1);
  }
  await refuseDeadPrometheus(options.prometheus);
  const server = await serve(dashboard, options.prometheus);
  try {
    const { report, picture: drawn } = await draw(options, server.address().port);
    const picture = pack(drawn);
    const out = resolve(options.out);
    await mkdir(dirname(out), { recursive: true });
    const beside = `${out}.part`;
    await writeFile(beside, picture);
    await rename(beside, out);
    if (options.json) {
      console.log(JSON.stringify({ out, bytes: picture.length, ...report }));
    } else {
      for (const panel of report.panels) {
        const found = panel.series ? `${panel.series} series, ${panel.samples} samples` : 'no data';
        console.log(`${panel.title} (${panel.type}): ${found}`);
      }
      console.log(`${out}: ${picture.length} bytes`);
    }
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

main().catch((error) => {
  console.error(`draw: ${error.message}`);
  process.exitCode = error instanceof Refusal ? error.code : 1;
});
