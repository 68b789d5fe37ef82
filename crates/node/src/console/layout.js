// Where regions stand on the map, from nothing but their round trips: classical multidimensional scaling, by hand.
//
// The same round trips give the same picture on every page: nothing here is random, and round trips are rounded first, so
// that what a ping wavers by moves nothing.

/** A shorter round trip counts as this, in ms: below it, distances say more about machines than about places. */
const NEAREST_MS = 1;
/** Round trips count as alike within this factor. */
const ALIKE = 1.25;
const ROUNDS = 200;
/** A distance on the map is the round trip to this power. */
const POWER = 0.7;

/** Steps of `ALIKE`, so that a map has few different ones. */
export function rounded(ms) {
  const step = Math.log(ALIKE);
  return Math.exp(Math.round(Math.log(Math.max(ms, NEAREST_MS)) / step) * step);
}

/** A way that was not measured is as long as the shortest detour; without one, as the longest way there is. */
function completed(ms) {
  const n = ms.length;
  const way = ms.map((row, i) => row.map((x, j) => (i === j ? 0 : x ?? Infinity)));
  const known = way.flat().filter((x) => Number.isFinite(x) && x > 0);
  for (let k = 0; k < n; k++)
    for (let i = 0; i < n; i++)
      for (let j = 0; j < n; j++)
        if (ms[i][j] == null) way[i][j] = Math.min(way[i][j], way[i][k] + way[k][j]);
  const longest = Math.max(NEAREST_MS, ...known);
  return way.map((row) => row.map((x) => (Number.isFinite(x) ? x : longest)));
}

/** The largest eigenvalue of a symmetric matrix that is orthogonal to `without`, and its vector. */
function principal(matrix, without) {
  const n = matrix.length;
  const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
  let vector = Array.from({ length: n }, (_, i) => 1 + ((i * 7 + 3) % 11) / 11);
  for (let round = 0; round < ROUNDS; round++) {
    // Shifted, so that the largest one wins over one that is further below 0.
    const shift = Math.max(...matrix.map((row) => row.reduce((sum, x) => sum + Math.abs(x), 0)));
    let next = matrix.map((row, i) => dot(row, vector) + shift * vector[i]);
    for (const other of without) {
      const part = dot(next, other);
      next = next.map((x, i) => x - part * other[i]);
    }
    const length = Math.sqrt(dot(next, next));
    if (!(length > 1e-12)) return { value: 0, vector: vector.map(() => 0) };
    vector = next.map((x) => x / length);
  }
  return { value: dot(vector, matrix.map((row) => dot(row, vector))), vector };
}

/** Maps have west on the left; names often tell.  Else the first name is. */
function eastness(name) {
  return (/east/i.test(name) ? 1 : 0) - (/west/i.test(name) ? 1 : 0);
}

/**
 * Points around 0, one for each name; `ms[i][j]`: the round trip, or null.  Far ways are drawn shorter than
 * they are, so that a city and another continent fit on one map.
 */
export function layout(names, ms) {
  const n = names.length;
  if (n < 2) return names.map(() => ({ x: 0, y: 0 }));
  const squared = completed(ms).map((row, i) => row.map((x, j) => (i === j ? 0 : rounded(x) ** (2 * POWER))));
  const mean = (row) => row.reduce((sum, x) => sum + x, 0) / n;
  const rows = squared.map(mean);
  const all = mean(rows);
  const centred = squared.map((row, i) => row.map((x, j) => -(x - rows[i] - rows[j] + all) / 2));
  const first = principal(centred, [Array(n).fill(1 / Math.sqrt(n))]);
  const second = principal(centred, [Array(n).fill(1 / Math.sqrt(n)), first.vector]);
  const [a, b] = [first, second].map(({ value }) => Math.sqrt(Math.max(value, 0)));
  let points = names.map((_, i) => ({ x: first.vector[i] * a, y: second.vector[i] * b }));
  const east = points.reduce((sum, p, i) => sum + p.x * eastness(names[i]), 0);
  if (Math.abs(east) > 1e-6 ? east < 0 : points[0].x > 0) points = points.map((p) => ({ x: -p.x, y: p.y }));
  if (points[0].y > 0) points = points.map((p) => ({ x: p.x, y: -p.y }));
  return points;
}

/** Fits points into a box, and pushes apart what would overlap: `gap` is {x, y} in the box's unit. */
export function fitted(points, width, height, margin, gap) {
  const [w, h] = [width - 2 * margin.x, height - margin.top - margin.bottom];
  const span = (of) => Math.max(...points.map((p) => p[of])) - Math.min(...points.map((p) => p[of]));
  const scale = Math.min(w / (span('x') || 1e-9), h / (span('y') || 1e-9));
  // A map that is flat is stretched, so that its lines part.
  const up = span('y') > 1e-9 ? Math.min(h / span('y'), scale * 3.5) : 0;
  const mid = (of) => (Math.max(...points.map((p) => p[of])) + Math.min(...points.map((p) => p[of]))) / 2;
  const [mx, my] = [mid('x'), mid('y')];
  const at = points.map((p) => ({
    x: width / 2 + (p.x - mx) * (span('x') > 1e-9 ? scale : 0),
    y: margin.top + h / 2 + (p.y - my) * up,
  }));
  for (let round = 0; round < 120; round++) {
    let moved = false;
    for (let i = 0; i < at.length; i++) {
      for (let j = i + 1; j < at.length; j++) {
        const [dx, dy] = [(at[j].x - at[i].x) / gap.x, (at[j].y - at[i].y) / gap.y];
        const near = Math.hypot(dx, dy);
        if (near >= 0.999) continue;
        moved = true;
        // Points in the same place part in a direction of their own.
        const [ux, uy] = near > 1e-6 ? [dx / near, dy / near] : [Math.cos(i + 2 * j), Math.sin(i + 2 * j)];
        const push = (1 - near) / 2;
        at[i].x -= ux * push * gap.x;
        at[i].y -= uy * push * gap.y;
        at[j].x += ux * push * gap.x;
        at[j].y += uy * push * gap.y;
      }
    }
    for (const p of at) {
      p.x = Math.min(Math.max(p.x, margin.x), width - margin.x);
      p.y = Math.min(Math.max(p.y, margin.top), height - margin.bottom);
    }
    if (!moved) break;
  }
  return at;
}
