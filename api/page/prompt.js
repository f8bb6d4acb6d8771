// Try a prompt: its tokens, whether each label is one token, and how much of the probability the labels have.

import { html, nothing } from "./lit-html.js";
import { count, failure, plural, score, visible, warnings } from "./format.js";
import { call } from "./interface.js";

const MOST = 20; // items of a try; more are a job
const DOUBT = 0.1; // a label mass below this probably means that the prompt is wrong

const kept = {
  query: "The capital of France is",
  items: "\n a city called",
  labels: " Paris\n London",
  query_template: "",
  item_template: "",
  softmax: false,
};

export function prompt({ redraw, signal }) {
  let tried = null; // {items, labels, answer, tokens}
  let error = null;
  let isBusy = false;

  const tokenize = (text, special) => call("/v1/tokenize", { method: "POST", body: { text, add_special_tokens: special }, signal });

  async function run(event) {
    event.preventDefault();
    // One empty line among others is an item of its own: the query alone is scored.
    const items = kept.items.split("\n").slice(0, MOST);
    const labels = kept.labels.split("\n").filter((line) => line);
    const fill = (template, name, text) => (template ? template.split(name).join(text) : text);
    const query = fill(kept.query_template, "{query}", kept.query);
    isBusy = true;
    error = null;
    redraw();
    try {
      const [prefix, sequences, pieces] = await Promise.all([
        query ? tokenize(query, true) : { tokens: [] },
        Promise.all(items.map((item) => tokenize(query + fill(kept.item_template, "{item}", item), true))),
        Promise.all(labels.map((label) => tokenize(label, false))),
      ]);
      const shared = sequences.map(({ tokens }) => {
        const end = tokens.findIndex((token, n) => token !== prefix.tokens[n]);
        return end < 0 ? Math.min(tokens.length, prefix.tokens.length) : end;
      });
      tried = { items, labels, pieces, sequences, shared, answer: null };
      redraw();
      const body = { query: kept.query, items, labels, apply_softmax: kept.softmax, return_logprobs: true };
      for (const name of ["query_template", "item_template"]) if (kept[name]) body[name] = kept[name];
      tried.answer = await call("/v1/score", { method: "POST", body, signal });
    } catch (news) {
      if (news.name === "AbortError") return;
      error = news;
    }
    isBusy = false;
    redraw();
  }

  const keep = ({ target }) => (kept[target.name] = target.type === "checkbox" ? target.checked : target.value);
  const draw = () => html`
    <h1 tabindex="-1">Try a prompt</h1>
    <p class="dim">Which tokens a query and its items become, and how probable each label is as the next one. A space is part of a text: labels often begin with one.</p>
    <form @submit=${run} @input=${keep}>
      <label for="query">Query</label>
      <textarea id="query" name="query" rows="3" spellcheck="false" .value=${kept.query}></textarea>
      <div class="pair">
        <p><label for="items">Items, one on each line; an empty line is the query alone</label>
        <textarea id="items" name="items" rows="4" spellcheck="false" .value=${kept.items}></textarea></p>
        <p><label for="labels">Labels, one on each line; each must be one token</label>
        <textarea id="labels" name="labels" rows="4" spellcheck="false" required .value=${kept.labels}></textarea></p>
      </div>
      <details><summary>Templates and options</summary>
        <label for="query_template">Query template, with <code>{query}</code></label>
        <textarea id="query_template" name="query_template" rows="2" spellcheck="false" .value=${kept.query_template}></textarea>
        <label for="item_template">Item template, with <code>{item}</code></label>
        <textarea id="item_template" name="item_template" rows="2" spellcheck="false" .value=${kept.item_template}></textarea>
        <p><input type="checkbox" id="softmax" name="softmax" .checked=${kept.softmax}> <label for="softmax">Scores of an item add up to 1 (<code>apply_softmax</code>)</label></p>
      </details>
      <p class="row"><button type="submit" class="main" ?disabled=${isBusy}>${isBusy ? "Scoring …" : "Score"}</button></p>
    </form>
    ${failure(error)}
    ${tried ? html`<section aria-live="polite" aria-label="Result">${labelList()}${tried.answer ? scores() : nothing}${tokens()}</section>` : nothing}`;

  function labelList() {
    const wrong = tried.pieces.filter(({ count: number }) => number !== 1).length;
    return html`<h2>Labels</h2>
      <ul class="labels">${tried.pieces.map((found, n) => html`<li>
        <code>${visible(tried.labels[n])}</code>
        ${found.count === 1 ? html`is token <span class="number">${found.tokens[0]}</span>` : html`<strong class="wrong">is ${plural(found.count, "token")}</strong> ${chips(found, 0)}`}</li>`)}</ul>
      ${wrong ? html`<p class="notice warn">A label must be one token. Try it with a space in front, or without.</p>` : nothing}`;
  }

  function scores() {
    const { answer, items, labels } = tried;
    return html`<h2>Scores</h2>
      ${warnings(answer.warnings)}
      <div class="wide" tabindex="0" role="region" aria-label="Scores">
        <table class="scores">
          <thead><tr><th scope="col">Item</th>${labels.map((label) => html`<th scope="col" class="number">${visible(label)}</th>`)}<th scope="col">Label mass</th></tr></thead>
          <tbody>${items.map((item, n) => html`<tr><th scope="row"><span class="text">${visible(item)}</span></th>
            ${answer.scores[n].map((one) => html`<td class="heat h${Math.round(Math.min(1, one) * 10)}">${score(one)}</td>`)}
            <td>${mass(answer.label_mass?.[n])}</td></tr>`)}</tbody>
        </table>
      </div>`;
  }

  const mass = (share) =>
    share === undefined
      ? "–"
      : html`<span class="progress"><meter min="0" max="1" low=${DOUBT} optimum="1" .value=${share} aria-label="label mass"></meter><span class="number">${score(share)}</span></span>
          ${share < DOUBT ? html`<strong class="wrong">tiny: the prompt is probably wrong</strong>` : nothing}`;

  function tokens() {
    return html`<h2>Tokens</h2>
      <p class="dim"><span class="chip shared">shared</span> tokens are those of the query, which are computed once; the others are the item's own.</p>
      <ol class="sequences">${tried.sequences.map((found, n) => html`<li>
        <p class="dim">${plural(found.count, "token")}, ${count(tried.shared[n])} of them shared</p>${chips(found, tried.shared[n])}</li>`)}</ol>`;
  }

  const chips = (found, shared) =>
    html`<span class="chips">${found.pieces.map((piece, n) => html`<span class="chip ${n < shared ? "shared" : ""}" title="token ${found.tokens[n]}">${visible(piece)}</span>`)}</span>`;

  return { title: "Try a prompt", draw };
}
