// Which rows the timeline has: PEs with their engines, cubes where there are many PEs, the host last.
const ORDER = ['R', 'G', 'M', 'F', 'C', 'W', 'S', 'H'];
const PORTS = {R: 'DMA read', W: 'DMA write', G: 'GEMM', M: 'MATH', F: 'fetch, store', C: 'comm.', S: 'spans', H: 'host'};
const PORT_NAMES = {recv: 'receive'};
export const LANE_H = 20;
export const SPAN_H = 8;
const STRIP_H = 28;
const MANY = 16;

// Groups of lanes: {id, name, lanes, kind: pe | cube | other, children}
export function groupsOf(lanes) {
  const pes = new Map(), others = new Map();
  for (const lane of lanes) {
    if (!lane.ops) continue;
    if (lane.pe >= 0) push(pes, `sip${lane.sip}.cube${lane.cube}.pe${lane.pe}`, lane);
    else push(others, lane.component, lane);
  }
  const sips = new Set(), cubes = new Map();
  for (const [id, own] of pes) {
    const {sip, cube, pe} = own[0];
    sips.add(sip);
    push(cubes, `sip${sip}.cube${cube}`, {id, pe, sip, cube, lanes: own.sort(byPort)});
  }
  const oneSip = sips.size === 1, oneCube = cubes.size === 1, isMany = pes.size > MANY;
  const found = [];
  for (const [id, members] of cubes) {
    const {sip, cube} = members[0], where = oneSip ? `C${cube}` : `S${sip} C${cube}`;
    members.sort((x, y) => x.pe - y.pe);
    const children = members.map(member => ({
      id: member.id, kind: 'pe', lanes: member.lanes, name: oneCube ? `PE${member.pe}` : `${where} PE${member.pe}`
    }));
    if (isMany) found.push({id, kind: 'cube', name: oneSip ? `cube ${cube}` : `SIP ${sip} cube ${cube}`, children, lanes: children.flatMap(c => c.lanes)});
    else found.push(...children);
  }
  for (const [id, own] of others) found.push({id, kind: 'other', name: id.replace(/^sip(\d+)\.io(\d+)\..*/, oneSip ? 'host io$2' : 'host S$1'), lanes: own.sort(byPort)});
  return found;
}

const push = (map, key, value) => { if (!map.has(key)) map.set(key, []); map.get(key).push(value); };
const byPort = (x, y) => ORDER.indexOf(x.kind) - ORDER.indexOf(y.kind) || x.i - y.i;
export const portName = lane => (['F', 'H', 'C'].includes(lane.kind) ? PORT_NAMES[lane.port] || lane.port : PORTS[lane.kind]) + (lane.slot ? ` #${lane.slot}` : '');

// Rows from top to bottom with their place: {type: group | strips | head | lane | spans, y, h, ...}.
export function rowsOf(groups, open) {
  const rows = [];
  let y = 0;
  const put = (type, h, more) => { rows.push({type, y, h, ...more}); y += h; };
  const block = (group, deep) => {
    const isOpen = open.has(group.id);
    if (group.kind === 'cube') {
      put('group', STRIP_H, {group, isOpen, deep});
      if (isOpen) group.children.forEach(child => block(child, deep + 1));
    } else if (isOpen) {
      const spans = group.lanes.filter(lane => lane.kind === 'S');
      const lanes = group.lanes.filter(lane => lane.kind !== 'S');
      let first = true;
      for (const lane of spans) put('spans', SPAN_H + 2, {group, lane, deep});
      for (const lane of lanes) { put('lane', LANE_H, {group, lane, deep, isOpen, first}); first = false; }
      put('gap', 3, {group});
    } else put('strips', STRIP_H, {group, isOpen, deep, lanes: group.lanes.filter(lane => lane.kind !== 'S')});
  };
  groups.forEach(group => block(group, 0));
  return {rows, height: y};
}

// Until something is chosen: the PE that is on the path longest is open, or the first.
export function openByDefault(groups, pathLane, lanes) {
  const lane = lanes[pathLane];
  const id = lane && lane.pe >= 0 ? `sip${lane.sip}.cube${lane.cube}.pe${lane.pe}` : null;
  const all = groups.flatMap(group => (group.kind === 'cube' ? group.children : [group])).filter(group => group.kind === 'pe');
  const found = all.find(group => group.id === id) || (groups.some(group => group.kind === 'cube') ? null : all[0]);
  if (!found) return all.length || !groups.length ? [] : [groups[0].id];
  const parent = groups.find(group => group.kind === 'cube' && group.children.includes(found));
  return parent ? [parent.id, found.id] : [found.id];
}
