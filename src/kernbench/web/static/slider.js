// Time in Machine: a line of mean HBM utilisation with a cursor, and play.
import {h} from './dom.js';
import {change, state} from './state.js';
import {onKey} from './keys.js';
import {run, scopeOf, timeNow, windowOf} from './run.js';
import {colour} from './theme.js';
import {ns, pct} from './units.js';

export function startSlider(foot, heatNow) {
  const canvas = h('canvas', {class: 'spark', role: 'slider', tabindex: 0, 'aria-label': 'Time', 'aria-valuemin': 0});
  const text = h('span', {class: 'muted when'});
  const button = h('button', {'aria-label': 'Play', title: 'Play (space)', onclick: () => toggle()}, '▶');
  // What the colours show: one time, the range, or the whole scope.
  const isWhole = () => { const scope = scopeOf(); return Boolean(state.range && scope && state.range[0] <= scope.t0 && state.range[1] >= scope.t1); };
  const mode = h('select', {'aria-label': 'Time that the colours show', onchange: event => { const scope = scopeOf(); change({range: event.target.value === 'instant' ? null : [scope.t0, scope.t1]}); }},
    h('option', {value: 'instant'}, 'instant'), h('option', {value: 'range'}, 'range'), h('option', {value: 'whole'}, 'whole'));
  foot.append(button, canvas, mode, text);
  let playing = null, line = null;

  const at = event => {
    const box = canvas.getBoundingClientRect(), scope = scopeOf();
    const share = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
    change({t: scope.t0 + share * (scope.t1 - scope.t0)});
  };
  canvas.addEventListener('pointerdown', event => {
    canvas.setPointerCapture(event.pointerId);
    at(event);
    canvas.addEventListener('pointermove', at);
    canvas.addEventListener('pointerup', () => canvas.removeEventListener('pointermove', at), {once: true});
  });
  canvas.addEventListener('keydown', event => {
    const heat = heatNow(), step = {ArrowLeft: -1, ArrowRight: 1, PageUp: 16, PageDown: -16}[event.key];
    if (!step || !heat) return;
    const scope = scopeOf();
    change({t: Math.max(scope.t0, Math.min(scope.t1, timeNow() + step * heat.header.bin_ns))});
    event.preventDefault();
    event.stopPropagation();
  });
  onKey([' '], 'play and stop', () => toggle());

  function toggle() {
    if (playing) { cancelAnimationFrame(playing); playing = null; button.textContent = '▶'; button.setAttribute('aria-label', 'Play'); return; }
    if (!run.a || !heatNow()) return;
    const [t0, t1] = windowOf(), perMs = (t1 - t0) / 10000, bin = heatNow().header.bin_ns;
    let last = performance.now(), t = state.t === null || state.t < t0 || state.t >= t1 - bin ? t0 : state.t;
    button.textContent = '❚❚';
    button.setAttribute('aria-label', 'Stop');
    const frame = now => {
      t += Math.min((now - last) * perMs, bin);
      last = now;
      if (t >= t1) { toggle(); return; }
      change({t});
      playing = requestAnimationFrame(frame);
    };
    playing = requestAnimationFrame(frame);
  }

  function draw() {
    const heat = heatNow();
    if (!heat || !canvas.clientWidth) return;
    const scale = devicePixelRatio, w = canvas.clientWidth, hgt = canvas.clientHeight;
    if (canvas.width !== Math.round(w * scale) || canvas.height !== Math.round(hgt * scale)) [canvas.width, canvas.height] = [Math.round(w * scale), Math.round(hgt * scale)];
    const pen = canvas.getContext('2d'), scope = scopeOf();
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, canvas.width, canvas.height);
    const {mean, bin_ns: width} = heat.header, x = t => ((t - scope.t0) / (scope.t1 - scope.t0)) * w;
    const look = `${w}/${hgt}/${scale}/${scope.id}/${colour('muted')}`;
    if (line?.heat !== heat || line.look !== look) line = {heat, look, sheet: lineOf(heat, w, hgt, scale, x)};
    pen.drawImage(line.sheet, 0, 0);
    pen.scale(scale, scale);
    if (state.range) {
      pen.fillStyle = colour('link');
      pen.globalAlpha = 0.25;
      pen.fillRect(x(state.range[0]), 0, x(state.range[1]) - x(state.range[0]), hgt);
      pen.globalAlpha = 1;
    }
    mode.value = isWhole() ? 'whole' : state.range ? 'range' : 'instant';
    mode.options[1].disabled = !state.range || isWhole();
    const t = timeNow(), at0 = x(t);
    pen.fillStyle = colour('text');
    pen.fillRect(at0 - 1, 0, 2, hgt);
    pen.beginPath();
    pen.moveTo(at0 - 5, 0); pen.lineTo(at0 + 5, 0); pen.lineTo(at0, 6);
    pen.fill();
    const [w0, w1] = windowOf(), stored = run.a.bin_ns;
    text.textContent = w1 - w0 < 2 * stored ? `activity is stored in bins of ${ns(stored)}; save again with --bins N` : state.range ? `mean of ${ns(state.range[1] - state.range[0])}` : `t = ${ns(t)}, bin ${ns(width)}`;
    text.title = `The line is the mean utilisation of memory channels, up to ${pct(Math.max(...mean))}`;
    canvas.setAttribute('aria-valuemin', Math.round(scope.t0));
    canvas.setAttribute('aria-valuemax', Math.round(scope.t1));
    canvas.setAttribute('aria-valuenow', Math.round(t));
    canvas.setAttribute('aria-valuetext', ns(t));
  }
  new ResizeObserver(draw).observe(canvas);
  return {draw};
}

// The line itself, drawn once for a level.
function lineOf(heat, w, hgt, scale, x) {
  const sheet = new OffscreenCanvas(Math.max(1, Math.round(w * scale)), Math.max(1, Math.round(hgt * scale))), pen = sheet.getContext('2d');
  const {mean, bins, bin_ns: width, t0} = heat.header, top = Math.max(0.01, ...mean);
  pen.scale(scale, scale);
  pen.fillStyle = colour('muted');
  for (let i = 0; i < bins; i++) {
    const tall = (mean[i] / top) * (hgt - 7);
    if (tall > 0) pen.fillRect(x(t0 + i * width), hgt - Math.max(tall, 1), Math.max(x(t0 + width) - x(t0), 1), Math.max(tall, 1));
  }
  return sheet;
}
