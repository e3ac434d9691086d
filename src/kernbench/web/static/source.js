// Source: the kernel's text with each line's part of the critical path, or its engine time, stall, ops, bytes.
import {empty, h, loading, roomOf, rove, show} from './dom.js';
import {change, state, subscribe} from './state.js';
import {getJson, query} from './data.js';
import {run, scopeOf, spanOf} from './run.js';
import {partsBar} from './parts.js';
import {bytes, count, ns, pct, plural} from './units.js';

const WORDS = /("""|'''|#.*$|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\b(?:def|for|in|if|else|elif|while|return|import|from|as|with|and|or|not|None|True|False|lambda|yield|class)\b|\btl(?:\.\w+)+)/g;
// The line that `flash.py:8` means in the server's response on sources: its file, by its name or the end of it, and the sums
// of the line if it issued ops. Null where there is none.
export function lineAt({files, lines}, name) {
  const at = name.lastIndexOf(':'), path = name.slice(0, at), number = Number(name.slice(at + 1));
  const found = files.filter(one => one.name === path), same = found.length ? found : files.filter(one => one.name.endsWith(`/${path}`));
  return same.length === 1 ? {file: same[0], number, line: lines.find(line => line.file === same[0].i && line.number === number) || null} : null;
}

const COLUMNS = [['path', 'share of path'], ['busy_ns', 'engine time'], ['stall_ns', 'stall'], ['ops', 'ops'], ['nbytes', 'bytes']];
const CALLS = 40, NUMBERS = 4; // lines of the program, and launches of one, that are listed
let column = 'path';

export function startSource(pane, fail) {
  const name = h('select', {'aria-label': 'File', class: 'file', onchange: event => { file = Number(event.target.value); draw(); }});
  const what = h('select', {'aria-label': 'What is shown for each line', onchange: event => { column = event.target.value; draw(); }}, COLUMNS.map(([id, text]) => h('option', {value: id}, text)));
  const body = h('div', {class: 'body code', tabindex: 0}), calls = h('div', {class: 'calls', role: 'region', 'aria-label': 'Called by the program', tabindex: 0, hidden: true});
  show(pane, h('div', {class: 'head'}, h('h2', {}, 'Source'), name, h('span', {class: 'grow'}), what), calls, body);
  let data = null, file = 0, shownKey = '';

  async function load() {
    if (!run.a) { name.hidden = what.hidden = calls.hidden = true; show(body, empty('No run is open, so there is no kernel to show.')); return; }
    name.hidden = what.hidden = false;
    const [t0, t1] = spanOf(), id = run.a.id;
    loading(body, 'the source');
    const found = await getJson(`/runs/${id}/source?${query({scope: scopeOf().id, t0, t1})}`);
    if (id !== run.a.id) return;
    const isNew = data?.id !== id;
    data = {...found, id, total: t1 - t0};
    if (isNew) {
      file = busiest();
      show(name, data.files.map(one => h('option', {value: one.i}, one.name.split('/').pop())));
    }
    draw();
  }

  function busiest() {
    const sums = new Map();
    for (const line of data.lines) sums.set(line.file, (sums.get(line.file) || 0) + line.path.ns + 1e-6 * line.busy_ns);
    return [...sums].sort((x, y) => y[1] - x[1])[0]?.[0] ?? 0;
  }

  function draw() {
    if (!data) return;
    name.value = file;
    const lines = data.lines.filter(line => line.file === file), source = data.files.find(one => one.i === file);
    calls.hidden = !data.calls.length;
    show(calls, h('div', {class: 'muted'}, 'called by the program: time, line, launches'), data.calls.slice(0, CALLS).map(call), data.calls.length > CALLS && h('div', {class: 'muted'}, `and ${plural(data.calls.length - CALLS, 'more line')}`));
    if (!source) { show(body, empty('This run has no kernel source: nothing was launched, or its lines are unknown.', h('p', {}, 'Timeline and Machine show what ran.'))); return; }
    const by = new Map(lines.map(line => [line.number, line]));
    const most = Math.max(...data.lines.map(line => line.path.ns), 1e-9), longest = Math.max(0, ...(source.text || '').split('\n').map(one => one.length));
    const wide = Math.max(64, Math.min(roomOf(body) - 7.25 * longest - 110, 480)); // the free width, for the bars
    body.style.setProperty('--share', `${(wide + 54) / 16}rem`);
    const cell = line => {
      if (!line) return null;
      if (column === 'path') return [h('span', {class: 'bar', css: {width: `${Math.max((line.path.ns / most) * wide, line.path.ns > 0 ? 2 : 0) / 16}rem`}}, line.path.ns > 0 && partsBar(line.path.parts, line.path.ns, {small: true, width: 0, title: `line ${line.number}`})),
        h('span', {class: 'num'}, line.path.ns > 0 ? pct(line.path.ns / data.total) : '0 %')];
      return h('span', {class: 'num wide'}, column === 'ops' ? count(line.ops) : column === 'nbytes' ? (line.nbytes ? bytes(line.nbytes) : '') : ns(line[column]));
    };
    const text = source.text === null ? lines.map(line => line.number) : source.text.split('\n').map((_, i) => i + 1);
    const texts = source.text === null ? null : source.text.split('\n');
    const chosenLine = state.sel?.startsWith('line:') ? lineAt(data, state.sel.slice(5)) : null, on = chosenLine?.file === source ? chosenLine.number : 0;
    const rows = text.map(number => {
      const line = by.get(number), choose = () => change({sel: `line:${source.name}:${number}`});
      return h('div', {class: `line${line ? ' has' : ''}${number === on ? ' on' : ''}`, 'data-line': number, role: line ? 'button' : null, tabindex: line ? 0 : null,
        onclick: line ? choose : null, onkeydown: line ? event => { if (event.key === 'Enter') choose(); } : null, 'aria-pressed': line ? String(number === on) : null,
        title: line ? `${count(line.ops)} ops, ${ns(line.busy_ns)} of engines, ${ns(line.stall_ns)} stalled, ${ns(line.path.ns)} of the critical path` : null},
      h('span', {class: 'no'}, String(number)), h('code', {}, texts ? coloured(texts[number - 1]) : `line ${number}`), line && h('span', {class: 'share'}, cell(line)));  // a line without ops has the whole width
    });
    const outside = data.outside.ns > 0 && column === 'path' && h('div', {class: 'line foot'}, h('span', {class: 'no'}), h('code', {}, 'outside kernels: launch, host, issue'), h('span', {class: 'share'}, h('span', {class: 'num'}, pct(data.outside.ns / data.total))));
    show(body, source.text === null && empty('The text of this file was not saved; its numbers are.'), h('div', {class: 'text'}, rows, outside));
    rove(body, '.line.has');
    const key = `${data.id}/${file}/${state.sel}`;
    if (key !== shownKey) {
      shownKey = key;
      const chosen = body.querySelector('.line.on') || [...body.querySelectorAll('.line.has')].sort((x, y) => by.get(Number(y.dataset.line)).path.ns - by.get(Number(x.dataset.line)).path.ns)[0];
      if (chosen) body.scrollTop = Math.max(0, chosen.offsetTop - body.clientHeight / 2);
    }
  }

  async function selected() {
    if (!data || !state.sel) { draw(); return; }
    let line = null;
    if (state.sel.startsWith('line:')) { const at = lineAt(data, state.sel.slice(5)); line = at && {file: at.file.i, number: at.number}; }
    else if (state.sel.startsWith('op:')) {
      const op = await getJson(`/runs/${run.a.id}/op/${state.sel.slice(3)}`).catch(() => null);
      line = op?.line ? data.lines[op.line.i] : null;
    }
    if (line && line.file !== file) file = line.file;
    draw();
    if (/^(node|link|kind|launch|class):/.test(state.sel)) await used(state.sel);
    if (line) {
      const row = body.querySelector(`[data-line="${line.number}"]`);
      if (row) { row.classList.add('on'); const at = row.offsetTop; if (at < body.scrollTop || at + 20 > body.scrollTop + body.clientHeight) body.scrollTop = Math.max(0, at - body.clientHeight / 2); }
    }
  }
  // Lines whose ops used a node or link.
  async function used(sel) {
    const [t0, t1] = spanOf();
    const found = await getJson(`/runs/${run.a.id}/totals?${query({scope: scopeOf().id, t0, t1, sel})}`).catch(() => null);
    if (state.sel !== sel || !found?.lines) return;
    for (const i of found.lines) if (data.lines[i].file === file) body.querySelector(`[data-line="${data.lines[i].number}"]`)?.classList.add('used');
  }
  subscribe(['loaded', 'scope', 'range'], () => load().then(selected).catch(fail));
  subscribe(['sel'], () => selected().catch(() => {}));
  new ResizeObserver(() => { if (body.clientHeight) { if (!body.scrollTop) shownKey = ''; draw(); } }).observe(body);
}

// A line of the program that launched a collective or a tensor operation.
function call({place, text, launches, ns: took}) {
  const choose = number => change({scope: `launch:${number}`, w: null, range: null});
  return h('div', {class: 'call'}, h('span', {class: 'num', title: 'its launches together'}, ns(took)), h('span', {class: 'where', title: place}, place.split('/').pop()), h('code', {title: text}, coloured(text)),
    h('span', {}, launches.slice(0, NUMBERS).map(number => [' ', h('button', {class: 'plain', 'aria-label': `launch ${number} alone`, onclick: () => choose(number)}, String(number))]), launches.length > NUMBERS && ` of ${count(launches.length)}`));
}

function coloured(text) {
  const parts = [];
  let at = 0;
  for (const match of text.matchAll(WORDS)) {
    parts.push(text.slice(at, match.index));
    const word = match[0], kind = word.startsWith('tl') ? 'fn' : /^["'#]/.test(word) ? 'str' : 'kw';
    parts.push(h('span', {class: `s-${kind}`}, word));
    at = match.index + word.length;
  }
  parts.push(text.slice(at) || (at ? '' : ' '));
  return parts;
}
