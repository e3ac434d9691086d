// Machine: tray, SIP, cube, PE. Pan, zoom, drill; colours are the activity at the cursor, or over the range.
import {empty, h, loading, rove, say, show, tip} from './dom.js';
import {change, state, subscribe} from './state.js';
import {getJson, query} from './data.js';
import {onKey} from './keys.js';
import {kb, run, scopeOf, shortLink, timeNow} from './run.js';
import {aboutLink, aboutNode, drawLevel, setBox} from './machine_draw.js';
import {diffStep, loadHeat, step} from './heat.js';
import {startSlider} from './slider.js';
import {marksOf} from './machine_marks.js';
import {legend, queueList} from './machine_legend.js';
import {machineTable} from './machine_table.js';
import {levelOf} from './search.js';
import {bytes, ns, pct, sig} from './units.js';

const METRICS = [['util', 'Utilisation'], ['queue', 'Queue'], ['bytes', 'Bytes']];
const MODES = [['', 'A'], ['side', 'A and B'], ['diff', 'B − A']];
let models = [], heats = [], ui = null, levelKey = '';

export function startMachine(pane, fail) {
  const crumbs = h('span', {class: 'crumbs grow'});
  const metric = h('select', {'aria-label': 'What the colours show', onchange: event => change({m: event.target.value})}, METRICS.map(([id, name]) => h('option', {value: id}, name)));
  const mode = h('select', {'aria-label': 'Which run', onchange: event => change({mode: event.target.value})}, MODES.map(([id, name]) => h('option', {value: id}, name)));
  const stage = h('div', {class: 'stage'}), rows = h('div', {class: 'body', hidden: true}), side = h('div', {class: 'side'}), foot = h('div', {class: 'foot'});
  show(pane, h('div', {class: 'head'}, h('h2', {}, 'Machine'), crumbs, mode, metric), h('div', {class: 'body machine'}, stage, side), rows, foot);
  mode.hidden = metric.hidden = foot.hidden = true;
  ui = {pane, crumbs, metric, mode, stage, side, foot, rows};
  const slider = startSlider(foot, () => heats[0]);
  const redraw = () => level().then(() => { colours(); slider.draw(); return marks(); }).catch(fail);
  subscribe(['loaded', 'root', 'scope', 'theme', 'mode'], () => run.machineId && redraw());
  subscribe(['t', 'range', 'm', 'table'], () => { colours(); slider.draw(); });
  subscribe(['sel'], () => marks().catch(() => {}));
  stage.addEventListener('wheel', zoomWheel, {passive: false});
  stage.addEventListener('pointerdown', drag);
  stage.addEventListener('dblclick', event => open(event.target.closest('.node')?.dataset.id));
  stage.addEventListener('keydown', event => { if (event.key === 'Enter') { const on = document.activeElement; if (!open(on.dataset.id)) click(on); } });
  stage.addEventListener('pointermove', hover);
  stage.addEventListener('pointerleave', () => tip(''));
  onKey(['u'], 'one level up in Machine', () => {
    const parts = rootNow().split('.');
    if (rootNow() !== 'tray') change({root: parts.length > 1 ? parts.slice(0, -1).join('.') : 'tray'});
  });
  kb.machine = () => ({root: rootNow(), boxes: models[0]?.boxes.size, links: models[0]?.links.size, heat: heats[0]});
}

// Where the critical path is longest, as Timeline has it: {of, lane}.
let mainLane = {of: '', lane: null};
const shownNow = () => run.a && `${run.a.id}/${scopeOf().id}`;
async function loadMainLane() {
  const of = shownNow();
  if (!of || mainLane.of === of) return;
  const found = await getJson(`/runs/${run.a.id}/answer?${query({scope: scopeOf().id})}`).catch(() => null);
  if (found && of === shownNow()) mainLane = {of, lane: found.lane};
}

// Without a choice: the cube of the critical path, else the one where most happened, or the tray.
function rootNow() {
  if (state.root) return state.root;
  const chosen = /^(?:node|link|route):([^>#]+)/.exec(state.sel || '');
  if (chosen) return levelOf(chosen[1]);
  if (!run.a) return 'tray';
  const lane = mainLane.of === shownNow() && run.a.lanes[mainLane.lane];
  if (lane) return `sip${lane.sip}.cube${lane.cube}`;
  const busy = new Map();
  for (const lane of run.a.lanes) if (lane.cube >= 0) { const id = `sip${lane.sip}.cube${lane.cube}`; busy.set(id, (busy.get(id) || 0) + lane.busy_ns); }
  return [...busy].sort((x, y) => y[1] - x[1])[0]?.[0] || 'tray';
}

async function level() {
  loading(ui.stage, 'the machine');
  if (!state.root) await loadMainLane();
  const root = rootNow();
  const ids = [state.a || run.machineId, ...(state.b && state.mode === 'side' ? [state.b] : [])];
  const key = `${ids}/${root}`;
  if (key !== levelKey) {
    const found = await Promise.all(ids.map(id => getJson(`/runs/${id}/machine?${query({root})}`)));
    if (root !== rootNow()) return;
    models = found.map(drawLevel);
    models.forEach((model, n) => { model.svg.setAttribute('data-run', 'ab'[n]); rove(model.svg, '.node'); });
    show(ui.stage, models.map((model, n) => h('figure', {}, ids.length > 1 && h('figcaption', {}, `${'AB'[n]}: ${(n ? run.b : run.a)?.name || ''}`), model.svg)));
    show(ui.crumbs, found[0].crumbs.map((crumb, i, all) => [i > 0 && h('span', {class: 'muted'}, ' › '),
      i + 1 < all.length ? h('button', {class: 'plain', onclick: () => change({root: crumb.id})}, crumb.label) : h('b', {}, crumb.label)]));
    levelKey = key;
    if (!kb.machinePaint) requestAnimationFrame(() => { kb.machinePaint = performance.now(); });
  }
  const scope = run.a && scopeOf();
  if (scope) loading(ui.side, 'the activity');
  heats = !scope ? [] : await Promise.all([state.a, ...(state.b && state.mode ? [state.b] : [])].map((id, n) => loadHeat(id, root, (n ? scopeOf(run.b) : scope)).catch(() => null)));
  const of = scope && `${run.a.id}/${scope.id}`;
  if (heats[0] && run.peak?.of !== of) { const t = heats[0].peak(); run.peak = t === null ? null : {of, t}; }
  ui.metric.value = state.m;
  ui.mode.value = state.mode;
  ui.mode.hidden = !state.b;
  ui.metric.hidden = !run.a;
  ui.foot.hidden = !run.a;
}

// The bins of the cursor or range in a run; B is aligned with A at the begin of the scope.
function binsOf(heat) {
  const shift = heat === heats[1] ? scopeOf(run.b).t0 - scopeOf().t0 : 0;
  return heat.bins(timeNow() + shift, state.range && state.range.map(t => t + shift));
}

function share(heat, id, bins) {
  const value = heat.value(id, state.m, bins);
  return state.m === 'util' ? value : value / heat.most(state.m);
}

function colours() {
  if (!models.length) return;
  if (!run.a || !heats[0]) {
    show(ui.side, run.a ? null : empty(h('b', {}, `Machine “${run.machineName}”`), h('p', {}, 'Double click a block to open it; click two nodes for the route between them.'),
      h('p', {}, 'To see where time goes in it:'), h('pre', {class: 'cmd'}, 'kernbench run --bench qkv-gemm --save qkv\nkernbench web qkv'),
      run.list.filter(entry => entry.kind === 'damaged').map(entry => h('p', {class: 'failed', role: 'alert'}, h('b', {}, `${entry.dir}: `), entry.error.what, h('br'), entry.error.hint))));
    return;
  }
  const isDiff = state.mode === 'diff' && heats[1];
  models.forEach((model, n) => paint(model, heats[isDiff ? 0 : n], isDiff ? heats[1] : null));
  const bins = heats[0].bins(timeNow(), state.range), isTable = state.table === 'machine';
  ui.rows.hidden = !isTable;
  ui.stage.parentElement.hidden = isTable;
  if (isTable) machineTable(ui.rows, heats[0], bins, state.range ? 'in the range' : `at ${ns(timeNow())}`);
  show(ui.side, legend(state.m, isDiff, heats[0]), queueList(heats[0], bins, Boolean(state.range)));
}

function paint(model, heat, other) {
  if (!heat) return;
  const bins = binsOf(heat), bins2 = other && binsOf(other);
  const fillOf = id => (other ? `var(--d${diffStep(share(other, id, bins2) - share(heat, id, bins))})` : `var(--u${step(share(heat, id, bins))})`);
  for (const [id, one] of model.links) {
    const isActive = heat.value(id, 'util', bins) > 0 || (other && other.value(id, 'util', bins2) > 0);
    const stroke = isActive ? fillOf(id) : '';
    if (one.stroke === stroke) continue;  // most links stay as they are from one bin to the next
    one.stroke = stroke;
    one.path.style.stroke = one.arrow.style.fill = stroke;
    one.path.classList.toggle('active', isActive);
    one.path.setAttribute('stroke-width', isActive ? one.width : one.width * 0.55);
    one.arrow.setAttribute('visibility', isActive ? 'visible' : 'hidden');
  }
  let worst = null, most = 0;
  for (const [id, box] of model.boxes) {
    paintBox(box, id, heat, bins, other, fillOf);
    let queue = heat.value(id, 'queue', bins);
    for (const linkId of box.out) queue = Math.max(queue, heat.value(linkId, 'queue', bins));
    if (queue > most) { most = queue; worst = id; }
  }
  const ringed = worst && most > 0.05 ? worst : null;
  if (model.ringed !== ringed) {
    model.boxes.get(model.ringed)?.group.classList.remove('worst');
    model.boxes.get(ringed)?.group.classList.add('worst');
    model.ringed = ringed;
  }
}

function paintBox(box, id, heat, bins, other, fillOf) {
  let fill = '', ink = '', letter = '';
  if (box.node.kind === 'pe') {
    letter = heat.doing(id, bins);
    if (letter) [fill, ink] = [`var(--${letter})`, `var(--on${letter})`];
  } else if (heat.index.has(id)) {
    const level = step(share(heat, id, bins));
    if (level || other) fill = fillOf(id);
    if (!other && level) ink = onStep(level);
  }
  const look = fill + ink + letter;
  if (box.look !== look) {
    box.look = look;
    box.rect.style.fill = fill;
    box.text.style.fill = ink;
    const doing = box.text.querySelector('.doing');
    if (doing) doing.textContent = letter;
  }
  box.tick?.setAttribute('width', (0.88 * box.node.box[2] * heat.busiest(id, bins)).toFixed(3));
  box.cells?.forEach((cell, n) => {
    const own = heat.value(`${id}#${n}`, 'util', bins) > 0 ? fillOf(`${id}#${n}`) : '';
    if (cell.style.fill !== own) cell.style.fill = own;
  });
}

// Letters on a step of the scale: dark on light steps, light on dark ones, the other way round in the dark theme.
const onStep = level => ((level >= 3) === (document.documentElement.dataset.theme !== 'dark') ? '#fff' : '#000');

async function marks() {
  for (const model of models) await marksOf(model, state.sel);
}

function open(id) {
  const node = id && models[0].boxes.get(id)?.node;
  if (node?.opens) change({root: id});
  return Boolean(node?.opens);
}

// ---- pointer

function zoomWheel(event) {
  const model = models.find(one => one.svg.contains(event.target)) || models[0];
  if (!model) return;
  event.preventDefault();
  zoomAt(model, event.clientX, event.clientY, Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.004));
}

function zoomAt(model, x, y, factor) {
  const at = toMm(model, x, y), [bx, by, bw, bh] = model.box;
  const least = model.home[2] / 40, w = Math.max(least, Math.min(model.home[2] * 1.5, bw * factor)), f = w / bw;
  for (const one of models) setBox(one, [at[0] - (at[0] - bx) * f, at[1] - (at[1] - by) * f, w, bh * f]);
}

function toMm(model, x, y) {
  const point = new DOMPoint(x, y).matrixTransform(model.svg.getScreenCTM().inverse());
  return [point.x, point.y];
}

const fingers = new Map();
function drag(event) {
  const model = models.find(one => one.svg.contains(event.target));
  if (!model) return;
  fingers.set(event.pointerId, event);
  const start = toMm(model, event.clientX, event.clientY);
  const target = event.target;
  let moved = false;
  const move = at => {
    if (fingers.size === 2 && fingers.has(at.pointerId)) {
      const other = [...fingers.values()].find(one => one.pointerId !== at.pointerId), old = fingers.get(at.pointerId);
      const before = Math.hypot(old.clientX - other.clientX, old.clientY - other.clientY), now = Math.hypot(at.clientX - other.clientX, at.clientY - other.clientY);
      if (now > 10) zoomAt(model, (at.clientX + other.clientX) / 2, (at.clientY + other.clientY) / 2, before / now);
      fingers.set(at.pointerId, at);
      moved = true;
      return;
    }
    if (!moved && Math.hypot(at.clientX - event.clientX, at.clientY - event.clientY) < 4) return;
    moved = true;
    tip('');
    const here = toMm(model, at.clientX, at.clientY);
    for (const one of models) setBox(one, [one.box[0] + start[0] - here[0], one.box[1] + start[1] - here[1], one.box[2], one.box[3]]);
  };
  const up = at => {
    removeEventListener('pointermove', move);
    removeEventListener('pointerup', up);
    removeEventListener('pointercancel', up);
    fingers.delete(at.pointerId);
    if (!moved && at.type === 'pointerup') click(target);
  };
  addEventListener('pointermove', move);
  addEventListener('pointerup', up);
  addEventListener('pointercancel', up);
}

function click(target) {
  const id = target.closest('.node')?.dataset.id, link = target.dataset.link;
  if (link) { change({sel: `link:${link}`}); return; }
  if (!id) { if (state.sel?.startsWith('route:')) change({sel: null}); return; }
  const before = state.sel?.startsWith('node:') ? state.sel.slice(5) : null;
  change({sel: before && before !== id ? `route:${before}>${id}` : `node:${id}`});
  say(before && before !== id ? `Route from ${before} to ${id}` : `${id} selected`);
}

let hoverTimer = 0;
function hover(event) {
  clearTimeout(hoverTimer);
  const id = event.target.closest?.('.node')?.dataset.id, link = event.target.dataset?.link;
  if (!id && !link) { tip(''); return; }
  hoverTimer = setTimeout(() => tip(link ? linkText(link) : nodeText(id), event.clientX, event.clientY), 80);
}

function activityText(id) {
  if (!heats[0]?.index.has(id)) return run.a ? '\nno bytes' : '';
  const bins = heats[0].bins(timeNow(), state.range), heat = heats[0];
  const other = heats[1] ? `\nB: ${pct(heats[1].value(id, 'util', binsOf(heats[1])))}` : '';
  return `\n${pct(heat.value(id, 'util', bins))} used, queue ${sig(heat.value(id, 'queue', bins), 2)}, ${bytes(Math.round(heat.value(id, 'bytes', bins)))} in a bin${heat.busiest(id, bins) ? `\nbusiest single link ${pct(heat.busiest(id, bins))}` : ''}${other}`;
}

function linkText(id) {
  const found = models.map(model => model.links.get(id)).find(Boolean);
  return found ? aboutLink(found.link) + activityText(id) : shortLink(id);
}

function nodeText(id) {
  const found = models.map(model => model.boxes.get(id)).find(Boolean);
  if (!found) return id;
  const doing = heats[0]?.doing(id, heats[0].bins(timeNow(), state.range));
  return aboutNode(found.node) + (heats[0]?.index.has(id) ? activityText(id) : '') + (doing ? `\ndoing: ${doing}` : '');
}

