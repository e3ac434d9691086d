// Follows folders: runs saved since are in the menu, and a shown run that was saved again is offered with the difference.
import {$, h, show} from './dom.js';
import {change} from './state.js';
import {run} from './run.js';
import {ns, pct} from './units.js';

const EVERY_MS = 2500, HIDDEN_MS = 10000;

export function startWatch(redraw) {
  let offered = '', last = 0;
  async function look() {
    if (document.hidden && Date.now() - last < HIDDEN_MS) return;
    last = Date.now();
    const {runs} = await fetch('api/runs').then(answer => answer.json());
    if (JSON.stringify(runs) !== JSON.stringify(run.list)) {
      Object.assign(run, {list: runs, results: runs.filter(entry => entry.kind === 'results')});
      redraw();
    }
    const next = run.a && runs.find(entry => entry.kind === 'run' && entry.dir === run.a.dir);
    if (next && next.id !== run.a.id && offered !== next.id) { offered = next.id; offer(next); }
  }
  setInterval(() => look().catch(() => {}), EVERY_MS);
}

function offer(next) {
  const before = run.a, share = before.launches_ns ? (next.launches_ns - before.launches_ns) / before.launches_ns : 0;
  const fresh = {scope: '', w: null, t: null, range: null, sel: null, open: null, root: null};
  const mark = '● saved again: ', title = document.title.replace(mark, '');
  document.title = `${mark}${title}`; // in the strip of tabs, too
  const act = (text, patch) => h('button', {onclick: () => { $('banner').hidden = true; document.title = title; if (patch) change(patch, {push: true}); }}, text);
  $('banner').hidden = false;
  show($('banner'), h('b', {}, `${before.dir.split('/').pop()} was saved again: `), `${ns(next.launches_ns)} instead of ${ns(before.launches_ns)} (${share < 0 ? '−' : '+'}${pct(Math.abs(share))}). `,
    act('What changed', {...fresh, a: before.id, b: next.id, view: 'diff'}), ' ', act('Show it', {...fresh, a: next.id, b: null}), ' ', act('Keep this one', null));
}
