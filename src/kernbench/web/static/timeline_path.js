// The critical path's lane: pieces without a gap; those under 2 px are merged into stacked shares per pixel column.
import {colour, hatch, rgb} from './theme.js';
import {label, xOf} from './timeline_parts.js';

// What the server says of a path, with letters for its classes. Short pieces of a long path come as shares of the pixel
// columns they were asked for, by class: here by letter, all columns of a letter after each other.
export function readPath(found) {
  const {classes, columns, pieces} = found, letters = [...new Set(classes.map(one => one.letter))].sort();
  pieces.letter = pieces.cls.map(n => classes[n].letter);
  found.letters = letters;
  if (!columns) return found;
  const wide = columns[0].length, shares = new Float32Array(letters.length * wide);
  columns.forEach((own, c) => { const base = letters.indexOf(classes[c].letter) * wide; own.forEach((share, i) => { shares[base + i] += share; }); });
  found.merged = {wide, shares, of: '', sheet: null};
  return found;
}

export function drawPath(pen, view, tl, y, tall) {
  const {finish, path} = tl, isOne = finish?.equal > 1;
  label(pen, view.right < 600 ? 'path' : 'Critical path', y + 15, colour('path'), view, true);
  if (isOne && view.right >= 600) label(pen, `1 of ${finish.equal}`, y + 15, colour('muted'), view, false, 84);
  const {pieces, letters, merged} = path, px = (view.right - view.left) / (view.t1 - view.t0);
  const wide = Math.ceil(view.right - view.left), shares = merged ? null : new Float32Array(letters.length * wide);
  let isMerged = false;
  for (let n = lower(pieces.t1, view.t0); n < pieces.t0.length && pieces.t0[n] < view.t1; n++) {
    const x0 = Math.max(xOf(view, pieces.t0[n]), view.left), x1 = Math.min(xOf(view, pieces.t1[n]), view.right);
    const letter = pieces.letter[n];
    if (merged || x1 - x0 >= 2 || (pieces.t1[n] - pieces.t0[n]) * px >= 2) {
      pen.fillStyle = letter === 'Q' ? hatch(pen, view.scale) : colour(letter);
      pen.fillRect(x0, y + 2, Math.max(x1 - x0 - (x1 - x0 > 5 ? 0.7 : 0), 0.5), tall - 6);
    } else {
      const base = letters.indexOf(letter) * wide - view.left;
      for (let at = Math.floor(x0); at < x1; at++) shares[base + at] += Math.min(x1, at + 1) - Math.max(x0, at);
      isMerged = true;
    }
  }
  const high = Math.round((tall - 6) * view.scale);
  if (merged) place(pen, view, mergedSheet(path, high), path.t0, path.t1, y + 2, tall - 6);
  else if (isMerged) place(pen, view, stacked(shares, letters, wide, high), view.t0, view.t0 + wide / px, y + 2, tall - 6);
  pen.fillStyle = colour('path');
  pen.fillRect(view.left, y + tall - 3, view.right - view.left, 1.5);
}

function lower(values, t) {
  let lo = 0, hi = values.length;
  while (lo < hi) { const mid = (lo + hi) >> 1; if (values[mid] <= t) lo = mid + 1; else hi = mid; }
  return lo;
}

// Made once for a window. While the window moves, until the next is here, it is moved and scaled.
function mergedSheet({letters, merged}, high) {
  const of = `${high}/${document.documentElement.dataset.theme}`;
  if (merged.of !== of) Object.assign(merged, {of, sheet: stacked(merged.shares, letters, merged.wide, high)});
  return merged.sheet;
}

function place(pen, view, sheet, t0, t1, top, tall) {
  const x0 = xOf(view, t0), x1 = xOf(view, t1);
  pen.save();
  pen.beginPath();
  pen.rect(view.left, top, view.right - view.left, tall);
  pen.clip();
  pen.imageSmoothingEnabled = x1 - x0 < sheet.width - 1;
  pen.drawImage(sheet, x0, top, x1 - x0, tall);
  pen.restore();
}

// One image of all columns: as rectangles they are several thousand, more than all lanes have.
function stacked(shares, letters, wide, high) {
  const image = new ImageData(wide, high), words = new Uint32Array(image.data.buffer), sheet = new OffscreenCanvas(wide, high);
  const inks = letters.map(rgb);
  for (let at = 0; at < wide; at++) stackColumn(shares, at, inks, words, wide, high);
  sheet.getContext('2d').putImageData(image, 0, 0);
  return sheet;
}

// From the top down. A pixel that a share covers in part is mixed with what is there, as a canvas mixes rectangles.
function stackColumn(shares, at, inks, words, wide, high) {
  let y = 0, row = 0, red = 0, green = 0, blue = 0, alpha = 0;
  for (let n = 0; n < inks.length; n++) {
    const ink = inks[n], foot = Math.min(y + shares[n * wide + at] * high, high);
    while (y < foot) {
      const next = Math.min(row + 1, foot), cover = next - y, rest = 1 - cover;
      red = ink[0] * cover + red * rest;
      green = ink[1] * cover + green * rest;
      blue = ink[2] * cover + blue * rest;
      alpha = cover + alpha * rest;
      words[row * wide + at] = ((Math.round(255 * alpha) << 24) | (Math.round(blue / alpha) << 16) | (Math.round(green / alpha) << 8) | Math.round(red / alpha)) >>> 0;
      y = next;
      if (y === row + 1) { row += 1; red = green = blue = alpha = 0; }
    }
  }
}
