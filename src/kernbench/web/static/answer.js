// The answer strip: how long, is it right, what bounded it, what to try; then a bar that adds up to the total.
import {command, h, loading, roomOf, show} from './dom.js';
import {change, state, subscribe} from './state.js';
import {getJson, query} from './data.js';
import {run, scopeOf} from './run.js';
import {partsBar} from './parts.js';
import {exactNs, ns} from './units.js';

export function startAnswer(place, fail) {
  let latest = null;
  async function load() {
    place.hidden = !run.a || state.view === 'results';
    if (place.hidden) return;
    const scope = scopeOf(), id = run.a.id;
    loading(place, 'the verdict');
    const found = await getJson(`/runs/${id}/answer?${query({scope: scope.id})}`);
    if (id !== run.a?.id || scope.id !== scopeOf().id) return;
    latest = found;
    draw();
  }
  function draw() {
    if (!latest || place.hidden) return;
    const verified = run.a.verified;
    const look = {verified: 'good', wrong: 'bad'}[verified] || '';
    show(place, h('div', {class: 'line'},
      h('span', {class: 'total', title: `${exactNs(latest.total_ns)}${latest.sums.some(part => part.id === 'queue') ? '\nTransfers contend here: totals are more accurate than single completion times, see kernbench fidelity.' : ''}`}, ns(latest.total_ns)),
      run.a.scopes.length > 1 && h('select', {'aria-label': 'Scope: the whole run, or one launch', class: 'scope', onchange: event => change({scope: event.target.value, w: null, range: null})},
        run.a.scopes.map(scope => h('option', {value: scope.id, selected: scope.id === scopeOf().id}, !scope.id.startsWith('launch:') ? scope.name : `launch ${run.a.launches > 1 ? `${scope.id.slice(7)}: ` : ''}${scope.name}`))),
      h('span', {class: `badge ${look}`, title: 'Whether the tensors were compared with what the bench states'}, verified === 'wrong' ? 'WRONG' : verified),
      h('span', {class: 'say'}, linked(latest), ' ', h('span', {class: 'muted'}, `Try: ${latest.try}.`)),
      command(latest.command), latest.change && h('span', {class: 'muted'}, latest.change)),
    partsBar(latest.sums, latest.total_ns, {width: Math.max(roomOf(place) - 24, 200), onpick: part => change(part.id === 'launch' ? {view: 'explain', by: 'class'} : {sel: `class:${part.id}@${scopeOf().id}`, view: 'run'})}));
  }
  subscribe(['loaded', 'scope', 'view'], () => load().catch(fail));
  addEventListener('resize', draw);
}

// The sentence, its first clause bold, with the lines it names as links.
function linked({what, lines}) {
  const names = lines.map(line => [line.name.replace(/^kernbench\//, ''), line.name]).sort((x, y) => y[0].length - x[0].length);
  const first = / path\b|[.;,](?= )/.exec(what), end = first ? first.index + first[0].length : 0; // the first clause
  const cut = text => {
    for (const [name, full] of names) {
      const at = text.indexOf(name), after = text[at + name.length];
      if (at >= 0 && !/\d/.test(after || '')) {
        return [...cut(text.slice(0, at)), h('button', {class: 'plain', onclick: () => change({sel: `line:${full}`, view: 'run'})}, name.split('/').pop()), ...cut(text.slice(at + name.length))];
      }
    }
    return [text];
  };
  return end > 1 ? [h('b', {}, cut(what.slice(0, end))), cut(what.slice(end))] : cut(what);
}
