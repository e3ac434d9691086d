// Which folder of results is shown: the one in the URL, or the first.
import {run} from './run.js';
import {change, state, subscribe} from './state.js';

export {change, state, subscribe};
export const run_of = () => (run.results.find(entry => entry.id === state.results) || run.results[0])?.id;
