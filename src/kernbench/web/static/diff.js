// Diff: what changed from A to B, in rows that add up to the change of the total.
import {empty, h, loading, roomOf, show} from './dom.js';
import {change, state, subscribe} from './state.js';
import {getJson, query} from './data.js';
import {run, scopeOf} from './run.js';
import {partsBar} from './parts.js';
import {stackedTimelines} from './diff_timeline.js';
import {exactNs, ns, pct} from './units.js';

let by = 'class';

export function startDiff(place, fail) {
  const stacked = stackedTimelines(fail);
  async function load() {
    if (state.view !== 'diff') return;
    if (!run.a || !run.b) { show(place, choose()); return; }
    loading(place, 'the difference');
    const found = await getJson(`/diff?${query({a: run.a.id, b: run.b.id, scope: scopeOf().id})}`);
    if (found.a.id !== run.a?.id || found.b.id !== run.b?.id) return;
    stacked.show(found);
    draw(found);
  }
  function draw(found) {
    const {a, b} = found, most = Math.max(a.total_ns, b.total_ns), wide = Math.max(roomOf(place) - 90, 200);
    const delta = b.total_ns - a.total_ns, tables = Object.keys(found.tables);
    if (!tables.includes(by)) by = tables[0];
    const rows = found.tables[by], sum = rows.reduce((x, r) => x + r.delta_ns, 0), largest = Math.max(...rows.map(r => Math.abs(r.delta_ns)), 1e-9);
    show(place, h('div', {class: 'page one'},
      h('section', {class: 'card'}, h('h2', {}, verdict(delta, a.total_ns)),
        [['A', a], ['B', b]].map(([letter, one]) => h('div', {class: 'pathrow'}, h('b', {}, letter), h('span', {class: 'muted'}, nameOf(one)), h('b', {class: 'num', title: exactNs(one.total_ns)}, ns(one.total_ns)),
          h('div', {class: 'track', css: {width: `${(100 * one.total_ns) / most}%`}}, partsBar(inOrder(one.sums, a.sums), one.total_ns, {width: (wide * one.total_ns) / most, title: `Critical path of ${letter}`})))),
        found.notes.map(note => h('p', {class: 'muted'}, note))),
      stacked.card,
      h('section', {class: 'card'}, h('h2', {}, 'Where it changed'),
        h('div', {class: 'switch', role: 'group', 'aria-label': 'By'}, tables.map(name => h('button', {'aria-pressed': by === name ? 'true' : 'false', onclick: () => { by = name; draw(found); }}, name))),
        h('div', {class: 'wide'}, h('table', {class: 'bars diff'}, h('thead', {}, h('tr', {}, ['', 'A', 'B', 'B − A', '', 'of the change'].map((text, i) => h('th', {class: i === 1 || i === 2 || i === 3 || i === 5 ? 'num' : null}, text)))),
          h('tbody', {}, rows.slice(0, 80).map(r => h('tr', {}, h('td', {class: 'name'}, r.name, r.only && h('span', {class: 'badge'}, `only in ${r.only}`)), h('td', {class: 'num', title: exactNs(r.a_ns || 0)}, r.a_ns === null ? '–' : ns(r.a_ns)), h('td', {class: 'num', title: exactNs(r.b_ns || 0)}, r.b_ns === null ? '–' : ns(r.b_ns)),
            h('td', {class: 'num', title: exactNs(r.delta_ns)}, signed(r.delta_ns)), h('td', {class: 'track'}, h('div', {class: `delta ${r.delta_ns < 0 ? 'less' : 'more'}`, css: {width: `${(50 * Math.abs(r.delta_ns)) / largest}%`}})), h('td', {class: 'num'}, delta ? pct(r.delta_ns / delta, 0) : '')))),
          h('tfoot', {}, h('tr', {}, h('td', {}, 'sum'), h('td', {class: 'num'}, ns(rows.reduce((x, r) => x + r.a_ns, 0))), h('td', {class: 'num'}, ns(rows.reduce((x, r) => x + r.b_ns, 0))), h('td', {class: 'num', title: exactNs(sum)}, signed(sum)), h('td', {}), h('td', {class: 'num'}, delta ? pct(sum / delta, 0) : ''))))),
        h('p', {class: 'muted'}, `The rows add up to B − A = ${ns(delta)}.`))));
  }
  subscribe(['loaded', 'view', 'b', 'scope'], () => load().catch(fail));
}

// Parts of both bars stand in the order of A.
const inOrder = (parts, like) => { const at = part => { const n = like.findIndex(one => one.id === part.id); return n < 0 ? like.length : n; }; return [...parts].sort((x, y) => at(x) - at(y)); };
const nameOf = one => (one.launch < 0 ? `${one.name}, ${one.scope === 'run' ? 'whole run' : 'all launches'}` : `${one.name}, launch ${one.launch}`);
const signed = x => (x === 0 ? '0 ns' : `${x > 0 ? '+' : '−'}${ns(Math.abs(x))}`);
const verdict = (delta, a) => (delta === 0 ? 'B takes as long as A.' : `B is ${ns(Math.abs(delta))} ${delta < 0 ? 'faster' : 'slower'}: ${delta > 0 ? '+' : '−'}${pct(Math.abs(delta) / a)}`);

function choose() {
  const others = run.list.filter(entry => entry.kind === 'run' && entry.id !== state.a);
  if (!run.a || !others.length) return empty(h('b', {}, 'Two runs are needed to compare.'), h('pre', {class: 'cmd'}, 'kernbench run --bench ... --save a\nkernbench run --bench ... --param ... --save b\nkernbench web a b'));
  return empty(h('b', {}, `Compare ${run.a.name} with:`), others.map(entry => h('p', {}, h('button', {onclick: () => change({b: entry.id})}, `${entry.name}, ${entry.device}: ${ns(entry.launches_ns)}`))));
}
