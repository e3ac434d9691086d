// Bars that add up: solid is work, hatched is waiting. Names where there is room, then letters, then nothing.
import {h} from './dom.js';
import {ns, pct} from './units.js';

// Letters of narrow parts, distinct for parts of one letter and colour.
const SHORT = {Transfer: 'T', Launch: 'La', Host: 'Ho', Credit: 'Cr'};

export function partsBar(parts, total, {onpick = null, small = false, width = 1200, title = 'Critical path'} = {}) {
  const bar = h(onpick ? 'div' : 'div', {class: `parts${small ? ' small' : ''}`, role: 'group', 'aria-label': title});
  for (const part of parts) {
    const share = total > 0 ? part.ns / total : 0, px = share * width;
    const letter = SHORT[part.label] || part.letter;
    const long = `${part.label} ${pct(share)}`, short = `${letter} ${pct(share, 0)}`;
    const text = px > 8 * long.length + 14 ? long : px > 50 ? short : px > 16 ? letter : '';
    const css = {flex: `${Math.max(share, 0.0001)} 1 0`};
    const about = `${part.label}: ${ns(part.ns)}, ${pct(share)}`;
    bar.append(h(onpick ? 'button' : 'div', {class: `c-${part.letter === 'R' && part.label === 'Transfer' ? 'T' : part.letter}`, css, title: about, 'aria-label': about, onclick: onpick ? () => onpick(part) : null},
      text && h('span', {}, text)));
  }
  return bar;
}
