// Filters such as `total_ns < 5000 and m >= 64`: comparisons joined by `and`; nothing is evaluated as code.
const TERM = /^\s*([\w.:/-]+)\s*(<=|>=|==|=|!=|<|>|~)\s*("[^"]*"|'[^']*'|\S+)\s*$/;

export function filterOf(text, columns) {
  const terms = text.split(/\band\b|&&/).filter(part => part.trim()).map(part => {
    const match = TERM.exec(part);
    if (!match) throw new Error(`“${part.trim()}” is no comparison: write name < number`);
    const name = columns.find(c => c === match[1]) || columns.find(c => c.replace(/^(params|machine|returned)[.:]/, '') === match[1]);
    if (!name) throw new Error(`no column “${match[1]}”`);
    const raw = match[3].replace(/^["']|["']$/g, ''), number = Number(raw);
    return {name, op: match[2], value: raw !== '' && Number.isFinite(number) ? number : raw === 'true' ? true : raw === 'false' ? false : raw};
  });
  return row => terms.every(({name, op, value}) => {
    const own = row[name];
    if (op === '~') return String(own).toLowerCase().includes(String(value).toLowerCase());
    if (op === '=' || op === '==') return own === value || String(own) === String(value);
    if (op === '!=') return String(own) !== String(value);
    if (own === null || own === undefined || typeof own !== typeof value) return false;
    return {'<': own < value, '<=': own <= value, '>': own > value, '>=': own >= value}[op];
  });
}
