// Asks the node for /cluster every second and draws what it answers.

import { bar, bytes, duration, html, number, overTime, put, room, row, say, spark } from './draw.js';
import { drawMap, mapText } from './map.js';
import { History, kindOf, parted, SPAN } from './model.js';

const EVERY = 1_000;
/** A hidden page asks rarely. */
const EVERY_HIDDEN = 15_000;
const PATIENCE = 8_000;
/** As docs/status.md counts. */
const SCHEMA = 1;

const at = (id) => document.getElementById(id);
const history = new History();
let model = null;
let paused = false;
let answeredAt = null;
let announced = new Set();

// ---- asking ----

async function ask() {
  const response = await fetch('/cluster', { cache: 'no-store', signal: AbortSignal.timeout(PATIENCE) });
  if (response.status === 401) {
    location.reload();
    return;
  }
  if (!response.ok) throw new Error((await response.text()).trim() || `status ${response.status}`);
  const cluster = await response.json();
  if (cluster.schema !== SCHEMA) throw new Error('it is of another version now: reload the page');
  answeredAt = Date.now();
  model = history.add(cluster, answeredAt);
  at('stale').hidden = true;
  draw();
}

function failed(error) {
  const since = answeredAt ? `for ${duration(Date.now() - answeredAt)}` : 'yet';
  const why = error.name === 'TypeError' ? 'no connection' : error.name === 'TimeoutError' ? 'it takes too long' : error.message;
  say(at('stale'), `This node has not answered ${since} (${why}). What is below is the last that it said. If it has stopped, `
    + 'start it, or open the console of another node: onetrip status names them.');
  at('stale').hidden = false;
  state('bad', 'no answer');
}

async function live() {
  for (;;) {
    const began = Date.now();
    if (!paused) await ask().catch(failed);
    const wait = (document.hidden ? EVERY_HIDDEN : EVERY) - (Date.now() - began);
    await new Promise((done) => {
      const timer = setTimeout(done, Math.max(wait, 100));
      document.addEventListener('visibilitychange', () => { clearTimeout(timer); done(); }, { once: true });
    });
  }
}

// ---- drawing ----

function state(kind, text) {
  at('state').className = `state ${kind}`;
  say(at('state'), text);
}

function draw() {
  if (!model) return;
  say(at('cluster'), model.cluster);
  say(at('seen'), `as node ${model.asked.id} in ${model.asked.region} sees it`);
  document.title = `${model.problems.length ? `(${model.problems.length}) ` : ''}Onetrip ${model.cluster}`;
  if (!model.leader.region) state('bad', 'nothing can commit');
  else if (model.problems.length) state('warn', `${model.problems.length} ${model.problems.length === 1 ? 'problem' : 'problems'}`);
  else state('good', 'all is well');
  drawProblems();
  drawMap(at('map'), model);
  say(at('map-text'), mapText(model));
  drawLeader();
  drawCommits();
  drawLatency();
  drawLag();
  drawConflicts();
  drawJobs();
  drawNodes();
}

/** Text with `code` in backticks. */
function prose(text) {
  return text.split('`').map((part, i) => (i % 2 ? html('code', null, part) : part));
}

function drawProblems() {
  const list = model.problems;
  at('problems').hidden = list.length === 0;
  const now = JSON.stringify(list);
  if (at('problem-list').dataset.shown !== now) {
    at('problem-list').dataset.shown = now;
    put(at('problem-list'), list.map(({ text, by }) => {
      const [what, todo] = parted(text);
      return html('li', { class: model.leader.region ? 'mild' : null },
        html('b', null, prose(what)), todo && html('span', null, prose(todo)), by.length > 0 && html('span', { class: 'quiet' }, `reported by ${by.join(', ')}`));
    }));
  }
  // Said once, when it is new; and once when all is well again.
  const kinds = new Set(list.map((p) => kindOf(p.text)));
  const fresh = list.filter((p) => !announced.has(kindOf(p.text)));
  if (fresh.length) say(at('announce'), fresh.map((p) => p.text).join('. '));
  else if (announced.size && !kinds.size) say(at('announce'), 'All is well.');
  announced = kinds;
}

function drawLeader() {
  const { leader, quorum } = model;
  say(at('leader-name'), leader.region ?? 'no leader');
  say(at('leader-why'), leader.why && `${leader.why[0].toUpperCase()}${leader.why.slice(1)}.`);
  const best = Math.min(...leader.places.map((p) => p.mean));
  const now = leader.places.find((p) => p.leads)?.mean ?? Infinity;
  const width = room(at('places'));
  const max = Math.max(1, ...leader.places.map((p) => p.mean));
  put(at('places'), leader.places.length > 0 && html('div', { class: 'rows', role: 'list', 'aria-label': 'How long a COMMIT takes by round trips, on average, with the leader in each place' },
    leader.places.map((p) => {
      const line = row({
        region: p.color, name: `led from ${p.region}`,
        value: [html('b', null, duration(p.mean)), p.leads ? ' now' : p.mean < now * 0.99 && p.mean === best ? ' best' : ''],
        drawing: bar({ value: p.mean, max, width, pale: !p.leads }),
      });
      line.setAttribute('role', 'listitem');
      return line;
    })));
  const voters = model.nodes.filter((n) => n.voter);
  put(at('quorum'), html('div', { class: 'voters', role: 'img', 'aria-label': `${quorum.reachable} of ${quorum.voters} voters answer` },
    voters.map((n) => html('span', {
      class: `voter region-${n.color}${n.away ? ' away' : ''}${n.role === 'witness' ? ' witness' : ''}`, title: `${n.id} in ${n.region}`,
    }, String(n.id)))));
  const { reachable, majority, may_fail: spare } = quorum;
  const answer = `${reachable} of ${quorum.voters} voters answer`;
  say(at('quorum-text'), spare < 0 ? `${answer}, and ${majority} are needed: nothing commits.`
    : spare === 0 ? `${answer}, and all of these are needed: if one more fails, nothing commits.`
      : `${answer}. ${spare === 1 ? 'Any one' : `Any ${spare}`} may fail, and commits go on.`);
}

function drawCommits() {
  const writers = model.regions.filter((r) => r.hasPostgres);
  const all = writers.reduce((sum, r) => sum + (r.rate ?? 0), 0);
  say(at('commits-now'), number(Math.round(all)));
  overTime(at('commits-chart'), {
    series: writers.map((r) => ({ region: r.color, points: r.points.map((p) => ({ t: p.t, y: p.rate })) })),
    // As high as the list beside it.
    now: model.now, span: SPAN, height: Math.max(176, writers.length * 50 - 40), stacked: true, least: 10,
    label: `Commits per second over the last three minutes; now ${writers.map((r) => `${r.name} ${number(Math.round(r.rate ?? 0))}`).join(', ')}`,
  });
  put(at('commits-legend'), writers.map((r) =>
    html('li', { class: `region-${r.color}` }, r.name, html('b', null, r.rate == null ? '–' : number(Math.round(r.rate))))));
}

function drawLatency() {
  const writers = model.regions.filter((r) => r.writes);
  const width = room(at('latency-chart'));
  const numbers = (all) => all.filter((x) => x != null);
  // The mean and the limit are what is to be seen; what takes much longer gets an arrow.
  const main = Math.max(1, ...numbers(writers.flatMap((r) => [r.limit, r.latency?.mean])));
  const max = Math.min(Math.max(main, ...numbers(writers.map((r) => r.latency?.p99))) * 1.04, main * 1.7);
  put(at('latency-chart'), html('div', { class: 'rows' }, writers.map((r) => {
    const { latency, limit } = r;
    const times = latency && limit >= 1 ? ` ${(latency.mean / limit).toFixed(2)} × the limit` : '';
    const far = r.withLeader != null && limit != null && r.withLeader > limit * 1.1 + 1
      ? `${duration(r.withLeader)} with the leader where it is` : '';
    const note = [limit == null ? '' : `limit ${duration(limit)}`, latency?.p99 != null ? `99 of 100 within ${duration(latency.p99)}` : '', far]
      .filter(Boolean).join('; ');
    return row({
      region: r.color, name: r.name,
      value: latency ? [html('b', null, duration(latency.mean)), times] : html('span', { class: 'quiet' }, r.away ? 'not connected' : 'no COMMITs now'),
      drawing: bar({ value: latency?.mean, tail: latency?.p99, limit, max, width, height: 18 }),
      note,
    });
  })));
}

function drawLag() {
  const width = room(at('lag-chart'));
  put(at('lag-chart'), html('div', { class: 'rows' }, model.regions.filter((r) => r.hasPostgres).map((r) => row({
    region: r.color, name: r.name,
    value: html('b', null, r.away ? 'not known' : r.lag == null ? '–' : duration(r.lag)),
    drawing: spark({ points: r.points.map((p) => ({ t: p.t, y: p.lag })), now: model.now, span: SPAN, width, least: 100 }),
  }))));
}

function drawConflicts() {
  const lost = model.regions.reduce((sum, r) => sum + (r.lost ?? 0), 0);
  const rate = model.regions.reduce((sum, r) => sum + (r.rate ?? 0), 0);
  const share = lost + rate > 0 ? (100 * lost) / (lost + rate) : 0;
  put(at('conflicts-now'), number(Math.round(lost * 10) / 10), html('small', null, ` per second, ${number(share)} % of all tries`));
  overTime(at('conflicts-chart'), {
    series: model.regions.filter((r) => r.hasPostgres).map((r) => ({ region: r.color, points: r.points.map((p) => ({ t: p.t, y: p.lost })) })),
    now: model.now, span: SPAN, height: 92, stacked: true, least: 2,
    label: `Transactions that lost, per second over the last three minutes; now ${number(lost)}`,
  });
  const width = room(at('conflict-tables'));
  const max = Math.max(1, ...model.tables.map((t) => t.lost));
  put(at('conflict-tables'), model.tables.length
    ? html('div', { class: 'rows' }, model.tables.map((t) => row({
      region: 4, dot: false, name: t.table, value: [html('b', null, number(t.lost)), ` of ${number(t.lost + t.commits)} lost`],
      drawing: bar({ value: t.lost, max, width }),
    })))
    : html('p', { class: 'quiet none' }, 'Nothing was lost since the servers started.'));
  at('losers-box').hidden = model.losers.length === 0;
  put(at('losers'), model.losers.map((l) => html('li', { class: `region-${l.color}` },
    html('b', null, l.application || l.role || 'a session'), ` in ${l.region} lost `,
    l.table ? ['over ', html('code', null, l.table), ' '] : '', `to ${l.lost_to_region ?? 'another'}, ${duration(l.ago_s * 1000)} ago`)));
}

function drawJobs() {
  const width = room(at('job-list'));
  const part = (text) => Number(/\((\d+) %\)/.exec(text ?? '')?.[1] ?? 0);
  put(at('job-list'), model.jobs.length
    ? html('div', { class: 'rows' }, model.jobs.map((j) => row({
      region: j.color, name: [`${j.region}: `, html('code', null, j.index)],
      value: j.state === 'failed' ? `failed ${j.attempts} times` : j.state,
      drawing: bar({ value: part(j.progress), max: 100, width }),
      note: j.progress ?? j.statement,
    })))
    : html('p', { class: 'quiet none' }, 'Nothing is being built.'));
}

function roleOf(n) {
  if (n.heard === 'not_connected') return 'not connected';
  if (n.heard === 'no_answer') return 'does not answer';
  const role = n.role === 'replica' ? 'read replica' : n.joins ? `joins as ${n.role}` : n.role;
  return n.leads ? `${role}, leader` : role;
}

function drawNodes() {
  const fact = (name, value) => (value == null || value === '' ? null : [html('dt', null, name), html('dd', null, value)]);
  put(at('node-list'), model.nodes.map((n) => {
    const r = n.report;
    const disk = r?.disks?.length ? r.disks.reduce((a, b) => (a.free_bytes / a.total_bytes < b.free_bytes / b.total_bytes ? a : b)) : null;
    return html('li', { class: `region-${n.color}${n.away ? ' away' : ''}` },
      html('h3', null, `${n.id}  ${n.region}`),
      html('p', { class: 'quiet' }, roleOf(n)),
      r && html('dl', null,
        fact('Onetrip', r.version),
        fact('PostgreSQL', r.postgres ? `${(r.counts?.version ?? '').split(' ')[0]} ${r.postgres.state}` : 'none'),
        fact('sessions', r.counts ? `${r.counts.sessions} of ${r.counts.sessions_max}` : r.no_counts),
        fact('entries behind', n.lag_entries == null ? null : number(n.lag_entries)),
        fact('log, WAL', `${bytes(r.log_bytes)}${r.counts ? `, ${bytes(r.counts.wal_bytes)}` : ''}`),
        fact('disk', disk && `${bytes(disk.free_bytes)} free of ${bytes(disk.total_bytes)}`),
        fact('archive', r.archive && (r.archive.age_ms == null ? 'empty' : r.archive.age_ms === 0 ? 'complete' : `${duration(r.archive.age_ms)} old`)),
        fact('certificate', r.certificate && `until ${r.certificate.last_day}`)));
  }));
}

// ---- the reader's choices ----

const dark = matchMedia('(prefers-color-scheme: dark)');
function theme(chosen) {
  const root = document.documentElement;
  if (chosen) root.dataset.theme = chosen;
  const shown = root.dataset.theme ?? (dark.matches ? 'dark' : 'light');
  say(at('theme'), shown === 'dark' ? 'Light' : 'Dark');
  at('theme').setAttribute('aria-label', `${shown === 'dark' ? 'Light' : 'Dark'} colours`);
  return shown;
}
function remembered() {
  try {
    return localStorage.getItem('onetrip-theme');
  } catch {
    return null;
  }
}
at('theme').addEventListener('click', () => {
  const chosen = theme() === 'dark' ? 'light' : 'dark';
  theme(chosen);
  try {
    localStorage.setItem('onetrip-theme', chosen);
  } catch {
    // It lasts as long as the page.
  }
});
dark.addEventListener('change', () => theme());
at('pause').addEventListener('click', () => {
  paused = !paused;
  at('pause').setAttribute('aria-pressed', String(paused));
  document.body.classList.toggle('still', paused);
});
let resizing = 0;
addEventListener('resize', () => {
  cancelAnimationFrame(resizing);
  resizing = requestAnimationFrame(draw);
});

theme(remembered());
live();
