// The critical path's lane: pieces without a gap; those under 2 px are merged into stacked shares per pixel column.
import {WAITING, colour, hatch, rgb} from './theme.js';
import {label, xOf} from './timeline_parts.js';

// The server's response on a path, with letters for its classes. Short pieces of a long path come as shares of the pixel
// columns they were asked for, by class: here by letter, all columns of a letter after each other.
export function readPath(found) {
  if (found.letters) return found;
  const {classes, columns, pieces} = found, letters = [...new Set(classes.map(one => one.letter))].sort();
  pieces.letter = pieces.cls.map(n => classes[n].letter);
  pieces.code = Uint8Array.from(pieces.letter, letter => letters.indexOf(letter));
  Object.assign(pieces, {t0: Float64Array.from(pieces.t0), t1: Float64Array.from(pieces.t1)});
  found.letters = letters;
  if (!columns) return found;
  const wide = columns[0].length, shares = new Float32Array(letters.length * wide);
  columns.forEach((own, c) => { const base = letters.indexOf(classes[c].letter) * wide; own.forEach((share, i) => { shares[base + i] += share; }); });
  found.merged = {wide, shares, of: '', sheet: null};
  return found;
}

export function drawPath(pen, view, tl, y, tall) {
  const {finish, path} = tl, isOne = finish?.equal > 1, high = Math.round((tall - 6) * view.scale);
  label(pen, view.right < 600 ? 'path' : 'Critical path', y + 15, colour('path'), view, true);
  if (isOne && view.right >= 600) label(pen, `1 of ${finish.equal}`, y + 15, colour('muted'), view, false, 84);
  const short = drawLong(pen, view, path, y + 2, tall - 6);
  if (path.merged) place(pen, view, mergedSheet(path, high), path.merged.wide, path.t0, path.t1, y + 2, tall - 6);
  else if (short) {
    const {wide, shares} = short, px = (view.right - view.left) / (view.t1 - view.t0);
    place(pen, view, stacked(shares, path.letters, wide, high, kept), wide, view.t0, view.t0 + wide / px, y + 2, tall - 6);
  }
  pen.fillStyle = colour('path');
  pen.fillRect(view.left, y + tall - 3, view.right - view.left, 1.5);
}

// Draws the long pieces. The short ones of a path that is here as a whole are added up: there may be 20,000, in each frame.
function drawLong(pen, view, path, top, tall) {
  const {left, right, t0} = view, {letters, merged} = path, {t0: begins, t1: ends, code} = path.pieces;
  const px = (right - left) / (view.t1 - t0), wide = Math.ceil(right - left), shares = merged ? null : blank(letters.length * wide);
  let hasShort = false;
  for (let n = lower(ends, t0); n < begins.length && begins[n] < view.t1; n++) {
    const x0 = Math.max((begins[n] - t0) * px, 0), x1 = Math.min((ends[n] - t0) * px, right - left);
    if (merged || x1 - x0 >= 2 || (ends[n] - begins[n]) * px >= 2) {
      const letter = letters[code[n]];
      pen.fillStyle = WAITING.includes(letter) ? hatch(pen, view.scale, letter) : colour(letter);
      pen.fillRect(left + x0, top, Math.max(x1 - x0 - (x1 - x0 > 5 ? 0.7 : 0), 0.5), tall);
    } else {
      const base = code[n] * wide;
      for (let at = Math.floor(x0); at < x1; at++) shares[base + at] += Math.min(x1, at + 1) - Math.max(x0, at);
      hasShort = true;
    }
  }
  return hasShort && {wide, shares};
}

function lower(values, t) {
  let lo = 0, hi = values.length;
  while (lo < hi) { const mid = (lo + hi) >> 1; if (values[mid] <= t) lo = mid + 1; else hi = mid; }
  return lo;
}

// Memory that is kept from frame to frame.
const kept = {shares: new Float32Array(0), image: null, sheet: null};
function blank(size) {
  if (kept.shares.length < size) kept.shares = new Float32Array(size);
  return kept.shares.fill(0);
}

// Made once for a window. While the window moves, until the next is here, it is moved and scaled.
function mergedSheet({letters, merged}, high) {
  const of = `${high}/${document.documentElement.dataset.theme}`;
  if (merged.of !== of) { stacked(merged.shares, letters, merged.wide, high, merged); merged.of = of; }
  return merged.sheet;
}

function place(pen, view, sheet, wide, t0, t1, top, tall) {
  const x0 = xOf(view, t0), x1 = xOf(view, t1);
  pen.save();
  pen.beginPath();
  pen.rect(view.left, top, view.right - view.left, tall);
  pen.clip();
  pen.imageSmoothingEnabled = x1 - x0 < wide - 1;
  pen.drawImage(sheet, x0, top, x1 - x0, tall);
  pen.restore();
}

// One image of all columns: as rectangles they are several thousand, more than all lanes have.
function stacked(shares, letters, wide, high, on) {
  if (on.image?.width !== wide || on.image.height !== high) {
    on.image = new ImageData(wide, high);
    on.words = new Uint32Array(on.image.data.buffer);
    on.sheet = new OffscreenCanvas(wide, high);
  } else on.words.fill(0);
  const inks = letters.map(rgb);
  for (let at = 0; at < wide; at++) stackColumn(shares, at, inks, on.words, wide, high);
  on.sheet.getContext('2d').putImageData(on.image, 0, 0);
  return on.sheet;
}

// From the top down. A pixel that a share covers in part is mixed with what is there, as a canvas mixes rectangles.
function stackColumn(shares, at, inks, words, wide, high) {
  let y = 0, row = 0, red = 0, green = 0, blue = 0, alpha = 0;
  for (let n = 0; n < inks.length; n++) {
    const share = shares[n * wide + at];
    if (!share) continue;
    const [r, g, b] = inks[n], foot = Math.min(y + share * high, high), whole = (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
    while (y < foot) {
      if (y === row && foot >= row + 1) { words[row * wide + at] = whole; row += 1; y = row; continue; }
      const next = Math.min(row + 1, foot), cover = next - y, rest = 1 - cover;
      red = r * cover + red * rest;
      green = g * cover + green * rest;
      blue = b * cover + blue * rest;
      alpha = cover + alpha * rest;
      words[row * wide + at] = ((Math.round(255 * alpha) << 24) | (Math.round(blue / alpha) << 16) | (Math.round(green / alpha) << 8) | Math.round(red / alpha)) >>> 0;
      y = next;
      if (y === row + 1) { row += 1; red = green = blue = alpha = 0; }
    }
  }
}
