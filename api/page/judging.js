// What scores are worth by true labels: figures alone, without anything that is shown. The rules are those of
// `scoreline evaluate` (judgement/metrics.py), so that both say the same of the same rows.

const BINS = 15;
const ROWS_OF_A_BIN = 10; // there are fewer bins if they would have fewer rows than this
const SHOWN = 5; // labels that a message names

/** What was pasted can't be judged. The message says why. */
export class Unusable extends Error {}

/** A cell of a CSV file may stand in quotes, with each quote in it twice. */
const bare = (line) => (/^\s*".*"\s*$/.test(line) ? line.trim().slice(1, -1).replaceAll('""', '"') : line);

/**
 * Return the place of the true label of each item, null where it has none, from a text with a line for each item.
 * Throws Unusable, which names the first line that is no label.
 */
export function readTruth(text, labels, items) {
  const exact = places(labels);
  const lines = text.split(/\r?\n/);
  const isEmpty = (line) => !line.trim() && !exact.has(line);
  while (lines.length && isEmpty(lines.at(-1))) lines.pop(); // empty ones at the end belong to no item
  if (lines.length > items) throw new Unusable(`There are ${lines.length} lines, and the job has ${items} items.`);
  const trimmed = places(labels.map((label) => label.trim()));
  return lines.map((line, n) => {
    if (isEmpty(line)) return null;
    const found = [line, bare(line)].map((one) => exact.get(one) ?? trimmed.get(one.trim())).find((one) => one) ?? [];
    if (found.length === 1) return found[0];
    const told = JSON.stringify(line.slice(0, 80));
    if (found.length) throw new Unusable(`Line ${n + 1}, ${told}, may be ${found.length} labels that differ in blanks alone. Write it as the label is.`);
    const known = labels.slice(0, SHOWN).map((label) => JSON.stringify(label)).join(", ");
    throw new Unusable(`Line ${n + 1}, ${told}, is none of the labels ${known}${labels.length > SHOWN ? ", …" : ""}. A heading is not an item: remove it.`);
  });
}

function places(labels) {
  const found = new Map();
  labels.forEach((label, n) => found.set(label, [...(found.get(label) ?? []), n]));
  return found;
}

/**
 * Judge rows of {index, scores} by the place of each item's true label, by what a calibration makes of the scores if they
 * have that. Scores are divided by their sum, because those
 * of an item need not add up to 1. Throws Unusable for scores that are no shares.
 */
export function judge(rows, truth) {
  const judged = rows.filter((row) => truth[row.index] != null);
  const confidence = new Float64Array(judged.length);
  const isRight = new Uint8Array(judged.length);
  const predicted = new Float64Array(judged.length);
  const happened = new Uint8Array(judged.length);
  judged.forEach(({ index, scores: raw, calibrated }, n) => {
    const scores = calibrated ?? raw;
    const sum = scores.reduce((total, one) => total + one, 0);
    if (scores.some((one) => one === null || one < 0) || !(sum > 0)) {
      throw new Unusable(`The scores of item ${index} are no probabilities: they must be numbers from 0 on, and one of them above 0.`);
    }
    const answer = scores.indexOf(Math.max(...scores)); // of equal ones, the first
    confidence[n] = scores[answer] / sum;
    isRight[n] = answer === truth[index];
    const isPair = scores.length === 2;
    predicted[n] = isPair ? scores[0] / sum : confidence[n];
    happened[n] = isPair ? truth[index] === 0 : isRight[n];
  });
  return { rows: judged.length, right: isRight.reduce((sum, one) => sum + one, 0), bins: reliability(predicted, happened), above: countAbove(confidence, isRight) };
}

/**
 * Return bins with equally many rows: what was predicted, what was observed, and the number of rows. Rows with equal
 * predictions are in the same bin. Source: Nguyen and O'Connor, 2015 (adaptive bins).
 */
function reliability(predicted, happened) {
  const rising = predicted.slice().sort();
  const wanted = Math.max(1, Math.min(BINS, Math.floor(predicted.length / ROWS_OF_A_BIN)));
  const edges = Array.from({ length: wanted - 1 }, (_, n) => quantile(rising, (n + 1) / wanted));
  const bins = Array.from({ length: wanted }, () => ({ predicted: 0, observed: 0, rows: 0 }));
  predicted.forEach((one, n) => {
    const bin = bins[edges.filter((edge) => edge <= one).length];
    bin.predicted += one;
    bin.observed += happened[n];
    bin.rows += 1;
  });
  return bins.filter(({ rows }) => rows).map((bin) => ({ predicted: bin.predicted / bin.rows, observed: bin.observed / bin.rows, rows: bin.rows }));
}

/** The quantile of numbers in rising order, between two of them as NumPy has it. */
function quantile(rising, share) {
  const place = (rising.length - 1) * share;
  const [low, high] = [rising[Math.floor(place)], rising[Math.ceil(place)]];
  const rest = place - Math.floor(place);
  return rest < 0.5 ? low + (high - low) * rest : high - (high - low) * (1 - rest);
}

/** Return a function that counts, for a threshold, the rows with at least this confidence and the wrong ones of them. */
function countAbove(confidence, isRight) {
  const order = Array.from(confidence.keys()).sort((a, b) => confidence[b] - confidence[a]);
  const falling = order.map((n) => confidence[n]);
  const wrong = new Uint32Array(order.length + 1); // of the surest rows, by how many these are
  order.forEach((n, place) => (wrong[place + 1] = wrong[place] + 1 - isRight[n]));
  return (threshold) => {
    let [acted, end] = [0, falling.length];
    while (acted < end) {
      const middle = (acted + end) >> 1;
      if (falling[middle] >= threshold) acted = middle + 1;
      else end = middle;
    }
    return { acted, wrong: wrong[acted] };
  };
}

/** An interval of 95 % for a share of independent rows. Source: Wilson, 1927 (score interval). */
export function wilson(count, rows) {
  const z = 1.959963984540054; // the 97.5th percentile of the normal distribution
  const share = count / rows;
  const scale = 1 + z ** 2 / rows;
  const middle = (share + z ** 2 / (2 * rows)) / scale;
  const half = (z / scale) * Math.sqrt((share * (1 - share)) / rows + z ** 2 / (4 * rows ** 2));
  return [Math.max(0, middle - half), Math.min(1, middle + half)];
}
