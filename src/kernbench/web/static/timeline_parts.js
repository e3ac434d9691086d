// Around the lanes: axis, launches, labels, cursor and range.
import {scopeOf} from './run.js';
import {state} from './state.js';
import {colour} from './theme.js';
import {FONT, fit} from './timeline_draw.js';
import {portName} from './timeline_rows.js';
import {indentOf} from './timeline_view.js';
import {matches} from './search.js';
import {ns, pct, tickLabel, ticks} from './units.js';

export const xOf = (view, t) => view.left + ((t - view.t0) / (view.t1 - view.t0)) * (view.right - view.left);

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

export function label(pen, words, y, ink, view, bold, x = 8) {
  pen.font = `${bold ? 'bold ' : ''}11px ${FONT}`;
  pen.fillStyle = ink;
  pen.fillText(words, x, y);
}

export const NAME_FONT = `bold 11px ${FONT}`;

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
    const indent = indentOf(row.deep);
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
      pen.font = NAME_FONT;
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
