// Timeline: overview, axis, launches, the critical path, lanes of engines. Draws; input is in timeline_input.js.
import {empty, h, isNarrow, roomOf, show, textScale} from './dom.js';
import {change, state, subscribe} from './state.js';
import {getJson, query} from './data.js';
import {onKey} from './keys.js';
import {KIND_NAMES, kb, launchesOf, run, scopeOf, windowOf} from './run.js';
import {colour} from './theme.js';
import {groupsOf, openByDefault, rowsOf} from './timeline_rows.js';
import {drawRows} from './timeline_draw.js';
import {NAME_FONT, drawAxis, drawLabels, drawOverlay, drawLaunches} from './timeline_parts.js';
import {drawPath, readPath} from './timeline_path.js';
import {drawFlows, drawMessages, wantMessages} from './timeline_flows.js';
import {drawGroups, wantGroups} from './timeline_groups.js';
import {startOverview} from './timeline_overview.js';
import {arranged, drawMenu} from './timeline_lanes.js';
import {startInput} from './timeline_input.js';
import {AXIS_H, LAUNCH_H, PATH_H, clampWindow, hasLaunches, headHeight, labelWidth, launchesHeight, measureNames, stackLaunches, tl, viewNow} from './timeline_view.js';
import {asTable} from './timeline_table.js';
import {matches} from './search.js';
import {Tiles} from './tiles.js';
import {ns} from './units.js';

export function startTimeline(pane, fail) {
  const canvas = h('canvas', {tabindex: 0, role: 'img', 'aria-label': 'Timeline of engines. Press t for a table.'});
  const overview = h('canvas', {class: 'overview', 'aria-label': 'Overview of the whole scope'});
  const letters = h('span', {class: 'letters'}), text = h('span', {class: 'muted num'});
  const toggle = (key, name) => h('button', {class: 'pill', 'data-key': key, onclick: () => change({[key]: !state[key]})}, name);
  const pills = [toggle('path', 'Critical path'), toggle('only', 'On path only'), toggle('waits', 'Waits'), toggle('flows', 'Messages')];
  const menu = h('details', {class: 'lanemenu'});
  const cursor = h('div', {class: 'cursor', hidden: true}), body = h('div', {class: 'body lanes'}, canvas, cursor), tableBox = h('div', {class: 'body', hidden: true});
  show(pane, h('div', {class: 'head'}, h('h2', {}, 'Timeline'), letters, h('span', {class: 'grow'}), menu, pills, text), h('div', {class: 'over'}, h('span', {class: 'muted'}, 'overview'), overview), body, tableBox);
  Object.assign(tl, {pane, canvas, menu, cursor, overview, body, text, pills, letters, fail, tableBox});
  startOverview(overview, tl);
  startInput(canvas, tl, draw);
  subscribe(['loaded', 'scope'], () => rebuild().catch(fail));
  subscribe(['pin', 'hide'], () => { layout(); draw(); });
  subscribe(['open', 'w', 'range', 'sel', 'path', 'only', 'waits', 'flows', 'kinds', 'theme', 'matched', 'q'], (_, changed) => {
    if (changed.has('open')) layout();
    if (changed.has('sel') || changed.has('q')) selected().catch(() => {});
    draw();
  });
  subscribe(['t'], placeCursor);
  onKey(['p'], 'critical path on and off', () => change({path: !state.path}));
  onKey(['o'], 'only slices on the critical path, and back', () => change({only: !state.only}));
  onKey(['w'], 'waiting before slices on and off', () => change({waits: !state.waits}));
  onKey(['a'], 'all messages between PEs, and back', () => change({flows: !state.flows}));
  const isTable = () => state.table === 'timeline' && Boolean(run.a);
  const shape = () => { tableBox.hidden = !isTable(); body.hidden = isTable(); pressAll(); if (isTable()) asTable(tableBox).catch(fail); };
  onKey(['t'], 'the pane as a table (timeline, machine, timelines of Diff), and back', () => {
    if (state.view !== 'run' || !run.a) return false;
    const isMachine = document.activeElement.closest?.('#pane-machine') || (isNarrow() && state.pane === 'machine');
    change({table: state.table ? '' : isMachine ? 'machine' : 'timeline'});
    return true;
  });
  subscribe(['table', 'loaded', 'w', 'scope'], (_, changed) => { if (changed.has('table') || isTable()) shape(); });
  new ResizeObserver(draw).observe(canvas);
  kb.drawn = () => ({...tl.drawn, lanes: lanesDrawn()});
  kb.tl = tl;
}

async function rebuild() {
  if (!run.a) { show(tl.body, empty('No run is open: the machine is shown above.', h('p', {}, 'Save a run with --save and give its folder to kernbench web.'))); tl.pane.classList.add('off'); return; }
  tl.pane.classList.remove('off');
  show(tl.body, tl.canvas, tl.cursor);
  const scope = scopeOf();
  if (tl.id !== run.a.id) Object.assign(tl, {id: run.a.id, tiles: new Tiles(run.a.id, draw), last: null, scroll: 0, flows: null, lane: null});
  tl.tiles.scope = scope.id;
  tl.groups = groupsOf(run.a.lanes);
  stackLaunches();
  const pen = tl.canvas.getContext('2d');
  pen.font = NAME_FONT;
  measureNames(pen);
  tl.pane.style.setProperty('--labels', `${labelWidth() / 16}rem`);
  const kinds = [...new Set(run.a.lanes.filter(lane => lane.ops).map(lane => lane.kind))].filter(kind => kind !== 'S');
  show(tl.letters, Object.keys(KIND_NAMES).filter(kind => kinds.includes(kind)).map(kind => h('button', {
    class: 'kind', title: `Show only ${KIND_NAMES[kind]}`, 'aria-pressed': state.kinds.includes(kind) ? 'true' : 'false',
    onclick: () => change({kinds: state.kinds.includes(kind) ? state.kinds.replace(kind, '') : state.kinds + kind}),
  }, h('i', {class: `key c-${kind}`}, kind), h('span', {class: 'name'}, KIND_NAMES[kind]))));
  tl.pills.at(-1).hidden = !kinds.includes('C');
  layout();
  draw();
  getJson(`/runs/${run.a.id}/busy?${query({scope: scope.id})}`).then(found => { if (tl.id === run.a?.id) { tl.busy = found.busy; draw(); } }, () => {});
  await loadPath(scope);
  if (tl.id !== run.a.id) return;
  layout();
  if (!tl.scroll) showGroup(tl.rows.filter(row => row.group?.kind === 'pe' && ['lane', 'spans'].includes(row.type)));
  await selected().catch(() => {});
  draw();
  tl.redrawOverview?.();
  // What the first click asks for is read from disk then: prefetch it now, while the page is idle.
  const op = tl.path?.pieces.op.find(id => id >= 0), {id} = tl;
  if (op !== undefined) setTimeout(() => { if (tl.id === id) getJson(`/runs/${id}/op/${op}`).catch(() => {}); }, 500);
}

// A search that finds no op leaves the slices as they are.
const isNoMatch = () => tl.mark.startsWith('q:') && matches.q === state.q && !matches.times.length;

function showRow(row) {
  const room = tl.canvas.clientHeight / textScale - headHeight();
  if (row && (row.y < tl.scroll || row.y + row.h > tl.scroll + room)) tl.scroll = Math.max(0, Math.min(row.y + row.h - 0.7 * room, tl.height - room));
}

// The lanes of the PE that is open; where not all fit, from the first on.
function showGroup(rows) {
  if (!rows.length) return;
  showRow(rows.at(-1));
  tl.scroll = Math.min(tl.scroll, rows[0].y);
}

// The whole path where it is short; else what the window shows of it, again after each move.
async function loadPath(scope, t0 = scope.t0, t1 = scope.t1) {
  const id = run.a.id, px = Math.max(200, Math.round(roomOf(tl.canvas) - labelWidth()));
  const [found, answer] = await Promise.all([getJson(`/runs/${id}/path?${query({scope: scope.id, t0, t1, px})}`).catch(() => null), getJson(`/runs/${id}/answer?${query({scope: scope.id})}`).catch(() => null)]);
  if (tl.id === id) Object.assign(tl, {path: found && readPath(found), finish: answer?.finish, lane: answer?.lane});
}

let pathTimer = 0;
function followPath(view) {
  const {path} = tl;
  if (!path || path.whole || (path.t0 === view.t0 && path.t1 === view.t1)) return;
  clearTimeout(pathTimer);
  pathTimer = setTimeout(() => loadPath(scopeOf(), view.t0, view.t1).then(draw), 100);
}

function layout() {
  if (!run.a) return;
  const open = new Set(state.open || openByDefault(tl.groups, tl.lane, run.a.lanes));
  Object.assign(tl, rowsOf(arranged(tl.groups), open), {open});
  drawMenu(tl.menu, tl.groups);
}

async function selected() {
  const sel = state.sel || '';
  tl.mark = /^(line|node|link|kind|launch|class):/.test(sel) ? sel : state.q ? `q:${state.q}` : '';
  if (tl.tiles) tl.tiles.mark = tl.mark;
  tl.flows = sel.startsWith('op:') ? await getJson(`/runs/${run.a.id}/op/${sel.slice(3)}`) : null;
  if (state.sel === sel && tl.flows) reveal(tl.flows);
  if (sel.startsWith('line:')) await revealLine(sel);
  draw();
}

// A line of which nothing is in view, be it in time or because its PEs are closed: its longest op comes into view.
async function revealLine(sel) {
  const {id} = run.a, scope = scopeOf(), ask = ([t0, t1]) => getJson(`/runs/${id}/totals?${query({scope: scope.id, t0, t1, sel})}`);
  const shown = await ask(windowOf()), found = shown.ops ? shown : await ask([scope.t0, scope.t1]);
  if (state.sel !== sel || run.a?.id !== id || !found.ops) return;
  const isOpen = found.components.some(name => tl.open.has(name.replace(/\.pe_\w+$/, '')));
  if (!shown.ops || !isOpen) reveal(found.slowest[0]);
}

// An op that was selected elsewhere comes into view: its PE opens, the window moves.
function reveal(op) {
  const lane = run.a.lanes[op.lane], pe = lane.pe >= 0 ? `sip${lane.sip}.cube${lane.cube}.pe${lane.pe}` : lane.component;
  if (!tl.open.has(pe)) {
    const parent = tl.groups.find(group => group.kind === 'cube' && group.children.some(child => child.id === pe));
    change({open: [...tl.open, ...(parent && !tl.open.has(parent.id) ? [parent.id] : []), pe]});
    layout();
  }
  showRow(tl.rows.find(one => one.lane?.i === op.lane));
  const [t0, t1] = windowOf();
  if (op.t1 < t0 || op.t0 > t1) {
    const half = Math.max((t1 - t0) / 2, op.t1 - op.t0), middle = (op.t0 + op.t1) / 2;
    change({w: clampWindow(middle - half, middle + half)});
  }
}

function draw() {
  if (tl.frame) return;
  tl.frame = requestAnimationFrame(() => { tl.frame = 0; try { drawNow(); } catch (error) { tl.fail(error); } });
}

function drawNow() {
  const {canvas} = tl;
  if (!run.a || !tl.tiles || !canvas.clientWidth || !canvas.clientHeight) return;
  const began = performance.now(), view = viewNow(), scale = view.scale;
  tl.scroll = view.scroll = Math.max(0, Math.min(tl.scroll, tl.height - (view.bottom - view.top)));
  if (canvas.width !== Math.round(view.right * scale) || canvas.height !== Math.round(view.height * scale)) { canvas.width = Math.round(view.right * scale); canvas.height = Math.round(view.height * scale); tl.last = tl.shown = null; }
  const pen = canvas.getContext('2d');
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  const shown = tl.rows.filter(row => row.y + row.h > view.scroll && row.y < view.scroll + view.bottom - view.top);
  const lanes = shown.flatMap(row => (row.type === 'strips' ? row.lanes.map(lane => lane.i) : row.lane ? [row.lane.i] : []));
  const k = Tiles.level(view.t0, view.t1, view.right - view.left), numbers = Tiles.numbers(k, view.t0, view.t1);
  const isWhole = tl.tiles.want(k, numbers, lanes), hasGroups = wantGroups(shown, view, tl, draw);
  if (!(isWhole && hasGroups)) keepFrame();
  pen.fillStyle = colour('panel');
  pen.fillRect(0, 0, view.right, view.height);
  drawAxis(pen, view);
  pen.save();
  pen.beginPath();
  pen.rect(0, view.top, view.right, view.bottom - view.top);
  pen.clip();
  const look = {path: state.path, only: state.only, waits: state.waits, kinds: state.kinds, fade: Boolean(tl.tiles.mark) && !isNoMatch(), selected: state.sel?.startsWith('op:') ? Number(state.sel.slice(3)) : -1};
  let items = 0;
  if (isWhole && hasGroups) {
    drawLabels(pen, shown, view, tl, run.a, scopeOf());
    drawGroups(pen, shown, view, tl);
    items = drawRows(pen, shown, view, tl.tiles, look);
  } else moveLast(pen, view) || (drawLabels(pen, shown, view, tl, run.a, scopeOf()), items = drawRows(pen, shown, view, tl.tiles, look));
  pen.restore();
  tl.shown = isWhole && hasGroups ? {...view} : null;
  if (hasLaunches()) drawLaunches(pen, view, launchesOf(run.a), tl.launchRow, AXIS_H, LAUNCH_H);
  if (state.path && tl.path) drawPath(pen, view, tl, AXIS_H + launchesHeight(), PATH_H);
  if (wantMessages(view, tl, draw)) drawMessages(pen, view, tl);
  if (tl.flows) drawFlows(pen, view, tl);
  drawOverlay(pen, view);
  if (isWhole && hasGroups && tl.rows.length && !tl.firstPaint) tl.firstPaint = performance.now();
  tl.drawn = {items, ms: performance.now() - began, missing: !isWhole || !hasGroups, k};
  placeCursor();
  // What changes the page's layout comes last: sizes that are read after it are worked out again.
  tl.text.textContent = `${ns(view.t0)} to ${ns(view.t1)} (${ns(view.t1 - view.t0)})`;
  pressAll();
  followPath(view);
  if (isWhole) ahead(k, numbers, lanes);
}

function pressAll() {
  for (const pill of tl.pills) press(pill, state[pill.dataset.key]);
  for (const button of tl.letters.children) press(button, state.kinds.includes(button.textContent[0]));
}

function press(button, isOn) {
  const now = isOn ? 'true' : 'false';
  if (button.getAttribute('aria-pressed') !== now) button.setAttribute('aria-pressed', now);
}

// The cursor is an element of its own, so that moving it draws no lane again.
function placeCursor() {
  tl.redrawOverview?.();
  if (!run.a || !tl.canvas.clientWidth) return;
  const {t0, t1, left, right} = viewNow(), t = state.t;
  tl.cursor.hidden = t === null || t < t0 || t > t1;
  if (!tl.cursor.hidden) tl.cursor.style.transform = `translateX(${Math.round((left + ((t - t0) / (t1 - t0)) * (right - left)) * textScale)}px)`;
}

// When idle: one tile more on each side.
let idle = 0;
function ahead(k, numbers, lanes) {
  clearTimeout(idle);
  idle = setTimeout(() => {
    if (!run.a) return; // another view has been opened meanwhile
    const next = [numbers[0] - 1, numbers.at(-1) + 1].filter(i => i >= 0 && i * 1024 * 2 ** k < run.a.total_ns);
    if (next.length && lanes.length) tl.tiles.want(k, next, lanes, true);
  }, 250);
}

// Before a frame that lacks tiles: the last one that had all.
function keepFrame() {
  if (!tl.shown) return;
  if (tl.copy?.width !== tl.canvas.width || tl.copy?.height !== tl.canvas.height) tl.copy = new OffscreenCanvas(tl.canvas.width, tl.canvas.height);
  tl.copy.getContext('2d').drawImage(tl.canvas, 0, 0);
  tl.last = tl.shown;
}

// While tiles are on their way: the last picture, moved and scaled.
function moveLast(pen, view) {
  const last = tl.last;
  if (!last) return false;
  const px = (view.right - view.left) / (view.t1 - view.t0), s = view.scale;
  const x = view.left + (last.t0 - view.t0) * px, w = (last.t1 - last.t0) * px, dy = last.scroll - view.scroll;
  pen.save();
  pen.beginPath();
  pen.rect(view.left, view.top, view.right - view.left, view.bottom - view.top);
  pen.clip();
  pen.imageSmoothingEnabled = false;
  pen.drawImage(tl.copy, last.left * s, last.top * s, (last.right - last.left) * s, (last.bottom - last.top) * s, x, view.top + dy, w, last.bottom - last.top);
  pen.restore();
  pen.drawImage(tl.copy, 0, last.top * s, last.left * s, (last.bottom - last.top) * s, 0, view.top + dy, last.left, last.bottom - last.top);
  return true;
}

// For tests: busy time that is drawn, by lane.
function lanesDrawn() {
  const view = viewNow(), k = Tiles.level(view.t0, view.t1, view.right - view.left), found = {};
  for (const row of tl.rows) {
    for (const lane of row.type === 'strips' ? row.lanes : row.lane ? [row.lane] : []) {
      let busy = 0, items = 0;
      for (const i of Tiles.numbers(k, view.t0, view.t1)) {
        const tile = tl.tiles.get(k, i, lane.i);
        if (!tile) continue;
        for (let n = 0; n < tile.start.length; n++) busy += Math.max(0, Math.min(tile.begin + tile.start[n] + tile.dur[n], tile.begin + 1024 * tile.width, view.t1) - Math.max(tile.begin + tile.start[n], tile.begin, view.t0));
        for (let n = 0; n < tile.index.length; n++) { const from = tile.begin + tile.index[n] * tile.width; if (from < view.t1 && from + tile.width > view.t0) busy += (tile.busy[n] / 255) * tile.width; }
        items += tile.start.length + tile.index.length;
      }
      found[lane.name] = {busy, items};
    }
  }
  return found;
}
