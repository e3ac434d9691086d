// Search: nodes, launches, lines, tensors and ops, grouped; matches are marked in the timeline by `state.q`.
import {$, h, s, show} from './dom.js';
import {change, state, subscribe} from './state.js';
import {getJson, query} from './data.js';
import {onKey} from './keys.js';
import {run} from './run.js';
import {count} from './units.js';

// What a word most likely means comes first: Enter takes the first.
const GROUPS = [['tensors', 'tensors'], ['launches', 'kernels and launches'], ['lines', 'lines'], ['ops', 'ops'], ['nodes', 'nodes and blocks']];
export const matches = {times: [], at: -1, q: ''};

export function startSearch(tools) {
  const input = h('input', {type: 'search', placeholder: 'node, op, line, tensor', 'aria-label': 'Search nodes, ops, lines, tensors', spellcheck: 'false'});
  const icon = s('svg', {width: 14, height: 14, viewBox: '0 0 14 14', 'aria-hidden': 'true'},
    s('circle', {cx: 6, cy: 6, r: 4.3, fill: 'none', stroke: 'currentColor', 'stroke-width': 1.6}), s('path', {d: 'M9.3 9.3 L13 13', stroke: 'currentColor', 'stroke-width': 1.6}));
  const hits = h('div', {id: 'hits', hidden: true});
  tools.prepend(h('label', {id: 'searchbox'}, icon, input, h('kbd', {}, '/')));
  tools.append(hits);
  let timer = 0;
  const ask = () => {
    clearTimeout(timer);
    const q = input.value.trim();
    if (!q) { hits.hidden = true; change({q: ''}); return; }
    timer = setTimeout(() => find(q, hits, true), 120);
  };
  input.addEventListener('input', ask);
  input.addEventListener('focus', () => { if (input.value.trim()) ask(); });
  input.addEventListener('keydown', event => {
    if (event.key === 'Escape') { input.value = ''; hits.hidden = true; change({q: ''}); input.blur(); }
    if (event.key === 'Enter' && input.value.trim()) { clearTimeout(timer); find(input.value.trim(), hits, true).then(() => hits.querySelector('.hit')?.click()); }
    if (event.key === 'ArrowDown') { hits.querySelector('.hit')?.focus(); event.preventDefault(); }
  });
  hits.addEventListener('keydown', event => {
    const all = [...hits.querySelectorAll('.hit')], at = all.indexOf(document.activeElement), last = all.length - 1;
    if (event.key === 'Escape') { hits.hidden = true; input.focus(); }
    const next = {ArrowDown: Math.min(at + 1, last), ArrowUp: at - 1, PageDown: Math.min(at + 10, last), PageUp: Math.max(at - 10, 0), Home: 0, End: last}[event.key];
    if (next === undefined) return;
    (all[next] || input).focus(); // above the first is the field
    event.preventDefault();
    event.stopPropagation();
  });
  addEventListener('pointerdown', event => { if (!event.target.closest('#hits, #searchbox')) hits.hidden = true; });
  onKey(['/'], 'search', () => { input.focus(); input.select(); });
  onKey(['n', 'N'], 'next, previous match', event => {
    if (!matches.times.length) return;
    matches.at = (matches.at + (event.key === 'n' ? 1 : -1) + matches.times.length) % matches.times.length;
    const t = matches.times[matches.at], w = state.w;
    const half = w ? (w[1] - w[0]) / 2 : null;
    change({t, ...(w && (t < w[0] || t > w[1]) ? {w: [t - half, t + half]} : {})});
  });
  subscribe(['q', 'loaded'], () => {
    if (document.activeElement !== input) input.value = state.q;
    if (state.q && state.q !== matches.q && (run.a || run.machineId)) find(state.q, hits, false);
    if (!state.q) Object.assign(matches, {times: [], at: -1, q: ''});
  });
}

async function find(q, hits, open) {
  const id = state.a || run.machineId;
  const answer = await getJson(`/runs/${id}/search?${query({q})}`).catch(() => null);
  if (!answer) return;
  Object.assign(matches, {times: answer.ops ? answer.ops.times : [], at: -1, q});
  change({q, matched: `${q}/${matches.times.length}`});
  if (!open) return;
  const groups = GROUPS.filter(([name]) => answer[name] && answer[name].count);
  const total = groups.reduce((n, [name]) => n + answer[name].count, 0);
  show(hits, groups.length ? [h('p', {class: 'muted total'}, `${count(total)} found`, groups.length > 1 && groups.map(([name, title]) => [' · ', h('button', {class: 'plain', onclick: () => hits.querySelector(`[data-group=${name}]`).scrollIntoView()}, `${title} ${count(answer[name].count)}`)])), groups.map(([name, title]) => [
    h('h4', {'data-group': name}, `${title} (${answer[name].hits.length < answer[name].count ? `first ${answer[name].hits.length} of ` : ''}${count(answer[name].count)})`),
    answer[name].hits.map(hit => h('button', {class: 'hit', onclick: () => { hits.hidden = true; go(name, hit); }},
      name === 'ops' ? `op ${hit.id}  ${hit.text}  ${[hit.op.kind_name, hit.op.line && `${hit.op.line.file}:${hit.op.line.number}`].filter(Boolean).join(', ')}` : hit.text)),
  ])] : h('p', {class: 'muted'}, `Nothing has “${q}” in its name. Try a part of it: pe3, hbm, exp.`));
  hits.hidden = false;
  hits.scrollTop = 0;
}

function go(group, hit) {
  if (group === 'ops') change({sel: `op:${hit.id}`, view: 'run'});
  else if (group === 'lines') change({sel: `line:${hit.id}`, view: 'run'});
  else if (group === 'launches') change({scope: hit.id, w: null, range: null});
  else if (group === 'nodes') change({sel: `node:${hit.id}`, root: levelOf(hit.id), view: 'run'});
  else change({q: hit.text});
}

// The level on which a node is drawn.
export function levelOf(id) {
  const parts = id.split('.');
  if (!/^sip\d+$/.test(parts[0]) || parts.length === 1) return 'tray';
  if (!/^cube\d+$/.test(parts[1] || '')) return parts[0];
  if (parts.length === 2) return parts[0];
  return /^pe\d+$/.test(parts[2]) && parts.length > 3 ? parts.slice(0, 3).join('.') : parts.slice(0, 2).join('.');
}
