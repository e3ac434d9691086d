// Results: a sweep or an evaluation as a table that sorts and filters, a scatter plot and its Pareto front.
import {empty, h, loading, roomOf, rove, show} from './dom.js';
import {change, look, run_of, setLook, state, subscribe} from './results_state.js';
import {getJson} from './data.js';
import {run} from './run.js';
import {filterOf} from './results_filter.js';
import {plots} from './scatter.js';
import {count} from './units.js';

export function startResults(place, fail) {
  async function load() {
    if (state.view !== 'results') return;
    const id = run_of();
    if (!id) { show(place, empty(h('b', {}, 'No sweep or evaluation is open.'), h('pre', {class: 'cmd'}, 'kernbench sweep --bench gemm-single-pe --over m=32,64,128 --out sweep\nkernbench web sweep'))); return; }
    loading(place, 'the results');
    const found = await getJson(`/results/${id}`);
    if (id === run_of()) draw(found);
  }
  const draw = found => {
    const ui = look();
    const numeric = found.columns.filter(c => found.table.some(r => typeof r[c] === 'number') && c !== 'point');
    ui.y = numeric.includes(ui.y) ? ui.y : ['total_ns', 'time_us', 'time_ns'].find(c => numeric.includes(c)) || numeric[0];
    ui.x = numeric.includes(ui.x) ? ui.x : varying(found, ['cost'])[0] || mostVaried(found, numeric) || ['cost', 'bytes_hbm', 'flops'].find(c => numeric.includes(c)) || numeric[1] || numeric[0];
    const groups = groupColumns(found), per = groups.includes(state.panels) ? state.panels : state.panels === '-' ? '' : groups.find(c => isOtherWork(found, c)) || '';
    let rows = found.table, problem = '';
    try { const fits = filterOf(ui.filter, found.columns); rows = rows.filter(fits); } catch (error) { problem = error.message; }
    if (ui.sort) rows = [...rows].sort((p, q) => order(p[ui.sort], q[ui.sort]) * ui.up);
    const base = new Set(found.base);
    const shown = ui.all ? found.columns : columnsOf(found);
    const choose = (key, label, none) => h('label', {}, `${label} `, h('select', {'aria-label': label, onchange: event => setLook({[key]: event.target.value})}, none && h('option', {value: ''}, 'same'), numeric.map(c => h('option', {value: c, selected: ui[key] === c}, short(c)))));
    const filter = h('input', {type: 'text', class: 'filter', value: ui.filter, placeholder: 'total_ns < 5000 and m >= 64', 'aria-label': 'Filter', spellcheck: 'false', onchange: event => setLook({filter: event.target.value})});
    const colour = per || groups.find(c => isOtherWork(found, c)) || groups[0] || '';
    show(place, h('div', {class: 'page one'},
      h('section', {class: 'card'}, h('div', {class: 'switch'}, h('h2', {}, found.name), run.results.length > 1 && h('select', {'aria-label': 'Folder', onchange: event => change({results: event.target.value, rv: ''})}, run.results.map(e => h('option', {value: e.id, selected: e.id === found.id}, run.results.filter(o => o.name === e.name).length > 1 ? `${e.name} (${e.dir.split('/').slice(-2).join('/')})` : e.name))),
        found.description && h('span', {}, found.description), h('span', {class: 'muted'}, `${found.dir}: ${count(found.table.length)} points, ${count(found.table.filter(failed).length)} failed`)),
        found.figures.length > 0 && h('div', {class: 'figures'}, found.figures.map(one => h('figure', {class: 'own'}, h('img', {src: `api/results/${found.id}/figure/${encodeURIComponent(one.name)}`, alt: one.title, loading: 'lazy'}), h('figcaption', {}, one.title))))),
      h('section', {class: 'card'}, h('div', {class: 'switch'}, choose('x', 'x'), choose('y', 'y'), choose('size', 'size', true), groups.length > 0 && h('label', {}, 'a plot for each ', h('select', {'aria-label': 'A plot for each', onchange: event => change({panels: event.target.value})}, h('option', {value: '-'}, 'none'), groups.map(c => h('option', {value: c, selected: c === per}, short(c)))))),
      numeric.length > 1 ? plots(rows.filter(r => !failed(r)), {...ui, per, colour, isSweep: found.command === 'sweep', width: roomOf(place) - 40}, found, row => open(row, found)) : empty('There is nothing to plot: no two columns of numbers.')),
      h('section', {class: 'card'}, h('div', {class: 'switch'}, h('label', {}, 'filter ', filter), problem && h('span', {class: 'badge bad', role: 'alert'}, problem), h('span', {class: 'muted'}, `${count(rows.length)} rows`), h('button', {onclick: () => setLook({all: !ui.all})}, ui.all ? 'fewer columns' : 'all columns')),
        rows.length ? h('div', {class: 'wide tall'}, h('table', {class: 'results'}, h('thead', {}, h('tr', {}, shown.map(c => h('th', {class: numeric.includes(c) ? 'num' : null, 'aria-sort': ui.sort === c ? (ui.up > 0 ? 'ascending' : 'descending') : null}, h('button', {title: c, onclick: () => setLook({up: ui.sort === c ? -ui.up : 1, sort: c})}, breakable(head(c)), (ui.sort === c ? (ui.up > 0 ? ' ▲' : ' ▼') : '')))))),
          h('tbody', {}, rows.slice(0, 500).map(r => h('tr', {class: failed(r) ? 'failedrow' : null, tabindex: 0, onclick: () => open(r, found), onkeydown: event => { if (event.key === 'Enter') open(r, found); }}, shown.map(c => h('td', {class: numeric.includes(c) ? 'num' : null}, cell(r[c]), c === 'point' && base.has(r.point) && [' ', h('span', {class: 'badge', title: 'On the machine as it was given'}, 'base')])))))))
          : empty('No row fits the filter.', h('p', {}, 'Compare columns with numbers: total_ns < 5000 and m >= 64.')),
        h('div', {class: 'chosen'}))));
    const rowsBox = place.querySelector('.tall');
    if (rowsBox) rove(rowsBox, 'tbody tr');
    place.querySelectorAll('.plot svg').forEach(plot => rove(plot, '.dot'));
  };
  function open(row, found) {
    const box = place.querySelector('.chosen');
    const entry = savedRun(row, found);
    if (entry) { change({a: entry.id, view: 'run', scope: '', w: null, sel: null, range: null, open: null, root: null}); return; }
    const params = Object.entries(row).filter(([k, v]) => k.startsWith('params.') && v !== null).map(([k, v]) => ` --param ${k.slice(7)}=${v}`).join('');
    const machine = Object.entries(row).filter(([k, v]) => k.startsWith('machine.') && v !== null).map(([k, v]) => ` --set ${k.slice(8)}=${v}`).join('');
    const values = Object.entries(row).filter(([, v]) => v !== null && v !== undefined && v !== '');
    if (found.command !== 'sweep') {
      show(box, h('h3', {}, `Point ${row.point ?? ''}`), row.error && h('p', {class: 'failed'}, row.error), values.map(([k, v]) => h('div', {class: 'fact'}, h('span', {class: 'muted'}, short(k)), h('span', {}, cell(v)))));
      box.scrollIntoView({block: 'nearest'});
      return;
    }
    show(box, h('h3', {}, `Point ${row.point ?? ''}`), row.error && h('p', {class: 'failed'}, row.error), h('p', {class: 'muted'}, 'Save this point as a run to look at it:'),
      h('pre', {class: 'cmd'}, `kernbench run --bench ${row.bench || found.name}${params}${machine} --save point-${row.point ?? 'x'}`));
    box.scrollIntoView({block: 'nearest'});
  }
  subscribe(['loaded', 'view', 'results', 'rv', 'panels'], () => load().catch(fail));
}

// A point's run, if it is open: the same bench with the same parameters on the same machine.
function savedRun(row, found) {
  const params = Object.entries(row).filter(([k]) => k.startsWith('params.')).map(([k, v]) => [k.slice(7), v]);
  return run.list.find(e => e.kind === 'run' && e.bench === found.bench && e.machine_hash === row.machine_hash && params.length > 0 && params.every(([k, v]) => e.params[k] === v));
}

const MOST_PLOTS = 4, RESULT = /^(total_ns|time_us|time_ns)$/; // the first column of what came out
const failed = row => row.ok === false || Boolean(row.error);
const order = (x, y) => (x === y ? 0 : x === null || x === undefined ? 1 : y === null || y === undefined ? -1 : x < y ? -1 : 1);
const number = v => (Number.isInteger(v) ? count(v) : Math.abs(v) < 1e-3 ? v.toExponential(3) : Number(v.toPrecision(5)).toLocaleString('en-US', {maximumFractionDigits: 8}));
const short = name => name.replace(/^(params|machine|returned)[.:]/, '');
// In the head of a column: `cube.pe_template.components.pe_gemm.attrs.macs_per_ns` is `pe_gemm.macs_per_ns`.
const head = name => short(name).split('.').filter(part => !['components', 'attrs', 'links'].includes(part)).slice(-2).join('.');
// After a dot, a name may go on in the next line.
const breakable = text => text.split(/(?<=\.)/).flatMap((part, n) => (n ? [h('wbr'), part] : [part]));
const cell = value => (value === null || value === undefined ? '' : typeof value === 'number' ? number(value) : value === true ? 'yes' : value === false ? 'no' : String(value));
// Of what was set (columns of settings, or those before the results), what takes most values.
function mostVaried(found, numeric) {
  const set = found.settings.length ? found.settings : found.columns.slice(0, Math.max(found.columns.findIndex(c => RESULT.test(c)), 0));
  const counted = set.filter(c => numeric.includes(c)).map(c => [c, new Set(found.table.map(r => r[c])).size]).filter(([, n]) => n > 1);
  return counted.sort((p, q) => q[1] - p[1])[0]?.[0];
}
// Columns of text with few values, which group points; of those, what makes them do other work, so that one front for all says nothing.
const valuesOf = (found, column) => [...new Set(found.table.map(r => r[column]))];
function groupColumns(found) {
  return found.columns.filter(c => { const values = valuesOf(found, c); return values.length > 1 && values.length <= MOST_PLOTS && values.every(v => typeof v === 'string') && c !== 'bound' && !/hash$/.test(c); });
}
function isOtherWork(found, column) {
  const spans = valuesOf(found, column).map(v => { const work = found.table.filter(r => r[column] === v && r.flops > 0).map(r => r.flops); return [Math.min(...work), Math.max(...work)]; }).sort((p, q) => p[0] - q[0]);
  return spans.every(([lo], n) => Number.isFinite(lo) && (n === 0 || lo > spans[n - 1][1]));
}
const varying = (found, columns) => columns.filter(c => new Set(found.table.map(r => r[c])).size > 1);

// What differs from row to row, what was set first, then what came out; constants and hashes only on demand.
function columnsOf(found) {
  const keep = varying(found, found.columns).filter(c => !/hash$/.test(c)), end = keep.findIndex(c => RESULT.test(c));
  const set = keep.filter((c, n) => n < end || found.settings.includes(c));
  return keep.length ? [...set, ...keep.filter(c => !set.includes(c))].slice(0, Math.max(16, set.length + 8)) : found.columns.slice(0, 12);
}
