// Machine without a picture: what links, channels and blocks of the level do at the cursor, or over the range.
import {empty, h, show} from './dom.js';
import {change} from './state.js';
import {placedLink} from './run.js';
import {sortable} from './sortable.js';
import {bytes, count, gbs, pct, sig} from './units.js';

const MOST = 500;
const COLUMNS = [
  {id: 'id', name: 'where', cell: row => placedLink(row.id)}, {id: 'kind', name: 'kind', cell: row => row.kind},
  {id: 'queue', name: 'flits waiting', num: true, cell: row => sig(row.queue, 2)}, {id: 'util', name: 'utilisation', num: true, cell: row => pct(row.util)},
  {id: 'bytes', name: 'bytes', num: true, cell: row => bytes(Math.round(row.bytes))}, {id: 'gbs', name: 'bandwidth', num: true, cell: row => gbs(row.gbs)},
];

export function machineTable(place, heat, bins, when) {
  const wide = bins[1] - bins[0] + 1;
  const rows = heat.header.rows.map(({id, kind, gbs: rate}) => ({id, kind, gbs: rate, util: heat.value(id, 'util', bins), queue: heat.value(id, 'queue', bins), bytes: heat.value(id, 'bytes', bins) * wide}))
    .filter(row => row.util > 0 || row.queue > 0).sort((x, y) => y.queue - x.queue || y.util - x.util);
  show(place, h('p', {class: 'muted note'}, `${count(Math.min(rows.length, MOST))} of ${count(heat.header.rows.length)} links, channels and blocks move bytes ${when}. t: back to the picture.`),
    rows.length ? sortable(COLUMNS, rows.slice(0, MOST), {by: 'queue', up: -1, kind: 'ops', onrow: row => change({sel: row.id.includes('>') ? `link:${row.id}` : `node:${row.id}`})}) : empty('No bytes move here then.', h('p', {}, 'Move the slider, or go up with u.')));
}
