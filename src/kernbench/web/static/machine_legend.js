// What the colours of Machine mean, and the list of the longest queues.
import {h} from './dom.js';
import {change} from './state.js';
import {placedLink} from './run.js';
import {bytes, pct, sig} from './units.js';

const SHARES = ['idle', '1-20 %', '20-40', '40-60', '60-80', '80-100'];
const DIFFS = ['−30 % or less', 'less', 'same', 'more', '+30 % or more'];

export function legend(metric, isDiff, heat) {
  const most = heat.most(metric);
  const scaled = SHARES.map((name, i) => (i === 0 ? 'none' : metric === 'queue' ? `to ${sig((most * i) / 5, 2)}` : `to ${bytes(Math.round((most * i) / 5))}`));
  const names = isDiff ? DIFFS : metric === 'util' ? SHARES : scaled;
  const title = isDiff ? 'B − A, of full use' : {util: 'utilisation', queue: 'flits waiting', bytes: 'bytes in a bin'}[metric];
  return h('div', {class: 'legend'}, h('b', {}, title),
    names.map((name, i) => h('div', {class: 'step'}, h('i', {class: isDiff ? `d${i}` : `u${i}`}), h('span', {}, name))));
}

export function queueList(heat, bins, isRange) {
  const rows = heat.longest(bins, 5), isInside = heat.header.rows.some(row => row.kind === 'block' && heat.value(row.id, 'util', bins) > 0), hasQueue = rows.some(row => row.queue >= 0.05);
  return h('div', {class: 'queues'}, h('b', {}, isRange ? 'longest queues, mean of the range' : 'longest queue at t'),
    !rows.length && isInside && h('p', {class: 'muted'}, 'No bytes move between these blocks, but inside: double click a coloured one.'),
    !rows.length && !isInside && h('p', {class: 'muted'}, isRange ? 'No bytes move in the range.' : 'No bytes move at t. Move the slider, or play.'),
    rows.length > 0 && !hasQueue && h('p', {class: 'muted'}, isRange ? 'No queue in the range; the busiest:' : 'No queue at t; the busiest:'),
    hasQueue && h('p', {class: 'muted'}, 'use, and q: flits waiting'),
    rows.map(row => h('button', {class: 'plain row', title: row.id, onclick: () => change({sel: row.id.includes('>') ? `link:${row.id}` : `node:${row.id}`})},
      h('span', {class: 'grow'}, placedLink(row.id)), h('b', {}, `${pct(row.util, 0)}${row.queue >= 0.05 ? `, q ${sig(row.queue, 2)}` : ''}`))));
}
