// Around the lanes: axis, launches, the critical path, labels, cursor and range.
import {scopeOf} from './run.js';
import {state} from './state.js';
import {colour, hatch} from './theme.js';
import {FONT, fit} from './timeline_draw.js';
import {portName} from './timeline_rows.js';
import {matches} from './search.js';
import {ns, pct, tickLabel, ticks} from './units.js';

const xOf = (view, t) => view.left + ((t - view.t0) / (view.t1 - view.t0)) * (view.right - view.left);

export function drawAxis(pen, view) {
  const {step, found} = ticks(view.t0, view.t1, (view.right - view.left) / 100);
  pen.font = `11px ${FONT}`;
  pen.fillStyle = colour('muted');
  pen.strokeStyle = colour('border');
  pen.lineWidth = 1;
  for (const t of found) {
    const x = Math.round(xOf(view, t)) + 0.5;
    if (x < view.left) continue;
    pen.beginPath();
    pen.moveTo(x, 14); pen.lineTo(x, view.bottom);
    pen.stroke();
    const words = tickLabel(t, step), wide = pen.measureText(words).width;
    const at = Math.max(view.left, Math.min(x - wide / 2, view.right - wide - 2));
    pen.fillText(words, at, 12);
  }
}

export function drawLaunches(pen, view, launches, rowOf, top, tall) {
  label(pen, 'launches', top + 11, colour('muted'), view);
  const shown = launches.map((scope, i) => ({...scope, y: top + rowOf[i] * tall, row: rowOf[i]})).filter(scope => scope.t1 > view.t0 && scope.t0 < view.t1);
  const until = [];
  const ends = scope => [Math.max(xOf(view, scope.t0), view.left), Math.min(xOf(view, scope.t1), view.right)];
  for (const scope of shown.slice(0, 2000)) {
    const [x0, x1] = ends(scope), {y} = scope;
    pen.fillStyle = scopeOf().id === scope.id ? colour('selected') : colour('raised');
    pen.fillRect(x0, y + 1, Math.max(x1 - x0 - 1, 1), tall - 3);
    pen.strokeStyle = colour('muted');
    pen.lineWidth = 1;
    pen.strokeRect(x0 + 0.5, y + 1.5, Math.max(x1 - x0 - 2, 0.5), tall - 4);
  }
  for (const scope of shown.slice(0, 2000)) {
    const [x0, x1] = ends(scope), {y, row} = scope;
    if (x1 - x0 > 24 && x0 >= (until[row] ?? -Infinity)) {
      pen.fillStyle = colour('text');
      pen.font = `10px ${FONT}`;
      const words = fit(pen, scope.name, x1 - x0 - 6);
      pen.fillText(words, x0 + 3, y + 10);
      until[row] = x0 + pen.measureText(words).width + 6;
    }
  }
}


// Pieces without a gap. Those under 2 px are merged into stacked shares per pixel column.
export function drawPath(pen, view, tl, y, tall) {
  const {finish} = tl, isOne = finish?.equal > 1;
  label(pen, view.right < 600 ? 'path' : 'Critical path', y + 15, colour('path'), view, true);
  if (isOne && view.right >= 600) label(pen, `1 of ${finish.equal}`, y + 15, colour('muted'), view, false, 84);
  const {pieces, columns, classes} = tl.path;
  const px = (view.right - view.left) / (view.t1 - view.t0);
  const column = new Map();
  let first = lower(pieces.t1, view.t0);
  for (let n = first; n < pieces.t0.length && pieces.t0[n] < view.t1; n++) {
    const x0 = Math.max(xOf(view, pieces.t0[n]), view.left), x1 = Math.min(xOf(view, pieces.t1[n]), view.right);
    const letter = pieces.letter[n];
    if (x1 - x0 >= 2 || (pieces.t1[n] - pieces.t0[n]) * px >= 2) {
      pen.fillStyle = letter === 'Q' ? hatch(pen, view.scale) : colour(letter);
      pen.fillRect(x0, y + 2, Math.max(x1 - x0 - (x1 - x0 > 5 ? 0.7 : 0), 0.5), tall - 6);
    } else {
      for (let at = Math.floor(x0); at < x1; at++) {
        const share = Math.min(x1, at + 1) - Math.max(x0, at);
        if (!column.has(at)) column.set(at, {});
        const one = column.get(at);
        one[letter] = (one[letter] || 0) + share;
      }
    }
  }
  if (columns) {
    // Short pieces of a long path come as shares of the pixel columns they were asked for.
    const n = columns[0].length, wide = (tl.path.t1 - tl.path.t0) / n;
    for (let i = 0; i < n; i++) {
      const at = Math.floor(xOf(view, tl.path.t0 + i * wide));
      if (at < view.left || at >= view.right) continue;
      const one = column.get(at) || {};
      columns.forEach((shares, c) => { if (shares[i]) one[classes[c].letter] = (one[classes[c].letter] || 0) + shares[i]; });
      column.set(at, one);
    }
  }
  for (const [at, shares] of column) {
    let top = y + 2;
    for (const letter of Object.keys(shares).sort()) {
      const h = shares[letter] * (tall - 6);
      pen.fillStyle = colour(letter === 'Q' ? 'Q' : letter);
      pen.fillRect(at, top, 1, h);
      top += h;
    }
  }
  pen.fillStyle = colour('path');
  pen.fillRect(view.left, y + tall - 3, view.right - view.left, 1.5);
}

function lower(values, t) {
  let lo = 0, hi = values.length;
  while (lo < hi) { const mid = (lo + hi) >> 1; if (values[mid] <= t) lo = mid + 1; else hi = mid; }
  return lo;
}

function label(pen, words, y, ink, view, bold, x = 8) {
  pen.font = `${bold ? 'bold ' : ''}11px ${FONT}`;
  pen.fillStyle = ink;
  pen.fillText(words, x, y);
}

// Of its engines, the busiest in the scope; of a cube, the mean of its PEs.
function busyOf(group, busy) {
  if (group.children) return group.children.reduce((sum, one) => sum + busyOf(one, busy), 0) / group.children.length;
  return Math.max(0, ...group.lanes.filter(lane => lane.kind !== 'S').map(lane => (busy ? busy[lane.i] : 0)));
}

export function drawLabels(pen, rows, view, tl, run, scope) {
  const isNarrow = view.right < 600;
  const span = scope.t1 - scope.t0;
  for (const row of rows) {
    const y = view.top + row.y - view.scroll;
    const indent = 6 + 8 * (row.deep || 0);
    if (row.type === 'lane' || row.type === 'spans') {
      pen.fillStyle = colour('raised');
      pen.fillRect(0, y, view.left, row.h);
      pen.fillRect(view.left, y + 1, view.right - view.left, row.h - 2);
    } else if (row.type !== 'gap') {
      pen.fillStyle = colour('border');
      pen.fillRect(0, y + row.h - 1, view.right, 1);
    }
    if (row.type === 'gap') { pen.fillStyle = colour('border'); pen.fillRect(0, y + row.h - 1, view.right, 1); continue; }
    pen.textBaseline = 'alphabetic';
    const hasName = row.type === 'strips' || row.type === 'group' || row.first;
    if (hasName) {
      pen.font = `bold 11px ${FONT}`;
      pen.fillStyle = colour('text');
      pen.fillText(`${row.isOpen ? '▾' : '▸'} ${row.group.name}`, indent, y + row.h / 2 + 4);
    }
    pen.font = `11px ${FONT}`;
    pen.fillStyle = colour('muted');
    pen.textAlign = 'right';
    if (row.type === 'lane') pen.fillText(isNarrow ? row.lane.kind : fit(pen, portName(row.lane), view.left - 60), view.left - 6, y + 14);
    else if (row.type !== 'spans' && !isNarrow) pen.fillText(`${pct(Math.min(busyOf(row.group, tl.busy) / span, 1), 0)} busy`, view.left - 6, y + row.h / 2 + 4);
    pen.textAlign = 'left';
  }
}

export function drawOverlay(pen, view) {
  if (state.range) {
    const x0 = Math.max(xOf(view, state.range[0]), view.left), x1 = Math.min(xOf(view, state.range[1]), view.right);
    if (x1 > x0) {
      pen.fillStyle = colour('link');
      pen.globalAlpha = 0.14;
      pen.fillRect(x0, 16, x1 - x0, view.bottom - 16);
      pen.globalAlpha = 1;
      pen.fillRect(x0, 16, 1.5, view.bottom - 16);
      pen.fillRect(x1 - 1.5, 16, 1.5, view.bottom - 16);
      const words = ns(state.range[1] - state.range[0]);
      pen.font = `bold 11px ${FONT}`;
      const wide = pen.measureText(words).width + 10, at = Math.max(view.left, Math.min((x0 + x1) / 2 - wide / 2, view.right - wide));
      pen.fillRect(at, 0, wide, 16);
      pen.fillStyle = colour('panel');
      pen.fillText(words, at + 5, 12);
    }
  }
  if (matches.times.length) {
    pen.fillStyle = colour('path');
    for (const t of matches.times) { const x = xOf(view, t); if (x >= view.left && x <= view.right) pen.fillRect(x - 1, 14, 2, 5); }
  }
}
