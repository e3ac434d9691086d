// Keys: one table, which is also the help page. Views add what they answer to.
import {$, h, say, show} from './dom.js';
import {change, state, toHash} from './state.js';

const keys = new Map();
// The names of one entry do one thing. `act(event)` returns false to leave the key to other views, and then to the browser.
export function onKey(names, about, act) {
  const entry = {about, act, names};
  for (const name of names) keys.set(name, [...(keys.get(name) || []), entry]);
}

export function shown() {
  return [...new Set([...keys.values()].flat())].filter(({about}) => about);
}

const LABEL = {ArrowLeft: '←', ArrowRight: '→', ArrowUp: '↑', ArrowDown: '↓', ' ': 'space', Escape: 'Esc'};

function help() {
  const dialog = $('help');
  show(dialog,
    h('h3', {}, 'Keys'),
    h('div', {class: 'cols'}, shown().map(({names, about}) => h('div', {}, h('kbd', {}, names.map(n => LABEL[n] || n).join(' ')), h('span', {}, about)))),
    h('h3', {}, 'Pointer'),
    h('p', {class: 'muted'}, 'Timeline: drag selects a range (Alt: without snapping), drag on the axis or Shift and wheel pans, Ctrl and wheel or pinch zooms, wheel scrolls the lanes, double click zooms to a slice; Enter opens and closes the PE of the selection. ' +
      'Machine: drag pans, wheel zooms, double click opens a block, click two nodes for the route between them.'),
    h('p', {class: 'muted'}, 'Solid is work, hatched is waiting, in every view. Links to this page keep run, window, selection and view: y copies one.'),
    h('button', {onclick: () => dialog.close()}, 'Close'));
  dialog.showModal();
  dialog.scrollTop = 0; // the button at its end has the focus
}

export function startKeys(tools) {
  tools.append(h('button', {'aria-label': 'All keys', title: 'All keys (?)', onclick: help}, '?'));
  onKey(['?'], 'all keys', help);
  onKey(['y'], 'copy a link to what is shown', () => {
    const url = location.href.split('#')[0] + toHash();
    navigator.clipboard?.writeText(url).then(() => say('Link copied'), () => {});
  });
  onKey(['Escape'], 'clear the range, then the selection, then the search', () => {
    if (state.range) change({range: null});
    else if (state.sel) change({sel: null});
    else if (state.q) change({q: ''});
    else return false;
    return true;
  });
  addEventListener('keydown', event => {
    const inside = event.target.closest?.('input, select, textarea, dialog');
    if (event.ctrlKey || event.metaKey || event.altKey || (inside && event.key !== 'Escape')) return;
    if (event.key === ' ' && event.target.closest?.('button, [role=button]')) return;
    if (keys.get(event.key)?.some(({act}) => act(event) !== false)) event.preventDefault();
  });
}
