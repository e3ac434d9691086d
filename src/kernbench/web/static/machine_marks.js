// The selection in Machine: the PE of an op and its route, a node, a link, the nodes of a line, a route.
import {s} from './dom.js';
import {getJson, query} from './data.js';
import {run, scopeOf} from './run.js';
import {state} from './state.js';

const owner = (model, node) => {
  for (let name = node; name; name = name.slice(0, Math.max(name.lastIndexOf('.'), 0))) if (model.boxes.has(name)) return name;
  return null;
};

export async function marksOf(model, sel) {
  const found = sel ? await marked(sel).catch(() => null) : null;
  if (sel !== state.sel) return;
  model.top.replaceChildren();
  for (const {group} of model.boxes.values()) group.classList.remove('on');
  for (const {path} of model.links.values()) path.classList.remove('route');
  if (!found) return;
  for (const node of found.nodes) model.boxes.get(owner(model, node))?.group.classList.add('on');
  for (const [a, b] of found.hops) {
    const from = owner(model, a), to = owner(model, b);
    const link = from && to && from !== to ? model.links.get(`${from}>${to}`) : null;
    if (!link) continue;
    link.path.classList.add('route');
    model.top.append(s('path', {class: 'way', d: link.path.getAttribute('d'), 'stroke-width': 0.5 * model.unit}));
    const arrow = link.arrow.cloneNode();
    arrow.setAttribute('class', 'wayhead');
    arrow.setAttribute('visibility', 'visible');
    arrow.removeAttribute('style');
    model.top.append(arrow);
  }
}

const pairs = nodes => nodes.slice(1).map((node, i) => [nodes[i], node]);

async function marked(sel) {
  const [what, name] = [sel.slice(0, sel.indexOf(':')), sel.slice(sel.indexOf(':') + 1)];
  const id = state.a || run.machineId;
  if (what === 'node') return {nodes: [name.split('#')[0]], hops: []};
  if (what === 'link') { const [a, b] = name.split('>'); return {nodes: b ? [] : [a.split('#')[0]], hops: b ? [[a, b]] : []}; }
  if (what === 'route') {
    const [from, to] = name.split('>');
    const route = await getJson(`/runs/${id}/route?${query({from, to})}`);
    const nodes = route.nodes.map(node => node.id);
    return {nodes: [nodes[0], nodes[nodes.length - 1]], hops: pairs(nodes)};
  }
  if (!run.a) return null;
  if (what === 'op') {
    const op = await getJson(`/runs/${id}/op/${name}`);
    return {nodes: [op.component, ...(op.route ? [op.route[0], op.route.at(-1)] : [])], hops: op.route ? pairs(op.route) : []};
  }
  const scope = scopeOf();
  const used = await getJson(`/runs/${id}/totals?${query({t0: scope.t0, t1: scope.t1, sel})}`);
  if (used.messages) return {nodes: used.components, hops: used.messages.links};
  return {nodes: used.components || [], hops: (used.held_up_at || []).map(link => link.split('>')).filter(link => link.length === 2)};
}
