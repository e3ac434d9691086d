// The timeline without a picture: the longest ops in the window, as a table that can be sorted.
import {empty, h, show} from './dom.js';
import {change} from './state.js';
import {getJson, query} from './data.js';
import {run, windowOf} from './run.js';
import {sortable} from './sortable.js';
import {bytes, count, plainNs} from './units.js';

const lineOf = row => (row.line ? `${row.line.file}:${row.line.number}` : '');
const COLUMNS = [
  {id: 'id', name: 'op', cell: row => row.id}, {id: 'lane_name', name: 'lane', cell: row => row.lane_name}, {id: 'label', name: 'what', cell: row => row.label},
  {id: 't0', name: 'start', num: true, cell: row => plainNs(row.t0)}, {id: 'took', name: 'took', num: true, cell: row => plainNs(row.took)}, {id: 'queue', name: 'waiting', num: true, cell: row => plainNs(row.queue)},
  {id: 'nbytes', name: 'bytes', num: true, cell: row => (row.nbytes ? bytes(row.nbytes) : '')},
  {id: 'line', name: 'line', cell: lineOf, value: row => (row.line ? `${row.line.file}:${String(row.line.number).padStart(6, '0')}` : '')},
];

export async function asTable(place) {
  const [t0, t1] = windowOf();
  const found = await getJson(`/runs/${run.a.id}/ops?${query({t0, t1})}`);
  show(place, h('p', {class: 'muted note'}, `${count(found.rows.length)} of ${count(found.count)} ops in the window, the longest of them. t: back to the picture.`),
    found.rows.length ? sortable(COLUMNS, found.rows, {by: 't0', kind: 'ops', onrow: row => change({sel: `op:${row.id}`})}) : empty('No op in this window.', h('p', {}, '0 shows the whole scope.')));
}
