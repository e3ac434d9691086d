// What pointer and keys do in the timeline: pan, zoom, select a slice, select a range, open and close groups.
import {say, textScale, tip} from './dom.js';
import {change, state} from './state.js';
import {onKey} from './keys.js';
import {KIND_NAMES, LETTERS, kb, launchesOf, run, scopeOf, shortCall, windowOf} from './run.js';
import {AXIS_H, LAUNCH_H, clampWindow, headHeight, labelWidth, launchesHeight, viewNow} from './timeline_view.js';
import {Tiles} from './tiles.js';
import {ns, pct} from './units.js';

const SNAP_PX = 6;

export function startInput(canvas, tl, draw) {
  const local = event => { const box = canvas.getBoundingClientRect(); return [(event.clientX - box.left) / textScale, (event.clientY - box.top) / textScale]; };
  const timeAt = x => { const view = viewNow(); return view.t0 + ((x - view.left) / (view.right - view.left)) * (view.t1 - view.t0); };
  const levelNow = () => { const view = viewNow(); return Tiles.level(view.t0, view.t1, view.right - view.left); };

  // What is at a place: {row, lane, op?, t} or {part: axis | launches | path | label}.
  function pick(x, y) {
    if (!run.a || !tl.tiles) return null;
    const t = timeAt(x), launches = launchesHeight();
    if (y < AXIS_H) return {part: 'axis', t};
    if (y < AXIS_H + launches) return {part: 'launches', t, scope: launchesOf(run.a).find((scope, i) => scope.t0 <= t && t < scope.t1 && tl.launchRow[i] === Math.floor((y - AXIS_H) / LAUNCH_H))};
    if (y < headHeight()) return {part: 'path', t, piece: pieceAt(t)};
    const row = tl.rows.find(one => y - headHeight() + tl.scroll >= one.y && y - headHeight() + tl.scroll < one.y + one.h);
    if (!row) return null;
    if (x < labelWidth()) return {part: 'label', row};
    let lane = row.lane;
    if (row.type === 'strips') {
      const n = Math.floor(((y - headHeight() + tl.scroll - row.y - 2) / (row.h - 4)) * row.lanes.length);
      lane = row.lanes[Math.max(0, Math.min(row.lanes.length - 1, n))];
    }
    return {part: 'lane', row, lane, t, op: lane ? tl.tiles.at(levelNow(), lane.i, t) : null};
  }
  kb.pick = pick;
  // Where a time of a lane is drawn, in pixels of the canvas.
  kb.place = (t, lane) => {
    const view = viewNow(), row = tl.rows.find(one => one.lane?.i === lane);
    return {x: view.left + ((t - view.t0) / (view.t1 - view.t0)) * (view.right - view.left), y: view.top + row.y - view.scroll + row.h / 2};
  };

  function pieceAt(t) {
    const pieces = tl.path?.pieces;
    if (!pieces) return null;
    const n = pieces.t1.findIndex(end => end > t);
    return n < 0 || pieces.t0[n] > t ? null : {op: pieces.op[n], letter: pieces.letter[n], name: tl.path.classes[pieces.cls[n]].label, t0: pieces.t0[n], t1: pieces.t1[n]};
  }

  function snap(t, isFree) {
    if (isFree) return t;
    const view = viewNow(), reach = (SNAP_PX * (view.t1 - view.t0)) / (view.right - view.left), k = levelNow();
    let best = t, near = reach;
    const offer = edge => { if (Math.abs(edge - t) < near) { near = Math.abs(edge - t); best = edge; } };
    for (const row of tl.rows) {
      if (!row.lane || row.y + row.h < tl.scroll || row.y > tl.scroll + view.bottom - view.top) continue;
      const tile = tl.tiles.get(k, Math.floor(t / (1024 * 2 ** k)), row.lane.i);
      if (tile) for (let n = 0; n < tile.start.length; n++) { offer(tile.begin + tile.start[n]); offer(tile.begin + tile.start[n] + tile.dur[n]); }
    }
    return best;
  }

  const pan = by => { const [t0, t1] = windowOf(); change({w: clampWindow(t0 + by, t1 + by)}); };
  const zoom = (factor, t) => {
    const [t0, t1] = windowOf();
    change({w: clampWindow(t - (t - t0) * factor, t + (t1 - t) * factor)});
  };
  const scrollBy = by => { tl.scroll = Math.max(0, tl.scroll + by); draw(); };

  canvas.addEventListener('wheel', event => {
    if (!run.a) return;
    event.preventDefault();
    const [x] = local(event), [t0, t1] = windowOf(), view = viewNow();
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(Math.max(-80, Math.min(80, event.deltaY)) * 0.006), timeAt(x));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(((event.deltaX || event.deltaY) / (view.right - view.left)) * (t1 - t0));
    else scrollBy(event.deltaY / textScale);
  }, {passive: false});

  const fingers = new Map();
  canvas.addEventListener('pointerdown', event => {
    if (!run.a || event.button > 0) return;
    canvas.setPointerCapture(event.pointerId);
    canvas.focus({preventScroll: true});
    tip('');
    const [x, y] = local(event), at = pick(x, y), isTouch = event.pointerType === 'touch';
    fingers.set(event.pointerId, x);
    const before = windowOf(), t0 = timeAt(x), scroll0 = tl.scroll;
    let moved = false, isRange = !isTouch && at?.part !== 'axis' && at?.part !== 'label', held = 0;
    if (isTouch) held = setTimeout(() => { if (!moved) { isRange = true; hover(event); } }, 500);
    const move = now => {
      const [x1, y1] = local(now);
      if (fingers.size === 2 && fingers.has(now.pointerId)) {
        const other = [...fingers].find(([id]) => id !== now.pointerId)[1], old = fingers.get(now.pointerId);
        if (Math.abs(x1 - other) > 12) zoom(Math.abs(old - other) / Math.abs(x1 - other), timeAt((x1 + other) / 2));
        fingers.set(now.pointerId, x1);
        moved = true;
        return;
      }
      if (!moved && Math.hypot(x1 - x, y1 - y) < 5) return;
      moved = true;
      clearTimeout(held);
      if (isRange) {
        const [lo, hi] = [snap(t0, now.altKey), snap(timeAt(x1), now.altKey)].sort((p, q) => p - q);
        const scope = scopeOf();
        if (hi > lo) change({range: [Math.max(lo, scope.t0), Math.min(hi, scope.t1)]});
      } else {
        const view = viewNow(), by = ((x - x1) / (view.right - view.left)) * (before[1] - before[0]);
        change({w: clampWindow(before[0] + by, before[1] + by)});
        if (isTouch) { tl.scroll = Math.max(0, scroll0 + y - y1); draw(); }
      }
    };
    const up = now => {
      canvas.removeEventListener('pointermove', move);
      canvas.removeEventListener('pointerup', up);
      canvas.removeEventListener('pointercancel', up);
      fingers.delete(now.pointerId);
      clearTimeout(held);
      if (!moved && now.type === 'pointerup') click(at);
    };
    canvas.addEventListener('pointermove', move);
    canvas.addEventListener('pointerup', up);
    canvas.addEventListener('pointercancel', up);
  });

  async function click(at) {
    if (!at) return;
    if (at.part === 'label') { toggle(at.row.group.id); return; }
    if (at.part === 'launches') { if (at.scope) chooseLaunch(at.scope.id); return; }
    if (at.part === 'axis') { change({t: at.t}); return; }
    if (at.part === 'path') { if (at.piece && at.piece.op >= 0) change({sel: `op:${at.piece.op}`, t: at.t}); return; }
    if (at.row.type === 'group') { toggle(at.row.group.id); return; }
    if (!at.op) { change({t: at.t, ...(state.range ? {range: null} : {})}); return; }
    const id = 'id' in at.op ? at.op.id : await tl.tiles.opAt(at.lane.i, at.t);
    change({sel: `op:${id}`, t: at.t});
    say(`op ${id} selected`);
  }

  // Only this launch, with its messages; again, and it is all that the page opened on, or the whole run.
  function chooseLaunch(id) {
    const isHere = scopeOf().id === id, all = run.a.main === id ? 'run' : '';
    change({scope: isHere ? all : id, sel: isHere ? null : id, w: null, range: null});
  }

  function toggle(id) {
    const open = new Set(tl.open);
    if (!open.delete(id)) open.add(id);
    change({open: [...open]});
  }

  canvas.addEventListener('dblclick', event => {
    const at = pick(...local(event));
    if (at?.op && 'id' in at.op) zoomTo(at.op.t0, at.op.t1);
    else if (at?.part === 'lane') zoom(0.25, at.t);
  });

  const zoomTo = (t0, t1) => change({w: clampWindow(t0 - 0.4 * (t1 - t0), t1 + 0.4 * (t1 - t0))});

  let timer = 0;
  canvas.addEventListener('pointermove', event => { clearTimeout(timer); if (!event.buttons) timer = setTimeout(() => hover(event), 80); else tip(''); });
  canvas.addEventListener('pointerleave', () => { clearTimeout(timer); tip(''); });

  function hover(event) {
    const at = pick(...local(event));
    canvas.style.cursor = at?.part === 'axis' ? 'grab' : at?.op || at?.part === 'label' || at?.piece ? 'pointer' : 'default';
    let text = '';
    if (at?.part === 'path' && at.piece) text = `${at.piece.name}, ${ns(at.piece.t1 - at.piece.t0)}\n${at.piece.op >= 0 ? `op ${at.piece.op}` : ''}${tl.finish ? `\n${tl.finish.sentence}` : ''}`;
    else if (at?.part === 'launches' && at.scope) text = `${at.scope.name}, ${ns(at.scope.t1 - at.scope.t0)}${at.scope.called_at ? `\n${shortCall(at.scope.called_at)}` : ''}\nclick: ${scopeOf().id === at.scope.id ? 'back to all' : 'this launch alone, with its messages'}`;
    else if (at?.op) {
      const kind = KIND_NAMES[LETTERS[at.op.kind]];
      text = 'id' in at.op ? `${at.op.text || kind}  ${ns(at.op.t1 - at.op.t0)}\n${kind}, ${at.lane.component}\n${ns(at.op.t0)} to ${ns(at.op.t1)}`
        : `${kind}, ${at.lane.component}\n${pct(at.op.busy)} busy in ${ns(at.op.width)}; zoom in to see its ops`;
    }
    tip(text, event.clientX, event.clientY);
  }

  const cursor = () => { const [t0, t1] = windowOf(); return state.t !== null && state.t > t0 && state.t < t1 ? state.t : (t0 + t1) / 2; };
  const inRun = act => event => (run.a && state.view === 'run' ? act(event) : false);
  onKey(['ArrowLeft', 'ArrowRight'], 'move in time', inRun(event => { const [t0, t1] = windowOf(); pan((event.key === 'ArrowLeft' ? -0.1 : 0.1) * (t1 - t0)); }));
  onKey(['ArrowUp', 'ArrowDown'], 'scroll the lanes', inRun(event => scrollBy(event.key === 'ArrowUp' ? -40 : 40)));
  onKey(['+', '='], 'zoom in at the cursor', inRun(() => zoom(0.6, cursor())));
  onKey(['-'], 'zoom out', inRun(() => zoom(1 / 0.6, cursor())));
  onKey(['0'], 'the whole scope', inRun(() => change({w: null})));
  onKey(['z'], 'zoom to the selection or range', inRun(() => { if (tl.flows) zoomTo(tl.flows.t0, tl.flows.t1); else if (state.range) change({w: clampWindow(...state.range)}); }));
  // Without a selection, the path's first op in the window is taken.
  const firstOp = () => { const [t0, t1] = windowOf(), pieces = tl.path?.pieces; return pieces?.op.find((id, n) => id >= 0 && pieces.t1[n] > t0 && pieces.t0[n] < t1); };
  onKey(['[', ']'], 'previous, next op on the lane', inRun(event => { const id = !tl.flows ? firstOp() : event.key === '[' ? tl.flows.before : tl.flows.after; if (id !== null && id !== undefined) change({sel: `op:${id}`}); }));
  canvas.addEventListener('keydown', event => {
    if (event.key !== 'Enter' || !run.a) return;
    const shown = tl.rows.filter(row => row.group && row.y + row.h > tl.scroll), lane = tl.flows?.lane;
    const row = shown.find(one => one.lane?.i === lane || one.lanes?.some(own => own.i === lane)) || shown[0];
    if (row) toggle(row.group.id);
  });
  onKey(['c'], 'cause: what let the selected op start', inRun(() => { if (tl.flows?.released_by) change({sel: `op:${tl.flows.released_by.id}`}); }));
  onKey(['e'], 'effect: what the selected op let start', inRun(() => { const next = tl.flows?.released[0] || tl.flows?.consumers[0]; if (next) change({sel: `op:${next.id}`}); }));
  onKey(['m'], 'range from the selected op', inRun(() => { if (tl.flows) change({range: [tl.flows.t0, tl.flows.t1]}); }));
}
