// Ask questions about a state: the probability of each option, and how sure the answer is.

import { html, nothing } from "./lit-html.js";
import { bar, count, failure, score, warnings } from "./format.js";
import { call, sender } from "./interface.js";

const KINDS = [["choice", "one of several options"], ["score", "a level of a scale"], ["noul", "yes or no"]];

// What is in the form, also while other views are shown. It begins with an example.
const kept = {
  state: "My parcel has not arrived. I want a refund. Please answer today.",
  questions: [
    { type: "choice", instructions: "Which department should answer?", options: "billing\ndelivery\nsales" },
    { type: "score", instructions: "How urgent is it?", options: "can wait\nthis week\ntoday" },
    { type: "noul", instructions: "Is a refund requested?", options: "" },
  ],
};

export function decide({ redraw, signal }) {
  let answer = null;
  let asked = null; // the questions of the answer

  const form = sender({ redraw }, async () => {
    const questions = structuredClone(kept.questions);
    // An object of JavaScript would put options that are numbers first, and would round the numbers of a state.
    const body = `{"state": ${stateOf(kept.state)}, "questions": {${questions.map((one, n) => `"${n + 1}": ${questionOf(one, n + 1)}`)}}}`;
    answer = await call("/v1/systemone", { method: "POST", body, signal });
    asked = questions;
  });

  const add = () => {
    kept.questions.push({ type: "noul", instructions: "", options: "" });
    redraw();
    requestAnimationFrame(() => document.getElementById(`instructions-${kept.questions.length - 1}`)?.focus());
  };
  const remove = (n) => () => {
    kept.questions.splice(n, 1);
    redraw();
  };
  const change = (n) => ({ target }) => {
    kept.questions[n][target.name] = target.value;
    redraw();
  };

  const draw = () => html`
    <h1 tabindex="-1">Decide</h1>
    <p class="dim">Ask questions about a text. Each answer is a probability that is read at one position: nothing is generated.</p>
    <form @submit=${form.send}>
      <label for="state">State: a text, or a JSON object or list</label>
      <textarea id="state" rows="4" required .value=${kept.state} @input=${({ target }) => (kept.state = target.value)}></textarea>
      ${kept.questions.map(field)}
      <p class="row"><button type="submit" class="main" ?disabled=${form.isBusy || !kept.questions.length}>${form.isBusy ? "Deciding …" : "Decide"}</button>
      <button type="button" @click=${add}>Add a question</button></p>
    </form>
    ${failure(form.error)}
    <section aria-live="polite" aria-label="Answers">${answer ? result() : nothing}</section>`;

  const field = (one, n) => html`
    <fieldset @input=${change(n)}>
      <legend>Question ${n + 1}</legend>
      <div class="pair">
        <p><label for="instructions-${n}">Instructions</label>
        <input id="instructions-${n}" name="instructions" .value=${one.instructions}></p>
        <p><label for="type-${n}">Answer</label>
        <select id="type-${n}" name="type" .value=${one.type}>${KINDS.map(([type, words]) => html`<option value=${type} ?selected=${one.type === type}>${words}</option>`)}</select></p>
      </div>
      ${one.type === "noul" ? nothing : html`<label for="options-${n}">${one.type === "choice" ? "Options, one on each line: a name, or name: description (a space follows the colon)" : "Levels, one on each line, from the lowest"}</label>
        <textarea id="options-${n}" name="options" rows="3" required .value=${one.options}></textarea>`}
      <p class="row"><button type="button" class="quiet" @click=${remove(n)}>Remove question ${n + 1}</button></p>
    </fieldset>`;

  function result() {
    return html`
      <h2>Answers</h2>
      ${warnings(answer.warnings)}
      ${asked.map((one, n) => {
        const names = one.type === "choice" ? linesOf(one).map(([name]) => name) : undefined;
        return answered(one.instructions || `Question ${n + 1}`, answer.answers[n + 1], names);
      })}
      <p class="dim">${count(answer.usage.input_tokens)} tokens</p>`;
  }
  return { title: "Decide", draw };
}

/** The state as JSON: an object or a list as it is written, or else the text. */
function stateOf(text) {
  try {
    const value = JSON.parse(text);
    if (value !== null && typeof value === "object") return text;
  } catch {
    // It is a text.
  }
  return JSON.stringify(text);
}

/** The lines of options. Those of a choice are names with their descriptions, or null. */
function linesOf({ type, options }) {
  const lines = options.split("\n").map((line) => line.trim()).filter((line) => line);
  if (type !== "choice") return lines;
  return lines.map((line) => {
    const [, name, description] = line.match(/^(.*?):(?:\s+(.*))?$/) ?? [null, line];
    return [name.trim(), description ?? null];
  });
}

/** A question as JSON, with its options in the order of their lines. */
function questionOf(one, number) {
  const { type, instructions } = one;
  const lines = type === "noul" ? undefined : linesOf(one);
  if (type !== "choice") return JSON.stringify({ type, instructions, criteria: lines });
  const names = lines.map(([name]) => name);
  const double = names.find((name, n) => names.indexOf(name) < n);
  if (double !== undefined) throw { code: "option twice", message: `Question ${number} has the option ${double} twice.` };
  const criteria = lines.map((line) => line.map((part) => JSON.stringify(part)).join(": "));
  return `{"type": "choice", "instructions": ${JSON.stringify(instructions)}, "criteria": {${criteria}}}`;
}

/** A question with its answer, in the words of System One or of OpenAI. `names`: of the options, in their order. */
export function answered(question, found, names) {
  return html`<h3>${question} <strong class="answer">${told(found)}</strong></h3>
    <ol class="ranking">${shares(found, names).map(([name, share]) => html`<li>
      ${bar(share)}
      <span class="number">${score(share)}</span>
      <span class="document">${typeof name === "object" ? JSON.stringify(name) : name}</span></li>`)}</ol>`;
}

const yes = (found) => found.noul ?? found.probability;

/** The answer in a word, and how sure it is. */
function told(found) {
  if (yes(found) !== undefined) return yes(found) >= 0.5 ? "yes" : "no";
  const word = found.type === "choice" ? found.choice : `level ${score(found.score)}`;
  return `${word}, confidence ${score(found.confidence)}`;
}

/** The options with their probabilities. */
function shares(found, names) {
  const { probabilities, legend } = found;
  if (yes(found) !== undefined) return [["yes", yes(found)], ["no", 1 - yes(found)]];
  if (Array.isArray(probabilities)) return probabilities.map(({ label, value, probability }) => [label ?? value, probability]);
  return (names ?? Object.keys(probabilities)).map((option) => [legend?.[option] ?? option, probabilities[option]]);
}
