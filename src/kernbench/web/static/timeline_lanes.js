// Which lanes are shown: pinned groups come first, hidden ones not at all.
import {h, show} from './dom.js';
import {change, state} from './state.js';
import {plural} from './units.js';

export function arranged(groups) {
  const pinned = new Set(state.pin || []), hidden = new Set(state.hide || []);
  const seen = groups.filter(group => !hidden.has(group.id));
  return [...seen.filter(group => pinned.has(group.id)), ...seen.filter(group => !pinned.has(group.id))];
}

// The menu beside the letters: a line for each PE, or for each cube where there are many.
export function drawMenu(menu, groups) {
  const has = (key, id) => (state[key] || []).includes(id);
  const flip = (key, id) => { const rest = (state[key] || []).filter(one => one !== id), next = has(key, id) ? rest : [...rest, id]; change({[key]: next.length ? next : null}); };
  const button = (key, group, text) => h('button', {'aria-pressed': has(key, group.id) ? 'true' : 'false', 'aria-label': `${text} ${group.name}`, 'data-lane': `${key}:${group.id}`, onclick: () => { flip(key, group.id); menu.querySelector(`[data-lane="${key}:${group.id}"]`)?.focus(); }}, text);
  const out = (state.hide || []).length, isOpen = menu.open;
  show(menu, h('summary', {title: 'Pin and hide lanes'}, out ? `Lanes, ${plural(out, 'group')} hidden` : 'Lanes'),
    h('div', {class: 'lanelist'}, groups.map(group => h('div', {}, h('span', {}, group.name), button('pin', group, 'Pin'), button('hide', group, 'Hide'))),
      h('button', {disabled: !state.pin && !state.hide, onclick: () => change({pin: null, hide: null})}, 'All as they were')));
  menu.open = isOpen;
}
