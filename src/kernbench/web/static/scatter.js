// Points of a sweep by two columns, with the Pareto front of the two (less is better) and the best point ringed.
import {empty, h, s, tip} from './dom.js';
import {sig, ticks} from './units.js';

const H = 300, FOOT = 34;

// One plot, or one for each value of the column `per`.
export function plots(rows, ui, found, onopen) {
  const values = ui.per ? [...new Set(rows.map(r => r[ui.per]))] : [];
  if (values.length < 2) return h('div', {}, scatter(rows, ui, found, onopen), legendOf(rows, ui, found));
  const columns = ui.width >= 760 ? 2 : 1, width = ui.width / columns - 10;
  return h('div', {}, h('div', {class: 'plots'}, values.map(value => h('figure', {}, h('figcaption', {}, `${ui.per} ${value}`), scatter(rows.filter(r => r[ui.per] === value), {...ui, width}, found, onopen)))), legendOf(rows, ui, found));
}

const isPoint = (row, {x, y}) => typeof row[x] === 'number' && typeof row[y] === 'number';
const name = column => column.replace(/^(params|machine|returned)[.:]/, '');

// What the marks mean, once for all plots.
function legendOf(rows, ui, found) {
  const points = rows.filter(row => isPoint(row, ui)), has = (ids, one) => points.some(p => (ids || []).slice(0, one ? 1 : undefined).includes(p.point));
  const values = categories(points, ui), none = !(ui.per ? values.map(v => points.filter(p => p[ui.per] === v)) : [points]).some(list => frontsOf(list, ui).length);
  return points.length > 0 && h('p', {class: 'muted legendline'}, values.length > 1 && [`${name(ui.colour)}: `, values.map((value, n) => [h('i', {class: `swatch cat${n % 5}`}), ` ${value} `])],
    `${none ? 'No Pareto front: the points do different work.' : `Line: Pareto front of ${name(ui.x)} and ${name(ui.y)} among points that do the same work, less is better.`}${has(found.best, true) ? ' Ring: best of all points.' : ''}${has(found.base) ? ' Triangle: the base machine.' : ''} Click a point for its run or its values.`);
}

const categories = (points, {colour}) => (colour ? [...new Set(points.map(p => p[colour]))] : []);
// Where the work is unknown, points of a sweep are taken to do the same; those of an evaluation are different cases.
const isSameWork = (points, isSweep) => { const work = points.map(p => p.flops).filter(v => v > 0); return work.length ? Math.max(...work) <= 1.01 * Math.min(...work) : isSweep; };
// A front is drawn among points that do the same work: all, or those of a category.
function frontsOf(points, ui) {
  const isSame = list => isSameWork(list, ui.isSweep), lists = isSame(points) ? [points] : categories(points, ui).map(value => points.filter(p => p[ui.colour] === value)).filter(isSame);
  return lists.map(list => frontOf(list, ui.x, ui.y)).filter(front => front.length);
}

function scatter(rows, ui, found, onopen) {
  const {x, y, size, width} = ui;
  const W = Math.max(320, Math.min(width, 1200));
  const points = rows.filter(r => isPoint(r, {x, y}));
  if (!points.length) return empty('No row has numbers in both columns.', h('p', {}, 'Choose other columns, or take back the filter.'));
  const scale = (name, from, to) => {
    const values = points.map(p => p[name]), lo = Math.min(...values), hi = Math.max(...values), pad = (hi - lo || Math.abs(hi) || 1) * 0.06;
    if (lo > 0 && hi / lo >= 50) return logScale(lo, hi, from, to);
    const [a, b] = [lo >= 0 ? Math.max(0, lo - pad) : lo - pad, hi + pad];
    return {at: v => from + ((v - a) / (b - a)) * (to - from), ticks: ticks(a, b, name === x ? Math.max(W / 120, 4) : 6).found, note: ''};
  };
  const words = v => (Math.abs(v) >= 1000 ? Math.round(v).toLocaleString('en-US') : String(Number(sig(v, 3))));
  const sy = scale(y, H - FOOT, 10), LEFT = 30 + 6.2 * Math.max(...sy.ticks.map(t => words(t).length)), sx = scale(x, LEFT, W - 12);
  const biggest = size ? Math.max(...points.map(p => Math.abs(p[size]) || 0), 1e-9) : 1;
  const base = new Set(found.base || []);
  const fronts = frontsOf(points, ui), front = fronts.flat(), all = categories(found.table, ui), kind = p => `cat${Math.max(all.indexOf(p[ui.colour]), 0) % 5}`;
  const best = new Set((found.best || []).slice(0, 1));
  return h('div', {class: 'plot'}, s('svg', {viewBox: `0 0 ${W} ${H}`, role: 'img', 'aria-label': `${name(y)} over ${name(x)}`},
    sx.ticks.map(t => [s('line', {x1: sx.at(t), x2: sx.at(t), y1: 10, y2: H - FOOT, class: 'grid'}), s('text', {x: sx.at(t), y: H - FOOT + 14, class: 'tick', 'text-anchor': 'middle', text: words(t)})]).flat(),
    sy.ticks.map(t => [s('line', {x1: LEFT, x2: W - 12, y1: sy.at(t), y2: sy.at(t), class: 'grid'}), s('text', {x: LEFT - 6, y: sy.at(t) + 4, class: 'tick', 'text-anchor': 'end', text: words(t)})]).flat(),
    s('text', {x: (W + LEFT) / 2, y: H - 4, class: 'axis', 'text-anchor': 'middle', text: name(x) + sx.note}),
    s('text', {x: 12, y: H / 2, class: 'axis', 'text-anchor': 'middle', transform: `rotate(-90 12 ${H / 2})`, text: name(y) + sy.note}),
    fronts.filter(one => one.length > 1).map(one => s('polyline', {class: 'front', points: one.map(p => `${sx.at(p[x]).toFixed(1)},${sy.at(p[y]).toFixed(1)}`).join(' ')})),
    [...points.filter(p => !front.includes(p)), ...front].map(p => s('circle', {
      cx: sx.at(p[x]).toFixed(1), cy: sy.at(p[y]).toFixed(1), r: size ? (3 + 9 * Math.sqrt(Math.abs(p[size] || 0) / biggest)).toFixed(1) : 5, tabindex: 0, role: 'button', 'aria-label': `point ${p.point}: ${name(x)} ${p[x]}, ${name(y)} ${p[y]}`,
      class: `dot ${kind(p)}${front.includes(p) ? ' onfront' : ''}${best.has(p.point) ? ' best' : ''}${base.has(p.point) ? ' base' : ''}`,
      onclick: () => onopen(p), onkeydown: event => { if (event.key === 'Enter') onopen(p); },
      onpointermove: event => tip(`point ${p.point ?? ''}${ui.colour ? `, ${p[ui.colour]}` : ''}\n${name(x)} ${words(p[x])}\n${name(y)} ${words(p[y])}${size ? `\n${name(size)} ${p[size]}` : ''}${front.includes(p) ? '\non the Pareto front' : ''}${base.has(p.point) ? '\nthe base machine' : ''}`, event.clientX, event.clientY),
      onpointerleave: () => tip(''),
    })),
    points.filter(p => base.has(p.point)).map(p => { const [cx, cy] = [sx.at(p[x]), sy.at(p[y])]; return [s('path', {class: 'basemark', d: `M${cx.toFixed(1)},${(cy - 12).toFixed(1)} l-5.5,-9 h11 z`}), s('text', {x: cx, y: cy - 25, class: 'axis', 'text-anchor': 'middle', text: 'base'})]; })));
}

// Values that span much are drawn by their logarithm, with powers of ten, or of two where that is what they are.
function logScale(lo, hi, from, to) {
  const [a, b] = [Math.log(lo), Math.log(hi)], pad = (b - a) * 0.05;
  const at = v => from + ((Math.log(v) - a + pad) / (b - a + 2 * pad)) * (to - from), found = [];
  const isTwos = [lo, hi].every(v => Number.isInteger(Math.log2(v))), steps = isTwos ? [1] : hi / lo >= 1000 ? [1] : [1, 2, 5];
  const base = !isTwos ? 10 : Math.log2(hi / lo) > 16 ? 16 : 4;
  for (let n = Math.floor(a / Math.log(base)); base ** n <= hi; n++) for (const step of steps) { const v = step * base ** n; if (v >= lo * 0.999 && v <= hi * 1.001) found.push(v); }
  return {at, ticks: found, note: ' (log scale)'};
}

// Points that no other beats in both columns.
export function frontOf(points, x, y) {
  const sorted = [...points].sort((p, q) => p[x] - q[x] || p[y] - q[y]), front = [];
  let least = Infinity;
  for (const p of sorted) if (p[y] < least) { front.push(p); least = p[y]; }
  return front;
}
