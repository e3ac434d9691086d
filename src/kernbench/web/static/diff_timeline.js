// A and B under each other, on one axis that begins where each scope begins: critical path, and how busy engines were.
import {column, h, roomOf, show, table, textScale, tip} from './dom.js';
import {change, state, subscribe} from './state.js';
import {getArrays, getJson, query} from './data.js';
import {onKey} from './keys.js';
import {KIND_NAMES, LETTERS, kb, run} from './run.js';
import {colour} from './theme.js';
import {FONT} from './timeline_draw.js';
import {drawAxis} from './timeline_parts.js';
import {drawPath, readPath} from './timeline_path.js';
import {ns, pct} from './units.js';

const AXIS = 20, HEAD = 18, PATH = 22, ROW = 17;

export function stackedTimelines(fail) {
  const canvas = h('canvas', {class: 'stacked', tabindex: 0, role: 'img'}), box = h('div', {hidden: true});
  const isTable = () => state.table === 'diff';
  const button = h('button', {class: 'pill', onclick: () => change({table: isTable() ? '' : 'diff'})}, 'as a table');
  const card = h('section', {class: 'card'}, h('div', {class: 'switch'}, h('h2', {}, 'In time'), button, h('span', {class: 'muted'}, 'both begin at 0; Ctrl and wheel zooms, drag pans, 0 shows all')), canvas, box);
  let sides = [], frame = 0, timer = 0, asked = '';

  const longest = () => Math.max(...sides.map(side => side.t1 - side.t0), 1e-6);
  const windowNow = () => (state.dw && state.dw[0] < longest() ? state.dw : [0, longest()]);
  const left = () => (roomOf(canvas) < 600 ? 62 : 124);
  const kinds = () => [...LETTERS].filter(kind => kind !== 'S' && sides.some(side => side.kinds.has(kind)));
  const tall = () => AXIS + sides.length * (HEAD + PATH + 4 + kinds().length * ROW + 6);

  function showSides(found) {
    sides = [['A', found.a, run.a], ['B', found.b, run.b]].map(([letter, about, of]) => {
      const lanes = of.lanes.filter(lane => lane.ops && lane.kind !== 'S' && (lane.kind !== 'H' || about.scope === 'run'));
      return {...about, letter, kinds: new Map([...LETTERS].map(kind => [kind, lanes.filter(lane => lane.kind === kind).map(lane => lane.i)]).filter(([, own]) => own.length)), path: null, busy: null};
    });
    asked = '';
    canvas.setAttribute('aria-label', `Timelines of A and B: ${sides.map(side => `${side.letter} takes ${ns(side.t1 - side.t0)}`).join(', ')}. Press t for a table.`);
    draw();
    requestAnimationFrame(() => ask().catch(fail));  // the card has its width then
    asTable().catch(fail);
  }

  // What the window shows of each side; again after it has moved.
  async function ask() {
    const [from, to] = windowNow(), px = Math.max(200, Math.round(roomOf(canvas) - left())), key = `${from}/${to}/${px}/${sides.map(side => side.id + side.scope)}`;
    if (key === asked || !sides.length) return;
    asked = key;
    await Promise.all(sides.map(async side => {
      const t0 = side.t0 + from, t1 = Math.min(side.t0 + to, side.t1);
      if (t1 <= t0) { side.part = null; return; }
      const bins = Math.min(1024, Math.max(64, Math.round((px * (t1 - t0)) / (to - from))));
      const [path, groups] = await Promise.all([
        getJson(`/runs/${side.id}/path?${query({scope: side.scope, t0, t1, px})}`),
        getArrays(`/runs/${side.id}/groups?${query({lanes: [...side.kinds.values()].map(lanes => lanes.join(',')).join(';'), t0, t1, bins})}`),
      ]);
      if (key !== asked) return;
      side.part = {path: readPath(path), t0, t1, bins: groups.header.bins, busy: groups.arrays.busy};
    }));
    if (key === asked) draw();
  }

  function draw() {
    if (!frame) frame = requestAnimationFrame(() => { frame = 0; try { drawNow(); } catch (error) { fail(error); } });
  }

  function drawNow() {
    const w = roomOf(canvas), scale = devicePixelRatio * textScale, high = tall();
    if (!w || !sides.length || !card.isConnected) return;
    canvas.style.height = `${high * textScale}px`;
    canvas.width = Math.round(w * scale);
    canvas.height = Math.round(high * scale);
    const pen = canvas.getContext('2d'), [from, to] = windowNow();
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.fillStyle = colour('panel');
    pen.fillRect(0, 0, w, high);
    const view = {t0: from, t1: to, left: left(), right: w, top: AXIS, bottom: high, scale};
    drawAxis(pen, view);
    let y = AXIS;
    for (const side of sides) y = drawSide(pen, side, view, y);
    kb.stacked = {sides: sides.map(({letter, part, t0, t1}) => ({letter, t0, t1, part: part && {t0: part.t0, t1: part.t1, pieces: part.path.pieces.t0.length}})), window: [from, to], asked};
  }

  function drawSide(pen, side, view, y) {
    const x = t => view.left + ((t - view.t0) / (view.t1 - view.t0)) * (view.right - view.left);
    pen.font = `bold 12px ${FONT}`;
    const words = `${side.letter}   ${ns(side.t1 - side.t0)}`;
    pen.fillStyle = colour('panel');
    pen.fillRect(8, y + 2, pen.measureText(words).width + 3, 14);  // no line of the axis goes through it
    pen.fillStyle = colour('text');
    pen.fillText(words, 8, y + 13);
    y += HEAD;
    const until = Math.min(view.t1, side.t1 - side.t0);
    if (side.part) drawPath(pen, {...view, t0: view.t0 + side.t0, t1: until + side.t0, right: x(until)}, side.part, y, PATH);
    y += PATH + 4;
    const names = [...side.kinds.keys()];
    for (const kind of kinds()) {
      pen.font = `11px ${FONT}`;
      pen.fillStyle = colour('muted');
      pen.textAlign = 'right';
      pen.fillText(view.right < 600 ? kind : KIND_NAMES[kind], view.left - 6, y + 12);
      pen.textAlign = 'left';
      pen.fillStyle = colour('raised');
      pen.fillRect(view.left, y + 1, view.right - view.left, ROW - 3);
      if (side.part && names.includes(kind)) drawBusy(pen, side.part, names.indexOf(kind), kind, x(side.part.t0 - side.t0), x(side.part.t1 - side.t0), y + 1);
      y += ROW;
    }
    const end = x(side.t1 - side.t0);
    if (end < view.right) {
      pen.fillStyle = colour('text');
      pen.fillRect(Math.max(end, view.left) - 1, y - HEAD - PATH - kinds().length * ROW, 1.5, HEAD + PATH + kinds().length * ROW - 2);
    }
    pen.fillStyle = colour('border');
    pen.fillRect(0, y + 2, view.right, 1);
    return y + 6;
  }

  // A column is as tall as the engines of the kind were busy.
  function drawBusy(pen, {bins, busy}, group, kind, x0, x1, top) {
    const base = (group * LETTERS.length + LETTERS.indexOf(kind)) * bins, wide = (x1 - x0) / bins;
    pen.fillStyle = colour(kind);
    for (let i = 0; i < bins; i++) {
      const share = busy[base + i] / 255;
      if (share) { const high = Math.max(1, share * (ROW - 3)); const [x, w] = column(x0 + i * wide, wide, devicePixelRatio * textScale); pen.fillRect(x, top + ROW - 3 - high, w, high); }
    }
  }

  async function asTable() {
    const found = await Promise.all(sides.map(side => getJson(`/runs/${side.id}/totals?${query({scope: side.scope, t0: side.t0, t1: side.t1})}`)));
    const rows = kinds().filter(kind => kind !== 'H').map(kind => ({kind, sides: found.map((one, n) => {
      const row = one.engines.find(engine => engine.kind === kind), lanes = sides[n].kinds.get(kind)?.length || 0;
      return row ? {...row, share: row.busy_ns / (lanes * (sides[n].t1 - sides[n].t0))} : null;
    })}));
    const columns = [{name: 'engine', cell: row => KIND_NAMES[row.kind]}];
    ['A', 'B'].forEach((letter, n) => columns.push({name: `${letter} ops`, num: true, cell: row => row.sides[n]?.ops.toLocaleString('en-US') ?? '–'}, {name: `${letter} busy`, num: true, cell: row => (row.sides[n] ? `${ns(row.sides[n].busy_ns)}, ${pct(row.sides[n].share)}` : '–')}));
    show(box, h('div', {class: 'wide'}, table(columns, rows)), h('p', {class: 'muted'}, 'Busy: the sum over all engines of a kind, and its share of their time.'));
  }

  const move = (from, to) => {
    const wide = Math.min(to - from, longest()), begin = Math.max(0, Math.min(from, longest() - wide));
    change({dw: wide >= longest() ? null : [begin, begin + Math.max(wide, 2 ** -4)]});
  };
  const zoom = (factor, t) => { const [from, to] = windowNow(); move(t - (t - from) * factor, t + (to - t) * factor); };
  const pan = by => { const [from, to] = windowNow(); move(from + by, to + by); };
  const timeAt = event => { const area = canvas.getBoundingClientRect(), [from, to] = windowNow(); return from + (((event.clientX - area.left) / textScale - left()) / (roomOf(canvas) - left())) * (to - from); };

  canvas.addEventListener('wheel', event => {
    const [from, to] = windowNow();
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(Math.max(-80, Math.min(80, event.deltaY)) * 0.006), timeAt(event));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(((event.deltaX || event.deltaY) / textScale / (roomOf(canvas) - left())) * (to - from));
    else return;
    event.preventDefault();
  }, {passive: false});
  canvas.addEventListener('pointerdown', event => {
    canvas.setPointerCapture(event.pointerId);
    const [from, to] = windowNow();
    let moved = false;
    const drag = at => { if (moved || Math.abs(at.clientX - event.clientX) > 4) { moved = true; const by = ((event.clientX - at.clientX) / textScale / (roomOf(canvas) - left())) * (to - from); move(from + by, to + by); } };
    canvas.addEventListener('pointermove', drag);
    canvas.addEventListener('pointerup', at => { canvas.removeEventListener('pointermove', drag); if (!moved) open(pieceAt(at)); }, {once: true});
  });
  canvas.addEventListener('pointermove', event => { const at = event.buttons ? null : pieceAt(event); canvas.style.cursor = at?.op >= 0 ? 'pointer' : 'default'; tip(at ? `${at.side.letter}: ${at.name}, ${ns(at.t1 - at.t0)}${at.op >= 0 ? `\nop ${at.op}; click opens it` : ''}` : '', event.clientX, event.clientY); });
  canvas.addEventListener('pointerleave', () => tip(''));

  function pieceAt(event) {
    const y = (event.clientY - canvas.getBoundingClientRect().top) / textScale - AXIS, one = (tall() - AXIS) / Math.max(sides.length, 1);
    const side = sides[Math.floor(y / one)], within = y % one, pieces = side?.part?.path.pieces;
    if (!pieces || within < HEAD || within > HEAD + PATH) return null;
    const t = timeAt(event) + side.t0, n = pieces.t1.findIndex(end => end > t);
    return n < 0 || pieces.t0[n] > t ? null : {side, op: pieces.op[n], t0: pieces.t0[n], t1: pieces.t1[n], name: side.part.path.classes[pieces.cls[n]].label};
  }

  // B is opened as A, so that all views show it.
  function open(at) {
    if (!at || at.op < 0) return;
    change({...(at.side.letter === 'B' ? {a: state.b, b: state.a, scope: '', w: null, t: null, range: null, open: null, root: null} : {}), view: 'run', sel: `op:${at.op}`}, {push: true});
  }

  const inDiff = act => event => (state.view === 'diff' && sides.length && run.b ? act(event) : false);
  onKey(['ArrowLeft', 'ArrowRight'], '', inDiff(event => { const [from, to] = windowNow(); pan((event.key === 'ArrowLeft' ? -0.1 : 0.1) * (to - from)); }));
  onKey(['+', '='], '', inDiff(() => { const [from, to] = windowNow(); zoom(0.6, (from + to) / 2); }));
  onKey(['-'], '', inDiff(() => { const [from, to] = windowNow(); zoom(1 / 0.6, (from + to) / 2); }));
  onKey(['0'], '', inDiff(() => change({dw: null})));
  onKey(['t'], '', inDiff(() => button.click()));
  const shape = () => { canvas.hidden = isTable(); box.hidden = !isTable(); button.setAttribute('aria-pressed', isTable() ? 'true' : 'false'); };
  subscribe(['dw', 'theme', 'view', 'table', 'loaded'], () => { shape(); draw(); clearTimeout(timer); timer = setTimeout(() => ask().catch(fail), 80); });
  new ResizeObserver(draw).observe(canvas);
  shape();
  return {card, show: showSides};
}
