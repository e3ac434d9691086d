// Elements without a template language: h('div', {class: 'x', onclick: f}, child, ...).
const SVG = 'http://www.w3.org/2000/svg';

function fill(element, attrs, children) {
  for (const [name, value] of Object.entries(attrs || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'css') Object.assign(element.style, value);
    else if (name === 'text') element.textContent = value;
    else element.setAttribute(name, value === true ? '' : value);
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) add(element, child);
    else element.append(child);
  }
}

export const h = (tag, attrs, ...children) => fill(document.createElement(tag), attrs, children);
export const s = (tag, attrs, ...children) => fill(document.createElementNS(SVG, tag), attrs, children);
export const $ = id => document.getElementById(id);

// The reader's text size over the usual 16 px. CSS has its sizes in rem; canvases and plots are laid out in px of 16 px text and drawn
// that much larger. The layout is narrow by the room for text, not by pixels, as in frame.css.
export const textScale = parseFloat(getComputedStyle(document.documentElement).fontSize) / 16 || 1;
export const roomOf = element => element.clientWidth / textScale;
export const isNarrow = () => matchMedia('(max-width: 43.75em)').matches;

// A column of a chart on whole pixels of the screen: fractions of neighbours would show as stripes.
export const column = (x, wide, scale) => { const from = Math.floor(x * scale), to = Math.ceil((x + wide) * scale); return [from / scale, (to - from) / scale]; };

export function show(element, ...children) {
  element.replaceChildren();
  add(element, children);
}

export function say(text) { $('live').textContent = text; }

export function tip(text, x, y) {
  const box = $('tip');
  if (!text) { box.hidden = true; return; }
  box.textContent = text;
  box.hidden = false;
  const w = box.offsetWidth, hgt = box.offsetHeight;
  box.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - w - 6))}px`;
  box.style.top = `${y + 18 + hgt > innerHeight ? y - hgt - 8 : y + 18}px`;
}

export function table(columns, rows, onrow) {
  // columns: [{name, num, cell(row)}]
  return h('table', {},
    h('thead', {}, h('tr', {}, columns.map(c => h('th', {class: c.num ? 'num' : null, scope: 'col'}, c.name)))),
    h('tbody', {}, rows.map(row => h('tr', {onclick: onrow ? () => onrow(row) : null},
      columns.map(c => h('td', {class: c.num ? 'num' : null}, c.cell(row)))))));
}

// One stop for Tab; arrows, Home and End move among the items.
export function rove(place, items) {
  const all = () => [...place.querySelectorAll(items)];
  all().forEach((item, n) => { item.tabIndex = n ? -1 : 0; });
  if (place.dataset.roves) return;
  place.dataset.roves = '1';
  place.addEventListener('focusin', event => { const item = event.target.closest(items); if (item) all().forEach(one => { one.tabIndex = one === item ? 0 : -1; }); });
  place.addEventListener('keydown', event => {
    const list = all(), at = list.indexOf(document.activeElement), last = list.length - 1;
    const next = {ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: last}[event.key];
    if (at < 0 || next === undefined) return;
    list[Math.max(0, Math.min(last, next))].focus();
    event.preventDefault();
    event.stopPropagation();
  });
}

// A command with a button that copies it.
export function command(text) {
  const code = h('code', {title: text}, text);
  const copied = () => { button.textContent = 'Copied'; say('Command copied'); setTimeout(() => { button.textContent = 'Copy'; }, 1500); };
  const select = () => { const range = document.createRange(); range.selectNodeContents(code); getSelection().removeAllRanges(); getSelection().addRange(range); };
  const button = h('button', {'aria-label': `Copy the command ${text}`, onclick: () => (navigator.clipboard ? navigator.clipboard.writeText(text).then(copied, select) : select())}, 'Copy');
  return h('span', {class: 'next'}, code, button);
}

// While the first data of a place is under way; what it shows already stays.
export const loading = (place, what) => { if (!place.firstChild) show(place, h('div', {class: 'empty loading', role: 'status'}, `Loading ${what} ...`)); };

export const empty = (text, ...more) => h('div', {class: 'empty'}, h('div', {}, text), ...more);
