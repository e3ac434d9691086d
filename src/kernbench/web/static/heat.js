// Activity of a level over time: what colour a link, channel or block has, and which queues are longest.
import {getArrays, query} from './data.js';

export class Heat {
  constructor({header, arrays}) {
    Object.assign(this, {header, arrays});
    this.index = new Map(header.rows.map((row, i) => [row.id, i]));
    this.pe = new Map(header.pes.map((id, i) => [id, i]));
  }

  get end() { return this.header.t0 + this.header.bins * this.header.bin_ns; }

  bin(t) {
    return Math.max(0, Math.min(this.header.bins - 1, Math.floor((t - this.header.t0) / this.header.bin_ns)));
  }

  // First and last bin of what is asked for: the range if there is one, else the bin at t.
  bins(t, range) { return range ? [this.bin(range[0]), this.bin(range[1] - 1e-6)] : [this.bin(t), this.bin(t)]; }

  value(id, metric, [first, last]) {
    const row = this.index.get(id);
    if (row === undefined) return 0;
    const source = metric === 'bytes' ? 'util' : metric;
    const values = this.arrays[source], base = row * this.header.bins;
    let sum = 0;
    for (let i = first; i <= last; i++) sum += values[base + i];
    const mean = (sum / (last - first + 1) / 255) * this.header.scale[source];
    return metric === 'bytes' ? mean * this.header.rows[row].gbs * this.header.bin_ns : mean;
  }

  // Of a block that stands for many links: the use of its busiest one, as a mean of the bins.
  busiest(id, [first, last]) {
    const row = this.index.get(id);
    if (row === undefined || this.header.rows[row].kind !== 'block') return 0;
    const peaks = this.arrays.peak.subarray(row * this.header.bins + first, row * this.header.bins + last + 1);
    return peaks.reduce((sum, one) => sum + one, 0) / peaks.length / 255;
  }

  // The largest value of a metric, for scales that have no natural end.
  most(metric) {
    if (metric === 'queue') return this.header.scale.queue;
    if (!this.mostBytes) {
      this.mostBytes = Math.max(1, ...this.header.rows.map((row, n) => {
        let top = 0;
        for (let i = 0; i < this.header.bins; i++) top = Math.max(top, this.arrays.util[n * this.header.bins + i]);
        return (top / 255) * row.gbs * this.header.bin_ns;
      }));
    }
    return this.mostBytes;
  }

  // What a PE did: the kind that had most of the bins.
  doing(pe, [first, last]) {
    const row = this.pe.get(pe);
    if (row === undefined) return '';
    const times = new Map();
    for (let i = first; i <= last; i++) {
      const code = this.arrays.doing[row * this.header.bins + i];
      if (code) times.set(code, (times.get(code) || 0) + 1);
    }
    const best = [...times].sort((x, y) => y[1] - x[1])[0];
    return best ? this.header.kinds[best[0] - 1] : '';
  }

  // When most waits; where nothing waits, when most moves; null when nothing does.
  peak() {
    const {bins, bin_ns: width, t0, rows} = this.header, sums = {queue: new Float64Array(bins), util: new Float64Array(bins)};
    rows.forEach((row, n) => { if (row.kind !== 'block') for (const [metric, sum] of Object.entries(sums)) for (let i = 0; i < bins; i++) sum[i] += this.arrays[metric][n * bins + i]; });
    for (const sum of Object.values(sums)) {
      let best = 0;
      for (let i = 1; i < bins; i++) if (sum[i] > sum[best]) best = i;
      if (sum[best] > 0) return t0 + (best + 0.5) * width;
    }
    return null;
  }

  // Places sorted by queue, then by utilisation. Queues name the bottleneck, utilisation does not.
  longest(bins, limit) {
    return this.header.rows.filter(row => row.kind !== 'block' && row.kind !== 'channel')
      .map(row => ({id: row.id, util: this.value(row.id, 'util', bins), queue: this.value(row.id, 'queue', bins)}))
      .filter(row => row.util > 0 || row.queue > 0)
      .sort((x, y) => y.queue - x.queue || y.util - x.util).slice(0, limit);
  }
}

const kept = new Map();
export function loadHeat(id, root, scope) {
  const key = `/runs/${id}/heat?${query({root, t0: scope.t0, t1: scope.t1, bins: 512})}`;
  if (!kept.has(key)) {
    kept.set(key, getArrays(key).then(found => new Heat(found)));
    kept.get(key).catch(() => kept.delete(key));
    if (kept.size > 24) kept.delete(kept.keys().next().value);
  }
  return kept.get(key);
}

// idle, 1-20, 20-40, 40-60, 60-80, 80-100 %
export const step = share => (share <= 0 ? 0 : Math.min(5, 1 + Math.floor(share * 5 - 1e-9)));
// much less, less, same, more, much more
export const diffStep = delta => (delta <= -0.3 ? 0 : delta < -0.02 ? 1 : delta <= 0.02 ? 2 : delta < 0.3 ? 3 : 4);
