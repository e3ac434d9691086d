// Explain: the critical path by class, lane, link, line, launch or reason, each summing to the total; stalls; idle lanes.
import {command, empty, h, loading, roomOf, show, table} from './dom.js';
import {change, state, subscribe} from './state.js';
import {getJson, query} from './data.js';
import {startMeasure} from './measure.js';
import {run, scopeOf} from './run.js';
import {count, exactNs, ns, pct} from './units.js';

const BY = [['class', 'class'], ['lane', 'engine'], ['link', 'queue at'], ['place', 'place'], ['line', 'line'], ['launch', 'launch'], ['wait', 'what it waited for']];

export function startExplain(place, fail) {
  async function load(fresh = false) {
    if (state.view !== 'explain') return;
    if (!run.a) { show(place, empty(h('b', {}, 'No run to explain.'), h('pre', {class: 'cmd'}, 'kernbench run --bench qkv-gemm --save qkv\nkernbench web qkv'))); return; }
    const scope = scopeOf(), id = run.a.id;
    loading(place, 'the explanation');
    const found = await getJson(`/runs/${id}/explain?${query({scope: scope.id})}`, {fresh});
    if (id === run.a.id) draw(found);
  }
  const measure = startMeasure(() => load(true).catch(fail), fail);
  function draw(found) {
    const by = BY.some(([name]) => name === state.by) ? state.by : 'class';
    const rows = [...found.tables[by]].sort((p, q) => q.ns - p.ns), total = rows.reduce((x, r) => x + r.ns, 0), most = Math.max(...rows.map(r => r.ns), 1e-9);
    const wide = Math.min(roomOf(place), 1500) - 50;
    show(place, h('div', {class: 'page'},
      h('section', {class: 'card'}, h('h2', {}, 'Critical path'),
        h('div', {class: 'switch', role: 'group', 'aria-label': 'By'}, BY.map(([name, text]) => h('button', {'aria-pressed': by === name ? 'true' : 'false', onclick: () => { change({by: name}); draw(found); }}, text))),
        h('table', {class: 'bars'}, h('tbody', {}, rows.slice(0, 60).map(r => h('tr', {},
          h('td', {class: 'name'}, nameOf(by, r, found)), h('td', {class: 'track'}, h('div', {class: `fill ${r.letter ? `c-${r.letter}` : 'c-any'}`, css: {width: `${(100 * r.ns) / most}%`}})),
          h('td', {class: 'num', title: exactNs(r.ns)}, ns(r.ns)), h('td', {class: 'num'}, pct(total ? r.ns / total : 0))))),
        h('tfoot', {}, h('tr', {}, h('td', {}, 'sum'), h('td', {}), h('td', {class: 'num', title: exactNs(total)}, ns(total)), h('td', {class: 'num'}, '100 %')))),
        found.finish && h('p', {}, found.finish.sentence),
        h('p', {class: 'muted'}, `The pieces follow each other without a gap, so each of these tables adds up to ${ns(found.total_ns)}.${found.sums.some(part => part.id === 'queue') ? ' Where transfers contend, totals are more accurate than single completion times: see kernbench fidelity.' : ''}`)),
      h('section', {class: 'card'}, h('h2', {}, 'Largest stalls'),
        found.stalls.length ? h('ol', {class: 'stalls'}, found.stalls.map(stall => h('li', {}, h('b', {}, pct(stall.share)), ' ', stall.op >= 0 ? h('button', {class: 'plain', onclick: () => change({sel: `op:${stall.op}`, view: 'run'})}, stall.text) : stall.text)))
          : empty('Nothing on the critical path waited.')),
      h('section', {class: 'card'}, h('h2', {}, 'What if it were gone?'),
        found.what_if.length ? h('div', {class: 'wide'}, table(WHAT_IF(found, measure), found.what_if)) : empty('No component has a share in this path.'),
        h('p', {class: 'muted'}, 'The estimate takes the component out of this path alone. Measured may be less, where another path is soon as long, or more, where others waited behind it. Measure runs the bench again with the component made free, and keeps that run beside this one. The same as a command:'),
        command(`kernbench explain ${quoted(run.a.dir)}${scopeFlag()} --what-if ${found.what_if.find(one => !one.measured)?.name || 'pe_dma'} --save ${quoted(`${run.a.dir}-free`)}`)),
      h('section', {class: 'card all'}, h('h2', {}, 'What engines did with the time'), idle(found, wide))));
  }
  subscribe(['loaded', 'scope', 'view'], () => load().catch(fail));
}

// A word for a shell.
const quoted = text => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replace(/'/g, `'"'"'`)}'`);
// What of the run the command explains without a flag is what the page opens on.
const scopeFlag = () => { const {id} = scopeOf(); return id === run.a.main ? '' : id === 'run' ? ' --whole' : ` --launch ${id.slice(7)}`; };
const change_ = (now, before) => `${now <= before ? '−' : '+'}${pct(Math.abs(now - before) / before)}`;
// The estimate along the path, and the run that measured it, if its folder is open.
const WHAT_IF = (found, measure) => [
  {name: 'made free', cell: r => r.name}, {name: 'estimated', num: true, cell: r => `${ns(r.foreseen_ns)}, −${pct(r.share)}`},
  {name: 'measured', num: true, cell: r => (r.measured ? h('button', {class: 'plain', title: 'Compare with that run', onclick: () => change({b: r.measured.id, view: 'diff'}, {push: true})}, `${ns(r.measured.ns)}, ${change_(r.measured.ns, found.total_ns)}`) : measure(r.name))},
];

const placeOf = name => (name.includes(' -> ') ? `link:${name.replace(' -> ', '>')}` : / channel \d+$/.test(name) ? `node:${name.replace(/ channel \d+$/, '')}` : '');
function nameOf(by, row, found) {
  const place = by === 'place' && placeOf(row.name);
  if (place) return h('button', {class: 'plain', onclick: () => change({sel: place, view: 'run'}, {push: true})}, row.name);
  const line = by === 'line' && found.lines.find(one => one.name === row.name);
  return line ? [h('button', {class: 'plain', title: row.name, onclick: () => change({sel: `line:${line.name}`, view: 'run'})}, row.name.split('/').pop()), h('code', {class: 'muted'}, line.text)] : row.name;
}

const LETTER = {GEMM: 'G', MATH: 'M', 'DMA read': 'R', 'DMA write': 'W', 'fetch and store': 'F', communication: 'C'};
const BUSY = {latency: 'c-L', queue: 'c-Q'};
// Solid is busy; idle time by what the next op waited for.
const partOf = (kind, name) => (name === 'work' ? `c-${LETTER[kind]}` : BUSY[name] || 'c-idle');
const CHAR = 6.6;

// `program from DMA read`: the kernel issued the op only after that.
const describe = name => name.replace(/^program from /, 'program order after ').replace(/^lane from /, 'engine held by ').replace(/^slot from /, 'room, held by ');

function idle(found, wide) {
  if (!found.idle.length) return empty('No engine did anything in this scope.');
  return [h('p', {class: 'muted'}, 'For each kind of engine, its lanes’ time from the begin of the scope to its end: busy, then idle by what the next op waited for. It says where there is room, and is not part of the critical path.'),
    found.idle.map(({kind, parts}) => {
      const total = parts.reduce((x, p) => x + p.ns, 0);
      return h('div', {class: 'idle'}, h('b', {}, kind), h('span', {class: 'muted'}, ` ${count(found.lane_counts[kind] || 0)} lanes`),
        h('div', {class: 'parts small'}, parts.filter(p => p.ns > 0).map(p => {
          const words = `${describe(p.name)} ${pct(p.ns / total, 0)}`;
          return h('div', {class: partOf(kind, p.name), css: {flex: `${p.ns / total} 1 0`}, title: `${describe(p.name)}: ${ns(p.ns)}, ${pct(p.ns / total)}`}, (p.ns / total) * wide > CHAR * words.length + 12 && h('span', {}, words));
        })),
        h('div', {class: 'muted small'}, parts.filter(p => p.ns / total > 0.005).map(p => `${describe(p.name)} ${pct(p.ns / total)}`).join(' · ')));
    })];
}
