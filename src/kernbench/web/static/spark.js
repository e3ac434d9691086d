// A line of values over the scope.
import {h, s} from './dom.js';
import {sig} from './units.js';

export function sparkline(values, name, top) {
  const most = top || Math.max(...values, 1e-9), w = 240, hgt = 30;
  const points = values.map((v, i) => `${((i / Math.max(values.length - 1, 1)) * w).toFixed(1)},${(hgt - 1 - (Math.min(v, most) / most) * (hgt - 3)).toFixed(1)}`);
  return h('figure', {class: 'sparkline'}, h('figcaption', {class: 'muted'}, `${name}, up to ${top === 1 ? `${(100 * Math.max(...values, 0)).toFixed(0)} %` : sig(Math.max(...values, 0), 2)}`),
    s('svg', {viewBox: `0 0 ${w} ${hgt}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': name}, s('polyline', {points: `0,${hgt} ${points.join(' ')} ${w},${hgt}`, class: name === 'queue' ? 'q' : 'u'})));
}
