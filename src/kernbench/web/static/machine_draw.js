// A level of the machine as SVG, in mm: boxes, a line for each direction of a link, arrows at mid link.
import {s} from './dom.js';
import {ns, gbs} from './units.js';

const SHORT = {noc_router: '', channel_router: '', ucie_conn: '', ucie: '', m_cpu: 'M', sram: 'SRAM'};

export function drawLevel(data) {
  const unit = Math.min(data.w, data.h) / 100, room = Math.max(data.w, data.h) / 100;
  const pad = 1.5 * unit;
  const svg = s('svg', {class: 'level', role: 'group', 'aria-label': data.title, preserveAspectRatio: 'xMidYMid meet'});
  const model = {data, svg, boxes: new Map(), links: new Map(), unit, home: [-pad, -pad, data.w + 2 * pad, data.h + 2 * pad]};
  const back = s('g'), lines = s('g', {class: 'links'}), front = s('g'), words = s('g', {class: 'words'}), top = s('g', {class: 'marks'});
  for (const node of data.nodes) {
    const [x, y, w, h] = node.box;
    const rect = s('rect', {x, y, width: w, height: h, rx: node.shape === 'box' ? Math.min(0.4 * unit, w / 8, h / 8) : 0, class: `box ${node.shape} k-${node.kind}`, 'stroke-width': 0.22 * unit, 'stroke-dasharray': node.shape === 'zone' ? `${1.2 * unit} ${unit}` : null});
    if (node.shape !== 'box') { back.append(rect); if (node.shape === 'zone') words.append(label(node, unit, room)); continue; }
    const cells = node.kind === 'hbm_ctrl' ? channelCells(node, unit) : null;
    // In a block that is drawn as one box: how far its busiest single link goes, of all of the box's width.
    const tick = ['sip', 'cube'].includes(node.kind) ? s('rect', {x: x + w * 0.06, y: y + h * 0.93, width: 0, height: h * 0.025, class: 'busiest'}) : null;
    const group = s('g', {class: 'node', 'data-id': node.id, tabindex: -1, role: 'button', 'aria-label': `${node.label} ${node.detail}`}, rect, cells && cells.group, tick);
    front.append(group);
    const text = label(node, unit, room, data.level === 'cube');
    words.append(text);
    model.boxes.set(node.id, {node, rect, group, text, tick, cells: cells && cells.cells, out: data.links.filter(link => link.src === node.id).map(link => link.id)});
  }
  for (const link of data.links) {
    const width = unit * (link.gbs === null ? 0.35 : Math.min(1.6, 0.5 + 0.22 * Math.log2(1 + link.gbs / 64)));
    const hasBack = data.links.some(other => other.src === link.dst && other.dst === link.src);
    const line = hasBack ? beside(link.line, width * 0.62) : link.line;
    const d = `M${line.map(p => p.map(v => v.toFixed(3)).join(' ')).join('L')}`;
    const path = s('path', {d, class: 'link', 'stroke-width': width * 0.55, 'stroke-dasharray': link.gbs === null ? `${unit} ${unit}` : null});
    const hit = s('path', {d, class: 'hit', 'stroke-width': Math.max(width * 1.1, 1.3 * unit), 'data-link': link.id});
    const arrow = arrowAt(line, Math.max(width * 1.7, 1.3 * unit));
    lines.append(path, arrow, hit);
    model.links.set(link.id, {link, path, arrow, line, width});
  }
  svg.append(back, lines, front, words, top);
  model.top = top;
  setBox(model, model.home);
  return model;
}

export function setBox(model, box) {
  model.box = box;
  model.svg.setAttribute('viewBox', box.map(v => v.toFixed(3)).join(' '));
}

// The same line a little to its right, so that there and back do not cover each other.
function beside(line, by) {
  const normals = [];
  for (let i = 0; i + 1 < line.length; i++) {
    const dx = line[i + 1][0] - line[i][0], dy = line[i + 1][1] - line[i][1], length = Math.hypot(dx, dy) || 1;
    normals.push([-dy / length, dx / length]);
  }
  return line.map(([x, y], i) => {
    const a = normals[Math.max(i - 1, 0)], b = normals[Math.min(i, normals.length - 1)];
    const sx = a[0] + b[0], sy = a[1] + b[1], along = 1 + a[0] * b[0] + a[1] * b[1];
    const f = along > 0.2 ? by / along : by / 2;
    return [x + sx * f, y + sy * f];
  });
}

function arrowAt(line, size) {
  let longest = 0, at = 0;
  for (let i = 0; i + 1 < line.length; i++) {
    const length = Math.hypot(line[i + 1][0] - line[i][0], line[i + 1][1] - line[i][1]);
    if (length > longest) { longest = length; at = i; }
  }
  const [a, b] = [line[at], line[at + 1]];
  const ux = (b[0] - a[0]) / (longest || 1), uy = (b[1] - a[1]) / (longest || 1);
  const x = (a[0] + b[0]) / 2, y = (a[1] + b[1]) / 2, half = Math.min(size, longest * 0.45);
  const points = [[x + ux * half, y + uy * half], [x - ux * half - uy * half * 0.8, y - uy * half + ux * half * 0.8], [x - ux * half + uy * half * 0.8, y - uy * half - ux * half * 0.8]];
  return s('polygon', {class: 'arrow', points: points.map(p => p.map(v => v.toFixed(3)).join(',')).join(' '), visibility: 'hidden'});
}

function channelCells(node, unit) {
  const [x, y, w, h] = node.box;
  const n = Number(node.attrs.num_pcs || 0);
  if (!n || n > 64) return null;
  const gap = 0.1 * unit, cell = (w - gap) / n;
  const cells = Array.from({length: n}, (_, i) => s('rect', {x: x + gap + i * cell, y: y + h * 0.72, width: cell - gap, height: h * 0.24, class: 'channel'}));
  return {cells, group: s('g', {class: 'channels'}, cells)};
}

const LONG_DETAIL = 28; // characters; longer ones have a line for each part, where the box is high enough

// `room` is a hundredth of the drawing's longer side, which has the pane's width or height: text is not larger than 4.2 of it.
function label(node, unit, room, short) {
  const [x, y, w, h] = node.box;
  // Blocks of a PE are called pe_dma, pe_fetch_store: without what all of them begin with, and in two lines where there are two words.
  const [words, below = ''] = short && node.kind in SHORT ? [SHORT[node.kind]] : short && node.kind === 'hbm_ctrl' ? [node.label.replace('HBM', 'H')] : /^pe_/.test(node.label) ? node.label.slice(3).split('_') : [node.label];
  const detail = below || (!short && node.detail && (node.shape === 'zone' || h > 5 * unit) ? node.detail : '');
  const isTall = h > 2 * w && !short;
  const along = isTall ? h : w, across = isTall ? w : h;
  const size = Math.min(across * (detail ? 0.3 : node.kind === 'pe' && short ? 0.42 : 0.5), along / (Math.max(words.length, below.length, 2) * 0.66), 4.2 * room);
  const cx = x + w / 2, cy = y + h / 2;
  const group = s('g', {class: 'label', transform: isTall ? `rotate(-90 ${cx} ${cy})` : null});
  const isHbm = node.kind === 'hbm_ctrl' && short;
  const main = s('text', {x: cx, y: cy + (detail ? -0.1 * size : isHbm ? 0.1 * size : 0.35 * size), 'font-size': size.toFixed(3), text: words});
  group.append(main);
  const lines = detail.length > LONG_DETAIL && 2 * across > along ? detail.split(', ') : [detail];
  const small = below ? size : Math.min(size * 0.72, along / (Math.max(...lines.map(line => line.length), 4) * 0.58));
  lines.filter(Boolean).forEach((text, i) => group.append(s('text', {x: cx, y: cy + size * 0.95 + 1.2 * i * small, 'font-size': small.toFixed(3), class: below ? '' : 'detail', text})));
  if (node.kind === 'pe' && short) { main.setAttribute('y', cy - 0.08 * size); group.append(s('text', {class: 'doing', x: cx, y: cy + size * 0.85, 'font-size': (size * 0.85).toFixed(3)})); }
  return group;
}

export function aboutNode(node) {
  const attrs = Object.entries(node.attrs).map(([name, value]) => `${name} ${value}`).slice(0, 8);
  return [node.id, node.detail, ...attrs].filter(Boolean).join('\n');
}

export function aboutLink(link) {
  const many = link.count > 1 ? `\n${link.count} links together` : '';
  return `${link.src} → ${link.dst}\n${gbs(link.gbs)}, ${link.mm.toFixed(2)} mm, ${ns(link.ns)}${many}`;
}
