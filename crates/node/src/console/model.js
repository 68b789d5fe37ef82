// From the answers of /cluster, one after another, to what is drawn.  No drawing here, and no clock: `now` is given.

/** What a chart over time shows, in ms. */
export const SPAN = 180_000;
/** COMMITs of the last so many ms count for how long they take. */
const LATENCY_SPAN = 20_000;
/** A region whose lag is longer is drawn as late, in ms. */
const LATE = 2_000;
/** A member that has said nothing for longer is not counted on, in ms; as in the node's status. */
const SILENT = 5_000;
/** What a server counted is shown for so long, in ms. */
const FRESH = 5_000;
/** As many as console.css has. */
const COLORS = 8;
const TABLES = 3;
const LOSERS = 10;

const sum = (values) => values.reduce((all, x) => all + x, 0);
const known = (values) => values.filter((x) => x != null && Number.isFinite(x));
const least = (values) => (known(values).length ? Math.min(...known(values)) : null);
const most = (values) => (known(values).length ? Math.max(...known(values)) : null);
const total = (values) => (known(values).length ? sum(known(values)) : null);

const LOST = ['lost_at_commit', 'too_old', 'evicted', 'reserved'];
const lostIn = (counts) => sum(LOST.map((kind) => counts?.[kind] ?? 0));

/** What a server has counted at one moment; `at` is its own clock, in s since it started. */
function sampled(counts) {
  const buckets = counts.histogram ?? [];
  return {
    at: counts.up_s,
    commits: sum(buckets.map((b) => b.count)),
    sumMs: counts.histogram_sum_ms ?? 0,
    lost: lostIn(counts.lost),
    buckets: new Map(buckets.map((b) => [b.up_to_ms ?? Infinity, b.count])),
  };
}

/** From two samples of one server's life: what came between them. */
function between(old, young) {
  if (!old || !young || !(young.at > old.at)) return null;
  const buckets = [...young.buckets].map(([upTo, count]) => [upTo, count - (old.buckets.get(upTo) ?? 0)]);
  return {
    seconds: young.at - old.at,
    commits: young.commits - old.commits,
    sumMs: young.sumMs - old.sumMs,
    lost: young.lost - old.lost,
    buckets: buckets.filter(([, count]) => count > 0).sort((a, b) => a[0] - b[0]),
  };
}

/** The time that `share` of the COMMITs took at most; within a bucket they count as spread evenly. */
function quantile(buckets, share) {
  const all = sum(buckets.map(([, count]) => count));
  let below = 0;
  for (const [upTo, count] of buckets) {
    if (below + count >= share * all) {
      if (!Number.isFinite(upTo)) return null;
      const from = upTo / 1.2;
      return from + (upTo - from) * ((share * all - below) / count);
    }
    below += count;
  }
  return null;
}

/** Adds up the histograms of several nodes. */
function merged(windows) {
  const there = windows.filter(Boolean);
  const buckets = new Map();
  for (const [upTo, count] of there.flatMap((w) => w.buckets)) buckets.set(upTo, (buckets.get(upTo) ?? 0) + count);
  const commits = sum(there.map((w) => w.commits));
  const sorted = [...buckets].sort((a, b) => a[0] - b[0]);
  if (!(commits > 0)) return null;
  return { commits, mean: sum(there.map((w) => w.sumMs)) / commits, p99: quantile(sorted, 0.99) };
}

export class History {
  /** By node: samples of the last `LATENCY_SPAN`. */
  #samples = new Map();
  /** By node and peer: bytes sent, and when. */
  #sent = new Map();
  /** By region: points of the charts. */
  #points = new Map();

  /** Takes one answer; `now` in ms.  Returns the model. */
  add(cluster, now) {
    const nodes = cluster.members.map((m) => this.#node(m, now));
    const names = [...new Set([...nodes].sort((a, b) => a.id - b.id).map((n) => n.region))];
    const color = new Map(names.map((name, i) => [name, i % COLORS]));
    for (const n of nodes) n.color = color.get(n.region);
    const regions = names.map((name) => this.#region(name, nodes.filter((n) => n.region === name), now));
    for (const name of this.#points.keys()) if (!color.has(name)) this.#points.delete(name);
    const { leader } = cluster;
    return {
      now,
      cluster: cluster.cluster,
      asked: { id: cluster.node, region: cluster.region },
      regions,
      nodes,
      leader: {
        region: leader.region,
        why: leader.why,
        places: (leader.places ?? []).map((p) => ({
          node: p.node, region: p.region, mean: p.mean_ms, leads: p.node === leader.node, color: color.get(p.region) ?? 0,
        })),
      },
      quorum: cluster.quorum,
      link: (a, b) => this.#link(a, b, nodes, cluster),
      tables: tables(nodes),
      losers: listed(nodes, 'losers').sort((a, b) => a.ago_s - b.ago_s).slice(0, LOSERS),
      jobs: listed(nodes, 'jobs'),
      problems: cluster.problems.map((p) => ({ text: p.text, by: p.nodes.map((id) => saidBy(nodes, id)) })),
    };
  }

  #node(m, now) {
    const report = m.heard === 'now' ? m.report : null;
    const samples = this.#samples.get(m.id) ?? [];
    const sample = report?.counts && sampled(report.counts);
    const before = samples.at(-1);
    // A server that was started again counts from 0.
    if (sample && before && sample.at < before.sample.at) samples.length = 0;
    const step = sample && between(samples.at(-1)?.sample, sample);
    if (sample && (!samples.length || step)) {
      samples.push({ now, sample, rate: step && step.commits / step.seconds, lost: step && step.lost / step.seconds });
    }
    while (samples.length > 2 && now - samples[1].now > LATENCY_SPAN) samples.shift();
    this.#samples.set(m.id, samples);
    for (const peer of report?.peers ?? []) {
      const key = `${m.id} ${peer.id}`;
      const old = this.#sent.get(key);
      const seconds = old ? (now - old.now) / 1000 : 0;
      const rate = seconds > 0 && peer.sent_bytes >= old.bytes ? (peer.sent_bytes - old.bytes) / seconds : 0;
      this.#sent.set(key, { now, bytes: peer.sent_bytes, rate });
    }
    const last = samples.at(-1);
    const fresh = report && last && now - last.now < FRESH;
    return {
      ...m,
      report,
      away: m.heard === 'not_connected' || m.silent_ms > SILENT,
      joins: m.role !== 'replica' && !m.voter,
      rate: fresh ? last.rate : null,
      lost: fresh ? last.lost : null,
      window: fresh ? between(samples[0].sample, last.sample) : null,
    };
  }

  #region(name, nodes, now) {
    const points = this.#points.get(name) ?? [];
    const region = {
      name, nodes, points,
      color: nodes[0].color,
      leads: nodes.some((n) => n.leads),
      away: nodes.every((n) => n.away),
      joins: nodes.some((n) => n.joins),
      rate: total(nodes.map((n) => n.rate)),
      lost: total(nodes.map((n) => n.lost)),
      lag: most(nodes.map((n) => n.lag_ms)),
      latency: merged(nodes.map((n) => n.window)),
      limit: least(nodes.map((n) => n.limit_ms)),
      /** What the round trips make of a COMMIT with the leader where it is. */
      withLeader: least(nodes.map((n) => n.with_leader_ms)),
      hasPostgres: nodes.some((n) => n.role !== 'witness'),
      writes: nodes.some((n) => n.role === 'voter'),
    };
    region.late = !region.away && region.lag > LATE;
    points.push({ t: now, rate: region.rate, lost: region.lost, lag: region.away ? null : region.lag });
    while (points.length && now - points[0].t > SPAN + 5_000) points.shift();
    this.#points.set(name, points);
    return region;
  }

  /** Between two regions: whether any of their nodes are connected, the shortest round trip, bytes per second. */
  #link(a, b, nodes, cluster) {
    const in_ = (region) => nodes.filter((n) => n.region === region);
    const [here, there] = [in_(a), in_(b)];
    const ids = (list) => new Set(list.map((n) => n.id));
    const [from, to] = [ids(here), ids(there)];
    const trips = cluster.round_trips.filter((r) => (from.has(r.from) && to.has(r.to)) || (from.has(r.to) && to.has(r.from)));
    const ways = (nodes, ids) => nodes.flatMap((n) => (n.report?.peers ?? []).filter((p) => ids.has(p.id)).map((p) => ({ ...p, from: n.id })));
    const [out, back] = [ways(here, to), ways(there, from)];
    const rate = (all) => sum(all.map((p) => this.#sent.get(`${p.from} ${p.id}`)?.rate ?? 0));
    return {
      connected: [...out, ...back].some((p) => p.connected),
      ms: least(trips.map((r) => r.ms)),
      out: rate(out),
      back: rate(back),
    };
  }
}

function saidBy(nodes, id) {
  const node = nodes.find((n) => n.id === id);
  return node ? `node ${id} in ${node.region}` : `node ${id}`;
}

/** Tables over which most was lost, in all regions together. */
function tables(nodes) {
  const all = new Map();
  for (const t of nodes.flatMap((n) => n.report?.counts?.tables ?? [])) {
    const was = all.get(t.table) ?? { lost: 0, commits: 0 };
    all.set(t.table, { table: t.table, lost: was.lost + lostIn(t), commits: was.commits + t.commits });
  }
  return [...all.values()].sort((a, b) => b.lost - a.lost).slice(0, TABLES);
}

/** A list from the counts of all nodes, each item with its region. */
function listed(nodes, name) {
  return nodes.flatMap((n) => (n.report?.counts?.[name] ?? []).map((item) => ({ ...item, region: n.region, color: n.color })));
}

/** A problem without its numbers: the same one a second later, though more seconds have passed. */
export const kindOf = (text) => text.replace(/\d+(\.\d+)?/g, '#');

/** "what is wrong; what to do": the first part, and the rest. */
export function parted(text) {
  const at = text.search(/; |: /);
  return at < 0 ? [text, ''] : [text.slice(0, at), text.slice(at + 2)];
}
