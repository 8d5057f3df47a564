// What the pages do beyond HTML. Every page works without it.

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  const name = button.textContent;
  await navigator.clipboard.writeText(button.dataset.copy);
  button.textContent = button.dataset.done;
  setTimeout(() => { button.textContent = name; }, 2000);
});

// Nobody sees the live parts of a hidden page.
document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden) event.preventDefault();
});
