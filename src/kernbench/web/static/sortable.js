// A table that is sorted by a click on the name of a column.
import {h, show} from './dom.js';

// columns: [{name, id, num, cell(row), value(row)}]; `value` is what is sorted by, else row[id].
export function sortable(columns, rows, {by, up = 1, onrow = null, kind = ''}) {
  const place = h('table', {class: kind});
  const valueOf = (column, row) => (column.value ? column.value(row) : row[column.id]);
  const cellOf = (column, row) => { const cell = column.cell(row); return cell instanceof Node || Array.isArray(cell) ? cell : String(cell); };
  function draw() {
    const column = columns.find(one => one.id === by);
    const sorted = [...rows].sort((x, y) => { const p = valueOf(column, x), q = valueOf(column, y); return p < q ? -up : p > q ? up : 0; });
    show(place, h('thead', {}, h('tr', {}, columns.map(one => h('th', {class: one.num ? 'num' : null, scope: 'col', 'aria-sort': by === one.id ? (up > 0 ? 'ascending' : 'descending') : null},
      h('button', {onclick: () => { up = by === one.id ? -up : 1; by = one.id; draw(); }}, one.name + (by === one.id ? (up > 0 ? ' ▲' : ' ▼') : '')))))),
    h('tbody', {}, sorted.map(row => h('tr', {onclick: onrow ? () => onrow(row) : null}, columns.map((one, n) => h('td', {class: one.num ? 'num' : null},
      n === 0 && onrow ? h('button', {class: 'plain'}, cellOf(one, row)) : cellOf(one, row)))))));
  }
  draw();
  return place;
}
