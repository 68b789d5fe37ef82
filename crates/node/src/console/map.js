// The map: regions near each other as their round trips are short, what they send to each other, who leads and who is away.

import { fitted, layout } from './layout.js';
import { bytes, duration, number, put, room, svg } from './draw.js';

/** Up to so many regions every way has its round trip written on it; beyond, each region says how far the leader is. */
const LABELS_MAX = 4;
/** A way that carries a smaller share of what the busiest one does gets no dots. */
const SHARE_MIN = 0.02;
let last = { key: '', points: [] };

/** The places, computed anew only when regions come or go, or a way is another one than before. */
function places(model) {
  const names = model.regions.map((r) => r.name);
  const ms = names.map((a) => names.map((b) => (a === b ? 0 : model.link(a, b).ms)));
  const known = last.names?.join('\n') === names.join('\n');
  const alike = (a, b) => a == null || b == null || Math.max(a, 1) / Math.max(b, 1) < 1.6 && Math.max(b, 1) / Math.max(a, 1) < 1.6;
  const news = !known || ms.some((row, i) => row.some((x, j) => !alike(x, last.ms[i][j]) || (x != null && last.ms[i][j] == null)));
  if (news) last = { names, ms, points: layout(names, ms) };
  return last.points;
}

function way(model, a, b, from, to, radius, busiest) {
  const link = model.link(a.name, b.name);
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = Math.hypot(dx, dy) || 1;
  const [ux, uy] = [dx / length, dy / length];
  // Each direction has a lane of its own.
  const lane = (side, back, perSecond) => {
    if (!(perSecond > busiest * SHARE_MIN)) return null;
    const off = 4.5 * side;
    const ends = [[from.x + ux * radius(a), from.y + uy * radius(a)], [to.x - ux * radius(b), to.y - uy * radius(b)]];
    const [p, q] = (back ? ends.reverse() : ends).map(([x, y]) => [x - uy * off, y + ux * off]);
    // From 100 B/s to 100 MB/s.
    const heavy = Math.min(Math.max(Math.log10(perSecond / 100) / 6, 0), 1);
    return svg('line', {
      class: `sent region-${(back ? b : a).color}`, x1: p[0], y1: p[1], x2: q[0], y2: q[1],
      'stroke-width': (2 + 3.5 * heavy).toFixed(2), opacity: (0.4 + 0.6 * heavy).toFixed(2),
      'data-sent': Math.round(perSecond),
    });
  };
  const drawn = svg('g', null,
    svg('line', { class: link.connected ? 'way' : 'way cut', x1: from.x, y1: from.y, x2: to.x, y2: to.y }),
    link.connected && [lane(-1, false, link.out), lane(1, true, link.back)]);
  if (model.regions.length > LABELS_MAX || !link.connected || link.ms == null) return [drawn, null];
  const text = duration(link.ms);
  const [mx, my, w] = [(from.x + to.x) / 2, (from.y + to.y) / 2, text.length * 7 + 12];
  return [drawn, svg('g', { class: 'way-label' },
    svg('rect', { x: mx - w / 2, y: my - 10, width: w, height: 20, rx: 10 }),
    svg('text', { x: mx, y: my + 4 }, text))];
}

function roleOf(region, model) {
  if (region.away) return 'not connected';
  const words = [];
  if (region.leads) words.push('leader');
  else if (!region.hasPostgres) words.push('witness');
  else if (!region.writes) words.push('read replica');
  if (region.nodes.length > 1) words.push(`${region.nodes.length} nodes`);
  if (region.joins) words.push('joins');
  else if (region.late) words.push(`${duration(region.lag)} behind`);
  const trip = model.leader.region && !region.leads ? model.link(region.name, model.leader.region).ms : null;
  if (model.regions.length > LABELS_MAX && trip != null) words.push(duration(trip));
  return words.join(', ');
}

function place(region, at, r, model) {
    const kind = ['place', `region-${region.color}`, region.away && 'away', !region.writes && 'hollow', region.late && 'late'];
  const mates = region.nodes.slice(1).map((_, i) => {
    const angle = -Math.PI / 2 + 0.62 * (i + 1);
    return svg('circle', { class: 'mate', cx: at.x + (r + 3) * Math.cos(angle), cy: at.y + (r + 3) * Math.sin(angle), r: 5 });
  });
  const share = Math.sqrt(Math.min((region.rate ?? 0) / 2000, 1));
  const cross = 7;
  return svg('g', { class: kind.filter(Boolean).join(' '), 'data-region': region.name },
    svg('circle', { class: 'halo', cx: at.x, cy: at.y, r: r + 7 + 16 * share }),
    (region.leads || region.late) && svg('circle', { class: 'ring', cx: at.x, cy: at.y, r: r + 5 }),
    svg('circle', { class: 'body', cx: at.x, cy: at.y, r }),
    mates,
    region.away
      ? svg('path', { class: 'cross', d: `M${at.x - cross} ${at.y - cross}l${2 * cross} ${2 * cross}m0 ${-2 * cross}l${-2 * cross} ${2 * cross}` })
      : svg('text', { class: 'rate', x: at.x, y: at.y + 4.5 }, region.rate == null ? '' : number(Math.round(region.rate))),
    svg('text', { class: 'name', x: at.x, y: at.y + r + 24 }, shortened(region.name)),
    svg('text', { class: 'role', x: at.x, y: at.y + r + 40 }, roleOf(region, model)));
}

const shortened = (name) => (name.length > 20 ? `${name.slice(0, 19)}…` : name);

export function drawMap(into, model) {
  const width = room(into);
  const narrow = width < 520;
  const n = model.regions.length;
  const height = narrow ? Math.min(300 + 22 * Math.max(n - 3, 0), 480) : Math.min(340 + 18 * Math.max(n - 3, 0), 480);
  const r = n > 8 ? 18 : narrow ? 21 : 25;
  const margin = { x: narrow ? 56 : 90, top: r + 26, bottom: r + 54 };
  // Room for names below, and for round trips between.
  const gap = { x: narrow ? 104 : n > LABELS_MAX ? 128 : 165, y: 2 * r + (n > LABELS_MAX ? 58 : 90) };
  const at = fitted(places(model), width, height, margin, gap);
  const radius = (region) => r + (region.leads ? 9 : 3);
  const pairs = model.regions.flatMap((a) => model.regions.map((b) => model.link(a.name, b.name)));
  const busiest = Math.max(0, ...pairs.map((link) => link.out));
  const ways = [];
  model.regions.forEach((a, i) => model.regions.forEach((b, j) => {
    if (i < j) ways.push(way(model, a, b, at[i], at[j], radius, busiest));
  }));
  // Labels above all ways, regions above labels.
  // Drawn anew every second, the dots go on from where they were.
  into.style.setProperty('--phase', `${-(performance.now() % 60_000)}ms`);
  put(into, svg('svg', { role: 'img', 'aria-labelledby': 'map-title', 'aria-describedby': 'map-text', height, viewBox: `0 0 ${width} ${height}` },
    ways.map(([drawn]) => drawn), ways.map(([, label]) => label),
    model.regions.map((region, i) => place(region, at[i], r, model))));
}

/** The map in words. */
export function mapText(model) {
  const of = (region) => {
    const role = roleOf(region, model);
    const rate = region.rate == null ? '' : `, ${number(Math.round(region.rate))} commits per second`;
    const ways = model.regions.filter((other) => other !== region).map((other) => {
      const link = model.link(region.name, other.name);
      if (!link.connected) return `not connected to ${other.name}`;
      const sent = link.out > 0 ? ` and sends it ${bytes(link.out)} per second` : '';
      return link.ms == null ? null : `${duration(link.ms)} from ${other.name}${sent}`;
    }).filter(Boolean);
    return `${region.name}: ${role || 'voter'}${rate}; ${ways.join(', ')}.`;
  };
  return model.regions.map(of).join(' ');
}
