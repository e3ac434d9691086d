// Measure: runs a what-if in the background; its progress stands in the row until the new run is there.
import {h, say} from './dom.js';
import {getJson, query, start} from './data.js';
import {run, scopeOf} from './run.js';

const EVERY_MS = 400;

// `done` draws again. Returns the cell of a component: a button, the progress, or what went wrong.
export function startMeasure(done, fail) {
  let known = new Map(), of = null, timer = 0;
  const take = ({measurements}) => { known = new Map(measurements.map(one => [one.name, one])); };
  async function look(id) {
    clearTimeout(timer);
    const before = [...known.values()].filter(one => one.state === 'running').map(one => one.name);
    const found = await getJson(`/runs/${id}/measurements`, {fresh: true});
    if (id !== run.a?.id) return;
    take(found);
    const ended = before.map(name => known.get(name)).filter(one => one && one.state !== 'running');
    for (const one of ended) say(one.state === 'done' ? `${one.name} is measured` : `${one.name} could not be measured`);
    if (ended.some(one => one.state === 'done')) { await getJson('/runs', {fresh: true}).then(({runs}) => { run.list = runs; }); done(); } else show();
    if ([...known.values()].some(one => one.state === 'running')) timer = setTimeout(() => look(id).catch(fail), EVERY_MS);
  }
  const show = () => document.querySelectorAll('[data-measure]').forEach(cell => cell.replaceWith(cellOf(cell.dataset.measure)));
  async function press(name) {
    const {id} = run.a;
    of = id;
    try { take(await start(`/runs/${id}/measurements?${query({name, scope: scopeOf().id})}`)); } catch (error) { known.set(name, {name, state: 'failed', error: `${error.message}: ${error.hint || ''}`}); show(); return; }
    show();
    timer = setTimeout(() => look(id).catch(fail), EVERY_MS);
  }
  function cellOf(name) {
    const one = of === run.a.id ? known.get(name) : null;
    const button = h('button', {onclick: () => press(name), 'aria-label': `Measure: run again with ${name} made free`}, 'Measure');
    if (!one || one.state === 'done') return h('span', {'data-measure': name}, button);
    if (one.state === 'failed') return h('span', {'data-measure': name, class: 'failed', role: 'alert', title: one.error}, one.error.slice(0, 80), ' ', button);
    return h('span', {'data-measure': name, role: 'status'}, h('progress', {value: one.share, max: 1, 'aria-label': `Measuring ${name}`}), ` ${(one.seconds || 0).toFixed(0)} s`);
  }
  return cellOf;
}
