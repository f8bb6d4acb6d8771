// Rank documents for a query.

import { html, nothing } from "./lit-html.js";
import { bar, count, failure, plural, score, warnings } from "./format.js";
import { call, sender } from "./interface.js";

// What is in the form, also while other views are shown. It begins with an example.
const kept = {
  query: "how do I care for indoor plants?",
  documents: "The train to the coast leaves at nine.\nWater the fern once a week and keep it out of the sun.",
  instruction: "",
};

export function ranking({ redraw, signal }) {
  let answer = null;
  let asked = null; // the documents of the answer

  const form = sender({ redraw }, async () => {
    const documents = kept.documents.split("\n").filter((line) => line.trim());
    const body = { query: kept.query, documents, return_documents: false };
    if (kept.instruction.trim()) body.instruction = kept.instruction;
    answer = await call("/v1/rerank", { method: "POST", body, signal });
    asked = documents;
  });

  const keep = (event) => (kept[event.target.name] = event.target.value);
  const draw = () => html`
    <h1 tabindex="-1">Rank</h1>
    <p class="dim">Which documents answer a query best, by the template of this server.</p>
    <form @submit=${form.send} @input=${keep}>
      <label for="query">Query</label>
      <textarea id="query" name="query" rows="2" required .value=${kept.query}></textarea>
      <label for="documents">Documents, one on each line</label>
      <textarea id="documents" name="documents" rows="8" required .value=${kept.documents}></textarea>
      <label for="instruction">Instruction, if the template knows one</label>
      <input id="instruction" name="instruction" .value=${kept.instruction}>
      <p class="row"><button type="submit" class="main" ?disabled=${form.isBusy}>${form.isBusy ? "Ranking …" : "Rank"}</button></p>
    </form>
    ${failure(form.error)}
    <section aria-live="polite" aria-label="Ranking">${answer ? result() : nothing}</section>`;

  function result() {
    const most = Math.max(...answer.results.map((one) => Math.abs(one.relevance_score)), 1e-9);
    const top = Math.max(1, most);
    return html`
      <h2>${plural(asked.length, "document")}, the best first</h2>
      ${warnings(answer.warnings)}
      <ol class="ranking">${answer.results.map((one) => html`<li>
        ${bar(Math.max(0, one.relevance_score) / top)}
        <span class="number">${score(one.relevance_score)}</span>
        <span class="document">${asked[one.index]}</span>
        <span class="dim">line ${count(one.index + 1)}</span></li>`)}</ol>
      <p class="dim">${count(answer.usage.prompt_tokens)} tokens</p>`;
  }
  return { title: "Rank", draw };
}
