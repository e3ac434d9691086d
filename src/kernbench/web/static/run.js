// The runs that are open, and what tests may ask the page (`window.kb`).
import {state} from './state.js';

export const run = {list: [], results: [], a: null, b: null, machineId: null, machineName: '', peak: null};
export const kb = {ready: false};

export const LETTERS = 'GMRWFCHS';
export const KIND_NAMES = {G: 'GEMM', M: 'MATH', R: 'DMA read', W: 'DMA write', F: 'fetch, store', C: 'communication', H: 'host', S: 'span'};

// From when to when the chosen scope is.
export function scopeOf(which = run.a) {
  if (!which) return null;
  const found = which.scopes.find(scope => scope.id === (state.scope || which.main));
  return found || which.scopes.find(scope => scope.id === which.main);
}

// `train.py:12  dist.all_reduce(x)` without the folders of the file.
export const shortCall = at => { const end = at.indexOf('  '), place = end < 0 ? at : at.slice(0, end); return place.split('/').pop() + at.slice(place.length); };
export const launchesOf = which => which.scopes.filter(scope => scope.id.startsWith('launch:'));

// What is on screen: the window of the timeline, inside the scope.
export function windowOf() {
  const scope = scopeOf();
  if (!scope) return [0, 1];
  return state.w || [scope.t0, scope.t1];
}

// The time over which tables and shares are taken: the range if one is selected, else the scope.
export function spanOf() {
  const scope = scopeOf();
  return state.range || [scope.t0, scope.t1];
}

export const shortNode = id => id.replace(/^sip(\d+)$/, 'SIP $1').replace(/^sip\d+\.cube(\d+)$/, 'cube $1').replace(/^sip\d+\.io/, 'io').replace(/^fabric\./, '').replace(/^sip(\d+)\.cube(\d+)\./, '').replace(/^noc\./, '').replace(/^hbm_ctrl\.pe/, 'HBM').replace(/^pe(\d+)\.pe_dma$/, 'PE$1').replace(/^pe(\d+)$/, 'PE$1');
// In lists: with the SIP and the cube that a node is in.
const inCube = /^sip(\d+)\.cube(\d+)\b/;
export const placedLink = id => { const [, from, to] = /^([^>]*)>?(.*)$/.exec(id).map(part => inCube.exec(part)?.slice(1, 3).map((n, at) => 'SC'[at] + n).join(' ') || ''); return [from && to && from !== to ? `${from} → ${to}:` : from || to, shortLink(id)].filter(Boolean).join(' '); };
export const shortLink = id => {
  const [from, to] = id.split('>');
  if (to) return `${shortNode(from)} → ${shortNode(to)}`;
  const [node, channel] = id.split('#');
  return channel === undefined ? shortNode(node) : `${shortNode(node)} channel ${channel}`;
};

// The time that Machine shows: the cursor; until there is one, when most happens in the scope (`machine.js` sets it).
export function timeNow() {
  const scope = scopeOf(), {peak} = run;
  const first = peak && peak.of === `${run.a.id}/${scope.id}` ? peak.t : (scope.t0 + scope.t1) / 2;
  return state.t === null ? Math.max(scope.t0, Math.min(first, scope.t1)) : state.t;
}
