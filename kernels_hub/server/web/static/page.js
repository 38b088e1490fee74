// Nothing is loaded or sent; without scripts the pages work, and have no buttons that do nothing.
"use strict";
(() => {
  // Filters stand open beside the list where there is room for them.
  for (const filters of document.querySelectorAll(".filters details")) {
    filters.open = matchMedia("(min-width: 861px)").matches;
  }
  const said = document.getElementById("said");
  const copy = async (text) => {
    // navigator.clipboard is there on https and localhost alone.
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "hidden";
    field.setAttribute("aria-hidden", "true");
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    if (!done) throw new Error("the browser does not copy");
  };
  for (const box of document.querySelectorAll("[data-copy]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy " + box.dataset.copy);
    button.addEventListener("click", async () => {
      const source = box.querySelector("pre, code");
      try {
        await copy(source.textContent);
        button.textContent = "Copied";
      } catch {
        const range = document.createRange();
        range.selectNodeContents(source);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        button.textContent = "Selected";
      }
      said.textContent = button.textContent + " " + box.dataset.copy;
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    box.append(button);
  }
})();
