// The whole scope in one strip, stacked by kind, with the window as a brush.
import {column} from './dom.js';
import {getArrays, query} from './data.js';
import {LETTERS, run, scopeOf, windowOf} from './run.js';
import {change, state} from './state.js';
import {colour} from './theme.js';
import {matches} from './search.js';
import {clampWindow} from './timeline_view.js';

export function startOverview(canvas, tl) {
  let key = '', data = null, picture = null;

  async function load() {
    const scope = scopeOf(), want = `${run.a.id}/${scope.id}`;
    if (want === key) return;
    key = want;
    const lanes = run.a.lanes.filter(lane => lane.ops && lane.kind !== 'S' && (lane.kind !== 'H' || scope.id === 'run')).map(lane => lane.i);
    if (!lanes.length) return;
    const found = await getArrays(`/runs/${run.a.id}/groups?${query({lanes: lanes.join(','), t0: scope.t0, t1: scope.t1, bins: 600})}`);
    if (key !== want) return;
    data = {bins: 600, busy: found.arrays.busy};
    picture = null;
    draw();
  }

  const xOf = (t, scope) => ((t - scope.t0) / (scope.t1 - scope.t0)) * canvas.clientWidth;

  function stacked(w, h, scale) {
    const sheet = new OffscreenCanvas(w * scale, h * scale), pen = sheet.getContext('2d');
    pen.scale(scale, scale);
    const {bins, busy} = data, wide = w / bins;
    let top = 1;
    for (let i = 0; i < bins; i++) { let sum = 0; for (let k = 0; k < LETTERS.length; k++) sum += busy[k * bins + i] / 255; top = Math.max(top, sum); }
    const foot = new Float64Array(bins).fill(h);
    [...LETTERS].forEach((letter, k) => {
      pen.fillStyle = colour(letter);
      for (let i = 0; i < bins; i++) {
        const tall = ((busy[k * bins + i] / 255) / top) * (h - 2);
        if (tall > 0) { foot[i] -= tall; const [x, span] = column(i * wide, wide, scale); pen.fillRect(x, foot[i], span, tall); }
      }
    });
    return sheet;
  }

  function draw() {
    if (!run.a || !canvas.clientWidth) return;
    load().catch(() => {});
    const scale = devicePixelRatio, w = canvas.clientWidth, h = canvas.clientHeight, scope = scopeOf();
    const look = `${w}/${h}/${document.documentElement.dataset.theme}/${key}`;
    // A canvas that is given its size again is made anew: only when it has changed.
    if (canvas.width !== Math.floor(w * scale) || canvas.height !== Math.floor(h * scale)) [canvas.width, canvas.height] = [Math.floor(w * scale), Math.floor(h * scale)];
    const pen = canvas.getContext('2d');
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, w, h);
    if (data && (!picture || picture.look !== look)) picture = {look, sheet: stacked(w, h, scale)};
    if (picture) pen.drawImage(picture.sheet, 0, 0, w, h);
    const [t0, t1] = windowOf(), x0 = xOf(t0, scope), x1 = xOf(t1, scope);
    pen.fillStyle = colour('panel');
    pen.globalAlpha = 0.7;
    pen.fillRect(0, 0, x0, h);
    pen.fillRect(x1, 0, w - x1, h);
    pen.globalAlpha = 1;
    pen.strokeStyle = colour('link');
    pen.lineWidth = 2;
    pen.strokeRect(x0 + 1, 1, Math.max(x1 - x0 - 2, 2), h - 2);
    if (state.range) { pen.fillStyle = colour('link'); pen.globalAlpha = 0.35; pen.fillRect(xOf(state.range[0], scope), 0, xOf(state.range[1], scope) - xOf(state.range[0], scope), h); pen.globalAlpha = 1; }
    pen.fillStyle = colour('path');
    for (const t of matches.times) pen.fillRect(xOf(t, scope) - 0.5, 0, 1.5, 4);
    if (state.t !== null) { pen.fillStyle = colour('text'); pen.fillRect(xOf(state.t, scope), 0, 1, h); }
  }
  tl.redrawOverview = draw;

  canvas.addEventListener('pointerdown', event => {
    if (!run.a) return;
    canvas.setPointerCapture(event.pointerId);
    const scope = scopeOf(), box = canvas.getBoundingClientRect();
    const tAt = at => scope.t0 + ((at.clientX - box.left) / box.width) * (scope.t1 - scope.t0);
    const [t0, t1] = windowOf(), wide = t1 - t0, start = tAt(event);
    const isWhole = wide > 0.98 * (scope.t1 - scope.t0);
    const grip = start >= t0 && start <= t1 ? start - t0 : wide / 2;
    const move = at => {
      if (isWhole) { const [lo, hi] = [start, tAt(at)].sort((x, y) => x - y); if (hi - lo > 0.004 * wide) change({w: clampWindow(lo, hi)}); }
      else change({w: clampWindow(tAt(at) - grip, tAt(at) - grip + wide)});
    };
    move(event);
    canvas.addEventListener('pointermove', move);
    canvas.addEventListener('pointerup', () => canvas.removeEventListener('pointermove', move), {once: true});
  });
}
