// What the scores of a job are worth: its user gives the true labels of its items, and the page judges the scores by them.
// Nothing is sent: the labels stay in this tab.

import { html, nothing } from "./lit-html.js";
import { count, percent, plural, tile, visible } from "./format.js";
import { reliabilityDiagram } from "./diagram.js";
import { judge, readTruth, Unusable, wilson } from "./judging.js";

const MOST_BYTES = 20 * 2 ** 20; // of a file with a label on each line

/** map: the heat map of the job, which has its rows and the texts of its labels. */
export function worth({ redraw }, map) {
  let text = "";
  let fileError = null;
  let threshold = 0.9;
  let known = {}; // what was found, and for what: a redraw computes nothing again

  /** Judge the rows that are loaded, once for each change of the labels or the rows. */
  function judged(total) {
    if (known.text === text && known.size === map.size && known.total === total) return known;
    known = { text, size: map.size, total };
    try {
      const truth = readTruth(text, map.labels, total);
      known.labelled = truth.filter((place) => place !== null).length;
      Object.assign(known, judge(map.rows, truth));
    } catch (news) {
      if (!(news instanceof Unusable)) throw news;
      known.error = news.message;
    }
    return known;
  }

  const write = ({ target }) => {
    text = target.value;
    fileError = null;
    redraw();
  };
  async function read({ target }) {
    const [file] = target.files;
    if (!file) return;
    fileError = file.size > MOST_BYTES ? `The file is larger than ${MOST_BYTES / 2 ** 20} MiB.` : null;
    if (!fileError) text = await file.text().catch(() => ((fileError = "The file can't be read."), ""));
    redraw();
  }
  // A file that was mended is chosen again under the same name, which is news only if none was chosen before.
  const forget = ({ target }) => (target.value = "");
  const move = ({ target }) => {
    threshold = Number(target.value);
    redraw();
  };

  /** total: how many items the job has, also those that are not loaded. */
  const draw = (total) =>
    map.labels
      ? html`<details class="worth"><summary>What are the scores worth?</summary>
          <p class="dim">If you know the true labels of items, this says how far their scores can be believed. Everything is computed in this tab, and nothing is sent.
            Choose the items as they come: the figures are about items like these.</p>
          <div class="pair">
            <p><label for="truth">True labels, one on each line, in the order of the items; an empty line is an item without one</label>
            <textarea id="truth" rows="5" spellcheck="false" .value=${text} @input=${write}></textarea></p>
            <p><label for="truth-file">or a file with them: text, or CSV with one column and no heading</label>
            <input id="truth-file" type="file" accept=".txt,.csv,text/plain,text/csv" @click=${forget} @change=${read}></p>
          </div>
          ${text.trim() || fileError ? found(judged(total)) : nothing}
        </details>`
      : nothing;

  function found({ error, labelled, rows, right, bins, above }) {
    const problem = fileError ?? error;
    return html`
      <div role="alert">${problem ? html`<p class="notice bad">${problem}</p>` : nothing}</div>
      ${!problem && labelled > rows ? html`<p class="notice warn">The scores of ${plural(labelled - rows, "labelled item")} are not here: wait until they are scored, or load more of them.</p>` : nothing}
      ${problem || !rows ? nothing : figures(rows, right, bins, above(threshold))}`;
  }

  function figures(rows, right, bins, { acted, wrong }) {
    const what = map.labels.length === 2 ? html`the probability of <code>${visible(map.labels[0])}</code>` : "the probability of the answer";
    return html`
      <div class="tiles" role="status">${tile("Accuracy", percent(right / rows), html`${count(right)} of ${plural(rows, "item")} with a true label, ${between(right, rows)}`)}</div>
      <h2>Reliability</h2>
      <p>If ${what} can be believed, every point lies on the line: eight in ten of the rows with 0.8 come true.</p>
      ${reliabilityDiagram("Reliability of these scores", bins)}
      <h2>When to act</h2>
      <p class="row"><label for="threshold">Act if the most probable label has at least</label>
        <input id="threshold" type="range" min="0" max="1" step="0.001" .value=${String(threshold)} @input=${move}>
        <output for="threshold" class="number">${threshold.toFixed(3)}</output></p>
      <div class="tiles" role="status">
        ${tile("Acted on", percent(acted / rows), `${count(acted)} of ${plural(rows, "item")}`)}
        ${tile("Wrong of these", acted ? percent(wrong / acted) : "–", acted ? html`${count(wrong)} of ${plural(acted, "item")}, ${between(wrong, acted)}` : "no item is acted on")}
      </div>
      <p class="dim">The intervals are Wilson's (1927), for independent items and one threshold that was fixed before. Who looks for a good threshold here finds one that
        is lucky on these items. For a promise about other rows, use the command <code>scoreline threshold</code>: docs/judgement.md says how.</p>`;
  }

  const between = (part, rows) => {
    const [least, most] = wilson(part, rows);
    return html`<span class="interval">95 % interval ${percent(least)} to ${percent(most)}</span>`;
  };
  return { draw };
}
