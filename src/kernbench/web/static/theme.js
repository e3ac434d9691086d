// Light or dark: as the system has it, or as the button says. Canvases read the colours from here.
import {h} from './dom.js';
import {change} from './state.js';

const system = matchMedia('(prefers-color-scheme: dark)');
let colours = {};

const stored = () => { try { return localStorage.getItem('kb-theme'); } catch { return null; } };

function apply() {
  const theme = stored() || (system.matches ? 'dark' : 'light');
  document.documentElement.dataset.theme = theme;
  colours = {};
  patterns.clear();
  change({theme});
}

export function colour(name) {
  if (!(name in colours)) colours[name] = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  return colours[name];
}

// Stripes at 45 degrees on the panel: waiting. `scale` is the canvas' device pixel ratio.
const patterns = new Map();
export const WAITING = 'QLI'; // letters of classes that are not work
export function hatch(context, scale = 1, letter = 'Q') {
  const key = `${letter}/${scale}`;
  if (!patterns.has(key)) {
    const size = Math.round(6 * scale), tile = new OffscreenCanvas(size, size), pen = tile.getContext('2d');
    pen.fillStyle = colour('panel');
    pen.fillRect(0, 0, size, size);
    pen.strokeStyle = colour(letter);
    pen.lineWidth = size * 0.42;
    pen.beginPath();
    for (const at of [-size, 0, size]) { pen.moveTo(at - 1, size + 1); pen.lineTo(at + size + 1, -1); }
    pen.stroke();
    patterns.set(key, context.createPattern(tile, 'repeat'));
  }
  return patterns.get(key);
}

export function rgb(name) {
  const hex = colour(name);
  return [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));
}

export function startTheme(tools) {
  apply();
  system.addEventListener('change', apply);
  tools.append(h('button', {'aria-label': 'Light or dark', title: 'Light or dark', onclick: () => {
    const next = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
    try { localStorage.setItem('kb-theme', next); } catch { /* the choice lasts as long as the page */ }
    apply();
  }}, '◐'));
}
