// Starts the page: what there is, which run is shown, which view, and the frame around the views.
import {$, h, isNarrow, show, tip} from './dom.js';
import {change, readUrl, state, subscribe, toHash} from './state.js';
import {counts, getJson, isBusy} from './data.js';
import {startTheme} from './theme.js';
import {startKeys} from './keys.js';
import {startSearch} from './search.js';
import {startPanes} from './panes.js';
import {startAnswer} from './answer.js';
import {startMachine} from './machine.js';
import {startTimeline} from './timeline.js';
import {startSource} from './source.js';
import {startDetails} from './details.js';
import {startExplain} from './explain.js';
import {startDiff} from './diff.js';
import {startTensors} from './tensors.js';
import {startResults} from './results.js';
import {startWatch} from './watch.js';
import {kb, run} from './run.js';

const TABS = [['run', 'Run'], ['explain', 'Explain'], ['tensors', 'Tensors'], ['diff', 'Diff'], ['results', 'Results']];
const NARROW = [['timeline', 'Timeline'], ['machine', 'Machine'], ['source', 'Source'], ...TABS.slice(1)];

// A view that throws shows its error, until another run or scope is chosen; the others keep working.
export function guarded(name, place, start) {
  const fail = error => {
    console.warn(name, error);
    const report = `${name}: ${error.stack || error}\n${toHash()}`;
    place.querySelector('.failover')?.remove();
    place.append(h('div', {class: 'empty failed failover', role: 'alert'},
      h('b', {}, `${name} cannot be shown`), h('p', {}, error.message), error.hint && h('p', {}, error.hint),
      h('button', {onclick: () => navigator.clipboard.writeText(report)}, 'Copy report')));
  };
  try { start(place, fail); } catch (error) { fail(error); }
}

function tabs() {
  const has = {results: run.results.length > 0, explain: Boolean(run.a), tensors: Boolean(run.a), diff: Boolean(run.a)};
  const list = (isNarrow() ? NARROW : TABS).filter(([id]) => !isNarrow() || !(id in has) || has[id] || id === state.view);
  const isOn = id => (isNarrow() && state.view === 'run' ? id === state.pane : id === state.view);
  show($('tabs'), list.map(([id, name]) => h('button', {
    role: 'tab', id: `tab-${id}`, 'aria-selected': isOn(id) ? 'true' : 'false', tabindex: isOn(id) ? 0 : -1,
    onclick: () => change(TABS.some(([tab]) => tab === id) ? {view: id} : {view: 'run', pane: id}, {push: true}),
    onkeydown: event => {
      const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
      if (!step) return;
      event.stopPropagation();
      const at = list.findIndex(([tab]) => tab === id);
      const next = list[(at + step + list.length) % list.length][0];
      $(`tab-${next}`).click();
      queueMicrotask(() => $(`tab-${next}`).focus());
    },
  }, name)));
  for (const [id] of TABS) $(`view-${id}`).classList.toggle('on', state.view === id);
  $('view-run').dataset.pane = state.pane;
}

function pickers() {
  const option = (entry, chosen) => h('option', {value: entry.id, selected: entry.id === chosen, disabled: entry.kind === 'damaged'},
    entry.kind === 'damaged' ? `${entry.name}: ${entry.error.what}` : nameOf(entry));
  const runs = run.list.filter(entry => entry.kind !== 'results');
  for (const shown of [run.b, run.a]) if (shown && [state.a, state.b].includes(shown.id) && !runs.some(entry => entry.id === shown.id)) runs.unshift({...shown, kind: 'run', former: true});
  const choose = (key, label, dashed) => h('label', {class: `picker${dashed ? ' dashed' : ''}`, title: label},
    !dashed && h('b', {}, key.toUpperCase()),
    h('select', {'aria-label': label, onchange: event => pick(key, event.target.value)},
      key === 'b' && h('option', {value: ''}, state.b ? 'no comparison' : isNarrow() ? '+' : '+ compare'),
      key === 'a' && !runs.some(entry => entry.kind === 'run') && h('option', {value: '', selected: true}, `machine ${run.machineName}`),
      runs.filter(entry => key === 'a' || entry.id !== state.a).map(entry => option(entry, state[key]))));
  show($('pickers'), choose('a', 'Run A'), runs.filter(entry => entry.kind === 'run').length > 1 && choose('b', 'Run B, to compare with', !state.b));
}

// Folders are what users named; the bench beside it. What a folder had before it was saved again stays as long as it is shown.
const nameOf = entry => {
  const folder = entry.dir?.split('/').pop(), text = [entry.name, entry.device].filter(Boolean).join(', ');
  return `${folder && folder !== entry.name ? `${folder}: ` : ''}${text}${entry.former ? ' (before it was saved again)' : ''}`;
};

function pick(key, id) {
  if (key === 'a') change({a: id || null, b: state.b === id ? null : state.b, scope: '', w: null, t: null, range: null, sel: null, open: null, root: null});
  else change({b: id || null});
}

async function load() {
  const {runs, machine} = await getJson('/runs', {fresh: true});
  run.list = runs;
  run.machineId = machine.id;
  run.machineName = machine.name;
  run.results = runs.filter(entry => entry.kind === 'results');
  const good = runs.filter(entry => entry.kind === 'run');
  const again = named(good);
  const lost = state.a && !good.some(entry => entry.id === state.a) ? state.a : null;
  // What the link says of another run (its window, its selection) means nothing here.
  if (lost || !state.a) Object.assign(state, {a: (good.find(entry => entry.id === run.a?.id) || good[0])?.id || null}, lost ? {scope: '', w: null, t: null, range: null, sel: null, open: null, root: null} : {});
  if (!good.some(entry => entry.id === state.b)) state.b = null;
  if (!good.length && run.results.length && state.view === 'run') state.view = 'results';
  pickers();
  tabs();
  await loadRuns();
  if (again) showMessage('The run of this link was saved again since; what its folder has now is shown.', '');
  if (lost) showMessage(`The run of this link, ${lost}, is not here${good.length ? '; another is shown' : ''}.`, 'Start kernbench web with its folder, too.');
}

// A link names its run by content (`a=HASH`) and by folder (`f=flash`); by hand, `a` may be a folder or a name. True where
// the content is another by now.
function named(good) {
  const by = text => text && (good.find(e => e.dir === text || e.dir.endsWith(`/${text}`)) || good.find(e => e.name === text));
  for (const key of ['a', 'b']) if (state[key] && !good.some(e => e.id === state[key]) && by(state[key])) state[key] = by(state[key]).id;
  const there = state.a && !good.some(e => e.id === state.a) && by(state.f);
  if (there) Object.assign(state, {a: there.id, sel: /^op:/.test(state.sel) ? null : state.sel});
  return Boolean(there);
}

function showMessage(what, hint) {
  $('banner').hidden = false;
  show($('banner'), h('b', {}, what.slice(0, 400)), ` ${hint}`);
}

// Another run is chosen, or a link is opened in this tab: it may name a run by its folder, or one that is not here.
async function arrive() {
  if ([state.a, state.b].some(id => id && !/^[0-9a-f]{12}$/.test(id))) { await load(); return; }
  pickers();
  try { await loadRuns(); } catch (error) { if (error.status !== 404) throw error; await load(); }
}

// Fetch manifest and lanes of A and B, then let the views draw.
async function loadRuns() {
  const {a, b} = state;
  const [first, second] = await Promise.all([a ? getJson(`/runs/${a}`) : null, b ? getJson(`/runs/${b}`) : null]);
  if (a !== state.a || b !== state.b) return;
  run.a = first;
  state.f = first ? first.dir.split('/').pop() : null;
  run.b = second;
  const scopes = first ? first.scopes.map(scope => scope.id) : [];
  if (!scopes.includes(state.scope)) state.scope = '';
  const within = first && first.scopes.find(scope => scope.id === (state.scope || first.main));
  const isIn = part => part && part[1] > within.t0 && part[0] < within.t1;
  if (first) Object.assign(state, {w: isIn(state.w) ? state.w : null, range: isIn(state.range) ? state.range : null, t: state.t !== null && state.t <= first.total_ns ? state.t : null});
  $('view-run').classList.toggle('norun', !first);
  if (!first && state.pane !== 'machine' && isNarrow()) state.pane = 'machine';
  $('banner').hidden = true;
  document.title = first ? `${first.name} - KernBench` : 'KernBench';
  pickers();
  tabs();
  change({loaded: `${a}/${b}/${Date.now()}`});
}

async function main() {
  $('skip').addEventListener('click', event => { event.preventDefault(); $('main').focus(); }); // the hash is the state
  startTheme($('tools'));
  readUrl(true);
  startSearch($('tools'));
  startPanes();
  startKeys($('tools'));
  subscribe(['loaded', 'scope'], () => document.querySelectorAll('.failover').forEach(one => one.remove()));
  guarded('Answer', $('answer'), startAnswer);
  guarded('Machine', $('pane-machine'), startMachine);
  guarded('Source', $('pane-source'), startSource);
  guarded('Details', $('pane-details'), startDetails);
  guarded('Timeline', $('pane-timeline'), startTimeline);
  guarded('Explain', $('view-explain'), startExplain);
  guarded('Tensors', $('view-tensors'), startTensors);
  guarded('Diff', $('view-diff'), startDiff);
  guarded('Results', $('view-results'), startResults);
  subscribe(['view', 'pane'], tabs);
  subscribe(['a', 'b'], () => arrive().catch(failed));
  addEventListener('resize', tabs);
  matchMedia('(max-width: 43.75em)').addEventListener('change', pickers);
  document.addEventListener('mouseleave', () => tip(''));
  Object.assign(window, {kb: Object.assign(kb, {state, change, run, counts, busy: isBusy})});
  await load().catch(failed);
  startWatch(() => { pickers(); tabs(); });
  performance.mark('kb-ready');
  kb.ready = true;
  document.documentElement.dataset.ready = '1';
}

// The run cannot be read: says so in place; another can be chosen.
function failed(error) {
  Object.assign(run, {a: null, b: null});
  showMessage(error.message, `${error.where || ''} ${error.hint || 'Is the server still running?'}`);
  change({loaded: `failed/${Date.now()}`});
}

main();
