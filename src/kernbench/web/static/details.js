// Details of what is selected: an op, a range, a line, a node, a link, a route between two nodes.
import {empty, h, roomOf, say, show, table} from './dom.js';
import {change, state, subscribe} from './state.js';
import {getJson, query} from './data.js';
import {KIND_NAMES, launchesOf, run, scopeOf, shortCall, shortLink, shortNode, spanOf} from './run.js';
import {dragSheet} from './panes.js';
import {partsBar} from './parts.js';
import {lineAt} from './source.js';
import {sparkline} from './spark.js';
import {bytes, count, exactNs, gbs, ns, pct, plural, sig} from './units.js';

export function startDetails(pane, fail) {
  const title = h('span', {class: 'muted grow'}), cause = h('button', {title: 'What let it start (c)'}, '← cause'), body = h('div', {class: 'body details'});
  const close = h('button', {'aria-label': 'Close', class: 'close', onclick: () => change({sel: null, range: null})}, '×');
  const grip = h('button', {class: 'grab', 'aria-label': 'Drag to resize'});
  dragSheet(grip);
  show(pane, grip, h('div', {class: 'head'}, h('h2', {}, 'Details'), title, cause, close), body);
  const ui = {title, cause, body};

  async function load() {
    cause.hidden = true;
    close.hidden = !state.sel && !state.range;
    const sel = state.sel || '', what = sel.slice(0, sel.indexOf(':')), name = sel.slice(sel.indexOf(':') + 1);
    const id = state.a || run.machineId;
    if (!id) return;
    if (what === 'route') await route(ui, id, name);
    else if (what === 'op' && run.a) await op(ui, id, name);
    else if (['line', 'node', 'link', 'kind', 'launch', 'class'].includes(what)) await some(ui, id, what, name);
    else if (state.range && run.a) await range(ui, id);
    else { title.textContent = ''; show(body, hello()); }
  }
  subscribe(['sel', 'range', 'loaded', 'scope'], () => load().catch(error => show(body, empty(h('b', {}, error.message), h('p', {}, error.hint || '')))));
}

const hello = () => (run.a ? empty('Nothing is selected.', h('p', {}, 'Click a slice for its op, a line for its totals, a link or node for its activity; drag in the timeline for the totals of a range; click two nodes for the route between them.'))
  : empty('Click a node for its attributes, then another for the route between the two.'));

const row = (name, ...value) => h('div', {class: 'fact'}, h('span', {class: 'muted'}, name), h('span', {}, ...value));
const opLink = one => h('button', {class: 'plain', onclick: () => change({sel: `op:${one.id}`})}, `${one.label} (op ${one.id})`);
const nodeLink = id => h('button', {class: 'plain', title: id, onclick: () => change({sel: id.includes('>') ? `link:${id}` : `node:${id}`})}, shortLink(id));
const lineLink = line => h('button', {class: 'plain', title: line.file, onclick: () => change({sel: `line:${line.file}:${line.number}`})}, `${line.file.split('/').pop()}:${line.number}`);

const WAITED = {data: 'data', message: 'a message', credit: 'room at the receiver', barrier: 'a barrier', slot: 'room in buffers', lane: 'the engine, held', program: 'the kernel, busy', launch: 'the launch', host: 'the host'};

async function op(ui, id, name) {
  const found = await getJson(`/runs/${id}/op/${name}`);
  if (state.sel !== `op:${name}`) return;
  ui.title.textContent = `op ${found.id}`;
  ui.cause.hidden = !found.released_by;
  ui.cause.onclick = () => change({sel: `op:${found.released_by.id}`});
  const split = found.split, moved = found.nbytes && split?.transfer ? `, ${bytes(found.nbytes)} at ${gbs(found.nbytes / split.transfer)}` : '';
  const parts = split ? [{letter: 'R', label: 'Transfer', ns: split.transfer}, {letter: 'L', label: 'Latency', ns: split.latency}, {letter: 'Q', label: 'Queue', ns: split.queue}].filter(p => p.ns > 0)
    : [{letter: found.kind, label: KIND_NAMES[found.kind], ns: found.took}];
  const key = (letter, css = letter) => h('i', {class: `key c-${css}`}, letter);
  const waited = found.t0 - found.asked;
  show(ui.body,
    h('h3', {}, `${found.label}${found.nbytes ? `, ${bytes(found.nbytes)}` : ''}`), h('div', {class: 'muted'}, `${found.lane_name}, ${found.kind_name}`),
    found.took > 0 && partsBar(parts, parts.reduce((x, p) => x + p.ns, 0), {small: true, width: roomOf(ui.body) - 20, title: 'Service split'}),
    split && [h('div', {class: 'fact'}, h('span', {}, key('T'), ' transfer'), h('span', {}, exactNs(split.transfer), h('span', {class: 'muted'}, moved))),
      h('div', {class: 'fact'}, h('span', {}, key('L'), ' latency'), h('span', {}, exactNs(split.latency), h('span', {class: 'muted'}, found.route ? `, ${plural(found.route.length - 1, 'link')}` : ''))),
      h('div', {class: 'fact'}, h('span', {}, key('Q'), ' queue'), h('span', {}, exactNs(split.queue)))],
    row('took', h('b', {}, exactNs(found.took)), split ? h('span', {class: 'muted'}, `, uncontended ${exactNs(split.transfer + split.latency)}`) : null),
    row('time', `${exactNs(found.t0)} to ${exactNs(found.t1)}`),
    waited > 0 && row('asked', `${exactNs(waited)} before it started`),
    found.queued_at.length > 0 && row('queued at', found.queued_at.slice(0, 4).map((place, i) => [i > 0 && ', ', nodeLink(place.id), ` ${ns(place.ns)}`])),
    row('started by', WAITED[found.release] || found.release, found.released_by && [', ', opLink(found.released_by)]),
    found.chain.length > 1 && row('before that', found.chain.slice(1, 4).map((one, i) => [i > 0 && ' ← ', opLink(one)])),
    found.deps.length > 0 && row('needs', list(found.deps, opLink, found.deps.length)),
    found.consumer_count > 0 && row('waits for it', list(found.consumers, opLink, found.consumer_count)),
    found.line && row('line', lineLink(found.line)),
    found.tensors.length > 0 && row('tensors', found.tensors.join(', ')),
    found.flops > 0 && row('work', `${count(found.flops)} flops, ${sig(found.flops / found.took)} per ns`),
    found.launch >= 0 && row('launch', h('button', {class: 'plain', onclick: () => change({scope: `launch:${found.launch}`, w: null})}, launchesOf(run.a)[found.launch]?.name || found.launch)),
    calledAt(found.launch),
    h('details', {}, h('summary', {}, 'all parameters'), h('pre', {class: 'cmd'}, JSON.stringify(found.params, null, 1))));
  say(`op ${found.id}: ${found.label}, ${ns(found.took)}`);
}

// The program's line of a collective or a tensor operation.
const calledAt = launch => { const at = launchesOf(run.a)[launch]?.called_at; return at && row('called at', h('code', {title: at}, shortCall(at))); };
const list = (items, link, total) => [items.slice(0, 3).map((one, i) => [i > 0 && ', ', link(one)]), total > 3 && ` and ${count(total - 3)} more`];

const ENGINES = [
  {name: 'engine', cell: r => r.name}, {name: 'ops', num: true, cell: r => count(r.ops)}, {name: 'busy', num: true, cell: r => ns(r.busy_ns)},
  {name: 'mean', num: true, cell: r => ns(r.mean_ns)}, {name: 'min', num: true, cell: r => ns(r.min_ns)}, {name: 'max', num: true, cell: r => ns(r.max_ns)}, {name: 'bytes', num: true, cell: r => (r.nbytes ? bytes(r.nbytes) : '')},
];

async function range(ui, id) {
  const [t0, t1] = state.range, scope = scopeOf();
  const found = await getJson(`/runs/${id}/totals?${query({scope: scope.id, t0, t1})}`);
  if (!state.range || state.range[0] !== t0) return;
  ui.title.textContent = 'range';
  const total = found.path.reduce((x, p) => x + p.ns, 0);
  show(ui.body, h('h3', {}, `${ns(t1 - t0)} selected`), h('div', {class: 'muted'}, `${exactNs(t0)} to ${exactNs(t1)}, all lanes`),
    partsBar(found.path, total, {small: true, width: roomOf(ui.body) - 20, title: 'Critical path in the range'}),
    found.engines.length ? h('div', {class: 'wide'}, table(ENGINES, found.engines)) : empty('No op in this range.', h('p', {}, 'Esc clears it; drag for another.')),
    h('p', {class: 'muted'}, `busy is the sum over all engines of the kind; the bar above is the critical path and adds up to ${exactNs(total)}.`));
}

async function some(ui, id, what, name) {
  const isRun = Boolean(run.a), [t0, t1] = isRun ? spanOf() : [0, 1];
  const node = what === 'node' ? await getJson(`/runs/${id}/node?${query({id: name.split('#')[0]})}`).catch(() => null) : null;
  const found = isRun ? await getJson(`/runs/${id}/totals?${query({scope: scopeOf().id, t0, t1, sel: `${what}:${name}`})}`) : null;
  if (state.sel !== `${what}:${name}`) return;
  ui.title.textContent = what;
  const line = what === 'line' && run.a ? await lineOf(id, name) : null;
  const [cls, of] = name.split('@'), answer = what === 'class' && isRun ? await getJson(`/runs/${id}/answer?${query({scope: of || scopeOf().id})}`) : null;
  if (state.sel !== `${what}:${name}`) return;
  const part = answer?.sums.find(one => one.id === cls);
  const place = found?.place?.count ? found.place : null;
  show(ui.body, h('h3', {}, line ? line.name.split('/').pop() : what === 'launch' ? launchesOf(run.a)[Number(name)]?.name || name : what === 'class' ? `${name.split('@')[0]} on the critical path` : what === 'kind' ? KIND_NAMES[name] : shortLink(name)), h('div', {class: 'muted'}, line ? line.name : what === 'launch' ? `launch ${name} of ${launchesOf(run.a).length}` : what === 'class' ? 'ops that have a piece of it; all of their time' : name.replace('>', ' → ')),
    part && row('of the path', h('b', {}, pct(part.ns / answer.total_ns)), `, ${ns(part.ns)}; below are the whole ops`),
    line && lineRows(line, found),
    what === 'launch' && calledAt(Number(name)),
    found?.messages && messageRows(found.messages),
    place && [h('div', {class: 'spark2'}, sparkline(place.spark_util, 'utilisation', 1), place.spark_queue.some(Boolean) && sparkline(place.spark_queue, 'queue', null)),
      row('utilisation', h('b', {}, pct(place.util)), state.range ? ' of the range' : ' of the scope'),
      row('queue', `${sig(place.queue, 2)} flits on average, ${ns(place.wait_ns)} waited in total`), row('bytes', bytes(Math.round(place.nbytes))),
      row('bandwidth', `${gbs(place.gbs)}${place.count > 1 ? `, ${count(place.count)} links and channels together` : ''}`)],
    found && what !== 'kind' && !place && ['link', 'node'].includes(what) && !found.engines.length && h('p', {class: 'muted'}, 'No bytes passed here.'),
    node && Object.entries(node.holds || {}).map(([kind, n]) => row(kind, count(n))),
    node && Object.entries(node.attrs).map(([key, value]) => row(key.replace(/_ns$/, ', ns').replace(/_gbs$/, ', GB/s').replace(/_bytes$/, ', bytes').replaceAll('_', ' '), String(value))),
    found && found.engines.length > 0 && h('div', {class: 'wide'}, table(ENGINES, found.engines)),
    found && ['link', 'node'].includes(what) && found.ops > 0 && h('p', {class: 'muted'}, what === 'link' ? `${plural(found.ops, 'op')} passed here.` : plural(found.ops, 'op')),
    found?.slowest?.length > 0 && [h('b', {}, 'longest'), h('ol', {class: 'ops'}, found.slowest.slice(0, 8).map(one => h('li', {}, opLink(one), ` ${ns(one.t1 - one.t0)}`)))],
    what === 'node' && h('p', {class: 'muted'}, 'Click another node in Machine for the route between the two.'));
}

// A line with its text and its sums over the range or scope; null in `sums` where it issued nothing.
async function lineOf(id, name) {
  const [t0, t1] = spanOf(), found = await getJson(`/runs/${id}/source?${query({scope: scopeOf().id, t0, t1})}`), at = lineAt(found, name);
  return at && {name: `${at.file.name}:${at.number}`, text: (at.file.text ?? '').split('\n')[at.number - 1]?.trim(), sums: at.line, total: t1 - t0};
}

const lineRows = ({text, sums, total}, found) => [text && h('pre', {class: 'cmd'}, text),
  sums ? [row('critical path', h('b', {}, pct(sums.path.ns / total)), `, ${exactNs(sums.path.ns)}`), row('stalled', `${exactNs(sums.stall_ns)}, from asked to start`), row('ops', count(found.ops))]
    : empty('This line issued no op.', h('p', {}, 'Lines with a share in Source did: click one of them.'))];

// Of a collective: what its PEs sent each other. The same is drawn as flows in Timeline and as routes in Machine.
const messageRows = found => [row('messages', h('b', {}, count(found.count)), `, ${bytes(found.nbytes)} total`),
  row('under way', `${ns(found.mean_ns)} on average, ${ns(found.max_ns)} at most`),
  row('longest', found.slowest.slice(0, 3).map((one, i) => [i > 0 && ', ', h('button', {class: 'plain', title: `${one.from} → ${one.to}`, onclick: () => change({sel: `op:${one.received.id}`})}, `${peOf(one.from)} → ${peOf(one.to)}`), ` ${ns(one.ns)}`]))];
const peOf = component => component.replace(/\.pe_\w+$/, '').replace(/^sip/, 'S').replace('.cube', ' C').replace('.pe', ' PE');

async function route(ui, id, name) {
  const [from, to] = name.split('>');
  const found = await getJson(`/runs/${id}/route?${query({from, to})}`);
  if (state.sel !== `route:${name}`) return;
  ui.title.textContent = 'route';
  const mm = found.links.reduce((x, link) => x + link.mm, 0);
  show(ui.body, h('h3', {}, `${shortNode(found.from)} → ${shortNode(found.to)}`), h('div', {class: 'muted'}, `${found.from} → ${found.to}, as ${found.traffic} goes`),
    row('one way', h('b', {}, exactNs(found.ns)), ', nothing else on it'), row('of it', `${exactNs(found.nodes_ns)} in nodes, ${exactNs(found.wire_ns)} on wires`),
    found.narrowest && row('narrowest', nodeLink(found.narrowest.id), h('b', {}, ` ${gbs(found.narrowest.gbs)}`)),
    row('length', `${plural(found.links.length, 'link')}, ${mm.toFixed(2)} mm`),
    h('div', {class: 'wide'}, table([{name: 'node', cell: r => h('span', {title: r.node}, shortNode(r.node))}, {name: 'in it', num: true, cell: r => (r.in ? ns(r.in) : '')}, {name: 'then link', num: true, cell: r => (r.link ? gbs(r.link.gbs) : '')}, {name: 'wire', num: true, cell: r => (r.link ? ns(r.link.ns) : '')}],
      found.nodes.map((node, i) => ({node: node.id, in: node.ns, link: found.links[i]})))));
}
