// Try a prompt, or compare two: their tokens, whether each label is one token, and how much of the probability the labels have.

import { html, nothing } from "./lit-html.js";
import { count, failure, plural, score, visible, warnings } from "./format.js";
import { call, pause, sender } from "./interface.js";

const MOST = 20; // items of a try; more are a job
const CONTROL = /^[<[].+[>\]]$/; // what a control token looks like
const DOUBT = 0.1; // a label mass below this probably means that the prompt is wrong
const NAMES = ["first", "second"]; // of two prompts that are compared

// What is in the form, also while other views are shown. It begins with an example.
const kept = {
  prompts: [{ query: "The capital of France is", query_template: "", item_template: "", isOpen: false }],
  items: "\n a city called",
  labels: " Paris\n London",
  softmax: false,
};

export function prompt({ redraw, signal }) {
  let tried = null; // {items, asked, labels, softmax, pieces, prompts}: of each prompt, {sequences, shared, answer}

  /** Send a request, and once more when the tenant may, if it has sent too many. */
  async function ask(path, body) {
    for (;;) {
      try {
        return await call(path, { method: body ? "POST" : "GET", body, signal });
      } catch (news) {
        if (news.code !== "rate_limit_exceeded") throw news;
        await pause(Math.max(1, news.retryAfter), signal);
      }
    }
  }

  /** Return the tokens of texts. One after another is asked for, because a tenant may have few requests a second. */
  async function tokenize(texts, special) {
    const found = [];
    for (const text of texts) found.push(await ask("/v1/tokenize", { text, add_special_tokens: special }));
    return found;
  }

  /** Return the tokens of a prompt with each item, and how many of them are the query's. */
  async function tokensOf({ query: text, query_template, item_template }, items) {
    const fill = (template, name, text) => (template ? template.split(name).join(text) : text);
    const query = fill(query_template, "{query}", text);
    const sequences = await tokenize(items.map((item) => query + fill(item_template, "{item}", item)), true);
    const [prefix] = query ? await tokenize([query], true) : [{ tokens: [] }];
    sequences.forEach((found, n) => {
      // What fills a template has no control tokens, but the route for tokens reads them in any text.
      const isTyped = (piece) => CONTROL.test(piece) && (text + items[n]).includes(piece);
      found.plain = (query_template || item_template) && found.pieces.find(isTyped);
    });
    const shared = sequences.map(({ tokens }) => {
      const end = tokens.findIndex((token, n) => token !== prefix.tokens[n]);
      return end < 0 ? Math.min(tokens.length, prefix.tokens.length) : end;
    });
    return { sequences, shared, answer: null };
  }

  /** Return the scores of a prompt. An error says of which of two it is. */
  async function scoresOf({ query, ...templates }, n, of) {
    const body = { query, items: of.items, labels: of.asked, apply_softmax: of.softmax };
    for (const name of ["query_template", "item_template"]) if (templates[name]) body[name] = templates[name];
    return ask("/v1/score", body).catch((news) => {
      if (of.prompts.length > 1 && news.code) news.message = `The ${NAMES[n]} prompt: ${news.message}`;
      throw news;
    });
  }

  const form = sender({ redraw }, async () => {
    // One empty line among others is an item of its own: the query alone is scored.
    const items = kept.items.split("\n");
    if (items.length > MOST) throw { code: "too many items", message: `${count(items.length)} items are more than the ${MOST} that can be tried; send a job.` };
    const lines = kept.labels.split("\n").filter((line) => line);
    const asked = lines.length ? lines : undefined; // without labels, a model with classes scores them all
    const { prompts: sent, softmax } = structuredClone(kept);
    const { classes } = await ask("/v1/models/default").catch((news) => {
      if (news.code !== "insufficient_scope") throw news;
      return {}; // a key that may only score does not learn what the model is
    });
    const [pieces, prompts] = await Promise.all([
      classes ? [] : tokenize(lines, false),
      Promise.all(sent.map((one) => tokensOf(one, items))),
    ]);
    tried = { items, asked, labels: asked ?? classes?.names ?? [], softmax, pieces, prompts };
    redraw();
    const answers = await Promise.all(sent.map((one, n) => scoresOf(one, n, tried)));
    answers.forEach((answer, n) => (prompts[n].answer = answer));
  });

  const isCompared = () => kept.prompts.length > 1;
  /** Go on with this many prompts. The second begins as a copy, so that what is changed in it is what is compared. */
  const compare = (number) => () => {
    kept.prompts = [kept.prompts[0], { ...kept.prompts[0] }].slice(0, number);
    tried?.prompts.splice(number);
    redraw();
    requestAnimationFrame(() => document.getElementById(number > 1 ? "query-1" : "compare")?.focus());
  };

  const keepIn = (record) => ({ target }) => (record[target.name] = target.type === "checkbox" ? target.checked : target.value);
  const draw = () => html`
    <h1 tabindex="-1">Try a prompt</h1>
    <p class="dim">Which tokens a query and its items become, and how probable each label is as the next one. A space is part of a text: labels often begin with one.</p>
    <form @submit=${form.send}>
      <div class="pair">${kept.prompts.map(field)}</div>
      <div @input=${keepIn(kept)}><div class="pair">
        <p><label for="items">Items, one on each line; an empty line is the query alone</label>
        <textarea id="items" name="items" rows="4" spellcheck="false" .value=${kept.items}></textarea></p>
        <p><label for="labels">Labels, one on each line; each must be one token, or a class of the model</label>
        <textarea id="labels" name="labels" rows="4" spellcheck="false" .value=${kept.labels}></textarea></p>
      </div>
      <p><input type="checkbox" id="softmax" name="softmax" .checked=${kept.softmax}> <label for="softmax">Scores of an item add up to 1 (<code>apply_softmax</code>)</label></p></div>
      <p class="row"><button type="submit" class="main" ?disabled=${form.isBusy}>${form.isBusy ? "Scoring …" : "Score"}</button>
        ${isCompared() ? nothing : html`<button type="button" id="compare" ?disabled=${form.isBusy} @click=${compare(2)}>Compare with another prompt</button>`}</p>
    </form>
    ${failure(form.error)}
    ${tried ? html`<section aria-live="polite" aria-label="Result">${labelList()}${tried.prompts.every((one) => one.answer) ? scores() : nothing}${tried.prompts.map(tokens)}</section>` : nothing}`;

  const field = (one, n) => html`
    <fieldset @input=${keepIn(one)}>
      <legend>${isCompared() ? `The ${NAMES[n]} prompt` : "Prompt"}</legend>
      <label for="query-${n}">Query</label>
      <textarea id="query-${n}" name="query" rows="3" spellcheck="false" .value=${one.query}></textarea>
      <details ?open=${one.isOpen} @toggle=${({ target }) => (one.isOpen = target.open)}><summary>Templates</summary>
        <label for="query_template-${n}">Query template, with <code>{query}</code></label>
        <textarea id="query_template-${n}" name="query_template" rows="2" spellcheck="false" .value=${one.query_template}></textarea>
        <label for="item_template-${n}">Item template, with <code>{item}</code></label>
        <textarea id="item_template-${n}" name="item_template" rows="2" spellcheck="false" .value=${one.item_template}></textarea>
      </details>
      ${n ? html`<p class="row"><button type="button" class="quiet" ?disabled=${form.isBusy} @click=${compare(1)}>Remove the second prompt</button></p>` : nothing}
    </fieldset>`;

  function labelList() {
    if (!tried.pieces.length) return nothing; // classes are no tokens
    const wrong = tried.pieces.filter(({ count: number }) => number !== 1).length;
    return html`<h2>Labels</h2>
      <ul class="labels">${tried.pieces.map((found, n) => html`<li>
        <code>${visible(tried.labels[n])}</code>
        ${found.count === 1 ? html`is token <span class="number">${found.tokens[0]}</span>` : html`<strong class="wrong">is ${plural(found.count, "token")}</strong> ${chips(found, 0)}`}</li>`)}</ul>
      ${wrong ? html`<p class="notice warn">A label must be one token. Try it with a space in front, or without.</p>` : nothing}`;
  }

  /** The scores of one prompt, or those of two beside each other with what the second has more. */
  function scores() {
    const { items, labels } = tried;
    const answers = tried.prompts.map((one) => one.answer);
    const isPair = answers.length > 1;
    const told = answers.flatMap((answer, n) => (answer.warnings ?? []).map((line) => (isPair ? `The ${NAMES[n]} prompt: ${line}` : line)));
    const heading = (text, columns, kind = "number") => html`<th scope=${columns > 1 ? "colgroup" : "col"} colspan=${columns} class=${kind}>${text}</th>`;
    return html`<h2>Scores</h2>
      ${warnings(told)}
      <div class="wide" tabindex="0" role="region" aria-label="Scores">
        <table class="scores">
          <thead>
            <tr><th scope="col" rowspan=${answers.length}>Item</th>${labels.map((label) => heading(visible(label), isPair ? 3 : 1))}
              ${heading("Label mass", answers.length, "")}</tr>
            ${isPair ? html`<tr>${[...labels.flatMap(() => [...NAMES, "difference"]), ...NAMES].map((name) => heading(name, 1))}</tr>` : nothing}
          </thead>
          <tbody>${items.map((item, n) => html`<tr><th scope="row"><span class="text">${visible(item)}</span></th>
            ${labels.map((_, label) => cells(answers.map((answer) => answer.scores[n][label])))}
            ${answers.map((answer) => html`<td>${mass(answer.label_mass?.[n], isPair)}</td>`)}</tr>`)}</tbody>
        </table>
      </div>`;
  }

  const cells = (values) => html`
    ${values.map((one) => html`<td class="heat h${Math.round(Math.max(0, Math.min(1, one)) * 10)}">${score(one)}</td>`)}
    ${values.length > 1 ? html`<td class="number">${difference(...values)}</td>` : nothing}`;

  const difference = (first, second) => (first === null || second === null ? "–" : (second > first ? "+" : "") + score(second - first));

  const mass = (share, isShort) =>
    share === undefined
      ? "–"
      : html`<span class="progress"><meter min="0" max="1" low=${DOUBT} optimum="1" .value=${share} aria-label="label mass"></meter><span class="number">${score(share)}</span></span>
          ${share < DOUBT ? html`<strong class="wrong">${isShort ? "tiny" : "tiny: the prompt is probably wrong"}</strong>` : nothing}`;

  const tokens = ({ sequences, shared }, n, all) => html`<h2>${all.length > 1 ? `Tokens of the ${NAMES[n]} prompt` : "Tokens"}</h2>
    ${n ? nothing : html`<p class="dim"><span class="chip shared">shared</span> tokens are those of the query, which are computed once; the others are the item's own.</p>`}
    <ol class="sequences">${sequences.map((found, place) => html`<li>
      ${found.plain
        ? html`<p class="notice warn">The query or the item holds ${found.plain}, which looks like a control token. With a template it is scored as plain text, and its tokens can't be shown.</p>`
        : html`<p class="dim">${plural(found.count, "token")}, ${count(shared[place])} of them shared</p>${chips(found, shared[place])}`}</li>`)}</ol>`;

  const chips = (found, shared) =>
    html`<span class="chips">${found.pieces.map((piece, n) => html`<span class="chip ${n < shared ? "shared" : ""}" title="token ${found.tokens[n]}">${visible(piece)}</span>`)}</span>`;

  return { title: "Try a prompt", draw };
}
