// Tiles of lanes: 1024 bins of 2^k ns. The server is asked once for what is missing on screen; what is no longer shown
// is not waited for.
import {getArrays, getJson, query} from './data.js';

export const BINS = 1024;
const MOST = 3000, LANES = 60;

export class Tiles {
  constructor(id, onArrival) {
    Object.assign(this, {id, onArrival, mark: '', scope: 'run', kept: new Map(), asked: new Map(), gone: null});
  }

  // Bin width in ns for a window: from half a pixel to one.
  static level(t0, t1, px) { return Math.max(-12, Math.min(30, Math.floor(Math.log2((t1 - t0) / Math.max(px, 1))))); }

  static numbers(k, t0, t1) {
    const wide = BINS * 2 ** k, found = [];
    for (let i = Math.max(0, Math.floor(t0 / wide)); i * wide < t1; i++) found.push(i);
    return found.slice(0, 4);
  }

  key(k, i, lane) { return `${k}/${i}/${lane}/${this.scope}/${this.mark}`; }
  get(k, i, lane) { return this.kept.get(this.key(k, i, lane)); }

  // Asks for what is not here; true when all is.
  want(k, numbers, lanes, isAhead = false) {
    const missing = lanes.filter(lane => numbers.some(i => !this.kept.has(this.key(k, i, lane))));
    if (!missing.length) return true;
    const fresh = missing.filter(lane => !numbers.every(i => this.kept.has(this.key(k, i, lane)) || this.asked.has(this.key(k, i, lane))));
    if (fresh.length) {
      if (!isAhead) { this.gone?.abort(); this.gone = new AbortController(); this.asked.clear(); }
      const ask = isAhead ? fresh : missing;
      for (let n = 0; n < ask.length; n += LANES) this.fetch(k, numbers, ask.slice(n, n + LANES), isAhead ? undefined : this.gone.signal);
    }
    return false;
  }

  async fetch(k, numbers, lanes, signal) {
    const {mark, scope} = this;
    lanes.forEach(lane => numbers.forEach(i => this.asked.set(this.key(k, i, lane), true)));
    try {
      const found = await getArrays(`/runs/${this.id}/tiles?${query({k, i: numbers.join(','), lanes: lanes.join(','), mark, scope})}`, signal);
      this.keep(found, `${scope}/${mark}`);
      this.onArrival();
    } catch (error) {
      if (error.name === 'AbortError') return;
      // A selection that the run does not have (an old link): the slices are shown without it; Details says why.
      if (!mark || error.status !== 400) throw error;
      if (mark === this.mark) this.mark = '';
      this.onArrival();
    }
    finally { lanes.forEach(lane => numbers.forEach(i => this.asked.delete(this.key(k, i, lane)))); }
  }

  keep({header, arrays}, mark) {
    const {k, tiles, lanes, counts, texts} = header;
    let slice = 0, bin = 0, n = 0;
    for (const lane of lanes) {
      for (const i of tiles) {
        const [slices, bins] = counts[n++];
        const cut = (name, at, size) => arrays[name].subarray(at, at + size);
        this.kept.set(`${k}/${i}/${lane}/${mark}`, {
          begin: i * BINS * 2 ** k, width: 2 ** k, texts,
          start: cut('start', slice, slices), dur: cut('dur', slice, slices), id: cut('id', slice, slices), kind: cut('kind', slice, slices),
          flags: cut('flags', slice, slices), queue: cut('queue', slice, slices), latency: cut('latency', slice, slices), text: cut('text', slice, slices), wait: cut('wait', slice, slices),
          index: cut('index', bin, bins), busy: cut('busy', bin, bins), bkind: cut('bkind', bin, bins), bflags: cut('bflags', bin, bins),
        });
        slice += slices;
        bin += bins;
      }
    }
    while (this.kept.size > MOST) this.kept.delete(this.kept.keys().next().value);
  }

  // The op at a place of a lane: {id, t0, t1} of a slice, or {bin} where slices are too short to be distinguished.
  at(k, lane, t) {
    const i = Math.floor(t / (BINS * 2 ** k)), tile = this.get(k, i, lane);
    if (!tile) return null;
    const from = t - tile.begin;
    for (let n = 0; n < tile.start.length; n++) {
      if (tile.start[n] <= from && from < tile.start[n] + tile.dur[n]) return {id: tile.id[n], kind: tile.kind[n], t0: tile.begin + tile.start[n], t1: tile.begin + tile.start[n] + tile.dur[n], text: tile.texts[tile.text[n]]};
    }
    const bin = Math.floor(from / tile.width), at = tile.index.indexOf(bin);
    return at < 0 ? null : {bin, kind: tile.bkind[at], busy: tile.busy[at] / 255, width: tile.width};
  }

  async opAt(lane, t) { return (await getJson(`/runs/${this.id}/at?${query({lane, t})}`)).id; }
}
