// Which folder of results is shown: the one in the URL, or the first.
import {run} from './run.js';
import {change, state, subscribe} from './state.js';

export {change, state, subscribe};
export const run_of = () => (run.results.find(entry => entry.id === state.results) || run.results[0])?.id;

// How the results are looked at, in the URL: x, y, size, sorted by, up or down, all columns, filter.
const KEYS = ['x', 'y', 'size', 'sort', 'up', 'all', 'filter'];
export function look() {
  const parts = state.rv.split('|'), found = Object.fromEntries(KEYS.map((key, n) => [key, (n < 6 ? parts[n] : parts.slice(6).join('|')) || '']));
  return {...found, up: found.up === '-' ? -1 : 1, all: found.all === '1'};
}
export function setLook(patch) {
  const next = {...look(), ...patch}, words = KEYS.map(key => (key === 'up' ? (next.up < 0 ? '-' : '') : key === 'all' ? (next.all ? '1' : '') : next[key]));
  change({rv: words.some(Boolean) ? words.join('|') : ''});
}
