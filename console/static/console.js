// What the pages do beyond HTML. Every page works without it.

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  const name = button.textContent;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = button.dataset.done;
  } catch {
    // Over plain HTTP browsers have no clipboard, except on localhost: the person copies the selected text.
    getSelection().selectAllChildren(button.previousElementSibling);
    button.textContent = button.dataset.selected;
  }
  setTimeout(() => { button.textContent = name; }, 4000);
});

// A form that was sent is not sent again by a second click, until its page is shown again or has waited for long.
const sent = new Set();
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (event.defaultPrevented || form.method !== "post") return;
  if (sent.has(form)) return event.preventDefault();
  sent.add(form);
  setTimeout(() => sent.delete(form), 10_000);
});
addEventListener("pageshow", () => sent.clear());

// A page that could not be answered loads itself anew, once its reader looks at it.
document.addEventListener("DOMContentLoaded", () => {
  const waiting = document.querySelector("[data-reload-s]");
  if (!waiting) return;
  setInterval(() => { if (!document.hidden) location.reload(); }, waiting.dataset.reloadS * 1000);
});

// Nobody sees the live parts of a hidden page; what was not loaded then is loaded at the event "shown".
document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden) event.preventDefault();
});

// Streams of live parts: a hidden page has none, and one whose reader may see something else now loads itself anew.
const streams = new Set();
const paused = new Set();

function pause(source) {
  streams.delete(source);
  if (source.readyState === EventSource.CLOSED) return;
  source.close();
  paused.add(source);
}

// What a page says of a lost stream waits for the time in which an ended stream is opened again.
const LOST_MS = 6000;
let lost = 0;

function lateLine(event) {
  return event.target.querySelector(".live-late");
}

document.addEventListener("htmx:sseError", async (event) => {
  const source = event.detail.source;
  if (paused.has(source)) return;
  lost ||= setTimeout(() => { lateLine(event).textContent = lateLine(event).dataset.lost; }, LOST_MS);
  if (source.readyState !== EventSource.CLOSED) return;
  // The extension connects again and again; why it is refused only another request tells.
  const asking = new AbortController();
  try {
    const answer = await fetch(source.url, { headers: { Accept: "text/event-stream" }, signal: asking.signal });
    if (answer.status === 401 || answer.status === 403) location.reload();
  } catch {
    // Nobody answers.
  }
  asking.abort();
});

document.addEventListener("htmx:sseOpen", (event) => {
  const source = event.detail.source;
  clearTimeout(lost);
  lost = 0;
  lateLine(event).textContent = "";
  source.addEventListener("over", () => {
    source.close(); // what ends here was not lost
    location.reload();
  });
  streams.add(source);
  if (document.hidden) pause(source);
});

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    [...streams].forEach(pause);
  } else {
    // The extension connects again after an error of a closed source.
    paused.forEach((source) => source.dispatchEvent(new Event("error")));
    paused.clear();
    document.dispatchEvent(new Event("shown"));
  }
});
