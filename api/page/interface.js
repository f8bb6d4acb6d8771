// Calls of the public interface: with the key of this tab, if its user has entered one, and nowhere but to this server.

const KEY = "scoreline-key"; // in the tab's session storage, which ends with the tab

export const keyOfTab = () => sessionStorage.getItem(KEY);
export const keepKey = (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY));

/** An answer that is an error. `code` is one of the codes of the interface, or "unreachable". */
export class Refusal extends Error {
  constructor(status, code, message, retryAfter) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }
}

/** Send a request, and return the response if it is a 2xx. A body that is a text is sent as it is. Throws Refusal, and AbortError when `signal` says so. */
export async function request(path, { method = "GET", body, headers = {}, signal } = {}) {
  const key = keyOfTab();
  const sent = { ...headers };
  if (key) sent.Authorization = `Bearer ${key}`;
  if (body !== undefined) sent["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method,
      signal,
      headers: sent,
      body: typeof body === "string" ? body : JSON.stringify(body),
      credentials: "omit",
      cache: "no-store",
      redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "unreachable", "The server does not answer.", 2);
  }
  if (response.ok) return response;
  const { error = {} } = await response.json().catch(() => ({}));
  if (response.status === 401) window.dispatchEvent(new CustomEvent("key-needed"));
  const retryAfter = Number(response.headers.get("retry-after")) || 0;
  throw new Refusal(response.status, error.code ?? "unknown", error.message ?? `status ${response.status}`, retryAfter);
}

/** Send a request, and return its answer as an object. */
export const call = async (path, options) => (await request(path, options)).json();

/** A function that keeps the last failure as its `error`, null once all is well again, and draws the view when it changes. */
export function keeper(redraw) {
  const failed = (news) => {
    if (news !== failed.error) redraw();
    failed.error = news;
  };
  failed.error = null;
  return failed;
}

/** What sends a form, one press at a time: `isBusy` and `error` are for its view, which may have been left meanwhile. */
export function sender({ redraw }, work) {
  const form = { isBusy: false, error: null, send };
  async function send(event) {
    event.preventDefault();
    Object.assign(form, { isBusy: true, error: null });
    redraw();
    try {
      await work();
    } catch (news) {
      if (news.name === "AbortError") return;
      form.error = news;
    }
    form.isBusy = false;
    redraw();
  }
  return form;
}

/** Wait for some seconds, or until the signal ends the wait. */
export const pause = (seconds, signal) =>
  new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end); // a view that stays open waits very often
      resolve();
    };
    const timer = setTimeout(end, seconds * 1000);
    signal.addEventListener("abort", end);
  });

/** Return when the tab is seen. A tab in the background asks nothing, and holds no connection. */
const seen = (signal) =>
  new Promise((resolve) => {
    const end = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", end);
      signal.removeEventListener("abort", end);
      resolve();
    };
    document.addEventListener("visibilitychange", end);
    signal.addEventListener("abort", end);
    end();
  });

/** The answers after which a thing is not asked for again. */
export const FINAL = [400, 401, 403, 404];

/**
 * Call `look` every few seconds, until it returns true, the signal ends it, or an error has a status among the final
 * ones. `failed` gets a Refusal, or null once all is well again.
 */
export async function repeat(seconds, look, failed, signal, final = [401, 403]) {
  while (!signal.aborted) {
    await seen(signal);
    let wait = seconds;
    try {
      const isDone = await look();
      if (!signal.aborted) failed(null);
      if (isDone) return;
    } catch (error) {
      if (error.name === "AbortError" || signal.aborted) return;
      failed(error);
      if (final.includes(error.status)) return;
      wait = Math.max(seconds, error.retryAfter ?? 0);
    }
    await pause(wait, signal);
  }
}

/**
 * Follow a stream of events until its `end`, also over breaks. `on` has a function for each kind of event, which gets
 * its data and its id. The browser's EventSource can't send a key, so this reads the stream itself.
 */
export async function follow(path, on, failed, signal, last = null) {
  let wait = 1;
  while (!signal.aborted) {
    await seen(signal);
    const connection = new AbortController();
    const stop = () => connection.abort();
    const hide = () => document.hidden && stop();
    signal.addEventListener("abort", stop);
    document.addEventListener("visibilitychange", hide);
    try {
      const response = await request(path, { headers: last ? { "Last-Event-ID": last } : {}, signal: connection.signal });
      if (response.status === 204) return;
      failed(null);
      for await (const event of eventsOf(response.body)) {
        wait = 1;
        last = event.id ?? last;
        await on[event.name]?.(JSON.parse(event.data), event.id);
        if (event.name === "end" || signal.aborted) return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error.name !== "AbortError") {
        failed(error);
        if (FINAL.includes(error.status)) return;
        wait = Math.max(wait, error.retryAfter ?? 0);
      }
    } finally {
      stop();
      signal.removeEventListener("abort", stop);
      document.removeEventListener("visibilitychange", hide);
    }
    await pause(wait, signal);
    wait = Math.min(30, wait * 2);
  }
}

async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = block.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 1).trimStart()]);
      const { event: name, id, data } = Object.fromEntries(fields);
      if (name) yield { name, id, data };
    }
  }
}
