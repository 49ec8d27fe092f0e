// A button beside code that a reader may want to run; what it printed has none.
document.addEventListener("DOMContentLoaded", () => {
  if (!navigator.clipboard) return;
  for (const code of document.querySelectorAll("article div.highlight > pre")) {
    if (code.closest(".cell_output")) continue;
    const button = document.createElement("button");
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    code.parentElement.append(button);
  }
});
