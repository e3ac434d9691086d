// The timeline of an exported run: lanes over time, drawn on a canvas. Drag or arrow keys move it, the wheel or + and - zoom.
const data = JSON.parse(document.getElementById('timeline-data').textContent);
const canvas = document.getElementById('timeline'), tip = document.getElementById('tip'), pen = canvas.getContext('2d');
const ROW = 16, TOP = 22, whole = [data.begin, data.end];
let view = [...whole], scale = 1, grabbed = null, LABEL = 190;

const colour = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || '#888';
const shown = ns => ns >= 1e6 ? `${(ns / 1e6).toFixed(2)} ms` : ns >= 1e3 ? `${(ns / 1e3).toFixed(2)} us` : `${ns.toFixed(2)} ns`;
const width = () => canvas.clientWidth - LABEL;
const x = t => LABEL + (t - view[0]) / (view[1] - view[0]) * width();

function draw() {
  scale = devicePixelRatio || 1;
  LABEL = canvas.clientWidth < 600 ? 110 : 190;
  const height = TOP + ROW * data.lanes.length + 6;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(canvas.clientWidth * scale);
  canvas.height = Math.round(height * scale);
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, canvas.clientWidth, height);
  pen.font = '11px ui-monospace, monospace';
  pen.textBaseline = 'middle';
  for (let at = 0; at < 5; at += width() < 220 ? 4 : width() < 420 ? 2 : 1) {
    const t = view[0] + (view[1] - view[0]) * at / 4, place = LABEL + width() * at / 4;
    pen.fillStyle = colour('muted');
    pen.textAlign = at === 0 ? 'left' : at === 4 ? 'right' : 'center';
    pen.fillText(shown(t), place, 10);
    pen.fillStyle = colour('border');
    pen.fillRect(place, TOP - 4, 1, height);
  }
  pen.textAlign = 'left';
  data.lanes.forEach((lane, row) => {
    const y = TOP + row * ROW;
    pen.fillStyle = colour('text');
    pen.fillText(lane.name, 2, y + ROW / 2, LABEL - 8);
    pen.save();
    pen.beginPath();
    pen.rect(LABEL, y, width(), ROW);
    pen.clip();
    for (const [t0, t1, , onPath, queued] of lane.ops) {
      if (t1 < view[0] || t0 > view[1]) continue;
      const left = x(t0), w = Math.max(0.6, x(t1) - left);
      pen.fillStyle = colour(lane.kind);
      pen.fillRect(left, y + 2, w, ROW - 4);
      if (queued) hatch(x(t1 - queued), y + 2, x(t1) - x(t1 - queued), ROW - 4, colour(lane.kind));
      if (onPath) { pen.fillStyle = colour('path'); pen.fillRect(left, y + ROW - 4, w, 2); }
    }
    pen.restore();
  });
}

// Waiting: stripes of the op's colour on the panel.
function hatch(left, top, w, h, ink) {
  const from = Math.max(left, LABEL), to = Math.min(left + w, LABEL + width());
  if (to - from < 1) return;
  pen.save();
  pen.beginPath();
  pen.rect(from, top, to - from, h);
  pen.clip();
  pen.fillStyle = colour('panel');
  pen.fillRect(from, top, to - from, h);
  pen.strokeStyle = ink;
  pen.lineWidth = 1.5;
  pen.beginPath();
  for (let at = Math.floor(from / 5) * 5 - h; at < to; at += 5) { pen.moveTo(at, top + h); pen.lineTo(at + h, top); }
  pen.stroke();
  pen.restore();
}

function zoom(factor, at = (view[0] + view[1]) / 2) {
  const size = Math.min(whole[1] - whole[0], Math.max((view[1] - view[0]) * factor, 1e-3)), part = (at - view[0]) / (view[1] - view[0]);
  move(at - size * part, size);
}

function move(begin, size = view[1] - view[0]) {
  const from = Math.max(whole[0], Math.min(begin, whole[1] - size));
  view = [from, from + size];
  draw();
}

function opAt(event) {
  const box = canvas.getBoundingClientRect(), lane = data.lanes[Math.floor((event.clientY - box.top - TOP) / ROW)];
  if (!lane) return '';
  const t = view[0] + (event.clientX - box.left - LABEL) / width() * (view[1] - view[0]), near = (view[1] - view[0]) / width();
  const op = lane.ops.find(([t0, t1]) => t >= t0 - near && t <= t1 + near);
  return op ? `${lane.name}: ${data.names[op[2]]}, ${shown(op[0])} to ${shown(op[1])} (${shown(op[1] - op[0])})${op[3] ? ', on the critical path' : ''}` : lane.name;
}

canvas.addEventListener('wheel', event => {
  event.preventDefault();
  const box = canvas.getBoundingClientRect();
  zoom(event.deltaY > 0 ? 1.25 : 0.8, view[0] + (event.clientX - box.left - LABEL) / width() * (view[1] - view[0]));
}, {passive: false});
canvas.addEventListener('pointerdown', event => { grabbed = [event.clientX, view[0]]; canvas.setPointerCapture(event.pointerId); });
canvas.addEventListener('pointermove', event => {
  if (grabbed) move(grabbed[1] - (event.clientX - grabbed[0]) / width() * (view[1] - view[0]));
  tip.textContent = opAt(event);
});
canvas.addEventListener('pointerup', () => { grabbed = null; });
canvas.addEventListener('keydown', event => {
  const size = view[1] - view[0], step = {ArrowLeft: -size / 8, ArrowRight: size / 8}[event.key];
  if (step) move(view[0] + step);
  else if (event.key === '+' || event.key === '=') zoom(0.8);
  else if (event.key === '-') zoom(1.25);
  else if (event.key === '0') { view = [...whole]; draw(); } else return;
  event.preventDefault();
});
document.querySelectorAll('[data-zoom]').forEach(button => button.addEventListener('click', () => {
  if (button.dataset.zoom === 'all') { view = [...whole]; draw(); } else zoom(Number(button.dataset.zoom));
}));
document.querySelectorAll('[data-copy]').forEach(button => button.addEventListener('click', async () => {
  try { await navigator.clipboard.writeText(button.dataset.copy); button.textContent = 'copied'; } catch { button.textContent = 'select and copy'; }
}));
addEventListener('resize', draw);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
draw();
for (const line of document.querySelectorAll('.hottest')) { const box = line.closest('.scroll'); box.scrollTop = line.offsetTop - box.offsetTop - box.clientHeight / 2; }
