// The one state of the page, and the URL that holds it. Views subscribe; none writes to another.
const DEFAULT = {
  view: 'run', pane: 'timeline', a: null, f: null, b: null, scope: '', w: null, t: null, range: null, sel: null, open: null,
  m: 'util', q: '', root: null, path: true, only: false, waits: false, flows: false, kinds: '', by: 'class', mode: '', results: null, dw: null, table: '', rv: '', panels: '', pin: null, hide: null,
};
export const state = {...DEFAULT};
const subscribers = [];
const VIEWS = ['run', 'explain', 'tensors', 'diff', 'results'];

// `draw(state, changed)` is called after a change of one of `keys`.
export function subscribe(keys, draw) { subscribers.push({keys, draw}); }

let pending = null;
export function change(patch, {push = false} = {}) {
  const changed = Object.keys(patch).filter(key => !same(state[key], patch[key]));
  if (!changed.length) return;
  Object.assign(state, patch);
  const isStep = push || changed.some(key => ['view', 'sel', 'a', 'b', 'scope', 'root'].includes(key));
  write(isStep);
  notify(changed);
}

function notify(changed) {
  if (pending) { changed.forEach(key => pending.add(key)); return; }
  pending = new Set(changed);
  queueMicrotask(() => {
    const all = pending;
    pending = null;
    for (const {keys, draw} of subscribers) if (keys.some(key => all.has(key))) draw(state, all);
  });
}

const same = (x, y) => x === y || JSON.stringify(x) === JSON.stringify(y);
const num = x => String(Number(x.toFixed(3)));

export function toHash(s = state) {
  const parts = [];
  const put = (name, value) => { if (value !== null && value !== undefined && value !== '') parts.push(`${name}=${encodeURIComponent(value).replace(/%3A/g, ':').replace(/%2C/g, ',').replace(/%3E/g, '>').replace(/%2F/g, '/')}`); };
  put('a', s.a);
  put('f', s.f);
  put('b', s.b);
  put('scope', s.scope);
  put('pane', s.pane === DEFAULT.pane ? '' : s.pane);
  put('w', s.w && `${num(s.w[0])}-${num(s.w[1])}`);
  put('t', s.t === null ? '' : num(s.t));
  put('r', s.range && `${num(s.range[0])}-${num(s.range[1])}`);
  put('sel', s.sel);
  put('open', s.open && s.open.join(','));
  put('m', s.m === DEFAULT.m ? '' : s.m);
  put('q', s.q);
  put('root', s.root);
  put('path', s.path ? '' : '0');
  put('waits', s.waits ? '1' : '');
  put('only', s.only ? '1' : '');
  put('flows', s.flows ? '1' : '');
  put('kinds', s.kinds);
  put('by', s.by === DEFAULT.by ? '' : s.by);
  put('mode', s.mode);
  put('res', s.results);
  put('dw', s.dw && `${num(s.dw[0])}-${num(s.dw[1])}`);
  put('table', s.table);
  put('rv', s.rv);
  put('panels', s.panels);
  put('pin', s.pin && s.pin.join(','));
  put('hide', s.hide && s.hide.join(','));
  return `#/${s.view}${parts.length ? `?${parts.join('&')}` : ''}`;
}

export function fromHash(hash) {
  const found = {...DEFAULT};
  const [view, query] = hash.replace(/^#\/?/, '').split('?');
  if (VIEWS.includes(view)) found.view = view;
  const given = new URLSearchParams(query || '');
  const pair = text => {
    const match = /^(-?[\d.]+)-(-?[\d.]+)$/.exec(text || '');
    const [lo, hi] = match ? [Number(match[1]), Number(match[2])] : [NaN, NaN];
    return lo < hi ? [lo, hi] : null;
  };
  for (const name of ['a', 'f', 'b', 'sel', 'root']) found[name] = given.get(name) || null;
  for (const name of ['scope', 'pane', 'm', 'q', 'kinds', 'by', 'mode', 'table', 'rv', 'panels']) found[name] = given.get(name) || DEFAULT[name];
  found.w = pair(given.get('w'));
  found.range = pair(given.get('r'));
  found.dw = pair(given.get('dw'));
  const t = given.get('t');
  found.t = t !== null && Number.isFinite(Number(t)) ? Number(t) : null;
  found.open = given.has('open') ? given.get('open').split(',').filter(Boolean) : null;
  for (const name of ['pin', 'hide']) found[name] = given.has(name) ? given.get(name).split(',').filter(Boolean) : null;
  found.path = given.get('path') !== '0';
  found.waits = given.get('waits') === '1';
  found.only = given.get('only') === '1';
  found.flows = given.get('flows') === '1';
  found.results = given.get('res') || null;
  return found;
}

let timer = 0;
function write(isStep) {
  clearTimeout(timer);
  if (isStep) { history.pushState(null, '', toHash()); return; }
  timer = setTimeout(() => history.replaceState(null, '', toHash()), 120);
}

// `isQuiet`: at the start, when nothing is drawn yet.
export function readUrl(isQuiet = false) {
  const found = fromHash(location.hash);
  const changed = Object.keys(found).filter(key => !same(state[key], found[key]));
  Object.assign(state, found);
  if (changed.length && !isQuiet) notify(changed);
}
addEventListener('popstate', () => readUrl());
