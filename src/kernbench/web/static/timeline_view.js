// What the timeline shows of a run: its state, its measures, and the window in time.
import {launchesOf, run, scopeOf, windowOf} from './run.js';
import {state} from './state.js';
import {roomOf, textScale} from './dom.js';

export const AXIS_H = 18;
export const PATH_H = 22;
export const LAUNCH_H = 14;
const MOST_LAUNCH_ROWS = 4;
export const tl = {groups: [], rows: [], height: 0, scroll: 0, tiles: null, path: null, flows: null, launchRow: [], launchRows: 1, nameRoom: 0, frame: 0, last: null, drawn: {items: 0, ms: 0, missing: false}};

export function clampWindow(t0, t1) {
  const scope = scopeOf(), all = scope.t1 - scope.t0;
  const wide = Math.max(Math.min(t1 - t0, all), Math.min(all, 2 ** -4));
  const from = Math.max(scope.t0, Math.min((t0 + t1) / 2 - wide / 2, scope.t1 - wide));
  return [from, from + wide];
}

// A narrow page has no room for "100 % busy" beside the names.
const BUSY = 70;
export const labelWidth = () => (roomOf(tl.canvas) < 600 ? 84 + (tl.groups.some(group => group.name.length > 8) ? 26 : 0) : Math.min(Math.max(124, Math.ceil(tl.nameRoom + BUSY)), Math.floor(roomOf(tl.canvas) / 2)));

// How far the longest name of a row goes.
export function measureNames(pen) {
  const rows = tl.groups.flatMap(group => [[group.name, 0], ...(group.children || []).map(child => [child.name, 1])]);
  tl.nameRoom = rows.reduce((most, [name, deep]) => Math.max(most, indentOf(deep) + pen.measureText(`▸ ${name}`).width), 0);
}
export const indentOf = deep => 6 + 8 * (deep || 0);
export const launchesHeight = () => (hasLaunches() ? LAUNCH_H * tl.launchRows : 0);
export const headHeight = () => AXIS_H + launchesHeight() + (state.path && tl.path ? PATH_H + 4 : 2);
export const hasLaunches = () => run.a && launchesOf(run.a).length > 0;

// Launches that overlap, as those of several ranks do, have rows of their own, four at most.
export function stackLaunches() {
  const until = [];
  tl.launchRow = launchesOf(run.a).map(({t0, t1}) => {
    const free = until.findIndex(end => end <= t0), row = free >= 0 ? free : Math.min(until.length, MOST_LAUNCH_ROWS - 1);
    until[row] = Math.max(until[row] ?? 0, t1);
    return row;
  });
  tl.launchRows = Math.max(1, until.length);
}

export function viewNow() {
  const [t0, t1] = windowOf();
  const w = roomOf(tl.canvas), hgt = tl.canvas.clientHeight / textScale;
  return {t0, t1, left: labelWidth(), right: w, top: headHeight(), bottom: hgt, scroll: tl.scroll, height: hgt, scale: devicePixelRatio * textScale};
}
