// Numbers with units: times with two decimals, as the command prints them, others with three significant digits; exact values for Details and copied text.
export function sig(x, digits = 3) {
  if (x === 0) return '0';
  const a = Math.abs(x);
  if (a >= 10 ** digits) return Math.round(x).toLocaleString('en-US');
  return x.toFixed(Math.max(0, digits - 1 - Math.floor(Math.log10(a) + 1e-9)));
}

export function ns(x) {
  if (x === null || x === undefined) return '';
  const a = Math.abs(x);
  if (a === 0) return '0 ns';
  if (a < 999.995) return `${a < 0.01 ? x.toExponential(1) : x.toFixed(2)} ns`;
  if (a < 999995) return `${(x / 1e3).toFixed(2)} µs`;
  if (a < 999.995e6) return `${(x / 1e6).toFixed(2)} ms`;
  return `${(x / 1e9).toFixed(2)} s`;
}

export const exactNs = x => `${Number(x.toFixed(6)).toLocaleString('en-US', {maximumFractionDigits: 6})} ns`;
// Nanoseconds to compare with others of a table.
export const plainNs = x => `${x.toLocaleString('en-US', {minimumFractionDigits: 2, maximumFractionDigits: 2})} ns`;
export const pct = (x, digits = 1) => `${(100 * x).toFixed(digits)} %`;
export const gbs = x => (x === null || x === undefined ? 'control only' : x >= 10000 ? `${sig(x / 1000)} TB/s` : `${sig(x, 4)} GB/s`);
export const count = n => n.toLocaleString('en-US');

export function bytes(n) {
  for (const [unit, size] of [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]]) {
    if (n >= size) return `${n % size ? sig(n / size) : n / size} ${unit}`;
  }
  return `${n} B`;
}

export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? '' : 's'}`;

// Places of an axis: steps of 1, 2 or 5 times a power of ten.
export function ticks(t0, t1, most) {
  const raw = (t1 - t0) / Math.max(most, 1);
  const ten = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(f => f * ten).find(x => x >= raw);
  const found = [];
  for (let n = Math.ceil(t0 / step); n * step <= t1; n++) found.push(n * step);
  return {step, found};
}

export function tickLabel(t, step) {
  const [unit, scale] = step >= 1e5 ? ['ms', 1e6] : step >= 100 && t >= 1000 ? ['µs', 1e3] : ['ns', 1];
  const digits = Math.max(0, -Math.floor(Math.log10(step / scale) + 1e-9));
  return t === 0 ? '0 ns' : `${(t / scale).toFixed(Math.min(digits, 6))} ${unit}`;
}
