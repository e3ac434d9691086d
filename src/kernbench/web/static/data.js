// Requests to the server. Responses of a run never change, so each is requested once. Shows a thin bar while waiting, and a
// banner with retries when the server has gone.
import {$} from './dom.js';

const kept = new Map();
let waiting = 0, barTimer = 0;
export const counts = {requests: 0, bytes: 0};
export const isBusy = () => waiting > 0;

export class Refused extends Error {
  constructor(body, status) {
    super(body.what || `the server answered ${status}`);
    Object.assign(this, {where: body.where, hint: body.hint, status});
  }
}

function busy(step) {
  waiting += step;
  clearTimeout(barTimer);
  if (waiting > 0) barTimer = setTimeout(() => { $('bar').hidden = waiting <= 0; }, 150);
  else $('bar').hidden = true;
}

async function ask(path, signal, more = {}) {
  busy(1);
  counts.requests += 1;
  try {
    const answer = await fetch(`api${path}`, {signal, ...more});
    gone(false);
    if (!answer.ok) throw new Refused(await answer.json().catch(() => ({})), answer.status);
    return answer;
  } catch (error) {
    if (error instanceof TypeError) gone(true);
    throw error;
  } finally { busy(-1); }
}

let retry = 0;
function gone(is) {
  const banner = $('banner');
  if (!is) { if (retry) { banner.hidden = true; clearInterval(retry); retry = 0; } return; }
  banner.textContent = 'The server does not answer. Start `kernbench web` again; what is shown stays usable. Trying again every 2 s.';
  banner.hidden = false;
  if (!retry) retry = setInterval(() => fetch('api/runs').then(() => { gone(false); kept.clear(); location.reload(); }, () => {}), 2000);
}

export function getJson(path, {fresh = false} = {}) {
  if (fresh || !kept.has(path)) {
    const found = ask(path).then(answer => answer.json());
    kept.set(path, found);
    found.catch(() => kept.delete(path));
    if (kept.size > 400) kept.delete(kept.keys().next().value);
  }
  return kept.get(path);
}

// Starts something on the server; pages of other sites cannot set this header.
export const start = path => ask(path, undefined, {method: 'POST', headers: {'X-KernBench-Start': '1'}}).then(answer => answer.json());

export async function getArrays(path, signal) {
  const buffer = await (await ask(path, signal)).arrayBuffer();
  counts.bytes += buffer.byteLength;
  return unpack(buffer);
}

const KINDS = {u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array, f8: Float64Array, i4: Int32Array};

export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const base = 4 + length, arrays = {};
  for (const [name, {dtype, shape, offset}] of Object.entries(header.fields)) {
    arrays[name] = new KINDS[dtype](buffer, base + offset, shape.reduce((x, y) => x * y, 1));
  }
  return {header, arrays};
}

export const query = values => Object.entries(values).filter(([, v]) => v !== null && v !== undefined && v !== '')
  .map(([k, v]) => `${k}=${encodeURIComponent(v)}`).join('&');
