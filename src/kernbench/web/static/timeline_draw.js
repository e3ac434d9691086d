// The picture of lanes: slices as boxes with letter, name and time as room allows; bins as columns of their busy share.
import {colour, hatch, rgb} from './theme.js';
import {LETTERS} from './run.js';
import {LANE_H, SPAN_H} from './timeline_rows.js';
import {Tiles} from './tiles.js';
import {ns} from './units.js';

const FADED = 0.35;

// pen: canvas context in CSS pixels; view: {t0, t1, left, right, top, scroll, height, scale}
export function drawRows(pen, rows, view, tiles, look) {
  const {t0, t1, left, right} = view, px = (right - left) / (t1 - t0);
  const k = Tiles.level(t0, t1, (right - left)), numbers = Tiles.numbers(k, t0, t1);
  const image = new Columns(pen, view);
  const late = [];
  let items = 0;
  for (const row of rows) {
    const y = view.top + row.y - view.scroll;
    const lanes = row.type === 'strips' ? row.lanes : row.lane ? [row.lane] : [];
    const strip = row.type === 'strips' ? Math.max(2, Math.min(6, Math.floor((row.h - 8) / Math.max(lanes.length, 1)))) : row.type === 'spans' ? SPAN_H : LANE_H - 2;
    const pitch = row.type === 'strips' ? (row.h - 4) / Math.max(lanes.length, 1) : 0;
    lanes.forEach((lane, n) => {
      const top = row.type === 'strips' ? y + 2 + n * pitch + (pitch - strip) / 2 : y + 1;
      for (const i of numbers) {
        const tile = tiles.get(k, i, lane.i);
        if (!tile) continue;
        image.bins(tile, top, strip, px, look);
        slices(pen, tile, lane, top, strip, px, view, look, row.type, late);
        items += tile.start.length + tile.index.length;
      }
    });
  }
  image.put();
  late.forEach(draw => draw());
  return items;
}

function slices(pen, tile, lane, top, tall, px, view, look, type, late) {
  const end = tile.begin + 1024 * tile.width, x = t => view.left + (t - view.t0) * px, {begin, start, dur} = tile;
  let filled = '';
  for (let n = 0; n < start.length; n++) {
    const from = begin + start[n], to = from + dur[n];
    if (to <= view.t0 || from >= view.t1) continue;
    const x0 = Math.max(x(Math.max(from, tile.begin)), view.left - 2), x1 = Math.min(x(Math.min(to, end)), view.right + 2);
    if (x1 <= view.left || x0 >= view.right) continue;
    const letter = LETTERS[tile.kind[n]], wide = Math.max(x1 - x0, 0.7);
    if ((look.kinds && !look.kinds.includes(letter)) || (look.only && !(tile.flags[n] & 1))) continue;
    const isFaded = look.fade && !(tile.flags[n] & 2);
    pen.globalAlpha = isFaded ? FADED : 1;
    if (letter === 'S') { bracket(pen, x0, x1, top, tall, tile.texts[tile.text[n]]); pen.globalAlpha = 1; continue; }
    const gap = wide > 4 && to <= end ? 1 : 0;
    if (look.waits && type === 'lane' && tile.wait[n] > 0 && from >= tile.begin) { waited(pen, x(from - tile.wait[n]), x0, top + tall / 2, view); filled = ''; }
    if (filled !== letter) pen.fillStyle = colour(filled = letter);
    pen.fillRect(x0, top, wide - gap + (to > end ? 0.6 : 0), tall);
    const queue = tile.queue[n] / 255, latency = tile.latency[n] / 255, hq = tall > 10 ? 6 : tall;
    if (latency > 0 && wide * latency > 2) {
      pen.fillStyle = hatch(pen, view.scale, 'L');
      filled = '';
      const from0 = Math.max(x(to - (queue + latency) * tile.dur[n]), x0), to0 = Math.min(x(to - queue * tile.dur[n]), x1);
      if (to0 > from0) pen.fillRect(from0, top + tall - hq, to0 - from0 - gap, hq);
    }
    if (queue > 0 && wide * queue > 2) {
      // The waiting part, hatched, at the foot of the slice, from where it began: the split has no order in time.
      pen.fillStyle = hatch(pen, view.scale);
      filled = '';
      const xq = Math.max(x(to - queue * tile.dur[n]), x0);
      if (x1 > xq) pen.fillRect(xq, top + tall - hq, x1 - xq - gap, hq);
    }
    pen.globalAlpha = 1;
    // What is written on a slice and around it is drawn once, by the first tile that shows it, over all tiles.
    if (from < tile.begin && tile.begin > view.t0) continue;
    const left = Math.max(x(from), view.left - 2), all = Math.max(Math.min(x(to), view.right + 2) - left - gap, 0.7);
    if (type === 'lane' && look.path && !isFaded && tile.flags[n] & 1 && all > 3) late.push(() => outline(pen, left, top, all, tall, colour('path'), 1.5));
    if (type === 'lane' && all >= 18) late.push(() => name(pen, letter, tile.texts[tile.text[n]], tile.dur[n], Math.max(left, view.left), top, all, tall, queue, isFaded));
    if (tile.id[n] === look.selected) late.push(() => outline(pen, left - 1, top - 1, all + 2, tall + 2, colour('ring'), 2.5));
  }
}

// From the request of an op to its start: a thin hatched line.
function waited(pen, x0, x1, y, view) {
  const from = Math.max(x0, view.left);
  if (x1 - from < 1) return;
  pen.fillStyle = hatch(pen, view.scale);
  pen.fillRect(from, y - 2.5, x1 - from, 5);
}

function outline(pen, x, y, w, h, stroke, px) {
  pen.strokeStyle = stroke;
  pen.lineWidth = px;
  pen.strokeRect(x + px / 2, y + px / 2, w - px, h - px);
}

function name(pen, letter, text, dur, x, y, wide, tall, queue, isFaded) {
  pen.globalAlpha = isFaded ? FADED : 1;
  pen.fillStyle = colour(`on${letter}`) || colour('text');
  pen.font = `bold 11px ${FONT}`;
  const base = y + (queue > 0.02 ? 10 : tall / 2 + 4);
  pen.fillText(letter, x + 4, base);
  if (wide < 60 || !text) { pen.globalAlpha = 1; return; }
  const words = wide >= 110 ? `${text}  ${ns(dur)}` : text;
  const room = wide - 22;
  pen.font = `11px ${FONT}`;
  pen.fillText(fit(pen, words, room), x + 17, base);
  pen.globalAlpha = 1;
}

export const FONT = '"Helvetica Neue", Arial, "DejaVu Sans", sans-serif';

export function fit(pen, words, room) {
  if (pen.measureText(words).width <= room) return words;
  let n = words.length;
  while (n > 1 && pen.measureText(`${words.slice(0, n)}…`).width > room) n -= 1;
  return n > 1 ? `${words.slice(0, n)}…` : '';
}

function bracket(pen, x0, x1, y, tall) {
  pen.strokeStyle = colour('S');
  pen.lineWidth = 1.5;
  pen.beginPath();
  pen.moveTo(x0, y + tall); pen.lineTo(x0, y + 2); pen.lineTo(x1 - 1, y + 2); pen.lineTo(x1 - 1, y + tall);
  pen.stroke();
}

// Bins, pixel by pixel: one image for all of them is ten times as fast as rectangles. It is kept from frame to frame.
const kept = {image: null, words: null, sheet: null};
function blank(w, h) {
  if (kept.image?.width !== w || kept.image?.height !== h) {
    kept.image = new ImageData(w, h);
    kept.words = new Uint32Array(kept.image.data.buffer);
    kept.sheet = new OffscreenCanvas(w, h);
  } else kept.words.fill(0);
  return kept;
}

class Columns {
  constructor(pen, view) {
    Object.assign(this, {pen, view, image: null});
  }

  bins(tile, top, tall, px, look) {
    if (!tile.index.length) return;
    const {view} = this, scale = view.scale;
    if (!this.image) {
      this.w = Math.ceil((view.right - view.left) * scale);
      this.h = Math.ceil((view.bottom - view.top) * scale);
      Object.assign(this, blank(this.w, Math.max(this.h, 1)));
      [this.low, this.high] = [this.h, 0];
      this.ink = [...LETTERS].map(letter => { const [r, g, b] = rgb(letter); return (b << 16) | (g << 8) | r; });
    }
    const y1 = Math.round((top + tall - view.top) * scale), full = tall * scale, foot = Math.min(y1, this.h);
    this.high = Math.max(this.high, foot);
    // Tens of thousands of bins a frame: what does not change among them is read once.
    const {w, words, ink} = this, {begin, width, index, busy, bkind, bflags} = tile, {t0} = view, {only, fade} = look, perNs = px * scale;
    const isHidden = look.kinds && [...LETTERS].map(letter => !look.kinds.includes(letter));
    let low = this.low;
    for (let n = 0; n < index.length; n++) {
      if ((isHidden && isHidden[bkind[n]]) || (only && !(bflags[n] & 1))) continue;
      const from = begin + index[n] * width, xa = Math.floor((from - t0) * perNs), xb = Math.max(xa + 1, Math.ceil((from + width - t0) * perNs));
      if (xb <= 0 || xa >= w) continue;
      const alpha = fade && !(bflags[n] & 2) ? 90 : 255, word = (ink[bkind[n]] | (alpha << 24)) >>> 0;
      const y0 = Math.max(0, y1 - Math.max(1, Math.round((full * busy[n]) / 255))), x0 = xa > 0 ? xa : 0, x1 = xb < w ? xb : w;
      if (y0 < low) low = y0;
      for (let line = y0 * w; line < foot * w; line += w) {
        for (let x = line + x0; x < line + x1; x++) words[x] = word;
      }
    }
    this.low = low;
  }

  // Only the rows that have something in them.
  put() {
    if (!this.image || this.high <= this.low) return;
    const {image, sheet, view, low, high, w} = this, scale = view.scale;
    sheet.getContext('2d').putImageData(image, 0, 0, 0, low, w, high - low);
    this.pen.drawImage(sheet, 0, low, w, high - low, view.left, view.top + low / scale, w / scale, (high - low) / scale);
  }
}
