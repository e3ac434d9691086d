// Flows: of the selected op, from its release and inputs to the users of its result; of a selected launch, or
// of all, the messages between PEs, in bundles that split when zooming in.
import {getJson, query} from './data.js';
import {run} from './run.js';
import {state} from './state.js';
import {colour} from './theme.js';
import {FONT} from './timeline_draw.js';
import {count} from './units.js';

// Where a lane is drawn: in its row, in the strips of its PE, or in the row of its cube.
function heights(view, tl) {
  if (heights.rows !== tl.rows) {
    heights.rows = tl.rows;
    heights.of = new Map();
    for (const row of tl.rows) {
      if (row.type === 'gap' || (row.type === 'group' && row.isOpen)) continue;
      for (const lane of row.lane ? [row.lane] : row.lanes || row.group.lanes) heights.of.set(lane.i, row);
    }
  }
  return lane => { const row = heights.of.get(lane); return row ? view.top + row.y - view.scroll + row.h / 2 : null; };
}

function inLanes(pen, view, draw) {
  pen.save();
  pen.beginPath();
  pen.rect(view.left, view.top, view.right - view.left, view.bottom - view.top);
  pen.clip();
  draw();
  pen.restore();
}

const xOf = view => { const px = (view.right - view.left) / (view.t1 - view.t0); return t => view.left + (t - view.t0) * px; };

export function drawFlows(pen, view, tl) {
  const op = tl.flows, x = xOf(view), yOf = heights(view, tl), here = yOf(op.lane);
  if (here === null) return;
  const seen = new Set(), ink = colour('ring');
  const fresh = one => !seen.has(one.id) && seen.add(one.id);
  const before = [...(op.released_by ? [op.released_by] : []), ...op.deps].filter(fresh), after = [...op.released, ...op.consumers].filter(fresh);
  inLanes(pen, view, () => {
    before.forEach(one => arrow(pen, x(one.t1), yOf(one.lane), x(op.t0), here, ink));
    after.slice(0, 40).forEach(one => arrow(pen, x(op.t1), here, x(one.t0), yOf(one.lane), ink));
    const more = op.consumer_count - op.consumers.length;
    if (more > 0) words(pen, `+ ${count(more)} more take it`, x(op.t1) + 6, here - 12, 'muted');
  });
}

// Asks for the messages of what is shown; true when some are here, of this window or of the last.
export function wantMessages(view, tl, draw) {
  const sel = state.sel?.startsWith('launch:') ? state.sel : '';
  if (!sel && !state.flows) { tl.messages = null; return false; }
  const closed = tl.rows.filter(row => row.type === 'group' && !row.isOpen).map(row => row.group.id).join(',');
  const key = query({t0: view.t0, t1: view.t1, px: Math.round(view.right - view.left), sel, closed}), {id} = tl;
  if (tl.messages?.of !== `${id}/${sel}`) tl.messages = null;
  if (wantMessages.key !== `${id}/${key}`) {
    wantMessages.key = `${id}/${key}`;
    clearTimeout(wantMessages.timer);
    wantMessages.timer = setTimeout(async () => {
      const found = await getJson(`/runs/${id}/flows?${key}`).catch(() => null);
      if (!found || wantMessages.key !== `${id}/${key}` || id !== run.a?.id) return;
      tl.messages = {...found, of: `${id}/${sel}`};
      draw();
    }, tl.messages ? 60 : 0);
  }
  return Boolean(tl.messages);
}

export function drawMessages(pen, view, tl) {
  const x = xOf(view), yOf = heights(view, tl), ink = colour('C'), {bundles, rest} = tl.messages;
  inLanes(pen, view, () => {
    pen.globalAlpha = 0.8;
    for (const one of bundles) arrow(pen, x(one.t0), yOf(one.from), x(one.t1), yOf(one.to), ink, 1.3 + Math.log2(one.count) * 0.7);
    pen.globalAlpha = 1;
    for (const one of bundles) {
      const [y0, y1] = [yOf(one.from), yOf(one.to)];
      if (one.count > 1 && y0 !== null && y1 !== null) badge(pen, `${count(one.count)}`, (x(one.t0) + x(one.t1)) / 2, (y0 + y1) / 2 - (y0 === y1 ? ARCH : 0));
    }
    if (rest > 0) words(pen, `${count(rest)} more messages: zoom in`, view.right - 190, view.bottom - 6, 'text');
  });
}

const ARCH = 9; // px: within one row, a flow goes over it

function words(pen, text, x, y, ink) {
  pen.font = `11px ${FONT}`;
  pen.fillStyle = colour(ink);
  pen.fillText(text, x, y);
}

// How many messages a bundle has.
function badge(pen, text, x, y) {
  pen.font = `bold 10px ${FONT}`;
  const wide = pen.measureText(text).width + 6;
  pen.fillStyle = colour('panel');
  pen.fillRect(x - wide / 2, y - 7, wide, 13);
  pen.fillStyle = colour('text');
  pen.fillText(text, x - wide / 2 + 3, y + 3.5);
}

function arrow(pen, x0, y0, x1, y1, ink, px = 1.3) {
  if (y0 === null || y1 === null) return;
  // Between neighbours of a lane there is no room for a curve.
  const far = x1 - x0, isNear = y0 === y1 && far < 30, head = Math.min(5 + px, Math.max(far, 4));
  const bend = isNear ? 0 : Math.min(30, Math.max(10, Math.abs(far) / 2)), up = y0 === y1 && !isNear ? 1.6 * ARCH : 0;
  pen.strokeStyle = pen.fillStyle = ink;
  pen.lineWidth = px;
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.bezierCurveTo(x0 + bend, y0 - up, x1 - bend, y1 - up, x1 - head + 1, y1);
  pen.stroke();
  pen.beginPath();
  pen.moveTo(x1, y1); pen.lineTo(x1 - head - 1, y1 - head / 2 - 0.5); pen.lineTo(x1 - head - 1, y1 + head / 2 + 0.5);
  pen.fill();
}
