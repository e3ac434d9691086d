// Flows of the selected op: from what let it start and what it needs, to what takes its result.
import {colour} from './theme.js';
import {FONT} from './timeline_draw.js';

export function drawFlows(pen, view, tl) {
  const op = tl.flows, px = (view.right - view.left) / (view.t1 - view.t0);
  const x = t => view.left + (t - view.t0) * px;
  const yOf = lane => {
    const row = tl.rows.find(one => one.lane?.i === lane || (one.type === 'strips' && one.lanes.some(l => l.i === lane)));
    return row ? view.top + row.y - view.scroll + row.h / 2 : null;
  };
  const here = yOf(op.lane);
  if (here === null) return;
  pen.save();
  pen.beginPath();
  pen.rect(view.left, view.top, view.right - view.left, view.bottom - view.top);
  pen.clip();
  const seen = new Set();
  const before = [...(op.released_by ? [op.released_by] : []), ...op.deps].filter(one => !seen.has(one.id) && seen.add(one.id));
  const after = [...op.released, ...op.consumers].filter(one => !seen.has(one.id) && seen.add(one.id));
  before.forEach(one => arrow(pen, x(one.t1), yOf(one.lane), x(op.t0), here));
  after.slice(0, 40).forEach(one => arrow(pen, x(op.t1), here, x(one.t0), yOf(one.lane)));
  const more = op.consumer_count - op.consumers.length;
  if (more > 0) {
    pen.font = `11px ${FONT}`;
    pen.fillStyle = colour('muted');
    pen.fillText(`+ ${more} more take it`, x(op.t1) + 6, here - 12);
  }
  pen.restore();
}

function arrow(pen, x0, y0, x1, y1) {
  if (y0 === null || y1 === null) return;
  const bend = Math.min(30, Math.max(10, Math.abs(x1 - x0) / 2));
  pen.strokeStyle = colour('ring');
  pen.fillStyle = colour('ring');
  pen.lineWidth = 1.3;
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1 - 5, y1);
  pen.stroke();
  pen.beginPath();
  pen.moveTo(x1, y1); pen.lineTo(x1 - 7, y1 - 3.5); pen.lineTo(x1 - 7, y1 + 3.5);
  pen.fill();
}
