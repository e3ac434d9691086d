// Tensors: where each lives, who reads and writes it, how far its bytes go; how full memories are; launches on the roofline.
import {empty, h, loading, roomOf, rove, s, show} from './dom.js';
import {change, state, subscribe} from './state.js';
import {getJson, query} from './data.js';
import {run, scopeOf} from './run.js';
import {sortable} from './sortable.js';
import {bytes, count, pct, plural, sig} from './units.js';

const MOST = 64; // memories that are drawn
const sum = values => Object.values(values).reduce((x, y) => x + y, 0);
const few = (names, word) => (names.length <= 3 ? names.join(', ') : `${names.slice(0, 2).join(', ')} and ${names.length - 2} more ${word}`);
const home = t => { const all = t.home_bytes + t.remote_bytes; return all ? t.home_bytes / all : 1; };

export function startTensors(place, fail) {
  async function load() {
    if (state.view !== 'tensors') return;
    if (!run.a) { show(place, empty('No run is open.')); return; }
    const {id} = run.a, scope = scopeOf();
    loading(place, 'the tensors');
    const found = await getJson(`/runs/${id}/tensors?${query({scope: scope.id})}`);
    if (id === run.a?.id && scope.id === scopeOf().id && state.view === 'tensors') draw(found);
  }
  const draw = found => { show(place, h('div', {class: 'page'},
    h('section', {class: 'card all'}, h('h2', {}, 'Tensors'), found.tensors.length ? tensorTable(found.tensors) : empty('No kernel reads or writes a tensor in this scope.')),
    h('section', {class: 'card'}, h('h2', {}, 'How full memories are'), memories(found)),
    h('section', {class: 'card'}, h('h2', {}, 'Roofline of every launch'), roofline(found.rooflines, Math.min(roomOf(place) - 40, 620))))); place.querySelectorAll('.roofline svg').forEach(plot => rove(plot, '.dot')); };
  subscribe(['loaded', 'scope', 'view'], () => load().catch(fail));
}

const COLUMNS = [
  {name: 'tensor', id: 'tensor', value: t => t.name, cell: t => h('button', {class: 'plain', title: 'Show its ops', onclick: () => change({q: t.name, sel: `q:${t.name}`, view: 'run'}, {push: true})}, t.name)},
  {name: 'lives in', id: 'lives in', value: t => t.cubes.join(), cell: t => h('span', {title: Object.keys(t.memories).join('\n')}, `${few(t.cubes, 'cubes')}: ${plural(Object.keys(t.memories).length, 'slice')}`)},
  {name: 'read by', id: 'read by', value: t => Object.keys(t.readers).length, cell: t => who(t.readers)},
  {name: 'written by', id: 'written by', value: t => Object.keys(t.writers).length, cell: t => who(t.writers)},
  {name: 'read', id: 'read', num: true, value: t => sum(t.readers), cell: t => bytes(sum(t.readers))},
  {name: 'written', id: 'written', num: true, value: t => sum(t.writers), cell: t => bytes(sum(t.writers))},
  {name: 'at home', id: 'at home', num: true, value: home, cell: t => [h('meter', {value: home(t), max: 1, 'aria-label': 'share of bytes moved within a cube'}), ` ${pct(home(t))}`]},
  {name: 'remote', id: 'remote', num: true, value: t => t.remote_bytes, cell: t => bytes(t.remote_bytes)},
  {name: 'bytes × hops', id: 'bytes × hops', num: true, value: t => t.byte_hops, cell: t => bytes(t.byte_hops)},
];
const who = pes => h('span', {title: Object.entries(pes).map(([pe, n]) => `${pe}: ${bytes(n)}`).join('\n')}, Object.keys(pes).length ? few(Object.keys(pes), 'PEs') : '-');
const tensorTable = rows => h('div', {class: 'wide tall'}, sortable(COLUMNS, rows, {by: 'bytes × hops', up: -1}),
  h('p', {class: 'muted'}, 'Accesses of kernels. At home: between a PE and a memory of its own cube. Bytes × hops: bytes times links passed.'));

// A strip for each memory, over the time of the scope; its number is the largest value.
function memories({occupancy, capacity, most_ops: most}) {
  if (!occupancy) return empty(`Shown for runs of up to ${count(most)} ops.`);
  const kinds = [['tcm', 'TCM, results that are still used'], ['sram', 'SRAM, accessed so far'], ['hbm', 'HBM, accessed so far']].filter(([kind]) => Object.keys(occupancy[kind]).length);
  if (!kinds.length) return empty('Kernels used no memory.');
  return kinds.map(([kind, text]) => {
    const all = Object.entries(occupancy[kind]).sort((x, y) => Math.max(...y[1]) - Math.max(...x[1])), top = Math.max(...all[0][1], 1);
    return h('div', {class: 'fullness'}, h('b', {}, text), h('span', {class: 'muted'}, `: up to ${bytes(top)} of ${bytes(capacity[kind])} (${pct(top / capacity[kind], 2)})`),
      all.slice(0, MOST).map(([name, values]) => h('div', {class: 'strip'}, h('span', {}, name), strip(values, top, `${kind} of ${name}`), h('span', {class: 'num'}, bytes(Math.max(...values))))),
      all.length > MOST && h('p', {class: 'muted'}, `and ${all.length - MOST} more, which held less`));
  });
}

function strip(values, top, name) {
  const w = values.length, d = values.map((v, i) => `L${i},${(20 - (20 * v) / top).toFixed(2)}H${i + 1}`).join('');
  return s('svg', {viewBox: `0 0 ${w} 20`, preserveAspectRatio: 'none', role: 'img', 'aria-label': `${name}, up to ${bytes(Math.max(...values))}`}, s('path', {d: `M0,20${d}V20Z`}));
}

// Log by log: the roof of each kind of launch (its PEs and slices), and the launches below it.
function roofline(launches, width) {
  const points = launches.filter(one => one.intensity > 0 && one.gflops > 0);
  if (!points.length) return empty('No launch both computes and moves bytes of HBM.');
  const W = Math.max(300, width), H = 280, [L, R, T, B] = [54, 12, 12, 36];
  const roofs = [...new Map(points.map(p => [`${p.peak_gflops}/${p.peak_gbs.toPrecision(6)}`, p])).values()];
  const xs = [...points.map(p => p.intensity), ...roofs.map(p => p.peak_gflops / p.peak_gbs)], ys = [...points.map(p => p.gflops), ...roofs.map(p => p.peak_gflops)];
  const [x0, x1, y0, y1] = [Math.min(...xs) / 3, Math.max(...xs) * 3, Math.min(...ys) / 3, Math.max(...ys) * 2];
  const at = (v, a, b, from, to) => from + (Math.log(v / a) / Math.log(b / a)) * (to - from);
  const px = v => at(v, x0, x1, L, W - R).toFixed(1), py = v => at(v, y0, y1, H - B, T).toFixed(1);
  const tens = (a, b) => { const found = []; for (let n = Math.ceil(Math.log10(a)); 10 ** n <= b; n++) found.push(10 ** n); return found; };
  const peak = p => p.gflops / Math.min(p.peak_gflops, p.intensity * p.peak_gbs);
  const text = p => `launch ${p.index}, ${p.name}: ${sig(p.intensity)} flops per byte, ${sig(p.gflops)} GFLOP/s, ${pct(p.share)} of its ${p.bound} roofline (${pct(peak(p))} of the roof drawn, which is that of GEMM)`;
  return h('div', {class: 'plot roofline'}, s('svg', {viewBox: `0 0 ${W} ${H}`, role: 'img', 'aria-label': 'Launches on the roofline'},
    tens(x0, x1).map(v => [s('line', {x1: px(v), x2: px(v), y1: T, y2: H - B, class: 'grid'}), s('text', {x: px(v), y: H - B + 14, 'text-anchor': 'middle', text: String(v)})]).flat(),
    tens(y0, y1).map(v => [s('line', {x1: L, x2: W - R, y1: py(v), y2: py(v), class: 'grid'}), s('text', {x: L - 5, y: Number(py(v)) + 4, 'text-anchor': 'end', text: count(v)})]).flat(),
    roofs.map(p => { const ridge = p.peak_gflops / p.peak_gbs, low = Math.max(x0, y0 / p.peak_gbs); return s('polyline', {class: 'roof', points: `${px(low)},${py(low * p.peak_gbs)} ${px(ridge)},${py(p.peak_gflops)} ${px(x1)},${py(p.peak_gflops)}`}); }),
    points.slice(0, 500).map(p => s('circle', {cx: px(p.intensity), cy: py(p.gflops), r: 5, class: 'dot', tabindex: 0, role: 'button', 'aria-label': text(p), onclick: () => change({scope: `launch:${p.index}`}), onkeydown: event => { if (event.key === 'Enter') change({scope: `launch:${p.index}`}); }}, s('title', {text: text(p)}))),
    s('text', {x: (W + L) / 2, y: H - 4, class: 'axis', 'text-anchor': 'middle', text: 'flops per byte of HBM'}), s('text', {x: 12, y: H / 2, class: 'axis', 'text-anchor': 'middle', transform: `rotate(-90 12 ${H / 2})`, text: 'GFLOP/s'})),
  h('ul', {class: 'muted'}, points.slice(0, 12).map(p => h('li', {}, text(p))), points.length > 12 && h('li', {}, `and ${points.length - 12} more`)));
}
