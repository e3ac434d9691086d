// Rows of a whole cube: mean busy share of its engines by kind, stacked.
import {getArrays, query} from './data.js';
import {column, textScale} from './dom.js';
import {LETTERS} from './run.js';
import {state} from './state.js';
import {colour} from './theme.js';

const kept = new Map();
const keyOf = (id, group, view) => `${id}/${group.id}/${view.t0}/${view.t1}`;

// Asks for what is missing; true when all is here.
export function wantGroups(rows, view, tl, draw) {
  const groups = rows.filter(row => row.type === 'group').map(row => row.group);
  const missing = groups.filter(group => !kept.has(keyOf(tl.id, group, view)));
  if (!missing.length) return true;
  clearTimeout(wantGroups.timer);
  wantGroups.timer = setTimeout(async () => {
    const lanes = missing.map(group => group.lanes.filter(lane => lane.kind !== 'S').map(lane => lane.i).join(',')).join(';');
    const bins = Math.min(1024, Math.max(64, Math.round((view.right - view.left) / 2)));
    const {header, arrays} = await getArrays(`/runs/${tl.id}/groups?${query({lanes, t0: view.t0, t1: view.t1, bins})}`);
    const size = header.kinds.length * header.bins;
    missing.forEach((group, n) => kept.set(keyOf(tl.id, group, view), {bins: header.bins, busy: arrays.busy.subarray(n * size, (n + 1) * size)}));
    while (kept.size > 600) kept.delete(kept.keys().next().value);
    draw();
  }, 30);
  return false;
}

export function drawGroups(pen, rows, view, tl) {
  for (const row of rows) {
    if (row.type !== 'group') continue;
    const found = kept.get(keyOf(tl.id, row.group, view));
    if (found) stack(pen, found, view.left, view.right, view.top + row.y - view.scroll + 2, row.h - 5);
  }
}

// Kinds side by side in height: each has an equal band, as tall as it is busy.
export function stack(pen, {bins, busy}, left, right, top, tall) {
  const present = [...LETTERS].map((letter, k) => [letter, k]).filter(([letter, k]) => letter !== 'S' && (!state.kinds || state.kinds.includes(letter)) && busy.subarray(k * bins, (k + 1) * bins).some(Boolean));
  const band = tall / Math.max(present.length, 1), wide = (right - left) / bins;
  present.forEach(([letter, k], n) => {
    pen.fillStyle = colour(letter);
    const foot = top + (n + 1) * band;
    pen.beginPath();
    for (let i = 0; i < bins; i++) {
      const share = busy[k * bins + i] / 255;
      if (share) { const h = Math.max(share * (band - 1), 0.7); const [x, w] = column(left + i * wide, wide, devicePixelRatio * textScale); pen.rect(x, foot - h, w, h); }
    }
    pen.fill();
  });
}
