// Panes: splitters, focus by number, a single pane, the sheet of a narrow page.
import {$, isNarrow} from './dom.js';
import {onKey} from './keys.js';
import {change, state, subscribe} from './state.js';

const PANES = ['machine', 'source', 'details', 'timeline'];

export function startPanes() {
  const view = $('view-run');
  for (const split of document.querySelectorAll('.split')) {
    split.addEventListener('pointerdown', event => {
      split.setPointerCapture(event.pointerId);
      const move = at => place(split, view, at.clientX, at.clientY);
      split.addEventListener('pointermove', move);
      split.addEventListener('pointerup', () => split.removeEventListener('pointermove', move), {once: true});
    });
  }
  for (const split of document.querySelectorAll('.split')) {
    split.tabIndex = 0;
    split.addEventListener('keydown', event => {
      const step = {ArrowLeft: [-16, 0], ArrowRight: [16, 0], ArrowUp: [0, -16], ArrowDown: [0, 16]}[event.key];
      if (!step) return;
      const box = split.getBoundingClientRect();
      place(split, view, box.left + box.width / 2 + step[0], box.top + box.height / 2 + step[1]);
      event.preventDefault();
      event.stopPropagation();
    });
  }
  onKey(['1', '2', '3', '4'], 'go to Machine, Source, Details, Timeline', event => {
    const name = PANES[Number(event.key) - 1];
    change({view: 'run', ...(name !== 'details' ? {pane: name} : {})});
    $(`pane-${name}`).focus();
  });
  onKey(['f'], 'this pane alone, and back', () => {
    const isMax = view.classList.toggle('max');
    const pane = document.activeElement.closest?.('.pane') || $(`pane-${state.pane}`);
    for (const name of PANES) $(`pane-${name}`).classList.toggle('maxed', isMax && $(`pane-${name}`) === pane);
    dispatchEvent(new Event('resize'));
  });
  subscribe(['sel', 'range', 'loaded'], () => {
    const isOpen = Boolean(state.sel || state.range);
    $('pane-details').classList.toggle('open', isOpen);
    view.classList.toggle('sheet', isOpen);
    if (isNarrow()) dispatchEvent(new Event('resize'));
  });
}

// A splitter comes to a place; its pane follows.
function place(split, view, x, y) {
  const box = view.getBoundingClientRect();
  const [name, value] = {a: ['--col-a', (x - box.left) / box.width], b: ['--col-b', (box.right - x) / box.width], c: ['--row-a', (y - box.top) / box.height]}[split.dataset.split];
  const share = Math.max(0.12, Math.min(0.8, value));
  view.style.setProperty(name, `${(100 * share).toFixed(1)}%`);
  split.setAttribute('aria-valuenow', Math.round(100 * share));
  dispatchEvent(new Event('resize'));
}

// The sheet is dragged by its grip.
export function dragSheet(grip) {
  grip.addEventListener('pointerdown', event => {
    grip.setPointerCapture(event.pointerId);
    const move = at => {
      const box = $('view-run').getBoundingClientRect();
      const share = (box.bottom - at.clientY) / box.height;
      if (share < 0.08) { change({sel: null, range: null}); return; }
      $('view-run').style.setProperty('--sheet', `${(100 * Math.min(0.85, share)).toFixed(0)}%`);
      dispatchEvent(new Event('resize'));
    };
    grip.addEventListener('pointermove', move);
    grip.addEventListener('pointerup', () => grip.removeEventListener('pointermove', move), {once: true});
  });
}
