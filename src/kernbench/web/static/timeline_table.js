// The timeline without a picture: the longest ops in the window, as a table that can be sorted.
import {empty, h, show} from './dom.js';
import {change} from './state.js';
import {getJson, query} from './data.js';
import {run, windowOf} from './run.js';
import {bytes, exactNs} from './units.js';

const COLUMNS = [['id', 'op'], ['lane_name', 'lane'], ['label', 'what'], ['t0', 'start'], ['took', 'took'], ['queue', 'waiting'], ['nbytes', 'bytes'], ['line', 'line']];

export async function asTable(place, tl) {
  const [t0, t1] = windowOf();
  const {rows, count} = await getJson(`/runs/${run.a.id}/ops?${query({t0, t1})}`);
  let by = 't0', up = 1;
  const cell = (row, name) => (['t0', 'took', 'queue'].includes(name) ? exactNs(row[name]) : name === 'nbytes' ? (row.nbytes ? bytes(row.nbytes) : '') : name === 'line' ? (row.line ? `${row.line.file}:${row.line.number}` : '') : row[name]);
  const value = (row, name) => (name === 'line' ? (row.line ? `${row.line.file}:${String(row.line.number).padStart(6, '0')}` : '') : row[name]);
  const draw = () => {
    rows.sort((x, y) => (value(x, by) < value(y, by) ? -up : value(x, by) > value(y, by) ? up : x.id - y.id));
    show(place, h('p', {class: 'muted note'}, `${rows.length} of ${count.toLocaleString('en-US')} ops in the window, the longest of them. t: back to the picture.`),
      rows.length ? h('table', {class: 'ops'}, h('thead', {}, h('tr', {}, COLUMNS.map(([name, title]) => h('th', {'aria-sort': by === name ? (up > 0 ? 'ascending' : 'descending') : null},
        h('button', {onclick: () => { up = by === name ? -up : 1; by = name; draw(); }}, title + (by === name ? (up > 0 ? ' ▲' : ' ▼') : '')))))),
      h('tbody', {}, rows.map(row => h('tr', {onclick: () => change({sel: `op:${row.id}`})}, COLUMNS.map(([name], n) => h('td', {class: n > 2 && n < 7 ? 'num' : null}, String(cell(row, name)))))))) : empty('No op in this window.', h('p', {}, '0 shows the whole scope.')));
  };
  draw();
  tl.tableRows = rows;
}
