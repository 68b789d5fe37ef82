// Small drawings in SVG.  Text goes in as text nodes only: names and errors come from outside.

const SVG = 'http://www.w3.org/2000/svg';

/** An element with attributes and children; a child that is not an element becomes text. */
function made(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === false || value == null) continue;
    element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}
export const svg = (name, attributes, ...children) => made(document.createElementNS(SVG, name), attributes, children);
export const html = (name, attributes, ...children) => made(document.createElement(name), attributes, children);

/** Replaces what is in `parent`. */
export function put(parent, ...children) {
  parent.replaceChildren(...children.flat().filter((child) => child != null && child !== false));
}

/** Changes a text only if it is another one, so that screen readers and selections are left alone. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// ---- numbers as people read them ----

export function number(x) {
  if (x == null || !Number.isFinite(x)) return '–';
  const digits = Math.abs(x) >= 100 || Number.isInteger(x) ? 0 : Math.abs(x) >= 10 ? 1 : Math.abs(x) >= 1 ? 1 : 2;
  return x.toLocaleString('en', { maximumFractionDigits: digits });
}
/** Short, for axes. */
const tick = (x) => (x >= 10_000 ? `${number(x / 1000)}k` : number(x));
export function duration(ms) {
  if (ms == null || !Number.isFinite(ms)) return '–';
  if (ms < 1000) return `${number(ms)} ms`;
  const s = ms / 1000;
  if (s < 120) return `${number(s)} s`;
  if (s < 7200) return `${number(Math.round(s / 60))} min`;
  if (s < 172800) return `${number(Math.round(s / 3600))} h`;
  return `${number(Math.round(s / 86400))} days`;
}
export function bytes(n) {
  if (n == null || !Number.isFinite(n)) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const step = Math.min(Math.floor(Math.log2(Math.max(n, 1)) / 10), units.length - 1);
  return `${number(n / 1024 ** step)} ${units[step]}`;
}

// ---- charts over time ----

/** A round number that is at least `max`. */
function ceiling(max) {
  const step = 10 ** Math.floor(Math.log10(max));
  return [1, 2, 2.5, 5, 10].map((x) => x * step).find((x) => x >= max * 0.999);
}

/** How wide an element's drawing may be; before it is laid out, something. */
export const room = (element) => Math.max(Math.floor(element.clientWidth), 120) || 300;

/**
 * Series over the last `span` ms: stacked areas if `stacked`, else lines.
 * `series`: [{ region, points: [{ t, y }] }], newest last; y null where nothing is known.
 */
export function overTime(into, { series, now, span, height = 150, stacked, unit, label, least = 1 }) {
  const width = room(into);
  const [left, right, top, bottom] = [0, 46, 8, 20];
  const [w, h] = [width - left - right, height - top - bottom];
  const times = [...new Set(series.flatMap((s) => s.points.map((p) => p.t)))].filter((t) => t >= now - span - 2000);
  times.sort((a, b) => a - b);
  const value = series.map((s) => new Map(s.points.map((p) => [p.t, p.y])));
  const tops = times.map((t) => value.map((v) => v.get(t) ?? 0)).map((ys) =>
    stacked ? ys.reduce((sum, y) => sum + y, 0) : Math.max(0, ...ys));
  const max = ceiling(Math.max(least, ...tops) * 1.05);
  const x = (t) => left + w * (1 - (now - t) / span);
  const y = (v) => top + h * (1 - Math.min(v, max) / max);
  const at = (t, v) => `${Math.max(x(t), left).toFixed(1)} ${y(v).toFixed(1)}`;
  const grid = [0, 0.5, 1].map((part) => svg('g', null,
    svg('line', { class: 'grid', x1: left, x2: left + w, y1: y(max * part), y2: y(max * part) }),
    svg('text', { x: left + w + 7, y: y(max * part) + 4 }, tick(max * part))));
  const drawn = [];
  if (times.length > 1) {
    const floor = times.map(() => 0);
    series.forEach((s, i) => {
      if (stacked) {
        const upper = times.map((t, k) => floor[k] + (value[i].get(t) ?? 0));
        const there = upper.map((v, k) => at(times[k], v));
        const back = floor.map((v, k) => at(times[k], v)).reverse();
        drawn.push(svg('path', { class: `area region-${s.region}`, d: `M${there.join('L')}L${back.join('L')}Z` }));
        upper.forEach((v, k) => { floor[k] = v; });
      } else {
        // A gap where nothing is known.
        let pen = 'M';
        const d = times.map((t) => {
          const v = value[i].get(t);
          const step = v == null ? '' : pen + at(t, v);
          pen = v == null ? 'M' : 'L';
          return step;
        }).join('');
        if (d) drawn.push(svg('path', { class: `series region-${s.region}`, d }));
      }
    });
  }
  const minutes = Math.round(span / 60000);
  put(into, svg('svg', { role: 'img', 'aria-label': label, height, viewBox: `0 0 ${width} ${height}` },
    grid, drawn,
    svg('text', { x: left, y: height - 3 }, `${minutes} min ago`),
    svg('text', { x: left + w, y: height - 3, 'text-anchor': 'end' }, 'now'),
    unit && svg('text', { x: left + w + 7, y: height - 3 }, unit)));
}

/** One line of a value over time, without axes. */
export function spark({ points, now, span, width, height = 26, least = 1 }) {
  const known = points.filter((p) => p.y != null && p.t >= now - span);
  const max = Math.max(least, ...known.map((p) => p.y));
  const at = (p) => `${(width * (1 - (now - p.t) / span)).toFixed(1)} ${(height - 2 - (height - 4) * (p.y / max)).toFixed(1)}`;
  const picture = svg('svg', { 'aria-hidden': 'true', height, viewBox: `0 0 ${width} ${height}` },
    svg('line', { class: 'grid', x1: 0, x2: width, y1: height - 1, y2: height - 1 }));
  if (known.length > 1) {
    const line = known.map(at).join('L');
    const end = (p) => (width * (1 - (now - p.t) / span)).toFixed(1);
    picture.append(
      svg('path', { class: 'under', d: `M${end(known[0])} ${height}L${line}L${end(known.at(-1))} ${height}Z` }),
      svg('path', { class: 'series', d: `M${line}` }));
  }
  return picture;
}

/** A bar on a track; `tail` is a thin line further on, with an arrow if it is longer than the track; `limit` a mark. */
export function bar({ value, max, tail, limit, width, height = 14, pale }) {
  const x = (v) => Math.max(0, Math.min(v / max, 1)) * width;
  const mid = height / 2;
  return svg('svg', { 'aria-hidden': 'true', height, viewBox: `0 0 ${width} ${height}` },
    svg('rect', { class: 'track', x: 0, y: mid - 5, width, height: 10, rx: 5 }),
    tail != null && value != null && svg('line', { class: 'tail', x1: x(value), x2: x(tail), y1: mid, y2: mid }),
    tail != null && (tail <= max
      ? svg('line', { class: 'tail', x1: x(tail), x2: x(tail), y1: mid - 4, y2: mid + 4 })
      : svg('path', { class: 'tail', fill: 'none', d: `M${width - 5} ${mid - 4}L${width} ${mid}L${width - 5} ${mid + 4}` })),
    value != null && value > 0 && svg('rect', { class: `bar${pale ? ' pale' : ''}`, x: 0, y: mid - 5, width: Math.max(x(value), 3), height: 10, rx: 5 }),
    limit != null && svg('line', { class: 'limit', x1: x(limit), x2: x(limit), y1: 0, y2: height }));
}

/** A line of a list of bars: name, value, drawing. */
export function row({ region, name, value, note, drawing, dot = true }) {
  return html('div', { class: `row${region == null ? '' : ` region-${region}`}` },
    html('span', { class: region == null || !dot ? null : 'dot' }, name),
    html('span', { class: 'value' }, value),
    drawing,
    note && html('span', { class: 'note quiet' }, note));
}
